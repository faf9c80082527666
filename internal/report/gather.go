package report

import (
	"fmt"
	"maps"
	"slices"

	"github.com/ebb-offload/ebb/internal/control"
)

// gathered is what files tell of one rank: of each of its processes the events that count, one small record each.
// Those of progress, which are most, are only counted.
type gathered struct {
	who      control.Who
	progress uint64
	streams  []*stream
}

// stream is the events of one process.
type stream struct {
	who    control.Who
	host   string
	pid    int
	rank   *gathered
	events []event
}

// gatherer gathers the events of one job.
type gatherer struct {
	scanner
	job   string
	ranks map[string]*gathered // by key
	bad   unread
	last  *stream // whose the line before was
	known map[identity]*stream
	names map[string]string // texts that occur again and again, once
}

type identity struct {
	who  control.Who
	host string
}

// maxNames is how many different texts are kept for the next line that has them.
const maxNames = 1 << 16

func gather(job string, logs []log) (*gatherer, error) {
	g := &gatherer{job: job, ranks: map[string]*gathered{}, known: map[identity]*stream{}, names: map[string]string{}}
	for _, l := range logs {
		if _, has := l.jobs[job]; !has && len(l.jobs) > 0 {
			continue
		}
		f, err := open(l.path)
		if err != nil {
			return nil, err
		}
		bad, err := readLines(f, g.add)
		f.Close()
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", l.path, err)
		}
		g.bad.Lines, g.bad.Cut, g.bad.Long = g.bad.Lines+bad.Lines, g.bad.Cut+bad.Cut, g.bad.Long+bad.Long
	}
	return g, nil
}

// add takes a line in. It is false for one that is no event.
func (g *gatherer) add(line []byte) bool {
	if !g.take(line) {
		return false
	}
	f := &g.fields
	e := event{at: f.at, seq: f.seq, kind: kindOf(f.kind), pause: string(f.operation) == "pause", partial: f.tags}
	switch e.kind {
	case kindBegin, kindEnd:
		if !e.pause && string(f.operation) != "resume" {
			return false
		}
		if e.kind == kindEnd {
			ok := false
			if e.done, ok = outcomeOf(f, g.name); !ok {
				return false
			}
		}
	case kindPhase:
		e.phase = g.name(f.phase)
	}
	if string(f.job) != g.job {
		return true
	}
	s := g.stream(f)
	if e.kind == kindProgress {
		s.rank.progress++
		return true
	}
	s.events = append(s.events, e)
	return true
}

// name is a text that is kept once, however many lines have it.
func (g *gatherer) name(text []byte) string {
	if len(text) == 0 {
		return ""
	}
	if kept, known := g.names[string(text)]; known {
		return kept
	}
	kept := string(text)
	if len(g.names) < maxNames {
		g.names[kept] = kept
	}
	return kept
}

// stream is that of the process which an event is of.
func (g *gatherer) stream(f *fields) *stream {
	if s := g.last; s != nil && s.pid == f.pid && s.who.Rank == string(f.rank) && s.who.Job == string(f.job) && s.who.Role == string(f.role) &&
		s.who.Cell == string(f.cell) && s.host == string(f.host) {
		return s
	}
	id := identity{control.Who{Job: g.name(f.job), Role: g.name(f.role), Cell: g.name(f.cell), Rank: g.name(f.rank), PID: f.pid}, g.name(f.host)}
	s := g.known[id]
	if s == nil {
		k := key(id.who, id.host)
		rank := g.ranks[k]
		if rank == nil {
			rank = &gathered{who: id.who}
			g.ranks[k] = rank
		}
		same := func(s *stream) bool { return s.host == id.host && s.pid == id.who.PID }
		if i := slices.IndexFunc(rank.streams, same); i >= 0 {
			s = rank.streams[i]
		} else {
			s = &stream{who: id.who, host: id.host, pid: id.who.PID, rank: rank}
			rank.streams = append(rank.streams, s)
		}
		g.known[id] = s
	}
	g.last = s
	return s
}

// order are the ranks by their keys.
func (g *gatherer) order() []*gathered {
	var all []*gathered
	for _, k := range slices.Sorted(maps.Keys(g.ranks)) {
		all = append(all, g.ranks[k])
	}
	return all
}
