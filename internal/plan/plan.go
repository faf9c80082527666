// Package plan decides what moves where in a pause or a resume: pure functions from a list of
// allocations to a list of block moves. It knows no driver, no file and no lock.
package plan

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

// Plan is the moves of one operation in the order in which they are begun.
type Plan struct {
	Moves     []Move
	Bytes     uint64 // logical bytes of all items
	HostBytes uint64 // bytes of the moves by target
	DiskBytes uint64
}

// Blocks cuts items into moves of at most blockBytes. The items keep their order, so that a
// file is written front to back; discarded items make no moves. blockBytes must not be 0.
func Blocks(items []Item, blockBytes uint64) Plan {
	var p Plan
	for i, it := range items {
		p.Bytes += it.Size
		switch it.Target {
		case Discard:
			continue
		case Host:
			p.HostBytes += it.Size
		case Disk:
			p.DiskBytes += it.Size
		}
		for off := uint64(0); off < it.Size; off += blockBytes {
			p.Moves = append(p.Moves, Move{Item: i, Offset: off, Length: min(blockBytes, it.Size-off), Target: it.Target})
		}
	}
	return p
}
