package engine

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/ebb-offload/ebb/internal/alloc"
	"github.com/ebb-offload/ebb/internal/control"
	"github.com/ebb-offload/ebb/internal/sizes"
)

// events tell what happens in the engine: to those who subscribed on the control socket, and in the event
// log. None of them makes the engine wait.
type events struct {
	who  control.Who
	host string

	mu      sync.Mutex // guards the fields below; events go out in the order of their numbers
	seq     uint64
	log     *eventLog           // nil: none
	publish func(control.Event) // nil: no control socket
}

// whoOf is who this process is, by what the launcher told.
func whoOf(c Config) control.Who {
	who := control.Who{Job: c.Job, PID: os.Getpid()}
	for _, word := range strings.Fields(c.Identity) {
		switch key, value, _ := strings.Cut(word, "="); key {
		case "role":
			who.Role = value
		case "cell":
			who.Cell = value
		case "rank":
			who.Rank = value
		}
	}
	return who
}

func (e *Engine) makeEvents() {
	e.events.who = whoOf(e.config)
	e.events.host, _ = os.Hostname() // unknown: the events are without it
	if e.config.EventLog != "" {
		e.events.log = newEventLog(e.config.EventLog, e.sayOnce)
	}
}

// tell sends an event out.
func (e *Engine) tell(ev control.Event) {
	t := &e.events
	t.mu.Lock()
	defer t.mu.Unlock()
	t.seq++
	if t.log == nil && t.publish == nil {
		return
	}
	ev.V, ev.Time, ev.Seq, ev.Who, ev.Host = control.Version, time.Now(), t.seq, t.who, t.host
	if t.log != nil {
		t.log.add(ev)
	}
	if t.publish != nil {
		t.publish(ev)
	}
}

// Who asked for an operation.
const (
	byProgram = "program"
	byControl = "control"
)

func (s Settings) by() string {
	if s.Ask != 0 {
		return byControl
	}
	return byProgram
}

// teller tells of one pause or resume.
type teller struct {
	e     *Engine
	event control.Event // what all its events have
	begun bool
}

func (e *Engine) newTeller(name string, tags []string, s Settings) *teller {
	return &teller{e: e, event: control.Event{Operation: name, Tags: tags, By: s.by(), ID: e.remote.id(s.Ask)}}
}

func (o *teller) tell(kind string, set func(*control.Event)) {
	ev := o.event
	ev.Kind = kind
	set(&ev)
	o.e.tell(ev)
}

// begins tells that the operation begins, once.
func (o *teller) begins(set []*alloc.Allocation) {
	if o.begun {
		return
	}
	o.begun = true
	var total uint64
	for _, a := range set {
		total += a.Size
	}
	o.tell(control.EventBegin, func(ev *control.Event) { ev.Total = total })
}

// ended tells that the operation ended, if it had begun, and logs a line about it.
func (o *teller) ended(out *outcome) {
	if o.begun {
		o.tell(control.EventEnd, func(ev *control.Event) {
			ev.Bytes, ev.Seconds, ev.Error = out.Bytes, out.Seconds, out.Error
			ev.Outcome, _ = json.Marshal(out) // no field can fail to
		})
		o.e.events.flush()
	}
	switch {
	case out.Error == "" && out.Allocations > 0:
		o.e.logOutcome(o.event, out)
	case out.Error != "" && o.event.By == byControl: // a program is told by its own call
		o.e.log.Printf("a %s asked for from outside failed: %s", o.event.Operation, out.Error)
	}
}

// flush has the events so far reach the event log, unless that takes long.
func (t *events) flush() {
	t.mu.Lock()
	log := t.log
	t.mu.Unlock()
	if log != nil {
		log.flush()
	}
}

// progressEvery is the time between two events of progress.
const progressEvery = 250 * time.Millisecond

// progress tells how much of a transfer is moved until its result is called. What is moved is counted anyway.
func (e *Engine) progress(t *transfer) (end func()) {
	o, total := t.phases.teller, t.plan.HostBytes+t.plan.DiskBytes
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		defer func() { _ = recover() }() // a defect here is no reason to end the program; the end is told all the same
		ticker := time.NewTicker(progressEvery)
		defer ticker.Stop()
		for {
			select {
			case <-stop:
				return
			case <-ticker.C:
				o.tell(control.EventProgress, func(ev *control.Event) {
					ev.Bytes, ev.Total = t.moved.Host()+t.moved.Disk(), total
				})
			}
		}
	}()
	return func() {
		close(stop)
		<-done
	}
}

// logOutcome logs the line of a pause or resume.
func (e *Engine) logOutcome(ev control.Event, out *outcome) {
	verb, where := "paused", "to"
	if ev.Operation == opResume {
		verb, where = "resumed", "from"
	}
	parts := []string{fmt.Sprintf("%s %s in %.3f s, %.2f GB/s", verb, bothSizes(out.Bytes), out.Seconds, out.GBPerS)}
	if out.DiskBytes > 0 {
		parts = append(parts, fmt.Sprintf("%s %s disk", bothSizes(out.DiskBytes), where))
	}
	if out.HostBytes > 0 {
		parts = append(parts, fmt.Sprintf("%s %s host memory", bothSizes(out.HostBytes), where))
	}
	if phases := out.Phases.String(); phases != "" {
		parts = append(parts, phases)
	}
	e.logLines.operation(strings.Join(parts, "; "), ev, out)
}

// bothSizes is a number of bytes as both kinds of people count them, where that makes a difference.
func bothSizes(n uint64) string {
	if n < 100e6 {
		return sizes.Binary(n)
	}
	return sizes.Both(n)
}

// Names of operations.
const (
	opPause  = "pause"
	opResume = "resume"
)

var errWithdrawn = errors.New("withdrawn: nobody who asked for the pause is there any more")
