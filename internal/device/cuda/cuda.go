// Package cuda is the GPU driver behind device.Driver: libcuda.so.1, be it NVIDIA's or softgpu's,
// loaded while the process runs. It is built from its own declarations (cuda_abi.h), which a test
// compares with NVIDIA's headers; no part of the CUDA SDK is needed.
//
// A driver that was opened is never unloaded: it has threads and state of its own.
//
// Locks: driver.mu protects the map of primary contexts and is held while one is retained, so that
// each is retained once; driver.kernelsMu likewise that of loaded kernels; driver.hostMu protects what is
// known of pinned memory. Nothing else is shared, and no other lock is taken under any of them.
package cuda

/*
#cgo CFLAGS: -std=gnu11 -D_GNU_SOURCE -Wall -Wextra -Werror
#cgo LDFLAGS: -ldl
#include "cuda_load.h"

// Returned by value: what Go passes the address of is allocated.
struct current {
	CUcontext context;
	CUresult result;
};

// What is told of waits inside the driver: see OnWait. Set before any of them.
static struct {
	void (*function)(int32_t what);
	int32_t before, after;
} told;

static void tell(void *function, int32_t before, int32_t after)
{
	told.function = (void (*)(int32_t))function;
	told.before = before;
	told.after = after;
}

static CUresult synchronize(const struct ebb_cuda *cuda)
{
	if (told.function != NULL)
		told.function(told.before);
	CUresult result = call_cuCtxSynchronize(cuda);
	if (told.function != NULL)
		told.function(told.after);
	return result;
}

static struct current current_context(const struct ebb_cuda *cuda)
{
	struct current c = {0};
	c.result = call_cuCtxGetCurrent(cuda, &c.context);
	return c;
}
*/
import "C"

import (
	"fmt"
	"sync"
	"unsafe"

	"github.com/ebb-offload/ebb/internal/device"
)

// DefaultLibrary is what Open loads when no library is named.
const DefaultLibrary = "libcuda.so.1"

// LoadError says that a driver library could not be used.
type LoadError struct {
	Library string
	Symbol  string // the function that the library lacks, or empty when it could not be loaded
	Reason  string // the loader's words
}

func (e *LoadError) Error() string {
	if e.Symbol != "" {
		return fmt.Sprintf("GPU driver %s has no function %s (%s): ebb needs a driver for CUDA 12.0 or later; update the NVIDIA driver",
			e.Library, e.Symbol, e.Reason)
	}
	return fmt.Sprintf("cannot load GPU driver %s (%s): install the NVIDIA driver, in a container start it with GPU access, or use --device soft for the software device",
		e.Library, e.Reason)
}

type driver struct {
	cuda *C.struct_ebb_cuda // C memory, never freed: see the package doc
	nvml *nvml

	mu       sync.Mutex
	contexts map[int]device.Context // retained primary contexts by device ordinal

	kernelsMu sync.Mutex
	kernels   map[device.Context]C.CUfunction // the fingerprint kernel where it is loaded

	hostMu  sync.Mutex
	pins    map[unsafe.Pointer]pin // by HostRegister
	hashers map[*hasher]bool       // that have memory
}

// Open loads the driver library, DefaultLibrary when library is empty, and initialises it
// (cuInit). The error is a *LoadError when the library is missing or lacks a function, and a
// *device.Error when it does not initialise.
func Open(library string) (device.Driver, error) {
	if library == "" {
		library = DefaultLibrary
	}
	name := C.CString(library)
	defer C.free(unsafe.Pointer(name))
	var why [1024]C.char
	var missing *C.char
	table := C.ebb_cuda_load(name, &why[0], C.size_t(len(why)), &missing)
	if table == nil {
		e := &LoadError{Library: library, Reason: C.GoString(&why[0])}
		if missing != nil {
			e.Symbol = C.GoString(missing)
		}
		return nil, e
	}
	d := &driver{cuda: table, nvml: nvmlBeside(library), contexts: map[int]device.Context{}, kernels: map[device.Context]C.CUfunction{},
		pins: map[unsafe.Pointer]pin{}, hashers: map[*hasher]bool{}}
	if err := d.check("cuInit", C.call_cuInit(d.cuda, 0)); err != nil {
		return nil, fmt.Errorf("initialising GPU driver %s: %w", library, err)
	}
	return d, nil
}

// check turns the result of a call into an error that carries the driver's own words.
func (d *driver) check(call string, r C.CUresult) error {
	if r == C.CUDA_SUCCESS {
		return nil
	}
	e := &device.Error{Call: call, Code: device.Code(r), Name: "unknown result", Text: "the driver has no text for it"}
	var s *C.char
	if C.call_cuGetErrorName(d.cuda, r, &s) == C.CUDA_SUCCESS && s != nil {
		e.Name = C.GoString(s)
	}
	s = nil
	if C.call_cuGetErrorString(d.cuda, r, &s) == C.CUDA_SUCCESS && s != nil {
		e.Text = C.GoString(s)
	}
	return e
}

func (d *driver) Version() (int, error) {
	var v C.int
	err := d.check("cuDriverGetVersion", C.call_cuDriverGetVersion(d.cuda, &v))
	return int(v), err
}

func (d *driver) DeviceCount() (int, error) {
	var n C.int
	err := d.check("cuDeviceGetCount", C.call_cuDeviceGetCount(d.cuda, &n))
	return int(n), err
}

// device is the driver's handle of a device ordinal.
func (d *driver) device(ordinal int) (C.CUdevice, error) {
	var dev C.CUdevice
	err := d.check("cuDeviceGet", C.call_cuDeviceGet(d.cuda, &dev, C.int(ordinal)))
	if err != nil {
		err = fmt.Errorf("device %d: %w", ordinal, err)
	}
	return dev, err
}

func (d *driver) DeviceName(ordinal int) (string, error) {
	dev, err := d.device(ordinal)
	if err != nil {
		return "", err
	}
	var name [256]C.char
	if err := d.check("cuDeviceGetName", C.call_cuDeviceGetName(d.cuda, &name[0], C.int(len(name)), dev)); err != nil {
		return "", err
	}
	name[len(name)-1] = 0
	return C.GoString(&name[0]), nil
}

func (d *driver) SupportsRDMA(ordinal int) (bool, error) {
	dev, err := d.device(ordinal)
	if err != nil {
		return false, err
	}
	var yes C.int
	err = d.check("cuDeviceGetAttribute",
		C.call_cuDeviceGetAttribute(d.cuda, &yes, C.CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, dev))
	return yes != 0, err
}

func (d *driver) NUMANode(ordinal int) int {
	id, err := d.busID(ordinal)
	if err != nil {
		return -1
	}
	return numaNode("/sys", id)
}

// busID is the PCI bus id of a device, for example "0000:1B:00.0".
func (d *driver) busID(ordinal int) (string, error) {
	dev, err := d.device(ordinal)
	if err != nil {
		return "", err
	}
	var id [32]C.char
	if err := d.check("cuDeviceGetPCIBusId", C.call_cuDeviceGetPCIBusId(d.cuda, &id[0], C.int(len(id)), dev)); err != nil {
		return "", err
	}
	id[len(id)-1] = 0
	return C.GoString(&id[0]), nil
}

func (d *driver) PrimaryContext(ordinal int) (device.Context, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if c, ok := d.contexts[ordinal]; ok {
		return c, nil
	}
	dev, err := d.device(ordinal)
	if err != nil {
		return 0, err
	}
	var c C.CUcontext
	if err := d.check("cuDevicePrimaryCtxRetain", C.call_cuDevicePrimaryCtxRetain(d.cuda, &c, dev)); err != nil {
		return 0, fmt.Errorf("device %d: %w", ordinal, err)
	}
	d.contexts[ordinal] = fromContext(c)
	return d.contexts[ordinal], nil
}

func (d *driver) Context() (device.Context, error) {
	c := C.current_context(d.cuda)
	return fromContext(c.context), d.check("cuCtxGetCurrent", c.result)
}

func (d *driver) SetContext(c device.Context) error {
	return d.check("cuCtxSetCurrent", C.call_cuCtxSetCurrent(d.cuda, toContext(c)))
}

func (d *driver) ExchangeCaptureMode(mode int) (int, error) {
	m := C.CUstreamCaptureMode(mode)
	err := d.check("cuThreadExchangeStreamCaptureMode", C.call_cuThreadExchangeStreamCaptureMode(d.cuda, &m))
	return int(m), err
}

// OnWait has a C function of one int32_t called right before and after the driver waits for a device, on the
// thread that waits, with the one number and the other. Between the two the thread runs no Go code and is on
// its C stack, so that every signal can be handled there. Once, before any wait.
func OnWait(function unsafe.Pointer, before, after int32) {
	C.tell(function, C.int32_t(before), C.int32_t(after))
}

func (d *driver) Synchronize() error {
	return d.check("cuCtxSynchronize", C.synchronize(d.cuda))
}

func (d *driver) StreamCreate() (device.Stream, error) {
	var s C.CUstream
	err := d.check("cuStreamCreate", C.call_cuStreamCreate(d.cuda, &s, C.CU_STREAM_NON_BLOCKING))
	return fromStream(s), err
}

func (d *driver) StreamDestroy(s device.Stream) error {
	return d.check("cuStreamDestroy", C.call_cuStreamDestroy(d.cuda, toStream(s)))
}

func (d *driver) StreamSynchronize(s device.Stream) error {
	return d.check("cuStreamSynchronize", C.call_cuStreamSynchronize(d.cuda, toStream(s)))
}

func (d *driver) StreamCaptures(s device.Stream) (bool, error) {
	var status C.CUstreamCaptureStatus
	err := d.check("cuStreamIsCapturing", C.call_cuStreamIsCapturing(d.cuda, toStream(s), &status))
	return status != C.CU_STREAM_CAPTURE_STATUS_NONE, err
}

func (d *driver) EventCreate() (device.Event, error) {
	var e C.CUevent
	err := d.check("cuEventCreate", C.call_cuEventCreate(d.cuda, &e, C.CU_EVENT_DISABLE_TIMING))
	return fromEvent(e), err
}

func (d *driver) EventRecord(e device.Event, s device.Stream) error {
	return d.check("cuEventRecord", C.call_cuEventRecord(d.cuda, toEvent(e), toStream(s)))
}

func (d *driver) EventSynchronize(e device.Event) error {
	return d.check("cuEventSynchronize", C.call_cuEventSynchronize(d.cuda, toEvent(e)))
}

func (d *driver) EventDestroy(e device.Event) error {
	return d.check("cuEventDestroy", C.call_cuEventDestroy(d.cuda, toEvent(e)))
}

// The handles below are the driver's pointers. Go code keeps them as numbers and never follows
// them; their bits are reinterpreted, not converted, because go vet rightly refuses a conversion
// of a number to a pointer.

func fromContext(c C.CUcontext) device.Context { return *(*device.Context)(unsafe.Pointer(&c)) }
func toContext(c device.Context) C.CUcontext   { return *(*C.CUcontext)(unsafe.Pointer(&c)) }
func fromStream(s C.CUstream) device.Stream    { return *(*device.Stream)(unsafe.Pointer(&s)) }
func toStream(s device.Stream) C.CUstream      { return *(*C.CUstream)(unsafe.Pointer(&s)) }
func fromEvent(c C.CUevent) device.Event       { return *(*device.Event)(unsafe.Pointer(&c)) }
func toEvent(e device.Event) C.CUevent         { return *(*C.CUevent)(unsafe.Pointer(&e)) }
