package main

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/ebb-offload/ebb/internal/launch"
)

// libraryVariables are those that no flag has: of the library, of the launcher for its ranks, of the
// demo and of tests.
var libraryVariables = []string{
	"EBB_CONTROL", "EBB_DISK_DIRS", "EBB_DISK_LEASES", "EBB_DISK_QUOTA_BYTES", "EBB_ENGINE", "EBB_ENGINE_TOKEN", "EBB_FAULT_FILES", "EBB_HOST_ARENA", "EBB_HOST_MB",
	"EBB_IO_TIMEOUT", "EBB_LEASE", "EBB_LIB_DIR", "EBB_ON_PAUSE_ERROR", "EBB_RESUME_WAIT", "EBB_RUN", "EBB_STATE_CHUNK_MB", "EBB_STATE_DIRS", "EBB_STATE_LEASES",
	"EBB_CI", "EBB_DEMO_DIR", "EBB_RAY_REFUSED", "EBB_REFERENCE_TESTS",
}

// sayUnknown names variables that look like ebb's and are none: a slip of the keyboard would else
// have no effect, and nobody would know.
func sayUnknown(cmd *cobra.Command) {
	if launch.Nested(os.Getenv) {
		return // said by the run around this one
	}
	known := map[string]bool{}
	for _, name := range libraryVariables {
		known[name] = true
	}
	for _, verb := range cmd.Root().Commands() {
		for _, c := range append(verb.Commands(), verb) {
			c.Flags().VisitAll(func(f *pflag.Flag) { known[variableOf(f)] = true })
		}
	}
	for _, line := range unknown(os.Environ(), known) {
		say(line)
	}
}

// unknown is a line for each variable of ebb's form that is not known.
func unknown(environ []string, known map[string]bool) (lines []string) {
	bare := func(name string) string { return strings.ReplaceAll(name, "_", "") }
	for _, entry := range environ {
		name, _, _ := strings.Cut(entry, "=")
		if !strings.HasPrefix(name, "EBB_") || strings.HasPrefix(name, "EBB_TEST_") || known[name] {
			continue
		}
		line := fmt.Sprintf("%s is not used: ebb has no such variable", name)
		all := slices.Sorted(maps.Keys(known))
		same := slices.DeleteFunc(slices.Clone(all), func(other string) bool { return bare(other) != bare(name) })
		if len(same) == 0 {
			same = near(name, all)
		}
		if len(same) > 0 {
			line += ", but " + strings.Join(same, ", ")
		}
		lines = append(lines, line)
	}
	return lines
}
