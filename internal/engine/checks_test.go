package engine

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/ebb-offload/ebb/internal/alloc"
	"github.com/ebb-offload/ebb/internal/device"
	"github.com/ebb-offload/ebb/internal/device/cuda"
	"github.com/ebb-offload/ebb/internal/fingerprint"
	"github.com/ebb-offload/ebb/internal/mem"
	"github.com/ebb-offload/ebb/internal/store"
	"github.com/ebb-offload/ebb/internal/testutil"
)

// moments is the driver, and calls what a test wants to happen at moments that only the driver
// sees. The memory of softgpu can be written by the host.
type moments struct {
	device.Driver
	wait       func(n int)                                    // before the n-th wait for a whole context, n ≥ 1
	copyOut    func(src mem.Addr, s device.Stream)            // when the kernel is to copy a block to the host
	streamWait func(s device.Stream, wait func() error) error // in place of a wait for a stream
	waits      atomic.Int64
}

// at puts moments in place of the engine's driver. Call it before the first pause.
func (r *rig) at(m *moments) {
	m.Driver = r.drv
	r.drv = m
	r.t.Cleanup(func() { r.drv = m.Driver })
}

func (m *moments) Synchronize() error {
	if m.wait != nil {
		m.wait(int(m.waits.Add(1)))
	}
	return m.Driver.Synchronize()
}

func (m *moments) NewHasher(k *fingerprint.Key, tiles int) (device.Hasher, error) {
	h, err := m.Driver.NewHasher(k, tiles)
	return &momentsHasher{h, m}, err
}

type momentsHasher struct {
	device.Hasher
	m *moments
}

func (h *momentsHasher) Launch(spans []device.Span, s device.Stream) (int, error) {
	for _, span := range spans {
		if h.m.copyOut != nil && span.To != 0 {
			h.m.copyOut(span.Addr, s)
		}
	}
	return h.Hasher.Launch(spans, s)
}

func (m *moments) StreamSynchronize(s device.Stream) error {
	wait := func() error { return m.Driver.StreamSynchronize(s) }
	if m.streamWait != nil {
		return m.streamWait(s, wait)
	}
	return wait()
}

// byteAt is a byte of softgpu's device memory, which the host sees at the same address.
func byteAt(at mem.Addr) *byte { return *(**byte)(unsafe.Pointer(&at)) }

// poke changes a byte of device memory, as a stray kernel would.
func poke(at mem.Addr, b byte) { *byteAt(at) = b }

func TestASecondPauseOfUnchangedMemoryWritesNothing(t *testing.T) {
	for name, reg := range map[string]Region{"disk": disk("x"), "pinned": pinned("x"), "mmap": mmap("x")} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.set.RetainCPU = true
			a, b := r.make(5<<20+17, 0, reg), r.make(1000, 1, reg)
			all := uint64(len(a.want) + len(b.want))
			first := r.pause()
			if first.HostBytes+first.DiskBytes != all || first.SkippedSame != 0 || first.Checks <= 0 {
				t.Fatalf("first pause: %+v", first)
			}
			r.resume()
			second := r.pause()
			if second.HostBytes+second.DiskBytes != 0 || second.SkippedSame != all || second.Bytes != all {
				t.Fatalf("second pause: %+v", second)
			}
			r.resume()
			r.holds(a, b)

			// One changed byte moves one block.
			r.write(a, 3<<20, []byte{a.want[3<<20] + 1})
			third := r.pause()
			if third.HostBytes+third.DiskBytes != r.block || third.SkippedSame != all-r.block {
				t.Fatalf("third pause: %+v", third)
			}
			r.resume()
			r.holds(a, b)
		})
	}
}

func TestBlocksOfZerosAreNotStored(t *testing.T) {
	for name, reg := range map[string]Region{"disk": disk("x"), "pinned": pinned("x"), "mmap": mmap("x")} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.set.RetainCPU = true
			a := r.make(4<<20+100, 0, reg)
			r.pause()
			r.resume()
			// Its first block, two in the middle and the short one at the end become zero.
			for _, z := range [][2]uint64{{0, r.block}, {3 * r.block, 2 * r.block}, {4 << 20, 100}} {
				r.write(a, int(z[0]), make([]byte, z[1]))
			}
			zero := 3*r.block + 100
			res := r.pause()
			if res.HostBytes+res.DiskBytes != 0 || res.SkippedZero != zero || res.SkippedSame != 4<<20+100-zero {
				t.Fatalf("%+v", res)
			}
			if reg.Backup == alloc.BackupCPU {
				p, err := r.BackupPointer(a.addr, uint64(len(a.want)))
				check(t, err)
				if !bytes.Equal(unsafe.Slice((*byte)(p), len(a.want)), a.want) {
					t.Error("the backup pointer shows other bytes")
				}
			}
			r.reads(a, 0, len(a.want))
			r.resume()
			r.holds(a)
		})
	}
}

func TestUnusedBlocksStayBehind(t *testing.T) {
	r := newRig(t)
	a := r.make(8<<20, 0, disk("x"))
	b := r.make(1<<20, 0, pinned("x"))
	s := r.set
	s.Unused = []mem.Range{
		{Addr: a.addr + mem.Addr(r.block) - 1, Bytes: 2*r.block + 1}, // two whole blocks and a byte
		{Addr: b.addr - 100, Bytes: 1<<20 + 200},                     // all, and more than is managed
		{Addr: 4096, Bytes: 1 << 30},                                 // not managed
	}
	res, err := r.Pause(nil, s)
	check(t, err)
	if res.SkippedUnused != 2*r.block+1<<20 || res.DiskBytes != 8<<20-2*r.block || res.HostBytes != 0 {
		t.Fatalf("%+v", res)
	}
	r.resume()
	got := r.content(a)
	if !bytes.Equal(got[:r.block], a.want[:r.block]) || !bytes.Equal(got[3*r.block:], a.want[3*r.block:]) {
		t.Fatal("blocks in use came back with other bytes")
	}
	// What they hold now is what the next pause saves.
	a.want, b.want = got, r.content(b)
	r.pause()
	r.resume()
	r.holds(a, b)
}

// A block that is said to be unused, but is written to while the pause runs, is kept.
func TestAnUnusedBlockThatIsWrittenIsKept(t *testing.T) {
	r := newRig(t)
	a := r.make(4<<20, 0, disk("x"))
	r.at(&moments{wait: func(n int) {
		if n == len(r.devices)+1 { // after the copies
			poke(a.addr+10, a.want[10]+1)
		}
	}})
	s := r.set
	s.Unused = []mem.Range{{Addr: a.addr, Bytes: 4 << 20}}
	res, err := r.Pause(nil, s)
	check(t, err)
	if res.SkippedUnused != 4<<20-r.block || res.DiskBytes != r.block {
		t.Fatalf("%+v", res)
	}
	r.resume()
	a.want[10]++
	if got := r.content(a); !bytes.Equal(got[:r.block], a.want[:r.block]) {
		t.Fatal("the block that was written is not what it was")
	}
}

// A stray kernel that runs after the copy of its memory, and is waited for like all work.
func TestAWriteBetweenCopyAndCommitIsSaved(t *testing.T) {
	for name, reg := range map[string]Region{"disk": disk("x"), "pinned": pinned("x"), "mmap": mmap("x")} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			a := r.make(4<<20, 0, reg)
			r.at(&moments{wait: func(n int) {
				if n == len(r.devices)+1 {
					r.submit(a, r.primary(0))
				}
			}})
			res := r.pause()
			if moved := res.DiskBytes + res.HostBytes; moved != 8<<20 {
				t.Errorf("%d bytes were moved, want all of them twice", moved)
			}
			r.resume()
			r.holds(a)
		})
	}
}

// The memory holds other bytes only while it is copied, A before and A after: what is kept is the
// fingerprint of the copy, so the change shows although nothing of it is left.
func TestAChangeThatWasUndoneAroundTheCopyIsFound(t *testing.T) {
	for name, reg := range map[string]Region{"disk": disk("x"), "pinned": pinned("x"), "mmap": mmap("x")} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			a := r.make(1<<20, 0, reg)
			at := a.addr + mem.Addr(r.block) + 5
			var copying atomic.Uintptr // the stream on which the block is copied
			var begun atomic.Bool
			r.at(&moments{
				copyOut: func(src mem.Addr, s device.Stream) {
					if src == a.addr+mem.Addr(r.block) && begun.CompareAndSwap(false, true) {
						copying.Store(uintptr(s))
					}
				},
				streamWait: func(s device.Stream, wait func() error) error {
					if !copying.CompareAndSwap(uintptr(s), 0) {
						return wait()
					}
					was := *byteAt(at)
					poke(at, was+1)
					err := wait() // the copy runs now
					poke(at, was)
					return err
				},
			})
			res := r.pause()
			if !begun.Load() || res.DiskBytes+res.HostBytes != 1<<20+r.block {
				t.Fatalf("the block was not saved again: %+v", res)
			}
			r.resume()
			r.holds(a)
		})
	}
}

func TestMemoryThatIsWrittenTwiceAndThenLeftAloneIsSaved(t *testing.T) {
	r := newRig(t)
	a := r.make(4<<20, 0, disk("x"))
	per := len(r.devices)
	r.at(&moments{wait: func(n int) {
		if n == per+1 || n == 2*per+1 { // after the copies, and after the blocks were saved again
			a.want[77]++
			poke(a.addr+77, a.want[77])
		}
	}})
	if res := r.pause(); res.DiskBytes != 4<<20+2*r.block {
		t.Fatalf("%+v", res)
	}
	r.resume()
	r.holds(a)
}

func TestMemoryThatIsWrittenAgainAndAgainFailsThePause(t *testing.T) {
	for name, reg := range map[string]Region{"disk": disk("w"), "pinned": pinned("w")} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			a, b := r.make(1<<20, 0, reg), r.make(1<<20, 0, reg)
			quiet := false
			r.at(&moments{wait: func(int) {
				if !quiet {
					b.want[r.block+3]++
					poke(b.addr+mem.Addr(r.block)+3, b.want[r.block+3])
				}
			}})
			_, err := r.Pause(nil, r.set)
			var written *WrittenError
			if !errors.As(err, &written) || Code(err) != CodeWritten {
				t.Fatalf("got %v", err)
			}
			if written.Allocation.Base != b.addr || written.Offset != r.block || written.Blocks != 1 {
				t.Errorf("%+v", written)
			}
			for _, word := range []string{"written during pause", `tag "w"`, fmt.Sprintf("offset %d", r.block)} {
				if !strings.Contains(err.Error(), word) {
					t.Errorf("%q lacks %q", err, word)
				}
			}
			if r.state(a) != alloc.Active || r.state(b) != alloc.Active {
				t.Fatal("something was paused")
			}
			r.holds(a, b)
			if n := len(r.files()); n != 0 {
				t.Errorf("%d files of a pause that failed", n)
			}
			quiet = true
			r.pause()
			r.resume()
			r.holds(a, b)
		})
	}
}

// flip changes one bit of a paused array's backup.
func (r *rig) flip(a *array, bit int) {
	r.t.Helper()
	al, _, err := r.table.Find(a.addr, 1)
	check(r.t, err)
	if al.Backup == alloc.BackupCPU {
		p, err := r.BackupPointer(a.addr+mem.Addr(bit/8), 1)
		check(r.t, err)
		*(*byte)(p) ^= 1 << (bit % 8)
		return
	}
	where := r.backings.find(al).Where(0)
	path, _, _ := strings.Cut(strings.TrimPrefix(where, "file "), " (offset")
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	check(r.t, err)
	b := make([]byte, 1)
	_, err = f.ReadAt(b, int64(bit/8))
	check(r.t, err)
	b[0] ^= 1 << (bit % 8)
	_, err = f.WriteAt(b, int64(bit/8))
	check(r.t, errors.Join(err, f.Close()))
}

// One bit that changed anywhere in a backup is found: by a resume, which leaves everything paused,
// and by a read. With the bit put back a resume brings back everything.
func TestAFlippedBitIsFoundAndTheMemoryStaysPaused(t *testing.T) {
	for _, hash := range []string{"kernel", "CPU"} {
		for name, reg := range map[string]Region{"disk": disk("x"), "pinned": pinned("x"), "mmap": mmap("x")} {
			t.Run(name+", "+hash, func(t *testing.T) {
				r := newRig(t)
				if hash == "CPU" {
					r.withoutKernels()
				}
				a, b := r.make(1<<20+777, 0, reg), r.make(1<<20, 1, disk("y"))
				r.pause()
				for _, bit := range []int{0, 8*len(a.want) - 1, rand.IntN(8 * len(a.want))} {
					block := uint64(bit) / 8 / r.block * r.block
					where := r.whereOf(a, block)
					r.flip(a, bit)
					_, err := r.Resume(nil, r.set)
					var corrupt *CorruptError
					if !errors.As(err, &corrupt) || Code(err) != CodeCorrupt {
						t.Fatalf("bit %d: %v", bit, err)
					}
					if corrupt.Allocation.Base != a.addr || corrupt.Offset != block || corrupt.Where != where {
						t.Errorf("bit %d: %+v, want the block at %d in %s", bit, corrupt, block, where)
					}
					if r.state(a) != alloc.Paused || r.state(b) != alloc.Paused {
						t.Fatal("memory without its bytes was handed out")
					}
					var p [1]byte
					if err := r.Read(a.addr+mem.Addr(block), p[:], false); Code(err) != CodeCorrupt {
						t.Errorf("read of the block: %v", err)
					}
					r.reads(b, 0, 100)
					r.flip(a, bit)
				}
				r.resume()
				r.holds(a, b)
			})
		}
	}
}

func (r *rig) whereOf(a *array, off uint64) string {
	r.t.Helper()
	al, _, err := r.table.Find(a.addr, 1)
	check(r.t, err)
	return r.backings.find(al).Where(off)
}

// The same at a thousand places of one file.
func TestAFlippedBitAnywhereInAFileIsFound(t *testing.T) {
	r := newRig(t)
	a := r.make(300<<10+1, 0, disk("x"))
	r.pause()
	for range 1000 {
		bit := rand.IntN(8 * len(a.want))
		r.flip(a, bit)
		if _, err := r.Resume(nil, r.set); Code(err) != CodeCorrupt {
			t.Fatalf("bit %d: %v", bit, err)
		}
		r.flip(a, bit)
	}
	r.resume()
	r.holds(a)
}

func TestDetailsOfACorruptBackupNameItsPlace(t *testing.T) {
	a := &alloc.Allocation{ID: 3, Base: 0x7000, Size: 100, Tag: "w"}
	err := &CorruptError{Allocation: a, Offset: 64, Bytes: 36, Where: "file /x/y.bak (offset 64)"}
	var d map[string]any
	check(t, json.Unmarshal(Details(fmt.Errorf("resume: %w", err)), &d))
	for key, want := range map[string]any{"code": 13.0, "tag": "w", "address": "0x7000", "offset": 64.0, "bytes": 36.0, "where": "file /x/y.bak (offset 64)"} {
		if d[key] != want {
			t.Errorf("%s is %v, want %v", key, d[key], want)
		}
	}
}

// withoutKernels makes the driver refuse ebb's kernel.
func (r *rig) withoutKernels() { r.fault("cuModuleLoadData:*:209") }

func TestWithoutKernelsEverythingIsMovedAndChecked(t *testing.T) {
	for name, reg := range map[string]Region{"disk": disk("x"), "pinned": pinned("x"), "mmap": mmap("x")} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.set.RetainCPU = true
			r.withoutKernels()
			a := r.make(2<<20+3, 0, reg)
			r.write(a, 0, make([]byte, 1<<20))
			for range 2 {
				res := r.pause()
				if res.DiskBytes+res.HostBytes != uint64(len(a.want)) || res.SkippedZero+res.SkippedSame != 0 {
					t.Fatalf("%+v", res)
				}
				r.reads(a, 0, len(a.want))
				r.resume()
				r.holds(a)
			}
			if n := strings.Count(r.logged(), "works without ebb's kernel from now on"); n != 1 || !strings.Contains(r.logged(), "CUDA_ERROR_NO_BINARY_FOR_GPU") {
				t.Errorf("the refusal is said %d times: %s", n, r.logged())
			}
		})
	}
}

// The number of workers is found once for each set of directories and direction, on blocks that are
// moved anyway.
func TestTheNumberOfWorkersIsFoundByTrial(t *testing.T) {
	r := newRigWith(t, Config{ChunkBytes: 64 << 20}) // 8 workers
	var all []*array
	for range 160 {
		all = append(all, r.make(64<<10, 0, disk("x")))
	}
	for range 2 {
		if res := r.pause(); res.DiskBytes != 160*64<<10 {
			t.Fatalf("%+v", res)
		}
		r.resume()
		r.holds(all...)
		for _, a := range all {
			r.fill(a, len(a.want))
		}
	}
	var s Status
	check(t, json.Unmarshal(r.Status(nil), &s))
	if len(s.Probes) != 2 || s.Probes[0].Direction != "pause" || s.Probes[1].Direction != "resume" {
		t.Fatalf("probes %+v", s.Probes)
	}
	for _, p := range s.Probes {
		if len(p.Trials) != 2 || p.Trials[0].Workers != 4 || p.Trials[1].Workers != 8 || p.Dirs != r.dir {
			t.Errorf("%+v", p)
		}
		if p.Workers != 4 && p.Workers != 8 {
			t.Errorf("%d workers", p.Workers)
		}
	}

	// Another directory is another disk.
	r.set.DiskDir = t.TempDir()
	for _, a := range all {
		check(t, r.Free(a.addr, false))
	}
	for range 160 {
		r.make(64<<10, 0, disk("x"))
	}
	r.pause()
	check(t, json.Unmarshal(r.Status(nil), &s))
	if len(s.Probes) != 3 || s.Probes[2].Dirs != r.set.DiskDir {
		t.Errorf("probes %+v", s.Probes)
	}
}

func TestTooLittleToTryTellsNothing(t *testing.T) {
	r := newRigWith(t, Config{ChunkBytes: 64 << 20})
	a := r.make(64<<10, 0, disk("x"))
	r.pause()
	r.resume()
	r.holds(a)
	if len(r.tunings) != 0 {
		t.Errorf("%+v", r.tunings)
	}
}

// Memory that its owner maps is unused only where every mapping of it is said to be.
func TestUnusedRangesOfMemoryThatItsOwnerMaps(t *testing.T) {
	o := newOwner(t)
	size := 2 * o.block
	once, twice := o.mapped(o.reserve(size), size, 0, disk("x")), o.mapped(o.reserve(size), size, 0, disk("x"))
	h, err := o.Retain(twice.addr)
	check(t, err)
	again := o.reserve(size)
	check(t, errors.Join(o.Map(again, size, 0, h, 0), o.Release(h)))
	s := o.set
	s.Unused = []mem.Range{{Addr: once.addr, Bytes: o.block}, {Addr: twice.addr, Bytes: size}}
	res, err := o.Pause(nil, s)
	check(t, err)
	if res.SkippedUnused != o.block || res.DiskBytes != 3*o.block {
		t.Fatalf("%+v", res)
	}
	o.resume()
	o.holds(twice)
	o.fill(once, len(once.want))
	s.Unused = append(s.Unused, mem.Range{Addr: again, Bytes: o.block})
	if res, err = o.Pause(nil, s); err != nil || res.SkippedUnused != 2*o.block {
		t.Fatalf("%+v, %v", res, err)
	}
}

// A kernel that cannot be loaded for want of memory is done without in one operation, and is there for
// the next.
func TestAKernelThatDidNotLoadIsTriedAgain(t *testing.T) {
	for _, fault := range []string{"cuModuleLoadData:*:2", "cuModuleGetFunction:*:999", "cuMemHostAlloc:1:2"} {
		t.Run(fault, func(t *testing.T) {
			r := newRig(t)
			r.fault(fault)
			a := r.make(2<<20+3, 0, disk("x"))
			r.write(a, 0, make([]byte, 1<<20))
			if res := r.pause(); res.SkippedZero != 0 || res.DiskBytes != uint64(len(a.want)) {
				t.Errorf("without the kernel: %+v", res)
			}
			if !strings.Contains(r.logged(), "without ebb's kernel for now") {
				t.Errorf("it is not said: %s", r.logged())
			}
			r.fault("")
			r.resume()
			r.holds(a)
			if res := r.pause(); res.SkippedZero+res.SkippedSame != uint64(len(a.want)) {
				t.Errorf("with the kernel: %+v", res)
			}
			r.resume()
			r.holds(a)
		})
	}
}

// A device that refuses the kernel for good concerns no other.
func TestAKernelThatOneDeviceRefuses(t *testing.T) {
	for _, code := range []int{200, 209, 218, 221, 222, 223, 300, 500, 801} {
		t.Run(fmt.Sprint(code), func(t *testing.T) {
			r := newRig(t)
			r.fault("cuModuleLoadData:*:2") // what is tried when memory is made
			a, b := r.make(1<<20, 0, disk("x")), r.make(1<<20, 1, disk("x"))
			r.fault(fmt.Sprintf("cuModuleLoadData:1:%d", code)) // that of device 0
			for range 2 {
				r.pause()
				r.resume()
				r.holds(a, b)
			}
			if res := r.pause(); res.DiskBytes != 1<<20 || res.SkippedSame != 1<<20 {
				t.Errorf("%+v", res)
			}
			r.resume()
			r.holds(a, b)
			if n := strings.Count(r.logged(), "device 0 works without ebb's kernel from now on"); n != 1 || strings.Contains(r.logged(), "device 1 works") {
				t.Errorf("said %d times: %s", n, r.logged())
			}
		})
	}
}

// The kernel is loaded when memory is made, not when a pause finds no room for it any more.
func TestTheKernelIsThereBeforeTheFirstPause(t *testing.T) {
	r := newRig(t)
	a := r.make(1<<20, 0, disk("x"))
	o, err := r.Create(1<<20, mem.DeviceProps(1, false), 0, disk("x"), 0)
	check(t, err)
	r.warming.Wait()
	r.fault("cuModuleLoadData:*:2")
	r.write(a, 0, make([]byte, len(a.want)))
	if res := r.pause(); res.SkippedZero != 2<<20 { // new memory is zero
		t.Errorf("%+v", res)
	}
	r.resume()
	r.holds(a)
	check(t, r.Release(o))

	r = newRig(t)
	r.fault("")
	before := cuda.SoftwareCalls(r.drv)["cuModuleLoadData"]
	r.make(1<<20, 0, none("x"))
	if after := cuda.SoftwareCalls(r.drv)["cuModuleLoadData"]; after != before {
		t.Errorf("memory that is not kept had the kernel loaded: %d loads before, %d after", before, after)
	}
}

// What a backing does not have, or has without a fingerprint that could be compared, is not restored.
func TestBytesThatAreNotKnownAreNotRestored(t *testing.T) {
	for name, c := range map[string]struct {
		config Config
		entry  store.Block
		cpu    bool
	}{
		"absent":                          {Config{HostArena: true}, store.Block{}, false},
		"absent, no kernel":               {Config{HostArena: true}, store.Block{}, true},
		"without fingerprint":             {Config{HostArena: true}, store.Block{State: store.Stored}, false},
		"without fingerprint, no kernel":  {Config{HostArena: true}, store.Block{State: store.Stored}, true},
		"absent, no arena":                {Config{}, store.Block{}, false},
		"without fingerprint, both lacks": {Config{}, store.Block{State: store.Stored}, true},
	} {
		t.Run(name, func(t *testing.T) {
			c.config.ChunkBytes = 4 << 20
			r := newRigWith(t, c.config)
			if c.cpu {
				r.withoutKernels()
			}
			a := r.make(1<<20, 0, pinned("x"))
			r.pause()
			al, _, err := r.table.Find(a.addr, 1)
			check(t, err)
			b := r.backings.find(al)
			was := b.Block(0)
			b.Mark(0, c.entry)
			if _, err := r.Resume(nil, r.set); Code(err) != CodeCorrupt || r.state(a) != alloc.Paused {
				t.Fatalf("got %v, memory is %v", err, r.state(a))
			}
			b.Mark(0, was)
			r.resume()
			r.holds(a)
		})
	}
}

// modes is the driver, and notes calls that disturb a stream capture of the actor: those made while the
// thread's capture mode is not relaxed.
type modes struct {
	device.Driver
	mu   sync.Mutex
	mode map[int]int // by thread
	bad  []string
}

func (m *modes) ExchangeCaptureMode(mode int) (int, error) {
	before, err := m.Driver.ExchangeCaptureMode(mode)
	m.mu.Lock()
	m.mode[unix.Gettid()] = mode
	m.mu.Unlock()
	return before, err
}

func (m *modes) note(call string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mode[unix.Gettid()] != device.CaptureRelaxed {
		m.bad = append(m.bad, call)
	}
}

func (m *modes) MemCreate(size uint64, p mem.Props) (mem.Handle, error) {
	m.note("create")
	return m.Driver.MemCreate(size, p)
}

func (m *modes) MemRelease(h mem.Handle) error {
	m.note("release")
	return m.Driver.MemRelease(h)
}

func (m *modes) MemMap(addr mem.Addr, size, offset uint64, h mem.Handle) error {
	m.note("map")
	return m.Driver.MemMap(addr, size, offset, h)
}

func (m *modes) MemSetAccess(addr mem.Addr, size uint64, access []mem.Access) error {
	m.note("access")
	return m.Driver.MemSetAccess(addr, size, access)
}

func (m *modes) MemUnmap(addr mem.Addr, size uint64) error {
	m.note("unmap")
	return m.Driver.MemUnmap(addr, size)
}

func (m *modes) PoolTrim(p device.Pool, keep uint64) error {
	m.note("pool")
	return m.Driver.PoolTrim(p, keep)
}

func (m *modes) GraphTrim(dev int) error {
	m.note("graph")
	return m.Driver.GraphTrim(dev)
}

func (m *modes) HostRegister(p unsafe.Pointer, n uint64) error {
	m.note("register")
	return m.Driver.HostRegister(p, n)
}

func (m *modes) Synchronize() error {
	m.note("synchronize")
	return m.Driver.Synchronize()
}

// Every call of a pause and a resume that a capture of the actor's could not bear is made with the thread's
// mode relaxed, on whatever thread.
func TestAPauseAndAResumeDisturbNoCaptureOfOthers(t *testing.T) {
	r := newRigWith(t, Config{ChunkBytes: 1 << 20, HostArena: true})
	m := &modes{Driver: r.drv, mode: map[int]int{}}
	a, b := r.make(4<<20, 0, disk("x")), r.make(4<<20, 1, pinned("x"))
	h, err := r.Create(1<<20, mem.DeviceProps(0, false), 0, disk("x"), 0) // mapped nowhere: through a window
	check(t, err)
	r.warming.Wait()
	r.drv = m
	t.Cleanup(func() { r.drv = m.Driver })
	for range 2 {
		r.pause()
		r.resume()
		r.holds(a, b)
		r.fill(a, len(a.want))
	}
	if len(m.bad) > 0 {
		t.Errorf("%d calls with another mode, the first: %q", len(m.bad), m.bad[:min(5, len(m.bad))])
	}
	r.drv = m.Driver
	check(t, r.Release(h))
}

// Only a wait that the driver answers with an error tells of an earlier fault.
func TestAContextThatCannotBeSetIsNoEarlierFault(t *testing.T) {
	r := newRig(t)
	r.make(1<<20, 0, disk("x"))
	for _, nth := range []int{1, 2} { // to wait in it, and to put back what the thread had
		r.fault(fmt.Sprintf("cuCtxSetCurrent:%d:201", nth))
		_, err := r.Pause(nil, r.set)
		if err == nil || errors.Is(err, ErrDeviceFault) || !strings.Contains(err.Error(), "wait for device 0") {
			t.Errorf("call %d: %v", nth, err)
		}
	}
	r.fault("")
}

func TestALeaseThatIsNotThereIsAnInvalidSetting(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	check(t, os.WriteFile(file, nil, 0o600))
	for _, lease := range []string{"/nowhere/rank/lease", t.TempDir() + "/gone", file + "/lease", t.TempDir()} {
		_, err := Start(Config{LogFD: -1, ChunkBytes: 4 << 20, Driver: testutil.SoftGPU(t), Lease: lease})
		if Code(err) != CodeInvalid || !strings.Contains(err.Error(), lease) {
			t.Errorf("%s: code %d, %v", lease, Code(err), err)
		}
	}
}

// Only a lack of room tells how much room a pause takes.
func TestALackOfDescriptorsIsNoLackOfRoom(t *testing.T) {
	for fault, room := range map[string]bool{"open:*:EMFILE": false, "fallocate:*:ENOSPC": true} {
		r := newRigWith(t, Config{ChunkBytes: 4 << 20, FileFaults: fault})
		r.make(1<<20, 0, disk("x"))
		r.make(1<<20, 0, disk("x"))
		_, err := r.Pause(nil, r.set)
		if err == nil || (Code(err) == CodeNoSpace) != room || strings.Contains(err.Error(), "more in all") != room {
			t.Errorf("%s: %v", fault, err)
		}
	}
}
