package cuda

// #include "cuda_load.h"
import "C"

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/ebb-offload/ebb/internal/device"
)

// This file keeps account of pinned memory. It is pinned by a context, for all contexts, and that ends
// with the one that it was pinned by.

// pin is memory that was registered.
type pin struct {
	bytes uint64
	by    device.Context
	lost  bool // with its context, and not registered again yet
}

func (d *driver) HostRegister(p unsafe.Pointer, n uint64) error {
	err := d.check("cuMemHostRegister", C.call_cuMemHostRegister(d.cuda, p, C.size_t(n), C.CU_MEMHOSTREGISTER_PORTABLE))
	if err != nil {
		return err
	}
	if err := d.notePin(p, n); err != nil {
		return errors.Join(err, d.HostUnregister(p))
	}
	return nil
}

func (d *driver) HostUnregister(p unsafe.Pointer) error {
	d.hostMu.Lock()
	lost := d.pins[p].lost
	delete(d.pins, p)
	d.hostMu.Unlock()
	if lost {
		return nil
	}
	return d.check("cuMemHostUnregister", C.call_cuMemHostUnregister(d.cuda, p))
}

func (d *driver) ContextReset(ordinal int) {
	d.mu.Lock()
	ctx, known := d.contexts[ordinal]
	delete(d.contexts, ordinal)
	d.mu.Unlock()
	if !known {
		return
	}
	d.kernelsMu.Lock()
	delete(d.kernels, ctx)
	d.kernelsMu.Unlock()

	d.hostMu.Lock()
	defer d.hostMu.Unlock()
	for p, of := range d.pins {
		if of.by == ctx {
			of.lost = true
			d.pins[p] = of
		}
	}
	for h := range d.hashers {
		if h.by == ctx {
			h.forget()
			delete(d.hashers, h)
		}
	}
}

func (d *driver) Repin() error {
	for p, n := range d.unpinned() {
		err := d.HostRegister(p, n)
		if device.IsCode(err, device.CodeAlreadyRegistered) { // it has outlived its context
			err = d.notePin(p, n)
		}
		if err != nil {
			return fmt.Errorf("pin %d bytes of host memory again, after a reset of the device that they were pinned for: %w", n, err)
		}
	}
	return nil
}

// notePin enters memory as pinned by the current context.
func (d *driver) notePin(p unsafe.Pointer, n uint64) error {
	ctx, err := d.Context()
	if err != nil {
		return err
	}
	d.hostMu.Lock()
	defer d.hostMu.Unlock()
	d.pins[p] = pin{bytes: n, by: ctx}
	return nil
}

// unpinned is the registered memory that is not pinned now, and its sizes.
func (d *driver) unpinned() map[unsafe.Pointer]uint64 {
	d.hostMu.Lock()
	defer d.hostMu.Unlock()
	lost := map[unsafe.Pointer]uint64{}
	for p, of := range d.pins {
		if of.lost {
			lost[p] = of.bytes
		}
	}
	return lost
}
