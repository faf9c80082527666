package main

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/ebb-offload/ebb/internal/adopt"
	"github.com/ebb-offload/ebb/internal/launch"
)

// Statuses of ebb adopt beside the common ones.
const (
	statusNotAdopted = 1  // --check: the package is not adopted
	statusRefused    = 75 // the package cannot be adopted, or not restored
)

// adoption is what ebb adopt --json prints.
type adoption struct {
	MessageType string `json:"message_type"`
	adopt.Report
}

func newAdopt() *cobra.Command {
	var (
		python              string
		check, undo, copied bool
		asJSON              bool
	)
	cmd := &cobra.Command{
		Use:   "adopt",
		Short: "Make an installed torch_memory_saver use ebb's library",
		Long: `Puts links to ebb's library in the place of the libraries of the torch_memory_saver package that
an interpreter finds. The package's own files are kept beside them; --undo puts them back.
Nothing else is touched. After an upgrade of the package, run it again.`,
		Example: `  ebb adopt --python ~/venv/bin/python
  ebb adopt --python ~/venv/bin/python --check
  ebb adopt --python ~/venv/bin/python --undo`,
		Args:    noArgs,
		PreRunE: func(cmd *cobra.Command, _ []string) error { return fromEnvironment(cmd) },
		RunE: func(cmd *cobra.Command, _ []string) error {
			if check && undo || copied && (check || undo) {
				return launch.Usagef("--check, --undo and --copy exclude one another")
			}
			report, err := adoptVerb(cmd, python, check, undo, copied)
			if err != nil {
				return adoptFailed(err)
			}
			if asJSON {
				if err := printJSON(adoption{"adopt", report}); err != nil {
					return err
				}
			} else {
				printAdoption(report, undo)
			}
			if check && report.State != adopt.Adopted {
				return statusError(statusNotAdopted)
			}
			return nil
		},
	}
	cmd.Flags().Var(&value{text: "python3", kind: "PYTHON", parse: into(&python, anything)}, "python",
		"the interpreter that finds the package")
	onOffTo(cmd.Flags(), &check, "check", "only say what is in place: status 0 adopted, 1 not")
	onOffTo(cmd.Flags(), &undo, "undo", "put the package's own files back")
	onOffTo(cmd.Flags(), &copied, "copy", "copy ebb's libraries beside the package and link to the copies: for a tree that goes where ebb is not")
	onOffTo(cmd.Flags(), &asJSON, "json", "print JSON")
	python = "python3"
	return cmd
}

func adoptVerb(cmd *cobra.Command, python string, check, undo, copied bool) (adopt.Report, error) {
	find := func(library string) (*adopt.Package, error) {
		return adopt.Find(cmd.Context(), python, os.Environ(), library)
	}
	if check || undo {
		p, err := find("")
		switch {
		case err != nil:
			return adopt.Report{}, err
		case check:
			return p.Check()
		}
		return p.Undo()
	}
	executable, err := os.Executable()
	if err != nil {
		return adopt.Report{}, fmt.Errorf("finding the path of ebb: %w", err)
	}
	libraries, err := launch.FindLibraries(executable, os.Getenv)
	if err != nil {
		return adopt.Report{}, err
	}
	lib := adopt.InFolder(libraries.Dir)
	for _, file := range []string{lib.Path, lib.Engine} {
		if _, err := os.Stat(file); err != nil {
			return adopt.Report{}, &launch.Error{
				Status: launch.StatusInstall, Err: err,
				Text: fmt.Sprintf("ebb's installation is incomplete: %v; build or install it again, or set %s", err, launch.EnvLibDir),
			}
		}
	}
	p, err := find(lib.Path)
	if err != nil {
		return adopt.Report{}, err
	}
	return p.Adopt(lib, adopt.Options{Copy: copied, Now: time.Now()})
}

// adoptFailed gives an error of the package adopt its status.
func adoptFailed(err error) error {
	var own *launch.Error
	var refusal *adopt.Refusal
	switch {
	case errors.As(err, &own):
		return err
	case errors.Is(err, adopt.ErrNoPython):
		return launch.Usagef("--python: %w: name an interpreter that is there, with its path where PATH does not lead to it", err)
	case errors.As(err, &refusal):
		return &launch.Error{Status: statusRefused, Text: err.Error(), Err: err}
	}
	return &launch.Error{Status: launch.StatusInternal, Text: err.Error(), Err: err}
}

// printAdoption tells a person: one line, one for each file, and what else there is to know.
func printAdoption(r adopt.Report, undo bool) {
	what := "torch_memory_saver of " + r.Python
	if r.PackageVersion != "" {
		what = "torch_memory_saver " + r.PackageVersion + " of " + r.Python
	}
	switch {
	case undo && !r.Changed:
		fmt.Fprintf(stdout, "nothing to undo: %s in %s\n", what, r.Dir)
	case undo:
		fmt.Fprintf(stdout, "restored: %s in %s\n", what, r.Dir)
	case r.State == adopt.Adopted && r.Copied:
		fmt.Fprintf(stdout, "adopted: %s uses %s (a copy)\n", what, r.Library)
	case r.State == adopt.Adopted:
		fmt.Fprintf(stdout, "adopted: %s uses %s\n", what, r.Library)
	case r.State == adopt.Replaced:
		fmt.Fprintf(stdout, "not adopted any more: %s in %s was upgraded or reinstalled; run ebb adopt again\n", what, r.Dir)
	case r.State == adopt.Partly:
		fmt.Fprintf(stdout, "partly adopted: %s in %s; run ebb adopt again, or --undo\n", what, r.Dir)
	case r.State == adopt.Broken:
		fmt.Fprintf(stdout, "broken: %s in %s\n", what, r.Dir)
	default:
		fmt.Fprintf(stdout, "not adopted: %s in %s\n", what, r.Dir)
	}
	for _, f := range r.Files {
		if f.Link != "" {
			fmt.Fprintf(stdout, "  %-12s %s -> %s\n", f.State, f.Name, f.Link)
		} else {
			fmt.Fprintf(stdout, "  %-12s %s\n", f.State, f.Name)
		}
	}
	for _, note := range r.Notes {
		fmt.Fprintln(stdout, "  note: "+note)
	}
}
