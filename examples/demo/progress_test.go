package main

import (
	"bytes"
	"testing"
	"time"
)

func TestBarsNeedATerminalThatMoves(t *testing.T) {
	for terminal, want := range map[string]bool{"": false, "dumb": false, "xterm-256color": true, "linux": true} {
		if moves(terminal) != want {
			t.Errorf("TERM=%s: %v, want %v", terminal, !want, want)
		}
	}
}

func TestAnUnchangedBarIsNotDrawnAgain(t *testing.T) {
	b := &bar{quit: make(chan struct{})}
	ticks, refresh, ended := make(chan time.Time), make(chan any), make(chan struct{})
	go func() {
		defer close(ended)
		b.redraw(ticks, refresh)
	}()
	// A tick is taken only when the one before has been dealt with.
	drawn := func(ticksOffered int) (n int) {
		for range ticksOffered {
			select {
			case ticks <- time.Time{}:
			case <-refresh:
				n++
			}
		}
		return n
	}
	if n := drawn(5); n != 0 {
		t.Errorf("drawn %d times, and nothing has changed", n)
	}
	b.say("under ebb")
	if n := drawn(6); n != 1 {
		t.Errorf("drawn %d times after one change", n)
	}
	b.changed.Store(true) // perhaps at a tick; nobody draws any more
	close(b.quit)
	<-ended
}

func TestABarIsTakenOffTheTerminal(t *testing.T) {
	for name, events := range map[string][]event{
		"at once":  nil,
		"midway":   {{Event: "loss"}, {Event: "loss", Rank: 1}, {Event: "pause"}, {Event: "memory"}},
		"complete": {{Event: "loss"}, {Event: "loss"}, {Event: "loss"}, {Event: "loss"}, {Event: "pause"}, {Event: "rollout"}, {Event: "resume"}},
	} {
		var out bytes.Buffer
		b := newBar(&out, config{Cycles: 1, Steps: 1})
		b.say("without parking")
		for _, e := range events {
			b.event(e)
		}
		b.stop() // hangs if the bar is never drawn
		if name != "at once" && !bytes.Contains(out.Bytes(), []byte("without parking")) {
			t.Errorf("%s: drawn as %q", name, out.String())
		}
	}
}
