package main

import (
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/ebb-offload/ebb/internal/control"
	"github.com/ebb-offload/ebb/internal/node"
)

func whoIs(n int) control.Who {
	return control.Who{Role: "actor", Cell: "0", Rank: fmt.Sprint(n), PID: 100 + n}
}

// The lines of ranks follow what they tell.
func TestALineFollowsItsRank(t *testing.T) {
	l := newLive([]node.Rank{{Who: whoIs(0)}})
	now := time.Now()
	at := func(seconds float64) time.Time { return now.Add(time.Duration(seconds * 1e9)) }
	outcome := []byte(`{"allocations":2,"bytes":4000000000,"seconds":3,"gb_per_s":1.33}`)
	for _, step := range []struct {
		event control.Event
		want  string
	}{
		{control.Event{Kind: control.EventAsked, Time: at(-7)}, "waits for a safe point, 7 s"},
		{control.Event{Kind: control.EventBegin, Operation: "pause", Total: 4e9, Time: at(0)}, "pause  begins ░░░░"},
		{control.Event{Kind: control.EventPhase, Operation: "pause", Phase: "hash", Time: at(1)}, "pause  begins ░░░░"},
		{control.Event{Kind: control.EventProgress, Operation: "pause", Bytes: 1e9, Total: 2e9, Time: at(1.5)}, "1.00 of   2.00 GB   2.00 GB/s"},
		{control.Event{Kind: control.EventPhase, Operation: "pause", Phase: "move", Time: at(2)}, "pause  checks ██████████████████████████████   2.00 of   2.00 GB"},
		{control.Event{Kind: control.EventEnd, Operation: "pause", Outcome: outcome, Time: at(3)}, "last pause 4.00 GB in 3.000 s, 1.33 GB/s"},
		{control.Event{Kind: control.EventEnd, Operation: "resume", Error: "no room", Time: at(4)}, "resume failed: no room"},
		{control.Event{Kind: control.EventExit, Time: at(5)}, "has exited"},
	} {
		step.event.Who = whoIs(0)
		l.event(step.event)
		if got := l.lines(100, 10, now); len(got) != 1 || !strings.HasPrefix(got[0], "actor/0/0  ") || !strings.Contains(got[0], step.want) {
			t.Errorf("after %s: %q, want %q", step.event.Kind, got, step.want)
		}
	}
	l.statuses([]node.RankStatus{{Rank: node.Rank{Who: whoIs(0)}, Status: node.Status{
		Allocations: 1, Paused: 3e9, Tags: []node.TagStatus{{InHost: 1e9, InFiles: 2e9}}}}})
	if got := l.lines(100, 10, now)[0]; !strings.Contains(got, "paused 1.00 GB in host memory, 2.00 GB on disk") {
		t.Error(got)
	}
}

// However small the terminal, those come first that do something, and the others are counted.
func TestLinesFitTheTerminal(t *testing.T) {
	l := newLive(nil)
	for n := range 64 {
		l.event(control.Event{Kind: control.EventExit, Who: whoIs(n), Error: strings.Repeat("long ", 40)})
	}
	l.event(control.Event{Kind: control.EventBegin, Who: whoIs(63), Operation: "resume", Total: 1 << 40})
	for _, size := range [][2]int{{99, 10}, {40, 5}, {20, 3}} {
		lines := l.lines(size[0], size[1], time.Now())
		if len(lines) != size[1] || !strings.Contains(lines[0], "resume") || lines[size[1]-1] != fmt.Sprintf("and %d ranks more", 64-size[1]+1) {
			t.Errorf("%v: %q", size, lines)
		}
		for _, line := range lines {
			if utf8.RuneCountInString(line) > size[0] {
				t.Errorf("%v: %q", size, line)
			}
		}
	}
}

func TestBar(t *testing.T) {
	for _, test := range []struct {
		part, whole uint64
		want        string
	}{{0, 8, "░░░░"}, {2, 8, "█░░░"}, {7, 8, "███░"}, {8, 8, "████"}, {9, 8, "████"}, {0, 0, "████"}} {
		if got := bar(test.part, test.whole, 4); got != test.want {
			t.Errorf("%d of %d: %s, want %s", test.part, test.whole, got, test.want)
		}
	}
}

func TestSizesInBothUnits(t *testing.T) {
	for bytes, want := range map[uint64]string{
		0: "0 bytes", 999_999: "999999 bytes", 24_121_345: "24.1 MB (23.0 MiB)", 40_050_000_000: "40.05 GB (37.30 GiB)",
	} {
		if got := both(bytes); got != want {
			t.Errorf("%d: %s, want %s", bytes, got, want)
		}
	}
	for x, want := range map[float64]string{0: "0.00", 99.5: "99.50", 123.45: "123.5", 123456: "123456"} {
		if got := short(x); got != want {
			t.Errorf("%v: %s, want %s", x, got, want)
		}
	}
}
