package engine

import (
	"testing"
)

func TestASecondPauseOfUnchangedMemoryWritesNothing(t *testing.T) {
	for name, reg := range map[string]Region{"disk": disk("x"), "pinned": pinned("x"), "mmap": mmap("x")} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.set.RetainCPU = true
			a, b := r.make(5<<20+17, 0, reg), r.make(1000, 1, reg)
			all := uint64(len(a.want) + len(b.want))
			first := r.pause()
			if first.HostBytes+first.DiskBytes != all || first.SkippedSame != 0 || first.Checks <= 0 {
				t.Fatalf("first pause: %+v", first)
			}
			r.resume()
			second := r.pause()
			if second.HostBytes+second.DiskBytes != 0 || second.SkippedSame != all || second.Bytes != all {
				t.Fatalf("second pause: %+v", second)
			}
			r.resume()
			r.holds(a, b)

			// One changed byte moves one block.
			r.write(a, 3<<20, []byte{a.want[3<<20] + 1})
			third := r.pause()
			if third.HostBytes+third.DiskBytes != r.block || third.SkippedSame != all-r.block {
				t.Fatalf("third pause: %+v", third)
			}
			r.resume()
			r.holds(a, b)
		})
	}
}
