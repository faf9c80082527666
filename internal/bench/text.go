package bench

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/dustin/go-humanize"

	"github.com/ebb-offload/ebb/internal/launch"
	"github.com/ebb-offload/ebb/internal/sizes"
)

// sort puts ratios first, and the rows in their order.
func (r *Report) sort() {
	order := map[string]int{}
	for i, row := range Rows {
		order[row.Name] = i
	}
	slices.SortStableFunc(r.Figures, func(a, b Figure) int {
		if a.isRatio() != b.isRatio() {
			if a.isRatio() {
				return -1
			}
			return 1
		}
		return order[a.Row] - order[b.Row]
	})
}

// WriteText prints a report for people, in at most 100 columns. bold marks what counts.
func (r Report) WriteText(w io.Writer, bold bool) {
	p := printer{w: w, bold: bold, rounds: r.Setup.Rounds}
	p.goals = slices.ContainsFunc(r.Figures, func(f Figure) bool { return goal(f) != "" })
	p.head(r)
	p.table("ratio", r.Figures, true)
	p.table("rate or size", r.Figures, false)
	p.spansTable(r, "pause")
	p.spansTable(r, "resume")
	var absent []Figure
	for _, f := range r.Figures {
		if f.Missing != "" {
			absent = append(absent, f)
		}
	}
	if len(absent) > 0 {
		fmt.Fprintf(w, "\nnot available\n")
	}
	for _, f := range absent {
		fmt.Fprintf(w, "%-12s%s\n", f.Row, f.What)
		p.wrapped(12, f.Missing)
	}
	p.took(r)
}

// took says where the time went.
func (p printer) took(r Report) {
	fmt.Fprintf(p.w, "\n%-12s%8.1f s\n", "took", r.Seconds)
	rest := r.Seconds
	for _, t := range r.Took {
		fmt.Fprintf(p.w, "%12s%8.1f s  %s\n", "", t.Seconds, t.What)
		rest -= t.Seconds
	}
	fmt.Fprintf(p.w, "%12s%8.1f s  starting and ending\n", "", rest)
}

type printer struct {
	w      io.Writer
	bold   bool
	goals  bool // there are some
	rounds int
}

// goal is the column of goals, if there is one.
func (p printer) goal(text string) string {
	if !p.goals {
		return ""
	}
	return fmt.Sprintf("%9s", text)
}

const (
	columns   = 100
	whatWidth = 45
)

func (p printer) head(r Report) {
	m, s := r.Machine, r.Setup
	where := []string{m.Device, fmt.Sprintf("CUDA %d.%d", m.Driver/1000, m.Driver%1000/10),
		fmt.Sprintf("%d CPUs", m.CPUs), humanize.IBytes(m.Memory), "Linux " + m.Kernel}
	p.wrapped(0, "ebb "+r.Version+" on "+strings.Join(where, ", "))
	for _, d := range m.Disks {
		p.wrapped(0, fmt.Sprintf("disk %s (%s on %s)", d.Dir, d.FileSystem, d.Mount))
	}
	text := fmt.Sprintf("%s, chunk of %d MiB, %s", sizeText(s.Bytes), s.ChunkMB, s.workers())
	if s.Against != "" {
		text += "; against " + s.Against
	}
	p.wrapped(0, text)
	coverage := summarize(make([]float64, s.Rounds)).Coverage
	p.wrapped(0, fmt.Sprintf("medians of %s, arms in turn; ratios are of the same round; [interval of order statistics, covers %.0f %%]",
		launch.Count(s.Rounds, "round"), 100*coverage))
	if r.Ended != "" {
		p.wrapped(0, "ENDED EARLY: "+r.Ended)
	}
}

// workers says how bytes are moved.
func (s Setup) workers() string {
	count := fmt.Sprintf("%d workers", s.Writers)
	if s.Readers != s.Writers {
		count = fmt.Sprintf("%d writing and %d reading workers", s.Writers, s.Readers)
	}
	return count + " with blocks of " + sizeText(s.Block)
}

// table prints the figures that are ratios, or those that are not.
func (p printer) table(title string, figures []Figure, ratios bool) {
	row := ""
	for _, f := range figures {
		if f.isRatio() != ratios || f.Missing != "" {
			continue
		}
		if row == "" {
			fmt.Fprintf(p.w, "\n%-12s%-*s%12s%s  %s\n", "row", whatWidth, "what", title, p.goal("goal"), "[interval]")
		}
		name := f.Row
		if name == row {
			name = ""
		}
		row = f.Row
		what := f.What
		if f.Library != "ebb" && f.Library != "raw" {
			what = f.Library + ": " + what
		}
		number := fmt.Sprintf("%12s", amount(f.Unit, f.Median))
		if p.bold {
			number = "\x1b[1m" + number + "\x1b[0m"
		}
		number += p.goal(goal(f))
		line := fmt.Sprintf("%-12s%-*s%s%s", name, whatWidth, what, number, spread(f))
		if utf8.RuneCountInString(what) > whatWidth {
			fmt.Fprintf(p.w, "%-12s%s\n", name, what)
			line = fmt.Sprintf("%-*s%s%s", 12+whatWidth, "", number, spread(f))
		}
		fmt.Fprintln(p.w, strings.TrimRight(line, " "))
		if len(f.Sides) == 2 {
			p.wrapped(14, fmt.Sprintf("%s %s, %s %s", f.Sides[0].What, amount(f.Sides[0].Unit, f.Sides[0].Median),
				f.Sides[1].What, amount(f.Sides[1].Unit, f.Sides[1].Median)))
		}
		if f.Note != "" {
			p.wrapped(14, f.Note)
		}
		if n := len(f.Values); n > 1 && n != p.rounds {
			p.wrapped(14, fmt.Sprintf("%d rounds, the interval covers %.0f %%", n, 100*f.Coverage))
		}
	}
}

// goal is what a figure is to reach, in its own unit.
func goal(f Figure) string {
	switch {
	case f.AtLeast != nil:
		return fmt.Sprintf(">= %s", bare(f.Unit, *f.AtLeast))
	case f.AtMost != nil:
		return fmt.Sprintf("<= %s", bare(f.Unit, *f.AtMost))
	}
	return ""
}

// bare is a goal's number; the unit stands beside the figure.
func bare(unit string, v float64) string {
	if unit == unitBytes && v != 0 {
		return sizeText(uint64(v))
	}
	return strconv.FormatFloat(v, 'g', 4, 64)
}

// spread is the interval of a figure; a single value has none.
func spread(f Figure) string {
	if len(f.Values) < 2 {
		return ""
	}
	low, high := amount(f.Unit, f.Low), amount(f.Unit, f.High)
	// The unit stands beside the median already.
	if end := " " + f.Unit; f.Unit != unitRatio && f.Unit != unitBytes {
		low, high = strings.TrimSuffix(low, end), strings.TrimSuffix(high, end)
	}
	return "  [" + low + ", " + high + "]"
}

// wrapped prints text in lines that begin with so many blanks.
func (p printer) wrapped(indent int, text string) {
	line := strings.Repeat(" ", indent)
	used := indent
	for i, word := range strings.Fields(text) {
		n := utf8.RuneCountInString(word)
		if i > 0 && used+1+n > columns {
			fmt.Fprintln(p.w, line)
			line, used = strings.Repeat(" ", indent), indent
		} else if i > 0 {
			line, used = line+" ", used+1
		}
		line, used = line+word, used+n
	}
	fmt.Fprintln(p.w, line)
}

// amount is a number with its unit.
func amount(unit string, v float64) string {
	switch unit {
	case unitRatio:
		return fmt.Sprintf("%.3f", v)
	case unitBytes:
		if v < 0 {
			return "-" + sizeText(uint64(-v))
		}
		return sizeText(uint64(v))
	case unitSeconds:
		if v < 0.1 {
			return fmt.Sprintf("%.2f ms", 1000*v)
		}
	}
	digits := 2
	if v != 0 && math.Abs(v) < 0.1 {
		digits = 4
	}
	return fmt.Sprintf("%.*f %s", digits, v, unit)
}

// sizeText is a number of bytes in units of powers of 1024.
func sizeText(n uint64) string { return sizes.Exact(n) }
