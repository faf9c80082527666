package engine

import (
	"github.com/ebb-offload/ebb/internal/alloc"
	"github.com/ebb-offload/ebb/internal/store"
)

// placed is where paused bytes are.
type placed struct {
	host, files uint64
	skipped     uint64 // in neither: all zero, or not needed
}

// placedByTag says of each tag where its paused bytes are. Memory without backup has none.
func (e *Engine) placedByTag() map[string]placed {
	byTag := map[string]placed{}
	for _, a := range e.table.All() {
		if s := e.table.State(a); a.Backup == alloc.BackupNone || s == alloc.Active || s == alloc.Pausing {
			continue
		}
		backing := e.backings.find(a)
		if backing == nil { // freed meanwhile
			continue
		}
		p := byTag[a.Tag]
		stored := uint64(0)
		for off := uint64(0); off < a.Size; off += e.block {
			n := min(e.block, a.Size-off)
			switch backing.Block(off).State {
			case store.Stored:
				stored += n
			case store.Zero, store.Dead:
				p.skipped += n
			}
		}
		backing.Places(func(off uint64, b store.Block, _, _ string, _ int64) {
			if b.State == store.Stored {
				n := min(e.block, a.Size-off)
				p.files += n
				stored -= n
			}
		})
		p.host += stored
		byTag[a.Tag] = p
	}
	return byTag
}
