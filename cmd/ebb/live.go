package main

import (
	"fmt"
	"sync"
	"time"

	"github.com/ebb-offload/ebb/internal/control"
	"github.com/ebb-offload/ebb/internal/launch"
	"github.com/ebb-offload/ebb/internal/node"
)

// live is what ranks do at this moment, as their events and their statuses tell.
type live struct {
	mu    sync.Mutex // guards all below
	ranks []*liveRank
}

// liveRank is one rank. A running operation is in the first group of fields.
type liveRank struct {
	who       control.Who
	operation string // "" : none
	doing     string
	bytes     uint64 // moved, of total
	total     uint64
	moving    time.Time // since when
	rate      float64   // bytes a second; 0: not known yet

	asked  time.Time // since when a pause waits for a safe point; zero: none does
	status *node.Status
	note   string // how it went, or why it does not answer
	over   bool   // nothing more comes of it
}

// newLive has a line for each rank.
func newLive(ranks []node.Rank) *live {
	l := &live{}
	for _, r := range ranks {
		l.ranks = append(l.ranks, &liveRank{who: r.Who})
	}
	return l
}

// of finds a rank, which is added where it is new. Called with mu held.
func (l *live) of(w control.Who) *liveRank {
	for _, r := range l.ranks {
		if r.who == w {
			return r
		}
	}
	r := &liveRank{who: w}
	l.ranks = append(l.ranks, r)
	return r
}

// event takes in what a rank tells.
func (l *live) event(e control.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.of(e.Who)
	switch e.Kind {
	case control.EventAsked:
		r.asked = e.Time
	case control.EventWithdraw:
		r.asked = time.Time{}
	case control.EventBegin:
		r.asked, r.note, r.status = time.Time{}, "", nil
		r.operation, r.doing = e.Operation, "begins"
		r.bytes, r.total, r.rate, r.moving = 0, e.Total, 0, e.Time
	case control.EventPhase:
		r.operation = e.Operation
		if e.Phase == "move" {
			r.doing, r.bytes = "checks", r.total
		} else if r.bytes == 0 {
			r.moving = e.Time // what comes next may be the move
		}
	case control.EventProgress:
		r.operation, r.doing, r.bytes, r.total = e.Operation, "moves", e.Bytes, e.Total
		if spent := e.Time.Sub(r.moving).Seconds(); spent > 0 && !r.moving.IsZero() {
			r.rate = float64(e.Bytes) / spent
		}
	case control.EventEnd:
		r.operation, r.status, r.note = "", nil, briefOutcome(e) // the status is one of before
	case control.EventExit:
		r.operation, r.asked, r.over = "", time.Time{}, true
		r.note = "has exited"
		if e.Error != "" {
			r.note = e.Error
		}
	}
}

// statuses takes in what ranks have where.
func (l *live) statuses(all []node.RankStatus) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range all {
		r := l.of(s.Who)
		if s.Err != "" {
			r.note = "does not answer: " + s.Err
			continue
		}
		r.status = &s.Status
	}
}

// lines are a line for each rank, of at most so many columns. Where there is room for fewer rows, those come first
// that do something, and the last row counts the others.
func (l *live) lines(columns, rows int, now time.Time) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	names := 0
	for _, r := range l.ranks {
		names = max(names, len([]rune(node.ShortName(r.who))))
	}
	names = min(names, max(columns/4, 9))
	shown, hidden := l.ranks, 0
	if len(shown) > rows {
		shown = nil
		for _, busy := range []bool{true, false} {
			for _, r := range l.ranks {
				if r.busy() == busy && len(shown) < rows-1 {
					shown = append(shown, r)
				}
			}
		}
		hidden = len(l.ranks) - len(shown)
	}
	var lines []string
	for _, r := range shown {
		line := []rune(fmt.Sprintf("%-*s  %s", names, cut(node.ShortName(r.who), names), r.line(columns-names-2, now)))
		if len(line) > columns && columns > 0 {
			line = append(line[:columns-1], '…')
		}
		lines = append(lines, string(line))
	}
	if hidden > 0 {
		lines = append(lines, fmt.Sprintf("and %s more", launch.Count(hidden, "rank")))
	}
	return lines
}

func (r *liveRank) busy() bool { return r.operation != "" || !r.asked.IsZero() }

// line is what the rank does, or has where.
func (r *liveRank) line(columns int, now time.Time) string {
	switch {
	case r.operation != "":
		unit := unitFor(r.total)
		figures := fmt.Sprintf("%6s of %6s %s", unit.of(r.bytes), unit.of(r.total), unit.name)
		if r.rate > 0 {
			figures += fmt.Sprintf(" %6s GB/s", short(r.rate/1e9))
		}
		return fmt.Sprintf("%-6s %-6s %s %s", r.operation, r.doing, bar(r.bytes, r.total, max(8, min(30, columns-50))), figures)
	case !r.asked.IsZero():
		return fmt.Sprintf("waits for a safe point, %.0f s", max(0, now.Sub(r.asked).Seconds()))
	case r.status == nil && r.note == "":
		return "has said nothing yet"
	case r.status == nil:
		return r.note
	}
	where := r.status.Where()
	unit := unitFor(where.Device + where.Host + where.Disk + where.Skipped)
	line, between := fmt.Sprintf("%-6s", stateOf(*r.status)), " "
	for _, at := range []struct {
		bytes uint64
		place string
	}{{where.Device, "on the GPU"}, {where.Host, "in host memory"}, {where.Disk, "on disk"}, {where.Skipped, "skipped"}} {
		if at.bytes > 0 {
			line += fmt.Sprintf("%s%s %s %s", between, unit.of(at.bytes), unit.name, at.place)
			between = ", "
		}
	}
	if r.note != "" {
		line += "; " + r.note
	}
	return line
}

// show draws the lines on a board until the function that it returns is called, which takes them away.
func (l *live) show(b *board) (stop func()) {
	if !b.shown() {
		return func() {}
	}
	end, over := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(over)
		tick := time.NewTicker(redraw)
		defer tick.Stop()
		for {
			columns, rows := b.size()
			b.draw(l.lines(columns, rows, time.Now()))
			select {
			case <-tick.C:
			case <-end:
				b.clear()
				return
			}
		}
	}()
	return func() {
		close(end)
		<-over
	}
}

// redraw is the time between two drawings.
const redraw = 200 * time.Millisecond
