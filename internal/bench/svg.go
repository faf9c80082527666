package bench

import (
	"cmp"
	"encoding/xml"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
)

// Geometry of the plot, in pixels.
const (
	plotWidth   = 920
	plotHeight  = 440
	panelWidth  = 380
	panelHeight = 280
	panelTop    = 84
)

// Colours for light and dark backgrounds. The page decides which holds.
const plotStyle = `
svg { --paper: #ffffff; --ink: #1f2328; --faint: #d0d7de; --soft: #59636e; --a: #0b62c4; --b: #b4540a; }
@media (prefers-color-scheme: dark) {
  svg { --paper: #0f1318; --ink: #e6edf3; --faint: #30363d; --soft: #9198a1; --a: #6cb0ff; --b: #f0a35e; }
}
text { font: 13px system-ui, "DejaVu Sans", sans-serif; fill: var(--ink); }
.title { font-size: 15px; font-weight: 600; }
.small { font-size: 12px; fill: var(--soft); }
.grid { stroke: var(--faint); stroke-width: 1; }
.axis { stroke: var(--soft); stroke-width: 1; }
.raw { stroke: var(--ink); stroke-width: 1.5; stroke-dasharray: 6 4; fill: none; }
.a { stroke: var(--a); fill: var(--a); } .b { stroke: var(--b); fill: var(--b); }
.line { stroke-width: 2; fill: none; }
.dot { fill-opacity: 0.55; }
`

// WriteSVG draws seconds against bytes: a panel for pauses and one for resumes, with the raw rate
// as a line.
func (r Report) WriteSVG(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img">`+"\n",
		plotWidth, plotHeight, plotWidth, plotHeight)
	fmt.Fprintf(&b, "<title>ebb bench: seconds against bytes</title>\n<style>%s</style>\n", plotStyle)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" style="fill: var(--paper)"/>`+"\n", plotWidth, plotHeight)
	text(&b, 24, 28, "title", "start", "Seconds to pause and resume, against bytes")
	text(&b, 24, 48, "small", "start", cut(r.caption(), 130))
	libraries := r.plotted()
	r.panel(&b, 64, "pause", "write", libraries)
	r.panel(&b, 64+panelWidth+70, "resume", "read", libraries)
	legend(&b, libraries)
	b.WriteString("</svg>\n")
	_, err := io.WriteString(w, b.String())
	return err
}

func (r Report) caption() string {
	parts := []string{r.Machine.Device}
	for _, d := range r.Machine.Disks {
		parts = append(parts, d.Dir+" ("+d.FileSystem+")")
	}
	parts = append(parts, "random bytes, "+r.Setup.workers())
	return strings.Join(parts, " · ")
}

func cut(s string, n int) string {
	if runes := []rune(s); len(runes) > n {
		return string(runes[:n-1]) + "…"
	}
	return s
}

// plotted are the libraries that have points, ebb first.
func (r Report) plotted() []string {
	set := map[string]bool{}
	for _, p := range r.Points {
		if p.Library != "raw" {
			set[p.Library] = true
		}
	}
	rank := func(library string) int { // ebb first
		if library == "ebb" {
			return 0
		}
		return 1
	}
	return slices.SortedFunc(maps.Keys(set), func(a, b string) int {
		return cmp.Or(rank(a)-rank(b), strings.Compare(a, b))
	})
}

// classes are the styles of the libraries, in their order.
var classes = []string{"a", "b"}

// panel draws one operation with its raw limit.
func (r Report) panel(b *strings.Builder, left float64, operation, raw string, libraries []string) {
	largest, longest := 0.0, 0.0
	var rates []float64 // seconds a byte
	for _, p := range r.Points {
		switch p.Operation {
		case raw:
			rates = append(rates, p.Seconds/float64(p.Bytes))
		case operation:
			longest = max(longest, p.Seconds)
		default:
			continue
		}
		largest = max(largest, float64(p.Bytes))
	}
	scale := float64(gib)
	unitName := "GiB"
	if largest < gib {
		scale, unitName = mib, "MiB"
	}
	xs := ticks(largest / scale)
	limit := 0.0
	if len(rates) > 0 {
		limit = median(rates)
	}
	ys := ticks(max(longest, limit*largest))
	const bottom = panelTop + panelHeight
	x := func(bytes float64) float64 { return left + bytes/scale/xs[len(xs)-1]*panelWidth }
	y := func(seconds float64) float64 { return bottom - seconds/ys[len(ys)-1]*panelHeight }

	for _, t := range ys {
		line(b, "grid", left, y(t), left+panelWidth, y(t))
		text(b, left-8, y(t)+4, "small", "end", trimmedTick(t))
	}
	for _, t := range xs {
		line(b, "axis", x(t*scale), bottom, x(t*scale), bottom+5)
		text(b, x(t*scale), bottom+20, "small", "middle", trimmedTick(t))
	}
	line(b, "axis", left, bottom, left+panelWidth, bottom)
	text(b, left, panelTop-10, "", "start", operation+", seconds")
	text(b, left+panelWidth, bottom+38, "small", "end", unitName)
	if limit > 0 {
		end := min(largest, ys[len(ys)-1]/limit)
		line(b, "raw", x(0), y(0), x(end), y(limit*end))
	}
	for i, library := range libraries {
		r.dots(b, operation, library, classes[i%len(classes)], x, y)
	}
}

// dots draws every operation of a library, and a line through the medians.
func (r Report) dots(b *strings.Builder, operation, library, class string, x, y func(float64) float64) {
	at := map[uint64][]float64{}
	for _, p := range r.Points {
		if p.Operation == operation && p.Library == library {
			at[p.Bytes] = append(at[p.Bytes], p.Seconds)
			fmt.Fprintf(b, `<circle class="%s dot" cx="%.1f" cy="%.1f" r="3"/>`+"\n", class, x(float64(p.Bytes)), y(p.Seconds))
		}
	}
	var points []string
	for _, bytes := range slices.Sorted(maps.Keys(at)) {
		points = append(points, fmt.Sprintf("%.1f,%.1f", x(float64(bytes)), y(median(at[bytes]))))
	}
	fmt.Fprintf(b, `<polyline class="%s line" style="fill: none" points="%s"/>`+"\n", class, strings.Join(points, " "))
}

func legend(b *strings.Builder, libraries []string) {
	const y = plotHeight - 16
	at := 64.0
	line(b, "raw", at, y-4, at+28, y-4)
	text(b, at+36, y, "", "start", "raw O_DIRECT")
	at += 160
	for i, library := range libraries {
		line(b, classes[i%len(classes)]+" line", at, y-4, at+28, y-4)
		text(b, at+36, y, "", "start", library)
		at += 100
	}
	text(b, plotWidth-24, y, "small", "end", "dots: operations; lines: medians; lower is faster")
}

func line(b *strings.Builder, class string, x1, y1, x2, y2 float64) {
	fmt.Fprintf(b, `<line class="%s" x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f"/>`+"\n", class, x1, y1, x2, y2)
}

func text(b *strings.Builder, x, y float64, class, anchor, s string) {
	fmt.Fprintf(b, `<text class="%s" x="%.1f" y="%.1f" text-anchor="%s">`, class, x, y, anchor)
	_ = xml.EscapeText(b, []byte(s)) // a Builder takes everything
	b.WriteString("</text>\n")
}

// ticks are some round numbers from 0 on, the last of which is at least top.
func ticks(top float64) []float64 {
	if !(top > 0) || math.IsInf(top, 0) {
		top = 1
	}
	step := math.Pow(10, math.Floor(math.Log10(top/4)))
	for _, m := range []float64{1, 2, 5, 10} {
		if top/(step*m) <= 5 {
			step *= m
			break
		}
	}
	list := []float64{0}
	for i := 1; list[len(list)-1] < top*(1-1e-9); i++ {
		list = append(list, float64(i)*step)
	}
	return list
}

func trimmedTick(v float64) string { return fmt.Sprintf("%.4g", v) }
