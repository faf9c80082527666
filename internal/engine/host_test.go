package engine

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"

	"github.com/ebb-offload/ebb/internal/device"
	"github.com/ebb-offload/ebb/internal/mem"
	"github.com/ebb-offload/ebb/internal/pipeline"
)

// Under the launcher CPU backups lie in an arena: after the first pause nothing is pinned any more,
// and what did not change is not copied.
func TestTheArenaIsPinnedOnceAndKeepsWhatItHolds(t *testing.T) {
	for name, reg := range map[string]Region{"pinned": pinned("x"), "mmap": mmap("x")} {
		t.Run(name, func(t *testing.T) {
			r := newRigWith(t, Config{ChunkBytes: 4 << 20, HostArena: true})
			pins := &pinCounter{}
			r.at(&pins.moments)
			r.drv = pins
			a, b := r.make(9<<20+5, 0, reg), r.make(100, 1, reg)
			all := uint64(len(a.want) + len(b.want))
			if res := r.pause(); res.HostBytes != all {
				t.Fatalf("%+v", res)
			}
			if pins.registered.Load() == 0 || pins.allocated.Load() > int64(2+2*r.workers) { // what hashers need
				t.Errorf("%d ranges registered, %d allocated", pins.registered.Load(), pins.allocated.Load())
			}
			r.resume()
			r.holds(a, b)
			before := [2]int64{pins.registered.Load(), pins.allocated.Load()}
			for range 3 {
				r.write(a, 5<<20, randomBytes(1))
				if res := r.pause(); res.HostBytes > r.block || res.SkippedSame < all-r.block {
					t.Fatalf("%+v", res)
				}
				r.resume()
				r.holds(a, b)
			}
			if after := [2]int64{pins.registered.Load(), pins.allocated.Load()}; after != before {
				t.Errorf("pinned again: %v, before %v", after, before)
			}
			if s := r.hostStatus(); s.Held == 0 || s.Bytes < all {
				t.Errorf("%+v", s)
			}
		})
	}
}

// A program that was given the pointer of a copy which is kept may write to it: the next pause makes the
// copy the device's bytes again, those that are zero too.
func TestACopyThatTheProgramWroteToIsMadeAnew(t *testing.T) {
	for name, c := range map[string]Config{"arena": {ChunkBytes: 4 << 20, HostArena: true}, "retained": {ChunkBytes: 4 << 20}} {
		for kind, reg := range map[string]Region{"pinned": pinned("x"), "mmap": mmap("x")} {
			t.Run(name+", "+kind, func(t *testing.T) {
				r := newRigWith(t, c)
				r.set.RetainCPU = true
				a, other := r.make(5<<20+7, 0, reg), r.make(1<<20, 0, reg)
				r.write(a, 1<<20, make([]byte, 2<<20))
				r.pause()
				p, err := r.BackupPointer(a.addr, uint64(len(a.want)))
				check(t, err)
				shown := unsafe.Slice((*byte)(p), len(a.want))
				for range 3 {
					r.resume()
					for i := range shown {
						shown[i] ^= 0xff
					}
					res := r.pause()
					if !bytes.Equal(shown, a.want) {
						t.Fatal("the copy holds other bytes than the memory")
					}
					if res.SkippedZero != 2<<20 || res.SkippedSame != uint64(len(other.want)) {
						t.Errorf("%+v: memory that nobody was given a pointer of is skipped, and no other", res)
					}
					r.reads(a, 0, len(a.want))
				}
				r.resume()
				r.holds(a, other)
			})
		}
	}
}

// While memory is paused its copy is all that there is of it: one that was changed is not brought back as
// if it were right, and not given up either.
func TestACopyThatTheProgramWroteToWhilePausedIsCorrupt(t *testing.T) {
	r := newRigWith(t, Config{ChunkBytes: 4 << 20, HostArena: true})
	a := r.make(1<<20, 0, pinned("x"))
	r.pause()
	p, err := r.BackupPointer(a.addr, 1)
	check(t, err)
	*(*byte)(p) ^= 1
	if _, err := r.Resume(nil, r.set); !errors.Is(err, ErrCorrupt) {
		t.Fatalf("got %v", err)
	}
	*(*byte)(p) ^= 1
	r.resume()
	r.holds(a)
}

type pinCounter struct {
	moments
	registered, allocated atomic.Int64
}

func (p *pinCounter) HostRegister(at unsafe.Pointer, n uint64) error {
	p.registered.Add(1)
	return p.Driver.HostRegister(at, n)
}

func (p *pinCounter) HostAlloc(n uint64) (unsafe.Pointer, error) {
	p.allocated.Add(1)
	return p.Driver.HostAlloc(n)
}

// Disk backups begin in host memory, up to the budget, and go on in files.
// hostRig is an engine with blocks of 128 KiB, whose CPU backups lie in the arena, and memory on both
// devices of which some is zero and some ends within a block.
func hostRig(t *testing.T) (*rig, []*array) {
	t.Helper()
	r := newRigWith(t, Config{ChunkBytes: 1 << 20, HostArena: true})
	list := []*array{r.make(20<<20+100, 0, pinned("x")), r.make(3<<20, 1, pinned("x"))}
	for range 40 {
		list = append(list, r.make(100<<10, 0, pinned("x")))
	}
	r.write(list[0], 1<<20, make([]byte, 1<<20))
	return r, list
}

// change writes other bytes, so that all blocks move, and leaves the zeros.
func (r *rig) change(list []*array) {
	r.t.Helper()
	for _, a := range list {
		r.fill(a, len(a.want))
	}
	r.write(list[0], 1<<20, make([]byte, 1<<20))
}

// bySnapshot has pauses to host memory go by way of snapshots, as if that had been found best.
func (r *rig) bySnapshot() {
	r.tunings = append(r.tunings, tuning{Direction: "pause", BlockBytes: 128 << 10, Workers: 2, Snapshot: true})
}

// How host memory is best reached is found out when it is there, on bytes that are moved anyway.
func TestTheWayToHostMemoryIsFoundByTrial(t *testing.T) {
	r, list := hostRig(t)
	for range 3 {
		r.pause()
		r.resume()
		r.holds(list...)
		r.change(list)
	}
	var s Status
	check(t, json.Unmarshal(r.Status(nil), &s))
	if len(s.Probes) != 2 || s.Probes[0].Direction != "resume" || s.Probes[1].Direction != "pause" {
		t.Fatalf("probes %+v: a pause that takes memory finds out nothing about it", s.Probes)
	}
	var ways []string
	for _, p := range s.Probes {
		if p.Dirs != "" || p.BlockBytes != 128<<10 {
			t.Errorf("%+v", p)
		}
		for _, trial := range p.Trials {
			ways = append(ways, fmt.Sprintln(p.Direction, trial.Workers, trial.Snapshot))
		}
	}
	if d := cmp.Diff([]string{"resume 2 false\n", "resume 4 false\n", "pause 1 true\n", "pause 2 true\n", "pause 4 false\n", "pause 4 false\n"}, ways); d != "" {
		t.Error(d)
	}
}

func TestBytesThatGoByWayOfASnapshotAreThoseThatWereThere(t *testing.T) {
	r, list := hostRig(t)
	r.bySnapshot()
	free := [2]uint64{r.free(0), r.free(1)}
	for range 2 {
		res := r.pause()
		if res.SkippedZero != 1<<20 || res.HostBytes+res.SkippedZero != res.Bytes || res.Workers != 2 {
			t.Fatalf("%+v", res)
		}
		for _, a := range list {
			r.reads(a, 0, len(a.want))
		}
		r.resume()
		r.holds(list...)
		r.change(list)
	}
	if r.free(0) != free[0] || r.free(1) != free[1] {
		t.Errorf("free before: %v, after: %d and %d", free, r.free(0), r.free(1))
	}
}

// Workers that begin at the same moment do not take turns.
func TestNeighboursAreCopiedTogetherWhoeverTakesThem(t *testing.T) {
	r, list := hostRig(t)
	r.bySnapshot()
	r.tunings = append(r.tunings, tuning{Direction: "resume", BlockBytes: 128 << 10, Workers: 2})
	copies := &joined{Driver: r.drv}
	r.drv = copies
	t.Cleanup(func() { r.drv = copies.Driver })
	for range 20 {
		copies.out.Store(0)
		copies.in.Store(0)
		r.pause()
		r.resume()
		out, in := copies.out.Load(), copies.in.Load() // and not those of the test itself
		if out < 4<<20 || in < 18<<20 {                // while memory is hashed, 8 MiB are known at a time
			t.Fatalf("the largest copies have %d and %d bytes, of neighbours that are more than 18 MiB", out, in)
		}
		r.change(list)
	}
	r.holds(list...)
}

// joined is the driver, and remembers the largest copy each way.
type joined struct {
	device.Driver
	out, in atomic.Uint64
}

func (j *joined) CopyToHost(dst unsafe.Pointer, src mem.Addr, n uint64, s device.Stream) error {
	most(&j.out, n)
	return j.Driver.CopyToHost(dst, src, n, s)
}

func (j *joined) CopyToDevice(dst mem.Addr, src unsafe.Pointer, n uint64, s device.Stream) error {
	most(&j.in, n)
	return j.Driver.CopyToDevice(dst, src, n, s)
}

func most(of *atomic.Uint64, n uint64) {
	for now := of.Load(); n > now && !of.CompareAndSwap(now, n); now = of.Load() {
	}
}

// Memory that changes while its snapshot is on the way is saved as it is in the end.
func TestAWriteDuringASnapshotIsSaved(t *testing.T) {
	r, list := hostRig(t)
	r.bySnapshot()
	var once sync.Once
	w := &whileCopied{Driver: r.drv, do: func() {
		once.Do(func() {
			poke(list[0].addr, list[0].want[0]^1)
			poke(list[0].addr+5<<20, list[0].want[5<<20]^1)
		})
	}}
	r.drv = w
	r.pause()
	r.drv = w.Driver
	list[0].want[0] ^= 1
	list[0].want[5<<20] ^= 1
	r.resume()
	r.holds(list...)
}

// whileCopied is the driver, and does something when a copy to the host is submitted.
type whileCopied struct {
	device.Driver
	do func()
}

func (w *whileCopied) CopyToHost(dst unsafe.Pointer, src mem.Addr, n uint64, s device.Stream) error {
	w.do()
	return w.Driver.CopyToHost(dst, src, n, s)
}

// Where there is no device memory for snapshots, as many workers move as without them.
func TestWithoutSnapshotsMoreWorkersMove(t *testing.T) {
	r, list := hostRig(t)
	r.bySnapshot()
	r.fault("cuMemCreate:1:2")
	res := r.pause()
	r.fault("")
	if res.Workers <= 2 {
		t.Errorf("%d workers", res.Workers)
	}
	r.resume()
	r.holds(list...)
}

// That a second device has no room for one shows when a batch of its blocks was taken already. They are copied one by one.
func TestABatchWithoutItsSnapshotIsCopiedOneByOne(t *testing.T) {
	r, list := hostRig(t)
	r.bySnapshot()
	w := &roomOnOne{Driver: r.drv}
	r.drv = w
	res := r.pause()
	r.drv = w.Driver
	if res.Workers != 2 || w.refused.Load() == 0 || w.alone.Load() != 3<<20/(128<<10) {
		t.Errorf("%d workers, %d snapshots refused, %d blocks copied by themselves", res.Workers, w.refused.Load(), w.alone.Load())
	}
	r.resume()
	r.holds(list...)
}

// roomOnOne is the driver, with no room on the second device; it counts the blocks that kernels copy to host memory.
type roomOnOne struct {
	device.Driver
	refused, alone atomic.Int64
}

func (w *roomOnOne) MemCreate(n uint64, props mem.Props) (mem.Handle, error) {
	if props.LocationID == 1 {
		w.refused.Add(1)
		return 0, &device.Error{Call: "cuMemCreate", Code: device.CodeOutOfMemory, Name: "CUDA_ERROR_OUT_OF_MEMORY"}
	}
	return w.Driver.MemCreate(n, props)
}

func (w *roomOnOne) HostDevicePointer(p unsafe.Pointer) (mem.Addr, error) {
	w.alone.Add(1)
	return w.Driver.HostDevicePointer(p)
}

// Snapshots that only some workers could have are given back before anything moves without them.
func TestSnapshotsOfSomeWorkersAreGivenBackAtOnce(t *testing.T) {
	r, list := hostRig(t)
	r.bySnapshot()
	free := r.free(0)
	var least atomic.Uint64
	least.Store(math.MaxUint64)
	first := r.primary(0)
	w := &whileReached{Driver: r.drv, do: func() {
		if ctx, err := r.drv.Context(); err != nil || ctx != first {
			check(t, err)
			return // of the other device something else is free
		}
		now, _, err := r.drv.MemInfo()
		check(t, err)
		for old := least.Load(); now < old && !least.CompareAndSwap(old, now); old = least.Load() {
		}
	}}
	r.fault("cuMemCreate:2:2")
	r.drv = w
	r.pause()
	r.drv = w.Driver
	r.fault("")
	if got := least.Load(); got != free {
		t.Errorf("%d bytes were free before, %d when blocks were copied", free, got)
	}
	r.resume()
	r.holds(list...)
}

// whileReached is the driver, and does something when a kernel is about to copy to host memory.
type whileReached struct {
	device.Driver
	do func()
}

func (w *whileReached) HostDevicePointer(p unsafe.Pointer) (mem.Addr, error) {
	w.do()
	return w.Driver.HostDevicePointer(p)
}

// Snapshots are given back while the device is waited for and memory is hashed again. A pause that fails there does not end
// before they are.
func TestSnapshotsAreGivenBackBeforeAPauseThatFailsEnds(t *testing.T) {
	r, list := hostRig(t)
	r.bySnapshot()
	free := [2]uint64{r.free(0), r.free(1)}
	w := &faultAfterCopies{Driver: r.drv, failed: make(chan struct{})}
	r.drv = w
	_, err := r.Pause(nil, r.set)
	r.drv = w.Driver
	now := [2]uint64{r.free(0), r.free(1)}
	if !device.IsCode(err, device.CodeUnknown) || !w.copied.Load() {
		t.Fatalf("got %v", err)
	}
	if now != free {
		t.Errorf("free before: %v, after: %v", free, now)
	}
	r.holds(list...)
}

// faultAfterCopies is the driver of a device that fails after copies to the host, and unmaps memory only after that.
type faultAfterCopies struct {
	device.Driver
	copied atomic.Bool
	once   sync.Once
	failed chan struct{} // closed when it was told that the device fails
}

func (w *faultAfterCopies) CopyToHost(dst unsafe.Pointer, src mem.Addr, n uint64, s device.Stream) error {
	w.copied.Store(true)
	return w.Driver.CopyToHost(dst, src, n, s)
}

func (w *faultAfterCopies) Synchronize() error {
	if w.copied.Load() {
		defer w.once.Do(func() { close(w.failed) })
		return &device.Error{Call: "cuCtxSynchronize", Code: device.CodeUnknown, Name: "CUDA_ERROR_UNKNOWN"}
	}
	return w.Driver.Synchronize()
}

func (w *faultAfterCopies) MemUnmap(addr mem.Addr, n uint64) error {
	if w.copied.Load() {
		<-w.failed
	}
	return w.Driver.MemUnmap(addr, n)
}

// A wait that fails leaves copies under way. They are waited for before the snapshots that they read and write are
// given back.
func TestASnapshotIsGivenBackWhenNothingUsesItAnyMore(t *testing.T) {
	r, list := hostRig(t)
	r.bySnapshot()
	free := [2]uint64{r.free(0), r.free(1)}
	w := &refusesToWait{Driver: r.drv}
	w.begun.Store(true)
	r.drv = w
	_, err := r.Pause(nil, r.set)
	r.drv = w.Driver
	if !device.IsCode(err, device.CodeUnknown) || w.copies.Load() == 0 {
		t.Fatalf("got %v after %d copies", err, w.copies.Load())
	}
	if r.free(0) != free[0] || r.free(1) != free[1] {
		t.Errorf("free before: %v, after: %d and %d", free, r.free(0), r.free(1))
	}
	r.holds(list...)
	r.pause()
	r.resume()
	r.holds(list...)
}

// Nor is memory unmapped to which copies are under way: the worker that they are of waits for them, too, whatever
// becomes of the engine's own wait.
func TestMemoryOfAResumeThatFailedIsUnmappedWhenNothingUsesItAnyMore(t *testing.T) {
	r, list := hostRig(t)
	w := &refusesToWait{Driver: r.drv, alone: true}
	w.unmaps = func() {
		if !w.waited.Load() {
			t.Error("memory is unmapped while copies are under way")
		}
	}
	r.drv = w
	r.pause()
	w.begun.Store(true)
	_, err := r.Resume(nil, r.set)
	r.drv = w.Driver
	if !device.IsCode(err, device.CodeUnknown) || w.copies.Load() == 0 {
		t.Fatalf("got %v after %d copies", err, w.copies.Load())
	}
	r.resume()
	r.holds(list...)
}

// refusesToWait is the driver, and once it has begun does not wait the first time after a copy between host and device.
type refusesToWait struct {
	device.Driver
	begun   atomic.Bool
	copies  atomic.Int64
	once    sync.Once
	refused atomic.Uintptr // the stream
	waited  atomic.Bool    // for that one, since
	alone   bool           // from then on no device can be waited for as a whole
	unmaps  func()         // called when memory is unmapped after the refusal
}

func (w *refusesToWait) CopyToDevice(dst mem.Addr, src unsafe.Pointer, n uint64, s device.Stream) error {
	if w.begun.Load() {
		w.copies.Add(1)
	}
	return w.Driver.CopyToDevice(dst, src, n, s)
}

func (w *refusesToWait) Synchronize() error {
	if w.alone && w.refused.Load() != 0 {
		return &device.Error{Call: "cuCtxSynchronize", Code: device.CodeUnknown, Name: "CUDA_ERROR_UNKNOWN"}
	}
	return w.Driver.Synchronize()
}

func (w *refusesToWait) MemUnmap(addr mem.Addr, n uint64) error {
	if w.unmaps != nil && w.refused.Load() != 0 {
		w.unmaps()
	}
	return w.Driver.MemUnmap(addr, n)
}

func (w *refusesToWait) CopyToHost(dst unsafe.Pointer, src mem.Addr, n uint64, s device.Stream) error {
	if w.begun.Load() {
		w.copies.Add(1)
	}
	return w.Driver.CopyToHost(dst, src, n, s)
}

func (w *refusesToWait) StreamSynchronize(s device.Stream) (err error) {
	if w.copies.Load() > 0 {
		w.once.Do(func() {
			err = &device.Error{Call: "cuStreamSynchronize", Code: device.CodeUnknown, Name: "CUDA_ERROR_UNKNOWN"}
			w.refused.Store(uintptr(s))
		})
	}
	if err != nil {
		return err
	}
	err = w.Driver.StreamSynchronize(s)
	if w.refused.Load() == uintptr(s) {
		w.waited.Store(true)
	}
	return err
}

// A defect of ebb in the midst of a copy fails the pause, and leaves no snapshot on the device.
func TestAPanicLeavesNoSnapshot(t *testing.T) {
	r, list := hostRig(t)
	r.bySnapshot()
	free := [2]uint64{r.free(0), r.free(1)}
	w := &whileCopied{Driver: r.drv, do: func() { panic("a defect") }}
	r.drv = w
	if _, err := r.Pause(nil, r.set); !errors.Is(err, pipeline.ErrPanic) {
		t.Errorf("got %v", err)
	}
	if r.free(0) != free[0] || r.free(1) != free[1] {
		t.Errorf("free before: %v, after: %d and %d", free, r.free(0), r.free(1))
	}
	r.drv = w.Driver
	r.holds(list...)
}

// Nor does one while a snapshot is made.
func TestASnapshotThatAPanicLeftHalfMadeIsGivenBack(t *testing.T) {
	r, list := hostRig(t)
	r.bySnapshot()
	var begun atomic.Bool
	w := &whileMapped{Driver: r.drv, do: func() {
		if begun.Load() {
			panic("a defect")
		}
	}}
	r.drv = w
	t.Cleanup(func() { r.drv = w.Driver })
	r.pause() // so that no host memory is still being made, by way of the driver
	r.resume()
	r.change(list)
	free := [2]uint64{r.free(0), r.free(1)}
	begun.Store(true)
	_, err := r.Pause(nil, r.set)
	begun.Store(false)
	if !errors.Is(err, pipeline.ErrPanic) {
		t.Errorf("got %v", err)
	}
	if r.free(0) != free[0] || r.free(1) != free[1] {
		t.Errorf("free before: %v, after: %d and %d", free, r.free(0), r.free(1))
	}
	r.holds(list...)
}

// whileMapped is the driver, and does something when memory is about to be mapped.
type whileMapped struct {
	device.Driver
	do func()
}

func (w *whileMapped) MemMap(addr mem.Addr, n, off uint64, h mem.Handle) error {
	w.do()
	return w.Driver.MemMap(addr, n, off, h)
}

// A snapshot whose end was a defect is used by no later pause.
func TestASnapshotThatWasHalfGivenBackIsNotUsedAgain(t *testing.T) {
	r, list := hostRig(t)
	r.bySnapshot()
	var once sync.Once
	w := &whileUnmapped{Driver: r.drv, do: func() { once.Do(func() { panic("a defect") }) }}
	r.drv = w
	if _, err := r.Pause(nil, r.set); !errors.Is(err, pipeline.ErrPanic) {
		t.Errorf("got %v", err)
	}
	r.drv = w.Driver
	r.change(list)
	r.pause()
	r.resume()
	r.holds(list...)
}

// whileUnmapped is the driver, and does something when memory was just unmapped.
type whileUnmapped struct {
	device.Driver
	do func()
}

func (w *whileUnmapped) MemUnmap(addr mem.Addr, n uint64) error {
	err := w.Driver.MemUnmap(addr, n)
	w.do()
	return err
}

// A snapshot that cannot be made is done without; what fails with one fails the pause, and leaves
// nothing on the device.
func TestSnapshotsThatFail(t *testing.T) {
	for fault, fails := range map[string]bool{
		"cuMemCreate:*:2": false, "cuMemAddressReserve:1:2": false, "cuMemMap:1:2": false, "cuMemSetAccess:1:999": false,
		"cuMemcpyDtoHAsync:2:999": true, "cuLaunchKernel:5:999": true,
	} {
		t.Run(fault, func(t *testing.T) {
			r, list := hostRig(t)
			r.bySnapshot()
			free := r.free(0)
			r.fault(fault)
			_, err := r.Pause(nil, r.set)
			r.fault("")
			if (err != nil) != fails {
				t.Fatalf("got %v", err)
			}
			if fails {
				if r.free(0) != free {
					t.Errorf("%d bytes were free before, %d are now", free, r.free(0))
				}
				r.pause()
			}
			r.resume()
			r.holds(list...)
			if r.free(0) != free {
				t.Errorf("%d bytes were free before, %d are in the end", free, r.free(0))
			}
		})
	}
}

func TestDiskBackupsFillTheHostBudgetFirst(t *testing.T) {
	r := newRigWith(t, Config{ChunkBytes: 4 << 20, HostBytes: 3 << 20})
	a, b := r.make(2<<20, 0, disk("x")), r.make(4<<20+1000, 0, disk("x"))
	all := uint64(len(a.want) + len(b.want))
	res := r.pause()
	if res.HostBytes != 3<<20 || res.DiskBytes != all-3<<20 {
		t.Fatalf("%+v", res)
	}
	r.reads(b, 0, len(b.want))
	if res := r.resume(); res.HostBytes != 3<<20 || res.DiskBytes != all-3<<20 {
		t.Fatalf("%+v", res)
	}
	r.holds(a, b)
	if res := r.pause(); res.SkippedSame != all {
		t.Fatalf("%+v", res)
	}
	r.resume()
	r.holds(a, b)
	if s := r.hostStatus(); s.Budget != 3<<20 || s.Bytes != 3<<20 {
		t.Errorf("%+v", s)
	}
}

// A budget in which no block has room is used for nothing, which is said.
// Host memory that is promised and then cannot be pinned fails no pause that has a disk.
func TestDiskBackupsGoToDiskWhereHostMemoryCannotBePinned(t *testing.T) {
	r := newRigWith(t, Config{ChunkBytes: 1 << 20, HostBytes: 8 << 20, HostArena: true})
	a := r.make(1<<20, 0, disk("x"))
	if res := r.pause(); res.HostBytes != 1<<20 {
		t.Fatalf("%+v", res)
	}
	r.resume()
	b, p := r.make(4<<20, 0, disk("x")), r.make(1<<20, 0, pinned("x"))
	r.fault("cuMemHostRegister:2:2") // one of the pieces that b and p need
	for range 2 {
		r.pause()
		r.resume()
		r.holds(a, b, p)
		for _, one := range []*array{a, b, p} {
			r.fill(one, len(one.want))
		}
	}
	if n := strings.Count(r.logged(), "go to disk instead"); n != 1 {
		t.Errorf("it is said %d times:\n%s", n, r.logged())
	}
	r.fault("")
	c := r.make(1<<20, 0, disk("y"))
	if res := r.pause("y"); res.HostBytes != 1<<20 {
		t.Errorf("where it can be had again: %+v", res)
	}
	r.resume()
	r.holds(a, b, c, p)
}

// A backup of which nothing was needed so far does not show that its memory is missing. When it does, another is made.
func TestHostMemoryThatIsMissedLate(t *testing.T) {
	r := newRigWith(t, Config{ChunkBytes: 1 << 20, HostArena: true})
	a := r.make(1<<20, 0, pinned("x"))
	unused := r.set
	unused.Unused = []mem.Range{{Addr: a.addr, Bytes: 1 << 20}}
	r.fault("cuMemHostRegister:1:2")
	_, err := r.Pause(nil, unused)
	check(t, err)
	r.eventually(func() bool { return r.host.arena.Usage().Held == 0 })
	r.fault("")
	r.resume()
	r.fill(a, len(a.want))
	r.pause()
	r.reads(a, 0, len(a.want))
	r.resume()
	r.holds(a)
}

func TestABudgetBelowABlockIsSaid(t *testing.T) {
	r := newRigWith(t, Config{ChunkBytes: 4 << 20, HostBytes: 4096})
	a := r.make(2<<20, 0, disk("x"))
	if res := r.pause(); res.HostBytes != 0 || res.DiskBytes != uint64(len(a.want)) {
		t.Fatalf("%+v", res)
	}
	r.resume()
	r.holds(a)
	if said := r.logged(); !strings.Contains(said, "4.0 KiB is less than a block of") || !strings.Contains(said, "--offload-train-host-mb") {
		t.Errorf("logged %q", said)
	}
}

func TestTheEngineChoosesABudgetOnceAndSaysWhy(t *testing.T) {
	r := newRigWith(t, Config{ChunkBytes: 4 << 20, HostAuto: true, LocalRanks: 1000})
	a := r.make(1<<20, 0, disk("x"))
	for range 2 {
		r.pause()
		r.resume()
		r.holds(a)
		check(t, r.Free(a.addr, false))
		a = r.make(1<<20, 0, disk("x"))
	}
	if n := strings.Count(r.logged(), "host memory for disk backups"); n != 1 || !strings.Contains(r.logged(), "1000 ranks") {
		t.Errorf("said %d times: %s", n, r.logged())
	}
	var s Status
	check(t, json.Unmarshal(r.Status(nil), &s))
	if s.Host.BudgetWhy == "" || !strings.Contains(r.logged(), s.Host.BudgetWhy) {
		t.Errorf("%+v", s.Host)
	}
}

// The directories of the launcher are used together, until the program names one itself.
func TestBlocksAreDealtToAllDirectories(t *testing.T) {
	dirs := []string{t.TempDir(), t.TempDir()}
	r := newRigWith(t, Config{ChunkBytes: 4 << 20, DiskDirs: dirs})
	r.dir, r.set.DiskDir = dirs[0], dirs[0]
	a := r.make(6<<20, 0, disk("x"))
	r.pause()
	used := r.backings.files.Usage().Dirs
	if len(used) != 2 || used[0].WriteBytes != 3<<20 || used[1].WriteBytes != 3<<20 {
		t.Fatalf("%+v", used)
	}
	r.resume()
	r.holds(a)
	var s Status
	check(t, json.Unmarshal(r.Status(nil), &s))
	if len(s.Disk.Dirs) != 2 || s.Disk.Dirs[1].Written != 3<<20 || s.Disk.Dirs[1].Read != 3<<20 {
		t.Errorf("%+v", s.Disk)
	}

	r.set.DiskDir = t.TempDir()
	b := r.make(1<<20, 0, disk("x"))
	r.pause()
	for _, d := range r.backings.files.Usage().Dirs {
		if want := map[bool]uint64{true: 1 << 20, false: 3 << 20}[d.Dir == r.set.DiskDir]; d.WriteBytes != want {
			t.Errorf("%s: %d bytes were written, want %d", d.Dir, d.WriteBytes, want)
		}
	}
	r.resume()
	r.holds(a, b)
}
