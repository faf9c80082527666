package e2e

import (
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
