package hostmem

import (
	"errors"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/ebb-offload/ebb/internal/sizes"
)

// This file makes and unmakes mappings. The memory is not Go's: the collector neither moves nor
// frees it, so devices and direct I/O may use its addresses until it is unmapped.

// hugePage is the size of the pages that mappings ask for and are aligned to.
const hugePage = 2 << 20

// PageError says what failed while memory was mapped or brought in. It matches ErrMemory when the
// lack of memory was the cause.
type PageError struct {
	Doing string // "mapping", "protecting from fork", "touching", "opening"
	Bytes uint64
	Err   error // of the system
}

func (e *PageError) Error() string {
	return e.Doing + " " + sizes.Binary(e.Bytes) + ": " + e.Err.Error()
}

// Unwrap gives the cause, and ErrMemory where that is what it amounts to.
func (e *PageError) Unwrap() []error {
	if errors.Is(e.Err, unix.ENOMEM) || errors.Is(e.Err, unix.EAGAIN) {
		return []error{ErrMemory, e.Err}
	}
	return []error{e.Err}
}

// mapMemory maps n bytes at a multiple of hugePage, not yet backed by pages and, with prot
// PROT_NONE, not accessible. A forked child does not get it (a direct read under way into memory
// shared with a child could land in the wrong copy), and a core dump leaves it out.
func mapMemory(n uint64, prot int) ([]byte, error) {
	fail := func(doing string, err error) ([]byte, error) {
		return nil, &PageError{Doing: doing, Bytes: n, Err: err}
	}
	if n > 1<<62 {
		return fail("mapping", unix.ENOMEM)
	}
	// Address space for the alignment is taken with it and returned at once.
	base, err := unix.MmapPtr(-1, 0, nil, uintptr(n+hugePage), prot, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return fail("mapping", err)
	}
	head := -uintptr(base) & (hugePage - 1)
	memory := unsafe.Slice((*byte)(unsafe.Add(base, head)), n)
	if head > 0 {
		err = unix.MunmapPtr(base, head)
	}
	if tail := hugePage - head; tail > 0 && err == nil {
		err = unix.MunmapPtr(unsafe.Add(base, uintptr(n)+head), tail)
	}
	if err != nil {
		// Splitting a mapping takes one more of the process's map entries.
		_ = unix.MunmapPtr(base, uintptr(n+hugePage))
		return fail("mapping", err)
	}
	for _, advice := range []int{unix.MADV_DONTFORK, unix.MADV_DONTDUMP} {
		if err := unix.Madvise(memory, advice); err != nil {
			unmap(memory)
			return fail("protecting from fork", err)
		}
	}
	// Kernels without transparent huge pages refuse; only speed depends on it.
	_ = unix.Madvise(memory, unix.MADV_HUGEPAGE)
	return memory, nil
}

func unmap(memory []byte) {
	// Fails only for arguments that mapMemory cannot have returned.
	_ = unix.MunmapPtr(address(memory), uintptr(len(memory)))
}

// open makes part of a mapping accessible; shut gives its pages back and makes it inaccessible
// again.
func open(part []byte) error {
	if err := unix.Mprotect(part, unix.PROT_READ|unix.PROT_WRITE); err != nil {
		return &PageError{Doing: "opening", Bytes: uint64(len(part)), Err: err}
	}
	return nil
}

func shut(part []byte) error {
	err := unix.Madvise(part, unix.MADV_DONTNEED)
	if err == nil {
		err = unix.Mprotect(part, unix.PROT_NONE)
	}
	if err != nil {
		return &PageError{Doing: "giving back", Bytes: uint64(len(part)), Err: err}
	}
	return nil
}

// address is where memory begins.
func address(memory []byte) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(memory)) }

// populate makes every page of memory present. The system call does it outside the Go scheduler,
// which may have few processors, and reports a lack of memory; kernels before 5.14 lack the call.
func populate(memory []byte) error {
	for {
		err := unix.Madvise(memory, unix.MADV_POPULATE_WRITE)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EINVAL):
			for i := 0; i < len(memory); i += 4096 {
				memory[i] = 0
			}
			return nil
		}
		return err
	}
}
