package plan

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestBlocksCutsEachItemAndKeepsTheOrder(t *testing.T) {
	p := Blocks([]Item{{10, Disk}, {7, Discard}, {4, Host}}, 4)
	want := []Move{
		{0, 0, 4, Disk}, {0, 4, 4, Disk}, {0, 8, 2, Disk},
		{2, 0, 4, Host},
	}
	if d := cmp.Diff(want, all(p)); d != "" {
		t.Fatal(d)
	}
	if p.Bytes != 21 || p.HostBytes != 4 || p.DiskBytes != 10 {
		t.Fatalf("sums %d, %d, %d", p.Bytes, p.HostBytes, p.DiskBytes)
	}
}

func all(p Plan) []Move {
	var list []Move
	for n := range p.Moves() {
		list = append(list, p.Move(n))
	}
	return list
}

func TestBlocksOfNothing(t *testing.T) {
	for _, items := range [][]Item{nil, {{7, Discard}}} {
		if p := Blocks(items, 1); p.Moves() != 0 {
			t.Fatalf("%d moves of %v", p.Moves(), items)
		}
	}
}

// Every byte of every item that is kept is moved exactly once, in aligned blocks.
func TestBlocksCoverEveryByteOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		block := rapid.Uint64Range(1, 64).Draw(t, "block")
		var items []Item
		for range rapid.IntRange(0, 8).Draw(t, "items") {
			items = append(items, Item{rapid.Uint64Range(0, 300).Draw(t, "size"), Target(rapid.IntRange(0, 2).Draw(t, "target"))})
		}
		next := make([]uint64, len(items))
		for _, m := range all(Blocks(items, block)) {
			switch {
			case m.Offset != next[m.Item]:
				t.Fatalf("item %d: block at %d, want %d", m.Item, m.Offset, next[m.Item])
			case m.Offset%block != 0 || m.Length == 0 || m.Length > block:
				t.Fatalf("bad block %+v", m)
			case m.Target != items[m.Item].Target:
				t.Fatalf("block %+v of an item for %v", m, items[m.Item].Target)
			}
			next[m.Item] += m.Length
		}
		for i, it := range items {
			if want := it.Size; it.Target != Discard && next[i] != want || it.Target == Discard && next[i] != 0 {
				t.Fatalf("item %d: moved %d of %d bytes", i, next[i], want)
			}
		}
	})
}
