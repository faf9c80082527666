package alloc

import (
	"fmt"
	"testing"

	"github.com/ebb-offload/ebb/internal/mem"
)

// BenchmarkUnmapAll is one call that unmaps a quarter of an allocator's range.
func BenchmarkUnmapAll(b *testing.B) {
	for _, n := range []int{2000, 20000, 200000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			t := New()
			var list []*Mapping
			for i := range n {
				a := object(t, 1, "x")
				m := &Mapping{Addr: mem.Addr(i + 1), Length: 1}
				t.Map(a, m)
				list = append(list, m)
			}
			quarter := list[n/4 : n/2]
			for b.Loop() {
				t.Unmap(quarter)
				b.StopTimer()
				for _, m := range quarter {
					t.Map(m.Of, m)
				}
				b.StartTimer()
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n/4), "ns/mapping")
		})
	}
}
