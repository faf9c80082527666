package engine

import "github.com/ebb-offload/ebb/internal/alloc"

// OnWait sets what the calls of owners (Malloc, Free and those on memory that its owner maps) do, on
// their own thread, before they wait: for a pause or resume, for one another, for the device, for
// a disk. Before any other call. Their thread may hold back signals that must not wait as long.
func (e *Engine) OnWait(waits func()) { e.table.OnWait(waits) }

// releaseBacking gives up the backup of memory that was freed.
func (e *Engine) releaseBacking(a *alloc.Allocation) error {
	if e.backings.find(a) != nil {
		e.table.Waits() // for a disk, or for the driver that unpins memory
		e.mapFreed(a)
	}
	return e.backings.release(a)
}
