package main

import (
	"bytes"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/ebb-offload/ebb/internal/control"
	"github.com/ebb-offload/ebb/internal/node"
	"github.com/ebb-offload/ebb/internal/sizing"
)

// Where no seconds stand it is said why, of each rank that it concerns.
func TestAForecastWithoutSecondsSaysWhy(t *testing.T) {
	rank := func(name string, last *node.LastOperation) node.RankStatus {
		s := node.RankStatus{Rank: node.Rank{Who: control.Who{Role: "actor", Cell: "0", Rank: name}}}
		s.Status.Active, s.Status.LastPause, s.Status.Pauses = 8<<30, last, 1
		return s
	}
	var o planOptions
	r := o.forecast(found{}, []node.RankStatus{
		rank("0", &node.LastOperation{Bytes: 8 << 30, DiskBytes: 8 << 30, Seconds: 4}),
		rank("1", &node.LastOperation{Bytes: 8 << 30, SkippedSame: 8 << 30, Seconds: 0.1}),
		rank("2", nil),
		rank("a-name-that-is-longer-than-a-row-has-room-for-beside-all-that-must-stand-in-it-too", &node.LastOperation{Error: "disk full"}),
	})
	var text bytes.Buffer
	r.print(&text, o)
	said := strings.Join(strings.Fields(text.String()), " ")
	for _, want := range []string{
		"so that the next one may take less than is said: actor/0/0 -",
		"The latest pause had nothing to move, all of it being zero or in the backup already, and tells nothing of one after a step: actor/0/1 -",
		"no pause was done yet, or the latest one failed: actor/0/2, actor/0/a-name",
		"A resume is not predicted where none was done yet, or the latest one failed, unless --disk-write and --disk-read say how fast the disk is (--link for host memory): actor/0/0, actor/0/1 -",
	} {
		if !strings.Contains(said+" -", want) {
			t.Errorf("%q is not said:\n%s", want, &text)
		}
	}
	if r.Ranks[0].Pause.Moved != 8<<30 || !r.Ranks[0].Pause.Seconds.Known() || r.Ranks[1].Pause.Seconds.Known() {
		t.Errorf("%+v", r.Ranks)
	}
	for line := range strings.Lines(text.String()) {
		if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > textWidth {
			t.Errorf("%d columns: %s", n, line)
		}
	}
}

// A rate that is given takes the place of a resume that was not done yet: nothing is left to be said.
func TestAResumeIsPredictedByAGivenRate(t *testing.T) {
	s := node.RankStatus{Rank: node.Rank{Who: control.Who{Role: "actor", Cell: "0", Rank: "0"}}}
	s.Status.Paused, s.Status.Pauses = 8<<30, 2
	s.Status.LastPause = &node.LastOperation{Bytes: 8 << 30, DiskBytes: 8 << 30, Seconds: 4}
	var o planOptions
	o.write, o.read = sizing.Of(2e9), sizing.Of(2e9)
	r := o.forecast(found{}, []node.RankStatus{s})
	if !r.Ranks[0].Resume.Seconds.Known() || strings.Contains(strings.Join(r.Notes, " "), "A resume is not predicted") {
		t.Errorf("%+v", r)
	}
}
