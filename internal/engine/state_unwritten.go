package engine

import (
	"slices"

	"github.com/ebb-offload/ebb/internal/alloc"
	"github.com/ebb-offload/ebb/internal/mem"
	"github.com/ebb-offload/ebb/internal/pipeline"
)

// Memory from which a write of streamed state failed holds bytes that are nowhere else. Where it is managed, and
// of a kind whose content a pause discards, pauses leave it on the device until the write was repeated.

// unwrittenReason is why a pause leaves such memory on the device.
const unwrittenReason = "unwritten"

// noteEnd keeps the memory of a write from it that failed, and lets memory go of which all has been written now.
// Called with states.mu held.
func (e *Engine) noteEnd(r *stateRequest, err error) {
	switch s := &e.states; {
	case r.direction != pipeline.Store:
	case err == nil:
		e.letGoOfParts(func(p part) bool { return slices.ContainsFunc(r.parts, p.within) })
	case r.bytes == nil:
		for _, p := range r.parts {
			for _, a := range p.memory {
				if a.Backup != alloc.BackupNone {
					continue
				}
				if !slices.ContainsFunc(s.unwritten[a], p.same) {
					s.unwritten[a] = append(s.unwritten[a], p)
				}
				e.table.Keep(a, unwrittenReason)
			}
		}
	}
}

// noteOverwritten lets memory go that a request is to fill with other bytes. Called with states.mu held.
func (e *Engine) noteOverwritten(r *stateRequest) {
	if r.direction == pipeline.Load && r.bytes == nil {
		e.letGoOfParts(func(p part) bool {
			return slices.ContainsFunc(r.parts, func(q part) bool {
				return p.addr < q.addr+mem.Addr(q.bytes) && q.addr < p.addr+mem.Addr(p.bytes)
			})
		})
	}
}

// letGoOfParts forgets unwritten parts. Called with states.mu held.
func (e *Engine) letGoOfParts(these func(part) bool) {
	for a, parts := range e.states.unwritten {
		if parts = slices.DeleteFunc(parts, these); len(parts) > 0 {
			e.states.unwritten[a] = parts
			continue
		}
		delete(e.states.unwritten, a)
		e.table.Unkeep(a, unwrittenReason)
	}
}

// leaveUnwritten takes out of the set of a pause, in Pausing, the memory from which a write failed after the pause had
// begun, and makes it active again: what the pause would have left on the device a moment later. Nothing was done to it
// yet, and from now on the pause has no more to do with it than with memory that was kept before.
func (e *Engine) leaveUnwritten(set []*alloc.Allocation) (rest []*alloc.Allocation) {
	var left []*alloc.Allocation
	var of []*segment
	s := &e.states
	s.mu.Lock()
	for _, a := range set {
		if parts := s.unwritten[a]; len(parts) > 0 {
			left, of = append(left, a), append(of, parts[0].segment)
		} else {
			rest = append(rest, a)
		}
	}
	s.mu.Unlock()
	e.table.Settle(left, alloc.Active)
	for i, a := range left {
		e.log.Printf("the pause leaves %v on the device: it holds bytes of %v that are nowhere else, since their write failed while the pause waited for it. "+
			"Repeat the write (an optimizer's step()), then pause again", a, of[i])
	}
	return rest
}

// within reports whether a part of a segment lies in another one.
func (p part) within(o part) bool {
	return p.segment == o.segment && o.offset <= p.offset && p.offset+p.bytes <= o.offset+o.bytes
}

// same reports whether two parts are the same bytes at the same place.
func (p part) same(o part) bool {
	return p.within(o) && o.within(p) && p.addr == o.addr
}
