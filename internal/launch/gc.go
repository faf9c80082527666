package launch

import (
	"errors"
	"io/fs"
	"os"

	"github.com/ebb-offload/ebb/internal/rankdir"
)

// GC removes what dead runs left in a disk directory: rank directories that ebb made, and data
// files, in the directory itself or in those that ebb env names, whose process is known to be
// dead. An error with StatusUsage means that dir cannot be a disk directory.
func GC(dir string, how rankdir.SweepOptions) ([]rankdir.Report, error) {
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
	reports, err := rankdir.Sweep(dir, how)
	errs := []error{err}
	bare, err := rankdir.SweepBare(dir, reports, how)
	reports = append(reports, bare...)
	errs = append(errs, err)
	return reports, errors.Join(errs...)
}
