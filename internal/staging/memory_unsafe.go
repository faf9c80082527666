package staging

import (
	"errors"
	"unsafe"

	"golang.org/x/sys/unix"
)

// This file makes and unmakes the mapping. The memory is not Go's: the collector neither moves
// nor frees it, so devices and direct I/O may use its addresses until unmap.

// mapChunk maps n bytes at a multiple of hugePage, not yet backed by pages.
func mapChunk(n uint64) ([]byte, error) {
	fail := func(doing string, err error) ([]byte, error) {
		return nil, &MemoryError{Doing: doing, Bytes: n, Err: err}
	}
	// Address space for the alignment is taken with it and returned at once.
	base, err := unix.MmapPtr(-1, 0, nil, uintptr(n+hugePage), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
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
	// Fails only for arguments that mapChunk cannot have returned.
	_ = unix.MunmapPtr(unsafe.Pointer(unsafe.SliceData(memory)), uintptr(len(memory)))
}

// touchSlice is how much memory one thread brings in: enough to be worth a thread, and a multiple
// of hugePage.
const (
	touchSlice      = 32 << 20
	maxTouchThreads = 16
)

// touch brings in the pages from threads on the CPUs of the NUMA node, since the kernel takes a
// page from the node of the thread that first uses it.
func touch(memory []byte, node int) error {
	cpus := nodeCPUs("/sys", node)
	slice := max(touchSlice, (len(memory)/maxTouchThreads+hugePage)&^(hugePage-1))
	var threads []<-chan error
	for part := memory; len(part) > 0; {
		mine := part[:min(slice, len(part))]
		part = part[len(mine):]
		threads = append(threads, onCPUs(cpus, func() error { return populate(mine) }))
	}
	var failed error
	for _, done := range threads {
		failed = errors.Join(failed, <-done)
	}
	if failed != nil {
		return &MemoryError{Doing: "touching", Bytes: uint64(len(memory)), Err: failed}
	}
	return nil
}

// populate makes every page of memory present. The system call does it outside the Go scheduler,
// which may have few processors, and reports a lack of memory; kernels before 5.14 lack the call.
func populate(memory []byte) error {
	err := unix.Madvise(memory, unix.MADV_POPULATE_WRITE)
	if errors.Is(err, unix.EINVAL) {
		for i := 0; i < len(memory); i += 4096 {
			memory[i] = 0
		}
		return nil
	}
	return err
}
