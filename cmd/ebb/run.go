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
Whatever happens, no files stay behind in the disk directory.`,
		RunE: func(_ *cobra.Command, args []string) error {
			r.Argv, r.Labelled = args, true
			return supervise(r)
		},
	})
	launchFlags(cmd.Flags(), &r.Options)
	ranksFlag(cmd.Flags(), &r.Options)
	graceFlag(cmd.Flags(), &r.Options)
	return cmd
}
