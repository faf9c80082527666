package launch

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"

	"github.com/ebb-offload/ebb/internal/rankdir"
)

// GC removes what dead runs left in a disk directory: rank directories that ebb made, and data
// files, in the directory itself or in those that ebb env names, whose process is known to be
// dead. dry only reports. An error with StatusUsage means that dir cannot be a disk directory.
func GC(dir string, dry bool) ([]rankdir.Report, error) {
	switch info, err := os.Lstat(dir); {
	case errors.Is(err, fs.ErrNotExist):
		return nil, Usagef("disk directory %s does not exist: name that of the runs with --disk-dir", dir)
	case err != nil:
		return nil, Usagef("disk directory %s cannot be looked at: %w; name that of the runs with --disk-dir", dir, err)
	case info.Mode()&fs.ModeSymlink != 0:
		return nil, Usagef("disk directory %s is a symbolic link: name the directory it points to with --disk-dir", dir)
	case !info.IsDir():
		return nil, Usagef("disk directory %s is not a directory: name that of the runs with --disk-dir", dir)
	}
	reports, err := rankdir.Sweep(dir, dry)
	errs := []error{err}
	seen := map[string]bool{}
	for _, r := range reports {
		seen[r.Dir] = true
	}
	bare, err := unsupervised(dir)
	errs = append(errs, err)
	for _, d := range bare {
		if seen[d] {
			continue
		}
		r, err := rankdir.SweepBare(d, dry)
		errs = append(errs, err)
		if err == nil && r.State != rankdir.NothingThere {
			reports = append(reports, r)
		}
	}
	return reports, errors.Join(errs...)
}

var rankDirName = regexp.MustCompile(`_cell[0-9]+_rank[0-9]+$`)

// unsupervised lists the directory and, below it, the ones named as rank directories are.
// Nothing is followed through a symbolic link.
func unsupervised(dir string) ([]string, error) {
	dirs := []string{dir}
	jobs, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, job := range jobs {
		if !job.IsDir() {
			continue
		}
		ranks, err := os.ReadDir(filepath.Join(dir, job.Name()))
		if err != nil {
			continue // of somebody else
		}
		for _, rank := range ranks {
			if rank.IsDir() && rankDirName.MatchString(rank.Name()) {
				dirs = append(dirs, filepath.Join(dir, job.Name(), rank.Name()))
			}
		}
	}
	return dirs, nil
}
