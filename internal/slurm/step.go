package slurm

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Step is one task on each of some nodes of a job, which answers by a Writer.
type Step struct {
	Part     Part
	Nodes    []string // of the job, each once
	Command  []string
	Patience time.Duration // a node that has said nothing for so long is lost
}

// Heartbeat is how often tasks say that they are there.
const Heartbeat = 2 * time.Second

// Patience is that of a Step unless it is told otherwise.
const Patience = 30 * time.Second

// Withdraw is the signal that srun passes on to its tasks: to give up what has not begun.
const Withdraw = syscall.SIGUSR1

// maxRounds is how often a step is started at most. Each round but the first follows the loss of a node.
const maxRounds = 5

// Run starts the step and returns the answers, by node, and why there is none of others. Slurm ends all tasks of a
// step when it finds that one node is lost, whatever the others do at the time. So those that had begun to speak are asked
// again, without the lost one. When ctx ends the tasks get Withdraw, and their answers are waited for.
//
// The command may so run twice on a node.
func (s Step) Run(ctx context.Context) (found map[string][]byte, lost map[string]string, err error) {
	path, err := find("srun")
	if err != nil {
		return nil, nil, err
	}
	found, lost = map[string][]byte{}, map[string]string{}
	if ctx.Err() != nil {
		return nil, nil, context.Cause(ctx)
	}
	pending, mute := s.Nodes, map[string]string{} // mute: said nothing in a round that others spoke in
	for round := 1; len(pending) > 0; round++ {
		o := s.once(ctx, path, pending)
		var again []string
		for _, node := range pending {
			switch said := o.said.of[node]; {
			case said.whole:
				found[node] = said.text
			case said.err != nil:
				lost[node] = said.err.Error()
			case o.late[node]:
				lost[node] = fmt.Sprintf("it has said nothing for %v", s.Patience)
			case said.heard:
				again = append(again, node)
				lost[node] = o.why
			case round == 1 && len(o.said.spoke()) > 0 && !o.blames(node):
				mute[node] = o.why
			default:
				lost[node] = o.why
			}
		}
		if len(again) == 0 { // those that were mute among others may have been kept from starting by another's loss
			for _, node := range s.Nodes {
				if _, ok := mute[node]; ok {
					again = append(again, node)
					lost[node] = mute[node]
				}
			}
			clear(mute)
		}
		if ctx.Err() != nil || round == maxRounds {
			break
		}
		for _, node := range again {
			delete(lost, node)
		}
		pending = again
	}
	for node, why := range mute {
		lost[node] = why
	}
	return found, lost, nil
}

// spoke are the nodes that said anything.
func (a *answers) spoke() (nodes []string) {
	for node, s := range a.of {
		if s.heard {
			nodes = append(nodes, node)
		}
	}
	return nodes
}

// outcome is what came of one srun.
type outcome struct {
	said *answers
	late map[string]bool // were given up
	why  string          // the step ended without the others' answers
}

// blames reports whether srun named a node when it ended the step.
func (o outcome) blames(node string) bool {
	return slices.Contains(strings.FieldsFunc(o.why, func(r rune) bool { return !nodeForm.MatchString("x" + string(r)) }), node)
}

// args are those of srun.
func (s Step) args(nodes []string) []string {
	n := strconv.Itoa(len(nodes))
	job, component := s.Part.leader()
	var of []string
	if component >= 0 {
		of = []string{"--het-group=" + strconv.Itoa(component)}
	}
	return slices.Concat(of, []string{
		"--jobid=" + job, "--overlap", "--nodes=" + n, "--ntasks=" + n, "--ntasks-per-node=1", "--nodelist=" + strings.Join(nodes, ","),
		"--input=none", "--mpi=none", "--kill-on-bad-exit=0", "--wait=0", "--chdir=/", "--job-name=ebb",
	}, s.Command)
}

// once runs srun once.
func (s Step) once(ctx context.Context, path string, nodes []string) outcome {
	o := outcome{said: newAnswers(nodes), late: map[string]bool{}}
	// The signal at the parent's death comes when the thread that started the process ends, so this thread stays.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	complaints := &tail{}
	cmd := exec.Command(path, s.args(nodes)...)
	cmd.Env = environ(os.Environ())
	cmd.Stderr = complaints
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	cmd.WaitDelay = time.Second
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		o.why = "srun could not be started: " + oneLine(err.Error())
		return o
	}
	lines, ended := make(chan []byte), make(chan error, 1)
	go readLines(out, lines)
	s.listen(ctx, cmd.Process, lines, &o)
	go func() { ended <- cmd.Wait() }()
	select {
	case err = <-ended:
	case <-time.After(s.Patience):
		_ = cmd.Process.Kill() // it ends the step, and then waits for a node that is lost
		err = <-ended
	}
	o.why = "the step ended without its answer"
	if text := complaints.text(); text != "" {
		o.why += ": " + text
	} else if err != nil {
		o.why += ": srun: " + oneLine(err.Error())
	}
	return o
}

// listen takes what the tasks say until all have answered or are given up, or srun has closed its output.
func (s Step) listen(ctx context.Context, srun *os.Process, lines <-chan []byte, o *outcome) {
	tick := time.NewTicker(min(time.Second, s.Patience/4))
	defer tick.Stop()
	for giveUp := ctx.Done(); ; {
		select {
		case line, more := <-lines:
			if !more {
				return
			}
			if said := o.said.take(line); said == nil || !said.over() {
				continue
			}
		case <-giveUp:
			giveUp = nil
			_ = srun.Signal(Withdraw)
			continue
		case <-tick.C:
		}
		if s.open(o) > 0 {
			continue
		}
		if len(o.late) > 0 {
			_ = srun.Signal(syscall.SIGTERM)
		}
		drain(lines)
		return
	}
}

// open counts those that are waited for, and gives up those that have been silent for too long.
func (s Step) open(o *outcome) (n int) {
	for node, said := range o.said.of {
		switch {
		case said.over() || o.late[node]:
		case time.Since(said.last) > s.Patience:
			o.late[node] = true
		default:
			n++
		}
	}
	return n
}

// drain lets the reader of lines come to its end.
func drain(lines <-chan []byte) {
	go func() {
		for range lines { //nolint:revive // nobody needs them
		}
	}()
}

// readLines sends each line without its end. Lines that are too long for ebb's are left out.
func readLines(in io.Reader, lines chan<- []byte) {
	defer close(lines)
	r := bufio.NewReaderSize(in, maxLine)
	for {
		line, err := r.ReadSlice('\n')
		whole := err == nil
		if whole {
			lines <- bytes.Clone(bytes.TrimSuffix(line, []byte("\n")))
			continue
		}
		for errors.Is(err, bufio.ErrBufferFull) {
			_, err = r.ReadSlice('\n')
		}
		if err != nil {
			return
		}
	}
}

// tail keeps the end of what srun complains about, in bounds.
type tail struct{ last []byte }

const maxTail = 2048

func (t *tail) Write(p []byte) (int, error) {
	t.last = append(t.last, p...)
	if n := len(t.last) - maxTail; n > 0 {
		t.last = slices.Delete(t.last, 0, n)
	}
	return len(p), nil
}

// text is the end of it on one line.
func (t *tail) text() string {
	var lines []string
	for line := range strings.Lines(string(t.last)) {
		line = strings.TrimPrefix(strings.TrimSpace(line), "srun: ")
		line = strings.TrimPrefix(line, "error: ")
		if line != "" && !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines[:min(len(lines), 3)], "; ")
}
