package report

import "slices"

// state is what a process does at a time.
type state int

const (
	train    state = iota // its memory is on the device
	pausing               // on the way off it
	away                  // parked: the device is for the rollout
	resuming              // on the way back
	states   = 4
)

// Names of states, for people.
var stateNames = [states]string{"train", "pause", "rollout", "resume"}

// stretch is a time in one state, in Unix nanoseconds.
type stretch struct {
	from, to int64
	state    state
}

// maxStretches is how many a timeline keeps as they are. More of them than columns on a screen are not to be
// told apart.
const maxStretches = 600

// Columns of a timeline that is no longer exact.
const denseColumns = 400

// columns is how long each state took, in nanoseconds, in columns of equal width.
type columns struct {
	from, to int64
	in       [][states]float64
}

func newColumns(from, to int64, n int) columns {
	return columns{from: from, to: max(to, from+1), in: make([][states]float64, n)}
}

// width is that of a column, in nanoseconds.
func (c columns) width() float64 { return float64(c.to-c.from) / float64(len(c.in)) }

// add spreads ns nanoseconds in a state evenly over a time; what lies outside of the columns is left out.
func (c columns) add(from, to int64, s state, ns float64) {
	if to <= from || ns <= 0 {
		return
	}
	per := ns / float64(to-from)
	w := c.width()
	first := max(0, int(float64(from-c.from)/w))
	for i := first; i < len(c.in); i++ {
		low := max(float64(from-c.from), float64(i)*w)
		high := min(float64(to-c.from), float64(i+1)*w)
		if high <= low {
			if float64(i)*w >= float64(to-c.from) {
				return
			}
			continue
		}
		c.in[i][s] += (high - low) * per
	}
}

// timeline is a rank's states over time, exact or in columns.
type timeline struct {
	exact []stretch
	dense *columns // instead, if there are too many stretches
}

// timelineOf are the states of a rank's processes.
func timelineOf(list []process) (t timeline, totals [states]float64) {
	if len(list) == 0 {
		return t, totals
	}
	var all []stretch
	from, to := list[0].begin, list[0].end
	for _, p := range list {
		from, to = min(from, p.begin), max(to, p.end)
		p.states(func(from, to int64, s state) {
			all = append(all, stretch{from, to, s})
			totals[s] += float64(to - from)
		})
	}
	if len(all) <= maxStretches {
		t.exact = all
		return t, totals
	}
	dense := newColumns(from, to, denseColumns)
	for _, s := range all {
		dense.add(s.from, s.to, s.state, float64(s.to-s.from))
	}
	t.dense = &dense
	return t, totals
}

// join puts another timeline of the same rank after this one.
func (t *timeline) join(o timeline) {
	switch {
	case t.dense == nil && o.dense == nil && len(t.exact)+len(o.exact) <= maxStretches:
		t.exact = append(t.exact, o.exact...)
		slices.SortFunc(t.exact, func(a, b stretch) int { return int(min(max(a.from-b.from, -1), 1)) })
	default:
		low, high, _ := t.span()
		l, h, any := o.span()
		if !any {
			return
		}
		dense := newColumns(min(low, l), max(high, h), denseColumns)
		t.into(dense)
		o.into(dense)
		*t = timeline{dense: &dense}
	}
}

// span is the time from the first to the last; false: there is none.
func (t timeline) span() (from, to int64, any bool) {
	if t.dense != nil {
		return t.dense.from, t.dense.to, true
	}
	for i, s := range t.exact {
		if i == 0 {
			from, to = s.from, s.to
		}
		from, to = min(from, s.from), max(to, s.to)
	}
	return from, to, len(t.exact) > 0
}

// into adds the timeline to columns.
func (t timeline) into(c columns) {
	for _, s := range t.exact {
		c.add(s.from, s.to, s.state, float64(s.to-s.from))
	}
	if t.dense == nil {
		return
	}
	w := t.dense.width()
	for i, in := range t.dense.in {
		from := t.dense.from + int64(float64(i)*w)
		to := t.dense.from + int64(float64(i+1)*w)
		for s, ns := range in {
			c.add(from, max(to, from+1), state(s), ns)
		}
	}
}
