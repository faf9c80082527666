package engine

import (
	"errors"
	"fmt"

	"github.com/ebb-offload/ebb/internal/alloc"
	"github.com/ebb-offload/ebb/internal/mem"
)

// mapObject maps an object where its owner has it, with the rights that the owner gave, and opens
// a window if the engine needs one. What is done already stays.
func (e *Engine) mapObject(a *alloc.Allocation) error {
	for _, m := range a.Mappings {
		if !m.Mapped {
			if err := e.drv.MemMap(m.Addr, m.Length, m.Offset, a.Pieces[0].Handle); err != nil {
				return fmt.Errorf("map %v at %v again, which its owner may have given away meanwhile: %w", a, m.Addr, err)
			}
			m.Mapped = true
		}
		if m.Granted || len(m.Access) == 0 {
			continue
		}
		if err := e.drv.MemSetAccess(m.Addr, m.Length, m.Access); err != nil {
			return fmt.Errorf("grant access to %v at %v again: %w", a, m.Addr, err)
		}
		m.Granted = true
	}
	return e.openWindow(a)
}

// releaseObject unmaps an object everywhere and gives its memory back to the driver. One that
// could not be unmapped everywhere keeps its memory.
func (e *Engine) releaseObject(a *alloc.Allocation) (released uint64, err error) {
	err = e.closeWindow(a)
	for _, m := range a.Mappings {
		if !m.Mapped {
			continue
		}
		if e2 := ignoreDeinitialized(e.drv.MemUnmap(m.Addr, m.Length)); e2 != nil {
			err = errors.Join(err, fmt.Errorf("unmap %v at %v: %w", a, m.Addr, e2))
			continue
		}
		m.Mapped, m.Granted = false, false
	}
	p := &a.Pieces[0]
	if err != nil || p.Handle == 0 {
		return 0, err
	}
	err = ignoreDeinitialized(e.drv.MemRelease(p.Handle))
	p.Handle = 0 // released or, after an error, not ours to release a second time
	if err != nil {
		return 0, fmt.Errorf("release memory of %v: %w", a, err)
	}
	return p.Length, nil
}

// openWindows gives every object of a pause an address to copy through. After it, and until
// closeWindows or the release of the memory, At is valid.
func (e *Engine) openWindows(set []*alloc.Allocation) error {
	return e.relaxed(func() error {
		e.tryAgain()
		for _, a := range set {
			if a.Kind != alloc.Object {
				continue
			}
			if err := e.openWindow(a); err != nil {
				return err
			}
		}
		return nil
	})
}

// closeWindows ends what openWindows or mapping began, where the memory stays.
func (e *Engine) closeWindows(set []*alloc.Allocation) {
	e.calmly(func() {
		for _, a := range set {
			if a.Kind != alloc.Object {
				continue
			}
			if err := e.closeWindow(a); err != nil {
				e.log.Print(err) // address space is lost, and until the object is released nothing else
			}
		}
	})
}

// openWindow is makeWindow, but for objects without a backup, whose bytes neither a pause nor a resume
// copies.
func (e *Engine) openWindow(a *alloc.Allocation) error {
	if a.Backup == alloc.BackupNone {
		return nil
	}
	return e.makeWindow(a)
}

// makeWindow finds an address to copy an object through: where its owner has it as a whole and
// its device may write, or else one of the engine's own.
func (e *Engine) makeWindow(a *alloc.Allocation) error {
	if a.Through != 0 {
		return nil
	}
	for _, m := range a.Mappings {
		if m.Mapped && m.Offset == 0 && m.Length == a.Size && m.Flags(mem.LocationDevice, int32(a.Device)) == mem.AccessRW {
			a.Through = m.Addr
			return nil
		}
	}
	addr, err := e.drv.AddressReserve(a.Size, 0)
	if err != nil {
		return fmt.Errorf("reserve a window for %v: %w", a, err)
	}
	if err := e.drv.MemMap(addr, a.Size, 0, a.Pieces[0].Handle); err != nil {
		return fmt.Errorf("map %v into a window: %w", a, errors.Join(err, e.drv.AddressFree(addr, a.Size)))
	}
	a.Through, a.Window = addr, true
	if err := e.drv.MemSetAccess(addr, a.Size, []mem.Access{mem.ReadWrite(a.Device)}); err != nil {
		return errors.Join(fmt.Errorf("grant access to the window of %v: %w", a, err), e.closeWindow(a))
	}
	return nil
}

// closeWindow undoes makeWindow. One that cannot be unmapped stays, for the next to use.
func (e *Engine) closeWindow(a *alloc.Allocation) error {
	if a.Window {
		if err := ignoreDeinitialized(e.drv.MemUnmap(a.Through, a.Size)); err != nil {
			return fmt.Errorf("unmap the window of %v: %w", a, err)
		}
		if err := ignoreDeinitialized(e.drv.AddressFree(a.Through, a.Size)); err != nil {
			e.log.Printf("free the address range of a window of %v: %v", a, err) // address space only
		}
	}
	a.Through, a.Window = 0, false
	return nil
}

// whole says whether an allocation is where it was before a pause began to take it away.
func whole(a *alloc.Allocation) bool {
	if a.Kind == alloc.Object {
		for _, m := range a.Mappings {
			if !m.Mapped {
				return false
			}
		}
		return a.Pieces[0].Handle != 0
	}
	for _, p := range a.Pieces {
		if !p.Mapped {
			return false
		}
	}
	return true
}
