package store

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// HostOptions are the settings of a store in host memory.
type HostOptions struct {
	// BlockBytes is the size of a block, a multiple of 4096.
	BlockBytes uint64
	// Alloc takes size bytes of memory, a multiple of 4096, and returns how to free them. Its
	// error says ErrHostMemory when there is too little.
	Alloc func(size uint64) (region []byte, free func() error, err error)
	// Direct says that devices can copy to and from the memory (it is pinned), so that
	// backings show it as Memory.
	Direct bool
}

// Host keeps every backing in one region of host memory, taken at the first Reserve and freed
// by Release.
type Host struct {
	options HostOptions

	mu       sync.Mutex // guards the fields below
	closed   bool
	bytes    uint64
	backings map[*hostBacking]struct{}
}

// NewHost makes a store in host memory. It takes no memory yet.
func NewHost(o HostOptions) *Host {
	return &Host{options: o, backings: map[*hostBacking]struct{}{}}
}

// Open implements Store.
func (s *Host) Open(id, size uint64) (Backing, error) {
	if err := checkSizes(s.options.BlockBytes, size); err != nil {
		return nil, fmt.Errorf("open a host backing for allocation %d: %w", id, err)
	}
	b := &hostBacking{store: s, id: id, blocks: newBlockMap(size, s.options.BlockBytes)}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, fmt.Errorf("open a host backing for allocation %d: %w", id, ErrClosed)
	}
	s.backings[b] = struct{}{}
	return b, nil
}

// Rest implements Store. Memory is kept.
func (s *Host) Rest() {}

// Usage implements Store.
func (s *Host) Usage() Usage {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Usage{HostBytes: s.bytes}
}

// Close implements Store. Memory that could not be freed is tried again by the next call.
func (s *Host) Close() error {
	s.mu.Lock()
	s.closed = true
	var open []*hostBacking
	for b := range s.backings {
		open = append(open, b)
	}
	s.mu.Unlock()
	var errs []error
	for _, b := range open {
		errs = append(errs, b.Release())
	}
	return errors.Join(errs...)
}

// hostBacking is the memory of one allocation.
type hostBacking struct {
	store  *Host
	id     uint64
	blocks blockMap

	// mu guards the fields below. Block calls hold it for reading, so that the memory stays
	// until they are done.
	mu       sync.RWMutex
	region   []byte // nil: no room taken
	free     func() error
	released bool
}

// Reserve implements Backing.
func (b *hostBacking) Reserve() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	size := alignUp(b.blocks.size)
	fail := func(err error) error {
		return fmt.Errorf("host memory for allocation %d: %w", b.id, err)
	}
	if b.released {
		return fail(ErrClosed)
	}
	if b.region != nil {
		return nil
	}
	region, free, err := b.store.options.Alloc(size)
	if err != nil {
		return fail(err)
	}
	b.region, b.free = region, free
	b.store.mu.Lock()
	b.store.bytes += size
	b.store.mu.Unlock()
	return nil
}

// WriteBlock implements Backing.
func (b *hostBacking) WriteBlock(off uint64, p []byte, as Block) error {
	b.mu.RLock()
	defer b.mu.RUnlock()
	at, err := b.block(off, uint64(len(p)))
	if err != nil {
		return fmt.Errorf("write block at offset %d of %s: %w", off, b.name(), err)
	}
	b.blocks.at(off).store(Block{})
	copy(at, p)
	b.blocks.at(off).store(as)
	return nil
}

// ReadBlock implements Backing.
func (b *hostBacking) ReadBlock(off uint64, p []byte) error {
	b.mu.RLock()
	defer b.mu.RUnlock()
	at, err := b.block(off, uint64(len(p)))
	if err == nil {
		switch b.blocks.at(off).load().State {
		case Stored:
			copy(p, at)
		case Absent:
			err = ErrAbsent
		case Zero, Dead:
			clear(p)
		}
	}
	if err != nil {
		return fmt.Errorf("read block at offset %d of %s: %w", off, b.name(), err)
	}
	return nil
}

// block returns the memory of a block of n bytes. Called with mu held.
func (b *hostBacking) block(off, n uint64) ([]byte, error) {
	if err := b.blocks.check(off, n); err != nil {
		return nil, err
	}
	if b.released {
		return nil, ErrClosed
	}
	if b.region == nil {
		return nil, errNoRoom
	}
	return b.region[off : off+n], nil
}

// Commit implements Backing. Memory is its own device.
func (b *hostBacking) Commit() error {
	b.mu.RLock()
	defer b.mu.RUnlock()
	if b.released {
		return fmt.Errorf("commit %s: %w", b.name(), ErrClosed)
	}
	if off, found := b.blocks.firstAbsent(); found {
		return fmt.Errorf("commit %s: block at offset %d: %w", b.name(), off, ErrAbsent)
	}
	return nil
}

// Invalidate implements Backing.
func (b *hostBacking) Invalidate() { b.blocks.forget() }

// Block implements Backing.
func (b *hostBacking) Block(off uint64) Block { return b.blocks.at(off).load() }

// Mark implements Backing.
func (b *hostBacking) Mark(off uint64, as Block) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	at, err := b.block(off, b.blocks.length(off))
	if err != nil { // no room: the next Commit says so
		return
	}
	entry := b.blocks.at(off)
	if as.State == Zero && entry.load().State != Zero {
		entry.store(Block{})
		clear(at)
	}
	entry.store(as)
}

// Memory implements Backing.
func (b *hostBacking) Memory(off uint64) []byte {
	b.mu.RLock()
	defer b.mu.RUnlock()
	if !b.store.options.Direct || b.region == nil || b.released {
		return nil
	}
	return b.region[off : off+b.blocks.length(off)]
}

// Pointer implements Backing.
func (b *hostBacking) Pointer(off uint64) (unsafe.Pointer, error) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	if b.region == nil || b.released {
		return nil, fmt.Errorf("%s: %w", b.name(), ErrNoMemory)
	}
	if off >= b.blocks.size {
		return nil, fmt.Errorf("%s: offset %d is beyond its %d bytes", b.name(), off, b.blocks.size)
	}
	if at, found := b.blocks.firstAbsent(); found {
		return nil, fmt.Errorf("%s: block at offset %d: %w", b.name(), at, ErrAbsent)
	}
	return unsafe.Pointer(&b.region[off]), nil
}

// Where implements Backing.
func (b *hostBacking) Where(uint64) string { return "host memory" }

func (b *hostBacking) name() string { return fmt.Sprintf("host memory of allocation %d", b.id) }

// Release implements Backing. When the memory cannot be freed it can be called again.
func (b *hostBacking) Release() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.released = true
	b.blocks.forget()
	if b.region != nil {
		if err := b.free(); err != nil {
			return fmt.Errorf("free %s: %w", b.name(), err)
		}
	}
	b.store.mu.Lock()
	if b.region != nil {
		b.store.bytes -= alignUp(b.blocks.size)
	}
	delete(b.store.backings, b)
	b.store.mu.Unlock()
	b.region, b.free = nil, nil
	return nil
}

// HostMemoryError says how much host memory was needed and available, in bytes.
type HostMemoryError struct {
	Need, Available uint64 // Available: without pushing anything else out; 0: unknown
	Err             error  // the system's error, or nil when it was not asked
}

func (e *HostMemoryError) Error() string {
	s := fmt.Sprintf("%v: %s needed, %s available", ErrHostMemory, Size(e.Need), Size(e.Available))
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

// Unwrap makes errors.Is(err, ErrHostMemory) and errors.Is(err, unix.ENOMEM) true.
func (e *HostMemoryError) Unwrap() []error {
	if e.Err == nil {
		return []error{ErrHostMemory}
	}
	return []error{ErrHostMemory, e.Err}
}

// MmapAlloc takes plain host memory: in huge pages where possible, not copied into forked
// children and core dumps, and with every page really there, so that a lack of memory shows
// here and not as a kill in the middle of a pause. It is for HostOptions.Alloc.
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
