package report

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	_ "embed" // the parts of the page
	"encoding/base64"
	"fmt"
	"html/template"
	"io"
	"math"
	"slices"
	"strings"
	"time"
)

//go:embed page.html
var pageHTML string

//go:embed page.css
var pageCSS string

//go:embed page.js
var pageJS string

var page = template.Must(template.New("page").Parse(pageHTML))

// Bounds of the page: more than these nobody looks at, and it stays small whatever the job.
const (
	maxRows      = 48 // ranks in the timeline and in the table
	maxTitled    = 1500
	maxListed    = 60 // failures
	maxHandOvers = 24
	maxPhases    = 12
)

// view is what the page shows.
type view struct {
	Title, Version, CSP string
	CSS                 template.CSS
	JS                  template.JS
	Lead, Where         string
	Begin, End          time.Time
	Tiles               []tile
	From, To            int64 // of the time axis, Unix milliseconds
	Ticks               []tick
	All                 template.HTML
	AllTop              string
	Rows                []row
	RowsNote            string
	Shares              []entry
	HandOvers           []handOverRow
	HandOversNote       string
	HandOverScale       string
	Unit                string
	PauseBar, ResumeBar template.HTML
	Kinds               []entry
	Total               entry
	Beside              []entry // bytes that are no part of the total
	Plots               []plot
	PlotsNote           string
	Rates               []rateRow
	RatesNote           string
	Phases              []phases
	Ranks               []rankRow
	RankUnit            string
	ManyHosts           bool
	Failures            []failureRow
	FailuresNote        string
	Failed              int
	Notes               []string
}

type tile struct {
	Label, Value, Unit, More string
	Bad                      bool
}

type row struct {
	Name string
	SVG  template.HTML
}

// entry is a row of a table of kinds.
type entry struct {
	Class, Name, Text    string
	Pause, PauseShare    string
	Resume, ResumeShare  string
	Seconds, SecondShare string
}

type handOverRow struct {
	Day, Time, To, Size, Seconds, Text string
	Bad                                bool
	SVG                                template.HTML
}

type rateRow struct {
	Name, Pause, PauseRange, Resume, ResumeRange string
	Strong                                       bool
}

type phases struct {
	Name    string
	Bar     template.HTML
	Entries []entry
	Mean    string
}

type rankRow struct {
	Name, Host                               string
	Processes, Cycles, Size                  string
	Pause, PauseMax, Resume, ResumeMax, Rate string
	Failed                                   int
}

type failureRow struct {
	Time, Rank, Host, Operation, Text string
}

// WritePage writes the page: one document, which fetches nothing.
func (r *Report) WritePage(w io.Writer) error {
	var out bytes.Buffer
	if err := page.Execute(&out, r.view()); err != nil {
		return fmt.Errorf("compose the page: %w", err)
	}
	if _, err := w.Write(out.Bytes()); err != nil {
		return fmt.Errorf("write the page: %w", err)
	}
	return nil
}

func (r *Report) view() view {
	sum := sha256.Sum256([]byte(pageJS))
	a := axis{r.Begin.UnixNano(), r.End.UnixNano()}
	v := view{
		Title: cmp.Or(r.Job, "a job without a name"), Version: r.Version,
		// The page's own script by its hash, and nothing else: whatever a log holds, it is not run.
		CSP: fmt.Sprintf("default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-%s'", base64.StdEncoding.EncodeToString(sum[:])),
		CSS: template.CSS(pageCSS), JS: template.JS(pageJS), //nolint:gosec // parts of this package
		Begin: r.Begin, End: r.End, From: r.Begin.UnixMilli(), To: r.End.UnixMilli(),
		Ticks: a.ticks(), Notes: r.Notes, Failed: r.Failed, ManyHosts: len(r.Hosts) > 1,
	}
	v.Where = fmt.Sprintf("%s on %s", count(len(r.Ranks), "rank"), count(len(r.Hosts), "host"))
	if len(r.Hosts) == 1 && r.Hosts[0] != "" {
		v.Where = fmt.Sprintf("%s on %s", count(len(r.Ranks), "rank"), r.Hosts[0])
	}
	v.Lead = r.lead()
	v.Tiles = r.tiles()
	drawn, note := r.drawn()
	v.RowsNote = note
	titled := 0
	for _, rank := range drawn {
		titled += len(rank.timeline.exact)
	}
	for _, rank := range drawn {
		v.Rows = append(v.Rows, row{rank.Name, drawRow(rank, a, titled <= maxTitled)})
	}
	if len(r.Ranks) > 4 {
		v.All, v.AllTop = drawAll(r.Ranks, a), fmt.Sprint(len(r.Ranks))
	}
	v.shares(r)
	v.handOvers(r)
	v.bytes(r)
	v.rates(r, a)
	v.Phases = []phases{phasesOf("pause", r.Pause), phasesOf("resume", r.Resume)}
	v.ranks(drawn)
	v.failures(r)
	return v
}

// lead is the report in a sentence or three.
func (r *Report) lead() string {
	if r.Pause.Done == 0 {
		text := fmt.Sprintf("In %s nothing was parked.", duration(r.End.Sub(r.Begin).Seconds()))
		if r.Pause.Failed > 0 {
			text += fmt.Sprintf(" %s failed.", capital(count(r.Pause.Failed, "pause")))
		}
		return text
	}
	p, back := r.PauseHost, r.ResumeHost
	what := "Each time"
	if len(r.Hosts) > 1 {
		what = "Each time, a host"
	} else {
		what += ", the job"
	}
	text := fmt.Sprintf("%s parked %s in %s", what, together(both(p.Bytes.Median)), together(duration(p.Seconds.Median)))
	if r.Resume.Done > 0 {
		text += fmt.Sprintf(" and had them back in %s", together(duration(back.Seconds.Median)))
	}
	text += " (medians)."
	if r.Seconds.all() > 0 {
		text += fmt.Sprintf(" Pauses and resumes took %s of the ranks’ time.", percent(r.Seconds.Pause+r.Seconds.Resume, r.Seconds.all()))
	}
	switch {
	case r.Failed == 0:
		text += " Nothing failed."
	case r.Failed == 1:
		text += " One thing failed; it is told below."
	default:
		text += fmt.Sprintf(" %d things failed; they are told below.", r.Failed)
	}
	return text
}

// together keeps a number and its unit in one line.
func together(s string) string { return strings.ReplaceAll(s, " ", "\u00a0") }

func capital(s string) string { return strings.ToUpper(s[:1]) + s[1:] }

func (r *Report) tiles() []tile {
	cycles := fmt.Sprintf("%.0f", r.Cycles.Median)
	if r.Cycles.Min != r.Cycles.Max {
		cycles = fmt.Sprintf("%.0f–%.0f", r.Cycles.Min, r.Cycles.Max)
	}
	u := unitFor(r.PauseHost.Bytes.Median)
	tiles := []tile{
		{Label: "cycles of a rank", Value: cycles, More: fmt.Sprintf("%s in all", count(r.Pause.Done, "pause"))},
		{Label: "parked at a time", Value: u.of(r.PauseHost.Bytes.Median), Unit: u.Name, More: perHost(r)},
		direction("pause", r.PauseHost, r.Raw != nil && r.Raw.Write > 0),
		direction("resume", r.ResumeHost, r.Raw != nil && r.Raw.Read > 0),
		{Label: "not moved", Value: percent(skipped(r.Pause.Bytes), float64(r.Pause.Bytes.Logical)), More: "of the bytes: zero, unchanged or unused"},
	}
	if r.Failed > 0 {
		tiles = append(tiles, tile{Label: "failures", Value: fmt.Sprint(r.Failed), More: "see below", Bad: true})
	} else {
		tiles = append(tiles, tile{Label: "failures", Value: "0", More: "none"})
	}
	return tiles
}

func perHost(r *Report) string {
	if len(r.Hosts) > 1 {
		return "by the ranks of a host"
	}
	return "by all ranks together"
}

func skipped(b Bytes) float64 { return float64(b.Zero) + float64(b.Same) + float64(b.Unused) }

// direction is the tile of pauses or resumes.
func direction(name string, t Together, raw bool) tile {
	out := tile{Label: name, Value: rate(t.Rate.Median), Unit: "GB/s", More: "median of " + duration(t.Seconds.Median)}
	if t.Seconds.Count == 0 {
		return tile{Label: name, Value: "–", More: "none was done"}
	}
	if raw && t.OfRaw != nil {
		out.More = fmt.Sprintf("%s; %.2f of the raw disk", duration(t.Seconds.Median), *t.OfRaw)
	}
	return out
}

// drawn chooses the ranks that are shown one by one: those that failed or were started again, the slowest,
// and of the rest some, evenly.
func (r *Report) drawn() ([]Rank, string) {
	if len(r.Ranks) <= maxRows {
		return r.Ranks, ""
	}
	chosen := map[int]bool{}
	take := func(n int, weight func(Rank) float64) {
		order := make([]int, len(r.Ranks))
		for i := range order {
			order[i] = i
		}
		slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(weight(r.Ranks[b]), weight(r.Ranks[a])) })
		for _, i := range order[:n] {
			if weight(r.Ranks[i]) > 0 {
				chosen[i] = true
			}
		}
	}
	take(16, func(rank Rank) float64 { return float64(rank.Failed + rank.Processes - 1) })
	take(8, func(rank Rank) float64 { return rank.Pause.Seconds.Max })
	take(8, func(rank Rank) float64 { return rank.Resume.Seconds.Max })
	for step := 0; len(chosen) < maxRows; step++ {
		chosen[step*len(r.Ranks)/maxRows%len(r.Ranks)] = true
		if step > 2*maxRows {
			break
		}
	}
	var list []Rank
	for i, rank := range r.Ranks {
		if chosen[i] {
			list = append(list, rank)
		}
	}
	return list, fmt.Sprintf("%d of %d ranks are shown one by one: those with failures, those that took longest, and of the others every so many.", len(list), len(r.Ranks))
}

// shares are how the ranks spent their time.
func (v *view) shares(r *Report) {
	all := r.Seconds.all()
	for _, s := range []struct {
		class, name, text string
		seconds           float64
	}{
		{"train", "train", "the rank’s memory is on the device", r.Seconds.Train},
		{"pause", "pause", "on its way off the device", r.Seconds.Pause},
		{"away", "rollout", "parked: the device is for others", r.Seconds.Rollout},
		{"resume", "resume", "on its way back", r.Seconds.Resume},
	} {
		v.Shares = append(v.Shares, entry{Class: s.class, Name: s.name, Text: s.text, Seconds: duration(s.seconds / float64(max(len(r.Ranks), 1))), SecondShare: percent(s.seconds, all)})
	}
}

// kinds of bytes, in the order of a bar.
func kinds(b Bytes) []part {
	return []part{
		{"disk", "disk", float64(b.Disk)},
		{"host", "host memory", float64(b.Host)},
		{"zero", "zero, skipped", float64(b.Zero)},
		{"same", "unchanged, skipped", float64(b.Same)},
		{"unused", "unused, skipped", float64(b.Unused)},
		{"other", "without backup", float64(b.Discarded)},
	}
}

var kindText = map[string]string{
	"disk": "files in the disk directories", "host": "pinned host memory", "zero": "nothing but zeros: noted, not moved",
	"same": "in the backup already, since the pause before", "unused": "of allocations, and used by nobody", "other": "content that may be lost",
}

func (v *view) bytes(r *Report) {
	p, q := kinds(r.Pause.Bytes), kinds(r.Resume.Bytes)
	whole, back := float64(r.Pause.Bytes.Logical), float64(r.Resume.Bytes.Logical)
	u := unitFor(max(whole, back))
	v.Unit = u.Name
	v.PauseBar = drawBar("bytes of pauses by kind", titled(p, u, whole), whole)
	v.ResumeBar = drawBar("bytes of resumes by kind", titled(q, u, back), back)
	for i := range p {
		if p[i].Value == 0 && q[i].Value == 0 {
			continue
		}
		v.Kinds = append(v.Kinds, entry{
			Class: p[i].Class, Name: p[i].Name, Text: kindText[p[i].Class],
			Pause: u.of(p[i].Value), PauseShare: percent(p[i].Value, whole),
			Resume: u.of(q[i].Value), ResumeShare: percent(q[i].Value, back),
		})
	}
	v.Total = entry{Name: "all", Pause: u.of(whole), Resume: u.of(back)}
	for _, b := range []struct {
		name, text    string
		pause, resume uint64
	}{
		{"device memory", "released, and created again", r.Pause.Bytes.Device, r.Resume.Bytes.Device},
		{"kept", "left on the device: other processes use it too", r.Pause.Bytes.Kept, r.Resume.Bytes.Kept},
		{"missing", "released, and not free by the driver’s word", r.Pause.Bytes.Missing, 0},
	} {
		if b.pause > 0 || b.resume > 0 {
			v.Beside = append(v.Beside, entry{Name: b.name, Text: b.text, Pause: u.of(float64(b.pause)), Resume: u.of(float64(b.resume))})
		}
	}
}

// titled puts sizes into the names of parts.
func titled(parts []part, u unit, whole float64) []part {
	parts = slices.Clone(parts)
	for i := range parts {
		parts[i].Name = fmt.Sprintf("%s: %s %s, %s", parts[i].Name, u.of(parts[i].Value), u.Name, percent(parts[i].Value, whole))
	}
	return parts
}

func (v *view) rates(r *Report, a axis) {
	raw := Raw{}
	if r.Raw != nil {
		raw = *r.Raw
	}
	onDisk := r.PauseHost.DiskRate.Count+r.ResumeHost.DiskRate.Count > 0
	dots := func(of func(*host) waves) (list []dot) {
		for _, name := range r.Hosts {
			for _, w := range of(r.hosts[name]) {
				n := w.bytes
				if onDisk {
					n = w.disk
				}
				if n > 0 && w.seconds() > 0 {
					list = append(list, dot{w.begin, float64(n) / w.seconds() / 1e9})
				}
			}
		}
		return list
	}
	if !onDisk {
		raw = Raw{}
	}
	for _, d := range []struct {
		title, class string
		dots         []dot
		raw          float64
	}{
		{"pause", "pause", dots(func(h *host) waves { return h.pauses }), raw.Write},
		{"resume", "resume", dots(func(h *host) waves { return h.resumes }), raw.Read},
	} {
		if len(d.dots) > 0 {
			v.Plots = append(v.Plots, drawRates(d.title, d.class, d.dots, a, d.raw))
		}
	}
	v.PlotsNote = "Each dot is what the ranks of a host did together, in 10⁹ bytes a second"
	if onDisk {
		v.PlotsNote += " to and from files"
	}
	v.PlotsNote += "; operations that overlap count as one."
	if slices.ContainsFunc(v.Plots, func(p plot) bool { return p.Thin }) {
		v.PlotsNote += " There are more than can be drawn: a dot is the median of several, the line behind it their range."
	}
	add := func(name string, strong bool, p, q Spread) {
		if p.Count+q.Count == 0 {
			return
		}
		v.Rates = append(v.Rates, rateRow{name, rate(p.Median), between(p), rate(q.Median), between(q), strong})
	}
	add("a host, all bytes", true, r.PauseHost.Rate, r.ResumeHost.Rate)
	add("a host, to and from files", false, r.PauseHost.DiskRate, r.ResumeHost.DiskRate)
	if raw.Write > 0 || raw.Read > 0 {
		v.Rates = append(v.Rates, rateRow{Name: "raw disk", Pause: rate(raw.Write), Resume: rate(raw.Read)})
		of := rateRow{Name: "files against the raw disk", Strong: true, Pause: "–", Resume: "–"}
		if x := r.PauseHost.OfRaw; x != nil {
			of.Pause = fmt.Sprintf("%.2f", *x)
		}
		if x := r.ResumeHost.OfRaw; x != nil {
			of.Resume = fmt.Sprintf("%.2f", *x)
		}
		v.Rates = append(v.Rates, of)
		v.RatesNote = "The raw disk’s rates: " + raw.From + "."
	} else if onDisk {
		v.RatesNote = "What the disk does by itself is not known here: ebb report --bench with the result of ebb bench, or --disk-write and --disk-read, compare with it."
	}
	add("one rank, all bytes", false, r.Pause.Rate, r.Resume.Rate)
}

// between is the range of a rate.
func between(s Spread) string {
	if s.Count < 2 {
		return ""
	}
	return rate(s.Min) + "–" + rate(s.Max)
}

var phaseText = map[string]string{
	"wait": "for the actor’s work on the device", "create": "device memory", "room": "in host memory and files",
	"hash": "of all memory, to find what need not move", "move": "to or from backups", "map": "what is not mapped by then",
	"check": "of all memory, against the backups", "commit": "of the backups", "unmap": "and the release of the memory", "rest": "",
}

func phasesOf(name string, d Direction) phases {
	p := phases{Name: name}
	whole := 0.0
	for _, s := range d.Phases {
		whole += s.Seconds
	}
	var parts []part
	for i, s := range d.Phases {
		if i == maxPhases {
			break
		}
		class := "phase" + fmt.Sprint(slices.Index(order, s.Name)+1)
		parts = append(parts, part{class, fmt.Sprintf("%s: %s, %s", s.Name, duration(s.Seconds), percent(s.Seconds, whole)), s.Seconds})
		p.Entries = append(p.Entries, entry{Class: class, Name: s.Name, Text: phaseText[s.Name], Seconds: seconds(s.Seconds), SecondShare: percent(s.Seconds, whole)})
	}
	p.Mean = duration(whole)
	p.Bar = drawBar("parts of a mean "+name, parts, whole)
	return p
}

func (v *view) ranks(drawn []Rank) {
	largest := 0.0
	for _, rank := range drawn {
		largest = max(largest, rank.Pause.Each.Median)
	}
	u := unitFor(largest)
	v.RankUnit = u.Name
	for _, rank := range drawn {
		v.Ranks = append(v.Ranks, rankRow{
			Name: rank.Name, Host: list(rank.Hosts, 2), Processes: fmt.Sprint(rank.Processes), Cycles: fmt.Sprint(rank.Pause.Done),
			Size: u.of(rank.Pause.Each.Median), Pause: seconds(rank.Pause.Seconds.Median), PauseMax: seconds(rank.Pause.Seconds.Max),
			Resume: seconds(rank.Resume.Seconds.Median), ResumeMax: seconds(rank.Resume.Seconds.Max), Failed: rank.Failed,
		})
	}
}

func (v *view) failures(r *Report) {
	for _, f := range r.Failures[:min(len(r.Failures), maxListed)] {
		v.Failures = append(v.Failures, failureRow{clock(f.Time), f.Rank, f.Host, f.Operation, f.Text})
	}
	if more := r.Failed - len(v.Failures); more > 0 {
		v.FailuresNote = fmt.Sprintf("The first %d of %d are listed.", len(v.Failures), r.Failed)
	}
}

func clock(t time.Time) string { return t.UTC().Format("2 Jan 15:04:05") }

var stepText = map[string]string{
	"pause": "pause", "resume": "resume", "memory": "memory measured", "engine_sleep": "engine put to sleep", "engine_wake": "engine woken",
}

var stepClass = map[string]string{
	"pause": "pause", "resume": "resume", "memory": "measured", "engine_sleep": "engine", "engine_wake": "engine",
}

func (v *view) handOvers(r *Report) {
	shown := r.HandOvers
	if len(shown) > maxHandOvers {
		order := slices.Clone(shown)
		slices.SortStableFunc(order, func(a, b HandOver) int {
			return cmp.Or(cmp.Compare(btoi(b.Error != ""), btoi(a.Error != "")), cmp.Compare(b.Seconds, a.Seconds))
		})
		shown = order[:maxHandOvers]
		slices.SortStableFunc(shown, func(a, b HandOver) int { return a.Begin.Compare(b.Begin) })
		v.HandOversNote = fmt.Sprintf("%d of %d are shown: those that failed, and those that took longest.", len(shown), len(r.HandOvers))
	}
	longest := 0.0
	for _, h := range shown {
		longest = max(longest, h.Seconds)
	}
	v.HandOverScale = duration(longest)
	for _, h := range shown {
		out := handOverRow{Day: h.Begin.Format("2 Jan"), Time: h.Begin.Format("15:04:05"), To: h.To, Size: size(h.Bytes), Seconds: duration(h.Seconds), Text: h.Error, Bad: h.Error != "" || h.Cut}
		if h.Stands != "" {
			out.Text += " – " + h.Stands
		}
		if h.Cut {
			out.Text = "its end is not in the log"
		}
		out.SVG = drawSteps(h, longest)
		v.HandOvers = append(v.HandOvers, out)
	}
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// stepTold says when a step was, and who took longest.
func stepTold(s Step) string {
	text := fmt.Sprintf("%s to %s", duration(s.Begin), duration(s.End))
	if s.Count > 1 {
		text += fmt.Sprintf(" (%d, longest %s)", s.Count, s.Longest)
	}
	return text
}

// drawSteps draws the steps of a hand-over, each on a line of its own, on a scale that all share.
func drawSteps(h HandOver, longest float64) template.HTML {
	if longest <= 0 || len(h.Steps) == 0 {
		return ""
	}
	const line = 5
	var out strings.Builder
	for i, s := range h.Steps {
		var path strings.Builder
		x := min(s.Begin/longest, 1) * across
		box(&path, x, float64(i)*line, math.Max(min(s.End/longest, 1)*across-x, narrowest), line-1)
		fmt.Fprintf(&out, `<path class="%s" d="%s"><title>%s</title></path>`, cmp.Or(stepClass[s.Step], "measured"), path.String(),
			template.HTMLEscapeString(fmt.Sprintf("%s: %s", cmp.Or(stepText[s.Step], s.Step), stepTold(s))))
	}
	return svg("steps", float64(len(h.Steps)*line), "steps of the hand-over to "+h.To, out.String())
}
