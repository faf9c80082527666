package cuda

// #include "cuda_load.h"
import "C"

import (
	"fmt"
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
