package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// memoryGroup makes a memory cgroup below the test's own, or skips the test. Version 1: where the
// machine has version 2, the limits of a group are its manager's to set.
func memoryGroup(t *testing.T, limit uint64) (dir, name string) {
	t.Helper()
	membership, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Skip(err)
	}
	for line := range strings.Lines(string(membership)) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) == 3 && fields[1] == "memory" {
			name = filepath.Join(fields[2], fmt.Sprintf("ebb-e2e-%d", os.Getpid()))
		}
	}
	if name == "" {
		t.Skip("no memory cgroup of version 1 here")
	}
	dir = filepath.Join("/sys/fs/cgroup/memory", name)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Skipf("no memory cgroup can be made: %v", err)
	}
	t.Cleanup(func() {
		// The kernel lets go of the last process a moment after its parent has learned of its end.
		deadline := time.Now().Add(hangs)
		for os.Remove(dir) != nil {
			if time.Now().After(deadline) {
				t.Errorf("the cgroup %s stays", dir)
				return
			}
		}
	})
	if err := os.WriteFile(filepath.Join(dir, "memory.limit_in_bytes"), fmt.Append(nil, limit), 0o644); err != nil {
		t.Skipf("no limit can be set: %v", err)
	}
	return dir, name
}

// ebb bench looks at the memory cgroup before it starts, too.
func TestABenchBeyondTheMemoryCgroupIsRefusedBeforeItStarts(t *testing.T) {
	dir, _ := memoryGroup(t, 256<<20)
	n := newNode(t, 2048)
	cmd := n.process(t, "/bin/sh", "-c", `echo $$ >"$0/cgroup.procs" && exec "$@"`, dir, filepath.Join(root, "dist/bin/ebb"), "bench",
		"--device", "soft", "--disk-dir", n.disk, "--gib", "0.25", "--rounds", "1", "--rows", "cpu")
	if o := run(t, cmd); o.status != 2 || !strings.Contains(o.stderr, "of host memory at a time and ") {
		t.Error(o)
	}
	nothingIn(t, n.disk)
}

// The kernel would end the process, or another one, if a pause took what is not there.
func TestAPauseBeyondTheMemoryCgroupIsRefusedAndNobodyIsKilled(t *testing.T) {
	for _, c := range []struct{ name, backend, arena string }{
		{"pinned", "pinned", "0"}, {"mmap", "mmap", "0"}, {"kept arena", "pinned", "1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir, name := memoryGroup(t, 512<<20)
			n := newNode(t, 512)
			n.env = append(n.env, "EBB_HOST_ARENA="+c.arena)
			cmd := n.victim(t, "hostlimit.py", c.backend, name)
			cmd.Args = append([]string{"sh", "-c", `echo $$ >"$0/cgroup.procs" && exec "$@"`, dir}, cmd.Args...)
			cmd.Path = "/bin/sh"
			t.Log(strings.TrimSpace(succeed(t, cmd)))
		})
	}
}
