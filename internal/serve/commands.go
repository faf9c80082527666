package serve

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/ebb-offload/ebb/internal/control"
	"github.com/ebb-offload/ebb/internal/node"
)

// Limits of commands.
const (
	maxRuns        = 16 // at the same time
	commandTimeout = time.Minute
	maxNamed       = 8 // ranks that a reply names of each kind, whatever the number of ranks
)

// commandReport is what came of a command. Its size does not depend on the number of ranks.
type commandReport struct {
	MessageType string     `json:"message_type"` // pause, resume
	ID          string     `json:"id"`           // of the ranks' control commands
	OK          bool       `json:"ok"`
	Over        bool       `json:"over"` // nothing of it goes on: the same key again brings the same reply
	Ranks       rankCounts `json:"ranks"`
	Totals      totals     `json:"totals"`
	Seconds     float64    `json:"seconds"`
	Slowest     []named    `json:"slowest"` // at most maxNamed of each
	Failed      []named    `json:"failed"`
	Late        []named    `json:"late"`
}

// rankCounts are ranks by how the command went.
type rankCounts struct {
	Total     int `json:"total"`
	Done      int `json:"done"`
	Failed    int `json:"failed"`
	Gone      int `json:"gone"`
	Late      int `json:"late"` // under way at the deadline, too
	Withdrawn int `json:"withdrawn"`
}

// totals are sums over the ranks, in bytes.
type totals struct {
	Bytes   uint64 `json:"bytes"`
	Device  uint64 `json:"device_bytes"`
	Host    uint64 `json:"host_bytes"`
	Disk    uint64 `json:"disk_bytes"`
	Skipped uint64 `json:"skipped_bytes"`
	Kept    uint64 `json:"kept_bytes"`
	Freed   uint64 `json:"freed_bytes"`
	Missing uint64 `json:"missing_bytes"`
}

func (m *totals) add(d *control.Done) {
	m.Bytes += d.Bytes
	m.Device += d.DeviceBytes
	m.Host += d.HostBytes
	m.Disk += d.DiskBytes
	m.Skipped += d.SkippedZero + d.SkippedSame
	m.Kept += d.Kept
	m.Freed += d.Freed
	m.Missing += d.Missing
}

// named is one rank of which a reply says something.
type named struct {
	Rank    string   `json:"rank"` // actor cell 0 rank 3
	PID     int      `json:"pid"`
	State   string   `json:"state"`
	Seconds *float64 `json:"seconds,omitempty"`
	Bytes   *uint64  `json:"bytes,omitempty"`
	Message string   `json:"message,omitempty"`
	Code    int      `json:"code,omitempty"` // of abi/ebb.h
}

// act answers POST /v1/pause and /v1/resume.
func (s *Server) act(verb string, do operate) func(http.ResponseWriter, *http.Request) *refusal {
	return func(w http.ResponseWriter, r *http.Request) *refusal {
		var c command
		if refused := s.body(w, r, &c); refused != nil {
			return refused
		}
		if refused := c.check(); refused != nil {
			return refused
		}
		within, refused := timeout(c.Timeout, commandTimeout)
		if refused != nil {
			return refused
		}
		c.Timeout = nil
		return s.carryOut(w, r, within, identity(verb, c), func(ctx context.Context, id string, leave func()) (work, *refusal) {
			ranks, unanswered, refused := s.choose(ctx, c)
			if refused != nil {
				return nil, refused
			}
			for _, q := range unanswered { // they may yet answer, by the deadline
				ranks = append(ranks, node.Rank{Who: q.Who, Socket: q.Socket})
			}
			s.log.Info(fmt.Sprintf("%s of %d ranks (%s) begins", verb, len(ranks), c), "verb", verb, "ranks", len(ranks), "id", id)
			return start(ctx, do, verb, id, ranks, c.Tags, leave), nil
		})
	}
}

// beginning finds out what a command means and starts it, with its id. What has not begun when the context
// ends is withdrawn. leave is called once, when the work that it returns is over.
type beginning func(ctx context.Context, id string, leave func()) (work, *refusal)

// carryOut begins a command, or joins the one with the same key, and replies by the deadline.
func (s *Server) carryOut(w http.ResponseWriter, r *http.Request, within time.Duration, identity string, begin beginning) *refusal {
	k, refused := key(r.Header)
	if refused != nil {
		return refused
	}
	deadline := time.Now().Add(within)
	if err := http.NewResponseController(w).SetWriteDeadline(deadline.Add(writePatient)); err != nil {
		return refuse(http.StatusInternalServerError, codeInternal, "", "%s", oneLine(err))
	}
	waiting, stop := context.WithDeadline(r.Context(), deadline)
	defer stop()
	work, refused := s.obtain(waiting, deadline, identity, k, begin)
	if refused != nil {
		return refused
	}
	select {
	case <-work.ended():
	case <-waiting.Done():
	}
	value, refused := work.told(s)
	if refused != nil {
		return refused
	}
	writeJSON(w, http.StatusOK, value)
	return nil
}

// obtain begins a command, or joins the one with its key. Without a key the command is withdrawn, as far
// as it has not begun, when its caller goes away; with one, somebody may come back for it.
func (s *Server) obtain(waiting context.Context, deadline time.Time, identity, key string, begin beginning) (work, *refusal) {
	if key == "" {
		return s.start(waiting, deadline, commandID("", identity), begin)
	}
	a, first, refused := s.keys.claim(key, identity)
	if refused != nil {
		return nil, refused
	}
	if first {
		go func() {
			work, refused := s.start(s.commands, deadline, commandID(key, identity), begin)
			s.keys.settle(key, a, work, refused)
		}()
	}
	select {
	case <-a.set:
		return a.work, a.refused
	case <-waiting.Done():
		return nil, refuse(http.StatusGatewayTimeout, codeUnderWay, "repeat the request with the same key",
			"the ranks were not found by the deadline")
	}
}

// start begins a command if there is room for one.
func (s *Server) start(owner context.Context, deadline time.Time, id string, begin beginning) (work, *refusal) {
	if !s.enter() {
		return nil, stopping()
	}
	select {
	case s.runs <- struct{}{}:
	default:
		s.running.Done()
		return nil, refuse(http.StatusServiceUnavailable, codeBusy, "wait for those under way, then try again", "%d commands are under way already", maxRuns)
	}
	ctx, stop := context.WithDeadline(owner, deadline)
	unless := context.AfterFunc(s.commands, stop) // the server's end withdraws too
	leave := func() {
		unless()
		stop()
		s.view.stale()
		<-s.runs
		s.running.Done()
	}
	work, refused := begin(ctx, id, leave)
	if refused != nil {
		leave()
	}
	return work, refused
}

// choose is the ranks that a command means, and those of them that did not answer.
func (s *Server) choose(ctx context.Context, c command) ([]node.Rank, []node.Silent, *refusal) {
	d := s.view.discover(ctx)
	if d == nil {
		return nil, nil, refuse(http.StatusGatewayTimeout, codeLate, "give it a longer timeout_s", "the ranks were not found by the deadline")
	}
	nobody := len(d.ranks)+len(d.silent) == 0
	if nobody && d.err != nil {
		return nil, nil, refuse(http.StatusInternalServerError, codeInternal, "", "looking for ranks: %s", cut(oneLine(d.err), 2*maxName))
	}
	if nobody {
		return nil, nil, refuse(http.StatusConflict, codeNoRank, "ranks of ebb run and ebb exec are found while they run, and of this user",
			"no rank is running")
	}
	chosen, unanswered, err := node.SelectBoth(d.ranks, d.silent, node.Selection{Roles: c.Roles, Ranks: c.Ranks, Cells: c.Cells, Jobs: c.Jobs, PIDs: c.PIDs})
	var unknown *node.SelectionError
	switch {
	case errors.As(err, &unknown):
		refused := refuse(http.StatusBadRequest, codeUnknown, "", "%s", cut(oneLine(err), 4*maxName))
		refused.Known = limited64(unknown.Exist)
		return nil, nil, refused
	case err != nil:
		return nil, nil, invalid("%s", oneLine(err))
	}
	if refused := s.tagsExist(ctx, c.Tags, chosen, len(unanswered) == 0); refused != nil {
		return nil, nil, refused
	}
	return chosen, unanswered, nil
}

// tagsExist refuses a tag that no chosen rank has. Where a rank did not say which it has, the ranks decide.
func (s *Server) tagsExist(ctx context.Context, tags []string, ranks []node.Rank, all bool) *refusal {
	if len(tags) == 0 || !all {
		return nil
	}
	var unknown *node.SelectionError
	if !errors.As(node.KnowTags(s.node.Status(ctx, ranks, patience), tags), &unknown) {
		return nil
	}
	refused := refuse(http.StatusBadRequest, codeUnknown, "", "no tag %q on these ranks", short(unknown.Value))
	refused.Known = limited64(unknown.Exist)
	return refused
}

// limited64 are the first of many names.
func limited64(names []string) []string { return names[:min(len(names), 64)] }

// told is part of work.
func (r *run) told(s *Server) (any, *refusal) {
	report := s.report(r)
	counts := report.Ranks
	wrong := counts.Failed + counts.Gone
	var refused *refusal
	switch {
	case report.OK:
		return report, nil
	case wrong > 0 && counts.Done > 0:
		back := map[string]string{control.CmdPause: "resume", control.CmdResume: "pause"}[r.verb]
		refused = refuse(http.StatusConflict, codeHalfWay,
			fmt.Sprintf("repeat the %s with a new key, or bring the others back with /v1/%s", r.verb, back),
			"%s: done on %d of %d ranks, and %d failed", r.verb, counts.Done, counts.Total, wrong)
	case wrong > 0:
		refused = refuse(http.StatusInternalServerError, codeFailed, "see what each rank says",
			"%s: failed on %d of %d ranks, and done on none", r.verb, wrong, counts.Total)
	case counts.Late > 0:
		remedy := "repeat it with a new key, and a longer timeout_s where the actor needs it: a pause waits for its safe point"
		if !report.Over {
			remedy = "what has begun goes on: repeat the request with the same key to wait for it, or look at /v1/node"
		}
		refused = refuse(http.StatusGatewayTimeout, codeLate, remedy, "%s: %d of %d ranks were late", r.verb, counts.Late, counts.Total)
	default:
		refused = refuse(http.StatusServiceUnavailable, codeStopping, "", "%s: the server ends, and %d of %d ranks had not begun",
			r.verb, counts.Withdrawn, counts.Total)
	}
	refused.Report = report
	return nil, refused
}

// report sums a run up.
func (s *Server) report(r *run) commandReport {
	outcomes, elapsed := r.now()
	c := commandReport{
		MessageType: r.verb, ID: r.id, Seconds: elapsed.Seconds(),
		Slowest: []named{}, Failed: []named{}, Late: []named{},
	}
	c.Ranks.Total, c.Over = len(outcomes), true
	now, _ := s.hub.busy()
	var done []node.Outcome
	for _, o := range outcomes {
		c.Over = c.Over && o.State != ""
		if o.Done != nil {
			c.Totals.add(o.Done)
		}
		switch {
		case o.State == node.Done:
			c.Ranks.Done++
			done = append(done, o)
		case o.State == node.Failed:
			c.Ranks.Failed++
			c.Failed = name(c.Failed, o, "")
		case o.State == node.Gone:
			c.Ranks.Gone++
			c.Failed = name(c.Failed, o, "")
		case o.State == node.Withdrawn && s.commands.Err() != nil:
			c.Ranks.Withdrawn++
			c.Late = name(c.Late, o, "")
		default:
			c.Ranks.Late++
			c.Late = name(c.Late, o, doing(now[o.Socket]))
		}
	}
	slices.SortStableFunc(done, func(a, b node.Outcome) int {
		switch {
		case a.Seconds > b.Seconds:
			return -1
		case a.Seconds < b.Seconds:
			return 1
		}
		return 0
	})
	for _, o := range done {
		c.Slowest = name(c.Slowest, o, "")
	}
	c.OK = c.Ranks.Done == c.Ranks.Total
	return c
}

// name adds a rank to a list that has room. doing is what a rank is at of which there is no outcome yet.
func name(list []named, o node.Outcome, doing string) []named {
	if len(list) == maxNamed {
		return list
	}
	n := named{Rank: cut(node.Name(o.Who), maxName), PID: o.PID, State: string(o.State), Message: cut(o.Note, 2*maxName)}
	if o.State == "" || o.State == node.Withdrawn {
		n.State, n.Message = string(node.Late), doing
	}
	if o.Done != nil {
		n.Bytes = &o.Done.Bytes
	}
	if o.Seconds > 0 {
		n.Seconds = &o.Seconds
	}
	if o.Err != nil && o.State != node.Withdrawn {
		n.Message, n.Code = cut(oneLine(o.Err), 2*maxName), o.Err.Code
	}
	return append(list, n)
}

// doing is what a rank was at when the deadline came.
func doing(o operation) string {
	switch {
	case o.Name == "":
		return "no answer by the deadline"
	case o.Waiting:
		return "no safe point by the deadline"
	case o.Total > 0:
		return fmt.Sprintf("its %s goes on: %s of %s moved", o.Name, humanize.IBytes(o.Bytes), humanize.IBytes(o.Total))
	}
	return fmt.Sprintf("its %s goes on", o.Name)
}
