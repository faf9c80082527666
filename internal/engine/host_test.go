package engine

import (
	"encoding/json"
	"strings"
	"sync/atomic"
	"testing"
	"unsafe"
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
				p, err := r.BackupPointer(a.addr, uint64(len(a.want)))
				check(t, err)
				if string(unsafe.Slice((*byte)(p), len(a.want))) != string(a.want) {
					t.Fatal("the backup pointer shows other bytes")
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
