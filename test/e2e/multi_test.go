package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// twoGPUs is scripts/test-gpu-multi.sh on software devices. Temporary files of its own, but for the sockets, lie on
// the node's disk.
func twoGPUs(t *testing.T, n *node, args ...string) *exec.Cmd {
	t.Helper()
	cmd := n.process(t, filepath.Join(root, "scripts/test-gpu-multi.sh"), append([]string{"--soft"}, args...)...)
	var env []string
	for _, variable := range cmd.Env {
		if !strings.HasPrefix(variable, "TMS_") && !strings.HasPrefix(variable, "LD_LIBRARY_PATH=") && !strings.HasPrefix(variable, "SOFTGPU_") {
			env = append(env, variable)
		}
	}
	cmd.Env = append(env, "GPUTEST_DISK="+n.disk)
	return cmd
}

// What the script checks on two GPUs works without one, as far as software devices go: two ranks on one disk, beside
// raw files and another library, and one process with memory on both devices.
func TestTheScriptForTwoGPUsOnSoftwareDevices(t *testing.T) {
	n := newNode(t, 0)
	cmd := twoGPUs(t, n, "--against", lib("torch_memory_saver/libebb.so"))
	cmd.Env = append(cmd.Env, "MULTI_MIB=8")
	o := run(t, cmd)
	if o.status != 0 || !strings.HasSuffix(o.stdout, "\ntest-gpu-multi: 6 passed, 0 failed\n") {
		t.Fatal(o)
	}
	for _, row := range []string{
		"disk, ebb: both freed and restored", "disk, ebb: pause / raw write", "disk, ebb: pause, slowest / fastest",
		"disk, libebb: resume / raw read", "two GPUs, malloc: freed and restored, peers as before",
		"two GPUs, pieces: freed and restored, peers as before",
	} {
		if !strings.Contains(o.stdout, "\n"+fmt.Sprintf("%-54s ", row)) {
			t.Errorf("no row %q in\n%s", row, o.stdout)
		}
	}
	nothingIn(t, n.disk)
}

// A check that fails is a row with its reason, and the status says so.
func TestTheScriptForTwoGPUsTellsAFailure(t *testing.T) {
	n := newNode(t, 0)
	cmd := twoGPUs(t, n, "devices")
	cmd.Env = append(cmd.Env, "SOFTGPU_FAULT=cudaDeviceEnablePeerAccess:2:1")
	o := run(t, cmd)
	if o.status != 1 || !strings.HasSuffix(o.stdout, "\ntest-gpu-multi: 1 passed, 2 failed\n") || !strings.Contains(o.stdout, "FAILED  CudaError: cudaDeviceEnablePeerAccess: 1\n") {
		t.Error(o)
	}
	nothingIn(t, n.disk)
}

func TestTheScriptForTwoGPUsKnowsItsParts(t *testing.T) {
	n := newNode(t, 0)
	if o := run(t, twoGPUs(t, n, "graph")); o.status != 2 || o.stderr != "test-gpu-multi: no part graph here; there are: disk devices\n" {
		t.Error(o)
	}
	nothingIn(t, n.disk)
}

// What it is told and cannot do is refused before anything is made.
func TestTheScriptForTwoGPUsRefusesWhatItCannotDo(t *testing.T) {
	n := newNode(t, 0)
	for setting, want := range map[string]string{
		"MULTI_MIB=0":           "MULTI_MIB must be a whole number from 1: 0\n",
		"MULTI_ROUNDS=-1":       "MULTI_ROUNDS must be a whole number from 1: -1\n",
		"OUT=/nowhere":          "OUT is no directory: /nowhere\n",
		"GPUTEST_DISK=/proc/no": "no files can be made there: set GPUTEST_DISK\n",
	} {
		cmd := twoGPUs(t, n, "disk")
		cmd.Env = append(cmd.Env, setting)
		if o := run(t, cmd); o.status != 2 || !strings.HasSuffix(o.stderr, "test-gpu-multi: "+want) {
			t.Errorf("%s: %v", setting, o)
		}
	}
	nothingIn(t, n.disk)
}

func nothingIn(t *testing.T, dir string) {
	t.Helper()
	left, err := os.ReadDir(dir)
	if err != nil || len(left) > 0 {
		t.Errorf("left in %s: %v, %v", dir, left, err)
	}
}
