package engine

import (
	"fmt"

	"github.com/ebb-offload/ebb/internal/alloc"
	"github.com/ebb-offload/ebb/internal/sizes"
)

// BeginReset readies the engine for a reset of a device's primary context, which ends all that the driver
// had made in it. It waits for pauses, resumes and reads under way; those that come wait for EndReset.
// Where the only copy of paused bytes would go with the context it is an error, and nothing has begun.
func (e *Engine) BeginReset() error {
	e.op.Lock()
	e.background.Lock()
	if err := e.dropPinned(); err != nil {
		e.background.Unlock()
		e.op.Unlock()
		return err
	}
	e.mu.Lock()
	e.resetting = true
	e.mu.Unlock()
	return nil
}

// dropPinned gives up the backups in memory that is a context's (see allocPinned), or refuses if they are of
// paused memory. Called with op held.
func (e *Engine) dropPinned() error {
	if e.config.HostArena {
		return nil
	}
	var paused uint64
	var retained []*alloc.Allocation
	for _, a := range e.table.All() {
		switch {
		case a.Backup != alloc.BackupCPU || a.Mmap || e.backings.find(a) == nil:
		case e.table.State(a) == alloc.Active:
			retained = append(retained, a)
		default:
			paused += a.Size
		}
	}
	if paused > 0 {
		return fmt.Errorf("%w: %s of paused memory lie in pinned host memory that a reset of the device frees: resume them first, or keep backups in the arena (EBB_HOST_ARENA=1), in plain memory (mmap) or on disk", ErrState, sizes.Binary(paused))
	}
	return e.releaseBackings(retained)
}

// EndReset ends what BeginReset began. done: the device's primary context was reset. Managed memory is of
// no context: it stays, with its bytes or its backup.
func (e *Engine) EndReset(dev int, done bool) error {
	e.mu.Lock()
	began := e.resetting
	e.resetting = false
	e.mu.Unlock()
	if !began {
		return fmt.Errorf("%w: no reset has begun", ErrState)
	}
	defer e.op.Unlock()
	defer e.background.Unlock()
	if !done {
		return nil
	}
	e.drv.ContextReset(dev)
	delete(e.hash.streams, dev)
	if e.pool != nil {
		e.pool.ContextReset(dev)
	}
	e.resetStates(dev)
	return nil
}

// repin pins the host memory again that resets of devices have unpinned.
func (e *Engine) repin() error {
	return e.withDevice(e.anyDevice(), e.drv.Repin)
}
