package engine

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/ebb-offload/ebb/internal/alloc"
	"github.com/ebb-offload/ebb/internal/fingerprint"
	"github.com/ebb-offload/ebb/internal/mem"
	"github.com/ebb-offload/ebb/internal/pipeline"
	"github.com/ebb-offload/ebb/internal/plan"
	"github.com/ebb-offload/ebb/internal/store"
)

// transfer is the memory of one pause or resume, cut into blocks, and what is done with them. What
// is known of each block is in its backing: the entry there has the fingerprint that the device
// memory of the block must have.
type transfer struct {
	set    []*alloc.Allocation
	held   []store.Backing // by allocation; nil: without backup
	blocks plan.Blocks
	plan   plan.Plan

	kernel  map[int]bool // by device: ebb's kernel is there, for this transfer
	fresh   bool         // room for bytes was taken a moment ago, and may still be made
	phases  *watch       // of the operation
	reach   []reach      // by allocation, of a resume; nil: all is mapped
	zero    zeroSums
	checked time.Duration  // waited for fingerprints
	moved   pipeline.Moved // by the workers so far
	workers int            // that moved blocks
}

func (e *Engine) newTransfer(set []*alloc.Allocation, held []store.Backing, p *watch) *transfer {
	items := make([]plan.Item, len(set))
	for i, a := range set {
		items[i] = plan.Item{Size: a.Size, Target: targets[a.Backup]}
	}
	t := &transfer{
		set: set, held: held, phases: p, blocks: plan.Cut(items, e.block),
		kernel: map[int]bool{}, zero: zeroSums{of: map[uint64]fingerprint.Sum{}},
	}
	t.plan = plan.New(t.blocks.Len())
	p.moved = &t.moved
	return t
}

var targets = map[alloc.Backup]plan.Target{
	alloc.BackupNone: plan.Discard,
	alloc.BackupCPU:  plan.Host,
	alloc.BackupDisk: plan.Disk,
}

// devices lists the devices of the blocks.
func (t *transfer) devices() []int {
	found := map[int]bool{}
	for i, a := range t.set {
		if t.held[i] != nil {
			found[a.Device] = true
		}
	}
	return slices.Sorted(maps.Keys(found))
}

// hashed reports whether the block's device hashes it.
func (t *transfer) hashed(b plan.Block) bool { return t.kernel[t.set[b.Item].Device] }

// addr is where the block is on its device.
func (t *transfer) addr(b plan.Block) mem.Addr { return t.set[b.Item].At() + mem.Addr(b.Offset) }

// unused reports whether all of the block is memory whose bytes its owner does not need. Memory that
// its owner mapped must be unused wherever it is mapped.
func (t *transfer) unused(b plan.Block, unused *plan.Ranges) bool {
	a := t.set[b.Item]
	if a.Kind != alloc.Object {
		return unused.Contain(a.Base+mem.Addr(b.Offset), b.Length)
	}
	found := false
	for _, m := range a.Mappings {
		switch end := b.Offset + b.Length; {
		case end <= m.Offset || m.Offset+m.Length <= b.Offset:
		case b.Offset < m.Offset || end > m.Offset+m.Length:
			return false
		case !unused.Contain(m.Addr+mem.Addr(b.Offset-m.Offset), b.Length):
			return false
		default:
			found = true
		}
	}
	return found
}

// entry is what the block's backing knows of it.
func (t *transfer) entry(b plan.Block) store.Block { return t.held[b.Item].Block(b.Offset) }

// target is where the block's bytes go or are, which for one allocation may be both.
func (t *transfer) target(b plan.Block) plan.Target {
	if b.Target == plan.Disk && t.held[b.Item].Direct(b.Offset) {
		return plan.Host
	}
	return b.Target
}

// move is block n for the workers, by the plan.
func (t *transfer) move(n int) pipeline.Move {
	m := t.block(n)
	if t.plan.Action(n) == plan.Zero {
		m.Zero, m.Sum = true, t.zero.get(m.Length)
	}
	return m
}

// block is move for a block of which is not known yet what becomes of it.
func (t *transfer) block(n int) pipeline.Move {
	b := t.blocks.At(n)
	a := t.set[b.Item]
	m := pipeline.Move{
		Of: a, Device: a.Device,
		Offset: b.Offset, Length: b.Length, Backing: t.held[b.Item], Kernel: t.hashed(b),
	}
	if t.reach == nil {
		m.Addr = t.addr(b)
	} else { // mapping decides where that is
		m.Reach = func() (mem.Addr, error) {
			if err := t.reach[b.Item].now(); err != nil {
				return 0, err
			}
			return t.addr(b), nil
		}
	}
	return m
}

// work is what the workers have to do by the plan, and the class of its blocks.
func (t *transfer) work() (w pipeline.Work, blockBytes uint64) {
	moves := func(list []int32) pipeline.Moves {
		return pipeline.Moves{Len: len(list), At: func(i int) pipeline.Move { return t.move(int(list[i])) }}
	}
	list := t.plan.Disk
	if len(list) == 0 {
		list = t.plan.Host
	}
	var bytes uint64
	for _, n := range list {
		b := t.blocks.At(int(n))
		bytes += b.Length
	}
	w = pipeline.Work{Host: moves(t.plan.Host), Disk: moves(t.plan.Disk), Moved: &t.moved}
	return w, pipeline.SizeClass(bytes, len(list))
}

// staged reports whether a block passes through the staging buffer, and of which device it is.
func (t *transfer) staged() (dev int, yes bool) {
	for _, list := range [][]int32{t.plan.Disk, t.plan.Host} {
		for _, n := range list {
			b := t.blocks.At(int(n))
			if t.plan.Action(int(n)) == plan.Move && !t.held[b.Item].Direct(b.Offset) {
				return t.set[b.Item].Device, true
			}
		}
	}
	return 0, false
}

// run has the workers do what the plan says, making them and their staging buffer first if they
// are needed and not there.
func (e *Engine) run(t *transfer, d pipeline.Direction) error {
	defer t.phases.done(&t.phases.Move)
	if len(t.plan.Host)+len(t.plan.Disk) == 0 {
		return nil
	}
	if err := e.repin(); err != nil {
		return err
	}
	if e.pool == nil {
		e.pool = pipeline.New(e.drv, pipeline.Options{
			Workers: e.workers, BlockBytes: e.block, Key: e.hash.key, Spare: e.spareBlock, Mismatch: func(m pipeline.Move) error { return corrupt(m) },
		})
	}
	if dev, staged := t.staged(); staged {
		if err := e.ensureStaging(dev); err != nil {
			return err
		}
	}
	defer e.progress(t)()
	work, blockBytes := t.work()
	// Host memory that is still being made says nothing about how fast it is.
	try := len(t.plan.Disk) > 0 || !t.fresh
	workers, err := e.runTuned(d, work, blockBytes, try)
	t.workers = max(t.workers, workers)
	return err
}

// reach maps an allocation once, when it is first needed.
type reach struct {
	once sync.Once
	call func() error
	err  error
}

func (r *reach) now() error {
	r.once.Do(func() { r.err = r.call() })
	return r.err
}

// result is what was moved and what was not.
func (t *transfer) result() Result {
	return Result{
		HostBytes: t.plan.HostBytes, DiskBytes: t.plan.DiskBytes,
		Phases: t.phases.Phases, SkippedZero: t.plan.ZeroBytes, SkippedSame: t.plan.SameBytes, SkippedUnused: t.plan.DeadBytes,
		Workers: t.workers, Checks: t.checked,
	}
}

// verify hashes the device memory of all blocks that want wants and that a kernel can hash, and lists those,
// by number, that do not hold what their entries say.
func (e *Engine) verify(t *transfer, want func(n int) bool) (wrong []int32, err error) {
	defer t.phases.done(&t.phases.Check)
	err = e.hashBlocks(t, want, func(n int, sum fingerprint.Sum, _ bool) {
		if entry := t.entry(t.blocks.At(n)); !entry.Known || entry.Sum != sum {
			wrong = append(wrong, int32(n))
		}
	})
	return wrong, err
}

// corrupt is the error of a block whose bytes are not those that were saved.
func corrupt(m pipeline.Move) *CorruptError {
	a, _ := m.Of.(*alloc.Allocation)
	return &CorruptError{Allocation: a, Offset: m.Offset, Bytes: m.Length, Where: m.Backing.Where(m.Offset)}
}

// CorruptError says that a backup does not hold the bytes that were saved.
type CorruptError struct {
	Allocation    *alloc.Allocation
	Offset, Bytes uint64 // of the block, in the allocation
	Where         string // "file /x/ebb-….bak (offset 4096)" or "host memory"
	More          int    // further blocks of which the same is true
}

func (e *CorruptError) Error() string {
	s := fmt.Sprintf("%v: the %d bytes at offset %d of %v came back from %s as others than were saved; the backup is kept, and the memory stays paused",
		ErrCorrupt, e.Bytes, e.Offset, e.Allocation, e.Where)
	if e.More > 0 {
		s += fmt.Sprintf(" (and %d more blocks)", e.More)
	}
	return s
}

// Unwrap makes errors.Is(err, ErrCorrupt) true.
func (e *CorruptError) Unwrap() error { return ErrCorrupt }

// WrittenError says which memory was written while it was being paused.
type WrittenError struct {
	Allocation    *alloc.Allocation
	Offset, Bytes uint64 // of the first such block, in the allocation
	Blocks        int    // that were written
}

func (e *WrittenError) Error() string {
	return fmt.Sprintf("%v: %d blocks changed again and again, the first is the %d bytes at offset %d of %v; nothing was paused: let the work that writes there finish first",
		ErrWritten, e.Blocks, e.Bytes, e.Offset, e.Allocation)
}

// Unwrap makes errors.Is(err, ErrWritten) true.
func (e *WrittenError) Unwrap() error { return ErrWritten }
