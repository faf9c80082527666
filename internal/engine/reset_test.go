package engine

import (
	"errors"
	"sync"
	"testing"

	"github.com/ebb-offload/ebb/internal/alloc"
	"github.com/ebb-offload/ebb/internal/device/cuda"
)

// reset is a reset of a device by the program, of which the engine is told.
func (r *rig) reset(dev int) {
	r.t.Helper()
	check(r.t, r.BeginReset())
	err := cuda.ResetSoftwareDevice(r.drv, dev)
	check(r.t, errors.Join(err, r.EndReset(dev, err == nil)))
}

// resettable are the ways in which bytes are parked.
var resettable = map[string]struct {
	config Config
	region Region
}{
	"disk":          {Config{}, disk("x")},
	"disk and host": {Config{HostBytes: 3 << 20}, disk("x")},
	"mmap":          {Config{}, mmap("x")},
	"arena":         {Config{HostArena: true}, pinned("x")},
}

// A reset ends streams, kernels, results of hashes and pins of the engine's. Managed memory has its bytes
// all the same, and what was parked can be read before anything else happens.
func TestAResetOfADeviceLosesNothing(t *testing.T) {
	for name, c := range resettable {
		t.Run(name, func(t *testing.T) {
			c.config.ChunkBytes = 4 << 20
			r := newRigWith(t, c.config)
			a, b := r.make(5<<20+100, 0, c.region), r.make(1<<20, 1, c.region)
			r.reset(0) // before anything was made
			for range 2 {
				r.pause()
				r.reset(0)
				r.reads(a, 0, len(a.want))
				r.reads(b, 0, len(b.want))
				r.resume()
				r.holds(a, b)
				r.reset(1)
				r.reset(0)
				r.write(a, 4<<20, randomBytes(1000))
				r.pause()
				r.reset(1)
				r.resume()
				r.holds(a, b)
			}
			r.holds(r.make(1<<20, 0, c.region))
		})
	}
}

// Where what is parked in host memory cannot be pinned again, a resume says so and leaves all paused.
func TestAfterAResetHostMemoryIsPinnedAgain(t *testing.T) {
	r := newRigWith(t, Config{ChunkBytes: 4 << 20, HostArena: true})
	a := r.make(5<<20, 0, pinned("x"))
	r.pause()
	r.reset(0)
	r.fault("cuMemHostRegister:1:999")
	if _, err := r.Resume(nil, r.set); Code(err) != CodeDevice {
		t.Errorf("%v", err)
	}
	r.fault("")
	if r.state(a) != alloc.Paused {
		t.Fatal("it is not paused any more")
	}
	r.reads(a, 0, len(a.want))
	r.resume()
	r.holds(a)
}

// Pinned memory of the driver's goes with its context: not while it holds the only copy.
func TestAResetThatWouldTakePausedBytesIsRefused(t *testing.T) {
	r := newRig(t)
	r.set.RetainCPU = true
	a := r.make(5<<20, 0, pinned("x"))
	r.pause()
	if err := r.BeginReset(); !errors.Is(err, ErrState) {
		t.Fatalf("%v, want ErrState", err)
	}
	r.resume()
	r.holds(a)
	r.reset(0) // the retained copy goes
	r.holds(a)
	r.pause()
	r.resume()
	r.holds(a)
}

// A reset that the driver refuses has ended nothing.
func TestAResetThatFailsChangesNothing(t *testing.T) {
	r := newRig(t)
	a := r.make(5<<20, 0, mmap("x"))
	r.pause()
	check(t, r.BeginReset())
	check(t, r.EndReset(0, false))
	r.resume()
	r.holds(a)
	if err := r.EndReset(0, true); !errors.Is(err, ErrState) {
		t.Errorf("the end of no reset: %v", err)
	}
}

// Pauses, resumes and reads of other threads come before a reset or after it, never into it.
func TestResetsAndPausesTakeTurns(t *testing.T) {
	r := newRig(t)
	a, b := r.make(3<<20, 0, disk("a")), r.make(1<<20, 1, mmap("b"))
	var threads sync.WaitGroup
	for _, tag := range []string{"a", "b"} {
		threads.Go(func() {
			for range 10 {
				if _, err := r.Pause([]string{tag}, r.set); err != nil {
					t.Error(err)
				}
				if _, err := r.Resume([]string{tag}, r.set); err != nil {
					t.Error(err)
				}
			}
		})
	}
	threads.Go(func() {
		for i := range 20 {
			r.reset(i % 2)
		}
	})
	threads.Wait()
	r.holds(a, b)
}
