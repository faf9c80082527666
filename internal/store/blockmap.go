package store

import (
	"fmt"
	"sync/atomic"

	"github.com/ebb-offload/ebb/internal/fingerprint"
)

// BlockState is what a backing holds of one block.
type BlockState uint32

// States of a block.
const (
	Absent BlockState = iota // nothing that may be read
	Zero                     // all bytes are zero; none were written
	Stored                   // the bytes of the last write that returned without an error
	Dead                     // nobody needs the bytes; none were written
)

func (s BlockState) String() string {
	return [...]string{"absent", "zero", "stored", "dead"}[s]
}

// Block is what is known about one block.
type Block struct {
	State BlockState
	Sum   fingerprint.Sum // of the bytes
	Known bool            // Sum is known
}

// blockEntry is a block as the map keeps it. Calls for one block do not overlap, but those that
// forget all blocks may come at any time.
type blockEntry struct {
	sum   [2]atomic.Uint64
	state atomic.Uint32 // BlockState, and known
	place place
}

// place is where a block has its room.
type place struct {
	member int32 // index in backing.members, or inHost
	at     int64 // offset in the member's file, or in the host memory
}

const inHost = -1

func (p place) inHost() bool { return p.member == inHost }

// known in an entry's state: its sum is known.
const known = 1 << 31

func (e *blockEntry) get() (b Block) {
	state := e.state.Load()
	b.State, b.Known = BlockState(state&^known), state&known != 0
	if b.Known {
		b.Sum = fingerprint.Sum{e.sum[0].Load(), e.sum[1].Load()}
	}
	return b
}

func (e *blockEntry) set(b Block) {
	state := uint32(b.State)
	if b.Known {
		state |= known
		e.sum[0].Store(b.Sum[0])
		e.sum[1].Store(b.Sum[1])
	}
	e.state.Store(state)
}

// blockMap says per block what a backing holds. It may be used from many goroutines at once
// for different blocks.
//
// The rule that keeps it true: an entry is absent before the first byte of a write, and says
// what was written after the last one arrived. A write that fails in between leaves it absent.
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

// begins says whether a block begins at off.
func (m *blockMap) begins(off uint64) bool { return off%m.block == 0 && off < m.size }

// check says whether [off, off+n) is exactly one block.
func (m *blockMap) check(off, n uint64) error {
	if !m.begins(off) {
		return fmt.Errorf("no block begins at offset %d: size %d, block size %d", off, m.size, m.block)
	}
	if want := m.length(off); n != want {
		return fmt.Errorf("the block at offset %d has %d bytes, not %d", off, want, n)
	}
	return nil
}

// length is the number of bytes of the block at off.
func (m *blockMap) length(off uint64) uint64 { return min(m.block, m.size-off) }

func (m *blockMap) at(off uint64) *blockEntry { return &m.entry[off/m.block] }

// forget sets all blocks to absent.
func (m *blockMap) forget() {
	for i := range m.entry {
		m.entry[i].state.Store(uint32(Absent))
	}
}

// firstAbsent returns the offset of the first block that is absent.
func (m *blockMap) firstAbsent() (off uint64, found bool) {
	for i := range m.entry {
		if m.entry[i].get().State == Absent {
			return uint64(i) * m.block, true
		}
	}
	return 0, false
}

// anyStored reports whether at least one block is stored.
func (m *blockMap) anyStored() bool {
	for i := range m.entry {
		if m.entry[i].get().State == Stored {
			return true
		}
	}
	return false
}
