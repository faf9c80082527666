package store_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/ebb-offload/ebb/internal/store"
	"github.com/ebb-offload/ebb/internal/store/storetest"
)

func name(seq uint64) string { return fmt.Sprintf("backup-%d.bak", seq) }

func TestHostIsAStore(t *testing.T) {
	for _, direct := range []bool{false, true} {
		t.Run(fmt.Sprintf("direct=%v", direct), func(t *testing.T) {
			storetest.Run(t, storetest.Maker{New: func(testing.TB) store.Store {
				return store.NewHost(store.HostOptions{BlockBytes: storetest.Block, Alloc: store.MmapAlloc, Direct: direct})
			}})
		})
	}
}

// TestFilesIsAStore runs with fewer descriptors than backings, so that files are reopened.
func TestFilesIsAStore(t *testing.T) {
	dir := t.TempDir()
	storetest.Run(t, storetest.Maker{
		New: func(testing.TB) store.Store {
			return store.NewFiles(store.FilesOptions{BlockBytes: storetest.Block, Name: name, MaxOpen: 2, Dir: func() string { return dir }})
		},
		Lose: func(t testing.TB, b store.Backing) {
			if err := os.Remove(storetest.File(b, 0)); err != nil {
				t.Fatal(err)
			}
		},
	})
	left, err := os.ReadDir(dir)
	if err != nil || len(left) > 0 {
		t.Errorf("left in the directory: %v (error: %v)", left, err)
	}
}
