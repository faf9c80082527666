package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/ebb-offload/ebb/internal/control"
	"github.com/ebb-offload/ebb/internal/filesys"
	"github.com/ebb-offload/ebb/internal/launch"
	"github.com/ebb-offload/ebb/internal/rankdir"
)

// gcResult is what ebb gc --json prints.
type gcResult struct {
	MessageType string           `json:"message_type"`
	DryRun      bool             `json:"dry_run"`
	DiskDirs    []string         `json:"disk_dirs"`
	Reports     []rankdir.Report `json:"reports"`
	Files       int              `json:"files"` // removed, or to be removed
	Bytes       uint64           `json:"bytes"`
	Discarded   uint64           `json:"discarded"` // of Bytes, with --discard: given back first
	Sockets     []string         `json:"sockets"`   // control sockets of dead processes, likewise
	Errors      []string         `json:"errors"`

	looked []string // those of the directories that could be looked at
	status int      // that ebb gc ends with
}

func newGC() *cobra.Command {
	var (
		dirs   []string
		how    rankdir.SweepOptions
		asJSON bool
	)
	cmd := &cobra.Command{
		Use:   "gc",
		Short: "Remove what dead runs left on disk",
		Long: `Removes rank directories and backup files whose processes are dead, and control sockets of dead
processes. What a live run uses, and everything that ebb cannot prove to be its own, is left alone.
Without --disk-dir that is done in the disk directory of ebb run, and to backup files in
TMS_DISK_BACKUP_DIR, or else /tmp, where ranks of the cpu target put those of regions with disk
backup.

Removing a file makes its blocks free; the drive keeps the bytes until it overwrites or discards
them. --discard asks for more, as far as the file system offers it: that the drive returns zeros for
the blocks (Linux 6.17, drives that zero without a transfer), else that they are freed at once, even
where a process has the file open, and discarded on the drive if the file system is mounted with
-o discard. On other mounts run fstrim afterwards. Nothing is overwritten. What could not be given
back is removed and told.`,
		Example: `  ebb gc --disk-dir /scratch/$USER --dry-run
  ebb gc --disk-dir /scratch/$USER,/nvme1/$USER`,
		Args:    noArgs,
		PreRunE: func(cmd *cobra.Command, _ []string) error { return fromEnvironment(cmd) },
		RunE: func(*cobra.Command, []string) error {
			bare := ""
			if len(dirs) == 0 {
				var err error
				if dirs, err = defaultDirs(); err != nil {
					return err
				}
				bare = launch.BareDir(os.Getenv)
			}
			result := collect(dirs, bare, how)
			if asJSON {
				if err := printJSON(result); err != nil {
					return err
				}
			} else {
				result.print()
			}
			for _, line := range result.Errors {
				say(line)
			}
			if result.status != 0 {
				return statusError(result.status)
			}
			return nil
		},
	}
	cmd.Flags().Var(&value{kind: "DIR", parse: into(&dirs, launch.ParseDirs)}, "disk-dir",
		"the disk directory of the runs, or several with commas (default EBB_OFFLOAD_TRAIN_DISK_DIR, else that of ebb run)")
	onOffTo(cmd.Flags(), &how.Dry, "dry-run", "only say what would be removed")
	onOffTo(cmd.Flags(), &how.Discard, discardFlag, "give the blocks of the files back before the files are removed, where that can be done")
	onOffTo(cmd.Flags(), &asJSON, "json", "print JSON")
	return cmd
}

func defaultDirs() ([]string, error) {
	const variable = "EBB_OFFLOAD_TRAIN_DISK_DIR"
	list := os.Getenv(variable)
	if list == "" {
		dir, err := launch.DefaultDiskDir(os.Getenv, os.Getuid())
		return []string{dir}, err
	}
	dirs, err := launch.ParseDirs(list)
	if err != nil {
		return nil, launch.Usagef("%s=%s: %w", variable, list, err)
	}
	return dirs, nil
}

// collect collects from all directories; what is wrong with one does not keep the others from it. In
// bare, if it is not empty, lie the files of ranks that have no directory of their own.
func collect(dirs []string, bare string, how rankdir.SweepOptions) gcResult {
	r := gcResult{MessageType: "gc", DryRun: how.Dry, DiskDirs: []string{}, Reports: []rankdir.Report{}, Sockets: []string{}, Errors: []string{}}
	disks := launch.NewDisks(os.Getenv)
	for _, dir := range dirs {
		abs, err := filepath.Abs(dir)
		if err != nil {
			r.fail(launch.Usagef("--disk-dir %s: %w; name an absolute path", dir, err), dir)
			continue
		}
		r.DiskDirs = append(r.DiskDirs, abs)
		reports, err := disks.GC(abs, how)
		r.Reports = append(r.Reports, reports...)
		if err != nil {
			r.fail(err, abs)
		}
		if !unusable(err, abs) && !errors.Is(err, filesys.ErrHang) {
			r.looked = append(r.looked, abs)
		}
	}
	if bare != "" {
		reports, err := disks.GCBare(bare, how)
		r.Reports = append(r.Reports, reports...)
		if err != nil {
			r.fail(err, bare)
		}
	}
	sockets, err := control.RemoveDead(control.Dirs(os.Getenv, os.Geteuid()), how.Dry)
	r.Sockets = append(r.Sockets, sockets...)
	if err != nil {
		r.fail(err, "")
	}
	for _, report := range r.Reports {
		r.Files += len(report.Files)
		r.Bytes += report.Bytes
		r.Discarded += report.Discarded
	}
	return r
}

// fail notes an error. A directory that cannot be used is wrong usage; that something could not be
// removed weighs more.
func (r *gcResult) fail(err error, dir string) {
	var d *rankdir.DirError
	text, status := oneLine(err), launch.StatusDirectory
	if errors.As(err, &d) {
		text = d.Error()
	}
	if unusable(err, dir) {
		status = launch.StatusUsage
	}
	r.Errors = append(r.Errors, text)
	r.status = max(r.status, status)
}

// unusable reports whether an error says that dir cannot be a disk directory.
func unusable(err error, dir string) bool {
	var d *rankdir.DirError
	return launch.StatusOf(err) == launch.StatusUsage || errors.As(err, &d) && d.Path == dir
}

// discarded says how much of what a report removed was given back first, if that was asked for.
func discarded(r rankdir.Report) string {
	switch {
	case r.Undiscarded != "":
		return fmt.Sprintf(", %s of it discarded (not %s)", humanize.IBytes(r.Discarded), r.Undiscarded)
	case r.Discarded > 0:
		return ", discarded"
	}
	return ""
}

// print tells a person: a line for each directory, then the sum.
func (r gcResult) print() {
	for _, report := range r.Reports {
		switch report.State {
		case rankdir.Reclaimed:
			fmt.Fprintf(stdout, "removed  %s: %s, %s%s\n", report.Dir, launch.Count(len(report.Files), "file"), humanize.IBytes(report.Bytes), discarded(report))
		case rankdir.Reclaimable:
			fmt.Fprintf(stdout, "dead     %s: %s, %s\n", report.Dir, launch.Count(len(report.Files), "file"), humanize.IBytes(report.Bytes))
		case rankdir.Live:
			fmt.Fprintf(stdout, "live     %s\n", report.Dir)
		case rankdir.KeptForeign:
			fmt.Fprintf(stdout, "kept     %s: %s\n", report.Dir, report.Why)
		}
	}
	if len(r.looked) == 0 {
		return
	}
	verb := "removed"
	if r.DryRun {
		verb = "to remove:"
	}
	fmt.Fprintf(stdout, "%s %s, %s, in %s\n", verb, launch.Count(r.Files, "file"), humanize.IBytes(r.Bytes), strings.Join(r.looked, ", "))
}
