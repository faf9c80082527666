package rankdir

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// openFiles opens the data files of a directory, as a process does that somebody forgot.
func openFiles(t *testing.T, dir string) []*os.File {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "*.bak"))
	if err != nil || len(names) == 0 {
		t.Fatal("no data files in "+dir, err)
	}
	var list []*os.File
	for _, name := range names {
		f, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		list = append(list, f)
	}
	return list
}

// wantDiscarded checks what a report says of discarding, and what a forgotten descriptor still shows.
func wantDiscarded(t *testing.T, what string, r Report, forgotten []*os.File, want bool) {
	t.Helper()
	if r.State != Reclaimed || len(r.Files) != len(forgotten) {
		t.Errorf("%s: %+v, want %d files removed", what, r, len(forgotten))
	}
	if want && strings.Contains(r.Undiscarded, "not supported") {
		t.Skip(r.Undiscarded)
	}
	if want != (r.Discarded == r.Bytes) || r.Undiscarded != "" || !want && r.Discarded > 0 {
		t.Errorf("%s: discarded %d of %d bytes (%s), want all: %v", what, r.Discarded, r.Bytes, r.Undiscarded, want)
	}
	for _, f := range forgotten {
		content, err := io.ReadAll(f)
		if err != nil {
			t.Fatal(err)
		}
		if zero := len(bytes.Trim(content, "\x00")) == 0; zero != want {
			t.Errorf("%s: a forgotten descriptor shows %q", what, content)
		}
	}
}

// TestDiscardedBeforeTheyGo: by sweeps of both kinds, by the claim that ends and by the one that comes
// after a dead one; and only where that is asked for.
func TestDiscardedBeforeTheyGo(t *testing.T) {
	for _, want := range []bool{true, false} {
		how := SweepOptions{Discard: want}

		base := t.TempDir()
		forgotten := openFiles(t, deadRank(t, base, "job"))
		r, err := Sweep(base, SweepOptions{Dry: true, Discard: want})
		if err != nil || len(r) != 1 || r[0].Discarded > 0 {
			t.Fatalf("dry run: %+v, %v", r, err)
		}
		if r, err = Sweep(base, how); err != nil || len(r) != 1 {
			t.Fatalf("sweep: %+v, %v", r, err)
		}
		wantDiscarded(t, "sweep", r[0], forgotten, want)

		forgotten = openFiles(t, deadRank(t, base, "job"))
		var rep Report
		c, err := NewClaim(base, testIdentity("job"), ClaimOptions{Discard: want, Reclaimed: func(r Report) { rep = r }})
		if err != nil {
			t.Fatal(err)
		}
		wantDiscarded(t, "the next claim", rep, forgotten, want)
		if err := writeDataFiles(c.Dir(), 2); err != nil {
			t.Fatal(err)
		}
		renameToDead(t, c.Dir())
		forgotten = openFiles(t, c.Dir())
		if rep, err = c.Reclaim(); err != nil {
			t.Fatal(err)
		}
		wantDiscarded(t, "reclaim", rep, forgotten, want)

		bare := t.TempDir()
		write(t, filepath.Join(bare, gone(t).DataFile(0)), "bytes")
		forgotten = openFiles(t, bare)
		if r, err = SweepBare(bare, nil, how); err != nil || len(r) != 1 {
			t.Fatalf("bare sweep: %+v, %v", r, err)
		}
		wantDiscarded(t, "bare sweep", r[0], forgotten, want)
	}
}

// TestDiscardLeavesWhatTookTheName between the look at the file and its opening.
func TestDiscardLeavesWhatTookTheName(t *testing.T) {
	dir := t.TempDir()
	name := gone(t).DataFile(0)
	path := filepath.Join(dir, name)
	write(t, path, "ebb's")
	var seen unix.Stat_t
	if err := unix.Lstat(path, &seen); err != nil {
		t.Fatal(err)
	}
	fd, err := openBelow(unix.AT_FDCWD, dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	write(t, dir+"/precious", "theirs")
	for what, take := range map[string]func() error{
		"another file":     func() error { return os.Rename(dir+"/precious", path) },
		"a symlink":        func() error { return os.Symlink(dir+"/precious", path) },
		"a link":           func() error { return os.Link(dir+"/precious", path) },
		"one more name":    func() error { return os.Link(dir+"/ebbs", path) },
		"a fifo":           func() error { return unix.Mkfifo(path, 0o600) },
		"a directory":      func() error { return os.Mkdir(path, 0o700) },
		"nothing, it went": func() error { return nil },
	} {
		if err := os.Rename(path, dir+"/ebbs"); err != nil {
			t.Fatal(err)
		}
		if err := take(); err != nil {
			t.Fatal(err)
		}
		if err := discardFile(fd, name, &seen); err == nil {
			t.Errorf("%s: no error", what)
		}
		if what == "another file" {
			if err := os.Rename(path, dir+"/precious"); err != nil {
				t.Fatal(err)
			}
		}
		_ = os.Remove(path)
		for file, want := range map[string]string{"/precious": "theirs", "/ebbs": "ebb's"} {
			if got, err := os.ReadFile(dir + file); err != nil || string(got) != want {
				t.Errorf("%s: %s holds %q, %v", what, file, got, err)
			}
		}
		if err := os.Rename(dir+"/ebbs", path); err != nil {
			t.Fatal(err)
		}
	}
	if err := discardFile(fd, name, &seen); err != nil {
		t.Errorf("the file itself: %v", err)
	}
}
