package serve

import (
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/ebb-offload/ebb/internal/node"
)

// States of a rank, as they are counted and shown.
const (
	stateEmpty    = "empty"    // it manages no memory
	stateResident = "resident" // all of it is on the device
	stateParked   = "parked"   // none is
	statePartly   = "partly"
	stateWaiting  = "waiting" // a pause waits for a safe point
	stateMoving   = "moving"
	stateSilent   = "silent" // it gave no answer
)

// Times of GET requests.
const (
	lookTimeout = 5 * time.Second
	maxLook     = time.Minute
)

// nodeReply is the whole node in a reply whose size does not depend on the number of ranks.
type nodeReply struct {
	MessageType string      `json:"message_type"` // node
	Version     string      `json:"version"`
	Host        string      `json:"host"`
	Time        time.Time   `json:"time"`        // of this reply
	Age         float64     `json:"age_seconds"` // since the ranks were asked
	Uptime      float64     `json:"uptime_seconds"`
	Ranks       stateCounts `json:"ranks"`
	Bytes       tierBytes   `json:"bytes"`
	Unmanaged   uint64      `json:"unmanaged_bytes"`
	Staging     uint64      `json:"staging_bytes"`
	HostHeld    uint64      `json:"host_held_bytes"`
	Written     uint64      `json:"disk_written_bytes"`
	Moving      progress    `json:"moving"`
	LastPause   latest      `json:"last_pause"`
	LastResume  latest      `json:"last_resume"`
	Silent      []named     `json:"silent"`      // at most maxNamed
	Faults      []named     `json:"faults"`      // whose last operation failed, or whose disk gives no answer; at most maxNamed
	FaultCount  int         `json:"fault_count"` //
	Lost        uint64      `json:"events_lost"`
	Error       string      `json:"error,omitempty"` // of places that could not be looked at
}

// stateCounts are ranks by state.
type stateCounts struct {
	Total    int `json:"total"`
	Empty    int `json:"empty"`
	Resident int `json:"resident"`
	Parked   int `json:"parked"`
	Partly   int `json:"partly"`
	Waiting  int `json:"waiting"`
	Moving   int `json:"moving"`
	Silent   int `json:"silent"`
}

func (c *stateCounts) add(state string) {
	c.Total++
	for _, of := range []struct {
		state string
		count *int
	}{
		{stateEmpty, &c.Empty}, {stateResident, &c.Resident}, {stateParked, &c.Parked}, {statePartly, &c.Partly},
		{stateWaiting, &c.Waiting}, {stateMoving, &c.Moving}, {stateSilent, &c.Silent},
	} {
		if of.state == state {
			*of.count++
		}
	}
}

// tierBytes are managed bytes by where they are: also those that are paused and lie nowhere, since they are all zero
// or nobody needs them (skipped), or since their region has no backup (discarded).
type tierBytes struct {
	Device    uint64 `json:"device"`
	Host      uint64 `json:"host"`
	Disk      uint64 `json:"disk"`
	Skipped   uint64 `json:"skipped"`
	Discarded uint64 `json:"discarded"`
}

func tiersOf(s node.Status) (t tierBytes) {
	for _, tag := range s.Tags {
		t.Device += tag.Active
		t.Host += tag.InHost
		t.Disk += tag.InFiles
		t.Skipped += tag.Skipped
		t.Discarded += tag.Discarded
	}
	return t
}

func (t *tierBytes) add(other tierBytes) {
	t.Device += other.Device
	t.Host += other.Host
	t.Disk += other.Disk
	t.Skipped += other.Skipped
	t.Discarded += other.Discarded
}

// progress is what is being moved now.
type progress struct {
	Ranks int    `json:"ranks"`
	Bytes uint64 `json:"bytes"`
	Total uint64 `json:"total_bytes"`
}

// latest sums up the latest pause, or resume, of each rank.
type latest struct {
	Ranks      int     `json:"ranks"` // that have had one
	Bytes      uint64  `json:"bytes"`
	Skipped    uint64  `json:"skipped_bytes"`
	MaxSeconds float64 `json:"seconds_max"`
	Slowest    []named `json:"slowest"` // at most slowestNamed
}

const slowestNamed = 3

// summary answers GET /v1/node.
func (s *Server) summary(w http.ResponseWriter, r *http.Request) *refusal {
	l, refused := s.look(r)
	if refused != nil {
		return refused
	}
	writeJSON(w, http.StatusOK, s.sumUp(l))
	return nil
}

// look is what the ranks said, by the deadline of a request.
func (s *Server) look(r *http.Request, parameters ...string) (*look, *refusal) {
	q := queryOf(r, append(parameters, "timeout_s")...)
	within := q.seconds("timeout_s", lookTimeout, maxLook)
	if q.wrong != nil {
		return nil, q.wrong
	}
	ctx, stop := context.WithTimeout(r.Context(), within)
	defer stop()
	l := s.view.get(ctx)
	if l == nil {
		return nil, refuse(http.StatusGatewayTimeout, codeLate, "give it a longer timeout_s", "the ranks were not asked by the deadline")
	}
	s.findings.say(l.err)
	if l.err != nil && len(l.ranks)+len(l.silent) == 0 {
		return nil, refuse(http.StatusInternalServerError, codeInternal, "", "looking for ranks: %s", cut(oneLine(l.err), 2*maxName))
	}
	return l, nil
}

func (s *Server) sumUp(l *look) nodeReply {
	now, lost := s.hub.busy()
	reply := nodeReply{
		MessageType: "node", Version: s.version, Host: s.host, Time: time.Now().UTC(),
		Age: time.Since(l.at).Seconds(), Uptime: time.Since(s.began).Seconds(),
		Silent: []named{}, Faults: []named{}, Lost: lost,
	}
	if l.err != nil {
		reply.Error = cut(oneLine(l.err), 2*maxName)
	}
	for _, r := range l.ranks {
		o, busy := now[r.Socket]
		state := stateOf(r, o, busy)
		reply.Ranks.add(state)
		if state == stateSilent {
			reply.Silent = say(reply.Silent, r.Rank, state, r.Err)
			continue
		}
		st := r.Status
		reply.Bytes.add(tiersOf(st))
		reply.Unmanaged += st.Unmanaged.Total
		reply.Staging += st.Staging
		reply.HostHeld += st.Host.Held
		reply.Written += st.Disk.Written
		if state == stateMoving {
			reply.Moving.Ranks++
			reply.Moving.Bytes += o.Bytes
			reply.Moving.Total += o.Total
		}
		if why := fault(st); why != "" {
			reply.FaultCount++
			reply.Faults = say(reply.Faults, r.Rank, state, why)
		}
	}
	for _, q := range l.silent {
		reply.Ranks.add(stateSilent)
		reply.Silent = say(reply.Silent, node.Rank{Who: q.Who, Socket: q.Socket}, stateSilent, q.Why)
	}
	reply.LastPause = latestOf(l.ranks, func(s node.Status) *node.LastOperation { return s.LastPause })
	reply.LastResume = latestOf(l.ranks, func(s node.Status) *node.LastOperation { return s.LastResume })
	return reply
}

// stateOf is the state of a rank, which may be at something.
func stateOf(r node.RankStatus, o operation, busy bool) string {
	switch st := r.Status; {
	case r.Err != "":
		return stateSilent
	case busy && o.Waiting:
		return stateWaiting
	case busy:
		return stateMoving
	case st.Active == 0 && st.Paused == 0:
		return stateEmpty
	case st.Paused == 0:
		return stateResident
	case st.Active == 0:
		return stateParked
	}
	return statePartly
}

// fault is what is wrong with a rank by its own word, or empty.
func fault(s node.Status) string {
	switch {
	case s.Quarantined.Threads > 0:
		return "file calls give no answer: the disk hangs"
	case s.LastPause != nil && s.LastPause.Error != "":
		return "its last pause failed: " + s.LastPause.Error
	case s.LastResume != nil && s.LastResume.Error != "":
		return "its last resume failed: " + s.LastResume.Error
	}
	return ""
}

func say(list []named, r node.Rank, state, why string) []named {
	if len(list) == maxNamed {
		return list
	}
	return append(list, named{Rank: cut(node.Name(r.Who), maxName), PID: r.PID, State: state, Message: cut(why, 2*maxName)})
}

func latestOf(ranks []node.RankStatus, of func(node.Status) *node.LastOperation) latest {
	l := latest{Slowest: []named{}}
	var had []node.RankStatus
	for _, r := range ranks {
		o := of(r.Status)
		if r.Err != "" || o == nil {
			continue
		}
		had = append(had, r)
		l.Ranks++
		l.Bytes += o.Bytes
		l.Skipped += o.Skipped()
		l.MaxSeconds = max(l.MaxSeconds, o.Seconds)
	}
	slices.SortStableFunc(had, func(a, b node.RankStatus) int {
		switch x, y := of(a.Status).Seconds, of(b.Status).Seconds; {
		case x > y:
			return -1
		case x < y:
			return 1
		}
		return 0
	})
	for _, r := range had[:min(len(had), slowestNamed)] {
		o, state := of(r.Status), "done"
		if o.Error != "" {
			state = "failed"
		}
		l.Slowest = append(l.Slowest, named{
			Rank: cut(node.Name(r.Who), maxName), PID: r.PID, State: state,
			Seconds: &o.Seconds, Bytes: &o.Bytes, Message: cut(o.Error, 2*maxName),
		})
	}
	return l
}

// Limits of a page of details.
const (
	pageRanks = 64
	maxRanks  = 256
	maxTags   = 32 // of a rank
)

// ranksReply is one page of the ranks' details.
type ranksReply struct {
	MessageType string       `json:"message_type"` // ranks
	Time        time.Time    `json:"time"`
	Age         float64      `json:"age_seconds"`
	Total       int          `json:"total"`
	Offset      int          `json:"offset"`
	Next        *int         `json:"next_offset,omitempty"` // missing: no more
	Ranks       []rankDetail `json:"ranks"`
}

// rankDetail is one rank.
type rankDetail struct {
	Name       string              `json:"name"`
	Job        string              `json:"job,omitempty"`
	Role       string              `json:"role,omitempty"`
	Cell       string              `json:"cell,omitempty"`
	Rank       string              `json:"rank,omitempty"`
	PID        int                 `json:"pid"`
	Version    string              `json:"ebb,omitempty"` // of its library
	Started    *time.Time          `json:"started,omitempty"`
	State      string              `json:"state"`
	Operation  *operationReply     `json:"operation,omitempty"` // that it is at
	Device     string              `json:"device,omitempty"`
	Bytes      tierBytes           `json:"bytes"`
	Unmanaged  uint64              `json:"unmanaged_bytes"`
	Staging    uint64              `json:"staging_bytes"`
	HostHeld   uint64              `json:"host_held_bytes"`
	Tags       []node.TagStatus    `json:"tags"` // at most maxTags
	TagCount   int                 `json:"tag_count"`
	LastPause  *node.LastOperation `json:"last_pause"`
	LastResume *node.LastOperation `json:"last_resume"`
	Disk       diskReply           `json:"disk"`
	Error      string              `json:"error,omitempty"`
}

type operationReply struct {
	Name    string `json:"operation"`
	Waiting bool   `json:"waiting"`
	Bytes   uint64 `json:"bytes"`
	Total   uint64 `json:"total_bytes"`
}

type diskReply struct {
	Dir     string `json:"dir,omitempty"`
	Bytes   uint64 `json:"bytes"`
	Written uint64 `json:"written_bytes"`
	Quota   uint64 `json:"quota_bytes"`
}

// details answers GET /v1/ranks.
func (s *Server) details(w http.ResponseWriter, r *http.Request) *refusal {
	q := queryOf(r, "offset", "limit", "timeout_s")
	offset := q.number("offset", 0, 1<<30)
	limit := q.number("limit", pageRanks, maxRanks)
	if q.wrong != nil {
		return q.wrong
	}
	l, refused := s.look(r, "offset", "limit")
	if refused != nil {
		return refused
	}
	now, _ := s.hub.busy()
	total := len(l.ranks) + len(l.silent)
	offset = min(offset, total)
	end := min(offset+limit, total)
	reply := ranksReply{
		MessageType: "ranks", Time: time.Now().UTC(), Age: time.Since(l.at).Seconds(),
		Total: total, Offset: offset, Ranks: []rankDetail{},
	}
	if end < total {
		reply.Next = &end
	}
	for i := offset; i < end; i++ {
		if i < len(l.ranks) {
			r := l.ranks[i]
			o, busy := now[r.Socket]
			reply.Ranks = append(reply.Ranks, detail(r, o, busy))
			continue
		}
		q := l.silent[i-len(l.ranks)]
		reply.Ranks = append(reply.Ranks, detail(node.RankStatus{Rank: node.Rank{Who: q.Who}, Err: q.Why}, operation{}, false))
	}
	writeJSON(w, http.StatusOK, reply)
	return nil
}

func detail(r node.RankStatus, o operation, busy bool) rankDetail {
	st := r.Status
	d := rankDetail{
		Name: cut(node.Name(r.Who), maxName), Job: r.Job, Role: r.Role, Cell: r.Cell, Rank: r.Who.Rank, PID: r.PID, Version: r.Version,
		State: stateOf(r, o, busy), Device: st.Device, Bytes: tiersOf(st), Unmanaged: st.Unmanaged.Total,
		Staging: st.Staging, HostHeld: st.Host.Held, Tags: st.Tags[:min(len(st.Tags), maxTags)], TagCount: len(st.Tags),
		LastPause: st.LastPause, LastResume: st.LastResume,
		Disk:  diskReply{Dir: st.Disk.Dir, Bytes: st.Disk.Bytes, Written: st.Disk.Written, Quota: st.Disk.Quota},
		Error: cut(r.Err, 2*maxName),
	}
	if d.Tags == nil {
		d.Tags = []node.TagStatus{}
	}
	if !r.Started.IsZero() {
		d.Started = &r.Started
	}
	if r.Err == "" {
		d.Error = cut(fault(st), 2*maxName)
		if busy {
			d.Operation = &operationReply{Name: o.Name, Waiting: o.Waiting, Bytes: o.Bytes, Total: o.Total}
		}
	}
	return d
}
