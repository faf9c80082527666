package engine

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"unsafe"

	"github.com/ebb-offload/ebb/internal/alloc"
	"github.com/ebb-offload/ebb/internal/device"
	"github.com/ebb-offload/ebb/internal/mem"
)

// This file carries out the driver's virtual memory calls for memory that its owner maps itself
// (alloc.Object): allocators that grow and shrink ranges piece by piece. An owner has a virtual
// handle. The engine has the real one, while there is one: as long as the object lives and is not
// paused, the engine holds exactly one reference of the driver's.
//
// A call takes the table's Owner lock, and makes its driver calls under it, so that no pause or
// resume begins in the midst of it. Memory that is part of one already is waited for without the
// lock. Where memory is paused, a call changes only what the resume will do. What a call is
// refused for, and in which order, is what the driver does.
//
// alloc.ErrNotManaged is the answer to a call that concerns no managed memory: it is the driver's.

// refuse is an answer in the driver's place.
func refuse(call string, code device.Code, format string, args ...any) error {
	names := map[device.Code]string{
		device.CodeInvalidValue:  "CUDA_ERROR_INVALID_VALUE",
		device.CodeInvalidDevice: "CUDA_ERROR_INVALID_DEVICE",
		device.CodeNotSupported:  "CUDA_ERROR_NOT_SUPPORTED",
	}
	return &device.Error{Call: call, Code: code, Name: names[code], Text: fmt.Sprintf(format, args...)}
}

// DriverCode is the CUresult by which the owner of memory hears of an error.
func DriverCode(err error) device.Code {
	var e *device.Error
	switch {
	case err == nil:
		return 0
	case errors.Is(err, ErrDeviceMemory):
		return device.CodeOutOfMemory
	case errors.As(err, &e):
		return e.Code
	case errors.Is(err, ErrInvalid):
		return device.CodeInvalidValue
	case errors.Is(err, ErrState):
		return device.CodeIllegalState
	default:
		return device.CodeUnknown
	}
}

const usageTilePool = 1 // CU_MEM_CREATE_USAGE_TILE_POOL: mapped by other calls than cuMemMap

// Create is cuMemCreate. margin is the number of bytes that must stay free on the device.
func (e *Engine) Create(size uint64, p mem.Props, flags uint64, r Region, margin uint64) (mem.Handle, error) {
	if flags != 0 || p.Type != mem.TypePinned || p.LocationType != mem.LocationDevice || p.Usage&usageTilePool != 0 {
		return 0, alloc.ErrNotManaged
	}
	if err := r.check(); err != nil {
		return 0, err
	}
	dev := int(p.LocationID)
	d, err := e.deviceState(dev)
	if err != nil {
		return 0, fmt.Errorf("create %d bytes on device %d: %w", size, dev, err)
	}
	if margin > 0 {
		if err := e.leaveFree(dev, size, margin); err != nil {
			return 0, err
		}
	}
	h, err := e.createMemory(dev, size, p)
	if err != nil {
		return 0, fmt.Errorf("create %d bytes on device %d: %w", size, dev, err)
	}
	a := &alloc.Allocation{
		Kind: alloc.Object, Size: size, Reserved: size, Device: dev, Tag: r.Tag, Backup: r.Backup, Mmap: r.Mmap,
		Pieces: []alloc.Piece{{Length: size, Handle: h, Props: p}}, Owned: alloc.Owned{Refs: 1},
	}
	e.table.Add(a)
	e.warmUp(d, dev, r.Backup)
	return a.Virtual, nil
}

// Release is cuMemRelease. Without a reference and a mapping the memory is freed.
func (e *Engine) Release(h mem.Handle) error {
	return e.own(func(freed *[]*alloc.Allocation) ([]*alloc.Allocation, error) {
		a, err := e.object("cuMemRelease", h)
		if err != nil {
			return nil, err
		}
		if a.Refs == 0 {
			return nil, refuse("cuMemRelease", device.CodeInvalidValue, "every reference to %v was released before", a)
		}
		if a.Refs > 1 || len(a.Mappings) > 0 {
			a.Refs--
			return nil, nil
		}
		if !e.table.Ready(a) {
			return []*alloc.Allocation{a}, nil
		}
		a.Refs = 0
		*freed = append(*freed, a)
		return nil, nil
	})
}

// Map is cuMemMap. Handles of the driver are its own matter, but not addresses of paused memory.
func (e *Engine) Map(addr mem.Addr, size, offset uint64, h mem.Handle, flags uint64) error {
	const call = "cuMemMap"
	return e.own(func(*[]*alloc.Allocation) ([]*alloc.Allocation, error) {
		there, ranges := e.table.MappingsIn(addr, size)
		occupied := ranges || len(there) > 0
		if !alloc.IsVirtual(h) {
			if occupied {
				return nil, refuse(call, device.CodeInvalidValue, "managed memory is mapped at %v already", addr)
			}
			return nil, alloc.ErrNotManaged
		}
		a, err := e.object(call, h)
		if err != nil {
			return nil, err
		}
		if !e.table.Ready(a) {
			return []*alloc.Allocation{a}, nil
		}
		m := &alloc.Mapping{Addr: addr, Offset: offset, Length: size}
		if e.table.State(a) == alloc.Active {
			if flags != 0 || occupied { // by paused memory, if the driver does not know it
				return nil, e.mayMap(a, m, flags, occupied)
			}
			if err := e.drv.MemMap(addr, size, offset, a.Pieces[0].Handle); err != nil {
				return nil, fmt.Errorf("map %v at %v: %w", a, addr, err)
			}
			m.Mapped = true
		} else if err := e.mayMap(a, m, flags, occupied); err != nil {
			return nil, err
		}
		e.table.Map(a, m)
		return nil, nil
	})
}

// mayMap judges a mapping that the driver does not see, as the driver would: of paused memory, or over it.
func (e *Engine) mayMap(a *alloc.Allocation, m *alloc.Mapping, flags uint64, occupied bool) error {
	const call = "cuMemMap"
	d, err := e.deviceState(a.Device)
	switch {
	case err != nil:
		return err
	case m.Length == 0 || flags != 0 || uint64(m.Addr)%d.granularity != 0 || wraps(m.Addr, m.Length):
		return refuse(call, device.CodeInvalidValue, "%d bytes at %v with flags %d", m.Length, m.Addr, flags)
	case m.Offset != 0 || m.Length != a.Size:
		return refuse(call, device.CodeNotSupported, "%d bytes from offset %d: a mapping is of the whole of %v", m.Length, m.Offset, a)
	case occupied:
		return refuse(call, device.CodeInvalidValue, "managed memory is mapped at %v already", m.Addr)
	}
	return nil
}

// Unmap is cuMemUnmap, for ranges in which managed memory is mapped, be it paused. Other mappings
// in the range are unmapped with it.
func (e *Engine) Unmap(addr mem.Addr, size uint64) error {
	const call = "cuMemUnmap"
	return e.own(func(freed *[]*alloc.Allocation) ([]*alloc.Allocation, error) {
		there, ranges := e.table.MappingsIn(addr, size)
		if err := mappedByOwner(call, addr, size, there, ranges); err != nil {
			return nil, err
		}
		objects := objectsOf(there)
		if !e.table.Ready(objects...) {
			return objects, nil
		}
		if len(driverRuns(there, addr, size)) > 0 {
			if err := e.drv.MemUnmap(addr, size); err != nil { // whole: the driver minds no holes
				return nil, fmt.Errorf("unmap %d bytes at %v: %w", size, addr, err)
			}
		}
		e.table.Unmap(there)
		for _, m := range there {
			if m.Of.Refs == 0 && len(m.Of.Mappings) == 0 {
				*freed = append(*freed, m.Of)
			}
		}
		return nil, nil
	})
}

// SetAccess is cuMemSetAccess, for ranges in which managed memory is mapped.
func (e *Engine) SetAccess(addr mem.Addr, size uint64, access []mem.Access) error {
	const call = "cuMemSetAccess"
	return e.own(func(*[]*alloc.Allocation) ([]*alloc.Allocation, error) {
		there, ranges := e.table.MappingsIn(addr, size)
		if err := mappedByOwner(call, addr, size, there, ranges); err != nil {
			return nil, err
		}
		objects := objectsOf(there)
		if !e.table.Ready(objects...) {
			return objects, nil
		}
		runs := driverRuns(there, addr, size)
		if len(runs) == 0 { // else the driver judges the rights
			if err := e.mayAccess(access); err != nil {
				return nil, err
			}
		}
		for _, r := range runs {
			if err := e.drv.MemSetAccess(r.Addr, r.Bytes, access); err != nil {
				return nil, fmt.Errorf("set access to %d bytes at %v: %w", r.Bytes, r.Addr, err)
			}
		}
		for _, m := range there {
			m.Grant(access)
			m.Granted = m.Mapped
		}
		return nil, nil
	})
}

// mayAccess judges access rights as the driver would.
func (e *Engine) mayAccess(access []mem.Access) error {
	devices, err := e.drv.DeviceCount()
	if err != nil {
		return err
	}
	if len(access) == 0 {
		return refuse("cuMemSetAccess", device.CodeInvalidValue, "no rights are given")
	}
	for _, a := range access {
		known := a.LocationType == mem.LocationDevice && a.LocationID >= 0 && int(a.LocationID) < devices
		if !known || a.Flags != 0 && a.Flags != mem.AccessR && a.Flags != mem.AccessRW {
			return refuse("cuMemSetAccess", device.CodeInvalidValue, "rights %d for location %d of type %d", a.Flags, a.LocationID, a.LocationType)
		}
	}
	return nil
}

// Access is cuMemGetAccess: the rights of a location at an address.
func (e *Engine) Access(addr mem.Addr, locationType, locationID int32) (flags uint64, err error) {
	const call = "cuMemGetAccess"
	defer e.table.Owner()()
	m := e.table.MappingAt(addr)
	if m == nil {
		return 0, e.passOn(call, addr)
	}
	devices, err := e.drv.DeviceCount()
	switch {
	case err != nil:
		return 0, err
	case locationType != mem.LocationDevice:
		return 0, refuse(call, device.CodeInvalidValue, "location type %d", locationType)
	case locationID < 0 || int(locationID) >= devices:
		return 0, refuse(call, device.CodeInvalidDevice, "device %d", locationID)
	}
	return uint64(m.Flags(locationType, locationID)), nil
}

// Retain is cuMemRetainAllocationHandle: the handle of what is mapped at an address, and one more
// reference.
func (e *Engine) Retain(addr mem.Addr) (mem.Handle, error) {
	defer e.table.Owner()()
	if m := e.table.MappingAt(addr); m != nil {
		m.Of.Refs++
		return m.Of.Virtual, nil
	}
	return 0, e.passOn("cuMemRetainAllocationHandle", addr)
}

// passOn is the answer for an address where no object is mapped: memory of a cudaMalloc that ebb
// carried out is none of cuMemMap's for its owner, the rest is the driver's to judge.
func (e *Engine) passOn(call string, addr mem.Addr) error {
	if _, ranges := e.table.MappingsIn(addr, 1); ranges {
		return refuse(call, device.CodeInvalidValue, "the memory at %v was not mapped by cuMemMap", addr)
	}
	return alloc.ErrNotManaged
}

// AddressFree is asked before cuMemAddressFree, which does not know of paused memory.
func (e *Engine) AddressFree(addr mem.Addr, size uint64) error {
	defer e.table.Owner()()
	if there, ranges := e.table.MappingsIn(addr, size); ranges || len(there) > 0 {
		return refuse("cuMemAddressFree", device.CodeInvalidValue, "managed memory is mapped in the %d bytes at %v", size, addr)
	}
	return alloc.ErrNotManaged
}

// Properties is cuMemGetAllocationPropertiesFromHandle.
func (e *Engine) Properties(h mem.Handle) (mem.Props, error) {
	const call = "cuMemGetAllocationPropertiesFromHandle"
	if !alloc.IsVirtual(h) {
		return mem.Props{}, alloc.ErrNotManaged
	}
	defer e.table.Owner()()
	a, err := e.referenced(call, h)
	if err != nil {
		return mem.Props{}, err
	}
	return a.Pieces[0].Props, nil
}

// Export is cuMemExportToShareableHandle. Others may use the memory from then on, and so it is
// kept.
func (e *Engine) Export(shareable unsafe.Pointer, h mem.Handle, handleType int32, flags uint64) error {
	return e.withReal("cuMemExportToShareableHandle", h, func(a *alloc.Allocation) error {
		if err := e.drv.MemExport(shareable, a.Pieces[0].Handle, handleType, flags); err != nil {
			return fmt.Errorf("export %v: %w", a, err)
		}
		e.table.Keep(a, "exported")
		return nil
	})
}

// Real is the driver's handle, for a call that ebb does not carry out. The memory is kept from
// then on, for the reason that why says.
func (e *Engine) Real(h mem.Handle, why string) (real mem.Handle, err error) {
	err = e.withReal(why, h, func(a *alloc.Allocation) error {
		real = a.Pieces[0].Handle
		e.table.Keep(a, why)
		return nil
	})
	return real, err
}

// withReal calls do with an active object that has a reference.
func (e *Engine) withReal(call string, h mem.Handle, do func(*alloc.Allocation) error) error {
	if !alloc.IsVirtual(h) {
		return alloc.ErrNotManaged
	}
	return e.own(func(*[]*alloc.Allocation) ([]*alloc.Allocation, error) {
		a, err := e.referenced(call, h)
		if err != nil {
			return nil, err
		}
		if !e.table.Ready(a) {
			return []*alloc.Allocation{a}, nil
		}
		if e.table.State(a) != alloc.Active {
			return nil, fmt.Errorf("%w: %s: %v is paused: resume it first", ErrState, call, a)
		}
		return nil, do(a)
	})
}

// own carries out an owner's call. do runs with the Owner lock; it returns the objects that it
// must wait for, and is called again then, or adds to freed those that its call was the end of.
func (e *Engine) own(do func(freed *[]*alloc.Allocation) (wait []*alloc.Allocation, err error)) error {
	var freed []*alloc.Allocation
	for {
		unlock := e.table.Owner()
		wait, err := do(&freed)
		for _, a := range freed {
			e.freeObject(a)
		}
		unlock()
		if len(wait) == 0 {
			e.forget(freed)
			return err
		}
		e.table.Await(wait...)
	}
}

// freeObject gives back the memory of an object without references and mappings. The Owner lock
// is held.
func (e *Engine) freeObject(a *alloc.Allocation) {
	e.table.RemoveObject(a)
	e.tryAgain()
	if err := e.abandon(a); err != nil {
		e.log.Print(err) // the owner's call was carried out
	}
}

// forget gives up the backups of objects that were freed.
func (e *Engine) forget(freed []*alloc.Allocation) {
	e.releaseBackingsOf(freed)
	if len(freed) > 0 {
		e.gate.resumed()
	}
}

// object is the object of a virtual handle. With the Owner lock, as the rest of the file.
func (e *Engine) object(call string, h mem.Handle) (*alloc.Allocation, error) {
	if !alloc.IsVirtual(h) {
		return nil, alloc.ErrNotManaged
	}
	if a := e.table.Object(h); a != nil {
		return a, nil
	}
	return nil, refuse(call, device.CodeInvalidValue, "handle 0x%x names no memory (any more)", uint64(h))
}

// referenced is object for calls that need a handle which was not released.
func (e *Engine) referenced(call string, h mem.Handle) (*alloc.Allocation, error) {
	a, err := e.object(call, h)
	if err == nil && a.Refs == 0 {
		err = refuse(call, device.CodeInvalidValue, "every reference to %v was released", a)
	}
	return a, err
}

// mappedByOwner refuses a range that touches memory of ebb's own mapping, cuts a mapping in two or goes
// beyond the last address, and passes on one without managed memory.
func mappedByOwner(call string, addr mem.Addr, size uint64, there []*alloc.Mapping, ranges bool) error {
	if ranges {
		return refuse(call, device.CodeInvalidValue, "the memory in the %d bytes at %v was not mapped by cuMemMap", size, addr)
	}
	if len(there) == 0 {
		return alloc.ErrNotManaged
	}
	if wraps(addr, size) {
		return refuse(call, device.CodeInvalidValue, "%d bytes at %v go beyond the last address", size, addr)
	}
	if there[0].Addr < addr || there[len(there)-1].End()-addr > mem.Addr(size) {
		return refuse(call, device.CodeInvalidValue, "the %d bytes at %v are not whole mappings", size, addr)
	}
	return nil
}

// wraps says whether a range goes beyond the last address.
func wraps(addr mem.Addr, size uint64) bool { return size > uint64(math.MaxUint64-addr) }

func objectsOf(mappings []*alloc.Mapping) []*alloc.Allocation {
	list := make([]*alloc.Allocation, len(mappings))
	for i, m := range mappings {
		list[i] = m.Of
	}
	return list
}

// driverRuns lists what of [addr, addr+size) the driver knows: all of it as one, unless mappings in
// it are paused. Then what lies between managed mappings comes first: it may be a hole, which the
// driver refuses before anything was changed.
func driverRuns(there []*alloc.Mapping, addr mem.Addr, size uint64) (runs []mem.Range) {
	if !slices.ContainsFunc(there, func(m *alloc.Mapping) bool { return !m.Mapped }) {
		return []mem.Range{{Addr: addr, Bytes: size}}
	}
	at := addr
	for _, m := range there {
		if m.Addr > at {
			runs = append(runs, mem.Range{Addr: at, Bytes: uint64(m.Addr - at)})
		}
		at = m.End()
	}
	if end := addr + mem.Addr(size); at < end {
		runs = append(runs, mem.Range{Addr: at, Bytes: uint64(end - at)})
	}
	for _, m := range there {
		if m.Mapped {
			runs = append(runs, mem.Range{Addr: m.Addr, Bytes: m.Length})
		}
	}
	return runs
}
