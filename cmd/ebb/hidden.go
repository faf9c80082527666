package main

import (
	"os"

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
		Use:    launch.GuardVerb,
		Short:  "Kill process groups when standard input ends",
		Hidden: true,
		Args:   noArgs,
		Run:    func(*cobra.Command, []string) { launch.Guard(os.Stdin) },
	}
}
