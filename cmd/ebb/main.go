// Command ebb starts training ranks so that their GPU memory can be parked, and cleans up after
// them. Each verb has a file of its own; the work is done in internal/launch.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/ebb-offload/ebb/internal/launch"
)

// The commands are listed in the order in which they are needed, not by name.
func init() { cobra.EnableCommandSorting = false }

func main() { os.Exit(run(os.Args[1:])) }

// ebb runs the command line and returns the exit status (docs/exit-codes.md).
func ebb(args []string) int {
	root := newRoot()
	root.SetArgs(args)
	root.SetOut(stdout)
	cmd, err := root.ExecuteC()
	var ended statusError
	var own *launch.Error
	unwritten := stdout.failure()
	switch {
	case errors.As(err, &ended):
		if unwritten != nil {
			say(oneLine(unwritten))
		}
		return int(ended)
	case errors.As(err, &own):
	case unwritten != nil:
		own = unwritten
	case err == nil:
		return 0
	default:
		// What cobra and pflag complain about is the command line.
		own = launch.Usagef("%s%s; see: %s --help", oneLine(err), meantFlag(cmd, err), cmd.CommandPath())
	}
	log.Error(oneLine(own), "status", own.Status)
	return own.Status
}

// statusError ends ebb with the status of the command it ran. Everything has been said.
type statusError int

func (e statusError) Error() string { return fmt.Sprintf("status %d", int(e)) }

// log takes ebb's own lines, on standard error. The verbs with --log-format make it another one.
var log = launch.NewLog(os.Stderr, launch.LogText)

// say writes one line for the user.
func say(line string) { log.Warn(line) }

func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }

// helpWidth is the longest line of a help text, in columns.
const helpWidth = textWidth

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "ebb",
		Short: "Park the GPU memory of paused training actors on disk or in host memory",
		Long: `ebb starts training ranks so that their GPU memory can be taken off the GPU while they are
paused, and brought back bit for bit. Every flag --some-flag can also be given as the variable
EBB_SOME_FLAG; the command line wins. In flag names, _ and - are the same.`,
		Example: `  ebb run --nproc-per-node 8 --offload-train -- python train.py
  torchrun --nproc_per_node 8 --no_python ebb exec --offload-train -- python train.py
  ebb gc --disk-dir /scratch/$USER`,
		Version:       versionText(),
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          noArgs,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetHelpCommand(newHelp())
	root.SetVersionTemplate("{{.Name}} {{.Version}}\n")
	root.SetUsageTemplate(strings.ReplaceAll(root.UsageTemplate(), ".FlagUsages", fmt.Sprintf(".FlagUsagesWrapped %d", helpWidth)))
	root.SetGlobalNormalizationFunc(dashes)
	root.AddCommand(newRun(), newExec(), newEnv(), newStatus(), newWatch(), newPause(), newResume(), newGC(), newVerify(), newDoctor(), newAdopt(), newBench(), newReport(), newPlan(), newSwap(), newServe(), newK8s(), newCompletion(), newVersion(), newProbe(), newGuard(), newDoctorLook(), newSlurmNode())
	completeWords(root)
	return root
}

// dashes makes --some_flag the same as --some-flag.
func dashes(_ *pflag.FlagSet, name string) pflag.NormalizedName {
	return pflag.NormalizedName(strings.ReplaceAll(name, "_", "-"))
}

// noArgs refuses arguments; on the root command they are unknown verbs.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if cmd.HasSubCommands() {
		return launch.Usagef("%s", unknownCommand(cmd, args[0]))
	}
	return launch.Usagef("%s takes no arguments, got %q; see: %s --help", cmd.CommandPath(), args[0], cmd.CommandPath())
}

// printJSON writes a value as one indented JSON document.
func printJSON(v any) error {
	var document bytes.Buffer
	e := json.NewEncoder(&document)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return &launch.Error{Status: launch.StatusInternal, Text: "making the JSON document: " + oneLine(err), Err: err}
	}
	_, _ = stdout.Write(document.Bytes()) // it remembers what fails
	return nil
}
