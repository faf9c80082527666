package store

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/ebb-offload/ebb/internal/filesys"
	"github.com/ebb-offload/ebb/internal/testutil"
)

// hangWorld is a world whose disks are waited for so long.
func hangWorld(t *testing.T, m mode, limit time.Duration) *world {
	w := newWorld(t, m)
	w.place(testutil.InMemory(t))
	d := filesys.NewDeadline(w.sys, limit)
	w.store.deadline, w.store.sys, w.store.fds.sys, w.store.fds.max = d, d, d, 4
	d.OnAnswer(w.store.sweep)
	return w
}

// thaw lets all calls go on and waits until they have returned and no backup file is left.
func (w *world) thaw(t *testing.T) {
	t.Helper()
	w.fault("")
	for deadline := time.Now().Add(time.Minute); ; runtime.Gosched() {
		left, err := filepath.Glob(filepath.Join(w.root, "*/b/*"))
		if err != nil {
			t.Fatal(err)
		}
		if len(left) == 0 && len(w.store.Usage().Hung) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("left behind: %v; hanging: %v", left, w.store.Usage().Hung)
		}
	}
}

// TestEachCallHangsOnce: whichever call has no answer, everybody gets one, no lock stays held, and
// nothing is left behind when the disk answers again.
func TestEachCallHangsOnce(t *testing.T) {
	for _, m := range modes[:3] {
		w := newWorld(t, m)
		if err := w.cycle(t, 1); err != nil {
			t.Fatal(err)
		}
		if err := w.store.Close(); err != nil {
			t.Fatal(err)
		}
		for call := range w.sys.Calls() {
			if call == "setfl" { // asks no disk
				continue
			}
			t.Run(m.name+"/"+call, func(t *testing.T) {
				t.Parallel()
				w := hangWorld(t, m, time.Second/2)
				w.fault(call + ":1:hang")
				err := w.cycle(t, 1)
				if err != nil && (!errors.Is(err, filesys.ErrHang) || !errors.Is(err, ErrIO)) {
					t.Errorf("the cycle: %v", err)
				}
				w.store.Rest()
				for _, b := range w.backings {
					if err := b.Release(); err != nil && !errors.Is(err, filesys.ErrHang) {
						t.Errorf("the release: %v", err)
					}
				}
				w.thaw(t)
				w.store.Retry()
				w.backings, w.good = nil, nil
				for id := range uint64(2) {
					w.open(t, 10+id)
				}
				if err := w.cycle(t, 5); err != nil {
					t.Errorf("once the disk answers: %v", err)
				}
				if err := w.store.Close(); err != nil {
					t.Error(err)
				}
				w.closed(t)
			})
		}
	}
}

// An operation waits for a disk once, and not for each of its files.
func TestADiskThatHangsIsWaitedForOnce(t *testing.T) {
	w := hangWorld(t, mode{}, time.Second)
	for id := range uint64(50) {
		w.open(t, 2+id)
	}
	if err := w.cycle(t, 1); err != nil {
		t.Fatal(err)
	}
	w.fault("fstatat:*:hang")
	for _, b := range w.backings {
		if err := b.Release(); !errors.Is(err, filesys.ErrHang) {
			t.Errorf("got %v", err)
		}
	}
	if n := w.sys.Hits(); n != 1 {
		t.Errorf("%d calls were begun", n)
	}
	w.thaw(t)
	w.closed(t)
}

func TestALateWriteLandsInNoFileThatIsInUse(t *testing.T) {
	w := hangWorld(t, mode{}, time.Second)
	if err := w.cycle(t, 1); err != nil {
		t.Fatal(err)
	}
	late, fresh := pages(t, testBlock), pages(t, testBlock)
	for i := range testBlock {
		late[i], fresh[i] = 0xee, 0x11
	}
	old := fileOf(w.backings[0])
	w.fault("pwrite:1:hang")
	err := w.backings[0].WriteBlock(0, late, filled(0xee))
	if !errors.Is(err, filesys.ErrHang) || !strings.Contains(err.Error(), old) {
		t.Fatalf("a write that hangs: %v", err)
	}
	if got := w.backings[0].Block(0); got != (Block{}) {
		t.Errorf("the block is %+v", got)
	}
	if err := w.backings[0].Release(); !errors.Is(err, filesys.ErrHang) { // the name stays for now
		t.Errorf("its release: %v", err)
	}
	w.store.Retry() // the next pause: this disk answers other calls
	if _, err := os.Stat(old); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file given up is still there: %v", err)
	}
	b := w.open(t, 7)
	if err := b.Reserve(); err != nil {
		t.Fatal(err)
	}
	if err := b.WriteBlock(0, fresh, filled(0x11)); err != nil {
		t.Fatal(err)
	}
	w.fault("")
	<-filesys.InUse(err)
	got := pages(t, testBlock)
	if err := b.ReadBlock(0, got); err != nil || !bytes.Equal(got, fresh) {
		t.Errorf("after the late write: %v", err)
	}
	if err := w.store.Close(); err != nil {
		t.Error(err)
	}
	w.closed(t)
}

// The file of a read is the only copy: it stays, and can be read while the first call still hangs.
func TestALateReadFillsTheMemoryThatItWasGiven(t *testing.T) {
	w := hangWorld(t, mode{}, time.Second)
	if err := w.cycle(t, 1); err != nil {
		t.Fatal(err)
	}
	w.fault("pread:1:hang")
	late, got := pages(t, testBlock), pages(t, testBlock)
	err := w.backings[0].ReadBlock(0, late)
	busy := filesys.InUse(err)
	if busy == nil {
		t.Fatalf("a read that hangs: %v", err)
	}
	if err := w.backings[0].ReadBlock(0, got); !errors.Is(err, filesys.ErrHang) {
		t.Errorf("another read in the same operation: %v", err)
	}
	w.store.Retry()
	if err := w.backings[0].ReadBlock(0, got); err != nil || got[0] != w.good[0][0] {
		t.Errorf("a retry: %v, %d", err, got[0])
	}
	if !bytes.Equal(late, make([]byte, testBlock)) {
		t.Error("the read went on")
	}
	w.fault("")
	<-busy
	if late[0] != w.good[0][0] {
		t.Error("the read did not go on")
	}
	if err := w.store.Close(); err != nil {
		t.Error(err)
	}
	w.closed(t)
}

// What is told about a store never waits for a disk, in whatever call it hangs.
func TestUsageNeverWaitsForADisk(t *testing.T) {
	for _, call := range []string{"opendir", "open", "fallocate", "mkdir"} {
		t.Run(call, func(t *testing.T) {
			w := hangWorld(t, mode{}, 0)
			w.fault(call + ":1:hang")
			done := make(chan error)
			go func() { done <- w.backings[0].Reserve() }()
			w.sys.AwaitHang()
			if u := w.store.Usage(); u.Files > 1 {
				t.Errorf("%+v", u)
			}
			w.fault("")
			if err := <-done; err != nil {
				t.Error(err)
			}
			if err := w.store.Close(); err != nil {
				t.Error(err)
			}
			w.closed(t)
		})
	}
}

func TestUsageNamesTheCallsThatHang(t *testing.T) {
	w := hangWorld(t, mode{}, time.Second)
	if err := w.cycle(t, 1); err != nil {
		t.Fatal(err)
	}
	w.fault("pwrite:1:hang")
	path := fileOf(w.backings[0])
	err := w.backings[0].WriteBlock(0, pages(t, testBlock), filled(0))
	hung := w.store.Usage().Hung
	if len(hung) != 1 || hung[0].Path != path || hung[0].Bytes != testBlock {
		t.Errorf("%+v after %v", hung, err)
	}
	w.fault("")
	<-filesys.InUse(err)
	if err := w.store.Close(); err != nil {
		t.Error(err)
	}
	w.closed(t)
	if hung := fmt.Sprint(w.store.Usage().Hung); hung != "[]" {
		t.Error(hung)
	}
}
