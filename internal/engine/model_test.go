package engine

import (
	"bytes"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"

	"github.com/ebb-offload/ebb/internal/alloc"
	"github.com/ebb-offload/ebb/internal/mem"
	"pgregory.net/rapid"
)

// long is the form of the random tests that runs many times as much.
var long = os.Getenv("EBB_TEST_LONG") == "1"

// setChecks sets how many sequences rapid tries and prints the seed with which they can be run
// again (-rapid.seed).
func setChecks(t *testing.T, short, many int) {
	t.Helper()
	if long {
		short = many
	}
	if flag.Lookup("rapid.seed").Value.String() == "0" {
		check(t, flag.Set("rapid.seed", strconv.FormatUint(rand.Uint64()|1, 10)))
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

// Any sequence of allocations, frees, writes, pauses and resumes keeps every byte. The model is
// the list of arrays with what each must hold; content is checked whenever memory is active. Writes
// leave zeros and unchanged blocks, so that blocks are skipped for every reason there is.
func TestAnySequenceOfCallsKeepsEveryByte(t *testing.T) {
	setChecks(t, 500, 10000)
	r := newRigWith(t, Config{ChunkBytes: 1 << 20}) // blocks of 128 KiB
	var moved, zero, same, unused uint64
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
		known := func(err error) {
			if err != nil && Code(err) != CodeUnknownTag {
				t.Fatal(err)
			}
		}
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
				if len(live) > 0 && rapid.Bool().Draw(t, "with unused") {
					e := pick(t)
					off, n := stretch(t, len(e.want))
					set.Unused = []mem.Range{{Addr: e.addr + mem.Addr(off), Bytes: uint64(n)}}
					from, to := (off+block-1)/block*block, (off+n)/block*block
					if off+n == len(e.want) {
						to = off + n
					}
					if from < to && !e.paused && matches(e, tags) {
						e.dead = append(e.dead, [2]int{from, to})
					}
				}
				res, err := r.Pause(tags, set)
				known(err)
				var bytes, kept uint64
				for _, e := range live {
					if !e.paused && matches(e, tags) {
						e.paused = true
						bytes += uint64(len(e.want))
						if e.reg.Backup != alloc.BackupNone {
							kept += uint64(len(e.want))
						}
					}
				}
				if sum := res.HostBytes + res.DiskBytes + res.SkippedZero + res.SkippedSame + res.SkippedUnused; sum != kept || res.Bytes != bytes {
					t.Fatalf("of %d bytes, %d of them to be kept: %+v", bytes, kept, res)
				}
				moved += res.HostBytes + res.DiskBytes
				zero, same, unused = zero+res.SkippedZero, same+res.SkippedSame, unused+res.SkippedUnused
			},
			"resume": func(t *rapid.T) {
				tags := tags(t)
				set := r.set
				set.RetainCPU = rapid.Bool().Draw(t, "retain")
				_, err := r.Resume(tags, set)
				known(err)
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
	if !t.Failed() && (moved == 0 || zero == 0 || same == 0 || unused == 0) {
		t.Errorf("moved %d bytes; skipped %d zero, %d same, %d unused: not all of it was tried", moved, zero, same, unused)
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
	var wg sync.WaitGroup
	for i := range 6 {
		wg.Go(func() {
			tag := "thread" + strconv.Itoa(i)
			for n := range rounds {
				addr, err := r.Malloc(uint64(1+n*10007%300000), i%2, disk(tag), 0)
				if err != nil {
					t.Error(err)
					return
				}
				if _, err := r.Pause([]string{tag}, r.set); err != nil {
					t.Error(err)
				}
				if n%3 != 0 {
					if _, err := r.Resume([]string{tag}, r.set); err != nil {
						t.Error(err)
					}
				}
				if err := r.Free(addr, false); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}
