package e2e

import (
	"bufio"
	"bytes"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// rankLine is the connection to a rank that does what a test says (testdata/commands.py).
type rankLine struct {
	net.Conn
	answers *bufio.Reader
}

// ask says a word to a rank and returns its answer.
func (r *rankLine) ask(t *testing.T, word string) string {
	t.Helper()
	if err := r.SetDeadline(time.Now().Add(hangs)); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fprintln(r, word); err != nil {
		t.Fatal(err)
	}
	answer, err := r.answers.ReadString('\n')
	if err != nil {
		t.Fatalf("%s: %v", word, err)
	}
	return strings.TrimSpace(answer)
}

// rankLines waits for so many ranks, which call at the listener, or for the end of the process that was to start them.
func rankLines(t *testing.T, listener net.Listener, ranks int, output fmt.Stringer) []*rankLine {
	t.Helper()
	lines := make([]*rankLine, ranks)
	for range lines {
		conn, err := listener.Accept()
		if err != nil {
			t.Fatalf("a rank did not come: %v\n%s", err, output)
		}
		t.Cleanup(func() { _ = conn.Close() }) // which ends the rank
		line := &rankLine{Conn: conn, answers: bufio.NewReader(conn)}
		number, err := line.answers.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		rank, err := strconv.Atoi(strings.TrimSpace(number))
		if err != nil {
			t.Fatal(err)
		}
		lines[rank] = line
	}
	return lines
}

// listenForRanks is a place where ranks call.
func listenForRanks(t *testing.T) net.Listener {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	return listener
}

// startRanks starts ranks under `ebb run`, which park on the node's disk. They end with the test, and must end well and
// leave no file. command is how the test runs ebb. The arguments of the script follow the address that it calls.
func (n *node) startRanks(
	t *testing.T, command func(args ...string) *exec.Cmd, job string, ranks int, script string, args ...string,
) []*rankLine {
	t.Helper()
	listener := listenForRanks(t)
	cmd := command(append([]string{
		"run", "--device", "soft", "--nproc-per-node", strconv.Itoa(ranks), "--job", job,
		"--offload-train", "--offload-train-target", "disk", "--offload-train-disk-dir", n.disk, "--offload-train-disk-chunk-mb", "4",
		"--", "python3", filepath.Join(testdir, script), listener.Addr().String(),
	}, args...)...)
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		ended <- cmd.Wait()
		_ = listener.Close() // for ranks that never come
	}()
	t.Cleanup(func() { // the lines are closed by then
		_ = listener.Close() // and so are those of ranks that came too late
		if err := <-ended; err != nil && !t.Failed() {
			t.Errorf("ebb run: %v\n%s", err, &output)
		}
		wantNoFiles(t, n.disk)
	})
	return rankLines(t, listener, ranks, &output)
}

// untilItSays starts a process and returns its first line. It ends when its standard input does, which is when the test
// ends, or when stop is called; how it ended goes to `end`, where there is one.
func untilItSays(t *testing.T, cmd *exec.Cmd, end func(error)) (said string, stop func()) {
	t.Helper()
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = stdin.Close()
		if err := cmd.Wait(); end != nil {
			end(err)
		}
	})
	said, err = bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		_ = cmd.Process.Signal(syscall.SIGKILL)
		t.Fatalf("%v says %q, %v", cmd.Args, said, err)
	}
	return strings.TrimSuffix(said, "\n"), func() { _ = stdin.Close() }
}
