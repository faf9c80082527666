package serve

import (
	"context"
	"sync"
	"time"

	"github.com/ebb-offload/ebb/internal/control"
	"github.com/ebb-offload/ebb/internal/node"
)

// Node is what the server asks of the ranks. Each call asks all of them at once, and a rank that hangs
// holds up none of them beyond its time.
type Node interface {
	Discover(ctx context.Context) ([]node.Rank, []node.Silent, error)
	// Sockets are those at which a rank may be, in order, without asking any of them.
	Sockets() []string
	Status(ctx context.Context, ranks []node.Rank, perRank time.Duration) []node.RankStatus
	Pause(ctx context.Context, ranks []node.Rank, tags []string, timeout time.Duration, id string) node.Report
	Resume(ctx context.Context, ranks []node.Rank, tags []string, timeout time.Duration, id string) node.Report
	// Watch tells the events of one rank until its connection or the context ends.
	Watch(ctx context.Context, rank node.Rank, tell func(control.Event))
}

// Times of a look at the node.
const (
	patience = node.Patience          // that a rank has for an answer
	fresh    = 250 * time.Millisecond // so long a look serves others who ask for one
)

// look is what the ranks said at one time.
type look struct {
	at     time.Time
	ranks  []node.RankStatus // those that answered at first; Err where the status failed
	silent []node.Silent     // those that did not, and may be alive
	err    error             // places that could not be looked at
}

// view looks at the node for all who ask. However many pages, scrapes and controllers there are, the
// ranks are asked four times a second at most.
type view struct {
	node   Node
	looked func(*look) // hears of every look; may be nil

	mu      sync.Mutex
	last    *look // the latest
	changed bool  // something was, since it was begun
	flight  *flight
	found   *discovery           // the latest
	names   map[string]node.Rank // by socket: who a rank was that answers no longer
}

// flight is a look under way. It may be joined until it is stale: a command has ended since it began.
type flight struct {
	done  chan struct{} // closed when look is set
	look  *look
	stale bool
}

// get is a look that is fresh, or the latest one when the context ends first: nil where there is none.
func (v *view) get(ctx context.Context) *look {
	v.mu.Lock()
	if v.last != nil && !v.changed && time.Since(v.last.at) < fresh {
		defer v.mu.Unlock()
		return v.last
	}
	f := v.flight
	if f == nil || f.stale {
		f = &flight{done: make(chan struct{})}
		v.flight = f
		v.changed = false
		go v.fly(f)
	}
	v.mu.Unlock()
	select {
	case <-f.done:
		return f.look
	case <-ctx.Done():
		v.mu.Lock()
		defer v.mu.Unlock()
		return v.last
	}
}

// fly carries one look out. It belongs to nobody who asked: they may go.
func (v *view) fly(f *flight) {
	d := v.search()
	l := &look{silent: d.silent, err: d.err}
	l.ranks = v.node.Status(context.Background(), d.ranks, patience)
	l.at = time.Now()
	if v.looked != nil {
		v.looked(l)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.last == nil || !f.stale {
		v.last = l
	}
	if v.flight == f {
		v.flight = nil
	}
	f.look = l
	close(f.done)
}

// stale makes the next look a new one: something was changed.
func (v *view) stale() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.changed = true
	if v.flight != nil {
		v.flight.stale = true
	}
}

// discovery is who was found at one time.
type discovery struct {
	ranks  []node.Rank
	silent []node.Silent // those that did not answer, and may be alive
	err    error         // places that could not be looked at
}

// discover finds the ranks. A rank that hangs has node.Patience to say who it is; where a deadline leaves
// less than that, those count that were found the last time, and the command itself finds out who answers.
// It returns nil when the context ends first.
func (v *view) discover(ctx context.Context) *discovery {
	result := make(chan *discovery, 1)
	go func() { result <- v.search() }()
	enough := ctx
	if deadline, ok := ctx.Deadline(); ok {
		half, stop := context.WithDeadline(ctx, deadline.Add(-time.Until(deadline)/2))
		defer stop()
		enough = half
	}
	select {
	case d := <-result:
		return d
	case <-enough.Done():
	}
	v.mu.Lock()
	last := v.found
	v.mu.Unlock()
	if last != nil && ctx.Err() == nil {
		return last
	}
	select {
	case d := <-result:
		return d
	case <-ctx.Done():
		return nil
	}
}

// search finds the ranks, and names those silent ones that answered before. The dead are left out. It ends
// by itself.
func (v *view) search() *discovery {
	ranks, found, err := v.node.Discover(context.Background())
	v.mu.Lock()
	defer v.mu.Unlock()
	names := map[string]node.Rank{}
	for _, r := range ranks {
		names[r.Socket] = r
	}
	d := &discovery{ranks: ranks, err: err}
	for _, q := range found {
		if q.Dead {
			continue
		}
		if r, known := v.names[q.Socket]; known {
			q.Who = r.Who
			names[q.Socket] = r
		}
		d.silent = append(d.silent, q)
	}
	v.names, v.found = names, d
	return d
}
