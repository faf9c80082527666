package launch

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
)

// scratchVariables name the node-local scratch of a job, the first that is set counts: Slurm sites give each job its own in
// SLURM_TMPDIR.
var scratchVariables = []string{"SLURM_TMPDIR", "SCRATCH"}

// scratch is the directory of the default disk directory, and the variable that names it; empty: none does.
func scratch(getenv func(string) string) (dir, variable string) {
	for _, name := range scratchVariables {
		if dir := getenv(name); dir != "" {
			return dir, name
		}
	}
	return "/scratch", ""
}

// DefaultDiskDir is miles_train_offload_<uid> in the node-local scratch: $SLURM_TMPDIR, else $SCRATCH, else /scratch.
func DefaultDiskDir(getenv func(string) string, uid int) (string, error) {
	dir, variable := scratch(getenv)
	if !filepath.IsAbs(dir) {
		return "", Usagef("%s=%s is not an absolute path: correct it, or name the disk directory (--offload-train-disk-dir, with gc --disk-dir)", variable, dir)
	}
	return filepath.Join(dir, fmt.Sprintf("miles_train_offload_%d", uid)), nil
}

// checkPlace is Check for a directory of a run. One that nobody named must lie on this node's own disks: scratch is
// often a file system of the whole cluster.
func (d Disks) checkPlace(p Places, dir string, allowRAM bool) (warning string, err error) {
	warning, err = d.Check(dir, allowRAM)
	if err != nil || dir != p.unnamed {
		return warning, err
	}
	err = d.only("check", dir, func() error {
		m, err := mountOf(dir)
		if errors.Is(err, fs.ErrNotExist) {
			m, err = mountOf(filepath.Dir(dir))
		}
		if err != nil {
			return err
		}
		return m.judgeScratch(dir, p.variable)
	})
	return warning, withStatus(err)
}

// judgeScratch refuses a mount that other nodes share.
func (m mount) judgeScratch(dir, variable string) error {
	if !m.network() {
		return nil
	}
	return Usagef("disk directory %s, in %s, lies on %s, a network file system (%s): all nodes would park in it, at its speed; name a directory on this node's own disk with --offload-train-disk-dir, or have SLURM_TMPDIR or SCRATCH name its parent (a directory that is named by the flag is used wherever it lies)",
		dir, cmp.Or(variable, "/scratch"), m.point, m.fsType)
}
