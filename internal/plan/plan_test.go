package plan

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/ebb-offload/ebb/internal/mem"
)

func TestCutKeepsTheOrder(t *testing.T) {
	b := Cut([]Item{{10, Disk}, {7, Discard}, {4, Host}}, 4)
	want := []Block{
		{0, 0, 4, Disk}, {0, 4, 4, Disk}, {0, 8, 2, Disk},
		{2, 0, 4, Host},
	}
	if d := cmp.Diff(want, all(b)); d != "" {
		t.Fatal(d)
	}
}

func all(b Blocks) []Block {
	var list []Block
	for n := range b.Len() {
		list = append(list, b.At(n))
	}
	return list
}

func TestCutOfNothing(t *testing.T) {
	for _, items := range [][]Item{nil, {{7, Discard}}} {
		if b := Cut(items, 1); b.Len() != 0 {
			t.Fatalf("%d blocks of %v", b.Len(), items)
		}
	}
}

// Every byte of every item that is kept lies in exactly one block, and blocks are aligned.
func TestBlocksCoverEveryByteOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.Uint64Range(1, 64).Draw(t, "block")
		var items []Item
		for range rapid.IntRange(0, 8).Draw(t, "items") {
			items = append(items, Item{rapid.Uint64Range(0, 300).Draw(t, "size"), Target(rapid.IntRange(0, 2).Draw(t, "target"))})
		}
		next := make([]uint64, len(items))
		for _, b := range all(Cut(items, size)) {
			switch {
			case b.Offset != next[b.Item]:
				t.Fatalf("item %d: block at %d, want %d", b.Item, b.Offset, next[b.Item])
			case b.Offset%size != 0 || b.Length == 0 || b.Length > size:
				t.Fatalf("bad block %+v", b)
			case b.Target != items[b.Item].Target:
				t.Fatalf("block %+v of an item for %v", b, items[b.Item].Target)
			}
			next[b.Item] += b.Length
		}
		for i, it := range items {
			if want := it.Size; it.Target != Discard && next[i] != want || it.Target == Discard && next[i] != 0 {
				t.Fatalf("item %d: %d of %d bytes are in blocks", i, next[i], want)
			}
		}
	})
}

func TestWhatBecomesOfABlock(t *testing.T) {
	for _, c := range []struct {
		Facts
		want Action
	}{
		{Facts{}, Move},
		{Facts{Same: true}, Same},
		{Facts{Unused: true}, Dead},
		{Facts{Unused: true, Same: true}, Dead},
		{Facts{Zero: true}, Zero},
		{Facts{Zero: true, Same: true, Unused: true}, Zero},
	} {
		if got := Pause(c.Facts); got != c.want {
			t.Errorf("%+v: action %d, want %d", c.Facts, got, c.want)
		}
	}
}

func TestAPlanHasTwoQueuesAndCountsWhatIsSkipped(t *testing.T) {
	block := func(n uint64) Block { return Block{Length: n} }
	p := New(7)
	p.Add(0, block(1), Move, Disk, false)
	p.Add(1, block(2), Move, Host, false)
	p.Add(2, block(4), Zero, Disk, false)
	p.Add(3, block(8), Same, Disk, false)
	p.Add(4, block(16), Dead, Host, false)
	p.Add(5, block(32), Move, Disk, false)
	p.Add(6, block(64), Zero, Disk, true)
	want := Plan{
		Disk: []int32{0, 5}, Host: []int32{1, 6},
		DiskBytes: 33, HostBytes: 2, ZeroBytes: 68, SameBytes: 8, DeadBytes: 16,
	}
	same := func() {
		t.Helper()
		if d := cmp.Diff(want, p, cmpopts.IgnoreUnexported(Plan{})); d != "" {
			t.Fatal(d)
		}
	}
	same()
	for n, a := range []Action{Move, Move, Zero, Same, Dead, Move, Zero} {
		if p.Action(n) != a {
			t.Errorf("block %d: action %d, want %d", n, p.Action(n), a)
		}
	}

	// What has changed meanwhile moves, and no longer counts as skipped.
	p.Again()
	p.Move(0, block(1), Disk)
	p.Move(2, block(4), Host)
	p.Move(3, block(8), Disk)
	p.Move(4, block(16), Host)
	want = Plan{
		Disk: []int32{0, 3}, Host: []int32{2, 4},
		DiskBytes: 42, HostBytes: 22, ZeroBytes: 64,
	}
	same()
}

// A union contains a stretch of bytes exactly when each of them lies in one of its ranges.
func TestAUnionContainsWhatItsRangesContain(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var list []mem.Range
		var in [64]bool
		for range rapid.IntRange(0, 8).Draw(t, "ranges") {
			r := mem.Range{Addr: mem.Addr(rapid.IntRange(0, 50).Draw(t, "address")), Bytes: uint64(rapid.IntRange(0, 12).Draw(t, "bytes"))}
			list = append(list, r)
			for i := range r.Bytes {
				in[uint64(r.Addr)+i] = true
			}
		}
		u := Union(list)
		for from := range in {
			for to := from + 1; to <= len(in) && in[to-1]; to++ {
				if !u.Contain(mem.Addr(from), uint64(to-from)) {
					t.Fatalf("%v: [%d, %d) is not contained", list, from, to)
				}
			}
			if n := 1; !in[from] && u.Contain(mem.Addr(from), uint64(n)) {
				t.Fatalf("%v: %d is contained", list, from)
			}
			if from > 0 && in[from-1] && !in[from] && u.Contain(mem.Addr(from-1), 2) {
				t.Fatalf("%v: [%d, %d) is contained", list, from-1, from+1)
			}
		}
	})
}

func TestARangeEndsWithTheAddressSpace(t *testing.T) {
	u := Union([]mem.Range{{Addr: 10, Bytes: ^uint64(0)}})
	if !u.Contain(10, 1<<40) || u.Contain(9, 2) || u.Contain(10, ^uint64(0)) {
		t.Fatal("a range beyond the end of the address space wrapped")
	}
	if u := Union(nil); u.Contain(0, 1) {
		t.Fatal("nothing contains something")
	}
}
