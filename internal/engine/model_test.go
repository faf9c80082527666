package engine

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"unsafe"

	"github.com/ebb-offload/ebb/internal/alloc"
	"github.com/ebb-offload/ebb/internal/device"
	"github.com/ebb-offload/ebb/internal/mem"
	"pgregory.net/rapid"
)

// long is the form of the random tests that runs many times as much.
var long = os.Getenv("EBB_TEST_LONG") == "1"

// setChecks sets how many sequences rapid tries and prints the seed with which they can be run
// again (-rapid.seed). Where none is given each test has its own.
func setChecks(t *testing.T, short, many int) {
	t.Helper()
	if long {
		short = many
	}
	if flag.Lookup("rapid.seed").Value.String() == "0" {
		check(t, flag.Set("rapid.seed", strconv.FormatUint(rand.Uint64()|1, 10)))
		t.Cleanup(func() { check(t, flag.Set("rapid.seed", "0")) })
	}
	check(t, flag.Set("rapid.checks", strconv.Itoa(short)))
	fmt.Printf("%s: %d sequences, -rapid.seed=%v\n", t.Name(), short, flag.Lookup("rapid.seed").Value)
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// modelFaults are operations of a pause or resume that the model has fail, each the n-th of its kind.
var modelFaults = []struct {
	driver, file string
	most         int // n is at most that
}{
	{driver: "cuLaunchKernel:%d:999", most: 4}, {driver: "cuMemcpyHtoDAsync:%d:999", most: 3}, {driver: "cuMemHostAlloc:%d:2", most: 1},
	{driver: "cuStreamSynchronize:%d:999", most: 8}, {driver: "cuMemUnmap:%d:999", most: 3}, {driver: "cuMemCreate:%d:2", most: 2},
	{driver: "cuMemMap:%d:999", most: 2}, {driver: "cuMemSetAccess:%d:999", most: 2}, {driver: "cuCtxSynchronize:%d:999", most: 4},
	{file: "pwrite:%d:EIO", most: 4}, {file: "pwrite:%d:ENOSPC", most: 4}, {file: "pread:%d:EIO", most: 4}, {file: "open:%d:EIO", most: 2},
	{file: "fallocate:%d:ENOSPC", most: 2}, {file: "fstatat:%d:EIO", most: 2},
}

// failing has one operation of what is done next fail, or none. The name is that of the operation.
func (r *rig) failing(t *rapid.T) (name string) {
	if rapid.Bool().Draw(t, "nothing fails") {
		return ""
	}
	f := rapid.SampledFrom(modelFaults).Draw(t, "operation")
	n := rapid.IntRange(1, f.most).Draw(t, "number")
	if f.driver != "" {
		r.fault(fmt.Sprintf(f.driver, n))
		return f.driver
	}
	check(r.t, r.sys.Set(fmt.Sprintf(f.file, n)))
	return f.file
}

// Any sequence of allocations, frees, writes, pauses and resumes, of which any may fail, keeps every
// byte. The model is the list of arrays with what each must hold; content is checked whenever memory is
// active. Writes leave zeros and unchanged blocks, so that blocks are skipped for every reason there
// is. What a pause that failed had saved by then is among what the next one finds in the backups.
func TestAnySequenceOfCallsKeepsEveryByte(t *testing.T) {
	setChecks(t, 500, 10000)
	r := newRigWith(t, Config{ChunkBytes: 1 << 20}) // blocks of 128 KiB
	var moved, zero, same, unused, after uint64
	failed := map[string]int{}
	regions := []Region{disk("a"), disk("b"), pinned("a"), mmap("b"), none("a")}
	rapid.Check(t, func(t *rapid.T) {
		type entry struct {
			*array
			reg    Region
			paused bool
			dead   [][2]int // while paused: whole blocks that were unused, from and to
		}
		var live []*entry
		defer func() {
			for _, e := range live {
				if err := r.Free(e.addr, false); err != nil {
					t.Fatal(err)
				}
			}
		}()
		pick := func(t *rapid.T) *entry {
			if len(live) == 0 {
				t.Skip("nothing allocated")
			}
			return live[rapid.IntRange(0, len(live)-1).Draw(t, "which")]
		}
		tags := func(t *rapid.T) []string {
			tag := rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "tag")
			if tag == "" {
				return nil
			}
			return []string{tag}
		}
		matches := func(e *entry, tags []string) bool { return tags == nil || e.reg.Tag == tags[0] }
		// ended takes the fault away. The error is true when what was done failed of it.
		ended := func(name string, err error) bool {
			r.fault("")
			check(r.t, r.sys.Set(""))
			if err == nil || Code(err) == CodeUnknownTag {
				return false
			}
			if name == "" {
				t.Fatal(err)
			}
			failed[name]++
			return true
		}
		broken := false // the pause before failed
		t.Repeat(map[string]func(*rapid.T){
			"malloc": func(t *rapid.T) {
				if len(live) == 12 {
					t.Skip("enough")
				}
				size := rapid.IntRange(1, 700<<10).Draw(t, "size")
				reg := rapid.SampledFrom(regions).Draw(t, "region")
				live = append(live, &entry{array: r.make(size, rapid.IntRange(0, 1).Draw(t, "device"), reg), reg: reg})
			},
			"free": func(t *rapid.T) {
				e := pick(t)
				if err := r.Free(e.addr, false); err != nil {
					t.Fatal(err)
				}
				for i := range live {
					if live[i] == e {
						live = append(live[:i], live[i+1:]...)
						break
					}
				}
			},
			"write": func(t *rapid.T) {
				if e := pick(t); !e.paused {
					r.fill(e.array, len(e.want))
				}
			},
			"write a part": func(t *rapid.T) {
				e := pick(t)
				off, n := stretch(t, len(e.want))
				if e.paused {
					return
				}
				p := make([]byte, n)
				if rapid.Bool().Draw(t, "random") {
					p = randomBytes(n)
				}
				r.write(e.array, off, p)
			},
			"read": func(t *rapid.T) {
				e := pick(t)
				off, n := stretch(t, len(e.want))
				p := make([]byte, n)
				for _, d := range e.dead {
					if off < d[1] && d[0] < off+n {
						return
					}
				}
				err := r.Read(e.addr+mem.Addr(off), p, false)
				if e.paused && e.reg.Backup == alloc.BackupNone {
					if Code(err) != CodeState {
						t.Fatalf("read of bytes given up: %v", err)
					}
				} else if err != nil || !bytes.Equal(p, e.want[off:off+len(p)]) {
					t.Fatalf("read of %d bytes at %d: other bytes, or %v", len(p), off, err)
				}
			},
			"pause": func(t *rapid.T) {
				tags := tags(t)
				set, block := r.set, int(r.block)
				var dead *entry
				var from, to int
				if len(live) > 0 && rapid.Bool().Draw(t, "with unused") {
					e := pick(t)
					off, n := stretch(t, len(e.want))
					set.Unused = []mem.Range{{Addr: e.addr + mem.Addr(off), Bytes: uint64(n)}}
					from, to = (off+block-1)/block*block, (off+n)/block*block
					if off+n == len(e.want) {
						to = off + n
					}
					if from < to && !e.paused && matches(e, tags) {
						dead = e
					}
				}
				name := r.failing(t)
				res, err := r.Pause(tags, set)
				if ended(name, err) && Code(err) != CodePartial {
					if broken = true; !rapid.Bool().Draw(t, "again") {
						return
					}
					res, err = r.Pause(tags, set)
					ended("", err)
				}
				var bytes, kept uint64
				for _, e := range live {
					if !e.paused && matches(e, tags) {
						if e.reg.Backup != alloc.BackupNone {
							kept += uint64(len(e.want))
						}
						if e.paused = r.state(e.array) == alloc.Paused; e.paused {
							bytes += uint64(len(e.want))
						} else if err == nil {
							t.Fatalf("memory at %v is active after a pause", e.addr)
						}
					}
				}
				if dead != nil && dead.paused {
					dead.dead = append(dead.dead, [2]int{from, to})
				}
				if sum := res.HostBytes + res.DiskBytes + res.SkippedZero + res.SkippedSame + res.SkippedUnused; sum != kept || res.Bytes != bytes {
					t.Fatalf("of %d bytes, %d of them to be kept: %+v", bytes, kept, res)
				}
				moved += res.HostBytes + res.DiskBytes
				zero, same, unused = zero+res.SkippedZero, same+res.SkippedSame, unused+res.SkippedUnused
				if broken {
					after += res.SkippedSame
				}
				broken = false
			},
			"resume": func(t *rapid.T) {
				tags := tags(t)
				set := r.set
				set.RetainCPU = rapid.Bool().Draw(t, "retain")
				name := r.failing(t)
				_, err := r.Resume(tags, set)
				if ended(name, err) {
					return // all of it is still paused
				}
				for _, e := range live {
					if e.paused && matches(e, tags) {
						e.paused = false
						for _, d := range e.dead {
							copy(e.want[d[0]:d[1]], r.content(e.array)[d[0]:d[1]])
						}
						e.dead = nil
						if e.reg.Backup == alloc.BackupNone {
							r.fill(e.array, len(e.want)) // its content was given up
						}
					}
				}
			},
			"": func(t *rapid.T) {
				for _, e := range live {
					if (r.state(e.array) == alloc.Paused) != e.paused {
						t.Fatalf("memory at %v is %v, the model says paused=%v", e.addr, r.state(e.array), e.paused)
					}
					if !e.paused {
						r.holds(e.array)
					}
				}
			},
		})
	})
	if !t.Failed() && (moved == 0 || zero == 0 || same == 0 || unused == 0 || after == 0) {
		t.Errorf("moved %d bytes; skipped %d zero, %d same (%d of them after a pause that failed), %d unused: not all of it was tried", moved, zero, same, after, unused)
	}
	var drivers, files int
	for _, f := range modelFaults {
		if n := failed[f.driver+f.file]; f.driver != "" {
			drivers += n
		} else {
			files += n
		}
	}
	if !t.Failed() && (drivers == 0 || files == 0) {
		t.Errorf("what failed: %v", failed)
	}
}

// stretch is a part of size bytes, at least one.
func stretch(t *rapid.T, size int) (off, n int) {
	off = rapid.IntRange(0, size-1).Draw(t, "offset")
	return off, rapid.IntRange(1, size-off).Draw(t, "length")
}

// Threads that allocate, write and free while others pause and resume: no deadlock, no race,
// every byte kept. Each thread owns its tag, so it knows when its memory may be touched.
func TestThreadsPauseAndAllocateSideBySide(t *testing.T) {
	r := newRig(t)
	rounds := 20
	if long {
		rounds = 500
	}
	regions := []func(tag string) Region{disk, pinned, mmap}
	var wg sync.WaitGroup
	for i := range 6 {
		wg.Go(func() {
			tag := "thread" + strconv.Itoa(i)
			random := rand.New(rand.NewPCG(uint64(i), 1))
			for n := range rounds {
				if err := r.cycle(random, regions[n%3](tag), i%2, 1+n*10007%300000, n%3 != 0); err != nil {
					t.Errorf("round %d of thread %d: %v", n, i, err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// cycle makes memory, writes it, pauses it, reads it, resumes it if it is to, and compares and changes
// it then, twice; it is freed in the end.
func (r *rig) cycle(random *rand.Rand, reg Region, dev, size int, resume bool) error {
	addr, err := r.Malloc(uint64(size), dev, reg, 0)
	if err != nil {
		return err
	}
	want, got := make([]byte, size), make([]byte, size)
	for range 2 {
		for i := range want {
			want[i] = byte(random.Uint32())
		}
		if err := r.transfer(dev, func(s device.Stream) error {
			return r.drv.CopyToDevice(addr, unsafe.Pointer(&want[0]), uint64(size), s)
		}); err != nil {
			return err
		}
		if _, err := r.Pause([]string{reg.Tag}, r.set); err != nil {
			return err
		}
		clear(got)
		if err := r.Read(addr, got, false); err != nil {
			return fmt.Errorf("read while paused: %w", err)
		}
		if !bytes.Equal(got, want) {
			return errors.New("read while paused: other bytes")
		}
		if !resume {
			break
		}
		if _, err := r.Resume([]string{reg.Tag}, r.set); err != nil {
			return err
		}
		clear(got)
		if err := r.transfer(dev, func(s device.Stream) error {
			return r.drv.CopyToHost(unsafe.Pointer(&got[0]), addr, uint64(size), s)
		}); err != nil {
			return fmt.Errorf("after the resume: %w", err)
		}
		if !bytes.Equal(got, want) {
			return errors.New("after the resume: other bytes")
		}
	}
	return r.Free(addr, false)
}
