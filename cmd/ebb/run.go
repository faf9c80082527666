package main

import (
	"github.com/spf13/cobra"

	"github.com/ebb-offload/ebb/internal/launch"
)

func newRun() *cobra.Command {
	var r launch.Request
	cmd := launcher(&cobra.Command{
		Use:   "run [flags] -- CMD ARG…",
		Short: "Start the ranks of one node",
		Long: `Starts CMD once per rank, each with RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR
and MASTER_PORT, and with --offload-train with the library that parks GPU memory preloaded.

Lines that ranks write get the rank in front. Signals go to all ranks; a second SIGINT kills
them. When a rank fails, it is named, the others are ended, and its status is that of ebb run.

No file is left in the disk directory after an exit, an exception or a kill of the ranks. When ebb
itself is killed with SIGKILL, the next ebb run or ebb gc removes what was left.`,
		Example: `  ebb run --nproc-per-node 8 --offload-train --offload-train-target disk \
      --offload-train-disk-dir /scratch/$USER -- python train.py`,
		RunE: func(cmd *cobra.Command, args []string) error {
			r.Argv, r.Labelled = args, true
			return supervise(cmd, r)
		},
	})
	launchFlags(cmd.Flags(), &r.Options)
	ranksFlag(cmd.Flags(), &r.Options, "1", "number of ranks to start on this node")
	graceFlag(cmd.Flags(), &r.Options)
	return cmd
}
