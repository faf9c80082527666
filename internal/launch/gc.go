package launch

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/dustin/go-humanize"

	"github.com/ebb-offload/ebb/internal/rankdir"
	"github.com/ebb-offload/ebb/internal/usage"
)

// GC removes what dead runs left in a disk directory: rank directories that ebb made, and data
// files, in the directory itself or in those that ebb env names, whose process is known to be
// dead; and those directories, when they are empty. An error with StatusUsage means that dir cannot be a disk directory.
func (d Disks) GC(dir string, how rankdir.SweepOptions) ([]rankdir.Report, error) {
	return InDirectory(d, "sweep", dir, func(moved func()) ([]rankdir.Report, error) {
		how.Progress = moved
		return gc(dir, how)
	}, nil)
}

func gc(dir string, how rankdir.SweepOptions) ([]rankdir.Report, error) {
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
	how.Empty = true
	bare, err := rankdir.SweepBare(dir, reports, how)
	reports = append(reports, bare...)
	errs = append(errs, err)
	if !how.Dry {
		err := usage.Tidy(dir)
		if errors.Is(err, usage.ErrLocked) { // that of a live process, as its directory is
			reports = append(reports, rankdir.Report{Dir: usage.Path(dir), State: rankdir.KeptForeign, Why: usage.ErrLocked.Error()})
			err = nil
		}
		errs = append(errs, err)
	}
	return reports, errors.Join(errs...)
}

// BareDir is the directory in which regions with disk backup put their files where ranks have none of
// their own: those of the cpu target, and programs without a launcher.
func BareDir(getenv func(string) string) string {
	if dir := getenv("TMS_DISK_BACKUP_DIR"); dir != "" && !Nested(getenv) { // of the outer rank
		return dir
	}
	return "/tmp"
}

// GCBare removes the backup files of dead processes from such a directory, and leaves those below it alone.
func (d Disks) GCBare(dir string, how rankdir.SweepOptions) ([]rankdir.Report, error) {
	return InDirectory(d, "sweep", dir, func(moved func()) ([]rankdir.Report, error) {
		how.Progress = moved
		return rankdir.SweepFiles(dir, how)
	}, nil)
}

// sweepBare is GCBare for a run. Its problems are no reason not to run.
func (d Disks) sweepBare(dir string, discard bool, say func(string)) {
	reports, err := d.GCBare(dir, rankdir.SweepOptions{Discard: discard})
	for _, r := range reports {
		if len(r.Files) > 0 {
			say(fmt.Sprintf("removed %s, %s, that dead processes left in %s", Count(len(r.Files), "backup file"), humanize.IBytes(r.Bytes), r.Dir))
		}
	}
	if err != nil && !saidBefore(err) {
		say(fmt.Sprintf("cannot remove all that dead processes left: %s", oneLine(err)))
	}
}
