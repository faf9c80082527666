package hostmem

import (
	"cmp"
	"slices"
)

// extent is a range of an arena's addresses, by its offset.
type extent struct{ off, n uint64 }

func (e extent) end() uint64 { return e.off + e.n }

// extents are ranges in order, none empty, and no two that touch.
type extents []extent

// add puts in a range, of which nothing is there yet.
func (x *extents) add(e extent) {
	if e.n == 0 {
		return
	}
	i, _ := slices.BinarySearchFunc(*x, e.off, func(have extent, off uint64) int { return cmp.Compare(have.off, off) })
	if i < len(*x) && e.end() == (*x)[i].off {
		e.n += (*x)[i].n
		*x = slices.Delete(*x, i, i+1)
	}
	if i > 0 && (*x)[i-1].end() == e.off {
		(*x)[i-1].n += e.n
		return
	}
	*x = slices.Insert(*x, i, e)
}

// remove takes out a range, all of which is there.
func (x *extents) remove(e extent) {
	if e.n == 0 {
		return
	}
	i, found := slices.BinarySearchFunc(*x, e.off, func(have extent, off uint64) int { return cmp.Compare(have.off, off) })
	if !found {
		i--
	}
	before := extent{(*x)[i].off, e.off - (*x)[i].off}
	after := extent{e.end(), (*x)[i].end() - e.end()}
	var rest []extent
	for _, r := range []extent{before, after} {
		if r.n > 0 {
			rest = append(rest, r)
		}
	}
	*x = slices.Replace(*x, i, i+1, rest...)
}

// has reports whether all of a range is there.
func (x extents) has(e extent) bool {
	i, found := slices.BinarySearchFunc(x, e.off, func(have extent, off uint64) int { return cmp.Compare(have.off, off) })
	if !found {
		i--
	}
	return i >= 0 && x[i].off <= e.off && e.end() <= x[i].end()
}

// fit finds the first place for n bytes at a multiple of align, a power of two. gap, if not nil,
// returns the end of the first part of a range that must not be used, or 0.
func (x extents) fit(n, align uint64, gap func(extent) uint64) (off uint64, found bool) {
	for _, e := range x {
		at := alignUp(e.off, align)
		for at+n <= e.end() {
			if gap == nil {
				return at, true
			}
			past := gap(extent{at, n})
			if past == 0 {
				return at, true
			}
			at = alignUp(past, align)
		}
	}
	return 0, false
}

// alignUp rounds n up to a multiple of a power of two.
func alignUp(n, to uint64) uint64 { return (n + to - 1) &^ (to - 1) }
