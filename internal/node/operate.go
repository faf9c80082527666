package node

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/ebb-offload/ebb/internal/control"
	"github.com/ebb-offload/ebb/internal/control/client"
)

// State is how an operation went on a rank.
type State string

// The states of an Outcome.
const (
	Done      State = "done"
	Failed    State = "failed"    // the rank refused, or it still holds memory that it released
	Late      State = "late"      // no safe point, or no answer, by the deadline
	Gone      State = "gone"      // its process ended meanwhile
	Withdrawn State = "withdrawn" // the caller's context ended before it began
)

// Outcome is how an operation went on one rank. Done is set where something was done, Err where something is
// wrong: both after a pause in part.
type Outcome struct {
	Rank
	State   State          `json:"state"`
	Done    *control.Done  `json:"done,omitempty"`
	Err     *control.Error `json:"error,omitempty"`
	Note    string         `json:"note,omitempty"` // of a Done pause: what is not known of its memory
	Seconds float64        `json:"seconds"`        // until it was known
}

// Report is how an operation went on all ranks.
type Report struct {
	Operation string    `json:"operation"` // pause, resume
	Outcomes  []Outcome `json:"ranks"`
	Seconds   float64   `json:"seconds"`
}

// OK reports whether it is done on every rank.
func (r Report) OK() bool { return len(r.In(Done)) == len(r.Outcomes) }

// Late are the outcomes of ranks that a deadline passed for.
func (r Report) Late() []Outcome { return r.In(Late) }

// Failed are the outcomes of ranks that refused, failed or ended.
func (r Report) Failed() []Outcome { return r.In(Failed, Gone) }

// In are the outcomes in one of the states.
func (r Report) In(states ...State) []Outcome {
	var found []Outcome
	for _, o := range r.Outcomes {
		for _, s := range states {
			if o.State == s {
				found = append(found, o)
			}
		}
	}
	return found
}

// Operation is a pause or a resume of ranks.
type Operation struct {
	Cmd     string              // control.CmdPause, control.CmdResume
	Tags    []string            // none: everything. A rank that has none of them has nothing to do
	Timeout time.Duration       // pause: for the safe point; resume: for device memory. Negative: what each rank has as its own
	ID      string              // the same again is the same operation
	Event   func(control.Event) // hears what the ranks tell of it; may be nil. Never called twice at a time
}

// Pause pauses ranks, all at once, and returns when each has done it, refused, or is late. Its memory is then free,
// as the driver says, on every rank whose State is Done and whose Note is empty. When the context ends, what has not begun is withdrawn.
func Pause(ctx context.Context, ranks []Rank, tags []string, timeout time.Duration, id string) Report {
	return Operation{Cmd: control.CmdPause, Tags: tags, Timeout: timeout, ID: id}.Run(ctx, ranks)
}

// Resume resumes ranks as Pause pauses them.
func Resume(ctx context.Context, ranks []Rank, tags []string, timeout time.Duration, id string) Report {
	return Operation{Cmd: control.CmdResume, Tags: tags, Timeout: timeout, ID: id}.Run(ctx, ranks)
}

// How long a rank may say nothing.
const (
	reach   = 5 * time.Second  // to a caller, until it says who it is
	grace   = 2 * time.Second  // after the deadline that it was given, until its own word about that comes
	silence = 10 * time.Second // while the operation runs
	ask     = 2 * time.Second  // before it is asked whether it is there
	look    = 250 * time.Millisecond
)

// Codes of abi/ebb.h that are told apart here, or given to what is found out here.
const (
	codeInvalid = 1
	codePartial = 14
	codeTimeout = 18
)

// Run does the operation on ranks, as Pause does.
func (op Operation) Run(ctx context.Context, ranks []Rank) Report {
	begin := time.Now()
	r := Report{Operation: op.Cmd, Outcomes: make([]Outcome, len(ranks))}
	if tell := op.Event; tell != nil {
		var one sync.Mutex // held while tell is called
		op.Event = func(e control.Event) {
			one.Lock()
			defer one.Unlock()
			tell(e)
		}
	}
	var all sync.WaitGroup
	for i, rank := range ranks {
		all.Go(func() {
			o := op.on(ctx, rank)
			o.Rank, o.Seconds = rank, time.Since(begin).Seconds()
			r.Outcomes[i] = o
		})
	}
	all.Wait()
	r.Seconds = time.Since(begin).Seconds()
	return r
}

// on does the operation on one rank. The connection is closed at the end, which withdraws a pause that has not begun.
func (op Operation) on(ctx context.Context, rank Rank) Outcome {
	everything := len(op.Tags) == 0
	hello, cancel := context.WithTimeout(ctx, reach)
	defer cancel()
	c, err := client.Dial(hello, rank.Socket)
	if err != nil {
		return op.ended(ctx, rank, err)
	}
	defer c.Close()
	if c.Hello().PID != rank.PID {
		return op.ended(ctx, rank, client.ErrEnded)
	}
	if op.Tags, err = here(hello, c, op.Tags); err != nil {
		return op.ended(ctx, rank, err)
	}
	if len(op.Tags) == 0 && !everything {
		return Outcome{State: Done, Done: &control.Done{}}
	}
	if op.ID == "" {
		op.ID = "node-" + rand.Text()
	}
	running := running{op: op, rank: rank, conn: c, heard: time.Now()}
	if running.events, err = c.Events(hello); err != nil {
		var refused *control.Error
		if !errors.As(err, &refused) {
			return op.ended(ctx, rank, err)
		}
		running.begun = true // it will not tell
	}
	return running.follow(ctx)
}

// here are those of the tags that a rank has. It would refuse one that it does not know, and with it the others.
func here(ctx context.Context, c *client.Conn, tags []string) ([]string, error) {
	if len(tags) == 0 {
		return nil, nil
	}
	raw, err := c.Do(ctx, control.Request{Cmd: control.CmdStatus})
	if err != nil {
		return nil, err
	}
	var status Status
	if err := json.Unmarshal(raw, &status); err != nil {
		return nil, fmt.Errorf("its status is not understood: %w", err)
	}
	var has []string
	for _, t := range status.Tags {
		if slices.Contains(tags, t.Tag) {
			has = append(has, t.Tag)
		}
	}
	return has, nil
}

// running is an operation that one rank was asked for.
type running struct {
	op     Operation // with an ID
	rank   Rank
	conn   *client.Conn
	events <-chan control.Event // nil where there are none
	begun  bool
	heard  time.Time // when the rank last said anything
}

type result struct {
	raw json.RawMessage
	err error
}

// follow sends the request and stays until the rank has answered, or counts as late.
func (r *running) follow(ctx context.Context) Outcome {
	asking, cancel := context.WithCancel(context.Background()) // a caller who gives up waits for what has begun
	defer cancel()
	answers, pings := make(chan result, 1), make(chan result, 1)
	go func() {
		raw, err := r.conn.Do(asking, r.op.request())
		answers <- result{raw, err}
	}()
	begin, pinged := time.Now(), false
	tick := time.NewTicker(look)
	defer tick.Stop()
	giveUp, bye := ctx.Done(), make(chan result, 1)
	for {
		select {
		case a := <-answers:
			return r.op.outcome(ctx, r.rank, a, r.begun)
		case e, more := <-r.events:
			if !more {
				r.events = nil // the answer says what happened
				continue
			}
			r.hear(e)
		case p := <-pings:
			pinged = false
			if p.err == nil {
				r.heard = time.Now()
			}
		case <-giveUp:
			giveUp = nil
			go func() {
				within, cancel := context.WithTimeout(asking, Patience)
				defer cancel()
				raw, err := r.conn.Do(within, control.Request{Cmd: control.CmdWithdraw, Of: r.op.ID})
				bye <- result{raw, err}
			}()
		case b := <-bye:
			// The answer to the operation says whether it had begun. A rank that knows no such command has at least told
			// what it had begun before its answer to this, and the end of the connection withdraws the rest.
			if r.hearAll(); b.err != nil && !r.begun {
				return r.op.ended(ctx, r.rank, ctx.Err())
			}
		case <-tick.C:
			switch quiet := time.Since(r.heard); {
			case !r.begun && r.op.Timeout >= 0 && time.Since(begin) > r.op.Timeout+grace:
				return late(fmt.Sprintf("no word from it %v after the deadline: %s", grace, condition(r.rank.PID)))
			case quiet > silence:
				return late(fmt.Sprintf("it has said nothing for %v: %s", silence, condition(r.rank.PID)))
			case quiet > ask && !pinged:
				pinged = true
				go func() {
					raw, err := r.conn.Do(asking, control.Request{Cmd: control.CmdStatus})
					pings <- result{raw, err}
				}()
			}
		}
	}
}

// hear takes in what the rank tells.
func (r *running) hear(e control.Event) {
	r.heard = time.Now()
	r.begun = r.begun || r.op.hasBegun(e)
	if r.op.Event != nil {
		r.op.Event(e)
	}
}

// hearAll takes in all that has come.
func (r *running) hearAll() {
	for {
		select {
		case e, more := <-r.events:
			if !more {
				r.events = nil
				return
			}
			r.hear(e)
		default:
			return
		}
	}
}

func (op Operation) request() control.Request {
	r := control.Request{Cmd: op.Cmd, Tags: op.Tags, ID: op.ID}
	if op.Timeout >= 0 {
		seconds := op.Timeout.Seconds()
		r.Timeout = &seconds
	}
	return r
}

// hasBegun reports whether an event shows that the operation has begun. (Of a library that tells no ids, that of
// another caller at the same time cannot be told from it.)
func (op Operation) hasBegun(e control.Event) bool {
	switch e.Kind {
	case control.EventBegin, control.EventPhase, control.EventProgress, control.EventEnd:
		return e.Operation == op.Cmd && e.By != "program" && (e.ID == "" || e.ID == op.ID)
	}
	return false
}

// outcome is what a rank's answer comes to.
func (op Operation) outcome(ctx context.Context, rank Rank, a result, begun bool) Outcome {
	var refused *control.Error
	switch {
	case errors.As(a.err, &refused) && refused.Code == codeTimeout && !begun && ctx.Err() != nil:
		return op.ended(ctx, rank, a.err)
	case errors.As(a.err, &refused) && refused.Code == codeTimeout && !begun:
		return Outcome{State: Late, Done: refused.Done, Err: refused}
	case errors.As(a.err, &refused):
		return Outcome{State: Failed, Done: refused.Done, Err: refused}
	case a.err != nil && begun:
		return op.ended(context.Background(), rank, a.err)
	case a.err != nil:
		return op.ended(ctx, rank, a.err)
	}
	var done control.Done
	if err := json.Unmarshal(a.raw, &done); err != nil {
		return failed(&control.Error{Code: codeInvalid, Message: "its answer is not understood: " + err.Error()})
	}
	o := Outcome{State: Done, Done: &done}
	if op.Cmd != control.CmdPause {
		return o
	}
	if done.Missing > 0 {
		o = failed(&control.Error{Code: codePartial, Message: fmt.Sprintf(
			"it released %s of device memory, of which %s (%d bytes) did not become free: the process still holds it; "+
				"give up what was registered with others (RDMA, cuFile, NCCL user buffers) before the pause",
			humanize.IBytes(done.DeviceBytes), humanize.IBytes(done.Missing), done.Missing)})
		o.Done = &done
	}
	o.Note = Unclear(done.DeviceBytes, done.Freed, done.Missing)
	return o
}

// Unclear says of what a pause released what is not known; empty where all is.
func Unclear(released, freed, missing uint64) string {
	n := control.Unclear(released, freed, missing)
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("of %s of device memory that it released, %s (%d bytes) did not show as free: another process may have taken it meanwhile, "+
		"or this one still holds it; the system does not tell which (NVML does not see the processes here)",
		humanize.IBytes(released), humanize.IBytes(n), n)
}

// ended is the outcome where no answer came.
func (op Operation) ended(ctx context.Context, rank Rank, err error) Outcome {
	switch why := reason(err, rank.PID); {
	case ctx.Err() != nil:
		return Outcome{State: Withdrawn, Err: &control.Error{Code: codeTimeout, Message: "withdrawn before it began"}}
	case errors.Is(err, context.DeadlineExceeded):
		return late(why)
	case errors.Is(err, client.ErrEnded) || refused(err):
		return Outcome{State: Gone, Err: &control.Error{Code: codeInvalid, Message: why}}
	default:
		return failed(&control.Error{Code: codeInvalid, Message: why})
	}
}

func late(why string) Outcome {
	return Outcome{State: Late, Err: &control.Error{Code: codeTimeout, Message: why}}
}

func failed(err *control.Error) Outcome { return Outcome{State: Failed, Err: err} }
