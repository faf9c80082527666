package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// conductor is what a controller of such a job does: when all ranks are idle it hands the device over to the
// rollout engine, has it generate, hands the device back and lets the ranks go on.
type conductor struct {
	*demo
	events *eventPipe
	came   chan event    // "idle" of a rank, "engine" of the rollout engine
	ended  chan struct{} // closed when the ranks have ended
	tell   *os.File      // where rank 0 hears that a rollout has been made
}

// conduct does all cycles, or as many as the ranks come to.
func (c *conductor) conduct(ctx context.Context) error {
	if more, err := c.await(ctx, "engine", 0, 1); !more {
		return err
	}
	for cycle := 1; cycle <= c.Cycles; cycle++ {
		if more, err := c.await(ctx, "idle", cycle, c.Ranks); !more {
			return err
		}
		if err := c.handOver(ctx, cycle, "rollout", "pause"); err != nil {
			return err
		}
		if _, err := c.command(ctx, c.rollout("ask", c.dir, "generate")...); err != nil {
			return err
		}
		if err := c.handOver(ctx, cycle, "train", "resume"); err != nil {
			return err
		}
		if _, err := fmt.Fprintln(c.tell, cycle); err != nil {
			return fmt.Errorf("tell of rollout %d: %w", cycle, err)
		}
	}
	return nil
}

// await waits for so many events of a kind and cycle, and reports whether they came.
func (c *conductor) await(ctx context.Context, kind string, cycle, count int) (bool, error) {
	for count > 0 {
		select {
		case e := <-c.came:
			if e.Event == kind && e.Cycle == cycle {
				count--
			}
		case <-c.ended:
			return false, nil
		case <-ctx.Done():
			return false, context.Cause(ctx)
		}
	}
	return true, nil
}

// ranks is the job under ebb, as a task that says when it has ended.
func (c *conductor) ranks(ctx context.Context) error {
	defer close(c.ended)
	return c.parkedJob().run(ctx, c.output)
}

func (c *conductor) rollout(args ...string) []string {
	return append([]string{filepath.Join(c.Dist, "bin/demo-rollout")}, args...)
}

// handOver runs ebb swap, then asks for the ranks' state, and reports both as an event of each rank.
func (c *conductor) handOver(ctx context.Context, cycle int, to, operation string) error {
	var engine []string
	for _, w := range c.rollout("ask", c.dir) {
		engine = append(engine, quoted(w))
	}
	var swapped struct {
		Steps []struct {
			Step    string
			Seconds float64
			Who     struct{ Rank string }
		}
	}
	err := c.ebb(ctx, &swapped, "swap", "--to", to, "--engine-command", strings.Join(engine, " "), "--event-log", c.logDir())
	if err != nil {
		return err
	}
	var state struct {
		Ranks []struct {
			Rank   string
			Status *status
		}
	}
	if err := c.ebb(ctx, &state, "status"); err != nil {
		return err
	}
	for _, step := range swapped.Steps {
		if step.Step != "rank" {
			continue
		}
		e := event{Event: operation, Cycle: cycle, Seconds: step.Seconds}
		if e.Rank, err = strconv.Atoi(step.Who.Rank); err != nil {
			return fmt.Errorf("ebb swap tells of a rank %q", step.Who.Rank)
		}
		for _, rank := range state.Ranks {
			if rank.Rank == step.Who.Rank {
				e.Status = rank.Status
			}
		}
		if err := c.events.write(e); err != nil {
			return err
		}
	}
	return nil
}

// ebb runs a verb on the ranks of this demo and takes its JSON.
func (c *conductor) ebb(ctx context.Context, answer any, verb ...string) error {
	args := append([]string{filepath.Join(c.Dist, "bin/ebb")}, verb...)
	text, err := c.command(ctx, append(args, "--job", c.node, "--runtime-dir", c.runtimeDir(), "--disk-dir", c.diskDir(), "--json")...)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, answer); err != nil {
		return fmt.Errorf("ebb %s --json: %w", verb[0], err)
	}
	return nil
}

// command runs a program to its end and returns what it prints. Its complaints go to the demo's output.
func (c *conductor) command(ctx context.Context, args ...string) ([]byte, error) {
	var stdout bytes.Buffer
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = append(os.Environ(), c.device()...)
	cmd.Stdout, cmd.Stderr = &stdout, c.output
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = stopGrace
	if err := cmd.Run(); err != nil {
		name := filepath.Base(args[0]) + " " + args[1]
		var exit *exec.ExitError
		if errors.As(err, &exit) && ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return stdout.Bytes(), nil
}

// quoted is a word as a shell takes it.
func quoted(w string) string { return "'" + strings.ReplaceAll(w, "'", `'\''`) + "'" }

// writeReport makes a page of what the job logged, in the folder that the demo works in, and returns its path.
func (c *conductor) writeReport(ctx context.Context) (string, error) {
	page := filepath.Join(c.Base, "demo-report.html")
	_, err := c.command(ctx, filepath.Join(c.Dist, "bin/ebb"), "report", "--event-log", c.logDir(), "--output", page)
	return page, err
}

// concerns reports whether an event is for the conductor.
func concerns(e event) bool { return slices.Contains([]string{"idle", "engine"}, e.Event) }
