// Package pipeline carries blocks between device memory and backings. A fixed pool of workers,
// each on an OS thread of its own (and with a clerk without one, for files), takes blocks one after the other; a worker copies its next block
// on the device while it writes (or has the last one copied while it reads) the present one, through
// two staging blocks of its own. Memory is therefore bounded by the staging buffer. Blocks in host
// memory and blocks on disk have queues of their own, so that both move at the same time.
//
// The fingerprint of what is stored is that of the bytes that are saved: the kernel that copies them computes it
// (batch.go has a second way for host memory), or where there is none the CPU, of what arrived.
//
// Threads: one operation at a time (the engine's operation lock sees to it). Workers never
// touch the CUDA context of the actor's threads: they have their own, with capture mode relaxed.
package pipeline

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/ebb-offload/ebb/internal/device"
	"github.com/ebb-offload/ebb/internal/fingerprint"
	"github.com/ebb-offload/ebb/internal/mem"
	"github.com/ebb-offload/ebb/internal/staging"
	"github.com/ebb-offload/ebb/internal/store"
)

// Move is one block: Length bytes of device memory at Addr, and Offset in Backing.
type Move struct {
	Of             fmt.Stringer // what it is part of, for errors
	Device         int
	Addr           mem.Addr
	Offset, Length uint64
	Backing        store.Backing

	// Reach, if not nil, makes the device memory reachable and says where it is, in place of Addr.
	// It is called late, on the worker, so that this takes place while others wait for a disk.
	Reach func() (mem.Addr, error)

	// Kernel: the device has ebb's kernel. It copies and hashes what is stored, and what was loaded is for
	// the caller to check. Otherwise the driver copies, the CPU hashes, and what is loaded is
	// checked before it is copied to the device.
	Kernel bool

	// Zero: all bytes are zero. Store marks the block so, with the fingerprint Sum; Load sets the
	// device memory to zero. Nothing is copied.
	Zero bool
	Sum  fingerprint.Sum

	// Sparse: a block that turns out to be all zero when it is stored is marked so and not written.
	Sparse bool
	// Check: what is loaded is compared with what was stored also where there is a kernel: on the device,
	// when its copy there is done.
	Check bool
	// Bytes, if not nil, stands in place of the device memory: when the block is stored it fills p with
	// its bytes; when it is loaded it takes them from there, and they are what was stored. It is called on
	// the worker. The device only lends its context.
	Bytes func(p []byte) error

	queue int // that it was taken from
}

// Moves are moves in order. At is called from all workers, and may be for an index more than once.
type Moves struct {
	Len int
	At  func(i int) Move

	// Skip, if not nil, says whether a move is made or not. While that is not known it waits, if it may; not known in the
	// end is not made. At is called after it, or before for what is certain: of what, and where that is.
	Skip func(i int, wait bool) (skip, known bool)
}

func (m Moves) part(from, to int) Moves {
	part := Moves{Len: to - from, At: func(i int) Move { return m.At(from + i) }}
	if m.Skip != nil {
		part.Skip = func(i int, wait bool) (skip, known bool) { return m.Skip(from+i, wait) }
	}
	return part
}

// Work is what one operation moves.
type Work struct {
	Host, Disk Moves

	Moved *Moved // counts; nil: nothing counts
}

// Way is how work is done.
type Way struct {
	Workers int

	// Snapshot: what is stored in memory of a backing goes by way of device memory of the workers' own,
	// where there is room for that; see batch.go.
	Snapshot bool
}

// Moved counts the bytes of the blocks that workers have copied, while they do.
type Moved struct {
	queue [2]atomic.Uint64
}

// Host and Disk are the bytes that were copied to or from host memory, and written to or read from
// disk.
func (m *Moved) Host() uint64 { return m.queue[hostQueue].Load() }

// Disk is described at Host.
func (m *Moved) Disk() uint64 { return m.queue[diskQueue].Load() }

// Options say what New makes.
type Options struct {
	Workers    int    // at most
	BlockBytes uint64 // no move is longer
	Key        *fingerprint.Key

	// Spare makes a block of staging memory, for a worker whose own is still used by a call that
	// hangs, and free gives it back. They are called on the worker's thread.
	Spare func() (memory []byte, free func() error, err error)

	// Mismatch is the error of a block whose bytes are not those that were stored.
	Mismatch func(Move) error
}

// Pool is the set of workers. They are started when an operation first wants so many.
type Pool struct {
	drv       device.Driver
	options   Options
	staging   *staging.Staging // nil until UseStaging
	workers   []*worker
	snapshots int // how many of them may have some
	running   sync.WaitGroup
}

// New makes a pool, without workers yet.
func New(drv device.Driver, o Options) *Pool { return &Pool{drv: drv, options: o} }

// UseStaging gives every worker its blocks of st, which must have two for each and outlive the
// pool. Moves whose backing has no Memory need it.
func (p *Pool) UseStaging(st *staging.Staging) {
	p.staging = st
	for _, w := range p.workers {
		w.use(st)
	}
}

// Direction is where moves go.
type Direction int

// Directions.
const (
	Store Direction = iota // from the devices into the backings
	Load                   // from the backings to the devices
)

// Run moves everything, and returns when every block was accepted. After the first error no further
// block is begun; that error is returned. used is how it was done: without snapshots where they cannot be had.
// After work that stores to host memory, Rest is to be called.
func (p *Pool) Run(d Direction, work Work, way Way) (used Way, err error) {
	if way, err = p.possible(way, work); err != nil {
		return way, err
	}
	return way, p.move(d, work, way)
}

// move is Run, with the snapshots that there are.
func (p *Pool) move(d Direction, work Work, way Way) error {
	workers := max(1, min(way.Workers, p.options.Workers, work.Host.Len+work.Disk.Len))
	if err := p.start(workers); err != nil {
		return err
	}
	if way.Snapshot {
		p.snapshots = max(p.snapshots, workers)
	}
	if work.Moved == nil {
		work.Moved = &Moved{}
	}
	q := &queues{of: [2]Moves{hostQueue: work.Host, diskQueue: work.Disk}, moved: work.Moved}
	return p.each(workers, func(i int, w *worker) error {
		return w.guard(job{direction: d, queues: q, own: ownQueue(i, workers), way: way})
	})
}

// each has the first n workers do f, each on its thread, and returns the first error of them.
func (p *Pool) each(n int, f func(i int, w *worker) error) error { return p.begin(n, f)() }

// begin is each, and wait is to be called for the error, or not at all. Until a worker is done, it takes nothing else on.
func (p *Pool) begin(n int, f func(i int, w *worker) error) (wait func() error) {
	errs := make(chan error, n)
	for i, w := range p.workers[:n] {
		w.tasks <- func() { errs <- f(i, w) }
	}
	return func() (first error) {
		for range n {
			if err := <-errs; err != nil && first == nil {
				first = err
			}
		}
		return first
	}
}

// start sees to it that there are n workers.
func (p *Pool) start(n int) error {
	for i := len(p.workers); i < n; i++ {
		w := &worker{id: i, drv: p.drv, options: &p.options, tasks: make(chan func()), errands: make(chan func() error), done: make(chan error), streams: map[int]*[slots]device.Stream{}, snapshots: map[int]*snapshot{}}
		w.use(p.staging)
		started := make(chan error)
		p.running.Add(1)
		go w.run(started, &p.running)
		if err := <-started; err != nil {
			return fmt.Errorf("start worker %d: %w", i, err)
		}
		p.workers = append(p.workers, w)
	}
	return nil
}

// Close ends the workers and frees what they made on devices.
func (p *Pool) Close() {
	for _, w := range p.workers {
		close(w.tasks)
	}
	p.running.Wait()
	p.workers = nil
}

type job struct {
	direction Direction
	queues    *queues
	own       int // the queue to begin with
	way       Way
}

// run is the goroutine of a worker. The thread ends with it, since it never unlocks.
func (w *worker) run(started chan<- error, running *sync.WaitGroup) {
	runtime.LockOSThread()
	defer running.Done()
	_, err := w.drv.ExchangeCaptureMode(device.CaptureRelaxed)
	started <- err
	if err != nil {
		return
	}
	go w.clerk()
	defer close(w.errands)
	for do := range w.tasks {
		do()
	}
	w.destroy()
}

// guard does a job, and has the other workers end theirs when it fails.
func (w *worker) guard(j job) error {
	w.takeBack()
	err := w.safely(func() error {
		if j.direction == Store {
			return w.store(j)
		}
		return w.load(j)
	})
	w.ahead = nil
	if err != nil {
		j.queues.stop.Store(true)
		w.drain() // a wait that failed has waited for nothing, and what the work uses may be given back next
	}
	return err
}

// safely turns a panic of a step into an error: a defect of ebb must not end the actor.
func (w *worker) safely(step func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: %v", ErrPanic, r)
			w.drain()
		}
	}()
	return step()
}
