// Package pipeline carries blocks between device memory and backings. A fixed pool of workers,
// each on an OS thread of its own, takes blocks one after the other from the list of moves; a
// worker copies its next block on the device while it writes (or has the last one copied while
// it reads) the present one, through two staging blocks of its own. Memory is therefore
// bounded by the staging buffer, and the order of begun blocks is that of the list.
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
}

// Moves are the moves of one operation. At is called from all workers, once for each index.
type Moves struct {
	Len int
	At  func(i int) Move
}

// Pool is the fixed set of workers.
type Pool struct {
	drv     device.Driver
	workers []*worker
	running sync.WaitGroup
}

// New starts n workers. They create device streams when they first meet a device.
func New(drv device.Driver, n int) (*Pool, error) {
	p := &Pool{drv: drv}
	for i := range n {
		w := &worker{id: i, drv: drv, jobs: make(chan job), streams: map[int]*[slots]device.Stream{}}
		started := make(chan error)
		p.running.Add(1)
		go w.run(started, &p.running)
		if err := <-started; err != nil {
			p.Close()
			return nil, fmt.Errorf("start worker %d: %w", i, err)
		}
		p.workers = append(p.workers, w)
	}
	return p, nil
}

// UseStaging gives every worker its blocks of st, which must have two for each and outlive the
// pool. Moves whose backing has no Memory need it.
func (p *Pool) UseStaging(st *staging.Staging) {
	for i, w := range p.workers {
		for s := range slots {
			w.staging[s] = st.Block(i*slots + s)
		}
	}
}

// Store copies the moves from their devices into their backings and returns when every block
// was accepted. After the first error no further block is begun; that error is returned.
func (p *Pool) Store(moves Moves) error { return p.do(moves, (*worker).store) }

// Load copies the moves from their backings to their devices, likewise.
func (p *Pool) Load(moves Moves) error { return p.do(moves, (*worker).load) }

// Close ends the workers and destroys their streams.
func (p *Pool) Close() {
	for _, w := range p.workers {
		close(w.jobs)
	}
	p.running.Wait()
	p.workers = nil
}

func (p *Pool) do(moves Moves, step func(*worker, *queue) error) error {
	q := &queue{moves: moves}
	errs := make(chan error, len(p.workers))
	for _, w := range p.workers {
		w.jobs <- job{step: step, queue: q, done: errs}
	}
	var first error
	for range p.workers {
		if err := <-errs; err != nil && first == nil {
			first = err
		}
	}
	return first
}

// queue hands out the moves of one operation, each once, in order.
type queue struct {
	moves Moves
	next  atomic.Int64
	stop  atomic.Bool // a worker failed
}

func (q *queue) take() *Move {
	if q.stop.Load() {
		return nil
	}
	i := q.next.Add(1) - 1
	if i >= int64(q.moves.Len) {
		return nil
	}
	m := q.moves.At(int(i))
	return &m
}

type job struct {
	step  func(*worker, *queue) error
	queue *queue
	done  chan<- error
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
	for j := range w.jobs {
		j.done <- w.guard(j)
	}
	w.destroyStreams()
}

// guard turns a panic of a step into an error: a defect of ebb must not end the actor.
func (w *worker) guard(j job) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: %v", ErrPanic, r)
			w.drain()
		}
		if err != nil {
			j.queue.stop.Store(true)
		}
	}()
	return j.step(w, j.queue)
}
