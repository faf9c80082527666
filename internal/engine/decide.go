package engine

import (
	"sync"

	"github.com/ebb-offload/ebb/internal/alloc"
	"github.com/ebb-offload/ebb/internal/fingerprint"
	"github.com/ebb-offload/ebb/internal/pipeline"
	"github.com/ebb-offload/ebb/internal/plan"
	"github.com/ebb-offload/ebb/internal/store"
)

// What becomes of each block of a pause is decided by its hash. A disk takes hundreds of times as long as the hashing of
// all memory. A link to host memory takes fifty times as long, so there blocks are moved as soon as they are
// decided about, while others are still hashed.

// saveOnce hashes all device memory, decides about each block, and moves those that are to move.
func (e *Engine) saveOnce(t *transfer, unused plan.Ranges) error {
	if way, ok := e.canMoveWhileHashing(t); ok {
		return e.moveWhileHashing(t, unused, way)
	}
	if err := e.decide(t, unused, func(int) {}); err != nil {
		return err
	}
	return e.run(t, pipeline.Store)
}

// decide hashes all device memory and enters what becomes of each block in the plan; then it tells (decided). Blocks that
// do not move get their new entries here, with the fingerprint that their memory has.
func (e *Engine) decide(t *transfer, unused plan.Ranges, decided func(n int)) error {
	defer t.phases.done(&t.phases.Hash)
	for n := range t.blocks.Len() {
		if b := t.blocks.At(n); !t.hashed(b) {
			t.plan.Add(n, b, plan.Move, t.target(b), false)
			decided(n)
		}
	}
	return e.hashBlocks(t, everyBlock, func(n int, sum fingerprint.Sum, zero bool) {
		b := t.blocks.At(n)
		backing, was, target := t.held[b.Item], t.entry(b), t.target(b)
		action := plan.Pause(plan.Facts{
			Zero:   zero,
			Same:   was.State == store.Stored && was.Known && was.Sum == sum,
			Unused: t.unused(b, &unused),
		})
		clear := false
		switch action {
		case plan.Zero:
			t.zero.set(b.Length, sum)
			// Its host memory has to be cleared, which is for the workers.
			if clear = target == plan.Host && was.State != store.Zero; !clear {
				backing.Mark(b.Offset, store.Block{State: store.Zero, Sum: sum, Known: true})
			}
		case plan.Dead:
			backing.Mark(b.Offset, store.Block{State: store.Dead, Sum: sum, Known: true})
		}
		t.plan.Add(n, b, action, target, clear)
		decided(n)
	})
}

// canMoveWhileHashing reports whether all of a transfer goes to host memory that devices reach, in a way that is known, and
// whether all of it is hashed on devices.
func (e *Engine) canMoveWhileHashing(t *transfer) (way pipeline.Way, ok bool) {
	if e.pool == nil || t.fresh || t.blocks.Len() == 0 {
		return way, false
	}
	var bytes uint64
	for i, a := range t.set {
		if t.held[i] == nil {
			continue
		}
		if a.Backup != alloc.BackupCPU || !t.kernel[a.Device] || !t.held[i].Direct(0) {
			return way, false
		}
		bytes += a.Size
	}
	return e.tuned(&tuning{Direction: "pause", BlockBytes: pipeline.SizeClass(bytes, t.blocks.Len())})
}

// moveWhileHashing is decide and run at the same time.
func (e *Engine) moveWhileHashing(t *transfer, unused plan.Ranges, way pipeline.Way) (err error) {
	if err := e.repin(); err != nil {
		return err
	}
	known := newDecided(t.blocks.Len())
	work := pipeline.Work{Moved: &t.moved, Host: pipeline.Moves{
		Len: t.blocks.Len(),
		At: func(n int) pipeline.Move {
			if known.by(n) {
				return t.move(n)
			}
			return t.block(n)
		},
		Skip: func(n int, wait bool) (skip, is bool) {
			if is = known.by(n) || wait && known.wait(n); is {
				skip = !t.plan.Worked(n)
			}
			return skip, is
		},
	}}
	moved := make(chan error)
	go func() {
		moved <- guarded(0, func(int) error {
			if !known.any() { // no workers, and nothing that they take of devices
				return nil
			}
			used, err := e.pool.Run(pipeline.Store, work, way)
			t.workers = max(t.workers, used.Workers)
			return err
		})
	}()
	whole := false
	wait := sync.OnceValue(func() error {
		known.end(whole)
		return <-moved
	})
	defer func() { // also when hashing fails: nothing may be moved any more when this returns
		if e2 := wait(); err == nil {
			err = e2
		}
		t.phases.done(&t.phases.Move)
	}()
	if err := e.decide(t, unused, func(n int) { known.add(n, t.plan.Worked(n)) }); err != nil {
		return err
	}
	whole = true
	defer e.progress(t)()
	return wait()
}

// decided is which blocks were decided about. What is read of such a block in the plan was written before.
type decided struct {
	mu   sync.Mutex // guards the fields below
	more *sync.Cond
	is   []bool // by number of the block
	some bool   // one of them is in a queue
	over bool   // no more will be
	void bool   // the pause fails: none counts

	last   []int // decided about, and not told yet; of the goroutine that calls add and end, as worked is
	worked bool  // one of last is in a queue
}

// tellAt is how many blocks are told of at once: a batch and more, so that workers copy neighbours together.
const tellAt = 64

func newDecided(blocks int) *decided {
	d := &decided{is: make([]bool, blocks)}
	d.more = sync.NewCond(&d.mu)
	return d
}

func (d *decided) add(n int, worked bool) {
	d.worked = d.worked || worked
	if d.last = append(d.last, n); len(d.last) >= tellAt {
		d.tell(false)
	}
}

// end: no more will be decided. Unless all were (whole), none is to be moved any more.
func (d *decided) end(whole bool) {
	d.mu.Lock()
	d.void = !whole
	d.mu.Unlock()
	d.tell(true)
}

func (d *decided) tell(over bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, n := range d.last {
		d.is[n] = true
	}
	d.last, d.some = d.last[:0], d.some || d.worked
	d.over = over
	d.more.Broadcast()
}

// any waits until a block is in a queue, and reports whether there is one.
func (d *decided) any() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for !d.some && !d.over {
		d.more.Wait()
	}
	return d.some && !d.void
}

// by reports whether block n was decided about by now.
func (d *decided) by(n int) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.is[n] && !d.void
}

// wait is by, when that is certain.
func (d *decided) wait(n int) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for !d.is[n] && !d.over {
		d.more.Wait()
	}
	return d.is[n] && !d.void
}

// zeroSums are the fingerprints of blocks of zeros, by length.
type zeroSums struct {
	mu sync.Mutex // guards of
	of map[uint64]fingerprint.Sum
}

func (z *zeroSums) set(length uint64, s fingerprint.Sum) {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.of[length] = s
}

func (z *zeroSums) get(length uint64) fingerprint.Sum {
	z.mu.Lock()
	defer z.mu.Unlock()
	return z.of[length]
}
