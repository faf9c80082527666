package serve

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/ebb-offload/ebb/internal/node"
	"github.com/ebb-offload/ebb/internal/swap"
)

// HandOver is swap.Run with the engines that the server was started with. A request names none: who may
// command the ranks must not thereby send requests to any address.
type HandOver func(ctx context.Context, to string, ranks []node.Rank, silent []node.Silent, tags []string, timeout time.Duration, tell func(swap.Step)) (swap.Report, error)

const (
	codeNoEngine = "no_engine" // 409: the server was started without one
	codeSwapping = "swapping"  // 409: another hand-over is under way
	swapTimeout  = 10 * time.Minute
)

// swapRequest is the body of POST /v1/swap.
type swapRequest struct {
	To string `json:"to"`
	command
}

// swapReport is a hand-over in a reply whose size does not depend on the number of ranks.
type swapReport struct {
	MessageType string      `json:"message_type"` // swap
	To          string      `json:"to"`
	OK          bool        `json:"ok"`
	Moved       bool        `json:"moved"`
	Seconds     float64     `json:"seconds"`
	Ranks       swapCounts  `json:"ranks"`
	Engines     []swap.Step `json:"engines"` // at most maxNamed of each
	Devices     []swap.Step `json:"devices"`
	Failed      []swap.Step `json:"failed"`
	Stands      string      `json:"stands,omitempty"` // after an error: who holds the memory now
}

// swapCounts are ranks by what became of them.
type swapCounts struct {
	Total   int    `json:"total"` // that were looked at so far
	Moved   int    `json:"moved"`
	Already int    `json:"already"`
	Failed  int    `json:"failed"`
	Bytes   uint64 `json:"bytes"` // of the moved ones
}

// handing is a hand-over under way, or over.
type handing struct {
	to    string
	begin time.Time
	done  chan struct{}

	mu     sync.Mutex
	steps  []swap.Step
	report swap.Report // when it is over
	err    error
}

// swap answers POST /v1/swap.
func (s *Server) swap(w http.ResponseWriter, r *http.Request) *refusal {
	var c swapRequest
	if refused := s.body(w, r, &c); refused != nil {
		return refused
	}
	if c.To != swap.ToRollout && c.To != swap.ToTrain {
		return invalid("to is %q, want %q or %q", short(c.To), swap.ToRollout, swap.ToTrain)
	}
	if refused := c.check(); refused != nil {
		return refused
	}
	if s.handOver == nil {
		return refuse(http.StatusConflict, codeNoEngine, "start it with --engine URL", "this server knows no rollout engine")
	}
	within, refused := timeout(c.Timeout, swapTimeout)
	if refused != nil {
		return refused
	}
	c.Timeout = nil
	return s.carryOut(w, r, within, identity("swap", c), func(ctx context.Context, id string, leave func()) (work, *refusal) {
		select {
		case s.swapping <- struct{}{}:
		default:
			return nil, refuse(http.StatusConflict, codeSwapping, "wait for its end, then repeat", "another hand-over is under way")
		}
		ranks, silent, refused := s.choose(ctx, c.command)
		if refused != nil {
			<-s.swapping
			return nil, refused
		}
		s.log.Info(fmt.Sprintf("swap to %s with %d ranks (%s) begins", c.To, len(ranks)+len(silent), c.command), "verb", "swap", "ranks", len(ranks), "id", id)
		h := &handing{to: c.To, begin: time.Now(), done: make(chan struct{})}
		go func() {
			// A little less than the time until the deadline, so that its own word about it comes by then.
			deadline, _ := ctx.Deadline()
			left := max(time.Until(deadline), time.Millisecond)
			report, err := s.handOver(ctx, c.To, ranks, silent, c.Tags, left-min(left/10, time.Second), h.tell)
			h.mu.Lock()
			h.report, h.err = report, err
			h.mu.Unlock()
			<-s.swapping
			leave()
			close(h.done)
		}()
		return h, nil
	})
}

func (h *handing) tell(s swap.Step) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.steps = append(h.steps, s)
}

// ended is part of work.
func (h *handing) ended() <-chan struct{} { return h.done }

// told is part of work.
func (h *handing) told(*Server) (any, *refusal) {
	ended := over(h)
	h.mu.Lock()
	defer h.mu.Unlock()
	report := swapReport{
		MessageType: "swap", To: h.to, Seconds: time.Since(h.begin).Seconds(),
		Engines: []swap.Step{}, Devices: []swap.Step{}, Failed: []swap.Step{},
	}
	steps := h.steps
	if ended {
		steps = h.report.Steps
		report.OK, report.Moved, report.Seconds = h.err == nil, h.report.Moved, h.report.Seconds
		report.Stands = cut(h.report.Stands, 4*maxName)
	}
	for _, step := range steps {
		report.add(step)
	}
	switch {
	case !ended:
		refused := refuse(http.StatusGatewayTimeout, codeUnderWay, "repeat the request with the same key to wait for it", "the swap to %s goes on", h.to)
		refused.Report = report
		return nil, refused
	case h.err == nil:
		return report, nil
	}
	var other *swap.HeldError
	if errors.As(h.err, &other) { // one of another process; those of this one were refused before
		return nil, refuse(http.StatusConflict, codeSwapping, "wait for its end, then repeat it with a new key", "%s", cut(oneLine(h.err), 4*maxName))
	}
	status, code := http.StatusInternalServerError, codeFailed
	switch {
	case h.report.Late:
		status, code = http.StatusGatewayTimeout, codeLate
	case report.Moved:
		status, code = http.StatusConflict, codeHalfWay
	}
	back := swap.ToTrain
	if h.to == swap.ToTrain {
		back = swap.ToRollout
	}
	refused := refuse(status, code, fmt.Sprintf("repeat it with a new key, what is done stays done; or go back with to: %q", back),
		"swap to %s: %s", h.to, cut(oneLine(h.err), 4*maxName))
	refused.Report = report
	return nil, refused
}

// add sums a step up.
func (r *swapReport) add(s swap.Step) {
	s.Error = cut(s.Error, 2*maxName)
	if len(s.Holders) > maxNamed {
		s.Holders = s.Holders[:maxNamed]
	}
	put := func(list *[]swap.Step) {
		if len(*list) < maxNamed {
			*list = append(*list, s)
		}
	}
	switch s.Step {
	case swap.StepEngine:
		put(&r.Engines)
	case swap.StepMemory:
		put(&r.Devices)
	default:
		r.Ranks.Total++
		switch {
		case !s.OK:
			r.Ranks.Failed++
		case s.Already:
			r.Ranks.Already++
		default:
			r.Ranks.Moved++
			r.Ranks.Bytes += s.Bytes
		}
	}
	if !s.OK {
		put(&r.Failed)
	}
}
