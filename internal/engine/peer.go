package engine

import (
	"fmt"
	"maps"
	"slices"

	"github.com/ebb-offload/ebb/internal/alloc"
	"github.com/ebb-offload/ebb/internal/mem"
)

// PeerAccess lets a device use the managed memory of another, present and future, or ends that:
// what cudaDeviceEnablePeerAccess does for memory of the driver's own making. Objects have the
// rights that their owner gave.
func (e *Engine) PeerAccess(dev, peer int, on bool) error {
	devices, err := e.drv.DeviceCount()
	if err != nil {
		return err
	}
	if dev == peer || min(dev, peer) < 0 || max(dev, peer) >= devices {
		return fmt.Errorf("%w: peer access of device %d to device %d, of %d devices", ErrInvalid, peer, dev, devices)
	}
	if on == e.setPeer(dev, peer, on) {
		return nil
	}
	if !on {
		e.waitForPeer()
	}
	for _, a := range e.table.All() {
		if a.Kind != alloc.Range || a.Device != dev {
			continue
		}
		if err := e.grantPeers(a); err != nil {
			e.setPeer(dev, peer, !on) // later allocations must not fail for it
			return err
		}
	}
	return nil
}

// waitForPeer waits for the work of the calling thread's context, that of the device which is to lose the
// memory of another: what it was given to do before may use that memory. Where it fails nothing runs.
func (e *Engine) waitForPeer() {
	if ctx, err := e.drv.Context(); err == nil && ctx != 0 {
		_ = e.synchronizeContext(ctx, "the calling thread's context")
	}
}

// setPeer notes whether peer may use the memory of dev, and returns what was noted before.
func (e *Engine) setPeer(dev, peer int, on bool) (before bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	before = e.peers[dev][peer]
	if e.peers[dev] == nil {
		e.peers[dev] = map[int]bool{}
	}
	if on {
		e.peers[dev][peer] = true
	} else {
		delete(e.peers[dev], peer)
	}
	return before
}

// rangeAccess is who may use the memory of a Range.
func (e *Engine) rangeAccess(dev int) []mem.Access {
	e.mu.Lock()
	defer e.mu.Unlock()
	list := []mem.Access{mem.ReadWrite(dev)}
	for _, peer := range slices.Sorted(maps.Keys(e.peers[dev])) {
		list = append(list, mem.ReadWrite(peer))
	}
	return list
}

// grantPeers brings the rights of a Range up to date, at once or, where it is paused, with its resume.
// It waits for a pause or resume under way, and does nothing if the memory was freed.
func (e *Engine) grantPeers(a *alloc.Allocation) error {
	for {
		unlock := e.table.Owner()
		state, held := e.table.HoldReady(a)
		if held {
			err := e.setRights(a, e.rangeAccess(a.Device), state == alloc.Active)
			e.table.Unhold(a)
			unlock()
			return err
		}
		unlock()
		if state == alloc.Active || state == alloc.Paused {
			return nil // freed
		}
		e.table.Await(a)
	}
}

// setRights makes want the rights of a Range's pieces; now says that they are mapped.
func (e *Engine) setRights(a *alloc.Allocation, want []mem.Access, now bool) error {
	for i := range a.Pieces {
		p := &a.Pieces[i]
		var change []mem.Access
		for _, w := range want {
			if !slices.Contains(p.Access, w) {
				change = append(change, w)
			}
		}
		for _, had := range p.Access {
			if !slices.Contains(want, had) {
				had.Flags = 0
				change = append(change, had)
			}
		}
		if now && len(change) > 0 {
			if err := e.drv.MemSetAccess(a.Base+mem.Addr(p.Offset), p.Length, change); err != nil {
				return fmt.Errorf("change the peer access of %v: %w", a, err)
			}
		}
		p.Access = want
	}
	return nil
}
