package engine

import (
	"fmt"
	"testing"
	"time"

	"github.com/ebb-offload/ebb/internal/mem"
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

// BenchmarkManyPieces is an allocator's range of many pieces, each memory of its own: what a pause, a
// resume and an unmapping of a quarter of it while paused take for each piece must not grow with their
// number.
func BenchmarkManyPieces(b *testing.B) {
	for _, n := range []int{1000, 4000, 16000} {
		for name, reg := range map[string]Region{"disk": disk("x"), "cpu": pinned("x"), "none": none("x")} {
			b.Run(fmt.Sprintf("%d, %s", n, name), func(b *testing.B) {
				o := owner{newRigWith(b, Config{ChunkBytes: 64 << 20, HostArena: true}), b}
				base := o.reserve(uint64(n) * grain)
				at := func(i int) mem.Addr { return base + mem.Addr(i*grain) }
				fill := func(from, to int) {
					for i := from; i < to; i++ {
						h := o.create(grain, 0, reg)
						check(b, o.Map(at(i), grain, 0, h, 0))
						check(b, o.Release(h))
					}
					check(b, o.SetAccess(at(from), uint64(to-from)*grain, []mem.Access{mem.ReadWrite(0)}))
				}
				perPiece := func(what string, pieces int, since time.Time) {
					b.ReportMetric(float64(time.Since(since).Microseconds())/float64(pieces), "us/"+what)
				}
				begun := time.Now()
				fill(0, n)
				perPiece("made", n, begun)
				for b.Loop() {
					begun = time.Now()
					o.pause()
					perPiece("paused", n, begun)
					begun = time.Now()
					check(b, o.Unmap(at(n/4), uint64(n/4)*grain))
					perPiece("unmapped", n/4, begun)
					begun = time.Now()
					o.resume()
					perPiece("resumed", n*3/4, begun)
					fill(n/4, n/2)
				}
			})
		}
	}
}
