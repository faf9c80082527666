package main

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/ebb-offload/ebb/internal/version"
)

func newVersion() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "Print the version",
		Args:    noArgs,
		PreRunE: func(cmd *cobra.Command, _ []string) error { return fromEnvironment(cmd) },
		RunE: func(*cobra.Command, []string) error {
			platform := runtime.GOOS + "/" + runtime.GOARCH
			if asJSON {
				return printJSON(map[string]string{
					"message_type": "version", "version": version.Version, "go": runtime.Version(), "platform": platform,
				})
			}
			fmt.Printf("ebb %s (%s, %s)\n", version.Version, runtime.Version(), platform)
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}
