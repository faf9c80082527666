package main

// #include <stdlib.h>
// #include "exports.h"
import "C"

import (
	"encoding/json"
	"unsafe"

	"github.com/ebb-offload/ebb/internal/control"
	"github.com/ebb-offload/ebb/internal/control/server"
)

// This file calls ebb's own functions in libebb.so, which call this library in turn, on the same thread.
// Everything that crosses is C memory.

// A slot for each descriptor of the control socket: a constant below 0 does not compile.
const _ = uint(C.EBB_ENGINE_DESCRIPTORS - server.Slots)

// calls are engine.Calls.
type calls struct{ c C.ebb_engine_calls }

func (f calls) Status() ([]byte, *control.Error) {
	for room := C.size_t(16 << 10); ; {
		buf := (*C.char)(C.malloc(room))
		var need C.size_t
		code := C.ebb_call_status(&f.c, buf, room, &need)
		var text []byte
		if code == C.EBB_OK && need < room {
			text = C.GoBytes(unsafe.Pointer(buf), C.int(need))
		}
		C.free(unsafe.Pointer(buf))
		switch {
		case code != C.EBB_OK:
			return nil, f.fault(code)
		case text != nil:
			return text, nil
		}
		room = need + 1 // it may have grown meanwhile
	}
}

func (f calls) Pause(tags []string, timeout float64, ask uint64) (control.Done, *control.Error) {
	return f.move(tags, func(list **C.char, n C.size_t, result *C.ebb_result) C.int {
		return C.ebb_call_pause(&f.c, list, n, C.double(timeout), C.uint64_t(ask), result)
	})
}

func (f calls) Resume(tags []string, timeout float64, ask uint64) (control.Done, *control.Error) {
	return f.move(tags, func(list **C.char, n C.size_t, result *C.ebb_result) C.int {
		return C.ebb_call_resume(&f.c, list, n, C.double(timeout), C.uint64_t(ask), result)
	})
}

func (f calls) move(tags []string, call func(**C.char, C.size_t, *C.ebb_result) C.int) (control.Done, *control.Error) {
	list := (**C.char)(C.calloc(C.size_t(len(tags)+1), C.size_t(unsafe.Sizeof(uintptr(0)))))
	defer C.free(unsafe.Pointer(list))
	for i, tag := range tags {
		text := C.CString(tag)
		defer C.free(unsafe.Pointer(text))
		unsafe.Slice(list, len(tags))[i] = text
	}
	r := (*C.ebb_result)(C.calloc(1, C.sizeof_ebb_result))
	defer C.free(unsafe.Pointer(r))
	r.struct_size = C.sizeof_ebb_result
	code := call(list, C.size_t(len(tags)), r)
	done := control.Done{
		Allocations: uint64(r.allocations), Bytes: uint64(r.bytes), DeviceBytes: uint64(r.device_bytes),
		HostBytes: uint64(r.host_bytes), DiskBytes: uint64(r.disk_bytes),
		SkippedZero: uint64(r.skipped_zero_bytes), SkippedSame: uint64(r.skipped_same_bytes), Kept: uint64(r.kept_bytes),
		Freed: uint64(r.freed_bytes), Missing: uint64(r.missing_bytes),
		Seconds: float64(r.nanoseconds) / 1e9,
	}
	if code != C.EBB_OK {
		return done, f.fault(code)
	}
	return done, nil
}

func (f calls) Read(addr uint64, p []byte) *control.Error {
	buf := C.malloc(C.size_t(len(p) + 1))
	defer C.free(buf)
	if code := C.ebb_call_read(&f.c, C.uint64_t(addr), C.size_t(len(p)), buf); code != C.EBB_OK {
		return f.fault(code)
	}
	copy(p, unsafe.Slice((*byte)(buf), len(p)))
	return nil
}

// fault is the calling thread's last error, which is that of the call before.
func (f calls) fault(code C.int) *control.Error {
	room := C.ebb_call_last_error_json(&f.c, nil, 0) + 1
	buf := (*C.char)(C.malloc(room))
	defer C.free(unsafe.Pointer(buf))
	C.ebb_call_last_error_json(&f.c, buf, room)
	var fault control.Error
	if err := json.Unmarshal([]byte(C.GoString(buf)), &fault); err != nil || fault.Code != int(code) {
		return &control.Error{Code: int(code), Message: "no more is known: there was no memory for the text of the error"}
	}
	return &fault
}

// noteIn notes the control socket's descriptors in libebb.so's memory.
func noteIn(first *C.ebb_engine_descriptor) func(slot, fd int, dev, ino uint64) {
	slots := unsafe.Slice(first, server.Slots)
	return func(slot, fd int, dev, ino uint64) {
		C.ebb_note_descriptor(&slots[slot], C.int(fd), C.uint64_t(dev), C.uint64_t(ino))
	}
}
