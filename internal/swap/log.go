package swap

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ebb-offload/ebb/internal/control"
)

// Operations in an event log, beside the ranks' pause and resume.
const (
	OperationToRollout = "to_rollout"
	OperationToTrain   = "to_train"
)

// Phases in an event log: what ended. Between the end of an engine_wake and the begin of the next to_train is a
// rollout.
const (
	PhasePause  = "pause"        // of one rank, whose Who it has
	PhaseResume = "resume"       // likewise
	PhaseMemory = "memory"       // a device was measured: Bytes of Total are free; Role is "device", Rank its name
	PhaseSleep  = "engine_sleep" // of one engine: Role is "engine", Rank its address
	PhaseWake   = "engine_wake"
)

// Log is the event log of the hand-overs of one job: lines as ranks write them (control.Event). Failures to
// write are told once, and are in nobody's way. Its methods may be called on nil.
type Log struct {
	file *os.File
	job  string
	host string
	op   string
	seq  uint64
	warn func(string)

	unsure bool // whether the last line has an end
}

// OpenLog opens <dir>/<job>__swap.jsonl; job may be empty. Each hand-over is a process, so the file is added to.
func OpenLog(dir, job string, warn func(string)) (*Log, error) {
	name := job
	if name == "" {
		name = "node"
	}
	if strings.ContainsAny(name, "/\x00") || strings.HasPrefix(name, ".") {
		return nil, fmt.Errorf("the job's name %q cannot be part of a file's name", name)
	}
	path := filepath.Join(dir, name+"__swap.jsonl")
	// O_NONBLOCK: a pipe that nobody reads is an error, and no wait.
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_APPEND|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open event log %s: %w", path, err)
	}
	host, err := os.Hostname()
	if err != nil {
		host = ""
	}
	return &Log{file: os.NewFile(uintptr(fd), path), job: job, host: host, warn: warn, unsure: true}, nil
}

// Close closes the file.
func (l *Log) Close() error {
	if l == nil {
		return nil
	}
	return l.file.Close()
}

func (l *Log) begin(o Options) {
	if l == nil {
		return
	}
	l.op = OperationToRollout
	if o.To == ToTrain {
		l.op = OperationToTrain
	}
	l.write(control.Event{Kind: control.EventBegin, Tags: o.Tags})
}

// step writes a step that did something.
func (l *Log) step(s Step) {
	if l == nil || s.Already {
		return
	}
	e := control.Event{Kind: control.EventPhase, Bytes: s.Bytes, Total: s.Total, Seconds: s.Seconds, Error: s.Error}
	switch s.Step {
	case StepEngine:
		e.Phase = PhaseWake
		if l.op == OperationToTrain {
			e.Phase = PhaseSleep
		}
		e.Role, e.Rank = "engine", s.What
	case StepRank:
		e.Phase = PhasePause
		if l.op == OperationToTrain {
			e.Phase = PhaseResume
		}
		if s.Who != nil {
			e.Who = *s.Who
		}
	case StepMemory:
		e.Phase = PhaseMemory
		e.Role, e.Rank = "device", s.What
	}
	l.write(e)
}

func (l *Log) end(r Report) {
	if l == nil {
		return
	}
	outcome, err := json.Marshal(struct {
		OK     bool   `json:"ok"`
		Moved  bool   `json:"moved"`
		Stands string `json:"stands,omitempty"`
	}{r.OK, r.Moved, r.Stands})
	if err != nil {
		outcome = nil
	}
	l.write(control.Event{Kind: control.EventEnd, Seconds: r.Seconds, Outcome: outcome, Error: r.Error})
}

// write appends one line with one write, so that those of several processes never mix.
func (l *Log) write(e control.Event) {
	l.seq++
	e.V, e.Time, e.Seq, e.Host, e.Operation, e.By = control.Version, time.Now(), l.seq, l.host, l.op, "control"
	if e.PID == 0 {
		e.Job, e.PID = l.job, os.Getpid()
	}
	line, err := control.Encode(e)
	if err == nil {
		if l.unsure && control.Torn(l.file.Name()) {
			line = append([]byte{'\n'}, line...)
		}
		_, err = l.file.Write(line)
		l.unsure = err != nil
	}
	if err != nil && l.warn != nil {
		l.warn(fmt.Sprintf("the event log %s cannot be written: %v", l.file.Name(), err))
		l.warn = nil
	}
}
