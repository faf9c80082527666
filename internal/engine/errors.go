package engine

import (
	"errors"
	"fmt"

	"github.com/ebb-offload/ebb/internal/alloc"
	"github.com/ebb-offload/ebb/internal/device"
	"github.com/ebb-offload/ebb/internal/device/cuda"
	"github.com/ebb-offload/ebb/internal/filesys"
	"github.com/ebb-offload/ebb/internal/hostmem"
	"github.com/ebb-offload/ebb/internal/sizes"
	"github.com/ebb-offload/ebb/internal/store"
)

// Errors of the engine. Each belongs to one ebb_code of the C contract; see Code.
var (
	ErrInvalid      = errors.New("invalid argument")
	ErrState        = errors.New("not possible in this state")
	ErrCapture      = errors.New("a CUDA stream capture is under way: end it first")
	ErrDeviceFault  = errors.New("the device had failed before this call")
	ErrPartial      = errors.New("paused in part")
	ErrDeviceMemory = errors.New("not enough device memory")
	ErrUnmanaged    = errors.New("nothing is managed, and the process holds device memory")
	ErrTimeout      = errors.New("the deadline passed")
	ErrWritten      = errors.New("memory written during pause")
	ErrCorrupt      = errors.New("corrupt backup")
)

// DeviceMemoryError says how many bytes were needed and free on a device.
type DeviceMemoryError struct {
	Device     int
	Need, Free uint64
	Holders    []device.Holder // other processes that hold memory of the device, where known
	Err        error           // the driver's error; nil when the free bytes alone said it
}

func (e *DeviceMemoryError) Error() string {
	s := fmt.Sprintf("not enough memory on device %d: %s needed, %s free", e.Device, sizes.Binary(e.Need), sizes.Binary(e.Free))
	for i, h := range e.Holders {
		s += [...]string{"; held by ", ", "}[min(i, 1)] + fmt.Sprintf("pid %d (%s): %s", h.PID, h.Name, sizes.Binary(h.Bytes))
	}
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

// Unwrap makes errors.Is(err, ErrDeviceMemory) true.
func (e *DeviceMemoryError) Unwrap() []error {
	if e.Err == nil {
		return []error{ErrDeviceMemory}
	}
	return []error{ErrDeviceMemory, e.Err}
}

// errorList joins errors of many allocations into one that can be read: the first few, and how
// many more there were.
type errorList struct {
	first []error
	more  int
}

const errorsShown = 3

func (l *errorList) add(err error) {
	switch {
	case err == nil:
	case len(l.first) < errorsShown:
		l.first = append(l.first, err)
	default:
		l.more++
	}
}

// err is nil when none was added.
func (l *errorList) err() error {
	err := errors.Join(l.first...)
	if l.more > 0 {
		err = fmt.Errorf("%w\nand %d more", err, l.more)
	}
	return err
}

// Numbers of ebb_code in abi/ebb.h.
const (
	CodeOK           = 0
	CodeInvalid      = 1
	CodeNotManaged   = 2
	CodeState        = 3
	CodeUnknownTag   = 4
	CodeCapture      = 6
	CodeDevice       = 7
	CodeDeviceFault  = 8
	CodeDeviceMemory = 9
	CodeHostMemory   = 10
	CodeNoSpace      = 11
	CodeIO           = 12
	CodeCorrupt      = 13
	CodePartial      = 14
	CodeInternal     = 16
	CodeUnmanaged    = 17
	CodeTimeout      = 18
	CodeWritten      = 19
)

// Code is the ebb_code of an error; nil is CodeOK. Where an error matches several, the first of
// the list below counts.
func Code(err error) int {
	if err == nil {
		return CodeOK
	}
	for _, c := range []struct {
		is   error
		code int
	}{
		{ErrPartial, CodePartial},
		{ErrInvalid, CodeInvalid},
		{alloc.ErrNotManaged, CodeNotManaged},
		{alloc.ErrUnknownTag, CodeUnknownTag},
		{ErrState, CodeState},
		{store.ErrClosed, CodeState},
		{ErrCapture, CodeCapture},
		{ErrUnmanaged, CodeUnmanaged},
		{ErrTimeout, CodeTimeout},
		{filesys.ErrHang, CodeTimeout}, // nothing is broken: it can be tried again
		{ErrWritten, CodeWritten},
		{ErrCorrupt, CodeCorrupt},
		{ErrDeviceFault, CodeDeviceFault},
		{ErrDeviceMemory, CodeDeviceMemory},
		{hostmem.ErrMemory, CodeHostMemory},
		{store.ErrNoSpace, CodeNoSpace},
		{store.ErrLost, CodeCorrupt},
		{store.ErrAbsent, CodeCorrupt},
		{store.ErrIO, CodeIO},
	} {
		if errors.Is(err, c.is) {
			return c.code
		}
	}
	if e := (*device.Error)(nil); errors.As(err, &e) {
		return CodeDevice
	}
	if e := (*cuda.LoadError)(nil); errors.As(err, &e) {
		return CodeDevice
	}
	return CodeInternal
}
