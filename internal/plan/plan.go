// Package plan decides what moves where in a pause or a resume: pure functions from a list of
// allocations to a list of block moves. It knows no driver, no file and no lock.
package plan

import "sort"

// Target is where the bytes of an allocation go.
type Target int

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

// Move is one block: Length bytes at Offset of items[Item]. Offset is a multiple of the block
// size and only the last block of an item is shorter.
type Move struct {
	Item           int
	Offset, Length uint64
	Target         Target
}

// Plan is the moves of one operation, in the order in which they are begun. It holds a number
// for each item, not for each move, so that its size does not grow with that of the items.
type Plan struct {
	Bytes     uint64 // logical bytes of all items
	HostBytes uint64 // bytes of the moves by target
	DiskBytes uint64

	items []Item
	block uint64
	ends  []int // ends[i]: number of moves of items[:i+1]
}

// Blocks cuts items into moves of at most blockBytes. The items keep their order, so that a
// file is written front to back; discarded items make no moves. blockBytes must not be 0.
func Blocks(items []Item, blockBytes uint64) Plan {
	p := Plan{items: items, block: blockBytes, ends: make([]int, len(items))}
	moves := 0
	for i, it := range items {
		p.Bytes += it.Size
		switch it.Target {
		case Host:
			p.HostBytes += it.Size
		case Disk:
			p.DiskBytes += it.Size
		}
		if it.Target != Discard {
			moves += int((it.Size + blockBytes - 1) / blockBytes)
		}
		p.ends[i] = moves
	}
	return p
}

// Moves is the number of moves.
func (p *Plan) Moves() int {
	if len(p.ends) == 0 {
		return 0
	}
	return p.ends[len(p.ends)-1]
}

// Move is the n-th move, 0 ≤ n < Moves().
func (p *Plan) Move(n int) Move {
	item := sort.SearchInts(p.ends, n+1)
	if item > 0 {
		n -= p.ends[item-1]
	}
	it := p.items[item]
	off := uint64(n) * p.block
	return Move{Item: item, Offset: off, Length: min(p.block, it.Size-off), Target: it.Target}
}
