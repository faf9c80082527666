package store_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/ebb-offload/ebb/internal/store"
	"github.com/ebb-offload/ebb/internal/store/storetest"
)

func name(seq uint64) string { return fmt.Sprintf("backup-%d.bak", seq) }

// TestConformance runs the suite on every kind of store. Those with files may have fewer open
// than there are backings, so that they are reopened.
func TestConformance(t *testing.T) {
	bytes := func(n uint64) func() uint64 { return func() uint64 { return n } }
	for _, kind := range []struct {
		name    string
		dirs    int
		options store.Options
	}{
		{"host memory", 0, store.Options{Alloc: storetest.Alloc}},
		{"host memory for devices", 0, store.Options{Alloc: storetest.Alloc, Direct: true}},
		{"files", 1, store.Options{MaxOpen: 2}},
		{"one file open", 1, store.Options{MaxOpen: 1}},
		{"three directories", 3, store.Options{MaxOpen: 4}},
		{"host memory and files", 1, store.Options{MaxOpen: 2, Alloc: storetest.Alloc, Direct: true, HostBudget: bytes(5*storetest.Block + 4096)}},
		{"host memory and two directories", 2, store.Options{MaxOpen: 3, Alloc: storetest.Alloc, HostBudget: bytes(storetest.Block)}},
		{"host memory for everything", 1, store.Options{Alloc: storetest.Alloc, Direct: true, HostBudget: bytes(1 << 40)}},
	} {
		t.Run(kind.name, func(t *testing.T) {
			var dirs []string
			root := t.TempDir()
			for i := range kind.dirs {
				dirs = append(dirs, filepath.Join(root, fmt.Sprint(i)))
			}
			o := kind.options
			o.BlockBytes, o.Name = storetest.Block, name
			if dirs != nil {
				o.Dirs = in(dirs...)
			}
			storetest.Run(t, storetest.Maker{New: func(testing.TB) *store.Store { return store.New(o) }, Lose: removeFile})
			for _, dir := range dirs {
				if left, err := os.ReadDir(dir); err == nil && len(left) > 0 {
					t.Errorf("left in %s: %v", dir, left)
				}
			}
		})
	}
}

// removeFile removes the file that holds a backing's last block, if it is in one.
func removeFile(t testing.TB, b store.Backing, size uint64) bool {
	path := storetest.File(b, (size-1)/storetest.Block*storetest.Block)
	if path == "" {
		return false
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	return true
}
