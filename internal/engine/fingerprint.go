package engine

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ebb-offload/ebb/internal/alloc"
	"github.com/ebb-offload/ebb/internal/device"
	"github.com/ebb-offload/ebb/internal/fingerprint"
)

// hashTiles is how many tiles one launch hashes, and so how much pinned memory the results take:
// 2 GiB of device memory and 384 KiB.
const hashTiles = 8192

// hashing is what the engine needs to hash device memory. Guarded by Engine.op.
type hashing struct {
	key     *fingerprint.Key
	refused bool // the driver does not load the kernel: the CPU hashes what is copied
	loaded  map[int]bool
	lanes   [2]device.Hasher // the CPU folds the results of one while the GPU is at the other; nil until first needed
}

// loadEarly begins to load the kernel for the allocations, beside what else a pause has to prepare:
// the driver has to compile it first. What comes of it is for readyToHash to find out. The caller
// waits for it in the end.
func (e *Engine) loadEarly(set []*alloc.Allocation) (wait func()) {
	var loading sync.WaitGroup
	started := map[int]bool{}
	for _, a := range set {
		dev := a.Device
		if e.hash.refused || e.hash.loaded[dev] || started[dev] || a.Backup == alloc.BackupNone {
			continue
		}
		started[dev] = true
		loading.Go(func() {
			_ = guarded(dev, func(dev int) error { return e.withDevice(dev, e.drv.LoadFingerprint) })
		})
	}
	return loading.Wait
}

// readyToHash says whether the kernel is there on all devices of a transfer, and loads it first.
// One refusal is enough to do without from then on, which is said once.
func (e *Engine) readyToHash(t *transfer) (bool, error) {
	defer func(begun time.Time) { t.checked += time.Since(begun) }(time.Now())
	for _, dev := range t.devices() {
		if e.hash.refused || e.hash.loaded[dev] {
			continue
		}
		if err := e.withDevice(dev, e.drv.LoadFingerprint); err != nil {
			e.hash.refused = true
			e.log.Printf("the driver does not load ebb's kernel on device %d: blocks are hashed by the CPU, zero and unchanged ones are moved, writes during a pause are not found: %v", dev, err)
			break
		}
		if err := e.withDevice(dev, e.makeHashers); err != nil {
			return false, err
		}
		e.hash.loaded[dev] = true
	}
	return !e.hash.refused, nil
}

// makeHashers makes what launches need, once, for all contexts.
func (e *Engine) makeHashers() (err error) {
	for i := range e.hash.lanes {
		if e.hash.lanes[i] == nil {
			if e.hash.lanes[i], err = e.drv.NewHasher(e.hash.key, hashTiles); err != nil {
				return err
			}
		}
	}
	return nil
}

// hashed is what a launch was given: numbers of blocks, in the order of its spans.
type hashed struct {
	hasher device.Hasher
	stream device.Stream
	spans  []device.Span
	blocks []int32
}

// hashBlocks hashes the device memory of all blocks of a transfer that want wants, and calls got
// for each, in the order of their numbers within a device. The kernel must be ready.
func (e *Engine) hashBlocks(t *transfer, want func(n int) bool, got func(n int, s fingerprint.Sum, zero bool)) error {
	defer func(begun time.Time) { t.checked += time.Since(begun) }(time.Now())
	for _, dev := range t.devices() {
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
		l.hasher = e.hash.lanes[i]
		if l.stream, err = e.drv.StreamCreate(); err != nil {
			return err
		}
		// An error of the driver's would have shown when the stream was waited for.
		defer func() { err = errors.Join(err, e.drv.StreamSynchronize(l.stream), e.drv.StreamDestroy(l.stream)) }()
	}
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
