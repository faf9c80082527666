package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/ebb-offload/ebb/internal/bench"
	"github.com/ebb-offload/ebb/internal/launch"
)

// statusMeasurement is what ebb bench ends with when a measured process fails.
const statusMeasurement = 1

func newBench() *cobra.Command {
	o := bench.NewOptions()
	var (
		dirs   []string
		list   bool
		asJSON string
		asSVG  string
	)
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure ebb against the raw limits of this disk and device",
		Long: `Measures pauses and resumes against what the hardware does by itself, in turn within one run: raw
O_DIRECT files of the same directory, sizes, block size and number of threads, and copies to and
from pinned memory. Ratios come first: medians over the rounds of what was measured in the same
round (docs/bench.md).

It takes GPU memory, room on the disk and some minutes: --gib and --rows make it short. Nothing is
left behind.`,
		Example: `  ebb bench --disk-dir /scratch/$USER --gib 8
  ebb bench --disk-dir /scratch/$USER --rows pause,resume,sizes --svg bench.svg --json bench.json
  ebb bench --device soft --disk-dir . --gib 0.125 --rounds 3`,
		Args:    noArgs,
		PreRunE: func(cmd *cobra.Command, _ []string) error { return fromEnvironment(cmd) },
		RunE: func(cmd *cobra.Command, _ []string) error {
			if list {
				printRows(stdout)
				return nil
			}
			for _, dir := range dirs {
				abs, err := filepath.Abs(dir)
				if err != nil {
					return launch.Usagef("--disk-dir %s: %w; name an absolute path", dir, err)
				}
				o.DiskDirs = append(o.DiskDirs, abs)
			}
			return benchVerb(cmd.Context(), o, asJSON, asSVG)
		},
	}
	f := cmd.Flags()
	f.Var(&value{kind: "DIR", parse: func(s string) error {
		more, err := launch.ParseDirs(s)
		dirs = append(dirs, more...)
		return err
	}}, "disk-dir", "directory on the disk to measure, or several with commas or given repeatedly")
	f.Var(&value{text: o.Device, kind: "auto|soft|N", parse: into(&o.Device, bench.ParseDevice)}, "device",
		"auto: the first GPU; N: that one; soft: the software device")
	f.Var(&value{kind: "GIB", parse: into(&o.GiB, bench.ParseGiB)}, "gib",
		fmt.Sprintf("size of the actor in GiB, fractions too (default %v; %v on the software device)", bench.DefaultGiB, bench.DefaultSoftGiB))
	f.Var(&value{text: fmt.Sprint(o.Rounds), kind: "N", parse: into(&o.Rounds, bench.ParseRounds)}, "rounds",
		"rounds of each measurement; with fewer than 5 an interval covers less than 90 %")
	f.Var(&value{kind: "ROW,...", parse: func(s string) (err error) {
		if list = s == "list"; !list {
			o.Rows, err = bench.ParseRows(s)
		}
		return err
	}}, "rows", "measure only these rows; list prints them (default all)")
	f.Var(&value{text: fmt.Sprint(o.Ranks), kind: "N", parse: into(&o.Ranks, bench.ParseRanks)}, "ranks",
		"processes that park at the same time in the row ranks")
	f.Var(&value{text: fmt.Sprint(o.ChunkMB), kind: "MIB", parse: into(&o.ChunkMB, launch.ParseChunkMB)}, "chunk-mb",
		"staging buffer of a process")
	f.Var(&value{kind: "LIB", parse: into(&o.Against, fileName)}, "against",
		"another library with torch_memory_saver's functions, measured in turn with ebb's")
	f.Var(&value{kind: "FILE", parse: into(&asJSON, fileName)}, "json", "write the result as JSON to this file; - is standard output, without the text")
	f.Var(&value{kind: "FILE", parse: into(&asSVG, fileName)}, "svg", "draw seconds against bytes into this file: rows pause, resume and sizes")
	return cmd
}

// fileName is a parser that takes no empty name, as of a shell's variable that is not set.
func fileName(s string) (string, error) {
	if s == "" {
		return "", errors.New("must name a file")
	}
	return s, nil
}

func printRows(w io.Writer) {
	for _, row := range bench.Rows {
		fmt.Fprintf(w, "%-12s%s\n", row.Name, row.Text)
	}
}

func benchVerb(ctx context.Context, o bench.Options, asJSON, asSVG string) error {
	executable, err := os.Executable()
	if err != nil {
		return fmt.Errorf("finding the path of ebb: %w", err)
	}
	if o.Libraries, err = launch.FindLibraries(executable, os.Getenv); err != nil {
		return err
	}
	if asSVG != "" && !o.Draws() {
		return launch.Usagef("--svg draws the rows pause, resume and sizes, and --rows has none of them: add sizes")
	}
	// Before minutes of measuring, not after.
	for _, file := range []string{asJSON, asSVG} {
		if err := canWrite(file); err != nil {
			return err
		}
	}
	if asJSON != "" && asJSON != "-" && sameFile(asJSON, asSVG) {
		return launch.Usagef("--json and --svg name one file, %s: name another for one of them", asJSON)
	}
	o.Environ, o.Warn = os.Environ(), say
	showing := newProgress(os.Stderr)
	o.Progress = showing.say

	ctx, stop := untilSignal(ctx)
	report, err := bench.Run(ctx, o)
	stop()
	showing.end()
	if err == nil {
		return printBench(report, asJSON, asSVG)
	}
	if len(report.Figures) > 0 { // what was measured until then
		if err := printBench(report, asJSON, asSVG); err != nil {
			say(oneLine(err))
		}
	}
	return benchFailed(err)
}

// printBench writes the result where it was asked for. What was measured took minutes: what cannot be written to
// one place is written to the others, and the text to standard output.
func printBench(report bench.Report, asJSON, asSVG string) error {
	var svgErr, jsonErr error
	if asSVG != "" {
		var drawing bytes.Buffer
		if svgErr = report.WriteSVG(&drawing); svgErr == nil {
			svgErr = writeFile(asSVG, drawing.Bytes())
		}
	}
	if asJSON == "-" {
		jsonErr = printJSON(report)
	} else {
		if asJSON != "" {
			var document []byte
			if document, jsonErr = report.JSON(); jsonErr == nil {
				jsonErr = writeFile(asJSON, document)
			}
		}
		report.WriteText(stdout, coloured(os.Stdout))
	}
	if svgErr != nil && jsonErr != nil {
		say(oneLine(svgErr))
		return jsonErr
	}
	return cmp.Or(svgErr, jsonErr)
}

// signalError says that a signal ended the verb.
type signalError syscall.Signal

func (e signalError) Error() string {
	return "ended by " + unix.SignalName(syscall.Signal(e)) + "; nothing is left behind"
}

// untilSignal is a context that the signals which end a program end; its cause is a signalError.
func untilSignal(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	go func() {
		select {
		case s := <-signals:
			if number, ok := s.(syscall.Signal); ok {
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

// benchFailed gives an error of the package bench its status.
func benchFailed(err error) error {
	var own *launch.Error
	var rank *bench.RankError
	var ended signalError
	switch {
	case errors.As(err, &ended):
		say(ended.Error())
		return statusError(128 + int(ended))
	case errors.As(err, &own):
		return err
	case errors.As(err, &rank):
		return &launch.Error{Status: statusMeasurement, Text: oneLine(err), Err: err}
	}
	return &launch.Error{Status: launch.StatusInternal, Text: oneLine(err), Err: err}
}

// canWrite checks that a file can be made or replaced.
func canWrite(file string) error {
	if file == "" || file == "-" {
		return nil
	}
	if info, err := os.Stat(file); err == nil && info.IsDir() {
		return launch.Usagef("%s is a directory: name a file", file)
	}
	dir := filepath.Dir(file)
	if err := unix.Faccessat(unix.AT_FDCWD, dir, unix.W_OK|unix.X_OK, unix.AT_EACCESS); err != nil {
		return launch.Usagef("%s cannot be written: %s: %w; name a file in a directory that you can write", file, dir, err)
	}
	return nil
}

// sameFile says whether two names are of one file, be it there or not.
func sameFile(a, b string) bool {
	if a == "" || b == "" {
		return false
	}
	one, err := os.Stat(a)
	other, err2 := os.Stat(b)
	if err == nil && err2 == nil {
		return os.SameFile(one, other)
	}
	// One that is not there yet is told by its folder and name.
	folder, err := os.Stat(filepath.Dir(a))
	its, err2 := os.Stat(filepath.Dir(b))
	return err == nil && err2 == nil && filepath.Base(a) == filepath.Base(b) && os.SameFile(folder, its)
}

// writeFile writes a result. A file that was made for it and cannot be filled is removed.
func writeFile(file string, content []byte) error {
	_, err := os.Lstat(file)
	made := errors.Is(err, fs.ErrNotExist)
	if err = os.WriteFile(file, content, 0o644); err == nil {
		return nil
	}
	if made {
		_ = os.Remove(file) // where it could not even be made there is none
	}
	return &launch.Error{Status: launch.StatusInternal, Text: "writing the result: " + oneLine(err) + "; the rest of the result is written all the same", Err: err}
}

// coloured reports whether a file is a terminal that may be sent escape sequences.
func coloured(f *os.File) bool {
	return os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" && term.IsTerminal(int(f.Fd()))
}

// progress is the line on a terminal that says what is being measured. Elsewhere it says nothing.
type progress struct {
	out   io.Writer // nil: no terminal
	width int

	mu   sync.Mutex // guards what follows
	last string
}

func newProgress(f *os.File) *progress {
	width, _, err := term.GetSize(int(f.Fd()))
	if err != nil || !term.IsTerminal(int(f.Fd())) || os.Getenv("TERM") == "dumb" {
		return &progress{}
	}
	if width <= 0 { // a terminal that does not tell
		width = 80
	}
	return &progress{out: f, width: width}
}

func (p *progress) say(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.out == nil || text == p.last {
		return
	}
	p.last = text
	if n := max(p.width-1, 0); len(text) > n {
		text = strings.ToValidUTF8(text[:n], "")
	}
	fmt.Fprintf(p.out, "\r\x1b[K%s", text)
}

// end takes the line away.
func (p *progress) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.out != nil && p.last != "" {
		fmt.Fprint(p.out, "\r\x1b[K")
	}
}
