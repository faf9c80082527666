package cuda

// #include "cuda_load.h"
import "C"

import (
	"fmt"
	"runtime"
	"unsafe"

	"github.com/ebb-offload/ebb/internal/device"
)

// SetSoftwareFault makes calls of softgpu fail in this process, for tests: it is SOFTGPU_FAULT
// anew ("cuMemMap:2:2": the second call of cuMemMap from now on ends with result 2); "" takes all
// faults away. d comes from Open. Any driver but softgpu is an error.
func SetSoftwareFault(d device.Driver, spec string) error {
	soft, ok := d.(*driver)
	if !ok {
		return fmt.Errorf("setting faults: a driver of type %T is not from this package", d)
	}
	s := C.CString(spec)
	defer C.free(unsafe.Pointer(s))
	switch C.set_software_fault(soft.cuda, s) {
	case C.FAULT_SET:
		return nil
	case C.FAULT_UNREADABLE:
		return fmt.Errorf("setting faults: softgpu cannot read %q", spec)
	default:
		return fmt.Errorf("setting faults: the driver is not softgpu")
	}
}

// SoftwareCalls is how often each call was made in this process so far, by the names that
// SetSoftwareFault takes, for tests; those never made are left out. d comes from Open. Any driver but
// softgpu made none.
func SoftwareCalls(d device.Driver) map[string]int {
	made := map[string]int{}
	soft, ok := d.(*driver)
	if !ok {
		return made
	}
	for i := C.size_t(0); ; i++ {
		var name *C.char
		n := C.software_calls(soft.cuda, i, &name)
		if n < 0 {
			return made
		}
		if n > 0 {
			made[C.GoString(name)] = int(n)
		}
	}
}

// NewSoftwareContext makes a further context on a device of softgpu, for tests, and leaves the
// calling thread's current context as it was. d comes from Open. The context lives as long as
// the process.
func NewSoftwareContext(d device.Driver, dev int) (device.Context, error) {
	soft, ok := d.(*driver)
	if !ok {
		return 0, fmt.Errorf("making a context: a driver of type %T is not from this package", d)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before, err := d.Context()
	if err != nil {
		return 0, err
	}
	var c C.CUcontext
	if code := C.new_software_context(soft.cuda, &c, C.int(dev)); code != 0 {
		return 0, fmt.Errorf("making a context on device %d of softgpu: result %d", dev, code)
	}
	return device.Context(uintptr(unsafe.Pointer(c))), d.SetContext(before)
}

// ResetSoftwareDevice resets the primary context of a device of softgpu, for tests. d comes from Open,
// and is not told.
func ResetSoftwareDevice(d device.Driver, dev int) error {
	soft, ok := d.(*driver)
	if !ok {
		return fmt.Errorf("resetting a device: a driver of type %T is not from this package", d)
	}
	if code := C.reset_software_device(soft.cuda, C.int(dev)); code != 0 {
		return fmt.Errorf("resetting device %d of softgpu: result %d", dev, code)
	}
	return nil
}

// CaptureSoftwareStream begins the capture of a stream of softgpu's, for tests. end ends it, and says whether
// it was whole; both work on the current context, which must be the stream's. d comes from Open.
func CaptureSoftwareStream(d device.Driver, s device.Stream) (end func() error, err error) {
	soft, ok := d.(*driver)
	if !ok {
		return nil, fmt.Errorf("capturing a stream: a driver of type %T is not from this package", d)
	}
	if code := C.capture_software_stream(soft.cuda, toStream(s), 1); code != 0 {
		return nil, fmt.Errorf("capturing a stream of softgpu: result %d", code)
	}
	return func() error {
		if code := C.capture_software_stream(soft.cuda, toStream(s), 0); code != 0 {
			return fmt.Errorf("ending the capture of a stream of softgpu: result %d", code)
		}
		return nil
	}, nil
}

// SoftwarePoolMemory takes memory from the default pool of a device of softgpu, for tests, on the
// legacy stream of the current context, which must be the device's. d comes from Open.
func SoftwarePoolMemory(d device.Driver, size uint64) (free func() error, err error) {
	soft, ok := d.(*driver)
	if !ok {
		return nil, fmt.Errorf("taking memory from a pool: a driver of type %T is not from this package", d)
	}
	var p C.CUdeviceptr
	if code := C.software_alloc_async(soft.cuda, &p, C.size_t(size)); code != 0 {
		return nil, fmt.Errorf("taking %d bytes from a pool of softgpu: result %d", size, code)
	}
	return func() error {
		if code := C.software_alloc_async(soft.cuda, &p, 0); code != 0 {
			return fmt.Errorf("freeing memory of a pool of softgpu: result %d", code)
		}
		return nil
	}, nil
}
