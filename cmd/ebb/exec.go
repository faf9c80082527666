package main

import (
	"github.com/spf13/cobra"

	"github.com/ebb-offload/ebb/internal/launch"
)

func newExec() *cobra.Command {
	r := launch.Request{Exec: true}
	cmd := launcher(&cobra.Command{
		Use:   "exec [flags] -- CMD ARG…",
		Short: "Start one rank under an outer launcher",
		Long: `Starts CMD as the one rank that this process is. Rank, local rank and job are those that
torchrun, Open MPI, PMI, Slurm, Ray or a Kubernetes indexed job tell, the innermost of them.
CMD has ebb's own input and output. Signals, exit status and files are as with ebb run.`,
		RunE: func(_ *cobra.Command, args []string) error {
			r.Argv = args
			return supervise(r)
		},
	})
	launchFlags(cmd.Flags(), &r.Options)
	rankFlag(cmd.Flags(), &r.Rank)
	graceFlag(cmd.Flags(), &r.Options)
	return cmd
}
