package main

import (
	"github.com/spf13/cobra"
)

func newGC() *cobra.Command {
	return &cobra.Command{Use: "gc"}
}
