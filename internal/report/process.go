package report

import (
	"cmp"
	"slices"
	"time"
)

// operation is a pause or resume of one process. Times are Unix nanoseconds.
type operation struct {
	pause      bool
	partial    bool // of some tags only
	begin, end int64
	done       *outcome
	failed     bool
	text       string // why
	cut        bool   // its end is not in the log
}

// process is one process of a rank, from its first event to its last.
type process struct {
	host       string
	pid        int
	begin, end int64
	exited     bool // it said so
	operations []operation
	withdrawn  int    // pauses asked for from outside that came to nothing
	numbers    uint64 // of events, from the first one's to the last one's
	seen       uint64 // events that are there, those of progress left out
	back       int64  // the longest step back of its clock, in nanoseconds
	lastPhase  string
}

// processes sorts the events of one rank into its processes, in the order of their begin. Lines may lie in
// the log in any order, and twice. Within a process the number of an event counts, not its time: clocks
// are set back.
func processes(of []*stream) []process {
	var all []process
	for _, s := range of {
		for _, list := range incarnations(s.events) {
			p := follow(list)
			p.host, p.pid = s.host, s.pid
			all = append(all, p)
		}
	}
	slices.SortFunc(all, func(a, b process) int {
		return cmp.Or(cmp.Compare(a.begin, b.begin), cmp.Compare(a.host, b.host), cmp.Compare(a.pid, b.pid))
	})
	return all
}

// incarnations tells processes apart that had the same number one after the other: each begins with a start.
func incarnations(list []event) [][]event {
	starts := 0
	for _, e := range list {
		if e.kind == kindStart {
			starts++
		}
	}
	bySeq := func(a, b event) int { return cmp.Or(cmp.Compare(a.seq, b.seq), cmp.Compare(a.at, b.at)) }
	once := func(a, b event) bool { return a.seq == b.seq && a.at == b.at && a.kind == b.kind }
	if starts < 2 {
		if !slices.IsSortedFunc(list, bySeq) {
			slices.SortFunc(list, bySeq)
		}
		return [][]event{slices.CompactFunc(list, once)}
	}
	slices.SortFunc(list, func(a, b event) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.seq, b.seq)) })
	list = slices.CompactFunc(list, once)
	var parts [][]event
	from := 0
	for i, e := range list {
		if e.kind == kindStart && i > from {
			parts = append(parts, list[from:i])
			from = i
		}
	}
	parts = append(parts, list[from:])
	for _, part := range parts {
		slices.SortFunc(part, bySeq)
	}
	return parts
}

// follow goes through the events of one process in their order. Their numbers never go down.
func follow(list []event) process {
	p := process{begin: list[0].at}
	open := map[bool]*operation{} // by pause
	now := p.begin
	for i, e := range list {
		if i > 0 {
			p.back = max(p.back, now-e.at)
		}
		now = max(now, e.at) // time does not go back here
		switch e.kind {
		case kindBegin:
			// Of one whose end is missing nothing is known.
			open[e.pause] = &operation{pause: e.pause, partial: e.partial, begin: now}
			p.lastPhase = ""
		case kindPhase:
			p.lastPhase = e.phase
		case kindEnd:
			o := open[e.pause]
			if o == nil {
				o = &operation{pause: e.pause, partial: e.partial, begin: max(p.begin, now-int64(e.done.Seconds*1e9))}
			}
			delete(open, e.pause)
			o.end, o.done, o.text, o.failed = now, e.done, e.done.text, e.done.text != ""
			p.operations = append(p.operations, *o)
		case kindWithdraw:
			p.withdrawn++
		case kindExit:
			p.exited = true
		}
	}
	p.end = now
	p.numbers, p.seen = list[len(list)-1].seq-list[0].seq+1, uint64(len(list))
	for _, o := range open {
		o.end, o.cut, o.done = now, true, &outcome{}
		p.operations = append(p.operations, *o)
	}
	return p
}

// states calls add for each stretch of time that the process was in one state.
//
// A process is parked while it has bytes that were paused and not resumed. A resume of everything ends that,
// whatever was freed meanwhile.
func (p process) states(add func(from, to int64, s state)) {
	at, parked := p.begin, uint64(0)
	rest := func(to int64) {
		s := train
		if parked > 0 {
			s = away
		}
		if to > at {
			add(at, to, s)
			at = to
		}
	}
	for _, o := range p.operations {
		rest(o.begin)
		s := resuming
		if o.pause {
			s = pausing
		}
		if o.end > at {
			add(at, o.end, s)
			at = o.end
		}
		switch {
		case o.pause && !o.failed && !o.cut:
			parked = plus(parked, o.done.Bytes)
		case o.pause && o.failed: // in part, if anything was released
			parked = plus(parked, o.done.DeviceBytes)
		case !o.failed && !o.cut && !o.partial:
			parked = 0
		case !o.failed && !o.cut:
			parked -= min(parked, o.done.Bytes)
		}
	}
	rest(p.end)
}

// plus adds without overflow.
func plus(a, b uint64) uint64 {
	if a+b < a {
		return ^uint64(0)
	}
	return a + b
}

func at(ns int64) time.Time { return time.Unix(0, ns).UTC() }
