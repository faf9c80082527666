// Command libebb is libebb-engine.so: internal/engine as a C library, built with
// -buildmode=c-shared. It exports the functions of abi/ebb_engine.h and nothing else.
//
// A call passes two thin layers. exports.c has the functions with the exact types of the header;
// it keeps each thread's error text and writes results no further than the caller's struct. Each
// calls its Go twin in this file, which makes Go values of C's and calls the engine. A panic does
// not get out: it becomes EBB_ERR_INTERNAL, and its stack goes to the log.
//
// Memory of the caller is used during its call only; strings are copied. Device addresses come as
// numbers, because the Go runtime must not see a pointer that an actor made up.
package main

/*
#cgo CFLAGS: -std=gnu11 -Wall -Wextra -Werror
#include "exports.h"
*/
import "C"

import (
	"fmt"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/ebb-offload/ebb/internal/device/cuda"
	"github.com/ebb-offload/ebb/internal/engine"
	"github.com/ebb-offload/ebb/internal/mem"
)

func main() {} // a c-shared library has one, and nothing calls it

// maxRead is more than any address space has, and no more than a slice may have, in bytes.
const maxRead = 1 << 46

var (
	starting sync.Mutex                    // one start at a time; held while the engine starts
	running  atomic.Pointer[engine.Engine] // set by the start that succeeds, never again
	logFD    atomic.Int32                  // of the engine's log, for the stack of a panic; 0: none
)

//export ebbGoStart
func ebbGoStart(c *C.ebb_engine_config) C.int {
	return guard("start", func() error {
		config, err := configOf(c)
		if err != nil {
			return err
		}
		starting.Lock()
		defer starting.Unlock()
		if running.Load() != nil {
			return fmt.Errorf("%w: the engine is already started", engine.ErrState)
		}
		logFD.Store(int32(max(config.LogFD, 0)))
		e, err := engine.Start(config)
		if err != nil {
			return err
		}
		if waits := c.waits; waits != nil {
			e.OnWait(func() { C.ebb_say_wait(waits) })
			cuda.OnWait(unsafe.Pointer(waits), C.EBB_ENGINE_WAITS_IN_DRIVER, C.EBB_ENGINE_WAITED_IN_DRIVER)
		}
		running.Store(e)
		return nil
	})
}

//export ebbGoMalloc
func ebbGoMalloc(address *C.uintptr_t, size C.size_t, device C.int, region *C.ebb_engine_region, margin C.uint64_t) C.int {
	return withEngine("malloc", func(e *engine.Engine) error {
		r, err := regionOf(region)
		if err != nil {
			return err
		}
		a, err := e.Malloc(uint64(size), int(device), r, uint64(margin))
		*address = C.uintptr_t(a)
		return err
	})
}

//export ebbGoFree
func ebbGoFree(address C.uintptr_t, captureActive C.int) C.int {
	return withEngine("free", func(e *engine.Engine) error {
		return e.Free(mem.Addr(address), captureActive != 0)
	})
}

//export ebbGoPause
func ebbGoPause(tags **C.char, ntags C.size_t, settings *C.ebb_engine_settings, result *C.ebb_result) C.int {
	return transition("pause", (*engine.Engine).Pause, tags, ntags, settings, result)
}

//export ebbGoResume
func ebbGoResume(tags **C.char, ntags C.size_t, settings *C.ebb_engine_settings, result *C.ebb_result) C.int {
	return transition("resume", (*engine.Engine).Resume, tags, ntags, settings, result)
}

func transition(name string, do func(*engine.Engine, []string, engine.Settings) (engine.Result, error),
	tags **C.char, ntags C.size_t, settings *C.ebb_engine_settings, result *C.ebb_result) C.int {
	return withEngine(name, func(e *engine.Engine) error {
		names, err := tagsOf(tags, ntags)
		if err != nil {
			return err
		}
		s, err := settingsOf(settings)
		if err != nil {
			return err
		}
		r, err := do(e, names, s)
		putResult(result, r)
		return err
	})
}

//export ebbGoRequestPause
func ebbGoRequestPause(tags **C.char, ntags C.size_t, timeout C.double, settings *C.ebb_engine_settings, result *C.ebb_result) C.int {
	wait, err := timeoutOf(float64(timeout))
	if err != nil {
		return guard("request pause", func() error { return err })
	}
	request := func(e *engine.Engine, names []string, s engine.Settings) (engine.Result, error) {
		return e.RequestPause(names, wait, s)
	}
	return transition("request pause", request, tags, ntags, settings, result)
}

// ebbGoIdle is three calls: 1 begins an idle section, 0 ends one, -1 is a safe point.
//
//export ebbGoIdle
func ebbGoIdle(begin C.int) C.int {
	return withEngine("idle", func(e *engine.Engine) error {
		switch begin {
		case 1, 0:
			return e.Idle(begin == 1)
		case -1:
			return e.SafePoint()
		}
		return invalid("idle is 1, 0 or -1, not %d", begin)
	})
}

//export ebbGoRead
func ebbGoRead(address C.uintptr_t, n C.size_t, buf unsafe.Pointer, captureActive C.int) C.int {
	return withEngine("read", func(e *engine.Engine) error {
		if n > maxRead {
			return invalid("%d bytes are more than any memory has", uint64(n))
		}
		return e.Read(mem.Addr(address), unsafe.Slice((*byte)(buf), n), captureActive != 0)
	})
}

//export ebbGoBackupPointer
func ebbGoBackupPointer(address C.uintptr_t, size C.uint64_t, host *unsafe.Pointer) C.int {
	return withEngine("backup pointer", func(e *engine.Engine) error {
		p, err := e.BackupPointer(mem.Addr(address), uint64(size))
		*host = p
		return err
	})
}

//export ebbGoStatus
func ebbGoStatus(buf *C.char, size C.size_t, need *C.size_t, classes *C.ebb_engine_unmanaged, nclasses C.size_t) C.int {
	return withEngine("status", func(e *engine.Engine) error {
		told, err := classesOf(classes, nclasses)
		if err != nil {
			return err
		}
		text := e.Status(told)
		if need != nil {
			*need = C.size_t(len(text))
		}
		if size > 0 {
			n := min(uint64(size)-1, uint64(len(text)))
			out := unsafe.Slice((*byte)(unsafe.Pointer(buf)), n+1)
			copy(out, text[:n])
			out[n] = 0
		}
		return nil
	})
}

//export ebbGoPauseCount
func ebbGoPauseCount(tag *C.char, count *C.uint64_t) C.int {
	return withEngine("pause count", func(e *engine.Engine) error {
		*count = C.uint64_t(e.PauseCount(C.GoString(tag)))
		return nil
	})
}

//export ebbGoShutdown
func ebbGoShutdown() {
	if running.Load() == nil {
		return
	}
	withEngine("shutdown", func(e *engine.Engine) error {
		e.Shutdown()
		return nil
	})
}

// withEngine is guard for the calls that need a started engine.
func withEngine(name string, call func(*engine.Engine) error) C.int {
	return guard(name, func() error {
		e := running.Load()
		if e == nil {
			return fmt.Errorf("%w: the engine is not started", engine.ErrState)
		}
		return call(e)
	})
}

// guard makes an ebb_code of a call's end, be it an error or a panic, and keeps the error as the
// thread's last one. An exported function runs on its caller's thread throughout.
func guard(name string, call func() error) (code C.int) {
	defer func() {
		if p := recover(); p != nil {
			logPanic(name, p)
			code = setLastError(fmt.Errorf("%s: defect in ebb: %v", name, p))
		}
	}()
	err := call()
	if err == nil {
		return C.EBB_OK
	}
	return setLastError(fmt.Errorf("%s: %w", name, err))
}

// setLastError keeps err for ebb_engine_last_error and its JSON on this thread, and returns its
// code. The text is one line.
func setLastError(err error) C.int {
	text := strings.Join(strings.FieldsFunc(err.Error(), func(r rune) bool { return r == '\n' || r == '\r' }), "; ")
	if len(text) >= C.EBB_ERROR_BYTES {
		text = strings.ToValidUTF8(text[:C.EBB_ERROR_BYTES-1], "") // no rune cut in two
	}
	json := engine.Details(err)
	C.ebb_set_last_error((*C.char)(unsafe.Pointer(unsafe.StringData(text))), C.size_t(len(text)),
		(*C.char)(unsafe.Pointer(unsafe.SliceData(json))), C.size_t(len(json)))
	return C.int(engine.Code(err))
}

// logPanic writes a panic and its stack to the engine's log.
func logPanic(name string, p any) {
	if fd := int(logFD.Load()); fd > 0 {
		_, _ = unix.Write(fd, fmt.Appendf(nil, "ebb: panic in %s: %v\n%s", name, p, debug.Stack()))
	}
}
