package store_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/ebb-offload/ebb/internal/store"
	"github.com/ebb-offload/ebb/internal/store/storetest"
)

const block = storetest.Block

// spread is a store with a budget of host memory and one directory. What it says is added to said.
func spread(t *testing.T, budget *uint64, alloc func(uint64) (store.Extent, error), said *[]string) *store.Store {
	t.Helper()
	return files(t, store.Options{
		Dirs: in(t.TempDir()), Alloc: alloc, Direct: true,
		HostBudget: func() uint64 { return *budget },
		Warn:       func(line string) { *said = append(*said, line) },
	})
}

// places says where each block of a backing lies: h for host memory, f for a file.
func places(b store.Backing, size uint64) (s string) {
	for _, k := range storetest.Blocks(size) {
		if storetest.File(b, k.Off) == "" {
			s += "h"
		} else {
			s += "f"
		}
	}
	return s
}

// TestTheBudgetIsSharedByAllBackings in the order of their Reserve, and given back by Release.
func TestTheBudgetIsSharedByAllBackings(t *testing.T) {
	budget := uint64(5*block + 100)
	var said []string
	s := spread(t, &budget, storetest.Alloc, &said)
	var all []store.Backing
	for i, want := range []string{"hhh", "hhff", "ff"} {
		size := uint64(len(want)) * block
		b := backing(t, s, size)
		if got := places(b, size); got != want {
			t.Errorf("backing %d lies in %s, want %s", i, got, want)
		}
		all = append(all, b)
	}
	if u := s.Usage(); u.HostBytes != 5*block || u.DiskBytes != 4*block || u.Files != 2 {
		t.Errorf("usage %+v", u)
	}
	if err := all[0].Release(); err != nil {
		t.Fatal(err)
	}
	for _, b := range all[1:] { // what has room keeps it
		if err := b.Reserve(); err != nil {
			t.Fatal(err)
		}
	}
	if got := places(all[2], 2*block); got != "ff" {
		t.Errorf("a backing with room moved to %s", got)
	}
	if got := places(backing(t, s, 4*block), 4*block); got != "hhhf" {
		t.Errorf("after a release the next one lies in %s", got)
	}
	budget = block // less than is taken
	if got := places(backing(t, s, block), block); got != "f" {
		t.Errorf("beyond the budget a backing lies in %s", got)
	}
	if len(said) > 0 {
		t.Errorf("said: %q", said)
	}
}

// TestASmallBackingFitsWhole into less than a block of the budget.
func TestASmallBackingFitsWhole(t *testing.T) {
	budget := uint64(8192)
	s := spread(t, &budget, storetest.Alloc, nil)
	small := backing(t, s, 4097)
	if got := places(small, 4097); got != "h" || s.Usage().HostBytes != 8192 {
		t.Errorf("it lies in %s, usage %+v", got, s.Usage())
	}
	if got := places(backing(t, s, 1), 1); got != "f" {
		t.Errorf("the next one lies in %s", got)
	}
}

// TestABudgetThatCannotBeHad: what the system refuses goes to disk, and is said once.
func TestABudgetThatCannotBeHad(t *testing.T) {
	budget := uint64(1 << 50)
	var said []string
	refuse := errors.New("the node is full")
	s := spread(t, &budget, func(uint64) (store.Extent, error) { return nil, refuse }, &said)
	for range 2 {
		b := backing(t, s, 2*block)
		if got := places(b, 2*block); got != "ff" {
			t.Errorf("it lies in %s", got)
		}
		storetest.Write(t, b, 2*block, 1)
		storetest.Check(t, b, 2*block, 1)
	}
	if u := s.Usage(); u.HostBytes != 0 {
		t.Errorf("usage %+v", u)
	}
	if len(said) != 1 || !strings.Contains(said[0], "the node is full") {
		t.Errorf("said: %q", said)
	}
}

// late is host memory that was promised and cannot be made.
type late struct{ err error }

func (l late) Bytes(_, _ uint64) ([]byte, error) { return nil, l.err }
func (l late) Free() error                       { return nil }

// TestHostMemoryThatDoesNotCome is an error of the block, which stays absent.
func TestHostMemoryThatDoesNotCome(t *testing.T) {
	budget, broken := uint64(block), errors.New("the driver does not pin it")
	s := spread(t, &budget, func(uint64) (store.Extent, error) { return late{broken}, nil }, nil)
	b := backing(t, s, 2*block)
	if err := b.WriteBlock(0, storetest.Buffer(t, block), store.Block{State: store.Stored}); !errors.Is(err, broken) {
		t.Errorf("write: %v", err)
	}
	if memory, err := b.Memory(0); memory != nil || !errors.Is(err, broken) {
		t.Errorf("memory: %v", err)
	}
	b.Mark(0, store.Block{State: store.Zero})
	if state := b.Block(0).State; state != store.Absent {
		t.Errorf("its memory could not be cleared, and the block is %v", state)
	}
	b.Mark(block, store.Block{State: store.Zero})
	if err := b.Commit(); !errors.Is(err, store.ErrAbsent) {
		t.Errorf("commit: %v", err)
	}
}

// TestNoRoomOnDiskGivesTheHostMemoryBack.
func TestNoRoomOnDiskGivesTheHostMemoryBack(t *testing.T) {
	freed := 0
	s := files(t, store.Options{
		Dirs: in("/proc/no"), HostBudget: func() uint64 { return block },
		Alloc: func(n uint64) (store.Extent, error) {
			return store.Plain(make([]byte, n), func() error { freed++; return nil }), nil
		},
	})
	b, err := s.Open(1, 2*block)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Reserve(); err == nil || !strings.Contains(err.Error(), "/proc/no") {
		t.Fatalf("reserve: %v", err)
	}
	if u := s.Usage(); u.HostBytes != 0 || freed != 1 {
		t.Errorf("usage %+v, freed %d times", u, freed)
	}
}
