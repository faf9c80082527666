package engine

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/ebb-offload/ebb/internal/alloc"
	"github.com/ebb-offload/ebb/internal/filesys"
	"github.com/ebb-offload/ebb/internal/hostmem"
	"github.com/ebb-offload/ebb/internal/mem"
	"github.com/ebb-offload/ebb/internal/pipeline"
	"github.com/ebb-offload/ebb/internal/store"
)

// Read copies managed memory at addr into p: from its backup while it is paused, without using
// the device, and from the device otherwise, where work submitted before is waited for. It
// waits for a pause or resume under way.
func (e *Engine) Read(addr mem.Addr, p []byte, captureActive bool) error {
	if len(p) == 0 {
		return nil
	}
	e.op.Lock() // no pause or resume changes where the bytes are
	defer e.op.Unlock()
	defer e.backings.begin()()
	for done := 0; done < len(p); {
		n, err := e.readPiece(addr+mem.Addr(done), p[done:], captureActive)
		if err != nil {
			return fmt.Errorf("%d bytes at %v: %w", len(p), addr, err)
		}
		done += n
	}
	return nil
}

// readPiece reads from one allocation: all of p, or up to the end of an object's mapping, where the
// next one may follow.
func (e *Engine) readPiece(addr mem.Addr, p []byte, captureActive bool) (n int, err error) {
	a, state, err := e.table.Hold(addr, 1)
	if err != nil {
		return 0, err
	}
	defer e.table.Unhold(a)
	off, room := e.table.Place(addr)
	if room < uint64(len(p)) {
		if a.Kind == alloc.Range {
			return 0, fmt.Errorf("%v ends before: %w", a, alloc.ErrNotManaged)
		}
		p = p[:room]
	}
	return len(p), e.readHeld(a, state, addr, off, p, captureActive)
}

// readHeld reads bytes of one allocation, which is held: from addr, that is from off in it.
func (e *Engine) readHeld(a *alloc.Allocation, state alloc.State, addr mem.Addr, off uint64, p []byte, captureActive bool) error {
	switch {
	case state == alloc.Active && captureActive:
		return fmt.Errorf("%v is active: %w", a, ErrCapture)
	case state == alloc.Active:
		return e.readDevice(a, addr, p)
	case a.Backup == alloc.BackupNone:
		return fmt.Errorf("%w: %v is paused without a backup: its bytes were given up", ErrState, a)
	}
	b := e.backings.find(a)
	if b == nil {
		return fmt.Errorf("%v: %w: it has no backing", a, store.ErrLost)
	}
	if err := e.readBacking(a, b, off, p); err != nil {
		return fmt.Errorf("%v: %w", a, err)
	}
	return nil
}

// readDevice copies active memory from addr, on a stream of its own. The allocation is held.
func (e *Engine) readDevice(a *alloc.Allocation, addr mem.Addr, p []byte) error {
	if err := e.synchronize(a.Device); err != nil {
		return err
	}
	from, done, err := e.readable(a, addr)
	if err != nil {
		return err
	}
	defer done()
	err = e.withDevice(a.Device, func() error {
		s, err := e.drv.StreamCreate()
		if err != nil {
			return err
		}
		err = e.drv.CopyToHost(unsafe.Pointer(unsafe.SliceData(p)), from, uint64(len(p)), s)
		return errors.Join(err, e.drv.StreamSynchronize(s), e.drv.StreamDestroy(s))
	})
	if err != nil {
		return fmt.Errorf("copy %d bytes of %v to the host: %w", len(p), a, err)
	}
	return nil
}

// readable finds an address at which the device of active memory can read what is at addr: there, or in a
// window, where the memory's owner gives its device no access to it now. done ends what that took.
func (e *Engine) readable(a *alloc.Allocation, addr mem.Addr) (from mem.Addr, done func(), err error) {
	if a.Kind != alloc.Object {
		return addr, func() {}, nil
	}
	defer e.table.Owner()() // calls of the owner that began before the hold are over
	m := e.table.MappingAt(addr)
	switch {
	case m == nil || m.Of != a:
		return 0, nil, fmt.Errorf("%v is mapped at %v no longer: %w", a, addr, alloc.ErrNotManaged)
	case m.Flags(mem.LocationDevice, int32(a.Device)) != 0:
		return addr, func() {}, nil
	}
	if err := e.relaxed(func() error { return e.makeWindow(a) }); err != nil {
		return 0, nil, err
	}
	return a.Through + mem.Addr(m.Offset) + addr - m.Addr, func() {
		defer e.table.Owner()()
		e.closeWindows([]*alloc.Allocation{a})
	}, nil
}

// readBacking copies from off of a backing, block by block through one buffer. Only bytes of blocks
// that are what was saved are given out.
func (e *Engine) readBacking(a *alloc.Allocation, b store.Backing, off uint64, p []byte) (err error) {
	buf, free, err := hostmem.Pages(e.block, -1)
	if err != nil {
		return err
	}
	defer func() { filesys.Free(err, func() { _ = free() }) }()
	for len(p) > 0 {
		start := off / e.block * e.block
		whole := buf[:min(e.block, a.Size-start)]
		if err := b.ReadBlock(start, whole); err != nil {
			return err
		}
		if entry := b.Block(start); entry.State == store.Stored && entry.Known {
			if sum, _ := e.drv.HostFingerprint(e.hash.key, whole); sum != entry.Sum {
				return corrupt(pipeline.Move{Of: a, Offset: start, Length: uint64(len(whole)), Backing: b})
			}
		}
		n := copy(p, whole[off-start:])
		p, off = p[n:], off+uint64(n)
	}
	return nil
}
