package engine

import (
	"fmt"
	"slices"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/ebb-offload/ebb/internal/alloc"
	"github.com/ebb-offload/ebb/internal/device"
	"github.com/ebb-offload/ebb/internal/hostmem"
	"github.com/ebb-offload/ebb/internal/sizes"
	"github.com/ebb-offload/ebb/internal/store"
)

// hostMemory is the host memory that backups lie in. Plain torch_memory_saver callers get memory
// per allocation, as the driver gives it; with an arena it is taken once and kept.
type hostMemory struct {
	mu     sync.Mutex // guards the fields below; held while the arena is made
	arena  *hostmem.Arena
	none   bool   // disk backups take no more of it now; see goWithoutHost
	said   bool   // that they went without
	asked  bool   // budget was set
	budget uint64 // bytes of host memory for disk backups
	why    string // how it was chosen; "": it was given
}

// allocArena takes host memory from the arena, which is made at the first call. It is registered
// with the driver piece by piece, in the background: while one piece is registered, the one before
// is copied to.
func (e *Engine) allocArena(size uint64) (store.Extent, error) {
	arena, err := e.hostArena()
	if err != nil {
		return nil, err
	}
	return arena.Alloc(size)
}

func (e *Engine) hostArena() (*hostmem.Arena, error) {
	dev := e.anyDevice()
	e.host.mu.Lock()
	defer e.host.mu.Unlock()
	if e.host.arena != nil {
		return e.host.arena, nil
	}
	arena, err := hostmem.New(hostmem.Options{
		BlockBytes: e.block, PieceBytes: e.pieceBytes(), NUMANode: e.drv.NUMANode(dev),
		Register: func(p unsafe.Pointer, n uint64) error {
			e.background.RLock()
			defer e.background.RUnlock()
			return e.take(dev, func() error { return e.drv.HostRegister(p, n) }, func() error { return e.drv.HostUnregister(p) })
		},
		Unregister: func(p unsafe.Pointer) error {
			return e.giveBack(dev, func() error { return e.drv.HostUnregister(p) })
		},
	})
	if err != nil {
		return nil, err
	}
	e.host.arena = arena
	return arena, nil
}

// pieceBytes is the size of the arena's pieces: of a budget that was given, small ones, so that a
// last one that is used in part is not much of it. 0: the arena's choice.
func (e *Engine) pieceBytes() uint64 {
	const largest = 128 << 20
	if e.config.HostAuto || e.config.HostBytes == 0 {
		return 0
	}
	piece := max(e.block, 2<<20)
	for piece < largest && piece*2 <= e.config.HostBytes/4 {
		piece *= 2
	}
	return piece
}

// allocPinned takes pinned host memory from the driver, for all contexts: users of the backup pointer ask the
// runtime about it (cudaHostGetFlags). Whether the host has it is the caller's to ask.
func (e *Engine) allocPinned(size uint64) ([]byte, func() error, error) {
	dev := e.anyDevice()
	var p unsafe.Pointer
	err := e.take(dev, func() (err error) {
		p, err = e.drv.HostAlloc(size)
		return err
	}, func() error { return e.drv.HostFree(p) })
	if device.IsOutOfMemory(err) {
		return nil, nil, fmt.Errorf("%w: pin %d bytes: %w", hostmem.ErrMemory, size, err)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("pin %d bytes of host memory: %w", size, err)
	}
	free := func() error { return e.giveBack(dev, func() error { return e.drv.HostFree(p) }) }
	memory := unsafe.Slice((*byte)(p), size)
	_ = unix.Madvise(memory, unix.MADV_DONTDUMP) // where the driver's mapping allows it: the actor's bytes are in no core dump
	return memory, free, nil
}

// allocPages takes plain host memory, near the device.
func (e *Engine) allocPages(size uint64) ([]byte, func() error, error) {
	return hostmem.Pages(size, e.drv.NUMANode(e.anyDevice()))
}

// extents makes extents of what an allocator of plain memory gives.
func extents(take func(size uint64) ([]byte, func() error, error)) func(uint64) (store.Extent, error) {
	return func(size uint64) (store.Extent, error) {
		memory, free, err := take(size)
		if err != nil {
			return nil, err
		}
		return store.Plain(memory, free), nil
	}
}

// checkHost refuses CPU backups that the host has no memory for, before any is taken. Of plain pages
// the host is asked as they are taken.
func (e *Engine) checkHost(set []*alloc.Allocation) error {
	var sum uint64
	for _, a := range set {
		if a.Backup == alloc.BackupCPU && (e.config.HostArena || !a.Mmap) && e.backings.find(a) == nil {
			sum += a.Size
		}
	}
	if sum == 0 {
		return nil
	}
	if e.config.HostArena {
		arena, err := e.hostArena()
		if err != nil {
			return err
		}
		u := arena.Usage()
		if sum -= min(sum, u.Held-min(u.Held, u.Used)); sum == 0 {
			return nil
		}
	}
	return hostmem.Check(sum)
}

// hostBudget is how much host memory disk backups may take. Where the engine is to choose, it does
// so once, before it has taken any, and says why.
func (e *Engine) hostBudget() uint64 {
	e.host.mu.Lock()
	defer e.host.mu.Unlock()
	if e.host.none {
		return 0
	}
	if e.host.asked {
		return e.host.budget
	}
	e.host.asked = true
	if !e.config.HostAuto {
		e.host.budget = e.config.HostBytes
		if 0 < e.host.budget && e.host.budget < e.block {
			e.log.Printf("host memory for disk backups: %s is less than a block of %s, so all goes to disk: allow more (--offload-train-host-mb, EBB_HOST_MB)",
				sizes.Binary(e.host.budget), sizes.Binary(e.block))
		}
		return e.host.budget
	}
	ranks := e.config.LocalRanks
	if ranks == 0 {
		ranks, _ = e.drv.DeviceCount()
	}
	verdict, err := hostmem.Budget(ranks)
	if err != nil {
		e.host.why = err.Error()
		e.log.Printf("host memory for disk backups: none, its size cannot be found out: %v", err)
		return 0
	}
	e.host.budget, e.host.why = verdict.Bytes, verdict.String()
	e.log.Printf("host memory for disk backups, before the disk: %s", e.host.why)
	return e.host.budget
}

// goWithoutHost has disk backups take no more host memory until goWithHost, since a pause of the set failed with err
// for want of it: it was promised, as the host has it, and then could not be brought in or pinned.
func (e *Engine) goWithoutHost(set []*alloc.Allocation, err error) {
	e.host.mu.Lock()
	defer e.host.mu.Unlock()
	e.host.none = true
	onDisk := func(a *alloc.Allocation) bool { return a.Backup == alloc.BackupDisk }
	if e.host.said || e.host.budget == 0 || !slices.ContainsFunc(set, onDisk) {
		return
	}
	e.host.said = true
	e.log.Printf("host memory within the budget for disk backups cannot be had, and they go to disk instead: %v (a smaller budget spares the attempt: --offload-train-host-mb, EBB_HOST_MB)", err)
}

// goWithHost ends what goWithoutHost began.
func (e *Engine) goWithHost() {
	e.host.mu.Lock()
	defer e.host.mu.Unlock()
	e.host.none = false
}

// HostStatus is the host memory of backups.
type HostStatus struct {
	Bytes     uint64 `json:"bytes"`        // that backups use
	Held      uint64 `json:"held_bytes"`   // kept between pauses, used or not
	Budget    uint64 `json:"budget_bytes"` // for disk backups
	BudgetWhy string `json:"budget_why,omitempty"`
}

func (e *Engine) hostStatus() HostStatus {
	e.host.mu.Lock()
	defer e.host.mu.Unlock()
	s := HostStatus{Budget: e.host.budget, BudgetWhy: e.host.why}
	if e.host.arena != nil {
		s.Held = e.host.arena.Usage().Held
	}
	for _, st := range e.backings.stores() {
		s.Bytes += st.Usage().HostBytes
	}
	return s
}
