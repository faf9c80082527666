package store

import (
	"fmt"
	"sync/atomic"
)

// blockState is what a backing holds of one block.
type blockState uint32

const (
	absent blockState = iota // nothing that may be read
	stored                   // the bytes of the last write that returned without an error
)

// blockEntry is what the map knows about one block. It is a struct so that what else becomes
// known about a block has its place here.
type blockEntry struct {
	state atomic.Uint32 // blockState
}

// blockMap says per block what a backing holds. It may be used from many goroutines at once
// for different blocks.
//
// The rule that keeps it true: overwrite comes before the first byte of a write, written after
// the last one arrived. A write that fails in between leaves the block absent.
type blockMap struct {
	size  uint64 // bytes of the allocation
	block uint64 // bytes of every block but the last
	entry []blockEntry
}

func newBlockMap(size, block uint64) blockMap {
	n := size / block
	if size%block != 0 {
		n++
	}
	return blockMap{size: size, block: block, entry: make([]blockEntry, n)}
}

// check says whether [off, off+n) is exactly one block.
func (m *blockMap) check(off, n uint64) error {
	if off%m.block != 0 || off >= m.size {
		return fmt.Errorf("no block begins at offset %d: size %d, block size %d", off, m.size, m.block)
	}
	if want := min(m.block, m.size-off); n != want {
		return fmt.Errorf("the block at offset %d has %d bytes, not %d", off, want, n)
	}
	return nil
}

func (m *blockMap) at(off uint64) *blockEntry { return &m.entry[off/m.block] }

func (m *blockMap) overwrite(off uint64) { m.at(off).state.Store(uint32(absent)) }

func (m *blockMap) written(off uint64) { m.at(off).state.Store(uint32(stored)) }

func (m *blockMap) isStored(off uint64) bool { return blockState(m.at(off).state.Load()) == stored }

// forget sets all blocks to absent.
func (m *blockMap) forget() {
	for i := range m.entry {
		m.entry[i].state.Store(uint32(absent))
	}
}

// firstAbsent returns the offset of the first block that is not stored.
func (m *blockMap) firstAbsent() (off uint64, found bool) {
	for i := range m.entry {
		if blockState(m.entry[i].state.Load()) != stored {
			return uint64(i) * m.block, true
		}
	}
	return 0, false
}

// anyStored reports whether at least one block is stored.
func (m *blockMap) anyStored() bool {
	for i := range m.entry {
		if blockState(m.entry[i].state.Load()) == stored {
			return true
		}
	}
	return false
}
