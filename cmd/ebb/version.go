package main

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"
)

// version is that of abi/ebb_engine.h.
const version = "0.1.0"

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
					"message_type": "version", "version": version, "go": runtime.Version(), "platform": platform,
				})
			}
			fmt.Printf("ebb %s (%s, %s)\n", version, runtime.Version(), platform)
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}
