package store

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Plain is an extent of memory that is there: Bytes does not wait.
func Plain(memory []byte, free func() error) Extent { return &plain{memory: memory, free: free} }

type plain struct {
	memory []byte
	free   func() error
}

func (p *plain) Bytes(off, n uint64) ([]byte, error) { return p.memory[off : off+n : off+n], nil }

func (p *plain) Free() error { return p.free() }

// MmapAlloc takes plain host memory: in huge pages where possible, not copied into forked
// children and core dumps, and with every page really there, so that a lack of memory shows
// here and not as a kill in the middle of a pause.
func MmapAlloc(size uint64) (region []byte, free func() error, err error) {
	available := availableMemory()
	if available > 0 && size > available {
		return nil, nil, &HostMemoryError{Need: size, Available: available}
	}
	region, err = unix.Mmap(-1, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return nil, nil, mmapError(size, available, err)
	}
	// Without huge pages, or with the memory in core dumps, it works as well.
	_ = unix.Madvise(region, unix.MADV_HUGEPAGE)
	_ = unix.Madvise(region, unix.MADV_DONTDUMP)
	if err := unix.Madvise(region, unix.MADV_DONTFORK); err != nil {
		_ = unix.Munmap(region)
		return nil, nil, fmt.Errorf("keep host memory from forked children: %w", err)
	}
	// Kernels before 5.14 do not know the advice; there pages come with the first write.
	err = retry(func() error { return unix.Madvise(region, unix.MADV_POPULATE_WRITE) })
	if err != nil && !errors.Is(err, unix.EINVAL) {
		_ = unix.Munmap(region)
		return nil, nil, mmapError(size, available, err)
	}
	return region, func() error { return unix.Munmap(region) }, nil
}

func mmapError(size, available uint64, err error) error {
	if errors.Is(err, unix.ENOMEM) {
		return &HostMemoryError{Need: size, Available: available, Err: err}
	}
	return fmt.Errorf("map %d bytes of host memory: %w", size, err)
}

// availableMemory is what the system could hand out without swapping, plus free swap, in
// bytes; 0 when it does not say.
func availableMemory() uint64 {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0
	}
	return meminfo(text, "MemAvailable:") + meminfo(text, "SwapFree:")
}

// meminfo returns a line's value in bytes, or 0.
func meminfo(text []byte, key string) uint64 {
	for line := range bytes.Lines(text) {
		fields := bytes.Fields(line)
		if len(fields) >= 2 && string(fields[0]) == key {
			kib, _ := strconv.ParseUint(string(fields[1]), 10, 64)
			return kib << 10
		}
	}
	return 0
}
