package hostmem

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// The model is one mark for each unit of the space.
func TestExtentsAgreeWithMarks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const space = 64
		free := extents{{0, space}}
		var taken [space]bool
		var held []extent
		t.Repeat(map[string]func(*rapid.T){
			"take": func(t *rapid.T) {
				n := rapid.Uint64Range(1, 12).Draw(t, "n")
				align := uint64(1) << rapid.IntRange(0, 3).Draw(t, "align")
				forbidden := rapid.Uint64Range(0, 2*space).Draw(t, "forbidden") // one unit that must not be used
				var gap func(extent) uint64
				if forbidden < space {
					gap = func(e extent) uint64 {
						if e.off <= forbidden && forbidden < e.end() {
							return forbidden + 1
						}
						return 0
					}
				}
				fits := func(at uint64) bool {
					for i := at; i < at+n; i++ {
						if taken[i] || i == forbidden {
							return false
						}
					}
					return true
				}
				off, found := free.fit(n, align, gap)
				for at := uint64(0); at+n <= space; at += align { // the first that fits
					if fits(at) {
						if !found || off != at {
							t.Fatalf("fit found %d, %v; want %d", off, found, at)
						}
						free.remove(extent{off, n})
						held = append(held, extent{off, n})
						for i := off; i < off+n; i++ {
							taken[i] = true
						}
						return
					}
				}
				if found {
					t.Fatalf("fit found %d where nothing fits", off)
				}
			},
			"give": func(t *rapid.T) {
				if len(held) == 0 {
					t.Skip("nothing is held")
				}
				i := rapid.IntRange(0, len(held)-1).Draw(t, "which")
				e := held[i]
				held = slices.Delete(held, i, i+1)
				free.add(e)
				for i := e.off; i < e.end(); i++ {
					taken[i] = false
				}
			},
			"": func(t *rapid.T) {
				var want extents // runs of unmarked units
				for i := uint64(0); i < space; i++ {
					switch last := len(want) - 1; {
					case taken[i]:
					case last >= 0 && want[last].end() == i:
						want[last].n++
					default:
						want = append(want, extent{i, 1})
					}
				}
				if !slices.Equal(free, want) {
					t.Fatalf("free %v, want %v", free, want)
				}
				e := extent{rapid.Uint64Range(0, space-1).Draw(t, "at"), 1}
				e.n = rapid.Uint64Range(1, space-e.off).Draw(t, "length")
				all := true
				for i := e.off; i < e.end(); i++ {
					all = all && !taken[i]
				}
				if free.has(e) != all {
					t.Fatalf("has(%v) = %v, want %v", e, !all, all)
				}
			},
		})
	})
}
