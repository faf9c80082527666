package store_test

import (
	"testing"
	"time"

	"github.com/ebb-offload/ebb/internal/fingerprint"
	"github.com/ebb-offload/ebb/internal/store"
	"github.com/ebb-offload/ebb/internal/store/storetest"
)

// TestBlockCallsTakeNoMemory: what pauses and resumes do for each block makes no work for the
// garbage collector of the process that they run in.
func TestBlockCallsTakeNoMemory(t *testing.T) {
	for what, o := range map[string]store.Options{
		"host":                 {Alloc: storetest.Alloc, Direct: true},
		"file":                 {Dirs: in(t.TempDir())},
		"files":                {Dirs: in(t.TempDir(), t.TempDir())},
		"file with a deadline": {Dirs: in(t.TempDir()), Timeout: time.Hour},
	} {
		t.Run(what, func(t *testing.T) {
			o.BlockBytes, o.Name = storetest.Block, name
			s := store.New(o)
			defer func() { _ = s.Close() }()
			b := backing(t, s, size)
			p := storetest.Buffer(t, storetest.Block)
			as := store.Block{State: store.Stored, Sum: fingerprint.Sum{1, 2}, Known: true}
			n := testing.AllocsPerRun(20, func() {
				for off := uint64(0); off < 3*storetest.Block; off += storetest.Block {
					if err := b.WriteBlock(off, p, as); err != nil {
						t.Fatal(err)
					}
					if err := b.ReadBlock(off, p); err != nil {
						t.Fatal(err)
					}
					b.Mark(off, store.Block{State: store.Zero})
					if _, err := b.Memory(off); err != nil || b.Block(off).State != store.Zero {
						t.Fatal(err)
					}
				}
			})
			if n != 0 {
				t.Errorf("three blocks took %v pieces of memory", n)
			}
		})
	}
}
