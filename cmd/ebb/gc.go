package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

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
	Errors      []string         `json:"errors"`

	looked []string // those of the directories that could be looked at
	status int      // that ebb gc ends with
}

func newGC() *cobra.Command {
	var (
		dirs        []string
		dry, asJSON bool
	)
	cmd := &cobra.Command{
		Use:   "gc",
		Short: "Remove what dead runs left on disk",
		Long: `Removes rank directories and backup files whose processes are dead. What a live run uses, and
everything that ebb cannot prove to be its own, is left alone.`,
		Args:    noArgs,
		PreRunE: func(cmd *cobra.Command, _ []string) error { return fromEnvironment(cmd) },
		RunE: func(*cobra.Command, []string) error {
			if len(dirs) == 0 {
				var err error
				if dirs, err = defaultDirs(); err != nil {
					return err
				}
			}
			result := collect(dirs, dry)
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
	onOffTo(cmd.Flags(), &dry, "dry-run", "only say what would be removed")
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

// collect collects from all directories; what is wrong with one does not keep the others from it.
func collect(dirs []string, dry bool) gcResult {
	r := gcResult{MessageType: "gc", DryRun: dry, DiskDirs: []string{}, Reports: []rankdir.Report{}, Errors: []string{}}
	for _, dir := range dirs {
		abs, err := filepath.Abs(dir)
		if err != nil {
			r.fail(launch.Usagef("--disk-dir %s: %w; name an absolute path", dir, err), dir)
			continue
		}
		r.DiskDirs = append(r.DiskDirs, abs)
		reports, err := launch.GC(abs, dry)
		r.Reports = append(r.Reports, reports...)
		if err != nil {
			r.fail(err, abs)
		}
		if !unusable(err, abs) {
			r.looked = append(r.looked, abs)
		}
	}
	for _, report := range r.Reports {
		r.Files += len(report.Files)
		r.Bytes += report.Bytes
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

// print tells a person: a line for each directory, then the sum.
func (r gcResult) print() {
	for _, report := range r.Reports {
		switch report.State {
		case rankdir.Reclaimed:
			fmt.Printf("removed  %s: %s, %s\n", report.Dir, launch.Count(len(report.Files), "file"), humanize.IBytes(report.Bytes))
		case rankdir.Reclaimable:
			fmt.Printf("dead     %s: %s, %s\n", report.Dir, launch.Count(len(report.Files), "file"), humanize.IBytes(report.Bytes))
		case rankdir.Live:
			fmt.Printf("live     %s\n", report.Dir)
		case rankdir.KeptForeign:
			fmt.Printf("kept     %s: %s\n", report.Dir, report.Why)
		}
	}
	if len(r.looked) == 0 {
		return
	}
	verb := "removed"
	if r.DryRun {
		verb = "to remove:"
	}
	fmt.Printf("%s %s, %s, in %s\n", verb, launch.Count(r.Files, "file"), humanize.IBytes(r.Bytes), strings.Join(r.looked, ", "))
}
