package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestEveryCycleUsesTheSameFilesAndNoneIsLeft(t *testing.T) {
	for end, status := range map[string]int{
		"free":            0,
		"normal":          0,
		"exit-paused":     0,
		"exception":       1,
		"sigterm-handled": 0,
	} {
		t.Run(end, func(t *testing.T) {
			n := newNode(t, 64)
			if o := run(t, n.victim(t, "cycles.py", end)); o.status != status {
				t.Errorf("want status %d, got %v", status, o)
			}
			wantNoFiles(t, n.disk)
			if _, err := os.Stat(n.disk); err != nil {
				t.Errorf("a directory that ebb was given is never removed: %v", err)
			}
		})
	}
}

func TestSupervisorRemovesTheFilesOfAKilledRank(t *testing.T) {
	n := newNode(t, 64)
	o := run(t, n.ebbRun(t, []string{"--offload-train", "--offload-train-target", "disk", "--offload-train-disk-dir", n.disk}, "cycles.py", "sigkill"))
	if o.status != 128+int(syscall.SIGKILL) {
		t.Errorf("ebb run ends with its rank's status, want 137, got %v", o)
	}
	if !strings.Contains(o.stdout, "paused 3") {
		t.Errorf("the rank had not parked three files when it was killed: %v", o)
	}
	wantNoFiles(t, n.disk)
}

// The engine is at work when the rank dies, at a random moment.
func TestKillAtRandomMomentsLeavesNoFile(t *testing.T) {
	t.Parallel()
	rng, rounds := random(t), 4
	if long() {
		rounds = 60
	}
	for range rounds {
		n := newNode(t, 64)
		cmd := n.ebbRun(t, []string{"--offload-train", "--offload-train-target", "disk", "--offload-train-disk-dir", n.disk}, "killed.py", rng.Text())
		if o := run(t, cmd); o.status != 128+int(syscall.SIGKILL) {
			t.Fatalf("want 137, got %v", o)
		}
		wantNoFiles(t, n.disk)
	}
}

// ebbRun is `ebb run` of one rank of a Python program in testdata.
func (n *node) ebbRun(t *testing.T, flags []string, script string, args ...string) *exec.Cmd {
	t.Helper()
	line := append([]string{"run", "--nproc-per-node", "1", "--device", "soft"}, flags...)
	line = append(line, "--", "python3", filepath.Join(testdir, script))
	cmd := n.process(t, filepath.Join(root, "dist/bin/ebb"), append(line, args...)...)
	// The launcher sets these.
	var env []string
	for _, variable := range cmd.Env {
		if !strings.HasPrefix(variable, "TMS_") && !strings.HasPrefix(variable, "LD_LIBRARY_PATH=") {
			env = append(env, variable)
		}
	}
	cmd.Env = env
	return cmd
}
