package engine

import (
	"errors"
	"fmt"
	"sync"

	"github.com/ebb-offload/ebb/internal/alloc"
	"github.com/ebb-offload/ebb/internal/mem"
)

// This file is about memory that goes for good, and a driver that does not take it. A Range of which
// something stays mapped is its owner's as before (Free). What has no owner any more is remembered, and
// tried again when the next memory goes and at the next pause.

// untaken is what the driver did not take back, and nobody else knows of.
type untaken struct {
	mu   sync.Mutex // guards the field below; held over the driver's calls
	list []*alloc.Allocation
}

// letGo gives an allocation's memory and, of a Range, its addresses back to the driver. After an error
// part of it is still there; it can be called again.
func (e *Engine) letGo(a *alloc.Allocation) error {
	_, err := e.releasePieces(a)
	if mapped(a) || a.Kind == alloc.Object || a.Base == 0 {
		return err // a range with something mapped cannot be freed
	}
	if e2 := ignoreDeinitialized(e.drv.AddressFree(a.Base, a.Reserved)); e2 != nil {
		e.log.Printf("free the address range of %v: %v; it is tried again", a, e2) // addresses only
		e.remember(a)
	}
	return err
}

// mapped says whether an allocation, or a window of it, is still mapped.
func mapped(a *alloc.Allocation) bool {
	for _, p := range a.Pieces {
		if p.Mapped {
			return true
		}
	}
	for _, m := range a.Mappings {
		if m.Mapped {
			return true
		}
	}
	return a.Window
}

// abandon is letGo for what has no owner who could try again.
func (e *Engine) abandon(a *alloc.Allocation) error {
	err := e.letGo(a)
	if err != nil && mapped(a) {
		e.remember(a)
		err = fmt.Errorf("%w; it is tried again", err)
	}
	return err
}

// freeUnowned is Free for memory that nobody was told of.
func (e *Engine) freeUnowned(base mem.Addr) error {
	err := e.Free(base, false)
	if a, _, e2 := e.table.Remove(base); e2 == nil { // it was not freed
		e.remember(a)
	}
	return err
}

func (e *Engine) remember(a *alloc.Allocation) {
	e.untaken.mu.Lock()
	defer e.untaken.mu.Unlock()
	e.untaken.list = append(e.untaken.list, a)
}

// tryAgain gives back what the driver did not take before.
func (e *Engine) tryAgain() {
	e.untaken.mu.Lock()
	defer e.untaken.mu.Unlock()
	kept := e.untaken.list[:0]
	for _, a := range e.untaken.list {
		_, err := e.releasePieces(a)
		if !mapped(a) && a.Kind == alloc.Range {
			err = errors.Join(err, ignoreDeinitialized(e.drv.AddressFree(a.Base, a.Reserved)))
		}
		if err != nil {
			kept = append(kept, a)
		}
	}
	clear(e.untaken.list[len(kept):])
	e.untaken.list = kept
}
