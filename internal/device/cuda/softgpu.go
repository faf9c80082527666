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
