package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ebb-offload/ebb/internal/testutil"
)

// The demo for a real GPU needs PyTorch; how it hands the memory over does not, and is the same here.
func TestTheDemoForAGPUHandsItsMemoryOver(t *testing.T) {
	t.Parallel()
	n := newNode(t, 160)
	runtime := testutil.SocketDir(t)
	cmd := n.process(t, filepath.Join(root, "dist/bin/ebb"), "run", "--device", "soft", "--nproc-per-node", "1", "--offload-train",
		"--offload-train-target", "disk", "--offload-train-disk-dir", n.disk, "--", "python3", filepath.Join(testdir, "demo_gpu_handover.py"), t.TempDir())
	cmd.Env = append(cmd.Env, "EBB_RUNTIME_DIR="+runtime)
	if o := run(t, cmd); o.status != 0 || !strings.Contains(o.stdout, "handed over") {
		t.Fatal(o)
	}
	wantNoFiles(t, n.disk)
}

// Without PyTorch, or without a GPU, it says so and what helps, in place of a traceback.
func TestTheDemoForAGPUSaysWhatItLacks(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ torch, want string }{
		"PyTorch": {"raise ImportError('not here')\n", "has no PyTorch (not here): name a Python that has it, make demo-gpu PYTHON=PATH"},
		"a GPU":   {"class cuda:\n    is_available = staticmethod(lambda: False)\n", "PyTorch finds no GPU: see nvidia-smi; make demo needs none"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, 16)
			packages := t.TempDir()
			if err := os.WriteFile(filepath.Join(packages, "torch.py"), []byte(c.torch), 0o600); err != nil {
				t.Fatal(err)
			}
			cmd := n.process(t, "python3", filepath.Join(root, "examples/demo/demo_gpu.py"))
			cmd.Env = append(cmd.Env, "PYTHONPATH="+packages, "PYTHONDONTWRITEBYTECODE=1", "EBB_DEMO_DIR="+n.disk, "EBB_RUNTIME_DIR="+testutil.SocketDir(t))
			o := run(t, cmd)
			if said := o.stdout + o.stderr; o.status != 1 || !strings.Contains(said, c.want) || strings.Contains(said, "Traceback") {
				t.Error(o)
			}
		})
	}
}
