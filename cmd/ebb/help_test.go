package main

import (
	"io"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"
)

// visible are the verbs that ebb --help lists, with those that cobra adds.
func visible(t *testing.T) []*cobra.Command {
	t.Helper()
	root := newRoot()
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	var verbs []*cobra.Command
	for _, verb := range root.Commands() {
		if !verb.Hidden {
			verbs = append(verbs, verb)
		}
	}
	if len(verbs) < 15 {
		t.Fatalf("only %d verbs", len(verbs))
	}
	return verbs
}

// printed is what ebb prints with arguments that must succeed.
func printed(t *testing.T, args ...string) string {
	t.Helper()
	var out strings.Builder
	root := newRoot()
	root.SetOut(&out)
	root.SetErr(io.Discard)
	root.SetArgs(args)
	if err := root.Execute(); err != nil {
		t.Fatalf("ebb %q: %v", args, err)
	}
	return out.String()
}

func TestEveryVerbIsExplainedWithExamples(t *testing.T) {
	for _, verb := range visible(t) {
		name := verb.Name()
		if verb.Short == "" || strings.HasSuffix(verb.Short, ".") {
			t.Errorf("ebb %s: in the list it is %q", name, verb.Short)
		}
		if verb.Long == "" && name != "version" {
			t.Errorf("ebb %s: nothing explains it", name)
		}
		if !strings.HasPrefix(verb.Example, "  ") || !strings.Contains(verb.Example, "ebb "+name) {
			t.Errorf("ebb %s: its example is %q", name, verb.Example)
		}
		for line := range strings.Lines(printed(t, name, "--help")) {
			if n := utf8.RuneCountInString(strings.TrimRight(line, "\n")); n > helpWidth {
				t.Errorf("ebb %s: a line of %d columns: %s", name, n, line)
			}
		}
		if name != "help" {
			if help := printed(t, "help", name); help != printed(t, name, "--help") || !strings.Contains(help, "Examples:") {
				t.Errorf("ebb help %s is not ebb %s --help, with examples", name, name)
			}
		}
	}
}

func TestHelpOfAVerbThatIsNone(t *testing.T) {
	root := newRoot()
	root.SetArgs([]string{"help", "launch"})
	if err := root.Execute(); err == nil || !strings.Contains(err.Error(), `unknown command "launch"`) {
		t.Errorf("%v", err)
	}
}

func TestShellsCompleteVerbsFlagsAndWords(t *testing.T) {
	complete := func(args ...string) string {
		return printed(t, append([]string{cobra.ShellCompRequestCmd}, args...)...)
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"re"}, "report\t"},
		{[]string{"run", "--offload-train-t"}, "--offload-train-target\t"},
		{[]string{"run", "--offload-train-target", ""}, "cpu\ndisk\nauto\n"},
		{[]string{"run", "--log-format", ""}, "text\njson\n"},
		{[]string{"completion", ""}, "bash\nzsh\nfish\n"},
		{[]string{"help", ""}, "run\t"},
	} {
		if got := complete(c.args...); !strings.Contains(got, c.want) {
			t.Errorf("%q completes to %q, want %q", c.args, got, c.want)
		}
	}
	if got := complete("run", "--event-log", ""); !strings.Contains(got, ":16") { // directories
		t.Errorf("a directory completes to %q", got)
	}
	for _, hidden := range []string{"__guard", "__probe", "__slurm-node"} {
		if strings.Contains(complete(""), hidden) {
			t.Errorf("%s is offered", hidden)
		}
	}
}
