package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// However a process with streamed state ends, and whether or not its memory is parked too, no file of it is
// left in the directories that it was given.
func TestStreamedStateLeavesNoFile(t *testing.T) {
	for _, c := range []struct {
		ending string
		park   bool
		status int
	}{
		{"exception", false, 1}, {"kill", false, 128 + int(syscall.SIGKILL)}, {"fork", false, 0},
		{"kill", true, 128 + int(syscall.SIGKILL)}, {"park", true, 0},
	} {
		name := c.ending
		if c.park {
			name += ", parked too"
		}
		t.Run(name, func(t *testing.T) {
			n := newNode(t, 64)
			n.env = []string{"EBB_STATE_CHUNK_MB=2"}
			disk, state := filepath.Join(n.disk, "disk"), filepath.Join(n.disk, "state")
			flags := []string{"--optimizer-state-nvme-dir", state}
			if c.park {
				flags = append(flags, diskFlags(disk)...)
			}
			o := run(t, n.ebbRun(t, flags, "streamed.py", c.ending, state))
			if o.status != c.status || strings.Contains(o.stderr, "AssertionError") {
				t.Fatalf("want status %d, got %v", c.status, o)
			}
			if left := below(t, n.disk, "nobody"); len(left) > 2 || len(leftovers(t, n.disk)) > 0 {
				for _, name := range left {
					if !strings.Contains(name, ".ebb") && name != "disk" && name != "state" {
						t.Errorf("left behind: %s", name)
					}
				}
			}
		})
	}
}

// Without a directory of its own streamed state lies where disk backups do, in the rank's directory.
func TestStreamedStateInTheDiskDirectory(t *testing.T) {
	n := newNode(t, 64)
	disk := filepath.Join(n.disk, "disk")
	o := run(t, n.ebbRun(t, []string{"--stream-optimizer-state-to-disk", "--offload-train-disk-dir", disk}, "streamed.py", "exit", disk))
	if o.status != 0 {
		t.Fatal(o)
	}
	wantNoFiles(t, n.disk)
	o = run(t, n.victim(t, "streamed.py", "exit")) // and without a launcher
	if o.status != 0 {
		t.Fatal(o)
	}
	wantNoFiles(t, n.disk)
}

// A read-only directory is told before anything is started.
func TestStreamedStateInADirectoryThatIsNoPlace(t *testing.T) {
	n := newNode(t, 64)
	file := filepath.Join(n.disk, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	const readOnly = "/sys/ebb" // nobody can make a directory there
	for _, dir := range []string{file, filepath.Join(n.disk, "none", "none"), readOnly} {
		o := run(t, n.ebbRun(t, []string{"--optimizer-state-nvme-dir", dir}, "streamed.py", "exit"))
		if o.status != 2 || !strings.Contains(o.stderr, dir) || !strings.Contains(o.stderr, "--optimizer-state-nvme-dir") {
			t.Errorf("%s: %v", dir, o)
		}
	}
}
