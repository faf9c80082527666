package engine

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/ebb-offload/ebb/internal/alloc"
	"github.com/ebb-offload/ebb/internal/mem"
)

func (r *rig) reads(a *array, off, n int) {
	r.t.Helper()
	p := make([]byte, n)
	if err := r.Read(a.addr+mem.Addr(off), p, false); err != nil {
		r.t.Fatal(err)
	}
	if !bytes.Equal(p, a.want[off:off+n]) {
		r.t.Fatalf("read of %d bytes at offset %d gives other bytes", n, off)
	}
}

func TestReadGivesTheBytesActiveAndPausedFromEveryBackup(t *testing.T) {
	for name, reg := range map[string]Region{"disk": disk("x"), "pinned": pinned("x"), "mmap": mmap("x")} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			a := r.make(2<<20+4097, 0, reg)
			size := len(a.want)
			check := func() {
				for _, c := range [][2]int{{0, size}, {0, 1}, {size - 1, 1}, {4095, 2}, {int(r.block) - 1, 2}, {int(r.block), int(r.block)}, {size, 0}} {
					if c[1] > 0 {
						r.reads(a, c[0], c[1])
					}
				}
				for range 20 {
					off := rand.IntN(size)
					r.reads(a, off, 1+rand.IntN(size-off))
				}
			}
			check()
			r.pause()
			check()
			r.resume()
			check()
		})
	}
}

func TestReadOfPausedMemoryDoesNotUseTheDevice(t *testing.T) {
	r := newRig(t)
	a := r.make(1<<20, 0, disk("x"))
	r.pause()
	r.fault("cuCtxSynchronize:*:700,cuMemcpyDtoHAsync:*:700,cuStreamCreate:*:700,cuCtxSetCurrent:*:700")
	r.reads(a, 100, 5000)
	r.fault("")
	r.resume()
}

func TestReadRefusesWhatHasNoBytes(t *testing.T) {
	r := newRig(t)
	a, b := r.make(1000, 0, disk("x")), r.make(1000, 0, none("y"))
	p := make([]byte, 1000)
	if err := r.Read(a.addr+1, p, false); !errors.Is(err, alloc.ErrNotManaged) {
		t.Errorf("past the end: %v", err)
	}
	if err := r.Read(12345, p, false); !errors.Is(err, alloc.ErrNotManaged) {
		t.Errorf("other memory: %v", err)
	}
	if err := r.Read(a.addr, p, true); !errors.Is(err, ErrCapture) {
		t.Errorf("active, during a capture: %v", err)
	}
	r.pause()
	if err := r.Read(b.addr, p, false); !errors.Is(err, ErrState) {
		t.Errorf("paused without backup: %v", err)
	}
	if err := r.Read(a.addr, p, true); err != nil {
		t.Errorf("paused, during a capture: %v", err)
	}
	if err := r.Read(12345, nil, false); err != nil {
		t.Errorf("no bytes: %v", err)
	}
}

func TestAPauseOfNothingInAProcessWithOtherMemoryIsAnError(t *testing.T) {
	r := newRig(t)
	other := r.set
	other.Unmanaged = 3
	if _, err := r.Pause(nil, other); !errors.Is(err, ErrUnmanaged) || Code(err) != CodeUnmanaged {
		t.Fatalf("nothing managed: %v", err)
	}
	r.make(1000, 0, disk("x"))
	if res, err := r.Pause(nil, other); err != nil || res.Allocations != 1 {
		t.Fatalf("something managed: %+v, %v", res, err)
	}
	if _, err := r.Pause(nil, other); err != nil {
		t.Fatalf("a repeat: %v", err)
	}
}

func TestDetailsCarryTheNumbers(t *testing.T) {
	err := &DeviceMemoryError{Device: 1, Need: 20, Free: 10}
	want := `{"code":9,"message":"not enough memory on device 1: 20 bytes needed, 10 bytes free","device":1,"need_bytes":20,"free_bytes":10}`
	if got := string(Details(err)); got != want {
		t.Fatalf("got  %s\nwant %s", got, want)
	}
}
