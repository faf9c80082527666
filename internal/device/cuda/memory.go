package cuda

// #include "cuda_load.h"
import "C"

import (
	"unsafe"

	"github.com/ebb-offload/ebb/internal/device"
	"github.com/ebb-offload/ebb/internal/mem"
)

// properties are p as the driver takes them.
func properties(p mem.Props) C.CUmemAllocationProp {
	var c C.CUmemAllocationProp
	c._type = C.CUmemAllocationType(p.Type)
	c.requestedHandleTypes = C.CUmemAllocationHandleType(p.HandleTypes)
	c.location._type = C.CUmemLocationType(p.LocationType)
	c.location.id = C.int(p.LocationID)
	c.allocFlags.compressionType = C.uchar(p.CompressionType)
	c.allocFlags.gpuDirectRDMACapable = C.uchar(p.GPUDirectRDMA)
	c.allocFlags.usage = C.ushort(p.Usage)
	return c
}

func (d *driver) Granularity(p mem.Props) (uint64, error) {
	var n C.size_t
	prop := properties(p)
	err := d.check("cuMemGetAllocationGranularity",
		C.call_cuMemGetAllocationGranularity(d.cuda, &n, &prop, C.CU_MEM_ALLOC_GRANULARITY_MINIMUM))
	return uint64(n), err
}

func (d *driver) AddressReserve(size, align uint64) (mem.Addr, error) {
	var p C.CUdeviceptr
	err := d.check("cuMemAddressReserve",
		C.call_cuMemAddressReserve(d.cuda, &p, C.size_t(size), C.size_t(align), 0, 0))
	return mem.Addr(p), err
}

func (d *driver) AddressFree(addr mem.Addr, size uint64) error {
	return d.check("cuMemAddressFree", C.call_cuMemAddressFree(d.cuda, C.CUdeviceptr(addr), C.size_t(size)))
}

func (d *driver) MemCreate(size uint64, p mem.Props) (mem.Handle, error) {
	var h C.CUmemGenericAllocationHandle
	prop := properties(p)
	err := d.check("cuMemCreate", C.call_cuMemCreate(d.cuda, &h, C.size_t(size), &prop, 0))
	return mem.Handle(h), err
}

func (d *driver) MemRelease(h mem.Handle) error {
	return d.check("cuMemRelease", C.call_cuMemRelease(d.cuda, C.CUmemGenericAllocationHandle(h)))
}

func (d *driver) MemMap(addr mem.Addr, size, offset uint64, h mem.Handle) error {
	return d.check("cuMemMap", C.call_cuMemMap(d.cuda, C.CUdeviceptr(addr), C.size_t(size), C.size_t(offset),
		C.CUmemGenericAllocationHandle(h), 0))
}

func (d *driver) MemUnmap(addr mem.Addr, size uint64) error {
	return d.check("cuMemUnmap", C.call_cuMemUnmap(d.cuda, C.CUdeviceptr(addr), C.size_t(size)))
}

func (d *driver) MemSetAccess(addr mem.Addr, size uint64, access []mem.Access) error {
	desc := make([]C.CUmemAccessDesc, len(access))
	for i, a := range access {
		desc[i].location._type = C.CUmemLocationType(a.LocationType)
		desc[i].location.id = C.int(a.LocationID)
		desc[i].flags = C.CUmemAccess_flags(a.Flags)
	}
	return d.check("cuMemSetAccess", C.call_cuMemSetAccess(d.cuda, C.CUdeviceptr(addr), C.size_t(size),
		unsafe.SliceData(desc), C.size_t(len(desc))))
}

func (d *driver) MemExport(dst unsafe.Pointer, h mem.Handle, handleType int32, flags uint64) error {
	return d.check("cuMemExportToShareableHandle", C.call_cuMemExportToShareableHandle(d.cuda, dst,
		C.CUmemGenericAllocationHandle(h), C.CUmemAllocationHandleType(handleType), C.ulonglong(flags)))
}

func (d *driver) PointerDevice(addr mem.Addr) (int, error) {
	var ordinal C.int
	err := d.check("cuPointerGetAttribute", C.call_cuPointerGetAttribute(d.cuda, unsafe.Pointer(&ordinal),
		C.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, C.CUdeviceptr(addr)))
	return int(ordinal), err
}

func (d *driver) MemInfo() (free, total uint64, err error) {
	var f, t C.size_t
	err = d.check("cuMemGetInfo", C.call_cuMemGetInfo(d.cuda, &f, &t))
	return uint64(f), uint64(t), err
}

func (d *driver) CopyToHost(dst unsafe.Pointer, src mem.Addr, n uint64, s device.Stream) error {
	return d.check("cuMemcpyDtoHAsync",
		C.call_cuMemcpyDtoHAsync(d.cuda, dst, C.CUdeviceptr(src), C.size_t(n), toStream(s)))
}

func (d *driver) CopyToDevice(dst mem.Addr, src unsafe.Pointer, n uint64, s device.Stream) error {
	return d.check("cuMemcpyHtoDAsync",
		C.call_cuMemcpyHtoDAsync(d.cuda, C.CUdeviceptr(dst), src, C.size_t(n), toStream(s)))
}

func (d *driver) MemsetZero(dst mem.Addr, n uint64, s device.Stream) error {
	return d.check("cuMemsetD8Async", C.call_cuMemsetD8Async(d.cuda, C.CUdeviceptr(dst), 0, C.size_t(n), toStream(s)))
}

func (d *driver) HostAlloc(n uint64) (unsafe.Pointer, error) {
	var p unsafe.Pointer
	err := d.check("cuMemHostAlloc", C.call_cuMemHostAlloc(d.cuda, &p, C.size_t(n), C.CU_MEMHOSTALLOC_PORTABLE))
	return p, err
}

func (d *driver) HostFree(p unsafe.Pointer) error {
	return d.check("cuMemFreeHost", C.call_cuMemFreeHost(d.cuda, p))
}

func (d *driver) HostDevicePointer(p unsafe.Pointer) (mem.Addr, error) {
	var addr C.CUdeviceptr
	err := d.check("cuMemHostGetDevicePointer", C.call_cuMemHostGetDevicePointer(d.cuda, &addr, p, 0))
	return mem.Addr(addr), err
}
