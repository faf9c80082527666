// Package plan decides what moves where in a pause or a resume: pure functions from a list of
// allocations to the blocks that move. It knows no driver, no file and no lock.
package plan

import "sort"

// Target is where the bytes of an allocation go.
type Target uint8

// Targets.
const (
	Discard Target = iota // nowhere
	Host
	Disk
)

// Item is one allocation as the plan sees it.
type Item struct {
	Size   uint64 // logical bytes
	Target Target
}

// Block is Length bytes at Offset of items[Item]. Offset is a multiple of the block size and only
// the last block of an item is shorter.
type Block struct {
	Item           int
	Offset, Length uint64
	Target         Target // of its item
}

// Blocks are the blocks of all items that are kept, numbered in the order of the items. It holds a
// number for each item, not for each block.
type Blocks struct {
	items []Item
	size  uint64
	ends  []int // ends[i]: number of blocks of items[:i+1]
}

// Cut cuts items into blocks of at most blockBytes, which must not be 0. Discarded items have none.
func Cut(items []Item, blockBytes uint64) Blocks {
	b := Blocks{items: items, size: blockBytes, ends: make([]int, len(items))}
	n := 0
	for i, it := range items {
		if it.Target != Discard {
			n += int((it.Size + blockBytes - 1) / blockBytes)
		}
		b.ends[i] = n
	}
	return b
}

// Len is the number of blocks.
func (b *Blocks) Len() int {
	if len(b.ends) == 0 {
		return 0
	}
	return b.ends[len(b.ends)-1]
}

// At is the n-th block, 0 ≤ n < Len().
func (b *Blocks) At(n int) Block {
	item := sort.SearchInts(b.ends, n+1)
	if item > 0 {
		n -= b.ends[item-1]
	}
	it := b.items[item]
	off := uint64(n) * b.size
	return Block{Item: item, Offset: off, Length: min(b.size, it.Size-off), Target: it.Target}
}

// Action is what becomes of a block.
type Action uint8

// Actions.
const (
	Move Action = iota // its bytes are copied
	Zero               // all its bytes are zero: that is noted, or they are set to zero
	Same               // its backup holds its bytes already
	Dead               // nobody needs its bytes
)

// Facts are what is known of a block that is to be paused.
type Facts struct {
	Zero   bool // all its bytes are zero
	Same   bool // its backup holds the same bytes
	Unused bool // its owner said that the bytes are not needed
}

// Pause decides about one block. Zeros come first, since they cost nothing and are right whatever
// else is known; bytes that nobody needs are not worth reading back, even where they are stored.
func Pause(f Facts) Action {
	switch {
	case f.Zero:
		return Zero
	case f.Unused:
		return Dead
	case f.Same:
		return Same
	default:
		return Move
	}
}

// Plan is what one operation does with its blocks. It holds one byte for each block, and one small
// number for each that is worked on.
type Plan struct {
	Host []int32 // numbers of the blocks for the queue of host memory, in order
	Disk []int32 // numbers of the blocks for the queue of files, in order

	HostBytes, DiskBytes            uint64 // to move, by target
	ZeroBytes, SameBytes, DeadBytes uint64 // of the other blocks

	actions []Action // by number of the block
	worked  []bool   // the same: it is in a queue
}

// New is a plan for n blocks, without any.
func New(n int) Plan { return Plan{actions: make([]Action, n), worked: make([]bool, n)} }

// Action is what becomes of block n.
func (p *Plan) Action(n int) Action { return p.actions[n] }

// Worked reports whether block n is in a queue.
func (p *Plan) Worked(n int) bool { return p.worked[n] }

// Add enters block n. target is where its bytes are: what is on disk and what is not has queues of
// its own, so that both move at the same time. A zero block is in a queue only where its memory has
// to be set to zero (set), on whichever side.
func (p *Plan) Add(n int, b Block, a Action, target Target, set bool) {
	p.actions[n], p.worked[n] = a, a == Move || a == Zero && set
	switch {
	case a == Move && target == Disk:
		p.Disk = append(p.Disk, int32(n))
		p.DiskBytes += b.Length
	case a == Move:
		p.Host = append(p.Host, int32(n))
		p.HostBytes += b.Length
	case a == Zero:
		if set {
			p.Host = append(p.Host, int32(n))
		}
		p.ZeroBytes += b.Length
	case a == Same:
		p.SameBytes += b.Length
	case a == Dead:
		p.DeadBytes += b.Length
	}
}

// Again begins new queues, for blocks that turned out to have changed.
func (p *Plan) Again() { p.Host, p.Disk = nil, nil }

// Move enters block n in the new queues, whatever was decided about it before. Bytes that move
// twice count twice.
func (p *Plan) Move(n int, b Block, target Target) {
	switch p.actions[n] {
	case Zero:
		p.ZeroBytes -= b.Length
	case Same:
		p.SameBytes -= b.Length
	case Dead:
		p.DeadBytes -= b.Length
	}
	p.Add(n, b, Move, target, false)
}
