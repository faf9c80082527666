package e2e

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// A signal to scripts/bench-fixed-disk.sh ends what it started: no bench goes on, no control group is left.
func TestTheScriptForAFixedDiskEndsWithAllThatItStarted(t *testing.T) {
	const groups = "/sys/fs/cgroup/blkio"
	if _, err := os.Stat(groups + "/cgroup.procs"); err != nil || os.Geteuid() != 0 {
		t.Skip("needs root and the block I/O controller of cgroup v1")
	}
	n := newNode(t, 512)
	cmd := n.process(t, filepath.Join(root, "scripts/bench-fixed-disk.sh"), "400", n.disk,
		"--device", "soft", "--gib", "0.0625", "--rounds", "1000", "--rows", "pause")
	var said bytes.Buffer
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	group := fmt.Sprintf("%s/ebb-bench-%d", groups, cmd.Process.Pid)
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait() // the state of the process has it too
		close(ended)
	}()
	for measuring := false; !measuring; time.Sleep(10 * time.Millisecond) {
		select {
		case <-ended:
			if cmd.ProcessState.ExitCode() == 2 {
				t.Skipf("no drive that can be held at a rate: %s", &said)
			}
			t.Fatalf("%v: %s", cmd.ProcessState, &said)
		default:
		}
		files, _ := filepath.Glob(filepath.Join(n.disk, "ebb-bench-*", "rank-*", "*.bak"))
		measuring = len(files) > 0
	}
	if _, err := os.Stat(group); err != nil {
		t.Error(err)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	<-ended
	if status := cmd.ProcessState.ExitCode(); status != 128+int(syscall.SIGTERM) {
		t.Errorf("status %d: %s", status, &said)
	}
	if _, err := os.Stat(group); err == nil {
		t.Errorf("%s is left", group)
	}
	nothingIn(t, n.disk)
}
