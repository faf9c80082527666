package store

import (
	"bytes"
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Whoever still has the file open, a child that was forked during a call for example, has nothing of
// it then.
func TestBlocksAreGivenBackBeforeAFileIsRemoved(t *testing.T) {
	for _, want := range []bool{true, false} {
		w := newWorld(t, mode{})
		w.store.options.Discard = want
		if err := w.cycle(t, 7); err != nil {
			t.Fatal(err)
		}
		forgotten, err := os.Open(fileOf(w.backings[0]))
		if err != nil {
			t.Fatal(err)
		}
		defer forgotten.Close()
		if err := w.store.Close(); err != nil {
			t.Fatal(err)
		}
		if want && len(w.warned) > 0 {
			t.Skip(w.warned)
		}
		content, err := io.ReadAll(forgotten)
		if err != nil {
			t.Fatal(err)
		}
		if zero := len(bytes.Trim(content, "\x00")) == 0; zero != want || len(content) == 0 {
			t.Errorf("discard %v: a forgotten descriptor shows %d bytes, all zero: %v", want, len(content), zero)
		}
	}
}

func TestWhatCannotBeGivenBackIsRemovedAllTheSame(t *testing.T) {
	for _, refusal := range []unix.Errno{unix.EOPNOTSUPP, unix.EIO} {
		w := newWorld(t, mode{})
		w.store.options.Discard = true
		w.fault("discard:*:" + unix.ErrnoName(refusal))
		if err := w.cycle(t, 7); err != nil {
			t.Fatal(err)
		}
		files := []string{fileOf(w.backings[0]), fileOf(w.backings[1])}
		if err := w.store.Close(); err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if _, err := os.Lstat(file); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("%s: %v", file, err)
			}
		}
		if len(w.warned) != 1 || !strings.Contains(w.warned[0], w.dir) || !strings.Contains(w.warned[0], refusal.Error()) {
			t.Errorf("want one line that says so, got %q", w.warned)
		}
	}
}

// A file that somebody put in its place keeps what it holds.
func TestAFileThatTookTheNameIsNotDiscarded(t *testing.T) {
	w := newWorld(t, mode{})
	w.store.options.Discard = true
	if err := w.cycle(t, 7); err != nil {
		t.Fatal(err)
	}
	w.store.Rest()
	file := fileOf(w.backings[0])
	if err := errors.Join(os.Rename(file, file+".moved"), os.WriteFile(file, []byte("theirs"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := w.store.Close(); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(file); err != nil || string(got) != "theirs" {
		t.Errorf("it holds %q, %v", got, err)
	}
}
