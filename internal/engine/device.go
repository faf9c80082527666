package engine

import (
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync/atomic"

	"github.com/ebb-offload/ebb/internal/alloc"
	"github.com/ebb-offload/ebb/internal/device"
	"github.com/ebb-offload/ebb/internal/mem"
)

// deviceState is what the engine knows of a device that it manages memory on.
type deviceState struct {
	granularity uint64
	props       mem.Props
	warmed      atomic.Bool // see warmUp
}

// deviceState returns what is known of a device, asking the driver the first time.
func (e *Engine) deviceState(dev int) (*deviceState, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if d := e.devices[dev]; d != nil {
		return d, nil
	}
	rdma, err := e.drv.SupportsRDMA(dev)
	if err != nil {
		return nil, err
	}
	d := &deviceState{props: mem.DeviceProps(dev, rdma)}
	if d.granularity, err = e.drv.Granularity(d.props); err != nil {
		return nil, err
	}
	if _, err = e.drv.PrimaryContext(dev); err != nil {
		return nil, err
	}
	e.devices[dev] = d
	return d, nil
}

// anyDevice is a device that memory is managed on.
func (e *Engine) anyDevice() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	for dev := range e.devices {
		return dev
	}
	return 0
}

// withContext runs fn on the calling goroutine's thread with ctx current and capture mode
// relaxed, and puts back what the thread had.
func (e *Engine) withContext(ctx device.Context, fn func() error) (err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before, err := e.drv.Context()
	if err != nil {
		return err
	}
	return e.relaxed(func() (err error) {
		if before == ctx {
			return fn()
		}
		if err := e.drv.SetContext(ctx); err != nil {
			return err
		}
		defer func() {
			if e2 := e.drv.SetContext(before); err == nil && e2 != nil {
				err = restoreError(e2)
			}
		}()
		return fn()
	})
}

// restoreError hides the driver's code: it speaks of the caller's context, not of what was done.
func restoreError(err error) error {
	return fmt.Errorf("%w: put back the calling thread's CUDA context: %s", ErrState, err.Error())
}

// primary is the device's primary context, from now on known to the engine. It changes with a reset.
func (e *Engine) primary(dev int) (device.Context, error) {
	if _, err := e.deviceState(dev); err != nil {
		return 0, err
	}
	return e.drv.PrimaryContext(dev)
}

func (e *Engine) withDevice(dev int, fn func() error) error {
	ctx, err := e.primary(dev)
	if err != nil {
		return err
	}
	return e.withContext(ctx, fn)
}

// take is withDevice for a call that takes something. Where it did, but the thread's context could
// not be put back, undo gives it back: an error means that nothing was taken.
func (e *Engine) take(dev int, call, undo func() error) error {
	taken := false
	err := e.withDevice(dev, func() error {
		err := call()
		taken = err == nil
		return err
	})
	if taken && err != nil {
		err = errors.Join(err, e.giveBack(dev, undo))
	}
	return err
}

// giveBack is withDevice for a call that gives something back. An error means that it did not.
func (e *Engine) giveBack(dev int, call func() error) error {
	given := false
	err := e.withDevice(dev, func() error {
		err := call()
		given = err == nil
		return err
	})
	if given {
		return nil
	}
	return err
}

// freeMemory is the device's free memory in bytes, as the driver says.
func (e *Engine) freeMemory(dev int) (free uint64, err error) {
	err = e.withDevice(dev, func() (err error) {
		free, _, err = e.drv.MemInfo()
		return err
	})
	return free, err
}

// synchronize waits for all work of the device's primary context. Its error is the actor's
// earlier fault, not ebb's.
func (e *Engine) synchronize(dev int) error {
	ctx, err := e.primary(dev)
	if err != nil {
		return err
	}
	return e.synchronizeContext(ctx, fmt.Sprintf("device %d", dev))
}

// synchronizeAll waits for every device that memory is managed on, since work of one device may
// use the memory of another, and for the calling thread's own context where that is another one.
//
// Further contexts are the caller's to wait for. That they still exist cannot be known, and a
// driver that is handed a destroyed one corrupts the process's heap (seen with driver 580).
func (e *Engine) synchronizeAll() error {
	e.mu.Lock()
	devices := slices.Sorted(maps.Keys(e.devices))
	e.mu.Unlock()
	for _, dev := range devices {
		if err := e.synchronize(dev); err != nil {
			return err
		}
	}
	own, err := e.drv.Context()
	if err != nil || own == 0 || e.isPrimary(own) {
		return err
	}
	return e.synchronizeContext(own, "the calling thread's context")
}

// drain waits, after an error, for what was submitted and not waited for: it must not run when the
// memory that it was to read or write is another's. Where that cannot be waited for nothing runs.
func (e *Engine) drain() {
	e.mu.Lock()
	devices := slices.Sorted(maps.Keys(e.devices))
	e.mu.Unlock()
	for _, dev := range devices {
		_ = e.synchronize(dev)
	}
}

func (e *Engine) synchronizeContext(ctx device.Context, name string) error {
	var fault error
	err := e.withContext(ctx, func() error {
		fault = e.drv.Synchronize()
		return fault
	})
	switch {
	case err == nil:
		return nil
	case fault == nil: // it was not asked, or the thread's context could not be put back
		return fmt.Errorf("wait for %s: %w", name, err)
	case device.IsCapture(err): // begun by a way that nobody counts
		return fmt.Errorf("%w: wait for %s: %w", ErrCapture, name, err)
	default:
		return fmt.Errorf("%w: wait for %s: %w", ErrDeviceFault, name, err)
	}
}

func (e *Engine) isPrimary(ctx device.Context) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	for dev := range e.devices {
		if its, err := e.drv.PrimaryContext(dev); err == nil && its == ctx {
			return true
		}
	}
	return false
}

// mapPieces maps what is not mapped, and grants access where that was not done.
func (e *Engine) mapPieces(a *alloc.Allocation) error {
	if a.Kind == alloc.Object {
		return e.mapObject(a)
	}
	for i := range a.Pieces {
		p := &a.Pieces[i]
		at := a.Base + mem.Addr(p.Offset)
		if !p.Mapped {
			if err := e.drv.MemMap(at, p.Length, 0, p.Handle); err != nil {
				return fmt.Errorf("map %v: %w", a, err)
			}
			p.Mapped = true
		}
		if p.Granted {
			continue
		}
		if err := e.drv.MemSetAccess(at, p.Length, p.Access); err != nil {
			return fmt.Errorf("grant access to %v: %w", a, err)
		}
		p.Granted = true
	}
	return nil
}

// releasePieces unmaps the allocation's pieces and gives their physical memory back to the
// driver. It goes on after an error, so that as much as possible is released, and returns the
// bytes released. A piece that could not be unmapped stays mapped, with its memory.
func (e *Engine) releasePieces(a *alloc.Allocation) (released uint64, err error) {
	if a.Kind == alloc.Object {
		return e.releaseObject(a)
	}
	for i := range a.Pieces {
		p := &a.Pieces[i]
		if p.Mapped {
			if e2 := ignoreDeinitialized(e.drv.MemUnmap(a.Base+mem.Addr(p.Offset), p.Length)); e2 != nil {
				err = errors.Join(err, fmt.Errorf("unmap %v: %w", a, e2))
				continue
			}
			p.Mapped, p.Granted = false, false
		}
		if p.Handle != 0 {
			if e2 := ignoreDeinitialized(e.drv.MemRelease(p.Handle)); e2 != nil {
				err = errors.Join(err, fmt.Errorf("release memory of %v: %w", a, e2))
			} else {
				released += p.Length
			}
			p.Handle = 0 // released or, after an error, not ours to release a second time
		}
	}
	return released, err
}

// ignoreDeinitialized makes success of the driver's answer after its own shutdown at exit.
func ignoreDeinitialized(err error) error {
	if device.IsCode(err, device.CodeDeinitialized) {
		return nil
	}
	return err
}
