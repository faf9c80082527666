package e2e

import (
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// An illegal access or a memory error breaks a CUDA context for good: every later call in it answers with
// that error. What the actor had parked before is all that is left of it then.

// stickyImage compiles the victims' kernel.
func stickyImage(t *testing.T) string {
	t.Helper()
	image := filepath.Join(work, strings.ReplaceAll(t.Name(), "/", "_")+".so")
	compile(t, "-shared", "-fPIC", "-I"+filepath.Join(root, "softgpu"), "-o", image, filepath.Join(testdir, "endurance_kernel.c"))
	return image
}

func stickyNode(t *testing.T, image string) *node {
	n := newNode(t, 128)
	n.env = []string{"SOFTGPU_GRANULARITY_KB=64", "TMS_DISK_BACKUP_CHUNK_MB=2", "E2E_KERNEL=" + image}
	return n
}

func TestAfterAFaultOfTheDeviceNothingIsPausedAndWhatIsParkedCanBeRead(t *testing.T) {
	image := stickyImage(t)
	for i, fault := range []string{"CUDA_ERROR_ILLEGAL_ADDRESS", "CUDA_ERROR_ECC_UNCORRECTABLE"} {
		moments := []string{"before kernel", "pause 3", "parked memset", "resume copy-2"}
		if long() {
			moments = append(moments, "before memset", "pause 1", "pause 2", "pause 5", "parked kernel", "resume copy-1", "resume kernel-1")
		}
		for k, moment := range moments {
			if !long() && (i+k)%2 == 1 {
				continue // half with each error
			}
			t.Run(fault+" "+moment, func(t *testing.T) {
				n := stickyNode(t, image)
				o := run(t, n.victim(t, "sticky_fault.py", moment, fault, "exit"))
				if o.status != 0 {
					t.Fatal(o)
				}
				if said := lines(o.stderr, "ebb: pause FAILED, memory not freed: "); len(said) != 1 || !strings.Contains(said[0], fault) {
					t.Errorf("one tms_pause failed: %v", o)
				}
				wantNoFiles(t, n.disk)
			})
		}
	}
}

// Under ebb run, with host memory and two directories at once; the rank's own end leaves all of it.
func TestFilesOfARankWithABrokenDeviceGoWithTheRank(t *testing.T) {
	image := stickyImage(t)
	for moment, status := range map[string]int{
		"parked kernel": 5, "resume copy-1": 5,
		"touched": 128 + int(syscall.SIGSEGV), // where a GPU breaks the context, the software driver ends the process
	} {
		t.Run(moment, func(t *testing.T) {
			n := stickyNode(t, image)
			flags := []string{"--offload-train", "--offload-train-target", "auto", "--offload-train-host-mb", "2",
				"--offload-train-disk-chunk-mb", "2", "--offload-train-disk-dir", strings.Join(diskDirs(n, 2), ",")}
			if o := run(t, n.ebbRun(t, flags, "sticky_fault.py", moment, "CUDA_ERROR_ECC_UNCORRECTABLE", "at once")); o.status != status {
				t.Errorf("want status %d, got %v", status, o)
			}
			wantNoFiles(t, n.disk)
		})
	}
}
