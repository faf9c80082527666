package engine

import (
	"os"
	"strings"
	"testing"

	"github.com/ebb-offload/ebb/internal/alloc"
)

// After an I/O error the backup files are given up, so that the next pause can go to another
// directory: here the first one has become something else.
func TestAPauseLeavesADiskThatFails(t *testing.T) {
	r := newRig(t)
	a := r.make(1<<20, 0, disk("x"))
	r.pause()
	r.resume()
	check(t, os.RemoveAll(r.dir))
	check(t, os.WriteFile(r.dir, nil, 0o600))
	if _, err := r.Pause(nil, r.set); Code(err) != CodeIO {
		t.Fatalf("pause to a file in place of a directory: %v", err)
	}
	r.holds(a)
	check(t, os.Remove(r.dir))
	r.dir = t.TempDir()
	r.set.DiskDir = r.dir
	r.pause()
	if n := len(r.files()); n != 1 {
		t.Fatalf("%d files in the other directory", n)
	}
	r.resume()
	r.holds(a)
}

func TestWhatAPartialPauseLeavesActiveKeepsNoHostMemory(t *testing.T) {
	r := newRig(t)
	a, b := r.make(1<<20, 0, pinned("x")), r.make(1<<20, 0, pinned("x"))
	r.fault("cuMemUnmap:1:999")
	if _, err := r.Pause(nil, r.set); Code(err) != CodePartial {
		t.Fatalf("got %v", err)
	}
	active := a
	if r.state(a) != alloc.Active {
		active = b
	}
	if _, err := r.BackupPointer(active.addr, 1); Code(err) != CodeState {
		t.Errorf("a backup pointer of active memory: %v", err)
	}
	r.resume()
	if n := r.backings.pinned.Usage().HostBytes; n != 0 {
		t.Errorf("%d bytes of host memory are kept", n)
	}
	r.holds(a, b)
}

func TestALogLineIsOneLine(t *testing.T) {
	if got := string(oneLine([]byte("a\nb\n"))); got != "a; b\n" {
		t.Errorf("%q", got)
	}
	long := oneLine([]byte(strings.Repeat("é\n", 5000)))
	if len(long) > maxLine+8 || strings.Count(string(long), "\n") != 1 {
		t.Errorf("%d bytes", len(long))
	}
}
