// Package staging holds the pinned host memory through which the bytes of a rank pass on their
// way between device and disk: one chunk, cut into blocks. It is all the host memory that the
// disk target uses, whatever the size of what is paused.
//
// The chunk is one anonymous mapping, registered with the driver in one piece. A forked child
// does not get it (a direct read under way into memory shared with a child could land in the
// wrong copy), a core dump leaves it out, and its pages lie on the NUMA node of the device.
//
// A Staging is made and closed by one owner. Who uses which block when is the owner's business;
// the methods that read are safe from any goroutine until Close.
package staging

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/ebb-offload/ebb/internal/device"
	"github.com/ebb-offload/ebb/internal/hostmem"
)

// Options say what New makes.
type Options struct {
	ChunkBytes uint64 // at most this much memory is taken
	Workers    int    // how many workers want two blocks each, at most
	MaxBlock   uint64 // largest block; 0: DefaultMaxBlock
	NUMANode   int    // node whose memory is used; negative: any

	// Register pins memory for the device and Unregister undoes that. Both are called on the
	// goroutine that calls New and Close. Both are required.
	Register   func(p unsafe.Pointer, n uint64) error
	Unregister func(p unsafe.Pointer) error
}

// MemoryError says what failed while a chunk was made. It matches hostmem.ErrMemory when the lack of
// memory was the cause.
type MemoryError struct {
	Bytes uint64
	Err   error // of the guard, the system or the driver
}

func (e *MemoryError) Error() string {
	return fmt.Sprintf("staging buffer of %d bytes: %v (a smaller one: --offload-train-disk-chunk-mb or TMS_DISK_BACKUP_CHUNK_MB)",
		e.Bytes, e.Err)
}

// Unwrap gives the cause, and hostmem.ErrMemory where that is what it amounts to.
func (e *MemoryError) Unwrap() []error {
	if device.IsOutOfMemory(e.Err) {
		return []error{hostmem.ErrMemory, e.Err}
	}
	return []error{e.Err}
}

// Staging is a chunk of pinned memory.
type Staging struct {
	memory     []byte // the mapping; nil once closed
	blockBytes uint64
	blocks     int
	workers    int
	unregister func(unsafe.Pointer) error
	free       func() error // gives the mapping back
}

// New maps, places and registers a chunk. On an error nothing is left behind.
func New(o Options) (*Staging, error) {
	if o.MaxBlock == 0 {
		o.MaxBlock = DefaultMaxBlock
	}
	block, blocks, workers := Layout(o.ChunkBytes, o.Workers, o.MaxBlock)
	if blocks == 0 {
		return nil, fmt.Errorf("staging buffer of %d bytes is too small: at least %d are needed", o.ChunkBytes, uint64(MinChunk))
	}
	bytes := uint64(blocks) * block
	memory, free, err := hostmem.Pages(bytes, o.NUMANode)
	if err != nil {
		return nil, &MemoryError{Bytes: bytes, Err: err}
	}
	if err := o.Register(unsafe.Pointer(&memory[0]), bytes); err != nil {
		err = fmt.Errorf("registering it: %w", err)
		return nil, &MemoryError{Bytes: bytes, Err: errors.Join(err, free())}
	}
	return &Staging{memory: memory, blockBytes: block, blocks: blocks, workers: workers, unregister: o.Unregister, free: free}, nil
}

// Block is the i-th block, 0 ≤ i < Blocks(). It begins at a multiple of 4096 and has exactly
// BlockBytes of length and capacity.
func (s *Staging) Block(i int) []byte {
	off := uint64(i) * s.blockBytes
	return s.memory[off : off+s.blockBytes : off+s.blockBytes]
}

// BlockBytes is the size of a block, a power of two.
func (s *Staging) BlockBytes() uint64 { return s.blockBytes }

// Blocks is how many blocks there are: at least two for each of Workers().
func (s *Staging) Blocks() int { return s.blocks }

// Workers is how many workers the chunk serves: what was asked for, or fewer.
func (s *Staging) Workers() int { return s.workers }

// Bytes is the size of the chunk: whole blocks, never more than Options.ChunkBytes.
func (s *Staging) Bytes() uint64 { return uint64(s.blocks) * s.blockBytes }

// Close unregisters and unmaps the chunk. No block may be in use. The memory is given back even
// when the driver refuses to unregister it. Idempotent.
func (s *Staging) Close() error {
	if s.memory == nil {
		return nil
	}
	err := s.unregister(unsafe.Pointer(&s.memory[0]))
	if err != nil {
		err = fmt.Errorf("staging buffer: unregistering %d bytes: %w", len(s.memory), err)
	}
	s.memory = nil
	return errors.Join(err, s.free())
}
