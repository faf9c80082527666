package engine

import "time"

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

// watch measures the phases of an operation.
type watch struct {
	Phases
	last time.Time
}

// done ends a phase, which began when the one before ended.
func (w *watch) done(phase *float64) {
	now := time.Now()
	*phase += now.Sub(w.last).Seconds()
	w.last = now
}
