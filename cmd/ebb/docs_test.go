package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/ebb-offload/ebb/internal/launch"
	"github.com/ebb-offload/ebb/internal/testutil"
)

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(testutil.Root(t), path))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestStatusesAreDocumented(t *testing.T) {
	doc := read(t, "docs/exit-codes.md")
	for _, status := range []int{
		0, statusNothing, launch.StatusUsage, launch.StatusDevice, launch.StatusDirectory, launch.StatusInstall, launch.StatusInternal,
		launch.StatusNotExecutable, launch.StatusNotFound,
	} {
		if !strings.Contains(doc, fmt.Sprintf("\n| %d | ", status)) {
			t.Errorf("docs/exit-codes.md has no row for status %d", status)
		}
	}
}

func TestHelpFitsOnATerminal(t *testing.T) {
	for _, verb := range []string{"", "run", "exec", "env", "status", "watch", "pause", "resume", "swap", "serve", "k8s", "k8s render", "gc", "verify", "doctor", "adopt", "bench", "plan", "version"} {
		var out strings.Builder
		root := newRoot()
		root.SetOut(&out)
		root.SetArgs(append(strings.Fields(verb), "--help"))
		if err := root.Execute(); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(out.String(), "Usage:") {
			t.Errorf("ebb %s --help is %q", verb, &out)
		}
		for line := range strings.Lines(out.String()) {
			if n := utf8.RuneCountInString(strings.TrimRight(line, "\n")); n > helpWidth {
				t.Errorf("ebb %s --help has a line of %d columns: %s", verb, n, line)
			}
		}
	}
}

// An older Go does not build ebb, and does not say why in words that a reader understands.
func TestTheVersionOfGoIsTold(t *testing.T) {
	needed := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindStringSubmatch(read(t, "go.mod"))
	if needed == nil {
		t.Fatal("go.mod names no version")
	}
	for _, page := range []string{"README.md", "docs/quickstart.md"} {
		if !strings.Contains(read(t, page), "Go "+needed[1]+" ") {
			t.Errorf("%s does not say that Go %s is needed", page, needed[1])
		}
	}
}

// The rules of flags, checked on all of them.
func TestEveryFlagHasAVariableAndHelp(t *testing.T) {
	var visit func(*cobra.Command)
	visit = func(cmd *cobra.Command) {
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if f.Usage == "" {
				t.Errorf("%s --%s: no help", cmd.CommandPath(), f.Name)
			}
			if strings.Contains(f.Name, "_") || f.Name != strings.ToLower(f.Name) {
				t.Errorf("%s --%s: names are lower case with dashes", cmd.CommandPath(), f.Name)
			}
		})
		if cmd.Flags().HasFlags() && cmd.PreRunE == nil && !cmd.Hidden { // hidden ones are for ebb itself
			t.Errorf("%s does not read its variables", cmd.CommandPath())
		}
		for _, sub := range cmd.Commands() {
			if sub.Short == "" {
				t.Errorf("%s: no help", sub.CommandPath())
			}
			visit(sub)
		}
	}
	visit(newRoot())
}
