// Package mem has the plain types of device memory that the allocation table, the plan and the
// driver share. It holds data only and imports nothing of ebb.
package mem

import "fmt"

// Addr is a device virtual address.
type Addr uint64

func (a Addr) String() string { return fmt.Sprintf("0x%x", uint64(a)) }

// Range is [Addr, Addr + Bytes).
type Range struct {
	Addr  Addr
	Bytes uint64
}

// Handle names physical memory of a device (CUmemGenericAllocationHandle).
type Handle uint64

// Props are the creation properties of physical memory, kept as the driver was given them so
// that a resume creates memory alike (CUmemAllocationProp, CUDA driver API).
type Props struct {
	Type            int32  // CUmemAllocationType
	HandleTypes     int32  // CUmemAllocationHandleType mask
	LocationType    int32  // CUmemLocationType
	LocationID      int32  // device ordinal for device memory
	CompressionType uint8  // allocFlags.compressionType
	GPUDirectRDMA   uint8  // allocFlags.gpuDirectRDMACapable
	Usage           uint16 // allocFlags.usage
}

// Numbers of the CUDA driver API that DeviceProps and ReadWrite use.
const (
	TypePinned     = 1 // CU_MEM_ALLOCATION_TYPE_PINNED
	LocationDevice = 1 // CU_MEM_LOCATION_TYPE_DEVICE
	AccessR        = 1 // CU_MEM_ACCESS_FLAGS_PROT_READ
	AccessRW       = 3 // CU_MEM_ACCESS_FLAGS_PROT_READWRITE
)

// DeviceProps are the properties of plain memory on one device.
func DeviceProps(device int, rdma bool) Props {
	p := Props{Type: TypePinned, LocationType: LocationDevice, LocationID: int32(device)}
	if rdma {
		p.GPUDirectRDMA = 1
	}
	return p
}

// Access says which location may use mapped memory, and how (CUmemAccessDesc).
type Access struct {
	LocationType int32
	LocationID   int32
	Flags        int32
}

// ReadWrite is full access by one device.
func ReadWrite(device int) Access {
	return Access{LocationType: LocationDevice, LocationID: int32(device), Flags: AccessRW}
}
