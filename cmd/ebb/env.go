package main

import (
	"github.com/spf13/cobra"
)

func newEnv() *cobra.Command {
	return &cobra.Command{Use: "env"}
}
