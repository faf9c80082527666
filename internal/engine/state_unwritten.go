package engine

import (
	"fmt"
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

// unwrittenIn refuses a pause that began before a write from its memory failed.
func (e *Engine) unwrittenIn(set []*alloc.Allocation) error {
	s := &e.states
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range set {
		if parts := s.unwritten[a]; len(parts) > 0 {
			return fmt.Errorf("%w: %v holds bytes of %v that are nowhere else, since their write failed a moment ago: repeat it, or pause again, which leaves them on the device",
				ErrState, a, parts[0].segment)
		}
	}
	return nil
}

// within reports whether a part of a segment lies in another one.
func (p part) within(o part) bool {
	return p.segment == o.segment && o.offset <= p.offset && p.offset+p.bytes <= o.offset+o.bytes
}

// same reports whether two parts are the same bytes at the same place.
func (p part) same(o part) bool {
	return p.within(o) && o.within(p) && p.addr == o.addr
}
