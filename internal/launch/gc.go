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
// dead. dry only reports. A directory that is not there holds nothing.
func GC(dir string, dry bool) ([]rankdir.Report, error) {
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
	info, err := os.Lstat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil || !info.IsDir() {
		return nil, err // Sweep has said what is wrong with a link
	}
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
