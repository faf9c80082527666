package engine

import (
	"errors"
	"fmt"
	"sync"
	"unsafe"

	"github.com/ebb-offload/ebb/internal/alloc"
	"github.com/ebb-offload/ebb/internal/device"
	"github.com/ebb-offload/ebb/internal/filesys"
	"github.com/ebb-offload/ebb/internal/mem"
	"github.com/ebb-offload/ebb/internal/store"
)

// backings says which backing holds which allocation. A backing is opened at the first pause of
// its allocation and released with it.
type backings struct {
	files  *store.Store
	pinned *store.Store // host memory that devices reach
	mmap   *store.Store // plain host memory; with an arena the same store

	mu   sync.Mutex
	byID map[uint64]store.Backing // by allocation ID

	// exposed are the allocations whose host memory the program was shown, and may write to as long as
	// the backing lives: what an entry says of it is true only while the allocation is paused.
	exposed map[uint64]bool // nil: none yet
}

// open returns the allocation's backing with its room taken, and whether it was made now. What it
// holds of earlier pauses stays. When that fails, a backing made now is released again.
func (b *backings) open(a *alloc.Allocation) (backing store.Backing, fresh bool, err error) {
	backing, fresh, err = b.get(a)
	if err != nil {
		return nil, false, err
	}
	if err := backing.Reserve(); err != nil {
		if fresh {
			err = filesys.Also(err, b.release(a))
		}
		return nil, false, err
	}
	return backing, fresh, nil
}

// begin begins an operation: disks that gave no answer in the one before are tried again. The
// function that it returns ends the operation.
func (b *backings) begin() (end func()) {
	for _, s := range b.stores() {
		s.Retry()
	}
	return b.rest
}

// rest closes what the stores keep open during an operation.
func (b *backings) rest() {
	for _, s := range b.stores() {
		s.Rest()
	}
}

// stores are the different stores.
func (b *backings) stores() []*store.Store {
	if b.mmap == b.pinned {
		return []*store.Store{b.files, b.pinned}
	}
	return []*store.Store{b.files, b.pinned, b.mmap}
}

func (b *backings) get(a *alloc.Allocation) (backing store.Backing, fresh bool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if backing := b.byID[a.ID]; backing != nil {
		return backing, false, nil
	}
	s := b.files
	if a.Backup == alloc.BackupCPU {
		s = b.pinned
		if a.Mmap {
			s = b.mmap
		}
	}
	backing, err = s.Open(a.ID, a.Size)
	if err != nil {
		return nil, false, err
	}
	b.byID[a.ID] = backing
	return backing, true, nil
}

// find returns the allocation's backing, or nil.
func (b *backings) find(a *alloc.Allocation) store.Backing {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.byID[a.ID]
}

// expose notes that the program knows the allocation's host memory, and returns its backing; nil when
// there is none.
func (b *backings) expose(a *alloc.Allocation) store.Backing {
	b.mu.Lock()
	defer b.mu.Unlock()
	backing := b.byID[a.ID]
	if backing != nil {
		if b.exposed == nil {
			b.exposed = map[uint64]bool{}
		}
		b.exposed[a.ID] = true
	}
	return backing
}

// distrust makes nothing known of the blocks of a backing that the program may have written to since it
// was last the copy of paused memory.
func (b *backings) distrust(a *alloc.Allocation, backing store.Backing, block uint64) {
	b.mu.Lock()
	exposed := b.exposed[a.ID]
	b.mu.Unlock()
	for off := uint64(0); exposed && off < a.Size; off += block {
		backing.Mark(off, store.Block{})
	}
}

// release gives up the allocation's backing, if it has one.
func (b *backings) release(a *alloc.Allocation) error {
	b.mu.Lock()
	backing := b.byID[a.ID]
	delete(b.byID, a.ID)
	delete(b.exposed, a.ID)
	b.mu.Unlock()
	if backing == nil {
		return nil
	}
	where := backing.Where(0)
	if err := backing.Release(); err != nil && !errors.Is(err, store.ErrClosed) && !device.IsCode(err, device.CodeDeinitialized) {
		return fmt.Errorf("release the backup of %v (%s): %w", a, where, err)
	}
	return nil
}

// BackupPointer returns the host copy of [addr, addr+size) of memory with CPU backup: while it
// is paused, and afterwards while backups are retained. The caller must not write to it while the memory
// is paused. What it writes at other times is overwritten by the next pause, which takes nothing in the
// copy for granted.
func (e *Engine) BackupPointer(addr mem.Addr, size uint64) (unsafe.Pointer, error) {
	a, _, err := e.table.Hold(addr, size) // a free waits
	if err != nil && e.table.MappingAt(addr) != nil {
		return nil, fmt.Errorf("%w: the %d bytes at %v are not in one allocation, whose backup is one piece", ErrState, size, addr)
	}
	if err != nil {
		return nil, fmt.Errorf("backup pointer of %d bytes at %v: %w", size, addr, err)
	}
	defer e.table.Unhold(a)
	if a.Backup != alloc.BackupCPU {
		return nil, fmt.Errorf("%w: %v has backup %v, not cpu", ErrState, a, a.Backup)
	}
	backing := e.backings.expose(a)
	if backing == nil {
		return nil, fmt.Errorf("%w: %v has no backup now: it is not paused, and none was retained", ErrState, a)
	}
	off, _ := e.table.Place(addr)
	p, err := backing.Pointer(off)
	if err != nil {
		return nil, fmt.Errorf("%w: backup of %v: %w", ErrState, a, err)
	}
	return p, nil
}
