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
CMD has ebb's own input and output. Signals, exit status and files are as with ebb run.

torchrun takes ebb for a Python script unless it is told --no_python.`,
		Example: `  torchrun --nproc_per_node 8 --no_python ebb exec --offload-train -- python train.py
  srun --ntasks-per-node 8 ebb exec --offload-train -- python train.py`,
		RunE: func(cmd *cobra.Command, args []string) error {
			r.Argv = args
			return supervise(cmd, r)
		},
	})
	launchFlags(cmd.Flags(), &r.Options)
	rankFlag(cmd.Flags(), &r.Rank)
	graceFlag(cmd.Flags(), &r.Options)
	return cmd
}
