package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/dustin/go-humanize"

	"github.com/ebb-offload/ebb/internal/launch"
	"github.com/ebb-offload/ebb/internal/sizing"
)

// print tells a person, in lines of at most textWidth columns.
func (r planResult) print(w io.Writer, o planOptions) {
	r.printModel(w)
	r.printRank(w)
	r.printNode(w)
	r.printStreaming(w)
	r.printTargets(w)
	printWear(w, r.Wear, o)
	if len(r.Command) > 0 {
		fmt.Fprintf(w, "\nUse:\n%s", commandLines(r.Command))
	}
	printNotes(w, r.Notes)
}

func printNotes(w io.Writer, notes []string) {
	if len(notes) > 0 {
		fmt.Fprintln(w)
	}
	for _, note := range notes {
		printWrapped(w, "- ", "  ", note)
	}
}

func (r planResult) printModel(w io.Writer) {
	text := humanize.Comma(int64(r.Model.Parameters)) + " parameters"
	if r.Model.Layers > 0 {
		text = r.Model.Name + ": " + text + ", " + launch.Count(r.Model.Layers, "layer")
	}
	if r.Model.Experts > 0 {
		text += fmt.Sprintf(", %d experts", r.Model.Experts)
	}
	printWrapped(w, "", "  ", text)
	p := r.Parallel
	text = fmt.Sprintf("%s on %s of %d: tp %d, pp %d, cp %d, dp %d", launch.Count(int(r.Ranks), "rank"), launch.Count(int(r.Nodes), "node"), r.PerNode, p.TP, p.PP, p.CP, p.DP)
	if r.Model.Experts > 0 {
		text += fmt.Sprintf(", ep %d, etp %d", p.EP, p.ETP)
	}
	printWrapped(w, "", "  ", text)
}

// column writes bytes in both units, right-aligned.
func column(n uint64) string {
	return fmt.Sprintf("%10.2f  %10.2f", float64(n)/(1<<30), float64(n)/1e9)
}

func (r planResult) printRank(w io.Writer) {
	l := r.Largest
	title := "A rank"
	if r.Parallel.PP > 1 {
		title = fmt.Sprintf("A rank of pipeline stage %d, the largest", l.Stage)
	}
	fmt.Fprintf(w, "\n%-46s%10s  %10s\n", title, "GiB", "GB")
	shared := func(from sizing.Shard) string {
		if n := r.Parallel.CP * r.Parallel.DP; n > 1 && r.shard() >= from {
			text := fmt.Sprintf(", shared by %d ranks", n)
			if p := r.Parallel; r.Model.Experts > 0 {
				text += fmt.Sprintf(" (experts: %d)", p.TP*p.CP*p.DP/(p.EP*p.ETP))
			}
			return text
		}
		return ""
	}
	for _, row := range []struct {
		name, kind string
		bytes      uint64
	}{
		{"weights", r.State.Weights + shared(sizing.ShardParameters), l.Weights},
		{"gradients", r.State.Gradients + shared(sizing.ShardGradients), l.Gradients},
		{"master weights", r.State.Master + shared(sizing.ShardOptimizer), l.Master},
		{"moments", r.State.Moments + shared(sizing.ShardOptimizer), l.Moments},
		{"other memory", "", l.Other},
	} {
		if row.bytes > 0 {
			fmt.Fprintf(w, "  %-44s%s\n", strings.TrimSpace(fmt.Sprintf("%-15s %s", row.name, row.kind)), column(row.bytes))
		}
	}
	fmt.Fprintf(w, "  %-44s%s\n", "together", column(l.Total))
	if l.Streamed > 0 {
		kinds := "moments " + r.State.Moments
		if r.State.Master != sizing.None.Name {
			kinds = "masters, " + kinds
		}
		fmt.Fprintf(w, "  %-44s%s\n", "streamed from disk: "+kinds, column(l.Streamed))
		fmt.Fprintf(w, "  %-44s%s\n", "GPU memory that it passes through", column(l.Slots))
	}
	if l.Moved != l.Total {
		fmt.Fprintf(w, "  %-44s%s\n", "of which a pause moves", column(l.Moved))
	}
	room := l.room()
	if l.GPU > 0 {
		fmt.Fprintf(w, "  %-44s%s\n", "that ebb leaves free of the GPU", column(l.GPU-room))
	}
	switch l.StepFits {
	case sizing.FitYes:
		fmt.Fprintf(w, "  %-44s%s\n", "left of the GPU for activations and caches", column(room-l.InStep()))
	case sizing.FitStream, sizing.FitNo:
		fmt.Fprintf(w, "  %-44s%s\n", "MORE than the GPU has beside it", column(l.InStep()-room))
	}
}

func (r planResult) shard() sizing.Shard {
	s, err := sizing.ParseShard(r.State.Shard)
	if err != nil {
		return sizing.ShardNone
	}
	return s
}

func (r planResult) printNode(w io.Writer) {
	ranks := int(r.Node.Groups.Ranks())
	title := fmt.Sprintf("The node (%s)", launch.Count(ranks, "rank"))
	if r.Nodes > 1 {
		title = fmt.Sprintf("The fullest node (%s)", launch.Count(ranks, "rank"))
	}
	fmt.Fprintf(w, "%-46s%s\n", title, column(r.Node.Bytes))
	fmt.Fprintf(w, "  %-44s%s\n", "host memory that ranks may take", column(r.Node.HostLeft))
	printWrapped(w, "    ", "    ", r.Node.HostWhy)
	if r.Node.DiskKnown {
		fmt.Fprintf(w, "  %-44s%s\n", "free on the disk", column(r.Node.DiskFree))
	}
	rates := fmt.Sprintf("rates in GB/s: link %s", rateText(r.Rates.Link))
	if r.Rates.Write.Known() {
		rates += fmt.Sprintf("; disk, all ranks together: write %s, read %s", rateText(r.Rates.Write), rateText(r.Rates.Read))
		if r.Rates.Fresh.Known() {
			rates += ", first write " + rateText(r.Rates.Fresh)
		}
		rates += " (" + r.Rates.From + ")"
	}
	printWrapped(w, "  ", "    ", rates)
}

func (r planResult) printStreaming(w io.Writer) {
	s := r.Streaming
	if s == nil {
		return
	}
	fmt.Fprintf(w, "  %-44s%s\n", "optimizer state on disk, moved by each step", column(s.DiskBytes))
	where := "the disk directory"
	if len(s.Dirs) > 0 {
		where = strings.Join(s.Dirs, ", ")
	}
	text := "in " + where
	if s.Step.Known() {
		text += fmt.Sprintf("; its reads and writes take %.3g s a step, if the disk does both at once, to %.3g s, one after the other (rates: %s)", s.Step.Low, s.Step.High, s.From)
	}
	printWrapped(w, "    ", "    ", text)
}

func (r planResult) printTargets(w io.Writer) {
	fmt.Fprintln(w)
	t := &table{left: []bool{true, true, true, true, true, true, true}}
	t.row("TARGET", "FITS", "PAUSE s", "RESUME s", "FIRST PAUSE s", "HOST GiB (GB)", "DISK GiB (GB)")
	var unchecked []string
	for _, target := range r.Targets {
		fits := "no"
		switch {
		case target.Fits && len(target.Unchecked) > 0:
			fits = "yes*"
			unchecked = append(unchecked, target.Unchecked...)
		case target.Fits:
			fits = "yes"
		}
		t.row(target.Name, fits, secondsText(target.Pause), secondsText(target.Resume), secondsText(target.FirstPause),
			twoUnits(target.HostBytes), twoUnits(target.DiskBytes))
	}
	t.print(w)
	for _, line := range r.unfits {
		printWrapped(w, "", "  ", line)
	}
	if len(unchecked) > 0 {
		printWrapped(w, "", "  ", "* as far as is known; what is there was not said of: "+uncheckedText(unchecked))
	}
}

// uncheckedText says of what it is not known how much there is, and which flags tell.
func uncheckedText(what []string) string {
	var parts []string
	for _, of := range []struct{ what, text string }{
		{sizing.UncheckedGPU, "memory of the GPU (--gpu-memory)"},
		{sizing.UncheckedHost, "host memory (--host-memory)"},
		{sizing.UncheckedDisk, "room on the disk (--disk-dir or --disk-space)"},
	} {
		if slices.Contains(what, of.what) {
			parts = append(parts, of.text)
		}
	}
	return strings.Join(parts, ", ")
}

func printWear(w io.Writer, all []planWear, o planOptions) {
	for i, wear := range all {
		if i == 0 {
			fmt.Fprintln(w)
		}
		text := fmt.Sprintf("Wear, %s: %s TB (10¹² bytes) a day in %.4g pauses", wear.Target, terabytes(wear.BytesPerDay), wear.PausesPerDay)
		if wear.Years > 0 {
			text += fmt.Sprintf("; the %s TB that %s may be written are reached in %s", terabytes(float64(wear.Rating)), drivesText(o.drives), yearsText(wear.Years))
		} else {
			text += "; --drive-tbw or --drive-dwpd tells in how many years a drive's rating is reached"
		}
		printWrapped(w, "", "  ", text+".")
	}
}

func drivesText(n uint64) string {
	if n == 1 {
		return "the drive"
	}
	return fmt.Sprintf("the %d drives", n)
}

func terabytes(n float64) string {
	if n >= 100e12 {
		return humanize.Comma(int64(n / 1e12))
	}
	return fmt.Sprintf("%.3g", n/1e12)
}

// twoUnits is GiB (GB), without the words.
func twoUnits(n uint64) string {
	digits := 1
	switch {
	case n < 10<<30:
		digits = 2
	case n >= 1000<<30: // of which the tenths are of no use, and a row has 100 columns
		digits = 0
	}
	return fmt.Sprintf("%.*f (%.*f)", digits, float64(n)/(1<<30), digits, float64(n)/1e9)
}

func yearsText(years float64) string {
	if years < 1 {
		return fmt.Sprintf("%.0f days", years*365)
	}
	return fmt.Sprintf("%.1f years", years)
}

// rateText is GB/s with its range.
func rateText(r sizing.Range) string {
	if r.Low == r.High {
		return fmt.Sprintf("%.3g", r.Typical/1e9)
	}
	return fmt.Sprintf("%.3g (%.3g–%.3g)", r.Typical/1e9, r.Low/1e9, r.High/1e9)
}

// secondsText is seconds with their range; hours, where it is many.
func secondsText(r sizing.Range) string {
	if !r.Known() {
		return "—"
	}
	if r.Typical >= 10*3600 {
		return fmt.Sprintf("%.0f h (%.0f–%.0f)", r.Typical/3600, r.Low/3600, r.High/3600)
	}
	digits := 2
	if r.Typical >= 10 {
		digits = 1
	}
	if r.Typical >= 1000 {
		digits = 0
	}
	return fmt.Sprintf("%.*f (%.*f–%.*f)", digits, r.Typical, digits, r.Low, digits, r.High)
}

// commandLines is a command that can be pasted into a shell. A flag stays beside its value.
func commandLines(args []string) string {
	var out strings.Builder
	line := " "
	for i := 0; i < len(args); i++ {
		word := shellWord(args[i])
		if strings.HasPrefix(word, "--") && word != "--" && i+1 < len(args) && !strings.HasPrefix(args[i+1], "--") {
			i++
			word += " " + shellWord(args[i])
		}
		if len(line)+1+len(word) > textWidth-2 {
			fmt.Fprintln(&out, line+" \\")
			line = "     "
		}
		line += " " + word
	}
	fmt.Fprintln(&out, line)
	return out.String()
}

// shellWord quotes what a shell would take apart. $USER, in the default directory, is the shell's.
func shellWord(s string) string {
	if strings.ContainsAny(s, " \t\n'\"\\*?[]{}()&;|<>`~#!") || strings.Contains(strings.ReplaceAll(s, "$USER", ""), "$") {
		return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
	}
	return s
}
