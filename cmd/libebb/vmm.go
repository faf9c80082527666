package main

// #include "exports.h"
import "C"

import (
	"errors"
	"unsafe"

	"github.com/ebb-offload/ebb/internal/alloc"
	"github.com/ebb-offload/ebb/internal/device"
	"github.com/ebb-offload/ebb/internal/engine"
	"github.com/ebb-offload/ebb/internal/mem"
)

// This file has the driver's virtual memory calls. Null is refused with the driver's own code.

// ownersCall is withEngine for an owner's call, which is also told the driver's code. A call that is the
// driver's to answer is no error that anyone reads: it leaves no text, which would cost more than the call.
func ownersCall(name string, cu *C.int, call func(*engine.Engine) error) C.int {
	*cu = C.int(device.CodeUnknown) // what a panic leaves
	passedOn := false
	code := withEngine(name, func(e *engine.Engine) error {
		err := call(e)
		if passedOn = errors.Is(err, alloc.ErrNotManaged); passedOn {
			return nil
		}
		*cu = C.int(engine.DriverCode(err))
		return err
	})
	if passedOn {
		return C.EBB_ERR_NOT_MANAGED
	}
	return code
}

//export ebbGoVMMCreate
func ebbGoVMMCreate(handle *C.uint64_t, size C.size_t, prop unsafe.Pointer, flags C.uint64_t, region *C.ebb_engine_region, margin C.uint64_t, cu *C.int) C.int {
	return ownersCall("create", cu, func(e *engine.Engine) error {
		if handle == nil || prop == nil {
			return invalid("handle or properties are null")
		}
		r, err := regionOf(region)
		if err != nil {
			return err
		}
		h, err := e.Create(uint64(size), propsOf((*C.CUmemAllocationProp)(prop)), uint64(flags), r, uint64(margin))
		if err == nil {
			*handle = C.uint64_t(h)
		}
		return err
	})
}

//export ebbGoVMMRelease
func ebbGoVMMRelease(handle C.uint64_t, cu *C.int) C.int {
	return ownersCall("release", cu, func(e *engine.Engine) error { return e.Release(mem.Handle(handle)) })
}

//export ebbGoVMMMap
func ebbGoVMMMap(addr C.uint64_t, size, offset C.size_t, handle, flags C.uint64_t, cu *C.int) C.int {
	return ownersCall("map", cu, func(e *engine.Engine) error {
		return e.Map(mem.Addr(addr), uint64(size), uint64(offset), mem.Handle(handle), uint64(flags))
	})
}

//export ebbGoVMMUnmap
func ebbGoVMMUnmap(addr C.uint64_t, size C.size_t, cu *C.int) C.int {
	return ownersCall("unmap", cu, func(e *engine.Engine) error { return e.Unmap(mem.Addr(addr), uint64(size)) })
}

// maxAccess is more access descriptors than a call can have locations.
const maxAccess = 1 << 16

//export ebbGoVMMSetAccess
func ebbGoVMMSetAccess(addr C.uint64_t, size C.size_t, desc unsafe.Pointer, count C.size_t, cu *C.int) C.int {
	return ownersCall("set access", cu, func(e *engine.Engine) error {
		if desc == nil && count > 0 || count > maxAccess {
			return invalid("%d access descriptors at %p", uint64(count), desc)
		}
		access := make([]mem.Access, 0, count)
		for _, d := range unsafe.Slice((*C.CUmemAccessDesc)(desc), count) {
			access = append(access, mem.Access{LocationType: int32(d.location._type), LocationID: int32(d.location.id), Flags: int32(d.flags)})
		}
		return e.SetAccess(mem.Addr(addr), uint64(size), access)
	})
}

//export ebbGoVMMGetAccess
func ebbGoVMMGetAccess(flags *C.uint64_t, location unsafe.Pointer, addr C.uint64_t, cu *C.int) C.int {
	return ownersCall("get access", cu, func(e *engine.Engine) error {
		if flags == nil || location == nil {
			return invalid("flags or location is null")
		}
		at := (*C.CUmemLocation)(location)
		f, err := e.Access(mem.Addr(addr), int32(at._type), int32(at.id))
		if err == nil {
			*flags = C.uint64_t(f)
		}
		return err
	})
}

//export ebbGoVMMRetain
func ebbGoVMMRetain(handle *C.uint64_t, addr C.uint64_t, cu *C.int) C.int {
	return ownersCall("retain", cu, func(e *engine.Engine) error {
		if handle == nil {
			return invalid("handle is null")
		}
		h, err := e.Retain(mem.Addr(addr))
		if err == nil {
			*handle = C.uint64_t(h)
		}
		return err
	})
}

//export ebbGoVMMAddressFree
func ebbGoVMMAddressFree(addr C.uint64_t, size C.size_t, cu *C.int) C.int {
	return ownersCall("free address range", cu, func(e *engine.Engine) error { return e.AddressFree(mem.Addr(addr), uint64(size)) })
}

//export ebbGoVMMExport
func ebbGoVMMExport(shareable unsafe.Pointer, handle C.uint64_t, handleType C.int, flags C.uint64_t, cu *C.int) C.int {
	return ownersCall("export", cu, func(e *engine.Engine) error {
		return e.Export(shareable, mem.Handle(handle), int32(handleType), uint64(flags))
	})
}

//export ebbGoVMMProperties
func ebbGoVMMProperties(prop unsafe.Pointer, handle C.uint64_t, cu *C.int) C.int {
	return ownersCall("properties", cu, func(e *engine.Engine) error {
		if prop == nil {
			return invalid("properties are null")
		}
		p, err := e.Properties(mem.Handle(handle))
		if err == nil {
			putProps((*C.CUmemAllocationProp)(prop), p)
		}
		return err
	})
}

//export ebbGoVMMReal
func ebbGoVMMReal(real *C.uint64_t, handle C.uint64_t, why *C.char, cu *C.int) C.int {
	return ownersCall("handle of the driver", cu, func(e *engine.Engine) error {
		if real == nil || why == nil {
			return invalid("handle or reason is null")
		}
		h, err := e.Real(mem.Handle(handle), C.GoString(why))
		if err == nil {
			*real = C.uint64_t(h)
		}
		return err
	})
}

//export ebbGoPeerAccess
func ebbGoPeerAccess(device, peer, on C.int) C.int {
	return withEngine("peer access", func(e *engine.Engine) error { return e.PeerAccess(int(device), int(peer), on != 0) })
}

//export ebbGoContextReset
func ebbGoContextReset(device, step C.int) C.int {
	return withEngine("reset of a device", func(e *engine.Engine) error {
		switch step {
		case C.EBB_RESET_BEGINS:
			return e.BeginReset()
		case C.EBB_RESET_DONE, C.EBB_RESET_FAILED:
			return e.EndReset(int(device), step == C.EBB_RESET_DONE)
		}
		return invalid("a step of a reset is %d, %d or %d, not %d", C.EBB_RESET_BEGINS, C.EBB_RESET_DONE, C.EBB_RESET_FAILED, step)
	})
}

func propsOf(p *C.CUmemAllocationProp) mem.Props {
	return mem.Props{
		Type: int32(p._type), HandleTypes: int32(p.requestedHandleTypes),
		LocationType: int32(p.location._type), LocationID: int32(p.location.id),
		CompressionType: uint8(p.allocFlags.compressionType), GPUDirectRDMA: uint8(p.allocFlags.gpuDirectRDMACapable),
		Usage: uint16(p.allocFlags.usage),
	}
}

func putProps(out *C.CUmemAllocationProp, p mem.Props) {
	*out = C.CUmemAllocationProp{}
	out._type, out.requestedHandleTypes = C.CUmemAllocationType(p.Type), C.CUmemAllocationHandleType(p.HandleTypes)
	out.location._type, out.location.id = C.CUmemLocationType(p.LocationType), C.int(p.LocationID)
	out.allocFlags.compressionType, out.allocFlags.gpuDirectRDMACapable = C.uchar(p.CompressionType), C.uchar(p.GPUDirectRDMA)
	out.allocFlags.usage = C.ushort(p.Usage)
}
