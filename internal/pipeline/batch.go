package pipeline

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/ebb-offload/ebb/internal/device"
	"github.com/ebb-offload/ebb/internal/fingerprint"
	"github.com/ebb-offload/ebb/internal/mem"
)

// Blocks in host memory that devices copy to directly need no staging, so that several can be under
// way in a slot. The device's copy engine moves a few large pieces faster than many small ones.
//
// A kernel that copies to host memory is slower than the copy engine, which cannot hash. To have both, the
// kernel copies a batch to device memory of the worker's own, its snapshot, and hashes what it writes;
// the copy engine takes the snapshot to the host. Nobody else knows the snapshot's address, so
// the fingerprint is that of the bytes that arrive: that of one moment of each, whatever is written to
// the actor's memory meanwhile.

const (
	// batchBytes is how much is copied at a time.
	batchBytes = 32 << 20
	// batchTiles bounds the blocks of a batch by what one launch has room for.
	batchTiles = batchBytes/fingerprint.TileBytes + 64
	// snapshotAlign is what blocks in a snapshot are aligned to. Kernels need 16.
	snapshotAlign = 256
)

// batch is what a worker moves at a time: the next move of a job, or several neighbours. Nothing: there is none left.
func (w *worker) batch(j job) (moves []*Move) {
	j.queues.mu.Lock()
	defer j.queues.mu.Unlock()
	first := w.next(j, true)
	if first == nil {
		return nil
	}
	moves = append(moves, first)
	if !w.several(j, first) {
		return moves
	}
	bytes, tiles := batchSize(first.Length), fingerprint.Tiles(first.Length)
	for m := w.next(j, false); m != nil; m = w.next(j, false) {
		bytes += batchSize(m.Length)
		tiles += fingerprint.Tiles(m.Length)
		if m.Device != first.Device || bytes > batchBytes || tiles > batchTiles || !w.several(j, m) {
			w.ahead = append([]*Move{m}, w.ahead...)
			return moves
		}
		moves = append(moves, m)
	}
	return moves
}

// next is the next move of a job. Called with the lock of its queues held.
func (w *worker) next(j job, wait bool) *Move {
	if len(w.ahead) > 0 && !j.queues.stop.Load() {
		m := w.ahead[0]
		w.ahead = w.ahead[1:]
		return m
	}
	return j.queues.take(j.own, wait)
}

// several reports whether a move can be one of a batch, as far as is known.
func (w *worker) several(j job, m *Move) bool {
	if m.Zero || !m.Kernel || m.Bytes != nil || !m.Backing.Direct(m.Offset) {
		return false
	}
	if j.direction == Load {
		return true
	}
	s, tried := w.snapshots[m.Device]
	return j.way.Snapshot && (s != nil || !tried)
}

// add adds moves of blocks in host memory.
func (f *inflight) add(moves []*Move) (err error) {
	for _, m := range moves {
		b := block{move: m, direct: true}
		if b.host, err = m.Backing.Memory(m.Offset); err == nil && b.host == nil {
			err = fmt.Errorf("%w: it is gone", ErrPanic)
		}
		if err != nil {
			return b.failed("find host memory for", err)
		}
		f.blocks = append(f.blocks, b)
	}
	return nil
}

// batchSize is what a block takes of a snapshot.
func batchSize(n uint64) uint64 { return (n + snapshotAlign - 1) &^ (snapshotAlign - 1) }

// transfer is one copy of the copy engine's.
type transfer struct {
	at    mem.Addr // on the device
	host  unsafe.Pointer
	bytes uint64
}

// copies joins the blocks of a batch to as few copies as possible: neighbours on both sides, in host memory
// that is registered as one, which is what the capacity of a backing's memory tells.
func (f *inflight) copies(addr func(i int) mem.Addr) (list []transfer) {
	room := uint64(0) // behind the last copy, of host memory that it may reach into
	for i := range f.blocks {
		b := &f.blocks[i]
		at, n := addr(i), b.move.Length
		if len(list) > 0 {
			c := &list[len(list)-1]
			if c.at+mem.Addr(c.bytes) == at && unsafe.Add(c.host, c.bytes) == b.address() && n <= room {
				c.bytes, room = c.bytes+n, room-n
				continue
			}
		}
		list = append(list, transfer{at, b.address(), n})
		room = uint64(cap(b.host)) - n
	}
	return list
}

// snapshot is memory of one device, a batch for each slot of a worker. It is there for the length of an
// operation at most: what a pause frees, it must not keep. To give it back takes as long as 25 to 50 MB take to
// move (H200), so that is done while the caller does something else (Rest).
type snapshot struct {
	handle mem.Handle
	addr   mem.Addr
	bytes  uint64
	mapped bool
}

// haveSnapshot makes the worker's snapshot on the device, whose context is current, or says that it cannot
// be had: then the kernel does without, until the operation ends.
func (w *worker) haveSnapshot(dev int) bool {
	if s, tried := w.snapshots[dev]; tried {
		return s != nil
	}
	s, made := &snapshot{}, false
	defer func() { // after a defect of ebb, too: nobody else knows what there is of it
		if !made {
			_ = w.dropSnapshot(s)
		}
	}()
	if made = w.makeSnapshot(dev, s) == nil; made {
		w.snapshots[dev] = s
	} else {
		w.snapshots[dev] = nil
	}
	return made
}

func (w *worker) makeSnapshot(dev int, s *snapshot) error {
	props := mem.DeviceProps(dev, false)
	unit, err := w.drv.Granularity(props)
	if err != nil {
		return err
	}
	s.bytes = (slots*batchBytes + unit - 1) / unit * unit
	if s.handle, err = w.drv.MemCreate(s.bytes, props); err != nil {
		return err
	}
	if s.addr, err = w.drv.AddressReserve(s.bytes, 0); err != nil {
		return err
	}
	if err = w.drv.MemMap(s.addr, s.bytes, 0, s.handle); err != nil {
		return err
	}
	s.mapped = true
	return w.drv.MemSetAccess(s.addr, s.bytes, []mem.Access{mem.ReadWrite(dev)})
}

// dropSnapshot gives a snapshot back. No copy may be under way.
func (w *worker) dropSnapshot(s *snapshot) error {
	var errs []error
	if s.mapped {
		errs = append(errs, w.drv.MemUnmap(s.addr, s.bytes))
	}
	if s.handle != 0 {
		errs = append(errs, w.drv.MemRelease(s.handle))
	}
	if s.addr != 0 {
		errs = append(errs, w.drv.AddressFree(s.addr, s.bytes))
	}
	return errors.Join(errs...)
}

// prepare has the workers of a way make what snapshots it has on the device of a move, and returns the seconds that
// took. have: each of them has one, and moves like this one can go by way of it.
func (p *Pool) prepare(way Way, m Move) (seconds float64, have bool, err error) {
	if err := p.start(way.Workers); err != nil || !way.Snapshot {
		return 0, err == nil, err
	}
	if !m.Kernel || !m.Backing.Direct(m.Offset) {
		return 0, false, nil
	}
	begun := time.Now()
	p.snapshots = max(p.snapshots, way.Workers)
	var without atomic.Bool
	err = p.each(way.Workers, func(_ int, w *worker) error {
		err := w.makeReady(m)
		if err == nil && w.snapshots[m.Device] == nil {
			without.Store(true)
		}
		return err
	})
	return time.Since(begun).Seconds(), err == nil && !without.Load(), err
}

// possible is the way or, where it wants snapshots that cannot be had, one without: so few workers are slow then.
// Those that could be had for some are given back: a device that has no room for all is full.
func (p *Pool) possible(way Way, work Work) (Way, error) {
	if !way.Snapshot || work.Host.Len == 0 {
		return way, nil
	}
	first := work.Host.At(0)
	way.Workers = min(way.Workers, p.options.Workers)
	_, have, err := p.prepare(Way{Workers: min(way.Workers, work.Host.Len), Snapshot: true}, first)
	if !have {
		way = p.Default(first.Length)
		if e := p.Rest()(); err == nil {
			err = e
		}
	}
	return way, err
}

// makeReady makes the snapshot for moves like this one, if it can be had.
func (w *worker) makeReady(m Move) error {
	return w.safely(func() error {
		_, err := w.useDevice(m.Device)
		if err == nil {
			w.haveSnapshot(m.Device)
		}
		return err
	})
}

// Rest begins to give back what the workers took of devices for an operation, and returns at once; wait is until they have.
// One that nobody waited for is waited for by the next, since a worker does one thing at a time.
func (p *Pool) Rest() (wait func() error) {
	all := p.begin(p.snapshots, func(_ int, w *worker) error { return w.safely(w.dropSnapshots) })
	return func() error {
		p.snapshots = 0
		if err := all(); err != nil {
			return fmt.Errorf("give back a worker's device memory: %w", err)
		}
		return nil
	}
}

func (w *worker) dropSnapshots() error {
	var errs []error
	for dev, s := range w.snapshots {
		delete(w.snapshots, dev) // whatever becomes of it, it is not used again
		if s != nil {
			errs = append(errs, w.dropSnapshot(s))
		}
	}
	return errors.Join(errs...)
}

// copyFromSnapshot copies a batch to the host by way of the snapshot, and hashes it.
func (w *worker) copyFromSnapshot(f *inflight) error {
	spans := make([]device.Span, len(f.blocks))
	to := w.snapshots[f.blocks[0].move.Device].addr + mem.Addr(f.slot*batchBytes)
	for i, b := range f.blocks {
		spans[i] = device.Span{Addr: b.move.Addr, To: to, Bytes: b.move.Length}
		to += mem.Addr(batchSize(b.move.Length))
	}
	if err := w.launch(f, spans); err != nil {
		return err
	}
	for _, c := range f.copies(func(i int) mem.Addr { return spans[i].To }) {
		if err := w.drv.CopyToHost(c.host, c.at, c.bytes, f.stream); err != nil {
			return err
		}
	}
	return nil
}
