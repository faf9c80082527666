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
	binary, seed := expandable(t), random(t).Text()
	for _, door := range doors {
		t.Log(strings.TrimSpace(succeed(t, expandableNode(t).process(t, binary, door, seed, fmt.Sprint(1500)))))
	}
}
