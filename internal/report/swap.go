package report

import (
	"cmp"
	"encoding/json"
	"slices"
	"time"

	"github.com/ebb-offload/ebb/internal/control"
)

// HandOver is one run of `ebb swap`.
type HandOver struct {
	To      string    `json:"to"` // rollout, train
	Begin   time.Time `json:"begin"`
	Seconds float64   `json:"seconds"`
	Bytes   uint64    `json:"bytes"` // that ranks moved
	Steps   []Step    `json:"steps"`
	Error   string    `json:"error,omitempty"`
	Stands  string    `json:"stands,omitempty"` // after an error: who holds the memory
	Cut     bool      `json:"without_end,omitempty"`
}

// Step is a part of a hand-over, those of all ranks, devices or engines together.
type Step struct {
	Step    string  `json:"step"`    // pause, resume, memory, engine_sleep, engine_wake
	Count   int     `json:"count"`   // ranks, devices, engines
	Begin   float64 `json:"begin_s"` // seconds from the begin of the hand-over to that of its first part
	End     float64 `json:"end_s"`   // likewise, to the end of its last one
	Longest string  `json:"longest"` // the part that took longest
}

// Operations of hand-overs in their logs.
var toWhom = map[string]string{"to_rollout": "rollout", "to_train": "train"}

// maxParts bounds what is kept of one hand-over.
const maxParts = 4096

// handOvers puts the events of a log of `ebb swap` together. Each hand-over is a process of its own, and one
// follows the other.
func handOvers(events []control.Event) []HandOver {
	slices.SortStableFunc(events, func(a, b control.Event) int {
		return cmp.Or(a.Time.Compare(b.Time), cmp.Compare(a.Seq, b.Seq))
	})
	var all []HandOver
	var parts []control.Event
	open := false
	end := func() {
		if !open {
			return
		}
		h := &all[len(all)-1]
		h.Steps, h.Bytes = steps(*h, parts), moved(parts)
		open = false
	}
	for _, e := range events {
		to, known := toWhom[e.Operation]
		if !known {
			continue
		}
		switch e.Kind {
		case control.EventBegin:
			end()
			all = append(all, HandOver{To: to, Begin: e.Time.UTC(), Cut: true})
			parts, open = parts[:0], true
		case control.EventPhase:
			if open && len(parts) < maxParts {
				parts = append(parts, e)
			}
		case control.EventEnd:
			if !open {
				continue
			}
			h := &all[len(all)-1]
			var said struct {
				Stands string `json:"stands"`
			}
			_ = json.Unmarshal(e.Outcome, &said) // without one it says less
			h.Seconds, h.Error, h.Stands, h.Cut = e.Seconds, e.Error, excerpt(said.Stands), false
			if h.Seconds == 0 {
				h.Seconds = sane(e.Time.Sub(h.Begin).Seconds())
			}
			end()
		}
	}
	end()
	return all
}

// steps joins the parts of a hand-over by their kind, in the order of their ends.
func steps(h HandOver, parts []control.Event) []Step {
	list := []Step{}
	longest := map[string]float64{}
	for _, e := range parts {
		i := slices.IndexFunc(list, func(s Step) bool { return s.Step == e.Phase })
		end := sane(e.Time.Sub(h.Begin).Seconds())
		begin := max(0, end-e.Seconds)
		if i < 0 {
			list = append(list, Step{Step: e.Phase, Begin: begin})
			i = len(list) - 1
		}
		s := &list[i]
		s.Count++
		s.Begin, s.End = min(s.Begin, begin), max(s.End, end)
		if e.Seconds >= longest[e.Phase] {
			longest[e.Phase], s.Longest = e.Seconds, shortName(e.Who)
		}
	}
	return list
}

// moved adds up what the ranks of a hand-over moved.
func moved(parts []control.Event) (n uint64) {
	for _, e := range parts {
		if e.Phase == "pause" || e.Phase == "resume" {
			n = plus(n, e.Bytes)
		}
	}
	return n
}
