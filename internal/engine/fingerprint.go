package engine

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ebb-offload/ebb/internal/alloc"
	"github.com/ebb-offload/ebb/internal/device"
	"github.com/ebb-offload/ebb/internal/fingerprint"
)

// hashTiles is how many tiles one launch hashes, and so how much pinned memory the results take:
// 512 MiB of device memory and 128 KiB. Of many small launches little is left to do when the last one ends.
const hashTiles = 2048

// hashing is what the engine needs to hash device memory. Guarded by Engine.op.
type hashing struct {
	key     *fingerprint.Key
	refused map[int]bool // devices whose driver does not take the kernel, now or ever
	lanes   [2]device.Hasher
	streams map[int]*[2]device.Stream // of the lanes, by device
}

// The CPU folds the results of one lane while the GPU is at the other. Lanes work on all devices.

// warmUp begins to load the kernel on a device, the first time that memory which a pause keeps is made
// there: the driver has to compile it first, and at the first pause the device may be full. What comes
// of it is for readyToHash to find out.
func (e *Engine) warmUp(d *deviceState, dev int, b alloc.Backup) {
	if b == alloc.BackupNone || d.warmed.Swap(true) {
		return
	}
	e.warming.Go(func() {
		e.background.RLock()
		defer e.background.RUnlock()
		_ = guarded(dev, func(dev int) error { return e.withDevice(dev, e.drv.LoadFingerprint) })
	})
}

// readyToHash finds out on which devices of a transfer the kernel is there, and loads it where it is
// not. Only a driver that refuses the kernel itself is not asked again; whatever else went wrong, the next
// operation tries it anew.
func (e *Engine) readyToHash(t *transfer) {
	defer func(begun time.Time) { t.checked += time.Since(begun) }(time.Now())
	for _, dev := range t.devices() {
		if e.hash.refused[dev] {
			continue
		}
		err := e.withDevice(dev, func() error { return e.prepareToHash(dev) })
		if err == nil {
			t.kernel[dev] = true
			continue
		}
		until := "for now"
		if refusesKernel(err) {
			e.hash.refused[dev] = true
			until = "from now on"
		}
		e.log.Printf("device %d works without ebb's kernel %s: blocks are hashed by the CPU, zero and unchanged ones are moved, writes during a pause are not found: %v", dev, until, err)
	}
}

// prepareToHash loads the kernel and makes what launches need, each once. The device's context is
// current.
func (e *Engine) prepareToHash(dev int) (err error) {
	if err := e.drv.LoadFingerprint(); err != nil {
		return err
	}
	for i := range e.hash.lanes {
		if e.hash.lanes[i] == nil {
			if e.hash.lanes[i], err = e.drv.NewHasher(e.hash.key, hashTiles); err != nil {
				e.hash.lanes[i] = nil
				return err
			}
		}
	}
	if e.hash.streams[dev] == nil {
		streams, err := e.makeStreams()
		if err != nil {
			return err
		}
		e.hash.streams[dev] = streams
	}
	return nil
}

// makeStreams makes the streams of the lanes in the current context, or none.
func (e *Engine) makeStreams() (s *[2]device.Stream, err error) {
	s = &[2]device.Stream{}
	for i := range s {
		if s[i], err = e.drv.StreamCreate(); err != nil {
			for _, made := range s[:i] {
				err = errors.Join(err, e.drv.StreamDestroy(made))
			}
			return nil, err
		}
	}
	return s, nil
}

// refusesKernel reports whether the driver will never take the kernel: the image, or compiling it, is
// what it refuses.
func refusesKernel(err error) bool {
	var e *device.Error
	return errors.As(err, &e) && slices.Contains([]device.Code{
		device.CodeInvalidImage, device.CodeNoBinaryForGPU, device.CodeInvalidPTX, device.CodeUnsupportedPTX,
		device.CodeNoJITCompiler, device.CodeJITDisabled, device.CodeInvalidSource, device.CodeNotFound, device.CodeNotSupported,
	}, e.Code)
}

// hashed is what a launch was given: numbers of blocks, in the order of its spans.
type hashed struct {
	hasher device.Hasher
	stream device.Stream
	spans  []device.Span
	blocks []int32
}

// hashBlocks hashes the device memory of all blocks of a transfer that want wants, on devices with the
// kernel, and calls got for each, in the order of their numbers within a device.
func (e *Engine) hashBlocks(t *transfer, want func(n int) bool, got func(n int, s fingerprint.Sum, zero bool)) error {
	defer func(begun time.Time) { t.checked += time.Since(begun) }(time.Now())
	for _, dev := range t.devices() {
		if !t.kernel[dev] {
			continue
		}
		if err := e.withDevice(dev, func() error { return e.hashDevice(t, dev, want, got) }); err != nil {
			return fmt.Errorf("hash the memory on device %d: %w", dev, err)
		}
	}
	return nil
}

// hashDevice is hashBlocks for the blocks of one device, whose context is current.
func (e *Engine) hashDevice(t *transfer, dev int, want func(n int) bool, got func(n int, s fingerprint.Sum, zero bool)) (err error) {
	var lanes [2]hashed
	for i := range lanes {
		l := &lanes[i]
		l.hasher, l.stream = e.hash.lanes[i], e.hash.streams[dev][i]
	}
	defer func() { // no launch may be under way when the lanes are used next
		if err != nil {
			for _, s := range e.hash.streams[dev] {
				err = errors.Join(err, e.drv.StreamSynchronize(s))
			}
		}
	}()
	finish := func(l *hashed) error {
		if len(l.blocks) == 0 {
			return nil
		}
		if err := e.drv.StreamSynchronize(l.stream); err != nil {
			return err
		}
		for i, n := range l.blocks {
			sum, zero := l.hasher.Sum(i)
			got(int(n), sum, zero)
		}
		l.blocks = l.blocks[:0]
		return nil
	}
	turn, next := 0, 0
	for next < t.blocks.Len() {
		l := &lanes[turn]
		turn = 1 - turn
		if err := finish(l); err != nil {
			return err
		}
		next = l.fill(t, dev, next, want)
		if len(l.spans) == 0 {
			break
		}
		n, err := l.hasher.Launch(l.spans, l.stream)
		if err != nil {
			return err
		}
		if n < len(l.blocks) { // the rest is for the next launch
			next = int(l.blocks[n])
			l.blocks = l.blocks[:n]
		}
	}
	for range lanes {
		if err := finish(&lanes[turn]); err != nil {
			return err
		}
		turn = 1 - turn
	}
	return nil
}

// fill takes blocks from number next on, at most as many as a launch has room for, and returns
// where to go on.
func (l *hashed) fill(t *transfer, dev, next int, want func(n int) bool) int {
	l.spans, l.blocks = l.spans[:0], l.blocks[:0]
	for tiles := 0; next < t.blocks.Len(); next++ {
		b := t.blocks.At(next)
		if t.set[b.Item].Device != dev || !want(next) {
			continue
		}
		if tiles += fingerprint.Tiles(b.Length); tiles > hashTiles && len(l.blocks) > 0 {
			break
		}
		l.spans = append(l.spans, device.Span{Addr: t.addr(b), Bytes: b.Length})
		l.blocks = append(l.blocks, int32(next))
	}
	return next
}
