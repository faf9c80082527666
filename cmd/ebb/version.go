package main

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/ebb-offload/ebb/internal/version"
)

const platform = runtime.GOOS + "/" + runtime.GOARCH

// versionText is what ebb version and ebb --version print after the name.
func versionText() string {
	return fmt.Sprintf("%s (%s, %s)", version.Version, runtime.Version(), platform)
}

func newVersion() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "Print the version",
		Example: `  ebb version --json`,
		Args:    noArgs,
		PreRunE: func(cmd *cobra.Command, _ []string) error { return fromEnvironment(cmd) },
		RunE: func(*cobra.Command, []string) error {
			if asJSON {
				return printJSON(map[string]string{
					"message_type": "version", "version": version.Version, "go": runtime.Version(), "platform": platform,
				})
			}
			fmt.Fprintln(stdout, "ebb "+versionText())
			return nil
		},
	}
	onOffTo(cmd.Flags(), &asJSON, "json", "print JSON")
	return cmd
}
