package main

// #include "exports.h"
import "C"

import (
	"unsafe"

	"github.com/ebb-offload/ebb/internal/device"
	"github.com/ebb-offload/ebb/internal/engine"
	"github.com/ebb-offload/ebb/internal/mem"
)

// This file has streamed state.

//export ebbGoStateCreate
func ebbGoStateCreate(name *C.char, bytes *C.uint64_t, n C.size_t, dev C.int, dir *C.char, state *C.uint64_t) C.int {
	return withEngine("state", func(e *engine.Engine) error {
		if name == nil || bytes == nil || dir == nil || state == nil {
			return invalid("name, sizes, directory or state are null")
		}
		sizes := make([]uint64, 0, n)
		for _, b := range unsafe.Slice(bytes, int(n)) {
			sizes = append(sizes, uint64(b))
		}
		id, err := e.CreateState(C.GoString(name), sizes, int(dev), C.GoString(dir))
		if err == nil {
			*state = C.uint64_t(id)
		}
		return err
	})
}

//export ebbGoStateBlock
func ebbGoStateBlock(state C.uint64_t) (block C.uint64_t) {
	withEngine("state block", func(e *engine.Engine) error {
		block = C.uint64_t(e.StateBlock(uint64(state)))
		return nil
	})
	return block
}

//export ebbGoStateRead
func ebbGoStateRead(state C.uint64_t, ios *C.ebb_state_io, n C.size_t, ticket *C.uint64_t) C.int {
	return request("state read", ios, n, ticket, func(e *engine.Engine, list []engine.StateIO) (uint64, error) {
		return e.ReadState(uint64(state), list)
	})
}

//export ebbGoStateWrite
func ebbGoStateWrite(state C.uint64_t, ios *C.ebb_state_io, n C.size_t, stream C.uintptr_t, ticket *C.uint64_t) C.int {
	return request("state write", ios, n, ticket, func(e *engine.Engine, list []engine.StateIO) (uint64, error) {
		return e.WriteState(uint64(state), list, device.Stream(stream))
	})
}

func request(name string, ios *C.ebb_state_io, n C.size_t, ticket *C.uint64_t, call func(*engine.Engine, []engine.StateIO) (uint64, error)) C.int {
	return withEngine(name, func(e *engine.Engine) error {
		if ios == nil && n > 0 || ticket == nil {
			return invalid("ios or ticket are null")
		}
		list := make([]engine.StateIO, 0, n)
		all := unsafe.Slice(ios, int(n))
		for i := range all {
			io := &all[i]
			if io.reserved != 0 {
				return invalid("reserved of part %d is %d, not 0", i, io.reserved)
			}
			addr := *(*uintptr)(unsafe.Pointer(&io.gpu)) // a number, for what rangesOf says
			list = append(list, engine.StateIO{
				Segment: uint32(io.segment), Offset: uint64(io.offset), Bytes: uint64(io.bytes), Addr: mem.Addr(addr),
			})
		}
		t, err := call(e, list)
		if err == nil {
			*ticket = C.uint64_t(t)
		}
		return err
	})
}

//export ebbGoStateWait
func ebbGoStateWait(state, ticket C.uint64_t, done *C.ebb_state_done) C.int {
	return withEngine("state wait", func(e *engine.Engine) error {
		d, err := e.WaitState(uint64(state), uint64(ticket))
		done.bytes = C.uint64_t(d.Bytes)
		done.disk_bytes = C.uint64_t(d.DiskBytes)
		done.skipped_zero_bytes = C.uint64_t(d.SkippedZero)
		done.nanoseconds = C.uint64_t(d.Duration.Nanoseconds())
		done.wait_nanoseconds = C.uint64_t(d.Wait.Nanoseconds())
		return err
	})
}

//export ebbGoStateHost
func ebbGoStateHost(state C.uint64_t, segment C.uint32_t, offset, n C.uint64_t, buf unsafe.Pointer, write C.int) C.int {
	name, call := "state read", (*engine.Engine).ReadStateHost
	if write != 0 {
		name, call = "state write", (*engine.Engine).WriteStateHost
	}
	return withEngine(name, func(e *engine.Engine) error {
		if n > maxRead {
			return invalid("%d bytes are more than any memory has", uint64(n))
		}
		return call(e, uint64(state), uint32(segment), uint64(offset), unsafe.Slice((*byte)(buf), n))
	})
}

//export ebbGoStateSave
func ebbGoStateSave(state C.uint64_t, dir, extra *C.char) C.int {
	return withEngine("state save", func(e *engine.Engine) error {
		if dir == nil {
			return invalid("dir is null")
		}
		return e.SaveState(uint64(state), C.GoString(dir), []byte(C.GoString(extra)))
	})
}

//export ebbGoStateLoad
func ebbGoStateLoad(state C.uint64_t, dir *C.char) C.int {
	return withEngine("state load", func(e *engine.Engine) error {
		if dir == nil {
			return invalid("dir is null")
		}
		return e.LoadState(uint64(state), C.GoString(dir))
	})
}

//export ebbGoStateClose
func ebbGoStateClose(state C.uint64_t) C.int {
	return withEngine("state close", func(e *engine.Engine) error { return e.CloseState(uint64(state)) })
}
