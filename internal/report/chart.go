package report

import (
	"fmt"
	"html"
	"html/template"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Drawings are inline SVG that is stretched to the width there is: x runs from 0 to across, whatever the
// screen. Texts stand beside them in the page, since they would be stretched as well. Nothing but numbers,
// classes and escaped texts gets into a drawing.

const across = 10000

// axis is a time axis.
type axis struct {
	from, to int64 // Unix nanoseconds
}

// x is the place of a time, within the axis.
func (a axis) x(at int64) float64 {
	if a.to <= a.from {
		return 0
	}
	return min(max(float64(at-a.from)/float64(a.to-a.from), 0), 1) * across
}

// tick is a mark of an axis: its place in percent, and what stands there.
type tick struct {
	At   string
	Text string
	Last bool // its text ends there instead of being centred
}

// nice are the steps of a time axis, in seconds.
var nice = []float64{
	0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 21600, 43200, 86400,
}

// ticks are about five, in time since the begin.
func (a axis) ticks() []tick {
	span := float64(a.to-a.from) / 1e9
	if span <= 0 {
		return nil
	}
	step := nice[len(nice)-1]
	for step*5 < span {
		step *= 2
	}
	for _, n := range nice {
		if span/n <= 5 {
			step = n
			break
		}
	}
	var list []tick
	for i := 0; float64(i)*step <= span; i++ {
		t := float64(i) * step
		list = append(list, tick{At: place(t / span * 100), Text: elapsed(t), Last: t/span > 0.94})
	}
	return list
}

// elapsed is a round time.
func elapsed(s float64) string {
	if s == 0 {
		return "0"
	}
	if s < 1 {
		return strconv.FormatFloat(s*1000, 'f', -1, 64) + " ms"
	}
	if s < 60 {
		return strconv.FormatFloat(s, 'f', -1, 64) + " s"
	}
	if n := int(s); n < 3600 && n%60 == 0 {
		return fmt.Sprintf("%d min", n/60)
	}
	return duration(s)
}

func place(percent float64) string { return strconv.FormatFloat(percent, 'f', 2, 64) }

// number is a coordinate without needless digits.
func number(v float64) string { return strconv.FormatFloat(math.Round(v*10)/10, 'f', -1, 64) }

// box appends a rectangle to a path.
func box(path *strings.Builder, x, y, w, h float64) {
	fmt.Fprintf(path, "M%s %sh%sv%sh-%sz", number(x), number(y), number(w), number(h), number(w))
}

// svg is a drawing of a height in its own units, which are pixels unless the style says otherwise.
func svg(class string, height float64, label, content string) template.HTML {
	return template.HTML(fmt.Sprintf( //nolint:gosec // numbers, classes and escaped texts only
		`<svg class="%s" height="%s" viewBox="0 0 %d %[2]s" preserveAspectRatio="none" role="img" aria-label="%[4]s">%[5]s</svg>`,
		class, number(height), across, html.EscapeString(label), content))
}

// classes of states, and the height of their bars in a row: training fills it, a parked rank is a thin line.
var (
	stateClass = [states]string{"train", "pause", "away", "resume"}
	barTop     = [states]float64{2, 0, 6, 0}
	barHeight  = [states]float64{10, 14, 2, 14}
)

const rowHeight = 14

// narrowest is the width at which an operation is drawn at least, so that it is seen.
const narrowest = 14

const failureWidth = 40

// drawRow draws the states of a rank. With titles each stretch says what it is.
func drawRow(r Rank, a axis, titles bool) template.HTML {
	var out strings.Builder
	if r.timeline.dense != nil {
		c := newColumns(a.from, a.to, 200)
		r.timeline.into(c)
		out.WriteString(drawShares(c, c.width(), rowHeight))
	} else {
		var paths [states]strings.Builder
		for _, s := range r.timeline.exact {
			x, w := a.x(s.from), a.x(s.to)-a.x(s.from)
			if s.state == pausing || s.state == resuming {
				w = max(w, narrowest)
			}
			x = min(x, across-w)
			if !titles {
				box(&paths[s.state], x, barTop[s.state], w, barHeight[s.state])
				continue
			}
			var one strings.Builder
			box(&one, x, barTop[s.state], w, barHeight[s.state])
			fmt.Fprintf(&out, `<path class="%s" d="%s"><title>%s</title></path>`, stateClass[s.state], one.String(),
				html.EscapeString(fmt.Sprintf("%s: %s for %s", r.Name, stateNames[s.state], duration(float64(s.to-s.from)/1e9))))
		}
		for _, s := range []state{train, away, resuming, pausing} {
			if paths[s].Len() > 0 {
				fmt.Fprintf(&out, `<path class="%s" d="%s"/>`, stateClass[s], paths[s].String())
			}
		}
	}
	var failed strings.Builder
	for _, f := range r.failures {
		box(&failed, min(a.x(f.at), across-failureWidth), 0, failureWidth, rowHeight)
	}
	if failed.Len() > 0 {
		fmt.Fprintf(&out, `<path class="failed" d="%s"/>`, failed.String())
	}
	label := fmt.Sprintf("%s: %s, %s, %s", r.Name, count(r.Pause.Done, "pause"), count(r.Resume.Done, "resume"), count(r.Failed, "failure"))
	return svg("row", rowHeight, label, out.String())
}

// drawShares draws columns as shares of whole, one state upon the other.
func drawShares(c columns, whole, height float64) string {
	var out strings.Builder
	below := make([]float64, len(c.in)) // what is drawn already, from the bottom
	for _, s := range []state{train, pausing, resuming, away} {
		var path strings.Builder
		w := float64(across) / float64(len(c.in))
		run := 0 // columns with the same edges are drawn as one
		flush := func(end int) {
			if in := c.in[run][s] / whole * height; in > 0.02 {
				box(&path, float64(run)*w, height-below[run]-in, float64(end-run)*w+1, in)
			}
		}
		for i := range c.in {
			if i > 0 && (math.Abs(c.in[i][s]-c.in[run][s])/whole > 0.004 || math.Abs(below[i]-below[run]) > 0.004*height) {
				flush(i)
				run = i
			}
		}
		flush(len(c.in))
		for i := range c.in {
			below[i] += c.in[i][s] / whole * height
		}
		if path.Len() > 0 {
			fmt.Fprintf(&out, `<path class="%s" d="%s"/>`, stateClass[s], path.String())
		}
	}
	return out.String()
}

// drawAll draws how many of the ranks are in which state over time.
func drawAll(ranks []Rank, a axis) template.HTML {
	const height = 60
	c := newColumns(a.from, a.to, 240)
	for _, r := range ranks {
		r.timeline.into(c)
	}
	return svg("all", height, "share of the ranks in each state over time", drawShares(c, c.width()*float64(len(ranks)), height))
}

// part is a part of a bar.
type part struct {
	Class string
	Name  string
	Value float64
}

// drawBar draws parts side by side, as shares of whole.
func drawBar(label string, parts []part, whole float64) template.HTML {
	const height = 22
	var out strings.Builder
	x := 0.0
	for _, p := range parts {
		w := p.Value / whole * across
		if whole <= 0 || w <= 0 {
			continue
		}
		var path strings.Builder
		gap := 0.0
		if w > 60 {
			gap = 15
		}
		box(&path, x, 0, w-gap, height)
		fmt.Fprintf(&out, `<path class="%s" d="%s"><title>%s</title></path>`, p.Class, path.String(), html.EscapeString(p.Name))
		x += w
	}
	return svg("bar", height, label, out.String())
}

// dot is a rate at a time.
type dot struct {
	at   int64
	rate float64
}

// plot is a drawing of rates over time, with what stands beside it.
type plot struct {
	Title string
	SVG   template.HTML
	Top   string // the rate at its upper edge
	Half  string
	Raw   string // the raw disk's
	RawAt string // its place in percent from the top
	Thin  bool   // dots were joined
}

// maxDots is how many dots a plot has at most.
const maxDots = 300

// drawRates draws the rates of what the ranks of a host did together, against that of the raw disk.
func drawRates(title, class string, dots []dot, a axis, raw float64) plot {
	const height = 120
	largest := raw
	for _, d := range dots {
		largest = max(largest, d.rate)
	}
	top := roundUp(largest * 1.05)
	y := func(r float64) float64 { return height - r/top*height }
	var out strings.Builder
	fmt.Fprintf(&out, `<path class="grid" d="M0 %sH%d"/>`, number(y(top/2)), across)
	if raw > 0 {
		fmt.Fprintf(&out, `<path class="raw" d="M0 %sH%d"/>`, number(y(raw)), across)
	}
	p := plot{Title: title, Top: short2(top), Half: short2(top / 2)}
	if raw > 0 {
		p.Raw, p.RawAt = rate(raw), place((1-raw/top)*100)
	}
	slices.SortFunc(dots, func(a, b dot) int { return int(min(max(a.at-b.at, -1), 1)) })
	var points, ranges strings.Builder
	each := (len(dots) + maxDots - 1) / maxDots
	p.Thin = each > 1
	for i := 0; i < len(dots); i += max(each, 1) {
		group := dots[i:min(i+each, len(dots))]
		middle := a.x(group[len(group)/2].at)
		values := make([]float64, len(group))
		for j, d := range group {
			values[j] = d.rate
		}
		slices.Sort(values)
		if len(values) > 1 {
			fmt.Fprintf(&ranges, "M%s %sV%s", number(middle), number(y(values[0])), number(y(values[len(values)-1])))
		}
		fmt.Fprintf(&points, "M%s %sh0", number(middle), number(y(values[len(values)/2])))
	}
	fmt.Fprintf(&out, `<path class="range %s" d="%s"/><path class="dots %s" d="%s"/>`, class, ranges.String(), class, points.String())
	p.SVG = svg("plot", height, title, out.String())
	return p
}

// roundUp is the next number of 1, 1.5, 2, 3, 4, 5, 6, 8 by a power of ten.
func roundUp(v float64) float64 {
	if v <= 0 || math.IsInf(v, 0) || math.IsNaN(v) {
		return 1
	}
	power := math.Pow(10, math.Floor(math.Log10(v)))
	for _, f := range []float64{1, 1.5, 2, 3, 4, 5, 6, 8} {
		if v <= f*power {
			return f * power
		}
	}
	return 10 * power
}

func short2(v float64) string { return strconv.FormatFloat(v, 'g', 3, 64) }
