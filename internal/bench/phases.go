package bench

import (
	"fmt"
	"slices"
	"strings"
)

// Spans is where the time of an actor's pauses or resumes went, by the phases that ebb tells of each.
type Spans struct {
	Row       string             `json:"row"`
	What      string             `json:"what"`      // "16 x 256 MiB"
	Operation string             `json:"operation"` // pause or resume
	Rounds    int                `json:"rounds"`
	Seconds   float64            `json:"seconds"` // of the whole; medians, as of each phase
	Phases    map[string]float64 `json:"phases"`

	Workers  int     `json:"workers"`  // that moved blocks, in the last round
	Snapshot bool    `json:"snapshot"` // by way of device memory of ebb's own
	Trials   []Trial `json:"trials,omitempty"`
}

// Trial is a way of moving bytes that ebb tried on a part of them, to choose one.
type Trial struct {
	Workers  int     `json:"workers"`
	Snapshot bool    `json:"snapshot"`
	GBPerS   float64 `json:"gb_per_s"`
	Setup    float64 `json:"setup_s"`
}

// tell says where the time of an actor's pauses and resumes went.
func (s *session) tell(row, what string, a *actor) {
	if !a.lib.ebb {
		return
	}
	s.report.Spans = append(s.report.Spans, a.spans(row, what, "pause", a.pauses)...)
	s.report.Spans = append(s.report.Spans, a.spans(row, what, "resume", a.wakes)...)
}

// spans is nothing where ebb does not tell phases.
func (a *actor) spans(row, what, verb string, of operations) []Spans {
	if !of.tellPhases() {
		return nil
	}
	sp := Spans{
		Row: row, What: what, Operation: verb, Rounds: len(of), Phases: map[string]float64{},
		Seconds: median(of.times("").values), Workers: of[len(of)-1].out.Workers,
	}
	for _, name := range phaseNames {
		seconds := of.series("", unitSeconds, func(o operation) float64 { return o.out.Phases[name] })
		if m := median(seconds.values); m > 0 {
			sp.Phases[name] = m
		}
	}
	if way, ok := a.ways[verb]; ok {
		sp.Snapshot, sp.Trials = way.Snapshot && way.Workers == sp.Workers, way.Trials // else they could not be had
	}
	return []Spans{sp}
}

func (o operations) tellPhases() bool {
	return len(o) > 0 && !slices.ContainsFunc(o, func(o operation) bool { return len(o.out.Phases) == 0 })
}

// phaseNames are those of pauses and resumes, in the order in which they come.
var phaseNames = []string{"wait", "room", "create", "hash", "move", "map", "check", "commit", "unmap", "rest"}

// spansTable says where the time of pauses, or of resumes, went.
func (p printer) spansTable(r Report, verb string) {
	var rows []Spans
	seen := map[string]bool{}
	for _, sp := range r.Spans {
		if sp.Operation == verb {
			rows = append(rows, sp)
			for name := range sp.Phases {
				seen[name] = true
			}
		}
	}
	if len(rows) == 0 {
		return
	}
	names := slices.DeleteFunc(slices.Clone(phaseNames), func(name string) bool { return !seen[name] })
	fmt.Fprintf(p.w, "\n%-12s%-24s%8s", verb, "ms, medians by phase", "all")
	for _, name := range names {
		fmt.Fprintf(p.w, "%7s", name)
	}
	fmt.Fprintln(p.w)
	for _, sp := range rows {
		fmt.Fprintf(p.w, "%-12s%-24s%8s", sp.Row, sp.What, milliseconds(sp.Seconds))
		for _, name := range names {
			fmt.Fprintf(p.w, "%7s", milliseconds(sp.Phases[name]))
		}
		fmt.Fprintln(p.w)
		p.wrapped(14, sp.way())
	}
}

// way says how the bytes were moved, and what else was tried.
func (sp Spans) way() string {
	text := wayText(sp.Workers, sp.Snapshot)
	if len(sp.Trials) == 0 {
		return text
	}
	var tried []string
	for _, t := range sp.Trials {
		tried = append(tried, fmt.Sprintf("%s %.1f", wayText(t.Workers, t.Snapshot), t.GBPerS))
	}
	return text + "; tried, GB/s: " + strings.Join(tried, ", ")
}

func wayText(workers int, snapshot bool) string {
	text := fmt.Sprintf("%d workers", workers)
	if workers == 1 {
		text = "1 worker"
	}
	if snapshot {
		text += " by snapshots"
	}
	return text
}

// milliseconds has few digits: what is small counts in tenths, what is large does not. What would fill its column is
// in seconds, and says so.
func milliseconds(seconds float64) string {
	switch ms := 1000 * seconds; {
	case ms == 0:
		return "-"
	case ms < 99.95:
		return fmt.Sprintf("%.1f", ms)
	case ms < 999_999.5:
		return fmt.Sprintf("%.0f", ms)
	default:
		return fmt.Sprintf("%.0fs", seconds)
	}
}
