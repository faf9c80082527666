package plan

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestBlocksCutsEachItemAndKeepsTheOrder(t *testing.T) {
	got := Blocks([]Item{{10, Disk}, {7, Discard}, {4, Host}}, 4)
	want := Plan{
		Moves: []Move{
			{0, 0, 4, Disk}, {0, 4, 4, Disk}, {0, 8, 2, Disk},
			{2, 0, 4, Host},
		},
		Bytes: 21, HostBytes: 4, DiskBytes: 10,
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Fatal(d)
	}
}

func TestBlocksOfNothing(t *testing.T) {
	if d := cmp.Diff(Plan{}, Blocks(nil, 1)); d != "" {
		t.Fatal(d)
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
		for _, m := range Blocks(items, block).Moves {
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
