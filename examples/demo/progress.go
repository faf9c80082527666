package main

import (
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
)

// bar shows how far the demo is, on a terminal. A nil *bar shows nothing.
type bar struct {
	container *mpb.Progress
	bar       *mpb.Bar
	run, now  atomic.Value // string: which of the two runs, and what it is doing
	changed   atomic.Bool  // since it was drawn last
	quit      chan struct{}
}

// refreshInterval is how often a bar that changed is drawn.
const refreshInterval = 150 * time.Millisecond

// moves reports whether a terminal of that type ($TERM) can take back what it shows.
func moves(terminal string) bool { return terminal != "" && terminal != "dumb" }

// newBar starts a bar on a terminal. Its length is the number of rank 0's steps in both runs
// and the pause, rollout and resume of each cycle.
func newBar(w io.Writer, c config) *bar {
	refresh := make(chan any)
	b := &bar{
		container: mpb.New(mpb.WithOutput(w), mpb.WithWidth(40), mpb.WithManualRefresh(refresh)),
		quit:      make(chan struct{}),
	}
	b.run.Store("")
	b.now.Store("")
	total := 2*c.phases()*c.Steps + 3*c.Cycles
	label := func(decor.Statistics) string {
		return fmt.Sprintf("%-36s", b.run.Load().(string)+b.now.Load().(string))
	}
	b.bar = b.container.New(int64(total), mpb.BarStyle(), mpb.BarRemoveOnComplete(),
		mpb.PrependDecorators(decor.Any(label)), mpb.AppendDecorators(decor.Percentage(decor.WCSyncSpace)))
	go func() {
		ticker := time.NewTicker(refreshInterval)
		defer ticker.Stop()
		b.redraw(ticker.C, refresh)
	}()
	return b
}

// redraw has the bar drawn at a tick if it has changed: an unchanged one only flickers, and fills the
// record of a terminal.
func (b *bar) redraw(ticks <-chan time.Time, refresh chan<- any) {
	for {
		select {
		case now := <-ticks:
			if !b.changed.Swap(false) {
				continue
			}
			select {
			case refresh <- now:
			case <-b.quit:
				return
			}
		case <-b.quit:
			return
		}
	}
}

// say names the run that begins.
func (b *bar) say(run string) {
	if b != nil {
		b.run.Store(run)
		b.now.Store(": starting")
		b.changed.Store(true)
	}
}

func (b *bar) event(e event) {
	if b == nil || e.Rank != 0 {
		return
	}
	switch e.Event {
	case "loss":
		b.now.Store(fmt.Sprintf(": step %d", e.Step+1))
	case "pause":
		b.now.Store(fmt.Sprintf(": cycle %d, rollout", e.Cycle))
	case "rollout":
		b.now.Store(fmt.Sprintf(": cycle %d, resume", e.Cycle))
	case "resume":
		b.now.Store(fmt.Sprintf(": cycle %d, training", e.Cycle))
	default:
		return
	}
	b.bar.Increment()
	b.changed.Store(true)
}

// stop takes the bar off the terminal.
func (b *bar) stop() {
	if b != nil {
		close(b.quit)
		b.bar.Abort(true)
		b.container.Wait()
	}
}
