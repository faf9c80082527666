package engine

import (
	"fmt"
	"testing"
)

// BenchmarkManySmall compares ten thousand small allocations with one of the same bytes: what is
// different is ours, softgpu's and the file system's cost of an allocation.
func BenchmarkManySmall(b *testing.B) {
	for _, n := range []int{1, 10000} {
		for _, backup := range []Region{disk("x"), pinned("x")} {
			b.Run(fmt.Sprintf("%d, %v", n, backup.Backup), func(b *testing.B) {
				r := newRigWith(b, Config{ChunkBytes: 64 << 20, HostArena: true})
				const total = 10000 * 64 << 10
				for range n {
					r.make(total/n, 0, backup)
				}
				r.pause()
				r.resume()
				b.ResetTimer()
				for range b.N {
					res := r.pause()
					b.ReportMetric(res.Duration.Seconds()*1e3, "ms/pause")
					res = r.resume()
					b.ReportMetric(res.Duration.Seconds()*1e3, "ms/resume")
				}
			})
		}
	}
}
