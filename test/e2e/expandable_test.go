package e2e

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
)

// expandable compiles the allocator of testdata/expandable. Like a program that uses the CUDA
// runtime, it finds runtime and driver where the loader does.
func expandable(t *testing.T) string {
	t.Helper()
	sources, err := filepath.Glob(filepath.Join(testdir, "expandable", "*.c"))
	if err != nil || len(sources) == 0 {
		t.Fatal("no sources of the allocator", err)
	}
	binary := filepath.Join(work, t.Name()+"-expandable")
	compile(t, append(append([]string{"-D_GNU_SOURCE", "-O1", "-I" + filepath.Join(root, "softgpu"), "-o", binary}, sources...),
		lib("softgpu/libcudart.so.13"), lib("softgpu/libcuda.so.1"), "-ldl")...)
	return binary
}

// expandableNode is small, so that memory runs short; two devices that may use each other's memory.
func expandableNode(t *testing.T) *node {
	n := newNode(t, 12)
	n.env = []string{"SOFTGPU_GRANULARITY_KB=64", "SOFTGPU_DEVICES=2", "TMS_DISK_BACKUP_CHUNK_MB=2"}
	return n
}

// The ways by which programs come to the driver's functions.
var doors = []string{"version", "entry", "proc", "dlsym", "linked"}

// What the next tests find under ebb is ebb's doing.
func TestTheExpandableAllocatorWorksWithoutEbb(t *testing.T) {
	t.Parallel()
	binary, seed := expandable(t), random(t).Text()
	for _, door := range doors {
		t.Log(strings.TrimSpace(succeed(t, expandableNode(t).process(t, binary, door, seed, fmt.Sprint(1500)))))
	}
}

// The allocator with pauses and resumes in between, and the model that knows every byte, through every
// door, preloaded as an outer launcher does it.
func TestExpandableSegmentsComeBack(t *testing.T) {
	t.Parallel()
	binary, rng, rounds, steps := expandable(t), random(t), 1, 500
	if long() {
		rounds, steps = 3, 3000
	}
	for range rounds {
		seed := rng.Text()
		for _, door := range doors {
			t.Run(door, func(t *testing.T) {
				n := expandableNode(t)
				cmd := n.process(t, binary, door, seed, fmt.Sprint(steps))
				cmd.Env = append(cmd.Env, "LD_PRELOAD="+lib("torch_memory_saver/libebb.so"))
				t.Log(strings.TrimSpace(succeed(t, cmd)))
				wantNoFiles(t, n.disk)
			})
		}
	}
}

// Pieces of the size that PyTorch takes, 2 and 20 MiB, in a process that is managed as a whole.
func TestExpandableSegmentsComeBackUnderEbbRun(t *testing.T) {
	t.Parallel()
	binary, seed, steps := expandable(t), random(t).Text(), 60
	if long() {
		steps = 600
	}
	n := newNode(t, 512)
	n.env = []string{"SOFTGPU_DEVICES=2"}
	cmd := n.process(t, filepath.Join(root, "dist/bin/ebb"), "run", "--nproc-per-node", "1", "--device", "soft",
		"--offload-train", "--offload-train-target", "disk", "--offload-train-disk-dir", filepath.Join(n.disk, "run"),
		"--offload-train-disk-chunk-mb", "16", "--", binary, "version", seed, fmt.Sprint(steps))
	t.Log(strings.TrimSpace(succeed(t, cmd)))
	wantNoFiles(t, n.disk)
}
