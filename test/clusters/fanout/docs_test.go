package fanout

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// The controller of the docs says the same of the same nodes.
func TestTheControllerOfTheDocs(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../../docs/clusters.md")
	if err != nil {
		t.Fatal(err)
	}
	_, program, _ := strings.Cut(string(page), "```python\n")
	program, _, _ = strings.Cut(program, "```")
	dir, err := os.MkdirTemp("", "ebb-fanout-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	script := filepath.Join(dir, "controller.py")
	if err := os.WriteFile(script, []byte(program), 0o600); err != nil {
		t.Fatal(err)
	}

	s := Scale{Nodes: 30, Ranks: 3, Fat: 12, Hosts: 1, Unit: 100 * time.Millisecond, Timeout: 4 * time.Second}
	var all []int
	for n := range s.Nodes {
		all = append(all, n)
	}
	host := startHost(t, hostTask{s, all, dir})
	addrs := map[int]string{}
	var every, there strings.Builder
	for _, node := range host.hear(t).Ready {
		addrs[node.Node] = node.Addr
		fmt.Fprintln(&every, node.Addr)
		if s.ranks(node.Node) > 0 {
			fmt.Fprintln(&there, node.Addr)
		}
	}
	ask := func(verb, key, list string) (lines []string, status int) {
		t.Helper()
		var said, errs bytes.Buffer
		cmd := exec.Command("python3", script, verb, key, "4")
		cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(list), &said, &errs
		var failed *exec.ExitError
		if err := cmd.Run(); err != nil && !errors.As(err, &failed) {
			t.Fatal(err)
		}
		if errs.Len() > 0 {
			t.Errorf("%s", &errs)
		}
		return strings.Split(strings.TrimSpace(said.String()), "\n"), cmd.ProcessState.ExitCode()
	}

	lines, status := ask("pause", "step-1-pause", every.String())
	var want []string
	done := 0
	for n := range s.Nodes {
		switch outcome, named := s.want(n); outcome {
		case Done:
			done++
		case Lost:
			want = append(want, addrs[n]+": lost")
		case Late, Failed:
			for _, rank := range named {
				want = append(want, addrs[n]+": "+rank+": ")
			}
		}
	}
	last := len(lines) - 1
	if status != 1 || lines[last] != fmt.Sprintf("pause: done on %d of %d nodes", done, s.Nodes) {
		t.Errorf("status %d, and %q", status, lines)
	}
	for _, line := range lines[:last] {
		if !slices.ContainsFunc(want, func(w string) bool { return strings.HasPrefix(line, w) }) {
			t.Errorf("%q is not expected", line)
		}
	}
	if last != len(want) {
		t.Errorf("%q, want %q", lines[:last], want)
	}
	// One rank hangs still.
	lines, status = ask("resume", "step-1-back", there.String())
	if status != 1 || len(lines) != 2 || !strings.HasPrefix(lines[0], addrs[29]+": "+s.name(29, victim)+": late: ") || lines[1] != "resume: done on 27 of 28 nodes" {
		t.Errorf("status %d, and %q", status, lines)
	}
	s.checkRanks(t, host.end(t).Record)
}
