package cuda

/*
#cgo CFLAGS: -std=gnu11 -D_GNU_SOURCE -Wall -Wextra -Werror
#cgo LDFLAGS: -ldl
#include "nvml_load.h"
*/
import "C"

import (
	"fmt"
	"strings"
	"sync"
	"unsafe"

	"github.com/ebb-offload/ebb/internal/device"
)

// nvml is NVIDIA's management library, loaded at the first question to it.
type nvml struct {
	library string

	once sync.Once
	fns  *C.struct_ebb_nvml // C memory, never freed
	err  error
}

// nvmlBeside is the management library that belongs to a driver library: in its folder, where
// that is known, since both are of one installation.
func nvmlBeside(driver string) *nvml {
	const name = "libnvidia-ml.so.1"
	if i := strings.LastIndex(driver, "/"); i >= 0 {
		return &nvml{library: driver[:i+1] + name} // not filepath.Join: "./" says not to search
	}
	return &nvml{library: name}
}

func (n *nvml) load() error {
	n.once.Do(func() {
		name := C.CString(n.library)
		defer C.free(unsafe.Pointer(name))
		var why [512]C.char
		if n.fns = C.ebb_nvml_load(name, &why[0], C.size_t(len(why))); n.fns == nil {
			n.err = fmt.Errorf("load NVML: %s", C.GoString(&why[0]))
		}
	})
	return n.err
}

// firstRoom is for how many processes NVML is given room at first. Few devices have more.
const firstRoom = 8

// holders lists the processes with compute contexts on the device with that PCI bus id.
func (n *nvml) holders(busID string) ([]device.Holder, error) {
	dev, err := n.device(busID)
	if err != nil {
		return nil, err
	}
	list := make([]C.struct_ebb_nvml_process, firstRoom)
	for {
		count := C.uint(len(list))
		code := C.ebb_nvml_processes(n.fns, dev, &count, &list[0])
		if code == C.EBB_NVML_INSUFFICIENT_SIZE && int(count) >= len(list) {
			list = make([]C.struct_ebb_nvml_process, 2*int(count)) // more may come meanwhile
			continue
		}
		if code != 0 {
			return nil, fmt.Errorf("nvmlDeviceGetComputeRunningProcesses returned %d", code)
		}
		list = list[:count]
		break
	}
	holders := make([]device.Holder, 0, len(list))
	for _, p := range list {
		h := device.Holder{PID: int(p.pid), Name: n.name(p.pid)}
		if p.used_bytes != C.EBB_NVML_NOT_AVAILABLE {
			h.Bytes = uint64(p.used_bytes)
		}
		holders = append(holders, h)
	}
	return holders, nil
}

// device is NVML's handle of the device with that PCI bus id.
func (n *nvml) device(busID string) (dev unsafe.Pointer, err error) {
	if err := n.load(); err != nil {
		return nil, err
	}
	id := C.CString(busID)
	defer C.free(unsafe.Pointer(id))
	if code := C.ebb_nvml_by_bus_id(n.fns, id, &dev); code != 0 {
		return nil, fmt.Errorf("nvmlDeviceGetHandleByPciBusId(%s) returned %d", busID, code)
	}
	return dev, nil
}

// name is the last part of a process's executable, or empty.
func (n *nvml) name(pid C.uint) string {
	var text [256]C.char
	if C.ebb_nvml_name(n.fns, pid, &text[0], C.uint(len(text))) != 0 {
		return ""
	}
	text[len(text)-1] = 0
	path := C.GoString(&text[0])
	return path[strings.LastIndex(path, "/")+1:]
}

func (d *driver) Holders(ordinal int) ([]device.Holder, error) {
	id, err := d.busID(ordinal)
	if err != nil {
		return nil, err
	}
	return d.nvml.holders(id)
}

func (d *driver) UUID(ordinal int) (string, error) {
	id, err := d.busID(ordinal)
	if err != nil {
		return "", err
	}
	dev, err := d.nvml.device(id)
	if err != nil {
		return "", err
	}
	var text [96]C.char // NVML's own limit
	if code := C.ebb_nvml_uuid(d.nvml.fns, dev, &text[0], C.uint(len(text))); code != 0 {
		return "", fmt.Errorf("nvmlDeviceGetUUID returned %d", code)
	}
	text[len(text)-1] = 0
	return C.GoString(&text[0]), nil
}
