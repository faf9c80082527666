package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/ebb-offload/ebb/internal/control"
	"github.com/ebb-offload/ebb/internal/launch"
	"github.com/ebb-offload/ebb/internal/node"
)

// pauseTimeout is how long a pause waits for safe points unless it is told otherwise.
const pauseTimeout = time.Minute

func newPause() *cobra.Command {
	o := operationFlags{cmd: control.CmdPause, timeout: pauseTimeout}
	cmd := &cobra.Command{
		Use:   "pause",
		Short: "Take the GPU memory of running ranks off the GPU",
		Long: `Pauses the ranks that are meant, all at the same time. A rank pauses at its next safe point
(ebb_safe_point, or while it is idle: abi/ebb.h). Nothing forces it: one that has not reached a safe
point by the deadline is left as it is, and named. The pause is done when the driver shows the
memory free on every rank.

Ends with 0 when it is done, with 1 when a rank refused or failed, with 3 when no rank is running,
and with 4 when a rank was late. After a failure the command that ebb prints brings the others
back. Ctrl-C withdraws what has not begun, and waits for what has; a second one does not wait.`,
		Example: `  ebb pause
  ebb pause --role actor --timeout 5m
  ebb pause --tag weights --tag kv
  ebb pause --slurm 1234`,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	return o.command(cmd, "1m", "how long to wait for safe points: seconds, or a time such as 90s or 5m")
}

// operationFlags are a pause or resume as the command line asks for it.
type operationFlags struct {
	cmd     string
	ranks   rankFlags
	tags    []string
	timeout time.Duration // negative: what each rank has as its own

	given []string // tags, as they were given
}

// command adds what both verbs have.
func (o *operationFlags) command(cmd *cobra.Command, timeout, usage string) *cobra.Command {
	cmd.Args = noArgs
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error { return fromEnvironment(cmd) }
	o.flags(cmd.Flags(), timeout, usage)
	o.ranks.addSlurm(cmd.Flags())
	return cmd
}

func (o *operationFlags) flags(f *pflag.FlagSet, timeout, usage string) {
	f.Var(&value{kind: "TAG", parse: func(text string) error {
		err := words(&o.tags)(text)
		if err == nil {
			o.given = append(o.given, "--tag", text)
		}
		return err
	}}, "tag", "only memory of this tag, or of several with commas (default all)")
	f.Var(&value{text: timeout, kind: "TIME", parse: into(&o.timeout, launch.ParseTime)}, "timeout", usage)
	o.ranks.add(f)
}

// run does it on all ranks that are meant.
func (o *operationFlags) run(ctx context.Context) error {
	outliveReaders()
	ctx, stop := untilFirstSignal(ctx, o.cmd)
	defer stop()
	if o.ranks.slurm != "" {
		return o.onJob(ctx)
	}
	found, err := o.ranks.find(ctx)
	if err == nil {
		err = o.knowTags(ctx, found)
	}
	if err != nil {
		return ended(ctx, err)
	}
	now, board := newLive(found.ranks), newBoard(os.Stderr)
	over := now.show(board)
	report := node.Operation{Cmd: o.cmd, Tags: o.tags, Timeout: o.timeout, Event: now.event}.Run(ctx, found.ranks)
	over()
	for _, s := range found.silent {
		report.Outcomes = append(report.Outcomes, unanswered(s))
	}
	return o.tell(ctx, report)
}

// knowTags refuses a tag that no rank has. Where a rank does not answer, it may have it.
func (o *operationFlags) knowTags(ctx context.Context, f found) error {
	if len(o.tags) == 0 || len(f.silent) > 0 {
		return nil
	}
	if err := node.KnowTags(node.StatusOf(ctx, f.ranks, node.Patience), o.tags); err != nil {
		return launch.Usagef("%w: give one that is there, or none for everything", err)
	}
	return nil
}

// unanswered is the outcome of a rank that did not say who it is.
func unanswered(s node.Silent) node.Outcome {
	out := node.Outcome{Rank: node.Rank{Who: s.Who, Socket: s.Socket}, State: node.Failed, Err: &control.Error{Code: 1, Message: s.Why}}
	if s.Late {
		out.State, out.Err.Code = node.Late, 18
	}
	return out
}

// untilFirstSignal is a context that the first of the signals which end a program ends; its cause is a signalError. The
// second one ends the program.
func untilFirstSignal(ctx context.Context, cmd string) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	go func() {
		select {
		case s := <-signals:
			signal.Stop(signals)
			if number, ok := s.(syscall.Signal); ok {
				say(fmt.Sprintf("the %s is withdrawn where it has not begun; waiting for the other ranks (once more: not waiting)", cmd))
				cancel(signalError(number))
			}
		case <-ctx.Done():
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		cancel(nil)
	}
}

// operationResult is what ebb pause --json and ebb resume --json print.
type operationResult struct {
	MessageType string `json:"message_type"`
	OK          bool   `json:"ok"`
	node.Report
	GoBack string `json:"go_back,omitempty"` // a command that resumes what a failed pause paused
}

// tell prints the report and turns it into ebb's own status.
func (o *operationFlags) tell(ctx context.Context, report node.Report) error {
	result := operationResult{MessageType: o.cmd, OK: report.OK(), Report: report}
	if o.cmd == control.CmdPause && !result.OK && moved(report) > 0 {
		result.GoBack = o.goBack()
	}
	if o.ranks.asJSON {
		if err := printJSON(result); err != nil {
			return err
		}
	} else {
		printReport(stdout, report)
	}
	for _, out := range report.Outcomes {
		if out.Note != "" {
			say(fmt.Sprintf("%s is paused: %s", node.FullName(out.Who), out.Note))
		}
		if out.State != node.Done {
			say(fmt.Sprintf("%s %s: %s", node.FullName(out.Who), inWords(out), out.Err.Message))
		}
	}
	switch n := moved(report); {
	case result.OK:
		return nil
	case result.GoBack != "":
		say(fmt.Sprintf("%d of %s paused; to bring them back: %s", n, launch.Count(len(report.Outcomes), "rank"), result.GoBack))
	case o.cmd == control.CmdPause:
		say("no rank was paused: those that still run go on as before")
	default:
		say("what is not resumed stays paused, with all its bytes: once that is mended, repeat the command; ranks that are done have nothing to do then")
	}
	var signal signalError
	switch {
	case errors.As(context.Cause(ctx), &signal):
		return statusError(128 + int(signal))
	case len(report.Failed()) > 0:
		return statusError(statusFailed)
	}
	return statusError(statusLate)
}

// moved counts the ranks that the operation did something on, or found as they should be.
func moved(r node.Report) (n int) {
	for _, out := range r.Outcomes {
		if out.State == node.Done || out.Done != nil && out.Done.Allocations > 0 {
			n++
		}
	}
	return n
}

// goBack is the command that resumes what was meant to be paused.
func (o *operationFlags) goBack() string {
	command := []string{"ebb resume"}
	if o.ranks.slurm != "" {
		command = append(command, "--slurm "+string(o.ranks.slurm))
	}
	for _, w := range append(slices.Clone(o.given), o.ranks.words()...) {
		command = append(command, quoted(w))
	}
	return strings.Join(command, " ")
}

// inWords is the state of an outcome.
func inWords(out node.Outcome) string {
	switch out.State {
	case node.Late:
		return "is late"
	case node.Gone:
		return "is gone"
	case node.Withdrawn:
		return "was left as it is"
	}
	return "failed"
}

// printReport has a row for each rank, and a line for all.
func printReport(w io.Writer, r node.Report) {
	var all control.Done
	slowest := 0.0
	largest := uint64(0)
	known := true
	for _, out := range r.Outcomes {
		known = known && out.Note == ""
		if d := out.Done; d != nil {
			all.Bytes += d.Bytes
			slowest, largest = max(slowest, d.Seconds), max(largest, d.Bytes)
		}
	}
	unit := unitFor(largest)
	t := &table{left: []bool{true, false, true}}
	t.row("RANK", "PID", "RESULT", unit.name, "host", "disk", "skip", "s", "GB/s", "waited s")
	for _, out := range r.Outcomes {
		row := []string{node.ShortName(out.Who), strconv.Itoa(out.PID), string(out.State)}
		if d := out.Done; d != nil {
			rate := "-"
			if d.Seconds > 0 {
				rate = short(float64(d.Bytes) / 1e9 / d.Seconds)
			}
			row = append(row, unit.of(d.Bytes), unit.of(d.HostBytes), unit.of(d.DiskBytes), unit.of(d.SkippedZero+d.SkippedSame), short(d.Seconds), rate, short(d.Waited))
		}
		t.row(row...)
	}
	fit(t)
	for _, line := range t.lines() {
		fmt.Fprintln(w, line)
	}
	if !r.OK() {
		return
	}
	text := fmt.Sprintf("%s done on %s in %s s", r.Operation, launch.Count(len(r.Outcomes), "rank"), short(r.Seconds))
	if slowest > 0 {
		text += fmt.Sprintf(", %s GB/s", short(float64(all.Bytes)/1e9/slowest))
	}
	text += whatMoved(r.Operation, all.Bytes, known, "the GPU")
	for _, line := range wrap(text, "    ") {
		fmt.Fprintln(w, line)
	}
}

// whatMoved says at the end of a pause or a resume what it did, to one GPU or several. known: the driver showed the memory
// free.
func whatMoved(operation string, bytes uint64, known bool, gpu string) string {
	switch {
	case bytes == 0:
		return ": there was nothing to do"
	case operation == control.CmdPause && known:
		return fmt.Sprintf(": %s off %s, as the driver says", both(bytes), gpu)
	case operation == control.CmdPause:
		return fmt.Sprintf(": %s off %s, though it is not known whether all of it is free", both(bytes), gpu)
	}
	return fmt.Sprintf(": %s back on %s", both(bytes), gpu)
}
