package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Where the file system preallocates, the room is short before the first byte is written; where it does
// not, in the midst of writing.
func TestADiskThatFillsAtARandomByteOfAPause(t *testing.T) {
	rng := random(t)
	for _, c := range []struct {
		name        string
		preallocate bool
		dirs        int // several: under ebb run, with host memory besides
		failures    int
	}{
		{"preallocating", true, 1, 35},
		{"while writing", false, 1, 35},
		{"striped preallocating", true, 2, 15},
		{"striped while writing", false, 2, 15},
	} {
		failures := c.failures
		if !long() {
			if c.dirs > 1 && c.preallocate {
				continue
			}
			failures = 1
		}
		t.Run(c.name, func(t *testing.T) {
			full := mountExt4(t, "48M")
			n := newNode(t, 64)
			n.env = []string{"SOFTGPU_GRANULARITY_KB=64", "TMS_DISK_BACKUP_CHUNK_MB=1", "TMS_DISK_BACKUP_DIR=" + full}
			if !c.preallocate {
				n.env = append(n.env, "EBB_FAULT_FILES=fallocate:*:EOPNOTSUPP")
			}
			cmd := n.victim(t, "diskfull_random.py", rng.Text(), fmt.Sprint(failures), full)
			if c.dirs > 1 {
				flags := append(diskFlags(filepath.Join(full, "one"), filepath.Join(full, "two")), "--offload-train-host-mb", "1")
				cmd = n.ebbRun(t, flags, "diskfull_random.py", rng.Text(), fmt.Sprint(failures), full)
			}
			t.Log(strings.TrimSpace(succeed(t, cmd)))
			wantNoFiles(t, full)
		})
	}
}

// A disk that has no room for even the marker of a rank is no place to start one.
func TestARunWithAFullDiskSaysWhatToDo(t *testing.T) {
	full := mountExt4(t, "16M")
	rest, err := os.Create(filepath.Join(full, "rest"))
	if err != nil {
		t.Fatal(err)
	}
	for block := make([]byte, 4096); err == nil; {
		_, err = rest.Write(block)
	}
	if e2 := rest.Close(); !errors.Is(err, unix.ENOSPC) || e2 != nil {
		t.Fatal(err, e2)
	}
	n := newNode(t, 64)
	o := run(t, n.ebbRun(t, diskFlags(filepath.Join(n.disk, "room"), full), "cycles.py"))
	if o.status != 73 || !strings.Contains(o.stderr, full) || !strings.Contains(o.stderr, "make room there, or name another disk directory\n") {
		t.Error(o)
	}
	wantNoFiles(t, n.disk)
	if found := below(t, full, ""); !slices.Equal(found, []string{"rest"}) {
		t.Errorf("left: %v", found)
	}
}
