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
// the list of arrays with what each must hold; content is checked whenever memory is active.
func TestAnySequenceOfCallsKeepsEveryByte(t *testing.T) {
	setChecks(t, 500, 10000)
	r := newRig(t)
	regions := []Region{disk("a"), disk("b"), pinned("a"), mmap("b"), none("a")}
	rapid.Check(t, func(t *rapid.T) {
		type entry struct {
			*array
			reg    Region
			paused bool
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
			"read": func(t *rapid.T) {
				e := pick(t)
				off := rapid.IntRange(0, len(e.want)-1).Draw(t, "offset")
				p := make([]byte, rapid.IntRange(1, len(e.want)-off).Draw(t, "length"))
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
				_, err := r.Pause(tags, r.set)
				known(err)
				for _, e := range live {
					e.paused = e.paused || matches(e, tags)
				}
			},
			"resume": func(t *rapid.T) {
				tags := tags(t)
				_, err := r.Resume(tags, r.set)
				known(err)
				for _, e := range live {
					if e.paused && matches(e, tags) {
						e.paused = false
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
