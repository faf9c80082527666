package engine

import "fmt"

// BeginReset readies the engine for a reset of a device's primary context, which ends all that the driver
// had made in it. It waits for pauses, resumes and reads under way; those that come wait for EndReset.
func (e *Engine) BeginReset() {
	e.op.Lock()
	e.background.Lock()
	e.mu.Lock()
	e.resetting = true
	e.mu.Unlock()
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
	return nil
}

// repin pins the host memory again that resets of devices have unpinned.
func (e *Engine) repin() error {
	return e.withDevice(e.anyDevice(), e.drv.Repin)
}
