package engine

import (
	"cmp"
	"errors"
	"slices"
	"sync"

	"github.com/ebb-offload/ebb/internal/alloc"
	"github.com/ebb-offload/ebb/internal/parked"
	"github.com/ebb-offload/ebb/internal/rankdir"
	"github.com/ebb-offload/ebb/internal/store"
)

// parkedMaps are the maps by which the files of paused memory can be checked from outside: one beside
// each lease, none without a launcher. They are written at the end of a pause and removed at the end
// of a resume. They are no part of what is kept: one that cannot be written is told, and the pause is
// as good.
type parkedMaps struct {
	mu     sync.Mutex // guards the fields below; held while maps are written
	paused map[uint64]*alloc.Allocation
	place  map[uint64]int // in the maps that are there, by ID
	maps   []parkedMap
}

// parkedMap is the map of one disk directory.
type parkedMap struct {
	dir  string // of the rank
	rank string // its name
	file *parked.File
}

// makeParked notes where the maps go.
func (e *Engine) makeParked() {
	e.parked.paused = map[uint64]*alloc.Allocation{}
	if e.config.Lease == "" {
		return
	}
	for _, path := range append([]string{e.config.Lease}, e.config.MoreLeases...) {
		if base, id, ok := rankdir.OfLease(path); ok {
			e.parked.maps = append(e.parked.maps, parkedMap{
				dir: id.Path(base), rank: id.Path(""), file: parked.NewFile(e.backings.files.System(), path, e.self),
			})
		}
	}
}

// mapPaused writes the maps after a pause of a set.
func (e *Engine) mapPaused(set []*alloc.Allocation) {
	p := &e.parked
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, a := range set {
		if a.Backup == alloc.BackupDisk {
			p.paused[a.ID] = a
		}
	}
	e.writeMaps()
}

// mapResumed removes the maps after a resume of a set, or writes what is still paused. Called before
// anything of the set can be paused, and its files be written, again.
func (e *Engine) mapResumed(set []*alloc.Allocation) {
	p := &e.parked
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, a := range set {
		delete(p.paused, a.ID)
	}
	e.writeMaps()
}

// mapFreed crosses out memory that was freed, before its files go.
func (e *Engine) mapFreed(a *alloc.Allocation) {
	p := &e.parked
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.paused, a.ID)
	i, mapped := p.place[a.ID]
	if !mapped {
		return
	}
	delete(p.place, a.ID)
	for _, m := range p.maps {
		if len(p.paused) == 0 {
			e.sayError(m.file.Remove())
			continue
		}
		e.sayError(m.file.Free(i))
	}
}

// removeMaps removes the maps when the process ends, and tells of each how that went.
func (e *Engine) removeMaps(tell func(what string, err error)) {
	e.parked.mu.Lock()
	defer e.parked.mu.Unlock()
	for _, m := range e.parked.maps {
		tell("exit", m.file.Remove())
	}
}

// writeMaps makes the maps say what is paused. Called with parked.mu held.
func (e *Engine) writeMaps() {
	p := &e.parked
	p.place = map[uint64]int{}
	list := make([]*alloc.Allocation, 0, len(p.paused))
	for _, a := range p.paused {
		list = append(list, a)
	}
	slices.SortFunc(list, func(a, b *alloc.Allocation) int { return cmp.Compare(a.ID, b.ID) })
	for i, a := range list {
		p.place[a.ID] = i
	}
	maps := e.parkedNow(list)
	for i, m := range p.maps {
		if len(list) == 0 {
			e.sayError(m.file.Remove())
			continue
		}
		e.sayError(m.file.Write(maps[i]))
	}
}

// parkedNow is what the maps say of paused memory.
func (e *Engine) parkedNow(list []*alloc.Allocation) []*parked.Map {
	p := &e.parked
	maps := make([]*parked.Map, len(p.maps))
	number := map[string]int{} // by directory
	for i, m := range p.maps {
		maps[i] = &parked.Map{Rank: m.rank, Owner: e.self, Key: e.hash.key.Bytes(), Allocations: make([]parked.Allocation, len(list))}
		number[m.dir] = i
	}
	if len(maps) == 0 {
		return nil
	}
	for n, a := range list {
		for i := range maps {
			maps[i].Allocations[n] = parked.Allocation{ID: a.ID, Address: uint64(a.Address()), Size: a.Size, Tag: a.Tag}
		}
		backing := e.backings.find(a)
		if backing == nil {
			continue
		}
		maps[0].Allocations[n].Host = backing.Places(func(off uint64, b store.Block, dir, file string, at int64) {
			i, ours := number[dir]
			if !ours || b.State == store.Absent {
				return
			}
			block := parked.Block{Offset: off, Bytes: min(e.block, a.Size-off), At: uint64(at), Known: b.Known, Sum: b.Sum}
			switch b.State {
			case store.Zero:
				block.State = parked.Zero
			case store.Dead:
				block.State = parked.Dead
			}
			to := &maps[i].Allocations[n]
			to.File = file
			to.Blocks = append(to.Blocks, block)
		})
	}
	return maps
}

// sayError logs an error that stops nobody, once.
func (e *Engine) sayError(err error) {
	if err != nil && !errors.Is(err, store.ErrClosed) {
		e.sayOnce(err.Error())
	}
}
