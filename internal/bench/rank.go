package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// endGrace is how long a process has to end by itself once its input has ended.
const endGrace = time.Minute

// rank is a process of ebb-bench-rank.
type rank struct {
	who     string // for messages: "the rank of ebb"
	cmd     *exec.Cmd
	in      io.WriteCloser
	answers *bufio.Reader
	closer  io.Closer // of answers
	output  *tail
	ended   chan struct{} // closed when the process has ended
	hello   answer
}

// RankError is a failure of a process that was measured.
type RankError struct {
	Who     string
	Command string // that it was carrying out
	Text    string // what it said, or how it ended
}

func (e *RankError) Error() string { return fmt.Sprintf("%s: %s: %s", e.Who, e.Command, e.Text) }

// startRank starts the program with arguments and an environment and greets it. ctx ends it.
func startRank(ctx context.Context, who, program string, args, env []string) (*rank, error) {
	read, write, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", who, err)
	}
	r := &rank{who: who, answers: bufio.NewReader(read), closer: read, output: &tail{}, ended: make(chan struct{})}
	r.cmd = exec.CommandContext(ctx, program, args...)
	r.cmd.Env = env
	r.cmd.ExtraFiles = []*os.File{write}
	r.cmd.Stdout, r.cmd.Stderr = r.output, r.output
	// A group of its own: the keys of a terminal are for ebb, which ends its ranks itself.
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	r.cmd.WaitDelay = endGrace
	r.in, err = r.cmd.StdinPipe()
	if err == nil {
		err = r.cmd.Start()
	}
	_ = write.Close() // the process has its own
	if err != nil {
		_ = read.Close()
		return nil, fmt.Errorf("start %s: %w", who, err)
	}
	go func() {
		_ = r.cmd.Wait() // ProcessState tells
		close(r.ended)
	}()
	r.who = fmt.Sprintf("%s (pid %d)", who, r.cmd.Process.Pid)
	if r.hello, err = r.call("hello"); err != nil {
		r.end()
		return nil, err
	}
	return r, nil
}

// call sends a command and returns the answer.
func (r *rank) call(format string, args ...any) (answer, error) {
	command := fmt.Sprintf(format, args...)
	_, err := io.WriteString(r.in, command+"\n")
	line := ""
	if err == nil {
		line, err = r.answers.ReadString('\n')
	}
	if err != nil {
		return answer{}, &RankError{Who: r.who, Command: command, Text: r.howItEnded()}
	}
	a, err := parseAnswer(line)
	if err != nil {
		return answer{}, &RankError{Who: r.who, Command: command, Text: err.Error()}
	}
	return a, nil
}

// howItEnded is said of a process that no longer answers, with the last line that it wrote.
func (r *rank) howItEnded() string {
	_ = r.in.Close()
	select {
	case <-r.ended:
	case <-time.After(endGrace):
		return "it no longer answers"
	}
	text := r.cmd.ProcessState.String() // "signal: killed", "exit status 71"
	if last := r.output.last(); last != "" {
		text += ": " + last
	}
	return "it ended: " + text
}

// end lets the process end, and kills it if it does not.
func (r *rank) end() {
	_ = r.in.Close()
	select {
	case <-r.ended:
	case <-time.After(endGrace):
		_ = r.cmd.Process.Kill()
		<-r.ended
	}
	_ = r.closer.Close()
}

// answer is what a process answers: "ok key=value …", or "ok {…}".
type answer struct {
	values map[string]string
	json   string
}

func parseAnswer(line string) (answer, error) {
	word, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
	switch word {
	case "ok":
	case "error":
		return answer{}, errors.New(rest)
	default:
		return answer{}, fmt.Errorf("unexpected answer %q", line)
	}
	if strings.HasPrefix(rest, "{") {
		return answer{json: rest}, nil
	}
	a := answer{values: map[string]string{}}
	for _, field := range strings.Fields(rest) {
		key, text, ok := strings.Cut(field, "=")
		if !ok {
			return answer{}, fmt.Errorf("unexpected answer %q", line)
		}
		a.values[key] = text
	}
	return a, nil
}

// numbers are the values of some keys, all of which must be there.
func (a answer) numbers(keys ...string) ([]float64, error) {
	out := make([]float64, len(keys))
	for i, key := range keys {
		v, err := strconv.ParseFloat(a.values[key], 64)
		if err != nil {
			return nil, fmt.Errorf("the answer %v has no number %s", a.values, key)
		}
		out[i] = v
	}
	return out, nil
}

// measure sends a command and returns numbers of the answer.
func (r *rank) measure(command string, keys ...string) ([]float64, error) {
	a, err := r.call("%s", command)
	if err != nil {
		return nil, err
	}
	out, err := a.numbers(keys...)
	if err != nil {
		return nil, &RankError{Who: r.who, Command: command, Text: err.Error()}
	}
	return out, nil
}

// status is what bench reads of ebb_status. A pointer is null where the library does not say it.
type status struct {
	Device       string   `json:"device"`
	Driver       int      `json:"driver_version"`
	StagingBytes uint64   `json:"staging_bytes"`
	Workers      int      `json:"workers"`
	BlockBytes   uint64   `json:"block_bytes"`
	LastPause    *outcome `json:"last_pause"`
	LastResume   *outcome `json:"last_resume"`
	Probes       []way    `json:"probes"`
	Disk         struct {
		Files  int  `json:"files"`
		Direct bool `json:"direct_io"`
	} `json:"disk"`
}

// way is how ebb moves bytes, as it found out.
type way struct {
	Operation string  `json:"operation"` // pause or resume
	Workers   int     `json:"workers"`
	Snapshot  bool    `json:"snapshot"`
	Trials    []Trial `json:"trials"`
}

// ways are those by operation.
func (s status) ways() map[string]way {
	ways := map[string]way{}
	for _, w := range s.Probes {
		ways[w.Operation] = w
	}
	return ways
}

type outcome struct {
	HostBytes     uint64   `json:"host_bytes"`
	DiskBytes     uint64   `json:"disk_bytes"`
	Seconds       float64  `json:"seconds"`
	Workers       int      `json:"workers"`
	SkippedZero   *uint64  `json:"skipped_zero_bytes"`
	SkippedUnused *uint64  `json:"skipped_unused_bytes"`
	SkippedSame   *uint64  `json:"skipped_same_bytes"`
	Checks        *float64 `json:"check_seconds"`

	Phases map[string]float64 `json:"phases"` // seconds of each
}

func (r *rank) status() (status, error) {
	var s status
	a, err := r.call("status")
	if err != nil {
		return s, err
	}
	if err := json.Unmarshal([]byte(a.json), &s); err != nil {
		return s, &RankError{Who: r.who, Command: "status", Text: fmt.Sprintf("ebb_status cannot be read: %v", err)}
	}
	return s, nil
}

// tail keeps the end of what a process writes.
type tail struct {
	mu   sync.Mutex
	text []byte
}

const tailBytes = 4096

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, p...)
	if n := len(t.text); n > tailBytes {
		t.text = append([]byte(nil), t.text[n-tailBytes:]...)
	}
	return len(p), nil
}

// last is the last line that is not empty.
func (t *tail) last() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	lines := strings.Split(strings.TrimSpace(string(t.text)), "\n")
	return strings.TrimSpace(lines[len(lines)-1])
}
