package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// diskDirs are directories for the disk target, each one's parent existing.
func diskDirs(n *node, count int) (dirs []string) {
	for i := range count {
		dirs = append(dirs, filepath.Join(n.disk, fmt.Sprint("disk", i)))
	}
	return dirs
}

func TestHostMemoryAndSeveralDisksAtOnce(t *testing.T) {
	n := newNode(t, 256)
	dirs := diskDirs(n, 3)
	flags := []string{
		"--offload-train", "--offload-train-target", "auto", "--offload-train-host-mb", "24",
		"--offload-train-disk-chunk-mb", "16", "--offload-train-disk-dir", strings.Join(dirs, ","),
	}
	o := run(t, n.ebbRun(t, flags, "tiers.py", "24", "4", "normal"))
	if o.status != 0 {
		t.Fatal(o)
	}
	t.Log(strings.TrimSpace(o.stdout))
	wantNoFiles(t, n.disk)
}

// Without a number the rank chooses its budget, and says in one line what and why.
func TestTheRankChoosesItsHostMemoryBudget(t *testing.T) {
	n := newNode(t, 256)
	flags := []string{"--offload-train", "--offload-train-target", "auto", "--offload-train-disk-dir", strings.Join(diskDirs(n, 1), ",")}
	o := run(t, n.ebbRun(t, flags, "tiers.py", "auto", "2", "normal"))
	if said := lines(o.stderr, "host memory for disk backups"); o.status != 0 || len(said) != 1 || !strings.Contains(said[0], "1 rank, reserve ") {
		t.Errorf("%q: %v", said, o)
	}
	wantNoFiles(t, n.disk)
}

func TestFilesOfAKilledRankGoFromAllDisks(t *testing.T) {
	n := newNode(t, 256)
	dirs := diskDirs(n, 2)
	flags := []string{"--offload-train", "--offload-train-target", "disk", "--offload-train-host-mb", "8", "--offload-train-disk-dir", strings.Join(dirs, ",")}
	if o := run(t, n.ebbRun(t, flags, "tiers.py", "8", "1", "killed")); o.status != 128+int(syscall.SIGKILL) {
		t.Errorf("want 137, got %v", o)
	}
	wantNoFiles(t, n.disk)
	for _, dir := range dirs {
		left, err := os.ReadDir(dir)
		for _, entry := range left {
			if entry.Name() != ".ebb" {
				t.Errorf("%s holds %s", dir, entry.Name())
			}
		}
		if err != nil {
			t.Error(err)
		}
	}
}
