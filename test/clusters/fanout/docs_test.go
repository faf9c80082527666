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

	s := Scale{Nodes: 30, Ranks: 3, Fat: 12, Hosts: 1, Unit: 100 * time.Millisecond, Timeout: 2 * time.Second}
	var all []int
	for n := range s.Nodes {
		all = append(all, n)
	}
	host := startHost(t, hostTask{s, all, dir})
	docs := docsController{t, script, map[int]string{}}
	for _, node := range host.hear(t).Ready {
		docs.addrs[node.Node] = node.Addr
	}

	// Of these everything is known without that a deadline passes, so theirs is one that does not.
	var end, waiting, there []int
	var want, late []string
	done := 0
	for n := range s.Nodes {
		outcome, named := s.want(n)
		if s.ranks(n) > 0 && !s.hasStopped(n) {
			there = append(there, n)
		}
		if outcome == Lost || outcome == Late || s.rank(n, victim) == slow {
			waiting = append(waiting, n)
			if outcome == Lost {
				late = append(late, docs.addrs[n]+": lost")
			}
			for _, rank := range named {
				late = append(late, docs.addrs[n]+": "+rank+": late: ")
			}
			continue
		}
		end = append(end, n)
		if outcome == Done {
			done++
		}
		for _, rank := range named {
			want = append(want, docs.addrs[n]+": "+rank+": ")
		}
	}
	lines, status := docs.ask("pause", "step-1-pause", "600", end)
	if status != 1 || !are(lines, append(want, fmt.Sprintf("pause: done on %d of %d nodes", done, len(end)))) {
		t.Errorf("status %d, and %q, want %q", status, lines, want)
	}
	// Of these some are late or lost, and nothing else is: a rank that was late because the machine has other things to
	// do is paused when it is asked again, as the page says.
	docs.askUntil("pause", "2", waiting, append(late, fmt.Sprintf("pause: done on %d of %d nodes", len(waiting)-len(late), len(waiting))))

	// The others are brought back. One rank hangs still.
	lines, status = docs.ask("resume", "step-1-back", "600", there)
	if count := len(there); status != 0 || !are(lines, []string{fmt.Sprintf("resume: done on %d of %d nodes", count, count)}) {
		t.Errorf("status %d, and %q", status, lines)
	}
	docs.askUntil("resume", "2", []int{29}, []string{docs.addrs[29] + ": " + s.name(29, victim) + ": late: ", "resume: done on 0 of 1 nodes"})
	s.checkRanks(t, host.end(t).Record)
}

// docsController is the program of the page.
type docsController struct {
	t      *testing.T
	script string
	addrs  map[int]string
}

// ask runs it once, and returns the lines that it printed.
func (d docsController) ask(verb, key, seconds string, nodes []int) (lines []string, status int) {
	d.t.Helper()
	var list strings.Builder
	for _, n := range nodes {
		fmt.Fprintln(&list, d.addrs[n])
	}
	var said, errs bytes.Buffer
	cmd := exec.CommandContext(d.t.Context(), "python3", d.script, verb, key, seconds)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(list.String()), &said, &errs
	var failed *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &failed) {
		d.t.Fatal(err)
	}
	if errs.Len() > 0 {
		d.t.Errorf("%s", &errs)
	}
	return strings.Split(strings.TrimSpace(said.String()), "\n"), cmd.ProcessState.ExitCode()
}

// askUntil asks with a new key each time until it says that some nodes are not done, and no others. It never says of
// more that they are done.
func (d docsController) askUntil(verb, seconds string, nodes []int, want []string) {
	d.t.Helper()
	for attempt := range 40 {
		lines, status := d.ask(verb, fmt.Sprintf("%s-%d", verb, attempt), seconds, nodes)
		if status != 1 {
			d.t.Fatalf("%s: status %d, and %q, want %q", verb, status, lines, want)
		}
		if are(lines, want) {
			return
		}
		d.t.Logf("%s: %q is not yet %q", verb, lines, want)
	}
	d.t.Fatalf("%s: never %q", verb, want)
}

// are reports whether lines begin as they are to, in any order.
func are(lines, want []string) bool {
	if len(lines) != len(want) {
		return false
	}
	for _, w := range want {
		if !slices.ContainsFunc(lines, func(line string) bool { return strings.HasPrefix(line, w) }) {
			return false
		}
	}
	return true
}
