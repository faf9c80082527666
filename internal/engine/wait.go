package engine

import (
	"slices"

	"github.com/ebb-offload/ebb/internal/alloc"
)

// OnWait sets what the calls of owners (Malloc, Free and those on memory that its owner maps) do, on
// their own thread, before they wait: for a pause or resume, for one another, for the device, for
// a disk. Before any other call. Their thread may hold back signals that must not wait as long.
func (e *Engine) OnWait(waits func()) { e.table.OnWait(waits) }

// releaseBacking gives up the backup of memory that was freed.
func (e *Engine) releaseBacking(a *alloc.Allocation) error {
	if e.backings.find(a) != nil {
		e.table.Waits() // for a disk, or for the driver that unpins memory
	}
	return e.dropBacking(a)
}

// releaseBackingsOf is releaseBacking for several, several at a time: each is the removal of a file. What
// cannot be released is told, and is the store's to remove when it is closed.
func (e *Engine) releaseBackingsOf(list []*alloc.Allocation) {
	backed := func(a *alloc.Allocation) bool { return e.backings.find(a) != nil }
	if !slices.ContainsFunc(list, backed) {
		return
	}
	e.table.Waits() // here: it speaks of the calling thread
	drop := func(i int) error {
		if err := e.dropBacking(list[i]); err != nil {
			e.tellLeft(err)
		}
		return nil
	}
	if e.onFiles(len(list), drop) == nil {
		return
	}
	for i := range list { // what is dropped already is no matter
		if err := guarded(i, drop); err != nil {
			e.tellLeft(err)
		}
	}
}

func (e *Engine) dropBacking(a *alloc.Allocation) error {
	if e.backings.find(a) != nil {
		e.mapFreed(a)
	}
	return e.backings.release(a)
}
