package slurm

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"
)

// srun puts what its tasks print into one stream, line by line, where lines are short. So a task answers in lines
// such as these, each with the name of its node:
//
//	ebb1 node3 .            it is there: first of all, and then every few seconds
//	ebb1 node3 + PIECE      the next piece of its answer
//	ebb1 node3 = BYTES      the answer is whole, and so long
//
// Other lines are not ebb's: of a site's scripts for tasks.

const (
	frameMark = "ebb1"
	maxPiece  = 600     // bytes of an answer in a line; srun keeps lines of up to 1024 whole
	maxLine   = 1024    // longer ones are nobody's
	maxAnswer = 4 << 20 // bytes that are kept of a node's answer
	maxAll    = 1 << 29 // and of all nodes' together
	maxNode   = 255     // bytes of a node's name
)

// Writer is the side of a task. Its methods may be called at the same time.
type Writer struct {
	one  sync.Mutex // guards out, over whole lines
	out  io.Writer
	node string
}

// NewWriter makes the writer of a node's task.
func NewWriter(out io.Writer, node string) (*Writer, error) {
	if !nodeForm.MatchString(node) || len(node) > maxNode {
		return nil, fmt.Errorf("SLURMD_NODENAME=%.200q is no name of a node", node)
	}
	return &Writer{out: out, node: node}, nil
}

// Alive says that the task is there.
func (w *Writer) Alive() error {
	w.one.Lock()
	defer w.one.Unlock()
	return w.line(".", nil)
}

// StayAlive says it now and every interval until the function that it returns is called.
func (w *Writer) StayAlive(interval time.Duration) (stop func()) {
	end, over := make(chan struct{}), make(chan struct{})
	_ = w.Alive() // that nobody listens the answer will find
	go func() {
		defer close(over)
		tick := time.NewTicker(interval)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				_ = w.Alive()
			case <-end:
				return
			}
		}
	}()
	return func() {
		close(end)
		<-over
	}
}

// Answer writes the whole answer, which has no line breaks.
func (w *Writer) Answer(text []byte) error {
	if bytes.ContainsAny(text, "\n\r") || len(text) > maxAnswer {
		return fmt.Errorf("an answer of %d bytes cannot be sent: it may have %d, on one line", len(text), maxAnswer)
	}
	w.one.Lock()
	defer w.one.Unlock()
	for rest := text; len(rest) > 0; {
		n := min(len(rest), maxPiece)
		if err := w.line("+", rest[:n]); err != nil {
			return err
		}
		rest = rest[n:]
	}
	return w.line("=", []byte(strconv.Itoa(len(text))))
}

// line writes a line in one write. Called with one held.
func (w *Writer) line(kind string, payload []byte) error {
	_, err := fmt.Fprintf(w.out, "%s %s %s %s\n", frameMark, w.node, kind, payload)
	return err
}

// answers are what tasks have said so far.
type answers struct {
	of  map[string]*said // by node: those that are asked
	all int              // bytes that are kept
}

// said is what one task has said.
type said struct {
	text  []byte
	heard bool
	whole bool
	err   error     // the answer cannot be used
	last  time.Time // when it last said anything, or was asked
}

// over reports whether nothing more is waited for.
func (s *said) over() bool { return s.whole || s.err != nil }

func newAnswers(nodes []string) *answers {
	a := &answers{of: make(map[string]*said, len(nodes))}
	for _, node := range nodes {
		a.of[node] = &said{last: time.Now()}
	}
	return a
}

var errBroken = errors.New("its answer came in part: something else writes to the output of its task")

// take takes a line, without its end, and tells whose it is; nil: of no task that is asked.
func (a *answers) take(line []byte) *said {
	rest, ours := bytes.CutPrefix(line, []byte(frameMark+" "))
	node, rest, ok1 := bytes.Cut(rest, []byte(" "))
	kind, payload, ok2 := bytes.Cut(rest, []byte(" "))
	s := a.of[string(node)]
	if !ours || !ok1 || !ok2 || s == nil {
		return nil
	}
	s.heard, s.last = true, time.Now()
	if s.over() {
		return s
	}
	switch string(kind) {
	case "+":
		if len(s.text)+len(payload) > maxAnswer {
			a.all -= len(s.text)
			s.text, s.err = nil, fmt.Errorf("its answer is longer than %d bytes", maxAnswer)
			return s
		}
		if a.all+len(payload) > maxAll {
			a.all -= len(s.text)
			s.text, s.err = nil, fmt.Errorf("the answers of all nodes are longer than %d bytes together: choose among the ranks", maxAll)
			return s
		}
		a.all += len(payload)
		s.text = append(s.text, payload...)
	case "=":
		n, err := strconv.Atoi(strings.TrimSpace(string(payload)))
		if s.whole = err == nil && n == len(s.text); !s.whole {
			a.all -= len(s.text)
			s.text, s.err = nil, errBroken
		}
	}
	return s
}
