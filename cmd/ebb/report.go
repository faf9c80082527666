package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/ebb-offload/ebb/internal/launch"
	"github.com/ebb-offload/ebb/internal/report"
	"github.com/ebb-offload/ebb/internal/version"
)

// reportRequest is what the flags of ebb report say.
type reportRequest struct {
	dir, job    string
	bench       string
	write, read float64 // GB/s of the raw disk; 0: not given
	output      string
	asJSON      bool
}

func newReport() *cobra.Command {
	q := reportRequest{}
	cmd := &cobra.Command{
		Use:   "report [flags] [FILE…]",
		Short: "Make a page of a job from its event logs",
		Long: `Reads the event logs of a job's ranks (--event-log of ebb run, ebb exec and ebb env) and writes one
HTML page: a timeline of every rank, where the bytes went, how fast and against what the disk does
by itself, what was skipped, and what failed. The page needs no network, and no script.

Logs may be of ranks that still run, of several processes of a rank, and of several hosts: copy them
into one directory. Lines that cannot be read are left out, and their number is told. Of several
jobs the one with the latest event is reported, unless --job names another.

Ends with 3 when the logs hold no event.`,
		Example: `  ebb report --event-log logs -o report.html
  ebb report --event-log logs --job nightly-7 --bench bench.json -o report.html
  ebb report --disk-write 2.6 --disk-read 1.7 -o report.html logs/*.jsonl
  ebb report --event-log logs --json | jq .pause.gb_per_s`,
		DisableFlagsInUseLine: true,
		PreRunE:               func(cmd *cobra.Command, _ []string) error { return fromEnvironment(cmd) },
		RunE: func(cmd *cobra.Command, args []string) error {
			paths := args
			_, variable := cmd.Flags().Lookup(eventLogFlag).Annotations[fromVariable]
			if q.dir != "" && (len(args) == 0 || !variable) {
				paths = append([]string{q.dir}, args...)
			}
			if len(paths) == 0 {
				return launch.Usagef("which event logs? ebb report --event-log DIR, or ebb report FILE…")
			}
			// With --json alone the figures are all that is wanted.
			if q.asJSON && !cmd.Flags().Changed("output") {
				q.output = ""
			}
			return q.run(paths)
		},
	}
	f := cmd.Flags()
	f.Var(&value{kind: "DIR", parse: into(&q.dir, anything)}, eventLogFlag, "directory of the event logs")
	annotate(f, eventLogFlag, notInside)
	f.Var(&value{kind: "NAME", parse: into(&q.job, anything)}, "job", "the job, if the logs are of several (default: the latest)")
	annotate(f, "job", notInside)
	f.Var(&value{kind: "FILE", parse: into(&q.bench, anything)}, "bench", "result of ebb bench --json, for the rates of the raw disk")
	f.Var(&value{kind: "GB/S", parse: into(&q.write, parseRate)}, "disk-write", "rate of writing to the raw disk, in 10⁹ bytes a second")
	f.Var(&value{kind: "GB/S", parse: into(&q.read, parseRate)}, "disk-read", "rate of reading from the raw disk, in 10⁹ bytes a second")
	f.VarP(&value{text: "report.html", kind: "FILE", parse: into(&q.output, anything)}, "output", "o",
		"write the page to this file; - is standard output")
	onOffTo(f, &q.asJSON, "json", "print the figures as JSON; then a page is written only with --output")
	q.output = "report.html"
	return cmd
}

// parseRate parses --disk-write and --disk-read.
func parseRate(s string) (float64, error) {
	r, err := strconv.ParseFloat(s, 64)
	if err != nil || !(r > 0 && r <= 1000) {
		return 0, errors.New("must be a number of GB/s (10⁹ bytes a second), above 0 and at most 1000")
	}
	return r, nil
}

func (q reportRequest) run(paths []string) error {
	switch {
	case q.bench != "" && (q.write > 0 || q.read > 0):
		return launch.Usagef("--bench and --disk-write or --disk-read contradict each other: give one")
	case q.asJSON && q.output == "-":
		return launch.Usagef("--json and --output - both want standard output: name a file for the page")
	}
	if err := canWrite(q.output); err != nil { // before what may take long
		return err
	}
	o := report.Options{Job: q.job, Version: version.Version}
	switch {
	case q.bench != "":
		raw, err := report.ReadBench(q.bench)
		if err != nil {
			return launch.Usagef("--bench: %w", err)
		}
		o.Raw = &raw
	case q.write > 0 || q.read > 0:
		o.Raw = &report.Raw{Write: q.write, Read: q.read, From: "as given (--disk-write, --disk-read)"}
	}
	files, err := report.Files(paths)
	if err != nil {
		return launch.Usagef("%w: name the directory of the event logs, or the logs", err)
	}
	r, err := report.Make(files, o)
	if err != nil {
		return reportFailed(err, paths)
	}
	if q.asJSON {
		if err := printJSON(r); err != nil {
			return err
		}
	}
	if q.output == "" {
		return nil
	}
	var page bytes.Buffer
	if err := r.WritePage(&page); err != nil {
		return &launch.Error{Status: launch.StatusInternal, Text: oneLine(err), Err: err}
	}
	if q.output == "-" {
		_, _ = stdout.Write(page.Bytes()) // it remembers what fails
		return nil
	}
	if err := writeFile(q.output, page.Bytes()); err != nil {
		return err
	}
	if !q.asJSON {
		fmt.Fprintln(stdout, reportSummary(r, q.output))
	}
	return nil
}

// reportFailed gives an error of the package report its status.
func reportFailed(err error, paths []string) error {
	var empty *report.EmptyError
	var job *report.JobError
	var path *fs.PathError
	switch {
	case errors.As(err, &empty):
		where := paths[0]
		if len(paths) > 1 {
			where = filepath.Dir(paths[0])
		}
		return &launch.Error{Status: statusNothing, Text: where + ": " + empty.Error(), Err: err}
	case errors.As(err, &job):
		return launch.Usagef("--job: %w", err)
	case errors.As(err, &path):
		return launch.Usagef("%w: name the directory of the event logs, or the logs", err)
	}
	return &launch.Error{Status: launch.StatusInternal, Text: oneLine(err), Err: err}
}

// reportSummary is one line about the report.
func reportSummary(r *report.Report, file string) string {
	text := fmt.Sprintf("%s: %s, %s", file, launch.Count(len(r.Ranks), "rank"), launch.Count(r.Pause.Done, "pause"))
	if r.Pause.Done > 0 {
		text += fmt.Sprintf(", together %s a time", both(uint64(r.PauseHost.Bytes.Median)))
	}
	return text + ", " + launch.Count(r.Failed, "failure")
}
