package pipeline

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/ebb-offload/ebb/internal/device"
	"github.com/ebb-offload/ebb/internal/fingerprint"
	"github.com/ebb-offload/ebb/internal/staging"
	"github.com/ebb-offload/ebb/internal/store"
)

// ErrPanic marks a defect of ebb that a worker caught.
var ErrPanic = errors.New("internal error in a worker")

// slots is the number of blocks that a worker has under way: one in a device copy, one in a
// write or read.
const slots = 2

type worker struct {
	id      int
	drv     device.Driver
	options *Options
	jobs    chan job
	staging [slots]stage
	lent    []lent               // see quarantine.go
	hashers [slots]device.Hasher // nil until first needed
	streams map[int]*[slots]device.Stream
	current int // device whose context is current on the thread; meaningful when streams is not empty
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

// inflight is a block whose device work was begun in a slot.
type inflight struct {
	move   *Move
	slot   int
	host   []byte // where the bytes are or come from: the slot's staging block, or the backing's memory
	direct bool   // host is the backing's memory
	stream device.Stream
}

func (b *inflight) failed(doing string, err error) error {
	return fmt.Errorf("%s %d bytes at offset %d of %v: %w", doing, b.move.Length, b.move.Offset, b.move.Of, err)
}

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

// beginCopyOut takes the next move that copies, and begins the copy in a slot; nil when there is none
// left. Moves without a copy are done on the way.
func (w *worker) beginCopyOut(j job, slot int) (*inflight, error) {
	m := j.queues.take(j.own)
	for ; m != nil && m.Zero; m = j.queues.take(j.own) {
		m.Backing.Mark(m.Offset, store.Block{State: store.Zero, Sum: m.Sum, Known: true})
	}
	if m == nil {
		return nil, nil
	}
	b, err := w.place(m, slot)
	if err != nil {
		return nil, err
	}
	if b.direct { // what is said about the block is not true from here on
		m.Backing.Mark(m.Offset, store.Block{State: store.Absent})
	}
	if m.Kernel {
		err = w.copyAndHash(b)
	} else {
		err = w.drv.CopyToHost(unsafe.Pointer(unsafe.SliceData(b.host)), m.Addr, m.Length, b.stream)
	}
	if err != nil {
		return nil, b.failed("copy to the host", err)
	}
	return b, nil
}

// copyAndHash has the kernel copy a block to the host and hash the bytes that it writes there.
func (w *worker) copyAndHash(b *inflight) error {
	h := w.hashers[b.slot]
	if h == nil {
		var err error
		if h, err = w.drv.NewHasher(w.options.Key, fingerprint.Tiles(w.options.BlockBytes)); err != nil {
			return err
		}
		w.hashers[b.slot] = h
	}
	to, err := w.drv.HostDevicePointer(unsafe.Pointer(unsafe.SliceData(b.host)))
	if err != nil {
		return err
	}
	_, err = h.Launch([]device.Span{{Addr: b.move.Addr, To: to, Bytes: b.move.Length}}, b.stream)
	return err
}

func (w *worker) finishCopyOut(j job, b *inflight) error {
	if err := w.drv.StreamSynchronize(b.stream); err != nil {
		return b.failed("copy to the host", err)
	}
	entry := store.Block{State: store.Stored, Known: true}
	if b.move.Kernel {
		entry.Sum, _ = w.hashers[b.slot].Sum(0)
	} else {
		entry.Sum, _ = w.drv.HostFingerprint(w.options.Key, b.host)
	}
	if b.direct {
		b.move.Backing.Mark(b.move.Offset, entry)
		j.queues.done(b.move)
		return nil
	}
	if err := b.move.Backing.WriteBlock(b.move.Offset, b.host, entry); err != nil {
		w.quarantine(b.slot, err)
		return b.failed("save", err)
	}
	j.queues.done(b.move)
	return nil
}

// load reads blocks and copies them to the device: while one is copied, the next is read.
func (w *worker) load(j job) error {
	var busy [slots]*inflight // blocks whose device work was begun and not waited for
	var err error
	for slot := 0; err == nil; slot = (slot + 1) % slots {
		if b := busy[slot]; b != nil { // its staging block is needed again
			busy[slot] = nil
			if err = w.waitCopyIn(j, b); err != nil {
				break
			}
		}
		m := j.queues.take(j.own)
		if m == nil {
			break
		}
		busy[slot], err = w.beginCopyIn(m, slot)
	}
	for _, b := range busy {
		if b == nil {
			continue
		}
		if e := w.waitCopyIn(j, b); err == nil {
			err = e
		}
	}
	return err
}

// beginCopyIn reads a block into a slot and begins its copy to the device.
func (w *worker) beginCopyIn(m *Move, slot int) (*inflight, error) {
	b, err := w.place(m, slot)
	if err != nil {
		return nil, err
	}
	if m.Zero {
		if err := m.reach(); err != nil {
			return nil, err
		}
		if err := w.drv.MemsetZero(m.Addr, m.Length, b.stream); err != nil {
			return nil, b.failed("set to zero", err)
		}
		return b, nil
	}
	if err := w.read(b); err != nil {
		return nil, err
	}
	if err := m.reach(); err != nil {
		return nil, err
	}
	if err := w.drv.CopyToDevice(m.Addr, unsafe.Pointer(unsafe.SliceData(b.host)), m.Length, b.stream); err != nil {
		return nil, b.failed("copy to the device", err)
	}
	return b, nil
}

// read gets the bytes of a block into host memory. Where no kernel will check them on the device, the CPU
// does so here. A block whose bytes or fingerprint are not known to be there is refused.
func (w *worker) read(b *inflight) error {
	m := b.move
	if !b.direct {
		if err := m.Backing.ReadBlock(m.Offset, b.host); err != nil {
			w.quarantine(b.slot, err)
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

// reach sets Addr, where that is not known yet.
func (m *Move) reach() (err error) {
	if m.Reach != nil {
		m.Addr, err = m.Reach()
	}
	return err
}

func (w *worker) waitCopyIn(j job, b *inflight) error {
	if err := w.drv.StreamSynchronize(b.stream); err != nil {
		return b.failed("copy to the device", err)
	}
	if !b.move.Zero {
		j.queues.done(b.move)
	}
	return nil
}

// place makes the move's device current and finds the host memory for it.
func (w *worker) place(m *Move, slot int) (*inflight, error) {
	streams, err := w.useDevice(m.Device)
	if err != nil {
		return nil, err
	}
	b := &inflight{move: m, slot: slot, stream: streams[slot]}
	if m.Zero {
		return b, nil
	}
	if b.host, err = m.Backing.Memory(m.Offset); err != nil {
		return nil, b.failed("find host memory for", err)
	}
	if b.direct = b.host != nil; !b.direct {
		if b.host, err = w.memory(slot); err != nil {
			return nil, b.failed("find staging memory for", err)
		}
		b.host = b.host[:m.Length]
	}
	return b, nil
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
