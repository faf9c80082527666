package clusters

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Scratch is often a file system of the whole cluster. The one here is a FUSE file system that calls itself sshfs.
func TestScratchThatIsSharedIsRefused(t *testing.T) {
	if os.Geteuid() != 0 {
		missing(t, "mount a file system", errors.New("it takes root"))
	}
	debian(t, "bindfs:bindfs", "fuse3:fusermount3")
	dir, err := os.MkdirTemp("/var/tmp", "ebb-scratch-") // on a disk
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	for _, name := range []string{"local", "behind", "shared", "run"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	shm := "/dev/shm/softgpu-0-" + filepath.Base(dir) + "*"
	t.Cleanup(func() { // softgpu's own account of the device
		left, _ := filepath.Glob(shm)
		for _, path := range left {
			if err := os.Remove(path); err != nil {
				t.Error(err)
			}
		}
	})
	// The mount, and the process that serves it, go with the namespaces.
	namespaces := []string{"--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--", "bash", "-c", `bindfs -o subtype=sshfs "$0/behind" "$0/shared" && "$@"`, dir}
	if out, err := exec.Command("unshare", append(namespaces, "mountpoint", "--quiet", filepath.Join(dir, "shared"))...).CombinedOutput(); err != nil {
		missing(t, "mount a FUSE file system", fmt.Errorf("%w: %s", err, strings.TrimSpace(string(out))))
	}
	shared, local := filepath.Join(dir, "shared"), filepath.Join(dir, "local")
	for name, c := range map[string]struct {
		env, flags []string
		status     int
		words      []string
	}{
		"SLURM_TMPDIR":                    {[]string{"SLURM_TMPDIR=" + shared, "SCRATCH=" + local}, nil, 2, []string{"in SLURM_TMPDIR, lies on " + shared, "fuse.sshfs", "own disk"}},
		"SCRATCH":                         {[]string{"SCRATCH=" + shared}, nil, 2, []string{"in SCRATCH, lies on " + shared, "--offload-train-disk-dir"}},
		"only SCRATCH, which is not it":   {[]string{"SLURM_TMPDIR=" + local, "SCRATCH=" + shared}, nil, 0, nil},
		"a directory there that is named": {[]string{"SCRATCH=" + shared}, []string{"--offload-train-disk-dir", shared + "/named"}, 0, []string{"a local disk is faster"}},
	} {
		t.Run(name, func(t *testing.T) {
			args := slices.Concat(namespaces, []string{filepath.Join(root, "dist/bin/ebb"), "exec", "--device", "soft", "--offload-train", "--offload-train-target", "disk"}, c.flags)
			cmd := exec.Command("unshare", append(args, "--", "true")...)
			cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=/", "EBB_RUNTIME_DIR=" + dir + "/run", "SOFTGPU_NODE=" + filepath.Base(dir), "XDG_RUNTIME_DIR=" + dir + "/run"}, c.env...)
			out, err := cmd.CombinedOutput()
			if cmd.ProcessState.ExitCode() != c.status {
				t.Errorf("%v, want status %d:\n%s", err, c.status, out)
			}
			for _, word := range c.words {
				if !strings.Contains(string(out), word) {
					t.Errorf("no %q in %s", word, out)
				}
			}
			if left, _ := filepath.Glob(filepath.Join(dir, "behind/*")); c.status != 0 && len(left) > 0 {
				t.Errorf("a run that was refused made %q", left)
			}
			_ = os.RemoveAll(filepath.Join(dir, "behind/named"))
		})
	}
}
