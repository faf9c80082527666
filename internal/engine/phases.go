package engine

import (
	"fmt"
	"strings"
	"time"

	"github.com/ebb-offload/ebb/internal/control"
	"github.com/ebb-offload/ebb/internal/pipeline"
)

// Phases are the parts of one pause or resume, in seconds: a part that comes several times is counted together. A
// pause has them in the order of the first seven, a resume in that of the others.
type Phases struct {
	Wait   float64 `json:"wait,omitempty"`   // for the actor's work on the devices
	Room   float64 `json:"room,omitempty"`   // taken in host memory and files, or found there
	Hash   float64 `json:"hash,omitempty"`   // all memory, to find what need not move
	Move   float64 `json:"move,omitempty"`   // to the backups, or from them
	Check  float64 `json:"check,omitempty"`  // all memory, against what the backups hold
	Commit float64 `json:"commit,omitempty"` // of the backups
	Unmap  float64 `json:"unmap,omitempty"`  // and the release of the memory

	Create float64 `json:"create,omitempty"` // memory
	Map    float64 `json:"map,omitempty"`    // what was not mapped while blocks were moved

	Rest float64 `json:"rest,omitempty"` // of both
}

// watch measures the phases of an operation, and tells of each when it ends.
type watch struct {
	Phases
	last   time.Time
	teller *teller
	moved  *pipeline.Moved // by now; nil: nothing yet
}

// done ends a phase, which began when the one before ended.
func (w *watch) done(phase *float64) {
	now := time.Now()
	took := now.Sub(w.last).Seconds()
	*phase += took
	w.last = now
	if phase == &w.Rest { // of no interest by itself
		return
	}
	w.teller.tell(control.EventPhase, func(ev *control.Event) {
		ev.Phase, ev.Seconds = w.name(phase), took
		if w.moved != nil {
			ev.Bytes = w.moved.Host() + w.moved.Disk()
		}
	})
}

// phase is one of the Phases.
type phase struct {
	name    string
	seconds *float64
}

// list are the phases in the order in which they come, of a pause or of a resume.
func (p *Phases) list() []phase {
	return []phase{
		{"wait", &p.Wait}, {"room", &p.Room}, {"create", &p.Create}, {"hash", &p.Hash}, {"move", &p.Move}, {"map", &p.Map},
		{"check", &p.Check}, {"commit", &p.Commit}, {"unmap", &p.Unmap}, {"rest", &p.Rest},
	}
}

func (p *Phases) name(of *float64) string {
	for _, phase := range p.list() {
		if phase.seconds == of {
			return phase.name
		}
	}
	return ""
}

// String lists the phases that took time.
func (p Phases) String() string {
	var parts []string
	for _, phase := range p.list() {
		if *phase.seconds >= 0.0005 { // the others would read 0.000
			parts = append(parts, fmt.Sprintf("%s %.3f s", phase.name, *phase.seconds))
		}
	}
	return strings.Join(parts, ", ")
}
