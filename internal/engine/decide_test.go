package engine

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/ebb-offload/ebb/internal/device"
	"github.com/ebb-offload/ebb/internal/mem"
	"github.com/ebb-offload/ebb/internal/pipeline"
)

// movingRig is a hostRig whose pauses move while they hash: there is host memory, and the way is known. Device 0 is hashed
// first; when begun is set, what hashing does on device 1 goes through look, once blocks of device 0 are being copied.
func movingRig(t *testing.T) (*rig, []*array, *looksAtDevice1) {
	t.Helper()
	r, list := hostRig(t)
	r.bySnapshot()
	r.tunings = append(r.tunings, tuning{Direction: "resume", BlockBytes: 128 << 10, Workers: 2})
	l := &looksAtDevice1{Driver: r.drv, r: r, copied: make(chan struct{})}
	r.drv = l
	t.Cleanup(func() { r.drv = l.Driver })
	r.pause()
	r.resume()
	r.change(list)
	return r, list, l
}

type looksAtDevice1 struct {
	device.Driver
	r      *rig
	begun  atomic.Bool
	once   sync.Once
	copied chan struct{} // closed by the first copy to the host after begun
	look   func() error
	late   atomic.Bool // no copy came while device 1 was not hashed yet
}

func (l *looksAtDevice1) CopyToHost(dst unsafe.Pointer, src mem.Addr, n uint64, s device.Stream) error {
	if l.begun.Load() {
		l.once.Do(func() { close(l.copied) })
	}
	return l.Driver.CopyToHost(dst, src, n, s)
}

func (l *looksAtDevice1) StreamSynchronize(s device.Stream) error {
	if l.begun.Load() {
		if lanes := l.r.hash.streams[1]; s == lanes[0] || s == lanes[1] {
			select {
			case <-l.copied:
			case <-time.After(time.Minute): // nothing would ever come
				l.late.Store(true)
			}
			if err := l.look(); err != nil {
				return err
			}
		}
	}
	return l.Driver.StreamSynchronize(s)
}

func TestBlocksGoToHostMemoryWhileOthersAreHashed(t *testing.T) {
	r, list, l := movingRig(t)
	l.look = func() error { return nil }
	l.begun.Store(true)
	res := r.pause()
	l.begun.Store(false)
	if l.late.Load() {
		t.Error("nothing was copied before all was hashed")
	}
	if res.SkippedZero != 1<<20 || res.HostBytes+res.SkippedZero != res.Bytes || res.Workers != 2 {
		t.Errorf("%+v", res)
	}
	for _, a := range list {
		r.reads(a, 0, len(a.want))
	}
	r.resume()
	r.holds(list...)
}

// Whatever ends the hashing while blocks are moved, nothing moves any more when the pause returns, and it gives back what it
// took.
func TestHashingThatEndsWhileBlocksMove(t *testing.T) {
	for name, c := range map[string]struct {
		look func() error
		is   func(error) bool
	}{
		"the driver refuses": {
			func() error {
				return &device.Error{Call: "cuStreamSynchronize", Code: device.CodeUnknown, Name: "CUDA_ERROR_UNKNOWN"}
			},
			func(err error) bool { return device.IsCode(err, device.CodeUnknown) },
		},
		"a defect of ebb": {
			func() error { panic("a defect") },
			func(err error) bool { return errors.Is(err, pipeline.ErrPanic) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			r, list, l := movingRig(t)
			free := [2]uint64{r.free(0), r.free(1)}
			l.look = c.look
			l.begun.Store(true)
			_, err := r.Pause(nil, r.set)
			l.begun.Store(false)
			if !c.is(err) || l.late.Load() {
				t.Fatalf("got %v; nothing was copied: %v", err, l.late.Load())
			}
			if r.free(0) != free[0] || r.free(1) != free[1] {
				t.Errorf("free before: %v, after: %d and %d", free, r.free(0), r.free(1))
			}
			r.holds(list...)
			r.change(list)
			r.pause()
			r.resume()
			r.holds(list...)
		})
	}
}

// What moves, what is zero and what stays as it is changes from block to block and from pause to pause, on both devices.
func TestWhatIsDecidedWhileBlocksMove(t *testing.T) {
	r, list, _ := movingRig(t)
	const block = 128 << 10
	zeros := make([]byte, block)
	r.pause()
	r.resume()
	for round := range 6 {
		var want, changed uint64 // bytes of blocks that move; of those in which something is written
		for i, a := range list[:2] {
			for off := 0; off+block <= len(a.want); off += block {
				switch n := off/block + i + round; {
				case n%5 == 0: // to zero, which needs no move
					r.write(a, off, zeros)
				case n%3 == 0:
					p := make([]byte, block)
					for k := range p {
						p[k] = byte(1 + n + k%7)
					}
					r.write(a, off, p)
					want += block
				default:
					continue
				}
				changed += block
			}
		}
		res := r.pause()
		if res.HostBytes != want || changed <= want || res.HostBytes+res.SkippedSame+res.SkippedZero != res.Bytes {
			t.Fatalf("round %d: %d bytes are to move: %+v", round, want, res)
		}
		for _, a := range list {
			r.reads(a, 0, len(a.want))
		}
		r.resume()
		r.holds(list...)
	}
}

// A pause in which nothing is to move wakes no worker and takes nothing of devices, as it would if it decided first.
func TestNothingToMoveTakesNoWorkers(t *testing.T) {
	r, list := hostRig(t)
	r.bySnapshot()
	made := &makesCounter{Driver: r.drv}
	r.drv = made
	t.Cleanup(func() { r.drv = made.Driver })
	for _, same := range []bool{false, false, true} { // the first has no host memory yet
		if !same {
			r.change(list)
		}
		made.n.Store(0)
		res := r.pause()
		if same && (res.Workers != 0 || made.n.Load() != 0 || res.SkippedSame+res.SkippedZero != res.Bytes) {
			t.Errorf("%d pieces of device memory were made: %+v", made.n.Load(), res)
		}
		if !same && (res.Workers != 2 || made.n.Load() == 0) {
			t.Errorf("%d pieces of device memory were made: %+v", made.n.Load(), res)
		}
		r.resume()
		r.holds(list...)
	}
}

// makesCounter counts the pieces of device memory that are made.
type makesCounter struct {
	device.Driver
	n atomic.Int64
}

func (c *makesCounter) MemCreate(size uint64, p mem.Props) (mem.Handle, error) {
	c.n.Add(1)
	return c.Driver.MemCreate(size, p)
}
