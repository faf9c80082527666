package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/ebb-offload/ebb/internal/control"
	"github.com/ebb-offload/ebb/internal/launch"
	"github.com/ebb-offload/ebb/internal/node"
	"github.com/ebb-offload/ebb/internal/rollout"
	"github.com/ebb-offload/ebb/internal/swap"
)

// swapTimeout is how long a hand-over may take unless --timeout says so.
const swapTimeout = 10 * time.Minute

// swapFlags are those of ebb swap.
type swapFlags struct {
	ranks     rankFlags
	options   swap.Options
	tokenFile string
	eventLog  string
	wrong     error    // with an address
	given     []string // flags but --to, as words, to repeat them in another command
}

func newSwap() *cobra.Command {
	s := swapFlags{options: swap.Options{
		Kind: rollout.KindAuto, Timeout: swapTimeout, Settings: rollout.Settings{Level: 1},
	}}
	cmd := &cobra.Command{
		Use:   "swap --to rollout|train --engine URL",
		Short: "Hand the GPU's memory over between training ranks and rollout engine",
		Long: `Hands the memory of the GPUs over. To rollout: all ranks are paused, and when the driver shows that
their memory is free the engine is woken. To train: the engine is put to sleep, and when its memory
is free (not only when it says so) the ranks are resumed. The ranks take part at their safe points.

It can be repeated at any time: what is paused, resumed, asleep or awake already stays so, and where
nobody needs the memory nothing is moved. It waits for the end of another hand-over of these ranks.
When it fails it says who holds the memory, and which command goes back (docs/swap.md).

Ends with 0 when it is done, with 1 when a rank or an engine failed, with 3 when no rank is running,
and with 4 when the deadline passed.`,
		Example: `  ebb swap --to rollout --engine http://127.0.0.1:8000
  ebb swap --to train --engine http://127.0.0.1:30000 --engine-pause abort
  ebb swap --to train --engine-command ./engine.sh --timeout 2m`,
		DisableFlagsInUseLine: true,
		Args:                  noArgs,
		PreRunE:               func(cmd *cobra.Command, _ []string) error { return fromEnvironment(cmd) },
		RunE:                  func(cmd *cobra.Command, _ []string) error { return s.run(cmd.Context()) },
	}
	s.add(cmd)
	return cmd
}

func (s *swapFlags) add(cmd *cobra.Command) {
	f := cmd.Flags()
	f.Var(&value{kind: "rollout|train", parse: into(&s.options.To, word(swap.ToRollout, swap.ToTrain))}, "to", "who gets the memory")
	f.Var(&value{kind: "URL", parse: s.noting("engine", func(text string) error {
		for address := range strings.SplitSeq(text, ",") {
			if _, err := rollout.ParseURL(address); err != nil {
				s.wrong = launch.Usagef("--engine: %w", err) // said later: the flag's own error repeats what was given
				return nil
			}
			s.options.Engines = append(s.options.Engines, swap.EngineSpec{URL: strings.TrimRight(address, "/")})
		}
		return nil
	})}, "engine", "address of the engine's server, or several with commas or given repeatedly; the variable is EBB_ENGINE_URL")
	annotate(f, "engine", ownVariable, "EBB_ENGINE_URL")
	f.Var(&value{text: s.options.Kind, kind: "auto|vllm|sglang", parse: s.noting("engine-kind", into(&s.options.Kind,
		word(rollout.KindAuto, rollout.KindVLLM, rollout.KindSGLang)))}, "engine-kind", "what the servers are; auto asks them")
	f.Var(&value{kind: "CMD", parse: s.noting("engine-command", func(text string) error {
		if strings.TrimSpace(text) == "" {
			return errors.New("must be a command")
		}
		s.options.Engines = append(s.options.Engines, swap.EngineSpec{Command: text})
		return nil
	})}, "engine-command", "another engine: a command for /bin/sh, called with one word more: sleep, wake or status (prints awake, asleep or unknown)")
	f.Var(&value{kind: "TAG", parse: s.noting("engine-tag", words(&s.options.Settings.Tags))}, "engine-tag",
		"only this part of the engine's memory, as weights or kv_cache, or several with commas (default all; vLLM: of waking only)")
	f.Var(&value{text: "1", kind: "1|2", parse: s.noting("engine-level", into(&s.options.Settings.Level, func(text string) (int, error) {
		text, err := launch.ParseChoice(text, "1", "2")
		if err != nil {
			return 0, err
		}
		return strconv.Atoi(text)
	}))}, "engine-level", "of vLLM's sleep: 1 keeps the weights in host memory, 2 keeps nothing")
	f.Var(&value{kind: "MODE", parse: s.noting("engine-pause", into(&s.options.Settings.Pause,
		word("abort", "wait", "keep", "retract", "in_place")))}, "engine-pause",
		"what becomes of requests that run when the engine is put to sleep: vLLM abort, wait or keep; SGLang, whose generation is then paused before and continued after, abort, retract or in_place (default: what the engine does; SGLang ends when it is put to sleep with requests running)")
	f.Var(&value{kind: "asleep|awake", parse: s.noting("engine-state", func(text string) error {
		text, err := launch.ParseChoice(text, rollout.Asleep.String(), rollout.Awake.String())
		if err == nil && text == rollout.Asleep.String() {
			s.options.Settings.State = rollout.Asleep
		} else if err == nil {
			s.options.Settings.State = rollout.Awake
		}
		return err
	})}, "engine-state", "what an SGLang engine is now, which does not say it; counts where ebb has no note of what it did to it")
	f.Var(&value{kind: "FILE", parse: s.noting("engine-token-file", into(&s.tokenFile, anything))}, "engine-token-file",
		"file with the engines' bearer token (default: the variable EBB_ENGINE_TOKEN)")
	f.Var(&value{kind: "TAG", parse: s.noting("tag", words(&s.options.Tags))}, "tag", "only memory of the ranks of this tag, or of several with commas (default all)")
	f.Var(&value{text: "10m", kind: "TIME", parse: into(&s.options.Timeout, parseSwapTimeout)}, "timeout",
		"until all of it must be done: seconds, or a time such as 90s or 5m")
	f.Var(&value{kind: "DIR", parse: s.noting(eventLogFlag, into(&s.eventLog, launch.ParseEventLog))}, eventLogFlag,
		"add the steps to <job>__swap.jsonl in this directory, for ebb report (default: none)")
	annotate(f, eventLogFlag, notInside)
	s.ranks.add(f)
}

// noting makes a parser that also remembers the flag as it was given.
func (s *swapFlags) noting(name string, parse func(string) error) func(string) error {
	return func(text string) error {
		err := parse(text)
		if err == nil {
			s.given = append(s.given, "--"+name, text)
		}
		return err
	}
}

// words is a parser of one word, or several with commas, which are added to a list.
func words(to *[]string) func(string) error {
	return func(text string) error {
		for w := range strings.SplitSeq(text, ",") {
			if w == "" {
				return errors.New("must name one, or several with commas")
			}
			*to = append(*to, w)
		}
		return nil
	}
}

// parseSwapTimeout is launch.ParseTime without 0, in which nothing could be done.
func parseSwapTimeout(text string) (time.Duration, error) {
	d, err := launch.ParseTime(text)
	if err == nil && d == 0 {
		err = errors.New("must be above 0")
	}
	return d, err
}

func (s *swapFlags) run(ctx context.Context) error {
	switch {
	case s.options.To == "":
		return launch.Usagef("who gets the memory? give --to rollout or --to train")
	case s.wrong != nil:
		return s.wrong
	case len(s.options.Engines) == 0:
		return launch.Usagef("which rollout engine? give --engine URL, or --engine-command CMD")
	}
	if err := s.settings(); err != nil {
		return err
	}
	outliveReaders()
	ctx, stop := untilSignal(ctx)
	defer stop()
	found, err := s.find(ctx)
	if err != nil {
		return ended(ctx, err)
	}
	s.options.Ranks, s.options.Silent = found.ranks, found.silent
	if s.eventLog != "" {
		if s.options.Log, err = swap.OpenLog(s.eventLog, oneJob(found), say); err != nil {
			return launch.Usagef("--%s: %w", eventLogFlag, err)
		}
		defer func() { _ = s.options.Log.Close() }() // lines are written as they come
	}
	if !s.ranks.asJSON {
		s.options.Tell = func(step swap.Step) {
			for _, line := range stepLines(step) {
				fmt.Fprintln(stdout, line)
			}
		}
	}
	s.options.By = "ebb swap"
	s.options.Waiting = func(h swap.Holder) { say("waiting for the end of another hand-over: " + h.String()) }
	s.options.Again = func(ctx context.Context) ([]node.Rank, []node.Silent, error) {
		f, err := s.find(ctx)
		return f.ranks, f.silent, err
	}
	report, failed := swap.Run(ctx, s.options)
	var own *launch.Error // of the second look for the ranks
	if errors.As(failed, &own) {
		return failed
	}
	return s.tell(ctx, report, failed)
}

// ended is err, or the signal that ended a context.
func ended(ctx context.Context, err error) error {
	var signal signalError
	if errors.As(context.Cause(ctx), &signal) {
		return statusError(128 + int(signal))
	}
	return err
}

// silence is how long a rank may give no answer before it counts as one that does not: on a busy machine a look
// is soon too short, and a hand-over is not undertaken for the sake of a second.
const silence = 10 * time.Second

// find looks for the ranks until all answer, or some have been silent for too long.
func (s *swapFlags) find(ctx context.Context) (found, error) {
	until := time.Now().Add(min(silence, s.options.Timeout))
	for {
		f, err := s.ranks.find(ctx)
		if err != nil || len(f.silent) == 0 || time.Now().After(until) {
			return f, err
		}
	}
}

// settings completes what engines are asked for.
func (s *swapFlags) settings() error {
	s.options.Settings.Notes = control.Place(os.Getenv("EBB_RUNTIME_DIR"), os.Getenv("XDG_RUNTIME_DIR"), os.Geteuid(), "engine")
	s.options.Settings.Token = os.Getenv("EBB_ENGINE_TOKEN")
	from := "EBB_ENGINE_TOKEN"
	if s.tokenFile != "" {
		from = "--engine-token-file " + s.tokenFile
		token, err := readToken(s.tokenFile)
		if err != nil {
			return launch.Usagef("--engine-token-file: %w", err)
		}
		s.options.Settings.Token = token
	}
	if strings.ContainsFunc(s.options.Settings.Token, func(r rune) bool { return r <= ' ' || r > unicode.MaxASCII || r == 0x7f }) {
		return launch.Usagef("%s: the token has blanks or characters that no token has", from)
	}
	return nil
}

// readToken reads a file of one line. What it holds appears in no error.
func readToken(path string) (string, error) {
	const most = 4096
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return "", fmt.Errorf("open %s: %w", path, err)
	}
	file := os.NewFile(uintptr(fd), path)
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, most+1))
	if err != nil {
		return "", fmt.Errorf("read %s: %w", path, err)
	}
	token := strings.TrimSpace(string(text))
	if token == "" || len(text) > most {
		return "", fmt.Errorf("%s must hold one line with the token", path)
	}
	return token, nil
}

// oneJob is the job of all ranks, or "" where they are of several.
func oneJob(f found) string {
	job := ""
	for i, r := range f.ranks {
		if i > 0 && r.Job != job {
			return ""
		}
		job = r.Job
	}
	return job
}

// swapResult is what ebb swap --json prints.
type swapResult struct {
	MessageType string `json:"message_type"`
	swap.Report
	GoBack string `json:"go_back,omitempty"` // a command, after a failure
}

// tell prints the end, and turns it into ebb's own.
func (s *swapFlags) tell(ctx context.Context, report swap.Report, failed error) error {
	result := swapResult{MessageType: "swap", Report: report}
	var other *swap.HeldError
	held := errors.As(failed, &other)
	if failed != nil && report.Begun { // else there is nothing to go back from
		result.GoBack = s.goBack()
	}
	if s.ranks.asJSON {
		if err := printJSON(result); err != nil {
			return err
		}
	}
	if failed == nil {
		if !s.ranks.asJSON {
			fmt.Fprintln(stdout, outcomeLine(report))
		}
		return nil
	}
	say("swap to " + report.To + ": " + report.Error)
	if report.Stands != "" {
		say("now: " + report.Stands)
	}
	switch {
	case held:
		say("repeat the command when that one has ended; --timeout is also how long to wait for it")
	case !report.Begun && report.Late:
		say("nothing was moved: repeat the command")
	case !report.Begun: // the error says so, and what helps
	default:
		say("to go back: " + result.GoBack)
		say("or repeat the command: what is done stays done")
	}
	switch err := ended(ctx, nil); {
	case err != nil:
		return err
	case report.Late:
		return statusError(statusLate)
	}
	return statusError(statusFailed)
}

// goBack is the command of the other direction.
func (s *swapFlags) goBack() string {
	to := swap.ToTrain
	if s.options.To == swap.ToTrain {
		to = swap.ToRollout
	}
	command := []string{"ebb swap --to", to}
	for _, w := range append(s.given, s.ranks.words()...) {
		command = append(command, quoted(w))
	}
	return strings.Join(command, " ")
}

// quoted is a word as a shell takes it.
func quoted(w string) string {
	plain := func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("-_./:,=+@%", r)
	}
	if w != "" && !strings.ContainsFunc(w, plain) {
		return w
	}
	return "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
}

// stepLines are a step for people: one line, in which a long name is shortened in its midst. What a step has to say
// that is no mere figure is told in full, below its line where that has no room for it.
func stepLines(s swap.Step) []string {
	const names, widest = 33, textWidth - 8 - 2 - 13 // the column, and what the other columns leave
	name := s.What
	if s.Step == swap.StepMemory {
		name = longUUID.ReplaceAllString(name, "$1") // enough to tell devices apart, as in ebb status
	}
	if s.Kind != "" && s.Kind != rollout.KindCommand {
		name += " (" + s.Kind + ")"
	}
	name = cut(name, widest)
	text := detail(s)
	if !s.OK {
		text = "FAILED: " + text
	}
	line := func(name, text string) string {
		return strings.TrimRight(fmt.Sprintf("%-6s  %-*s  %-13s  %s", s.Step, names, name, s.State, text), " ")
	}
	fits := func(line string) bool { return utf8.RuneCountInString(line) <= textWidth }
	if whole := line(name, text); fits(whole) {
		return []string{whole}
	}
	if short := line(cut(name, names), text); s.OK && s.Error == "" && fits(short) {
		return []string{short}
	}
	const indent = "        "
	return append([]string{line(name, "")}, wrapAfter(indent, indent, text)...)
}

// longUUID is that of a device, with its beginning.
var longUUID = regexp.MustCompile(`\b((?:GPU|MIG)-[0-9a-f]{8})(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b`)

// detail is the last column.
func detail(s swap.Step) string {
	var parts []string
	switch {
	case s.Error != "":
		return oneLine(errors.New(s.Error))
	case s.Step == swap.StepMemory:
		u := unitFor(s.Total)
		text := fmt.Sprintf("%s of %s %s", strings.TrimSpace(u.of(s.Bytes)), strings.TrimSpace(u.of(s.Total)), u.name)
		if s.Need > 0 {
			text += fmt.Sprintf(", %s needed", strings.TrimSpace(u.of(s.Need)))
		}
		return text
	case s.Bytes > 0:
		parts = append(parts, both(s.Bytes))
	}
	switch {
	case s.Already:
		parts = append(parts, "as it was")
	case s.Bytes > 0 && s.Seconds > 0:
		parts = append(parts, fmt.Sprintf("%.2f s, %.2f GB/s", s.Seconds, float64(s.Bytes)/s.Seconds/1e9))
	default:
		parts = append(parts, fmt.Sprintf("%.2f s", s.Seconds))
	}
	return strings.Join(parts, ", ")
}

// outcomeLine is the last line of a hand-over that went well.
func outcomeLine(r swap.Report) string {
	switch {
	case !r.Moved && r.To == swap.ToRollout:
		return "nothing was moved: the engine is awake"
	case !r.Moved:
		return "nothing was moved: the ranks are resident"
	case r.To == swap.ToRollout:
		return fmt.Sprintf("done in %.2f s: the memory is the engine's", r.Seconds)
	}
	return fmt.Sprintf("done in %.2f s: the memory is the ranks'", r.Seconds)
}
