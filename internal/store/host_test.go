package store_test

import (
	"errors"
	"strings"
	"testing"

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
	refuse, full := true, errors.New("the node is full")
	s := store.New(store.Options{BlockBytes: storetest.Block, Alloc: func(n uint64) (store.Extent, error) {
		if refuse {
			return nil, full
		}
		return storetest.Alloc(n)
	}})
	b, err := s.Open(3, size)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Reserve(); !errors.Is(err, full) || !strings.Contains(err.Error(), "allocation 3") {
		t.Errorf("reserve: %v, want what Alloc said, and a name of the allocation", err)
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

// TestHostMemoryThatIsNotFreedTwice: what nobody has any more is tried again until it is free.
func TestHostMemoryThatIsNotFreedTwice(t *testing.T) {
	fail := errors.New("not now")
	s := store.New(store.Options{BlockBytes: storetest.Block, Alloc: func(n uint64) (store.Extent, error) {
		return store.Plain(make([]byte, n), func() error { return fail }), nil
	}})
	b := backing(t, s, storetest.Block)
	if err := b.Release(); !errors.Is(err, fail) {
		t.Errorf("release: %v", err)
	}
	s.Retry()
	fail = nil
	s.Retry()
	if u := s.Usage(); u.HostBytes != 0 {
		t.Errorf("usage %+v", u)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
