package fanout

import (
	"bytes"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
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
	dir, script := controllerOfTheDocs(t)
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

// controllerOfTheDocs saves the program of the page in a directory of its own.
func controllerOfTheDocs(t *testing.T) (dir, script string) {
	t.Helper()
	page, err := os.ReadFile("../../../docs/clusters.md")
	if err != nil {
		t.Fatal(err)
	}
	_, program, _ := strings.Cut(string(page), "```python\n")
	program, _, _ = strings.Cut(program, "```")
	if dir, err = os.MkdirTemp("", "ebb-fanout-"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	script = filepath.Join(dir, "controller.py")
	if err := os.WriteFile(script, []byte(program), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir, script
}

// Nodes that other machines reach have TLS and a token; what they complain of is told.
func TestTheControllerOfTheDocsSpeaksTLSAndPassesOnWhatIsWrong(t *testing.T) {
	t.Parallel()
	dir, script := controllerOfTheDocs(t)
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusConflict)
		message := "no rank is running"
		if r.Header.Get("Authorization") != "Bearer the token" {
			message = "the token is wrong"
		}
		_, _ = fmt.Fprintf(w, `{"error":{"code":"no_rank","message":%q}}`, message)
	}))
	t.Cleanup(server.Close)
	ca, token := filepath.Join(dir, "ca.crt"), filepath.Join(dir, "token")
	der := server.Certificate().Raw
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(token, []byte("the token\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	node := server.Listener.Addr().String()
	cmd := exec.CommandContext(t.Context(), "python3", script, "pause", "key", "1", ca, token)
	cmd.Stdin = strings.NewReader(node + "\n")
	said, _ := cmd.CombinedOutput()
	if want := node + ": refused: no rank is running\npause: done on 0 of 1 nodes\n"; string(said) != want || cmd.ProcessState.ExitCode() != 1 {
		t.Errorf("status %d, and %q, want %q", cmd.ProcessState.ExitCode(), said, want)
	}
	for _, args := range [][]string{{}, {"poise", "key", "1"}} {
		said, err := exec.CommandContext(t.Context(), "python3", append([]string{script}, args...)...).CombinedOutput()
		if err == nil || !strings.HasPrefix(string(said), "controller.py pause|resume KEY SECONDS") {
			t.Errorf("%q: %q (%v)", args, said, err)
		}
	}
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
