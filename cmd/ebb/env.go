package main

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/ebb-offload/ebb/internal/launch"
)

func newEnv() *cobra.Command {
	var (
		r      launch.EnvRequest
		format = launch.FormatShell
		asJSON bool
	)
	cmd := &cobra.Command{
		Use:   "env [flags] --rank R",
		Short: "Print what would be set for a rank",
		Long: `Prints the variables that ebb would set for a rank, for launchers that start ranks themselves:

  runtime_env={"env_vars": json.loads(subprocess.check_output(["ebb", "env", …, "--json"]))}

Without ebb as supervisor nobody removes the files of a rank that is killed: run ebb gc.`,
		Example: `  eval "$(ebb env --offload-train --rank 3)"
  ebb env --offload-train --offload-train-target disk --rank 3 --format dotenv >rank3.env`,
		DisableFlagsInUseLine: true,
		Args:                  noArgs,
		PreRunE:               func(cmd *cobra.Command, _ []string) error { return fromEnvironment(cmd) },
		RunE: func(cmd *cobra.Command, _ []string) error {
			if asJSON && cmd.Flags().Changed("format") && format != launch.FormatJSON {
				return launch.Usagef("--json and --format %s contradict each other: give one", format)
			}
			if asJSON {
				format = launch.FormatJSON
			}
			r.RanksGiven = cmd.Flags().Changed("nproc-per-node")
			log = launch.NewLog(os.Stderr, r.LogFormat)
			sayUnknown(cmd)
			sayUnused(cmd.Flags(), r.Options)
			r.Environ, r.Log = os.Environ(), log
			settings, err := launch.EnvSettings(r)
			if err != nil {
				return err
			}
			return launch.WriteSettings(stdout, format, settings)
		},
	}
	launchFlags(cmd.Flags(), &r.Options)
	ranksFlag(cmd.Flags(), &r.Options, "",
		"print a world of that many ranks on one node, as ebb run would set it (default: the outer launcher's world, or none)")
	rankFlag(cmd.Flags(), &r.Rank)
	cmd.Flags().Var(&value{text: format, kind: "shell|json|dotenv", parse: into(&format, word(launch.FormatShell, launch.FormatJSON, launch.FormatDotenv))},
		"format", "shell: export lines; json: one flat object; dotenv: NAME=value lines")
	onOffTo(cmd.Flags(), &asJSON, "json", "the same as --format json")
	annotate(cmd.Flags(), "json", pairedWith, "format")
	annotate(cmd.Flags(), "format", pairedWith, "json")
	return cmd
}
