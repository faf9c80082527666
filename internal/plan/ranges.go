package plan

import (
	"slices"
	"sort"

	"github.com/ebb-offload/ebb/internal/mem"
)

// Ranges are bytes of memory, as sorted ranges that neither touch nor overlap.
type Ranges struct{ sorted []mem.Range }

// Union is all bytes of the list, whose ranges may overlap. A range that would go beyond the end
// of the address space ends there.
func Union(list []mem.Range) Ranges {
	sorted := slices.Clone(list)
	slices.SortFunc(sorted, func(a, b mem.Range) int {
		if a.Addr < b.Addr {
			return -1
		}
		return int(min(1, a.Addr-b.Addr))
	})
	var u Ranges
	for _, r := range sorted {
		r.Bytes = min(r.Bytes, ^uint64(r.Addr))
		if r.Bytes == 0 {
			continue
		}
		if n := len(u.sorted); n > 0 {
			if last := &u.sorted[n-1]; uint64(r.Addr-last.Addr) <= last.Bytes {
				last.Bytes = max(last.Bytes, uint64(r.Addr-last.Addr)+r.Bytes)
				continue
			}
		}
		u.sorted = append(u.sorted, r)
	}
	return u
}

// Contain reports whether all n bytes at addr are among them.
func (u *Ranges) Contain(addr mem.Addr, n uint64) bool {
	i := sort.Search(len(u.sorted), func(i int) bool { return u.sorted[i].Addr > addr })
	if i == 0 {
		return false
	}
	r := u.sorted[i-1]
	skip := uint64(addr - r.Addr)
	return skip <= r.Bytes && n <= r.Bytes-skip
}
