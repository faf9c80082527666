package main

import (
	"os"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/ebb-offload/ebb/internal/launch"
)

// newProbe is the verb by which ebb looks at a rank's environment from inside; see
// internal/launch/probe.go.
func newProbe() *cobra.Command {
	return &cobra.Command{
		Use:    launch.ProbeVerb + " LIBRARY",
		Short:  "Tell whether a library is preloaded and which device is seen",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE:   func(_ *cobra.Command, args []string) error { return launch.PrintProbe(args[0]) },
	}
}

// newGuard is the verb of the process that ends the ranks when ebb was killed; see
// internal/launch/guard.go.
func newGuard() *cobra.Command {
	return &cobra.Command{
		Use:    launch.GuardVerb + " RUN SESSION",
		Short:  "Kill the ranks of a run when standard input ends",
		Hidden: true,
		Args:   cobra.ExactArgs(2),
		RunE: func(_ *cobra.Command, args []string) error {
			session, err := strconv.Atoi(args[1])
			if err != nil {
				return launch.Usagef("session %q is no number", args[1])
			}
			launch.Guard(os.Stdin, args[0], session)
			return nil
		},
	}
}
