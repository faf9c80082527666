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
	l := &look{}
	var ranks []node.Rank
	ranks, l.silent, l.err = v.discover(context.Background())
	l.ranks = v.node.Status(context.Background(), ranks, patience)
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

// discover finds the ranks, and names those silent ones that answered before. The dead are left out. It
// ends by itself: each rank has node.Patience to say who it is.
func (v *view) discover(ctx context.Context) ([]node.Rank, []node.Silent, error) {
	ranks, found, err := v.node.Discover(ctx)
	v.mu.Lock()
	defer v.mu.Unlock()
	names := map[string]node.Rank{}
	for _, r := range ranks {
		names[r.Socket] = r
	}
	var silent []node.Silent
	for _, q := range found {
		if q.Dead {
			continue
		}
		if r, known := v.names[q.Socket]; known {
			q.Who = r.Who
			names[q.Socket] = r
		}
		silent = append(silent, q)
	}
	if ctx.Err() == nil {
		v.names = names
	}
	return ranks, silent, err
}
