// Package device is ebb's view of a GPU driver: the few calls that the engine needs, with Go
// types and typed errors. internal/device/cuda implements it on libcuda.so.1, be that NVIDIA's
// or softgpu's; there is no other implementation.
//
// Threads: a Driver may be used from any thread. Calls that work on "the current context" need
// a goroutine locked to its OS thread (runtime.LockOSThread) on which SetContext was called.
package device

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/ebb-offload/ebb/internal/fingerprint"
	"github.com/ebb-offload/ebb/internal/mem"
)

// Context is a CUcontext, Stream a CUstream, Event a CUevent. The zero value is none; of a stream it is
// the legacy default stream.
type (
	Context uintptr
	Stream  uintptr
	Event   uintptr
)

// Pool is a CUmemoryPool.
type Pool uintptr

// Usage is memory that the driver holds for allocations, and how much of it they use, in bytes.
type Usage struct{ Reserved, Used uint64 }

// CaptureRelaxed is CU_STREAM_CAPTURE_MODE_RELAXED: the mode of all of ebb's own threads, so
// that their calls never disturb a stream capture of the actor.
const CaptureRelaxed = 2

// Driver is a loaded GPU driver.
type Driver interface {
	// Version is the driver's CUDA version, for example 13000.
	Version() (int, error)
	// DeviceCount is the number of devices that the process sees.
	DeviceCount() (int, error)
	// DeviceName is the product name of a device.
	DeviceName(device int) (string, error)
	// SupportsRDMA says whether memory of the device can be made GPUDirect RDMA capable.
	SupportsRDMA(device int) (bool, error)
	// NUMANode is the host NUMA node nearest to the device, or -1 when unknown.
	NUMANode(device int) int
	// Holders lists the processes that hold memory of the device, as NVML tells; in a
	// container it may see none. An error when NVML is not there.
	Holders(device int) ([]Holder, error)
	// UUID is the device's name in NVML and nvidia-smi, "GPU-…". An error when NVML is not there.
	UUID(device int) (string, error)

	// Granularity is the size, in bytes, to whose multiples ranges and pieces are cut.
	Granularity(p mem.Props) (uint64, error)
	AddressReserve(size, align uint64) (mem.Addr, error)
	AddressFree(addr mem.Addr, size uint64) error
	MemCreate(size uint64, p mem.Props) (mem.Handle, error)
	MemRelease(h mem.Handle) error
	MemMap(addr mem.Addr, size, offset uint64, h mem.Handle) error
	MemUnmap(addr mem.Addr, size uint64) error
	MemSetAccess(addr mem.Addr, size uint64, access []mem.Access) error
	// MemExport writes a shareable handle of that CUmemAllocationHandleType; what is at dst must
	// have its size.
	MemExport(dst unsafe.Pointer, h mem.Handle, handleType int32, flags uint64) error

	// PointerDevice is the device that memory at an address is on.
	PointerDevice(addr mem.Addr) (int, error)

	// Pools lists the device's default and current memory pool (cudaMallocAsync), once each.
	Pools(device int) ([]Pool, error)
	PoolUsage(p Pool) (Usage, error)
	// PoolTrim gives a pool's idle memory back, but for the bytes to keep.
	PoolTrim(p Pool, keep uint64) error
	// GraphUsage is the memory that allocations in graphs take on the device. GraphTrim gives back
	// what of it is idle.
	GraphUsage(device int) (Usage, error)
	GraphTrim(device int) error

	// PrimaryContext retains a device's primary context on first use and returns it. The
	// context is kept for the life of the process.
	PrimaryContext(device int) (Context, error)
	// Context and SetContext read and set the calling thread's current context.
	Context() (Context, error)
	SetContext(c Context) error
	// ExchangeCaptureMode sets the calling thread's capture mode and returns the former.
	ExchangeCaptureMode(mode int) (int, error)

	// The rest work on the current context.
	MemInfo() (free, total uint64, err error)
	Synchronize() error
	StreamCreate() (Stream, error) // non-blocking with respect to the legacy stream
	StreamDestroy(s Stream) error
	StreamSynchronize(s Stream) error
	StreamCaptures(s Stream) (bool, error) // of the legacy stream an error (IsCapture) while one that it waits for does
	EventCreate() (Event, error)           // without a time
	EventRecord(e Event, s Stream) error   // it comes when the work that is in the stream now is done
	EventSynchronize(e Event) error
	EventDestroy(e Event) error
	CopyToHost(dst unsafe.Pointer, src mem.Addr, n uint64, s Stream) error   // asynchronous
	CopyToDevice(dst mem.Addr, src unsafe.Pointer, n uint64, s Stream) error // asynchronous
	MemsetZero(dst mem.Addr, n uint64, s Stream) error                       // asynchronous

	// HostRegister pins pages for all contexts; HostAlloc returns pinned pages
	// (cuMemHostAlloc), which HostFree releases. Kernels can read both, at the address that
	// HostDevicePointer tells.
	HostRegister(p unsafe.Pointer, n uint64) error
	HostUnregister(p unsafe.Pointer) error
	HostAlloc(n uint64) (unsafe.Pointer, error)
	HostFree(p unsafe.Pointer) error
	HostDevicePointer(p unsafe.Pointer) (mem.Addr, error)

	// ContextReset says that the device's primary context was reset: all that the driver had made in it
	// is gone, and nothing of it is used now. Its streams are the caller's to forget. It is retained
	// again when it is next asked for, a Hasher gets new memory at its next launch, and registered pages
	// are pinned again by Repin, in the current context.
	ContextReset(device int)
	Repin() error

	// LoadFingerprint loads the fingerprint kernel into the current context, which keeps it. An
	// error says that the driver refuses it: then there are no Hashers there, and
	// HostFingerprint is what is left. A Hasher's Launch loads it too.
	LoadFingerprint() error
	// NewHasher makes a Hasher whose launches take up to tiles tiles (fingerprint.Tiles).
	NewHasher(k *fingerprint.Key, tiles int) (Hasher, error)
	// HostFingerprint is the fingerprint of p, len(p) > 0, computed by the CPU; k.Of(p), fast.
	// It needs no context.
	HostFingerprint(k *fingerprint.Key, p []byte) (s fingerprint.Sum, zero bool)
}

// Span is one block to hash: device memory, or pinned host memory at the address that kernels see it at.
// Bytes is not 0. Addr is a multiple of 16, and up to the next multiple of 16 behind its end the memory must be readable;
// what is there does not matter.
//
// If To is not 0, it is a multiple of 16 too, and the kernel also copies the block there. The fingerprint is then
// that of the bytes that it wrote, whoever changes the block meanwhile. To pinned memory this is as fast as a copy, while
// hashing a copy after it was made takes the link's time once more.
type Span struct {
	Addr  mem.Addr
	To    mem.Addr
	Bytes uint64
}

// Hasher hashes blocks on GPUs, one launch at a time. It owns the pinned memory that launches
// need, 64 bytes a tile, so that a launch allocates nothing. Hashers do not disturb one another:
// each worker has its own, and two of them let the CPU fold the results of one launch while the GPU
// is at the next. It works in any context of the driver, from any thread, but not from two at once.
type Hasher interface {
	// Launch queues on the stream, in the current context, the hash of the first n of the spans:
	// as many as there is room for, at least one. The launch before must be over, and its results read.
	Launch(spans []Span, s Stream) (n int, err error)
	// Sum is the result for the i-th span of the last launch, once its stream was synchronised.
	// zero says that all its bytes are zero.
	Sum(i int) (s fingerprint.Sum, zero bool)
	// Close frees the memory; no launch may be under way.
	Close() error
}

// HasherRoomError says that a block is too large for any launch of a Hasher.
type HasherRoomError struct {
	Bytes uint64 // of the block
	Tiles int    // that the Hasher has room for
}

func (e *HasherRoomError) Error() string {
	return fmt.Sprintf("a block of %d bytes cannot be hashed with room for %d tiles of %d bytes: make the hasher with more",
		e.Bytes, e.Tiles, fingerprint.TileBytes)
}

// Holder is a process that holds memory of a device.
type Holder struct {
	PID   int    `json:"pid"` // in the pid namespace of the driver
	Bytes uint64 `json:"bytes"`
	Name  string `json:"name"` // of its executable; empty when not known
}

// Code is a CUresult.
type Code int

// Results that ebb acts on (CUDA driver API, CUresult).
const (
	CodeInvalidValue   Code = 1
	CodeOutOfMemory    Code = 2
	CodeNotInitialized Code = 3
	CodeDeinitialized  Code = 4
	CodeInvalidDevice  Code = 101
	CodeInvalidImage   Code = 200
	CodeNoBinaryForGPU Code = 209
	CodeInvalidPTX     Code = 218
	CodeNoJITCompiler  Code = 221
	CodeUnsupportedPTX Code = 222
	CodeJITDisabled    Code = 223
	CodeInvalidSource  Code = 300
	CodeIllegalState   Code = 401
	CodeNotFound       Code = 500
	CodeNotSupported   Code = 801
	CodeUnknown        Code = 999

	CodeAlreadyRegistered Code = 712 // CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED

	// The range of the stream capture errors.
	CodeCaptureFirst Code = 900
	CodeCaptureLast  Code = 908
)

// Error is a failed driver call.
type Error struct {
	Call string // "cuMemCreate"
	Code Code
	Name string // "CUDA_ERROR_OUT_OF_MEMORY"
	Text string // the driver's description
}

func (e *Error) Error() string {
	return fmt.Sprintf("%s: %s (%d): %s", e.Call, e.Name, int(e.Code), e.Text)
}

// IsCode reports whether err is a driver error with that result.
func IsCode(err error, code Code) bool {
	var e *Error
	return errors.As(err, &e) && e.Code == code
}

// IsCapture reports whether err says that a stream capture forbids a call.
func IsCapture(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.Code >= CodeCaptureFirst && e.Code <= CodeCaptureLast
}

// IsOutOfMemory reports whether err says that device or host memory ran out.
func IsOutOfMemory(err error) bool { return IsCode(err, CodeOutOfMemory) }
