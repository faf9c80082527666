package engine

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/ebb-offload/ebb/internal/alloc"
	"github.com/ebb-offload/ebb/internal/device"
	"github.com/ebb-offload/ebb/internal/mem"
)

// Region is how an allocation is to be treated, fixed when it is made.
type Region struct {
	Tag    string
	Backup alloc.Backup
	Mmap   bool // CPU backup in plain instead of pinned memory
}

func (r Region) check() error {
	if r.Backup < alloc.BackupNone || r.Backup > alloc.BackupDisk {
		return fmt.Errorf("%w: backup mode %d", ErrInvalid, r.Backup)
	}
	return nil
}

// Malloc makes managed memory of size bytes on a device. margin is the number of bytes that
// must stay free on the device; an allocation that would not leave them is refused.
func (e *Engine) Malloc(size uint64, dev int, r Region, margin uint64) (mem.Addr, error) {
	if size == 0 {
		return 0, fmt.Errorf("%w: allocation of 0 bytes", ErrInvalid)
	}
	if err := r.check(); err != nil {
		return 0, err
	}
	d, err := e.deviceState(dev)
	if err != nil {
		return 0, fmt.Errorf("allocate %d bytes: device %d: %w", size, dev, err)
	}
	if margin > 0 {
		if err := e.leaveFree(dev, size, margin); err != nil {
			return 0, err
		}
	}
	reserved, ok := roundUp(size, d.granularity)
	if !ok {
		free, _ := e.freeMemory(dev) // for the message only
		return 0, &DeviceMemoryError{Device: dev, Need: size, Free: free}
	}
	access := e.rangeAccess(dev)
	a := &alloc.Allocation{
		Size: size, Reserved: reserved, Device: dev, Tag: r.Tag, Backup: r.Backup, Mmap: r.Mmap,
		Pieces: []alloc.Piece{{Length: reserved, Props: d.props, Access: access}},
	}
	if err := e.back(a); err != nil {
		return 0, fmt.Errorf("allocate %d bytes on device %d: %w", size, dev, err)
	}
	e.table.Add(a)
	e.warmUp(d, dev, r.Backup)
	if !slices.Equal(access, e.rangeAccess(dev)) { // it changed meanwhile
		if err := e.grantPeers(a); err != nil {
			return 0, errors.Join(err, e.freeUnowned(a.Base))
		}
	}
	return a.Base, nil
}

// createMemory is physical memory of a device, or a *DeviceMemoryError where there is too little.
func (e *Engine) createMemory(dev int, size uint64, p mem.Props) (mem.Handle, error) {
	h, err := e.drv.MemCreate(size, p)
	if device.IsOutOfMemory(err) {
		free, _ := e.freeMemory(dev) // for the message only
		return 0, &DeviceMemoryError{Device: dev, Need: size, Free: free, Err: err}
	}
	return h, err
}

// back gives a new allocation its address range and its memory, or nothing.
func (e *Engine) back(a *alloc.Allocation) error {
	p := &a.Pieces[0]
	h, err := e.createMemory(a.Device, a.Reserved, p.Props)
	if err != nil {
		return err
	}
	p.Handle = h
	if a.Base, err = e.drv.AddressReserve(a.Reserved, 0); err == nil {
		if err = e.mapPieces(a); err == nil {
			return nil
		}
	}
	return errors.Join(err, e.abandon(a))
}

// Free releases managed memory that begins at base, active or paused. Active memory is waited
// for first, as cudaFree does. It waits while the memory is part of a pause or resume. After an error the
// memory either is as it was, where the driver did not unmap it, and can be freed again; or it is gone.
func (e *Engine) Free(base mem.Addr, captureActive bool) error {
	if captureActive && e.table.Has(base) {
		return fmt.Errorf("memory at %v: %w", base, ErrCapture)
	}
	a, state, err := e.table.Remove(base)
	if err != nil {
		return err
	}
	if state == alloc.Paused {
		defer e.gate.resumed()
	} else {
		err = ignoreDeinitialized(e.synchronize(a.Device))
	}
	e.tryAgain()
	e2 := e.letGo(a)
	err = errors.Join(err, e2)
	if e2 != nil && mapped(a) {
		e.table.Restore(a)
		return err
	}
	if e2 := e.releaseBacking(a); e2 != nil {
		e.tellLeft(e2) // the memory is freed; the store removes the rest when it is closed
	}
	return err
}

// leaveFree refuses an allocation after which less than margin bytes of the device were free.
func (e *Engine) leaveFree(dev int, size, margin uint64) error {
	free, err := e.freeMemory(dev)
	if err != nil {
		return fmt.Errorf("ask for the free memory of device %d: %w", dev, err)
	}
	if free < margin || free-margin < size {
		need := size + margin
		if need < size {
			need = math.MaxUint64
		}
		return fmt.Errorf("with a margin of %d bytes: %w", margin, &DeviceMemoryError{Device: dev, Need: need, Free: free})
	}
	return nil
}

// roundUp rounds n up to a multiple of unit; false when that does not fit 64 bits.
func roundUp(n, unit uint64) (uint64, bool) {
	r := (n + unit - 1) / unit * unit
	return r, r >= n
}
