package pipeline

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/ebb-offload/ebb/internal/device"
	"github.com/ebb-offload/ebb/internal/fingerprint"
	"github.com/ebb-offload/ebb/internal/mem"
	"github.com/ebb-offload/ebb/internal/staging"
	"github.com/ebb-offload/ebb/internal/store"
)

// ErrPanic marks a defect of ebb that a worker caught.
var ErrPanic = errors.New("internal error in a worker")

// slots is the number of blocks that a worker has under way: one in a device copy, one in a
// write or read.
const slots = 2

type worker struct {
	id        int
	drv       device.Driver
	options   *Options
	tasks     chan func() // must not panic
	errands   chan func() error
	done      chan error // of the last errand
	staging   [slots]stage
	lent      []lent               // see quarantine.go
	hashers   [slots]device.Hasher // nil until first needed
	streams   map[int]*[slots]device.Stream
	ahead     []*Move           // taken from the queue, and left for the next batch
	snapshots map[int]*snapshot // by device, of one operation; nil: cannot be had
	current   int               // device whose context is current on the thread; meaningful when streams is not empty
}

// use gives the worker its blocks of the staging buffer.
func (w *worker) use(st *staging.Staging) {
	if st == nil {
		return
	}
	for s := range slots {
		w.staging[s] = stage{memory: st.Block(w.id*slots + s)}
	}
}

// inflight is a batch whose device work was begun in a slot: one block, or several in host memory
// that devices copy to and from directly.
type inflight struct {
	blocks []block
	slot   int
	stream device.Stream
}

// block is a move with its host memory.
type block struct {
	move   *Move
	host   []byte // where the bytes are or come from: the slot's staging block, or the backing's memory
	direct bool   // host is the backing's memory
}

func (b *block) failed(doing string, err error) error {
	return fmt.Errorf("%s %d bytes at offset %d of %v: %w", doing, b.move.Length, b.move.Offset, b.move.Of, err)
}

func (b *block) address() unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(b.host)) }

// store copies blocks to the host and writes them: while one is written, the next is copied.
func (w *worker) store(j job) error {
	cur, err := w.beginCopyOut(j, 0)
	for slot := 1; cur != nil && err == nil; slot = (slot + 1) % slots {
		var next *inflight
		next, err = w.beginCopyOut(j, slot)
		if e := w.finishCopyOut(j, cur); err == nil {
			err = e
		}
		cur = next
	}
	if cur != nil { // its copy may still write to the slot
		_ = w.drv.StreamSynchronize(cur.stream)
	}
	return err
}

// beginCopyOut takes the next moves that copy, and begins the copy in a slot; nil when there is none
// left. Moves without a copy are done on the way.
func (w *worker) beginCopyOut(j job, slot int) (*inflight, error) {
	moves := w.batch(j)
	for ; len(moves) > 0 && moves[0].Zero; moves = w.batch(j) {
		m := moves[0]
		m.Backing.Mark(m.Offset, store.Block{State: store.Zero, Sum: m.Sum, Known: true})
	}
	if len(moves) == 0 {
		return nil, nil
	}
	m := moves[0]
	f, err := w.place(m, slot)
	if err != nil {
		return nil, err
	}
	first := &f.blocks[0]
	snapshot := w.several(j, m) && w.haveSnapshot(m.Device)
	if !snapshot { // there is none after all: one by one
		w.ahead, moves = append(moves[1:], w.ahead...), moves[:1]
	}
	if err := f.add(moves[1:]); err != nil {
		return nil, err
	}
	for i := range f.blocks {
		if b := &f.blocks[i]; b.direct { // what is said about the block is not true from here on
			b.move.Backing.Mark(b.move.Offset, store.Block{State: store.Absent})
		}
	}
	switch {
	case m.Bytes != nil:
		if err = m.Bytes(first.host); err != nil {
			w.quarantine(slot, err)
			return nil, first.failed("save", err)
		}
	case snapshot:
		err = w.copyFromSnapshot(f)
	case m.Kernel:
		err = w.copyAndHash(f)
	default:
		err = w.drv.CopyToHost(first.address(), m.Addr, m.Length, f.stream)
	}
	if err != nil {
		_ = w.drv.StreamSynchronize(f.stream) // what was submitted before the error
		return nil, first.failed("copy to the host", err)
	}
	return f, nil
}

// copyAndHash has the kernel copy a block to the host and hash the bytes that it writes there.
func (w *worker) copyAndHash(f *inflight) error {
	b := &f.blocks[0]
	to, err := w.drv.HostDevicePointer(b.address())
	if err != nil {
		return err
	}
	return w.launch(f, []device.Span{{Addr: b.move.Addr, To: to, Bytes: b.move.Length}})
}

// launch hashes the blocks of a batch.
func (w *worker) launch(f *inflight, spans []device.Span) (err error) {
	h := w.hashers[f.slot]
	if h == nil {
		if h, err = w.drv.NewHasher(w.options.Key, max(batchTiles, fingerprint.Tiles(w.options.BlockBytes))); err != nil {
			return err
		}
		w.hashers[f.slot] = h
	}
	n, err := h.Launch(spans, f.stream)
	if err == nil && n < len(spans) { // batch sees to it that they fit
		err = fmt.Errorf("%w: %d of %d blocks of a batch were hashed", ErrPanic, n, len(spans))
	}
	return err
}

func (w *worker) finishCopyOut(j job, f *inflight) error {
	if err := w.drv.StreamSynchronize(f.stream); err != nil {
		return f.blocks[0].failed("copy to the host", err)
	}
	for i := range f.blocks {
		b := &f.blocks[i]
		m := b.move
		entry, zero := store.Block{State: store.Stored, Known: true}, false
		if m.Kernel {
			entry.Sum, zero = w.hashers[f.slot].Sum(i)
		} else {
			entry.Sum, zero = w.drv.HostFingerprint(w.options.Key, b.host)
		}
		if zero && m.Sparse {
			entry.State = store.Zero
			m.Backing.Mark(m.Offset, entry)
			continue
		}
		if b.direct {
			m.Backing.Mark(m.Offset, entry)
		} else if err := w.onDisk(func() error { return m.Backing.WriteBlock(m.Offset, b.host, entry) }); err != nil {
			w.quarantine(f.slot, err)
			return b.failed("save", err)
		}
		j.queues.done(m)
	}
	return nil
}

// load reads blocks and copies them to the device: while one is copied, the next is read.
func (w *worker) load(j job) error {
	var busy [slots]*inflight // batches whose device work was begun and not waited for
	var err error
	for slot := 0; err == nil; slot = (slot + 1) % slots {
		if f := busy[slot]; f != nil { // its staging block is needed again
			busy[slot] = nil
			if err = w.waitCopyIn(j, f); err != nil {
				break
			}
		}
		moves := w.batch(j)
		if len(moves) == 0 {
			break
		}
		busy[slot], err = w.beginCopyIn(moves, slot)
	}
	for _, f := range busy {
		if f == nil {
			continue
		}
		if e := w.waitCopyIn(j, f); err == nil {
			err = e
		}
	}
	return err
}

// beginCopyIn reads a block into a slot and begins its copy to the device, or that of several in host memory.
func (w *worker) beginCopyIn(moves []*Move, slot int) (*inflight, error) {
	m := moves[0]
	f, err := w.place(m, slot)
	if err != nil {
		return nil, err
	}
	first := &f.blocks[0]
	if m.Bytes != nil {
		if err := w.read(first, slot); err != nil {
			return nil, err
		}
		if err := m.Bytes(first.host); err != nil {
			w.quarantine(slot, err)
			return nil, first.failed("restore", err)
		}
		m.Zero = m.Backing.Block(m.Offset).State == store.Zero // nothing was read
		return f, nil
	}
	if m.Zero {
		if err := m.reach(); err != nil {
			return nil, err
		}
		if err := w.drv.MemsetZero(m.Addr, m.Length, f.stream); err != nil {
			return nil, first.failed("set to zero", err)
		}
		return f, nil
	}
	if err := f.add(moves[1:]); err != nil {
		return nil, err
	}
	for i := range f.blocks {
		if err := w.read(&f.blocks[i], slot); err != nil {
			return nil, err
		}
		if err := f.blocks[i].move.reach(); err != nil {
			return nil, err
		}
	}
	for _, c := range f.copies(func(i int) mem.Addr { return f.blocks[i].move.Addr }) {
		if err := w.drv.CopyToDevice(c.at, c.host, c.bytes, f.stream); err != nil {
			_ = w.drv.StreamSynchronize(f.stream) // what was submitted before
			return nil, first.failed("copy to the device", err)
		}
	}
	if m.Kernel && m.Check {
		if err := w.launch(f, []device.Span{{Addr: m.Addr, Bytes: m.Length}}); err != nil {
			_ = w.drv.StreamSynchronize(f.stream)
			return nil, first.failed("hash on the device", err)
		}
	}
	return f, nil
}

// read gets the bytes of a block into host memory. Where no kernel will check them on the device, the CPU
// does so here. A block whose bytes or fingerprint are not known to be there is refused.
func (w *worker) read(b *block, slot int) error {
	m := b.move
	if !b.direct {
		if err := w.onDisk(func() error { return m.Backing.ReadBlock(m.Offset, b.host) }); err != nil {
			w.quarantine(slot, err)
			return b.failed("restore", err)
		}
	}
	switch entry := m.Backing.Block(m.Offset); {
	case entry.State == store.Absent, !m.Kernel && !entry.Known:
		return b.failed("restore", store.ErrAbsent)
	case m.Kernel:
		return nil
	default:
		if sum, _ := w.drv.HostFingerprint(w.options.Key, b.host); sum != entry.Sum {
			return w.options.Mismatch(*m)
		}
		return nil
	}
}

// onDisk has the worker's clerk make calls to files. Each of them is made on another thread and waited for
// (filesys.Deadline), which on the worker's own thread takes ten times as long; a file that must be opened first takes
// four of them.
func (w *worker) onDisk(call func() error) error {
	w.errands <- call
	return <-w.done
}

// clerk is the goroutine that makes calls for a worker, which waits. It has no thread of its own.
func (w *worker) clerk() {
	for call := range w.errands {
		w.done <- w.attempt(call)
	}
}

// attempt makes an error of a defect of ebb, which on a goroutine of its own would end the actor.
func (w *worker) attempt(call func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: %v", ErrPanic, r)
		}
	}()
	return call()
}

// reach sets Addr, where that is not known yet.
func (m *Move) reach() (err error) {
	if m.Reach != nil {
		m.Addr, err = m.Reach()
	}
	return err
}

func (w *worker) waitCopyIn(j job, f *inflight) error {
	if err := w.drv.StreamSynchronize(f.stream); err != nil {
		return f.blocks[0].failed("copy to the device", err)
	}
	for _, b := range f.blocks {
		if m := b.move; m.Kernel && m.Check && !m.Zero {
			if sum, _ := w.hashers[f.slot].Sum(0); sum != m.Backing.Block(m.Offset).Sum {
				return w.options.Mismatch(*m)
			}
		}
		if !b.move.Zero {
			j.queues.done(b.move)
		}
	}
	return nil
}

// place makes the move's device current and finds the host memory for it.
func (w *worker) place(m *Move, slot int) (*inflight, error) {
	streams, err := w.useDevice(m.Device)
	if err != nil {
		return nil, err
	}
	b := block{move: m}
	if !m.Zero {
		if b.host, err = m.Backing.Memory(m.Offset); err != nil {
			return nil, b.failed("find host memory for", err)
		}
		if b.direct = b.host != nil; !b.direct {
			if b.host, err = w.memory(slot); err != nil {
				return nil, b.failed("find staging memory for", err)
			}
			b.host = b.host[:m.Length]
		}
	}
	return &inflight{blocks: []block{b}, slot: slot, stream: streams[slot]}, nil
}

// useDevice makes the device's primary context current and returns the worker's streams on it.
func (w *worker) useDevice(dev int) (*[slots]device.Stream, error) {
	if s := w.streams[dev]; s != nil && w.current == dev {
		return s, nil
	}
	ctx, err := w.drv.PrimaryContext(dev)
	if err != nil {
		return nil, err
	}
	if err := w.drv.SetContext(ctx); err != nil {
		return nil, err
	}
	w.current = dev
	if s := w.streams[dev]; s != nil {
		return s, nil
	}
	var s [slots]device.Stream
	for i := range s {
		if s[i], err = w.drv.StreamCreate(); err != nil {
			for _, made := range s[:i] {
				_ = w.drv.StreamDestroy(made)
			}
			return nil, fmt.Errorf("create stream on device %d: %w", dev, err)
		}
	}
	w.streams[dev] = &s
	return &s, nil
}

// drain waits for whatever the worker's streams still do.
func (w *worker) drain() {
	for dev := range w.streams {
		s, err := w.useDevice(dev)
		if err != nil {
			continue
		}
		for _, one := range s {
			_ = w.drv.StreamSynchronize(one)
		}
	}
}

// destroy frees what the worker made on devices. What it cannot free is gone with its device.
func (w *worker) destroy() {
	for dev := range w.streams {
		s, err := w.useDevice(dev)
		if err != nil {
			continue
		}
		for _, one := range s {
			_ = w.drv.StreamDestroy(one)
		}
	}
	for _, h := range w.hashers {
		if h != nil {
			_ = h.Close()
		}
	}
	w.giveUpStaging()
}
