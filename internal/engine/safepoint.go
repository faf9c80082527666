package engine

import (
	"fmt"
	"sync"
	"time"

	"github.com/ebb-offload/ebb/internal/control"
)

// gate lets a pause that another thread asks for take effect only while the actor is idle.
//
// Its mutex comes before the table's and is held for short sections only; waiters use the
// channels.
type gate struct {
	parked func() bool // whether a request paused memory that is not back yet: the table's word

	mu      sync.Mutex
	idle    int           // idle sections that were begun and not ended
	asked   []*request    // waiting for the actor to be idle
	running int           // requests that pause now
	changed chan struct{} // closed and made anew when running changes, and when memory is back
}

// request is one pause asked for.
type request struct {
	admitted chan struct{} // closed when the actor is idle for it
}

func newGate(parked func() bool) *gate {
	return &gate{parked: parked, changed: make(chan struct{})}
}

// signal wakes those that wait for a change. Called with mu held.
func (g *gate) signal() {
	close(g.changed)
	g.changed = make(chan struct{})
}

// admit lets all waiting requests go ahead. Called with mu held, while the actor is idle.
func (g *gate) admit() {
	for _, r := range g.asked {
		g.running++
		close(r.admitted)
	}
	g.asked = nil
}

// begin starts an idle section.
func (g *gate) begin() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.idle++
	g.admit()
}

// end ends an idle section: it waits until no request runs and nothing that one paused is still
// away; what the program paused itself is its own to bring back. Requests that come meanwhile are admitted, since the actor still waits.
func (g *gate) end() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.idle == 0 {
		return fmt.Errorf("%w: no idle section was begun", ErrState)
	}
	for g.running > 0 || g.parked() {
		changed := g.changed
		g.mu.Unlock()
		<-changed
		g.mu.Lock()
	}
	g.idle--
	return nil
}

// ask asks for a pause. The actor may be idle for it already.
func (g *gate) ask() *request {
	r := &request{admitted: make(chan struct{})}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.asked = append(g.asked, r)
	if g.idle > 0 {
		g.admit()
	}
	return r
}

// isAdmitted reports whether the actor is idle for a request.
func (r *request) isAdmitted() bool {
	select {
	case <-r.admitted:
		return true
	default:
		return false
	}
}

// wait returns when the actor is idle for a request; false when it is not within the timeout
// (negative: no limit), or before gone is closed. After true, done must be called.
func (g *gate) wait(r *request, timeout time.Duration, gone <-chan struct{}) bool {
	var late <-chan time.Time
	if timeout >= 0 {
		timer := time.NewTimer(timeout)
		defer timer.Stop()
		late = timer.C
	}
	select {
	case <-r.admitted:
		return true
	case <-late:
	case <-gone:
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for i := range g.asked {
		if g.asked[i] == r {
			g.asked = append(g.asked[:i], g.asked[i+1:]...)
			return false
		}
	}
	return true // admitted at the last moment
}

// done ends a request that was let go ahead.
func (g *gate) done() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.running--
	g.signal()
}

// resumed is called after memory left the paused state.
func (g *gate) resumed() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.signal()
}

// Idle begins or ends a section in which the actor does not touch its memory. The end waits
// while a requested pause runs, and until what it paused is back.
func (e *Engine) Idle(begin bool) error {
	if begin {
		e.gate.begin()
		return nil
	}
	return e.gate.end()
}

// SafePoint is a short idle section: it lets a pause that was asked for take place, and returns
// when the memory is back, or at once.
func (e *Engine) SafePoint() error {
	e.gate.begin()
	return e.gate.end()
}

// RequestPause is Pause at the actor's next safe point. timeout is how long to wait for that;
// negative: no limit. Where there is nothing to pause, since all of it is paused already, it does nothing and needs
// no safe point.
func (e *Engine) RequestPause(tags []string, timeout time.Duration, s Settings) (Result, error) {
	switch some, err := e.table.ToPause(tags); {
	case err != nil:
		return Result{}, err
	case some:
	case len(tags) == 0 && e.table.Len() == 0:
		return Result{}, e.refuseUnmanaged(s)
	default:
		return Result{}, nil
	}
	if err := e.waitForSafePoint(tags, timeout, s); err != nil {
		return Result{}, err
	}
	defer e.gate.done()
	s.requested = true
	return e.Pause(tags, s)
}

// waitForSafePoint returns when the actor is idle for a pause of the tags; after that, gate.done must be called. Whoever
// asked on the control socket may go away meanwhile.
func (e *Engine) waitForSafePoint(tags []string, timeout time.Duration, s Settings) error {
	r := e.gate.ask()
	if r.isAdmitted() {
		return nil
	}
	o := e.newTeller(opPause, tags, s)
	o.tell(control.EventAsked, func(*control.Event) {})
	if e.gate.wait(r, timeout, e.remote.gone(s.Ask)) {
		return nil
	}
	err := fmt.Errorf("%w: the actor came to no safe point within %v (ebb.idle, ebb.safe_point)", ErrTimeout, timeout.Round(time.Millisecond))
	if e.remote.withdraw(s.Ask) {
		err = errWithdrawn
	}
	o.tell(control.EventWithdraw, func(ev *control.Event) { ev.Error = err.Error() })
	return err
}
