package report

import (
	"slices"
	"sort"
)

// wave is what a host's ranks did together: pauses, or resumes, that overlap. Times are Unix nanoseconds.
type wave struct {
	begin, end  int64
	bytes, disk uint64
	ranks       int
}

func (w wave) seconds() float64 { return float64(w.end-w.begin) / 1e9 }

// waves are those of one host and one direction, in order; none overlaps another.
type waves []wave

// add joins an operation with those that it overlaps.
func (w *waves) add(o operation) {
	n := wave{begin: o.begin, end: max(o.end, o.begin), bytes: o.done.Bytes, disk: o.done.DiskBytes, ranks: 1}
	list := *w
	first := sort.Search(len(list), func(i int) bool { return list[i].end >= n.begin })
	last := first
	for ; last < len(list) && list[last].begin <= n.end; last++ {
		n.begin, n.end = min(n.begin, list[last].begin), max(n.end, list[last].end)
		n.bytes, n.disk = plus(n.bytes, list[last].bytes), plus(n.disk, list[last].disk)
		n.ranks += list[last].ranks
	}
	*w = slices.Replace(list, first, last, n)
}
