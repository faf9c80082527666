package launch

import (
	"os"
	"path/filepath"
	"testing"
)

func TestTheDefaultDiskDirectoryIsInTheScratchOfTheJob(t *testing.T) {
	for env, want := range map[string]string{
		"":                                       "/scratch/miles_train_offload_7",
		"SCRATCH=/mnt/nvme":                      "/mnt/nvme/miles_train_offload_7",
		"SLURM_TMPDIR=/local/77":                 "/local/77/miles_train_offload_7",
		"SCRATCH=/mnt/nvme SLURM_TMPDIR=/job/77": "/job/77/miles_train_offload_7",
		"SCRATCH=/mnt/nvme SLURM_TMPDIR=":        "/mnt/nvme/miles_train_offload_7",
	} {
		if got, err := DefaultDiskDir(environment(env), 7); got != want || err != nil {
			t.Errorf("%q: %q, %v; want %q", env, got, err, want)
		}
	}
	for _, env := range []string{"SCRATCH=scratch", "SLURM_TMPDIR=job"} {
		_, err := NewOptions().DiskBases(environment(env), 7)
		refusal(t, err, env, "not an absolute path", "--offload-train-disk-dir")
	}
}

func TestScratchThatNodesShareIsRefused(t *testing.T) {
	for _, fsType := range []string{"nfs4", "lustre", "beegfs", "fuse.sshfs"} {
		m := mount{point: "/scratch", fsType: fsType}
		for _, variable := range scratchVariables {
			refusal(t, m.judgeScratch("/scratch/u/ebb", variable), "/scratch/u/ebb", variable, fsType, "--offload-train-disk-dir", "own disk")
		}
	}
	for _, fsType := range []string{"ext4", "xfs", "overlay", "fuse.bindfs"} {
		if err := (mount{point: "/scratch", fsType: fsType}).judgeScratch("/scratch/u/ebb", "SCRATCH"); err != nil {
			t.Errorf("%s: %v", fsType, err)
		}
	}
}

func TestOnlyScratchThatNobodyNamedIsJudged(t *testing.T) {
	dir := filepath.Join(disk(t), "new")
	getenv := environment("SLURM_TMPDIR=" + filepath.Dir(dir))
	disks := NewDisks(getenv)
	o := NewOptions()
	o.Offload, o.Target = true, TargetDisk
	p, err := disks.places(o, getenv, os.Getuid(), func(string) {})
	if err != nil || p.unnamed == "" || p.unnamed != p.Disk[0] || p.variable != "SLURM_TMPDIR" {
		t.Fatalf("nothing named: %+v, %v", p, err)
	}
	if _, err := disks.checkPlace(p, p.Disk[0], false); err != nil {
		t.Errorf("scratch on a local disk, the directory not made yet: %v", err)
	}
	o.DiskDirs = []string{dir}
	if p, err = disks.places(o, getenv, os.Getuid(), func(string) {}); err != nil || p.unnamed != "" {
		t.Errorf("a directory that was named: %+v, %v", p, err)
	}
}
