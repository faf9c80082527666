package doctor

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/ebb-offload/ebb/internal/launch"
)

// A call that hangs in the kernel, to a disk or a driver, cannot be ended, and a process with such a call
// cannot end either. So what may hang is looked at by a child, which writes each answer when it has it. The
// child that hangs is killed, which takes effect when the kernel lets it, and nobody waits for it.

// Verb is the hidden verb of ebb by which a child looks.
const Verb = "doctor-look"

// Names of the parts, the first argument of Verb.
const (
	partPreload = "preload"
	partDevice  = "device"
	partDisk    = "disk"
	partRate    = "rate"
	partProcess = "process"
	partBare    = "bare"
)

// ErrPart is that there is no such part.
var ErrPart = errors.New("no such part of ebb doctor")

// step is one line from the child: the findings of one check.
type step struct {
	Findings []Finding `json:"findings"`
}

// Look is the child's side: it makes the checks of a part and writes what it finds.
func Look(ctx context.Context, out io.Writer, environ, args []string) error {
	x := examination{system: system{root: "/"}, getenv: launch.Lookup(environ), o: Options{Environ: environ}}
	p, err := x.part(args)
	if err != nil {
		return err
	}
	lines := json.NewEncoder(out)
	for _, c := range p.checks {
		if err := lines.Encode(step{p.make(ctx, c, time.Hour)}); err != nil {
			return fmt.Errorf("write what was found: %w", err)
		}
	}
	return nil
}

func (x examination) part(args []string) (part, error) {
	if len(args) < 2 {
		return part{}, ErrPart
	}
	flag := len(args) > 2 && args[2] == "true"
	switch args[0] {
	case partPreload:
		x.o.Libraries.Preload = args[1]
		return x.preload(), nil
	case partDevice:
		return x.driver(args[1], flag), nil
	case partDisk:
		return x.disk(args[1], flag), nil
	case partRate:
		return x.rate(args[1]), nil
	case partBare:
		return x.bare(args[1]), nil
	case partProcess:
		pid, err := strconv.Atoi(args[1])
		if err == nil && len(args) > 2 {
			x.o.Libraries.Preload = args[2]
			return x.process(pid), nil
		}
	}
	return part{}, ErrPart
}

// inChild has a child make the checks of a part. limit is for each.
func (x examination) inChild(ctx context.Context, p part, limit time.Duration, environ []string, args ...string) []Finding {
	cmd := x.o.Self(append([]string{Verb}, args...)...)
	cmd.Env = environ
	found, made, err := converse(ctx, cmd, limit)
	if made >= len(p.checks) {
		return found
	}
	var last Finding
	switch {
	case err == nil:
		return found
	case errors.Is(err, errNoAnswer):
		last = p.noAnswer(limit)
	default:
		last = fail("look at dmesg; if it is a defect in ebb, please report it", "%s", errorText(err))
	}
	found = append(found, Finding{Theme: p.theme, Check: p.checks[made].name}.with(last))
	return append(found, p.unanswered(made+1, "not looked at: the check above did not end")...)
}

// errNoAnswer is that a child hangs.
var errNoAnswer = errors.New("no answer")

// converse reads what a child finds. made is how many checks it answered; the error is why it answered no
// more.
func converse(ctx context.Context, cmd *exec.Cmd, limit time.Duration) (found []Finding, made int, why error) {
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, 0, fmt.Errorf("start a process that looks: %w", err)
	}
	steps, ended := make(chan step), make(chan error, 1)
	quit := make(chan struct{})
	defer close(quit)
	go func() {
		lines := bufio.NewReader(out)
		for {
			line, err := lines.ReadBytes('\n')
			if err != nil {
				break
			}
			var s step
			if json.Unmarshal(line, &s) != nil {
				continue
			}
			select {
			case steps <- s:
			case <-quit:
				_ = cmd.Wait() // for as long as the kernel holds it
				return
			}
		}
		ended <- cmd.Wait()
	}()
	patience := time.NewTimer(limit)
	defer patience.Stop()
	for {
		select {
		case s := <-steps:
			made++
			found = append(found, s.Findings...)
			patience.Reset(limit)
		case err := <-ended:
			return found, made, death(err, said.String())
		case <-patience.C:
			_ = cmd.Process.Kill()
			return found, made, errNoAnswer
		case <-ctx.Done():
			_ = cmd.Process.Kill()
			return found, made, fmt.Errorf("given up: %w", context.Cause(ctx))
		}
	}
}

// death says how a child ended before its time.
func death(err error, said string) error {
	if err == nil {
		return nil
	}
	if first, _, _ := strings.Cut(strings.TrimSpace(said), "\n"); first != "" {
		return fmt.Errorf("the process that looked ended: %w: %s", err, first)
	}
	return fmt.Errorf("the process that looked ended: %w", err)
}
