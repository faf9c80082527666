package launch

import (
	"strings"
	"sync"
	"testing"

	"github.com/ebb-offload/ebb/internal/control"
	"github.com/ebb-offload/ebb/internal/node"
)

// said is what a rank answers.
func said(rank string, active, paused uint64, doing, err string) rankState {
	last := &node.LastOperation{Bytes: 4e9, Seconds: 2}
	s := rankState{doing: doing}
	s.Rank.Who = control.Who{Job: "j", Role: "actor", Cell: "0", Rank: rank, PID: 7}
	s.Err = err
	s.Status = node.Status{Active: active, Paused: paused, LastPause: last, Tags: []node.TagStatus{{Active: active, InFiles: paused}}}
	return s
}

func TestTheStatusLineSaysWhatTheRanksSay(t *testing.T) {
	for _, c := range []struct {
		ranks  int
		states []rankState
		silent []string
		want   string
	}{
		{2, nil, nil, "2 ranks: none has GPU memory that ebb manages, or none has a control socket"},
		{1, []rankState{said("0", 5e9, 0, "", "")}, nil, "1 rank: 5.0 GB on the devices, 0 B parked; 1 resident; last pause 4.0 GB in 2.00 s (2.00 GB/s)"},
		{
			6, []rankState{said("0", 0, 5e9, "", ""), said("1", 1e9, 4e9, "pause, move 43 %", ""), said("2", 0, 0, "", "no answer in time")}, []string{"rank 3: gone"},
			"6 ranks: 1.0 GB on the devices, 9.0 GB parked (9.0 GB in files, 0 B in host memory); 1 parked, 1 at it (pause, move 43 %), 2 without GPU memory; last pause 8.0 GB in 2.00 s (4.00 GB/s); no answer from rank 3: gone, rank 2: no answer in time",
		},
	} {
		got, attrs := statusLine(c.ranks, c.states, c.silent)
		if got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
		if len(attrs)%2 != 0 {
			t.Errorf("%d attributes", len(attrs))
		}
	}
}

func TestOnlyRanksOfThisRunAreAsked(t *testing.T) {
	a := newAsker([]Rank{{Job: "j", Role: "actor", Rank: 0}, {Job: "j", Role: "actor", Rank: 1}}, Lookup(nil))
	all := []node.Rank{}
	for _, w := range []control.Who{
		{Job: "j", Role: "actor", Cell: "0", Rank: "1", PID: 1}, {Job: "other", Role: "actor", Cell: "0", Rank: "1", PID: 2},
		{Job: "j", Role: "critic", Cell: "0", Rank: "1", PID: 3}, {Job: "j", Role: "actor", Cell: "1", Rank: "1", PID: 4}, {PID: 5},
	} {
		all = append(all, node.Rank{Who: w})
	}
	if got := a.ours(all); len(got) != 1 || got[0].PID != 1 {
		t.Errorf("%+v", got)
	}
}

func TestWhatARankIsAtComesFromItsEvents(t *testing.T) {
	var doing sync.Map
	for _, c := range []struct {
		event control.Event
		want  string
	}{
		{control.Event{Kind: control.EventBegin, Operation: "pause"}, "pause"},
		{control.Event{Kind: control.EventProgress, Operation: "pause", Phase: "move", Bytes: 1, Total: 4}, "pause, move 25 %"},
		{control.Event{Kind: control.EventAsked}, "pause, move 25 %"},
		{control.Event{Kind: control.EventEnd, Operation: "pause"}, ""},
	} {
		note(&doing, c.event)
		got, _ := doing.Load(0)
		if text, _ := got.(string); !strings.EqualFold(text, c.want) {
			t.Errorf("after %s: %q, want %q", c.event.Kind, text, c.want)
		}
	}
}
