package engine

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/ebb-offload/ebb/internal/mem"
	"github.com/ebb-offload/ebb/internal/parked"
)

// verify checks a disk directory from outside; want is what a person would be told.
func verify(t *testing.T, base, want string) []parked.Report {
	t.Helper()
	reports, known, err := parked.Verify(base, nil)
	check(t, err)
	if !known {
		t.Fatalf("%s: no maps are kept here", base)
	}
	got := ""
	for _, r := range reports {
		got += fmt.Sprintf("%s %s: %d allocations, %d files, %d blocks, %d zero, %d dead, %d bad, %d bytes; ",
			r.Rank, r.Outcome, r.Allocations, r.Files, r.Blocks, r.Zero, r.Dead, r.Bad(), r.Bytes)
	}
	if got != want {
		t.Errorf("%s:\n got %s\nwant %s", base, got, want)
	}
	return reports
}

func TestWhatIsParkedCanBeCheckedFromOutside(t *testing.T) {
	base := filepath.Join(t.TempDir(), "disk")
	r := newRank(t, 3, Config{}, base)
	verify(t, base, "")
	a, b := r.make(3<<20+5, 0, disk("x")), r.make(2<<20, 1, disk("y"))
	r.make(1<<20, 0, pinned("z"))
	r.write(a, 1<<20, make([]byte, 1<<20)) // two blocks
	s := r.set
	s.Unused = []mem.Range{{Addr: b.addr, Bytes: 1 << 20}}
	_, err := r.Pause(nil, s)
	check(t, err)
	const rank = "j/actor_cell0_rank3"
	verify(t, base, rank+" good: 2 allocations, 2 files, 11 blocks, 2 zero, 2 dead, 0 bad, 3145733 bytes; ")

	// One bit, in the middle of a block in use.
	r.flip(a, 8*(2<<20+700))
	found := verify(t, base, rank+" bad: 2 allocations, 2 files, 11 blocks, 2 zero, 2 dead, 1 bad, 3145733 bytes; ")[0].BadBlocks[0]
	if want := fmt.Sprintf("{Address:%v Tag:x Offset:2097152 Bytes:524288 Blocks:1 File:%s At:2097152 Why:other bytes}", a.addr, r.path(a)); fmt.Sprintf("%+v", found) != want {
		t.Errorf("got %+v\nwant %s", found, want)
	}
	r.flip(a, 8*(2<<20+700))
	// What somebody else cut, took away or put in its place.
	path := r.path(b)
	whole, err := os.ReadFile(path)
	check(t, err)
	check(t, os.Truncate(path, 1<<20))
	found = verify(t, base, rank+" bad: 2 allocations, 2 files, 11 blocks, 2 zero, 2 dead, 2 bad, 2097157 bytes; ")[0].BadBlocks[0]
	if found.Why != "the file ends before it" {
		t.Errorf("%+v", found)
	}
	check(t, os.Rename(path, path+"-away"))
	verify(t, base, rank+" bad: 2 allocations, 1 files, 11 blocks, 2 zero, 2 dead, 2 bad, 2097157 bytes; ")
	check(t, os.Symlink(path+"-away", path))
	verify(t, base, rank+" bad: 2 allocations, 1 files, 11 blocks, 2 zero, 2 dead, 2 bad, 2097157 bytes; ")
	check(t, os.Remove(path))
	check(t, os.Rename(path+"-away", path))
	check(t, os.WriteFile(path, whole, 0o600))
	verify(t, base, rank+" good: 2 allocations, 2 files, 11 blocks, 2 zero, 2 dead, 0 bad, 3145733 bytes; ")

	// A part that resumes, or is freed, is no longer said to be parked.
	r.resume("y")
	verify(t, base, rank+" good: 1 allocations, 1 files, 7 blocks, 2 zero, 0 dead, 0 bad, 2097157 bytes; ")
	b.want = r.content(b)
	r.pause("y")
	check(t, r.Free(a.addr, false))
	reports := verify(t, base, rank+" good: 1 allocations, 1 files, 4 blocks, 2 zero, 0 dead, 0 bad, 1048576 bytes; ")
	if reports[0].PID != os.Getpid() {
		t.Errorf("%+v", reports[0])
	}
	r.resume()
	r.holds(b)
	verify(t, base, "")
}

// path is the file of an array.
func (r *rig) path(a *array) string {
	r.t.Helper()
	where := r.whereOf(a, 0)
	path, _, _ := bytes.Cut(bytes.TrimPrefix([]byte(where), []byte("file ")), []byte(" (offset"))
	return string(path)
}

// Each directory has the map of what lies there; host memory is told by the first.
func TestEveryDirectoryHasItsOwnMap(t *testing.T) {
	root := t.TempDir()
	one, two := filepath.Join(root, "one"), filepath.Join(root, "two")
	r := newRank(t, 0, Config{HostBytes: 1 << 20}, one, two)
	a := r.make(5<<20, 0, disk("x"))
	r.pause()
	const want = "j/actor_cell0_rank0 good: 1 allocations, 1 files, 4 blocks, 0 zero, 0 dead, 0 bad, 2097152 bytes; "
	if reports := verify(t, one, want); reports[0].Host != 1<<20 {
		t.Errorf("%+v", reports)
	}
	verify(t, two, want)
	r.resume()
	r.holds(a)
}

// A map that cannot be written costs the check and nothing else, and an old one does not stay.
func TestAMapThatCannotBeWritten(t *testing.T) {
	base := filepath.Join(t.TempDir(), "disk")
	r := newRank(t, 0, Config{}, base)
	a, b := r.make(1<<20, 0, disk("x")), r.make(1<<20, 0, disk("y"))
	r.pause("x")
	check(t, r.sys.Set("rename:1:ENOSPC"))
	r.pause("y")
	verify(t, base, "")
	r.resume("y")
	r.holds(b)
	verify(t, base, "j/actor_cell0_rank0 good: 1 allocations, 1 files, 2 blocks, 0 zero, 0 dead, 0 bad, 1048576 bytes; ")
	r.resume()
	r.holds(a)
}

// A map that was written after a resume may have the inode of the one before it.
func TestAMapInThePlaceOfAnotherIsNotTakenForIt(t *testing.T) {
	base := filepath.Join(t.TempDir(), "disk")
	r := newRank(t, 0, Config{}, base)
	a := r.make(1<<20, 0, disk("x"))
	mapNow := func() (path string, text []byte) {
		found, err := filepath.Glob(filepath.Join(base, ".ebb", "*.map"))
		check(t, err)
		if len(found) != 1 {
			t.Fatal(found)
		}
		text, err = os.ReadFile(found[0])
		check(t, err)
		return found[0], text
	}
	r.pause()
	_, old := mapNow()
	r.resume()
	r.fill(a, 1<<20)
	r.pause()
	path, now := mapNow()
	check(t, os.WriteFile(path, old, 0o600)) // the same inode
	reports, _, err := parked.Verify(base, func() {
		if err := os.WriteFile(path, now, 0o600); err != nil {
			t.Error(err)
		}
	})
	check(t, err)
	if len(reports) != 1 || reports[0].Outcome != parked.Resumed {
		t.Errorf("%+v", reports)
	}
	verify(t, base, "j/actor_cell0_rank0 good: 1 allocations, 1 files, 2 blocks, 0 zero, 0 dead, 0 bad, 1048576 bytes; ")
}

// Checks that run beside pauses and resumes of live ranks never call anything bad.
func TestACheckBesideLiveRanks(t *testing.T) {
	base := filepath.Join(t.TempDir(), "disk")
	r := newRank(t, 0, Config{}, base)
	a, b := r.make(2<<20, 0, disk("x")), r.make(1<<20, 0, disk("y"))
	stop, done := make(chan struct{}), make(chan struct{})
	checks, outcomes := 0, map[parked.Outcome]int{}
	go func() {
		defer close(done)
		for {
			reports, _, err := parked.Verify(base, nil)
			if err != nil {
				t.Error(err)
			}
			checks++
			for _, report := range reports {
				outcomes[report.Outcome]++
				if report.Outcome == parked.Bad || report.Outcome == parked.Unread {
					t.Errorf("%+v", report)
				}
			}
			select {
			case <-stop:
				return
			default:
			}
		}
	}()
	for i := range 30 {
		r.pause("x")
		r.pause("y")
		r.resume("x")
		if i%5 == 4 { // freed while it is parked
			check(t, r.Free(b.addr, false))
			b = r.make(1<<20, 0, disk("y"))
		}
		r.resume()
		r.fill(a, 2<<20)
		r.fill(b, 1<<20)
	}
	close(stop)
	<-done
	t.Logf("%d checks: %v", checks, outcomes)
}
