package serve

import (
	"context"
	"sync"
	"time"

	"github.com/ebb-offload/ebb/internal/node"
)

// work is a command under way, or over.
type work interface {
	ended() <-chan struct{} // closed when it is over
	// told is the reply by what is known now: a value, or a refusal.
	told(s *Server) (value any, refused *refusal)
}

func over(w work) bool {
	select {
	case <-w.ended():
		return true
	default:
		return false
	}
}

// run is a pause or a resume of ranks under way, or over. Each rank is commanded by a goroutine of its
// own, so that it is known at any time who is done; who waits for the run waits no longer than its own
// deadline.
type run struct {
	verb  string
	id    string
	begin time.Time
	done  chan struct{} // closed when all ranks have an outcome

	mu       sync.Mutex
	outcomes []node.Outcome // State is empty where there is none yet
	left     int            // ranks without an outcome
	end      time.Time      // of the last outcome
}

// operate is node.Pause or node.Resume.
type operate func(ctx context.Context, ranks []node.Rank, tags []string, timeout time.Duration, id string) node.Report

// start begins a run. ended is called once, when it is over. When the context ends, what has not begun is
// withdrawn, and what has goes on to its end.
func start(ctx context.Context, do operate, verb, id string, ranks []node.Rank, tags []string, ended func()) *run {
	r := &run{
		verb: verb, id: id, begin: time.Now(), done: make(chan struct{}),
		outcomes: make([]node.Outcome, len(ranks)), left: len(ranks),
	}
	wait := r.patience(ctx)
	for i, rank := range ranks {
		r.outcomes[i].Rank = rank
		go func() {
			report := do(ctx, []node.Rank{rank}, tags, wait, id)
			r.mu.Lock()
			r.outcomes[i] = report.Outcomes[0]
			r.left--
			last := r.left == 0
			if last {
				r.end = time.Now()
			}
			r.mu.Unlock()
			if last {
				ended()
				close(r.done)
			}
		}()
	}
	return r
}

// patience is what the ranks are given to wait: a little less than the time until the deadline, so that
// their own word about it comes by then.
func (r *run) patience(ctx context.Context) time.Duration {
	deadline, ok := ctx.Deadline()
	if !ok {
		return maxTimeout
	}
	left := max(deadline.Sub(r.begin), 0)
	return left - min(left/10, 500*time.Millisecond)
}

func (r *run) ended() <-chan struct{} { return r.done }

// now is what is known at this time.
func (r *run) now() (outcomes []node.Outcome, elapsed time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	end := r.end
	if r.left > 0 {
		end = time.Now()
	}
	return append([]node.Outcome(nil), r.outcomes...), end.Sub(r.begin)
}
