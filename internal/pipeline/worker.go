package pipeline

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/ebb-offload/ebb/internal/device"
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
	jobs    chan job
	staging [slots][]byte // nil until UseStaging
	streams map[int]*[slots]device.Stream
	current int // device whose context is current on the thread; meaningful when streams is not empty
}

// inflight is a block whose device copy was begun in a slot.
type inflight struct {
	move   *Move
	host   []byte // where the bytes are or come from: the slot's staging block, or the backing's memory
	direct bool   // host is the backing's memory
	stream device.Stream
}

func (b *inflight) failed(doing string, err error) error {
	return fmt.Errorf("%s %d bytes at offset %d of %v: %w", doing, b.move.Length, b.move.Offset, b.move.Of, err)
}

// store copies blocks to the host and writes them: while one is written, the next is copied.
func (w *worker) store(q *queue) error {
	cur, err := w.beginCopyOut(q, 0)
	for slot := 1; cur != nil && err == nil; slot = (slot + 1) % slots {
		var next *inflight
		next, err = w.beginCopyOut(q, slot)
		if e := w.finishCopyOut(cur); err == nil {
			err = e
		}
		cur = next
	}
	if cur != nil { // its copy may still write to the slot
		_ = w.drv.StreamSynchronize(cur.stream)
	}
	return err
}

// beginCopyOut takes the next move and begins its copy in a slot; nil when there is none left.
func (w *worker) beginCopyOut(q *queue, slot int) (*inflight, error) {
	b, err := w.take(q, slot)
	if b == nil || err != nil {
		return nil, err
	}
	if err := w.drv.CopyToHost(unsafe.Pointer(unsafe.SliceData(b.host)), b.move.Addr, b.move.Length, b.stream); err != nil {
		return nil, b.failed("copy to the host", err)
	}
	return b, nil
}

func (w *worker) finishCopyOut(b *inflight) error {
	if err := w.drv.StreamSynchronize(b.stream); err != nil {
		return b.failed("copy to the host", err)
	}
	if b.direct {
		b.move.Backing.Mark(b.move.Offset, store.Block{State: store.Stored})
		return nil
	}
	if err := b.move.Backing.WriteBlock(b.move.Offset, b.host, store.Block{State: store.Stored}); err != nil {
		return b.failed("save", err)
	}
	return nil
}

// load reads blocks and copies them to the device: while one is copied, the next is read.
func (w *worker) load(q *queue) error {
	var busy [slots]*inflight // blocks whose copy was begun and not waited for
	var err error
	for slot := 0; err == nil; slot = (slot + 1) % slots {
		if b := busy[slot]; b != nil { // its staging block is needed again
			busy[slot] = nil
			if err = w.waitCopyIn(b); err != nil {
				break
			}
		}
		var b *inflight
		if b, err = w.take(q, slot); b == nil || err != nil {
			break
		}
		if !b.direct {
			if err = b.move.Backing.ReadBlock(b.move.Offset, b.host); err != nil {
				err = b.failed("restore", err)
				break
			}
		}
		if err = w.drv.CopyToDevice(b.move.Addr, unsafe.Pointer(unsafe.SliceData(b.host)), b.move.Length, b.stream); err != nil {
			err = b.failed("copy to the device", err)
			break
		}
		busy[slot] = b
	}
	for _, b := range busy {
		if b == nil {
			continue
		}
		if e := w.waitCopyIn(b); err == nil {
			err = e
		}
	}
	return err
}

func (w *worker) waitCopyIn(b *inflight) error {
	if err := w.drv.StreamSynchronize(b.stream); err != nil {
		return b.failed("copy to the device", err)
	}
	return nil
}

// take gets the next move, makes its device current and finds the host memory for it.
func (w *worker) take(q *queue, slot int) (*inflight, error) {
	m := q.take()
	if m == nil {
		return nil, nil
	}
	streams, err := w.useDevice(m.Device)
	if err != nil {
		return nil, err
	}
	b := &inflight{move: m, stream: streams[slot]}
	if memory := m.Backing.Memory(m.Offset); memory != nil {
		b.host, b.direct = memory, true
	} else {
		b.host = w.staging[slot][:m.Length]
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

func (w *worker) destroyStreams() {
	for dev := range w.streams {
		s, err := w.useDevice(dev)
		if err != nil {
			continue // the device is gone, and its streams with it
		}
		for _, one := range s {
			_ = w.drv.StreamDestroy(one)
		}
	}
}
