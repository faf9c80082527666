package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

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
			if len(result.Errors) > 0 {
				return statusError(launch.StatusDirectory)
			}
			return nil
		},
	}
	cmd.Flags().Var(&value{kind: "DIR", parse: into(&dirs, launch.ParseDirs)}, "disk-dir",
		"the disk directory of the runs\n(default EBB_OFFLOAD_TRAIN_DISK_DIR, else that of ebb run)")
	cmd.Flags().BoolVar(&dry, "dry-run", false, "only say what would be removed")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func defaultDirs() ([]string, error) {
	const variable = "EBB_OFFLOAD_TRAIN_DISK_DIR"
	list := os.Getenv(variable)
	if list == "" {
		return []string{launch.DefaultDiskDir(os.Getenv, os.Getuid())}, nil
	}
	dirs, err := launch.ParseDirs(list)
	if err != nil {
		return nil, launch.Usagef("%s=%s: %w", variable, list, err)
	}
	return dirs, nil
}

func collect(dirs []string, dry bool) gcResult {
	r := gcResult{MessageType: "gc", DryRun: dry, Reports: []rankdir.Report{}, Errors: []string{}}
	for _, dir := range dirs {
		abs, err := filepath.Abs(dir)
		if err != nil {
			r.Errors = append(r.Errors, oneLine(err))
			continue
		}
		r.DiskDirs = append(r.DiskDirs, abs)
		reports, err := launch.GC(abs, dry)
		r.Reports = append(r.Reports, reports...)
		var d *rankdir.DirError
		switch {
		case errors.As(err, &d):
			r.Errors = append(r.Errors, d.Error())
		case err != nil:
			r.Errors = append(r.Errors, oneLine(err))
		}
	}
	for _, report := range r.Reports {
		r.Files += len(report.Files)
		r.Bytes += report.Bytes
	}
	return r
}

// print tells a person: a line for each directory, then the sum.
func (r gcResult) print() {
	for _, report := range r.Reports {
		switch report.State {
		case rankdir.Reclaimed:
			fmt.Printf("removed  %s: %d files, %s\n", report.Dir, len(report.Files), humanize.IBytes(report.Bytes))
		case rankdir.Reclaimable:
			fmt.Printf("dead     %s: %d files, %s\n", report.Dir, len(report.Files), humanize.IBytes(report.Bytes))
		case rankdir.Live:
			fmt.Printf("live     %s\n", report.Dir)
		case rankdir.KeptForeign:
			fmt.Printf("kept     %s: %s\n", report.Dir, report.Why)
		}
	}
	verb := "removed"
	if r.DryRun {
		verb = "to remove:"
	}
	fmt.Printf("%s %d files, %s\n", verb, r.Files, humanize.IBytes(r.Bytes))
}
