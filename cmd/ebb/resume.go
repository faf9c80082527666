package main

import (
	"github.com/spf13/cobra"

	"github.com/ebb-offload/ebb/internal/control"
)

func newResume() *cobra.Command {
	o := operationFlags{cmd: control.CmdResume, timeout: -1}
	cmd := &cobra.Command{
		Use:   "resume",
		Short: "Put the memory of paused ranks back on the GPU",
		Long: `Resumes the ranks that are meant, all at the same time: each gets its memory back at the same
addresses with the same bytes, or keeps it where it is and says why. Ranks that are not paused have
nothing to do, so the command can be repeated.

Ends with 0 when all memory is back on every rank, with 1 when a rank failed, with 3 when no rank is
running, and with 4 when a rank was late. Ctrl-C waits for what has begun; a second one does not.`,
		Example: `  ebb resume
  ebb resume --role actor --timeout 2m
  ebb resume --tag weights
  ebb resume --slurm 1234`,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	return o.command(cmd, "", "how long to wait for device memory that others hold: seconds, or a time such as 90s or 5m (default: the EBB_RESUME_WAIT of each rank)")
}
