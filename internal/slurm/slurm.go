// Package slurm reaches the nodes of a running Slurm job, through Slurm's own commands.
//
//	job.go     which jobs and nodes a name such as 1234_5 means: squeue, scontrol
//	step.go    one task on each node: srun --overlap, and what is done when a node is lost
//	frame.go   how tasks answer: short lines, so that the answers of many are told apart. Pure
//	member.go  whether a process is of a job
//
// Nothing of Slurm is linked. A node that says nothing is named and holds up nobody for longer than
// Step.Patience; what is kept of a node's answer is bounded.
package slurm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"
)

// Kind is what an Error means for the caller.
type Kind int

// The kinds of an Error.
const (
	Wrong      Kind = iota // what was asked for: no such job, another user's, Slurm is not here
	NotRunning             // the job is there, and none of its processes runs
	Unknown                // Slurm does not tell
)

// Error is why a job cannot be reached. Its text is one line with the remedy.
type Error struct {
	Kind Kind
	Text string
	Err  error // the cause, or nil
}

func (e *Error) Error() string { return e.Text }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

func errorf(kind Kind, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	return &Error{Kind: kind, Text: strings.Join(strings.Fields(err.Error()), " "), Err: errors.Unwrap(err)}
}

// maxOutput is more than squeue and scontrol say of the largest job, in bytes.
const maxOutput = 4 << 20

// answerTime is how long such a command may take: longer than Slurm itself waits for its controller.
var answerTime = time.Minute

// output runs a command of Slurm and returns what it prints.
func output(ctx context.Context, name string, args ...string) (string, error) {
	path, err := find(name)
	if err != nil {
		return "", err
	}
	var out, complaint limited
	within, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	cmd := exec.CommandContext(within, path, args...)
	cmd.WaitDelay = time.Second
	cmd.Env = environ(os.Environ())
	cmd.Stdout, cmd.Stderr = &out, &complaint
	err = cmd.Run()
	if out.cut {
		return "", fmt.Errorf("%s: it says more than %d bytes", name, maxOutput)
	}
	if err != nil {
		if ctx.Err() != nil {
			return "", context.Cause(ctx)
		}
		if within.Err() != nil {
			return "", fmt.Errorf("%s: no answer in %v", name, answerTime)
		}
		return "", fmt.Errorf("%s: %w: %s", name, err, oneLine(complaint.String()))
	}
	return out.String(), nil
}

// find finds a command of Slurm.
func find(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err != nil {
		return "", errorf(Wrong, "%s is not in PATH: run ebb on a node where Slurm's commands are, or load their module (%w)", name, err)
	}
	return path, nil
}

// environ is the environment for Slurm's commands: without the variables of a job around this process and of the user,
// which the commands would take for options, but with those that say which Slurm it is, and the token for it.
func environ(all []string) []string {
	return slices.DeleteFunc(slices.Clone(all), func(entry string) bool {
		name, _, _ := strings.Cut(entry, "=")
		switch name {
		case "SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS", "SLURM_JWT":
			return false
		}
		return slices.ContainsFunc([]string{"SLURM_", "SLURMD_", "SRUN_", "SQUEUE_", "SCONTROL_"}, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
	})
}

// limited keeps the first maxOutput bytes that are written to it. (It has no ReadFrom, which would keep all.)
type limited struct {
	kept []byte
	cut  bool // there were more
}

func (l *limited) Write(p []byte) (int, error) {
	room := maxOutput - len(l.kept)
	l.cut = l.cut || len(p) > room
	l.kept = append(l.kept, p[:min(len(p), room)]...)
	return len(p), nil
}

func (l *limited) String() string { return string(l.kept) }

func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }
