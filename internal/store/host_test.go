package store_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/ebb-offload/ebb/internal/store"
	"github.com/ebb-offload/ebb/internal/store/storetest"
)

// TestHostMemoryIsTakenOnceAndGivenBack counts what the store does with its allocator.
func TestHostMemoryIsTakenOnceAndGivenBack(t *testing.T) {
	var asked []uint64
	freed := 0
	s := store.New(store.Options{BlockBytes: storetest.Block, Direct: true, Alloc: func(n uint64) (store.Extent, error) {
		asked = append(asked, n)
		return store.Plain(make([]byte, n), func() error { freed++; return nil }), nil
	}})
	b, err := s.Open(1, size)
	if err != nil {
		t.Fatal(err)
	}
	if b.Direct(0) || len(asked) > 0 {
		t.Error("memory is taken before Reserve")
	}
	for range 2 {
		if err := b.Reserve(); err != nil {
			t.Fatal(err)
		}
	}
	if want := uint64(size+4095) &^ 4095; len(asked) != 1 || asked[0] != want {
		t.Errorf("the allocator was asked for %d, want once for %d", asked, want)
	}
	for range 2 {
		if err := b.Release(); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil || freed != 1 {
		t.Errorf("freed %d times (error: %v)", freed, err)
	}
}

func TestHostMemoryRefused(t *testing.T) {
	refuse := true
	s := store.New(store.Options{BlockBytes: storetest.Block, Alloc: func(n uint64) (store.Extent, error) {
		if refuse {
			return nil, fmt.Errorf("%w: none of %d bytes", store.ErrHostMemory, n)
		}
		return storetest.Alloc(n)
	}})
	b, err := s.Open(3, size)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Reserve(); !errors.Is(err, store.ErrHostMemory) || !strings.Contains(err.Error(), "allocation 3") {
		t.Errorf("reserve: %v, want ErrHostMemory that names the allocation", err)
	}
	if s.Usage().HostBytes != 0 {
		t.Errorf("usage %+v after a refusal", s.Usage())
	}
	refuse = false
	if err := b.Reserve(); err != nil {
		t.Errorf("the next time: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// TestHostMemoryNotFreed: a failed free can be repeated, and the memory counts until then.
func TestHostMemoryNotFreed(t *testing.T) {
	fail := errors.New("not now")
	s := store.New(store.Options{BlockBytes: storetest.Block, Alloc: func(n uint64) (store.Extent, error) {
		return store.Plain(make([]byte, n), func() error { return fail }), nil
	}})
	b := backing(t, s, storetest.Block)
	if err := b.Release(); !errors.Is(err, fail) {
		t.Errorf("release: %v", err)
	}
	if err := s.Close(); !errors.Is(err, fail) || s.Usage().HostBytes != storetest.Block {
		t.Errorf("close: %v, usage %+v", err, s.Usage())
	}
	if err := b.WriteBlock(0, storetest.Buffer(t, storetest.Block), store.Block{State: store.Stored}); err == nil {
		t.Error("a backing that is being released takes a block")
	}
	fail = nil
	if err := s.Close(); err != nil || s.Usage().HostBytes != 0 {
		t.Errorf("close: %v, usage %+v", err, s.Usage())
	}
}

func TestMmapAllocTooMuch(t *testing.T) {
	_, _, err := store.MmapAlloc(1 << 46)
	var m *store.HostMemoryError
	if !errors.Is(err, store.ErrHostMemory) || !errors.As(err, &m) || m.Need != 1<<46 || m.Available == 0 {
		t.Errorf("64 TiB: %v, want a HostMemoryError with numbers", err)
	}
}

// TestMmapAllocMemory: all there, and neither in forked children nor in core dumps.
func TestMmapAllocMemory(t *testing.T) {
	const n = 4 << 20
	p, free, err := store.MmapAlloc(n)
	if err != nil {
		t.Fatal(err)
	}
	pages := make([]byte, n/4096)
	if _, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&p[0])), n, uintptr(unsafe.Pointer(&pages[0]))); errno != 0 {
		t.Fatal(errno)
	}
	if there := bytes.Count(pages, []byte{1}); there != len(pages) {
		t.Errorf("%d of %d pages are there", there, len(pages))
	}
	if flags := vmFlags(t, uintptr(unsafe.Pointer(&p[0]))); !strings.Contains(flags, " dc ") || !strings.Contains(flags, " dd ") {
		t.Errorf("flags of the mapping: %q, want dc (not copied by fork) and dd (not dumped)", flags)
	}
	if err := free(); err != nil {
		t.Fatal(err)
	}
}

// vmFlags returns the VmFlags line of the mapping that holds an address.
func vmFlags(t *testing.T, at uintptr) string {
	t.Helper()
	text, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	inside := false
	for line := range strings.Lines(string(text)) {
		var from, to uintptr
		if n, _ := fmt.Sscanf(line, "%x-%x ", &from, &to); n == 2 {
			inside = from <= at && at < to
		}
		if inside && strings.HasPrefix(line, "VmFlags:") {
			return line
		}
	}
	t.Fatal("the mapping is not found")
	return ""
}
