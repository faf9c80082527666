package store

import (
	"os"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// resident is the number of bytes of a file in the page cache.
func resident(t *testing.T, path string) (n int) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	p, err := unix.Mmap(int(f.Fd()), 0, int(info.Size()), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(p) }()
	pages := make([]byte, (len(p)+4095)/4096)
	if _, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&p[0])), uintptr(len(p)), uintptr(unsafe.Pointer(&pages[0]))); errno != 0 {
		t.Fatal(errno)
	}
	for _, page := range pages {
		if page&1 != 0 {
			n += 4096
		}
	}
	return n
}

// TestPageCacheStaysSmall while blocks are written and read, with and without direct I/O.
func TestPageCacheStaysSmall(t *testing.T) {
	// Reading ahead, and pages that the kernel just holds, stay for a moment; on a busy machine
	// they come to a few MiB. Half the file is far from both.
	const limit = 16 << 20
	for _, mode := range modes[:2] {
		t.Run(mode.name, func(t *testing.T) {
			w := newWorld(t, mode)
			const size, block = 32 << 20, 1 << 20
			w.store.options.BlockBytes = block
			b, err := w.store.Open(9, size)
			if err != nil {
				t.Fatal(err)
			}
			if err := b.Reserve(); err != nil {
				t.Fatal(err)
			}
			path, p := fileOf(b), pages(t, block)
			for i := range p {
				p[i] = 1
			}
			write := func(off uint64, p []byte) error { return b.WriteBlock(off, p, Block{State: Stored}) }
			for _, transfer := range []func(uint64, []byte) error{write, b.ReadBlock} {
				for off := uint64(0); off < size; off += block {
					if err := transfer(off, p); err != nil {
						t.Fatal(err)
					}
					if n := resident(t, path); n > limit {
						t.Fatalf("%d bytes in the page cache after the block at %d", n, off)
					}
				}
				if err := b.Commit(); err != nil {
					t.Fatal(err)
				}
			}
			w.closed(t)
		})
	}
}
