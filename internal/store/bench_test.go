package store_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ebb-offload/ebb/internal/store"
	"github.com/ebb-offload/ebb/internal/store/storetest"
)

// BenchmarkCycle moves the same bytes as one large allocation and as many small ones, in a
// directory under TMPDIR, which should be on a disk:
//
//	go test -run '^$' -bench Cycle -benchtime 5x ./internal/store
//
// Its metrics are milliseconds of each phase of a cycle: of time, and on the processor. Every
// cycle begins without open files.
func BenchmarkCycle(b *testing.B) {
	const total, block, workers = 2 << 30, 2 << 20, 4
	for _, count := range []int{1, total >> 21} {
		b.Run(fmt.Sprintf("%dx%dMiB", count, total/count>>20), func(b *testing.B) {
			dir := b.TempDir()
			s := store.New(store.Options{BlockBytes: block, Name: name, Dirs: in(dir)})
			defer func() { _ = s.Close() }()
			buffers := make([][]byte, workers)
			for i := range buffers {
				buffers[i] = storetest.Buffer(b, block)
				storetest.Fill(buffers[i], uint64(i))
			}
			var backings []store.Backing
			for id := range uint64(count) {
				backing, err := s.Open(id, uint64(total/count))
				if err != nil {
					b.Fatal(err)
				}
				backings = append(backings, backing)
			}
			each := func(do func(store.Backing) error) {
				for _, backing := range backings {
					if err := do(backing); err != nil {
						b.Fatal(err)
					}
				}
			}
			perBacking := total / count / block
			move := func(do func(backing store.Backing, off uint64, p []byte) error) {
				var next atomic.Int64
				var running sync.WaitGroup
				for _, p := range buffers {
					running.Go(func() {
						for i := next.Add(1) - 1; i < total/block; i = next.Add(1) - 1 {
							if err := do(backings[int(i)/perBacking], uint64(int(i)%perBacking)*block, p); err != nil {
								b.Error(err)
								return
							}
						}
					})
				}
				running.Wait()
			}
			spent := map[string]time.Duration{}
			phase := func(name string, do func()) {
				begin, cpu := time.Now(), cpuTime()
				do()
				spent[name+"-ms"] += time.Since(begin)
				spent[name+"-cpu-ms"] += cpuTime() - cpu
			}
			each(store.Backing.Reserve)
			s.Rest()
			for b.Loop() {
				phase("reserve", func() { each(store.Backing.Reserve) })
				phase("write", func() {
					move(func(backing store.Backing, off uint64, p []byte) error {
						return backing.WriteBlock(off, p, store.Block{State: store.Stored})
					})
				})
				phase("commit", func() { each(store.Backing.Commit); s.Rest() })
				phase("read", func() { move(store.Backing.ReadBlock); s.Rest() })
			}
			for name, sum := range spent {
				b.ReportMetric(sum.Seconds()*1000/float64(b.N), name)
			}
		})
	}
}

// cpuTime is the processor time of this process.
func cpuTime() time.Duration {
	var u unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
