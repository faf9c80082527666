package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
)

// maxWidth is the widest line of the report.
const maxWidth = 100

// printReport writes the table and what leads to it; nothing wider than maxWidth.
func printReport(w io.Writer, res result, colour bool) {
	fmt.Fprintf(w, "%d ranks on one software GPU of %d MiB; each has %s MB of training state in %d allocations.\n",
		res.Ranks, res.DeviceMiB, megabytes(res.Allocated), res.Allocations)
	steps := res.phases() * res.Steps
	fmt.Fprintf(w, "without parking  %4d steps  %5.1f s  loss %.3f to %.3f\n", steps, res.PlainSeconds, res.FirstLoss, res.LastLoss)
	fmt.Fprintf(w, "under ebb        %4d steps  %5.1f s  %d rollouts between them\n", steps, res.ParkedSeconds, len(res.Cycles))
	if len(res.Cycles) == 0 {
		return
	}
	fmt.Fprintln(w)
	fmt.Fprintln(w, bold("        parked       pause            resume       device memory used, MB    rollout  staging", colour))
	fmt.Fprintln(w, bold("cycle       MB      s    GB/s        s    GB/s     before   while   after         MB       MB", colour))
	for _, c := range res.Cycles {
		fmt.Fprintf(w, "%5d  %7s  %5.2f  %6.2f    %5.2f  %6.2f    %7s %7s %7s    %7s  %7s\n",
			c.Cycle, megabytes(c.ParkedBytes), c.PauseSeconds, c.PauseGBps, c.ResumeSeconds, c.ResumeGBps,
			megabytes(c.UsedBefore), megabytes(c.UsedWhile), megabytes(c.UsedAfter),
			megabytes(c.RolloutBytes), megabytes(c.StagingBytes))
	}
	fmt.Fprintln(w)
	for _, c := range res.Cycles {
		fmt.Fprintln(w, cut(fmt.Sprintf("rollout %d: %s", c.Cycle, c.Sample), maxWidth))
	}
	fmt.Fprintln(w)
	if res.ReportPage != "" {
		fmt.Fprintln(w, "report of the run under ebb:", nearby(res.ReportPage))
	}
}

// nearby is a path as it is written from the current directory, where that is inside.
func nearby(path string) string {
	here, err := os.Getwd()
	if err != nil {
		return path
	}
	relative, err := filepath.Rel(here, path)
	if err != nil || strings.HasPrefix(relative, "..") {
		return path
	}
	return relative
}

// megabytes is a number of bytes in MB (10^6), whole.
func megabytes(bytes uint64) string {
	return fmt.Sprintf("%.0f", math.Round(float64(bytes)/1e6))
}

// cut keeps a line of ASCII within a width.
func cut(line string, width int) string {
	if len(line) <= width {
		return line
	}
	return strings.TrimRight(line[:width-3], " ") + "..."
}

func bold(s string, colour bool) string {
	if !colour {
		return s
	}
	return "\x1b[1m" + s + "\x1b[0m"
}

// finalLine is the one line that says how it went.
func finalLine(res result, err error) string {
	if err != nil {
		return "demo: FAILED " + oneLine(err)
	}
	return fmt.Sprintf("demo: ok ranks=%d cycles=%d parked_bytes=%d loss_identical=%t staging_bytes=%d files_left=%d",
		res.Ranks, len(res.Cycles), res.parkedBytes(), res.LossesIdentical, res.stagingBytes(), res.FilesLeft)
}

// parkedBytes is what all ranks parked in one cycle; every cycle parks the same.
func (r result) parkedBytes() uint64 {
	if len(r.Cycles) == 0 {
		return 0
	}
	return r.Cycles[0].ParkedBytes
}

// stagingBytes is the most staging memory that all ranks had together.
func (r result) stagingBytes() uint64 {
	var most uint64
	for _, c := range r.Cycles {
		most = max(most, c.StagingBytes)
	}
	return most
}

// printJSON writes the result as one JSON object.
func printJSON(w io.Writer, res result, err error) error {
	out := struct {
		OK            bool      `json:"ok"`
		Reason        string    `json:"reason,omitempty"`
		Ranks         int       `json:"ranks"`
		Steps         int       `json:"steps"`
		DeviceBytes   int64     `json:"device_bytes"`
		RankBytes     uint64    `json:"rank_bytes"`
		PlainSeconds  float64   `json:"seconds_without_parking"`
		ParkedSeconds float64   `json:"seconds_under_ebb"`
		FirstLoss     float64   `json:"first_loss"`
		LastLoss      float64   `json:"last_loss"`
		Cycles        []summary `json:"cycles"`
		ParkedBytes   uint64    `json:"parked_bytes"`
		Identical     bool      `json:"loss_identical"`
		StagingBytes  uint64    `json:"staging_bytes"`
		FilesLeft     int       `json:"files_left"`
		ReportPage    string    `json:"report_page,omitempty"`
		Output        []string  `json:"output,omitempty"`
	}{
		OK: err == nil, Ranks: res.Ranks, Steps: res.phases() * res.Steps, DeviceBytes: int64(res.DeviceMiB) << 20,
		RankBytes: res.Allocated, PlainSeconds: res.PlainSeconds, ParkedSeconds: res.ParkedSeconds,
		FirstLoss: res.FirstLoss, LastLoss: res.LastLoss, Cycles: res.Cycles, ParkedBytes: res.parkedBytes(),
		Identical: res.LossesIdentical, StagingBytes: res.stagingBytes(), FilesLeft: res.FilesLeft, ReportPage: res.ReportPage, Output: res.Output,
	}
	if err != nil {
		out.Reason = oneLine(err)
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(out)
}
