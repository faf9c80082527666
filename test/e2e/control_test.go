package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/ebb-offload/ebb/internal/control"
	"github.com/ebb-offload/ebb/internal/testutil"
	"github.com/ebb-offload/ebb/internal/version"
)

// commanded is a rank that is commanded from outside, and told what its program does.
type commanded struct {
	t       *testing.T
	runtime string // directory of its socket
	pid     int    // of the process that was started: the rank, or its supervisor
	tell    io.Writer
	told    *bufio.Reader
	stderr  *bytes.Buffer
	wait    func() error
	address string
}

// startCommanded starts the program, by itself or under a supervisor.
func startCommanded(t *testing.T, n *node, supervisor ...string) *commanded {
	t.Helper()
	c := &commanded{t: t, runtime: testutil.SocketDir(t), stderr: &bytes.Buffer{}}
	cmd := n.victim(t, "commanded.py")
	if len(supervisor) > 0 {
		cmd = n.ebbRun(t, supervisor, "commanded.py")
	}
	cmd.Env = append(cmd.Env, "EBB_RUNTIME_DIR="+c.runtime)
	cmd.Stderr = c.stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	c.pid, c.tell, c.told, c.wait = cmd.Process.Pid, in, bufio.NewReader(out), cmd.Wait
	c.address = strings.TrimPrefix(c.hears("ready "), "ready ")
	return c
}

// hears is the next line of the program, which must begin so.
func (c *commanded) hears(begin string) string {
	c.t.Helper()
	line, err := c.told.ReadString('\n')
	line = strings.TrimSuffix(line, "\n")
	if i := strings.Index(line, begin); err != nil || i < 0 {
		c.t.Fatalf("the program says %q, %v; want %q\n%s", line, err, begin, c.stderr)
	} else {
		line = line[i:] // behind a label
	}
	return line
}

func (c *commanded) start(word string) {
	c.t.Helper()
	if _, err := io.WriteString(c.tell, word+"\n"); err != nil {
		c.t.Fatal(err)
	}
}

// do has the program do something, and returns what it says of it.
func (c *commanded) do(word string) string {
	c.t.Helper()
	c.start(word)
	return strings.TrimPrefix(c.hears("did "+word), "did ")
}

func (c *commanded) sockets() []string {
	c.t.Helper()
	list, err := filepath.Glob(filepath.Join(c.runtime, "*"))
	if err != nil {
		c.t.Fatal(err)
	}
	return list
}

// socket is the one socket that there is.
func (c *commanded) socket() string {
	c.t.Helper()
	list := c.sockets()
	if len(list) != 1 {
		c.t.Fatalf("sockets %q, want one", list)
	}
	return list[0]
}

// controlConn is a connection to a rank.
type controlConn struct {
	net.Conn
	t     *testing.T
	lines *bufio.Reader
	hello control.Hello
}

func (c *commanded) connect() *controlConn {
	c.t.Helper()
	conn, err := net.Dial("unix", c.socket())
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { _ = conn.Close() })
	s := &controlConn{Conn: conn, t: c.t, lines: bufio.NewReader(conn)}
	s.read(&s.hello)
	return s
}

func (s *controlConn) read(into any) {
	s.t.Helper()
	line, err := s.lines.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, into)
	}
	if err != nil {
		s.t.Fatalf("%q: %v", line, err)
	}
}

func (s *controlConn) ask(request string) {
	s.t.Helper()
	if _, err := fmt.Fprintf(s, `{"v":1,%s}`+"\n", request); err != nil {
		s.t.Fatal(err)
	}
}

// must asks and takes the result.
func (s *controlConn) must(request string, into any) {
	s.t.Helper()
	s.ask(request)
	s.result(into)
}

func (s *controlConn) result(into any) {
	s.t.Helper()
	var r control.Reply
	s.read(&r)
	if !r.OK {
		s.t.Fatalf("refused: %+v", r.Error)
	}
	if err := json.Unmarshal(r.Result, into); err != nil {
		s.t.Fatalf("%s: %v", r.Result, err)
	}
}

// waitAsked waits until a pause that was asked for waits for the safe point.
func waitAsked(t *testing.T, events *controlConn) {
	t.Helper()
	var e control.Event
	for e.Kind != control.EventAsked {
		events.read(&e)
	}
}

func TestAProcessIsCommandedThroughItsSocket(t *testing.T) {
	n := newNode(t, 64)
	c := startCommanded(t, n)
	s, events := c.connect(), c.connect()
	if s.hello.PID != c.pid || s.hello.V != 1 {
		t.Errorf("%+v", s.hello)
	}
	var null any
	events.must(`"cmd":"subscribe"`, &null)
	s.ask(`"id":"1","cmd":"pause","tags":["model"]`)
	waitAsked(t, events)
	c.do("check")
	c.start("safe")
	var done control.Done
	s.result(&done)
	if done.Bytes != 8<<20 || done.Freed != 8<<20 || done.Missing != 0 {
		t.Errorf("%+v", done)
	}
	var read control.Bytes
	s.must(`"cmd":"read","size":1000,"address":"`+c.address+`"`, &read)
	if len(read.Data) != 1000 || bytes.Count(read.Data, []byte{0}) == 1000 {
		t.Errorf("%d bytes: %x", len(read.Data), read.Data)
	}
	var status struct {
		Paused uint64 `json:"bytes_paused"`
	}
	s.must(`"cmd":"status"`, &status)
	if status.Paused != 8<<20 {
		t.Errorf("%+v", status)
	}
	s.must(`"id":"2","cmd":"resume"`, &done)
	c.hears("did safe")
	c.do("check")

	s.ask(`"id":"3","cmd":"pause","tags":["nope"]`)
	var refused control.Reply
	if s.read(&refused); refused.Error == nil || refused.Error.Code != 4 || refused.ID != "3" {
		t.Errorf("%+v", refused)
	}
	s.ask(`"cmd":"read","size":8,"address":"0x10"`)
	if s.read(&refused); refused.Error == nil || refused.Error.Code != 2 {
		t.Errorf("%+v", refused)
	}
	s.ask(`"id":"4","cmd":"pause","timeout_s":0`)
	if s.read(&refused); refused.Error == nil || refused.Error.Code != 18 {
		t.Errorf("%+v", refused)
	}

	c.start("exit")
	if err := c.wait(); err != nil {
		t.Errorf("%v\n%s", err, c.stderr)
	}
	if left := c.sockets(); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
	if said := lines(c.stderr.String(), "ebb:"); len(said) != 2 || !strings.Contains(said[0], "paused 8.0 MiB in ") || !strings.Contains(said[1], "resumed 8.0 MiB in ") {
		t.Errorf("%q", said)
	}
	wantNoFiles(t, n.disk)
}

// The exit of a process waits for nobody who asked for something.
func TestAProcessExitsWhileAPauseIsAskedFor(t *testing.T) {
	n := newNode(t, 64)
	c := startCommanded(t, n)
	s, events := c.connect(), c.connect()
	var null any
	events.must(`"cmd":"subscribe"`, &null)
	s.ask(`"cmd":"pause"`)
	waitAsked(t, events)
	c.start("exit")
	if err := c.wait(); err != nil {
		t.Errorf("%v\n%s", err, c.stderr)
	}
	_, _ = io.Copy(io.Discard, s.lines) // ends
	if left := c.sockets(); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

// openSockets are the sockets of a process, as its descriptors name them.
func openSockets(t *testing.T, pid int) (list []string) {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if to, err := os.Readlink(filepath.Join(dir, e.Name())); err == nil && strings.HasPrefix(to, "socket:") {
			list = append(list, to)
		}
	}
	return list
}

func TestAForkedChildKeepsNothingOfTheSocket(t *testing.T) {
	c := startCommanded(t, newNode(t, 64))
	s := c.connect()
	child, err := strconv.Atoi(strings.TrimPrefix(c.do("fork"), "fork "))
	if err != nil {
		t.Fatal(err)
	}
	parent, kept := openSockets(t, c.pid), openSockets(t, child)
	if len(parent) < 2 {
		t.Fatalf("the process has the sockets %q", parent)
	}
	for _, socket := range kept {
		if slices.Contains(parent, socket) {
			t.Errorf("the child has %s of %q", socket, parent)
		}
	}
	var status any
	s.must(`"cmd":"status"`, &status) // the parent has lost nothing
	if err := syscall.Kill(c.pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, s.lines) // the connection ends with it
	_ = c.wait()
}

func TestAHostThatClosesTheSocketGoesOn(t *testing.T) {
	c := startCommanded(t, newNode(t, 64))
	s := c.connect()
	c.do("close")
	if _, err := io.WriteString(s, `{"v":1,"cmd":"status"}`+"\n"); err == nil {
		_, _ = io.Copy(io.Discard, s.lines)
	}
	for _, path := range c.sockets() {
		if conn, err := net.Dial("unix", path); err == nil {
			_, _ = io.Copy(io.Discard, conn) // nobody answers, and nobody is kept waiting
			_ = conn.Close()
		}
	}
	c.do("check")
	c.start("exit")
	if err := c.wait(); err != nil {
		t.Errorf("%v\n%s", err, c.stderr)
	}
	if left := c.sockets(); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

// Beside a rank's lease a file names its socket. Both go with a rank that is killed.
func TestTheSocketOfARankIsFoundByItsDirectory(t *testing.T) {
	n := newNode(t, 64)
	c := startCommanded(t, n, "--offload-train", "--offload-train-target", "disk", "--offload-train-disk-dir", n.disk)
	pointers, err := control.Pointers(n.disk)
	if err != nil || !slices.Equal(pointers, []string{c.socket()}) {
		t.Errorf("%q, %v, want %q", pointers, err, c.socket())
	}
	s := c.connect()
	if s.hello.Role != "actor" || s.hello.Rank != "0" || s.hello.PID == c.pid || s.hello.Job == "" {
		t.Errorf("%+v", s.hello)
	}
	if err := syscall.Kill(s.hello.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if c.wait() == nil {
		t.Error("the run did not fail")
	}
	left, err := filepath.Glob(filepath.Join(n.disk, ".ebb", "*"))
	if sockets := c.sockets(); len(sockets) > 0 || err != nil || slices.ContainsFunc(left, func(p string) bool { return strings.HasSuffix(p, ".control") }) {
		t.Errorf("left: %q, %q, %v", sockets, left, err)
	}
}

func TestGCRemovesTheSocketsOfTheDead(t *testing.T) {
	n := newNode(t, 64)
	c := startCommanded(t, n)
	socket := c.socket()
	if err := syscall.Kill(c.pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = c.wait()
	for _, args := range [][]string{{"--dry-run"}, {}} {
		cmd := n.process(t, filepath.Join(root, "dist/bin/ebb"), append([]string{"gc", "--json", "--disk-dir", n.disk}, args...)...)
		cmd.Env = append(cmd.Env, "EBB_RUNTIME_DIR="+c.runtime)
		var found struct{ Sockets []string }
		if err := json.Unmarshal([]byte(succeed(t, cmd)), &found); err != nil {
			t.Fatal(err)
		}
		if !slices.Contains(found.Sockets, socket) {
			t.Errorf("%q: %q, want %s among them", args, found.Sockets, socket)
		}
	}
	if left := c.sockets(); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

func TestWithoutControlThereIsNoSocket(t *testing.T) {
	n := newNode(t, 64)
	n.env = []string{"EBB_CONTROL=0"}
	c := startCommanded(t, n)
	if list := c.sockets(); len(list) > 0 {
		t.Errorf("%q", list)
	}
	c.start("exit")
	if err := c.wait(); err != nil {
		t.Error(err)
	}
	if log := c.stderr.String(); log != "" {
		t.Errorf("%q", log)
	}
}

// The program of docs/control.md does what it says.
func TestTheExampleOfTheProtocolWorks(t *testing.T) {
	page := string(readFile(t, filepath.Join(root, "docs/control.md")))
	_, rest, begins := strings.Cut(page, "```python\n")
	program, _, ends := strings.Cut(rest, "```\n")
	if !begins || !ends {
		t.Fatal("docs/control.md has no program")
	}
	n := newNode(t, 64)
	c := startCommanded(t, n)
	c.do("idle")
	cmd := n.process(t, "python3", "-c", program, strconv.Itoa(c.pid))
	cmd.Env = append(cmd.Env, "EBB_RUNTIME_DIR="+c.runtime)
	want := fmt.Sprintf("speaking to %d with ebb %s\npaused 8388608 bytes, free again: 8388608\nresumed 8388608 bytes\n", c.pid, version.Version)
	if got := succeed(t, cmd); got != want {
		t.Errorf("it prints %q, want %q", got, want)
	}
	c.do("go")
	c.do("check")
}
