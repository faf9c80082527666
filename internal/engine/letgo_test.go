package engine

import (
	"errors"
	"strings"
	"testing"

	"github.com/ebb-offload/ebb/internal/alloc"
	"github.com/ebb-offload/ebb/internal/device"
)

// Memory that the driver does not unmap is its owner's as before: it holds its bytes, is paused and resumed
// with the rest, and can be freed again, once.
func TestAFreeThatTheDriverRefusesCanBeRepeated(t *testing.T) {
	r := newRig(t)
	before := r.free(0)
	a, b := r.make(1<<20, 0, disk("x")), r.make(1<<20, 0, pinned("x"))
	for _, v := range []*array{a, b} {
		r.fault("cuMemUnmap:1:999")
		if err := r.Free(v.addr, false); !device.IsCode(err, 999) {
			t.Fatalf("a free that is refused: %v", err)
		}
		r.fault("")
		if r.state(v) != alloc.Active {
			t.Fatalf("after it: %v", r.state(v))
		}
	}
	r.holds(a, b)
	if res := r.pause(); res.Allocations != 2 {
		t.Errorf("%d allocations are paused", res.Allocations)
	}
	r.resume()
	r.holds(a, b)
	for _, v := range []*array{a, b} {
		check(t, r.Free(v.addr, false))
		if err := r.Free(v.addr, false); !errors.Is(err, alloc.ErrNotManaged) {
			t.Errorf("freed twice: %v", err)
		}
	}
	if n := r.free(0); n != before {
		t.Errorf("%d bytes are free, not %d", n, before)
	}
	if r.table.Len() != 0 || r.table.AnyPaused() {
		t.Errorf("%d allocations are left", r.table.Len())
	}
}

// Addresses that the driver does not take back cost nothing but themselves, and are given back with the
// next memory that goes.
func TestAddressesThatTheDriverDoesNotTakeAreGivenBackLater(t *testing.T) {
	r := newRig(t)
	a, b := r.make(1<<20, 0, disk("x")), r.make(1<<20, 0, disk("x"))
	before := r.free(0)
	r.fault("cuMemAddressFree:1:999")
	check(t, r.Free(a.addr, false))
	r.fault("")
	if n := r.free(0); n != before+1<<20 {
		t.Errorf("%d bytes are free, not %d", n, before+1<<20)
	}
	if !strings.Contains(r.logged(), "free the address range") || len(r.untaken.list) != 1 {
		t.Errorf("%d ranges are remembered: %s", len(r.untaken.list), r.logged())
	}
	check(t, r.Free(b.addr, false))
	if len(r.untaken.list) != 0 {
		t.Errorf("%d ranges are left", len(r.untaken.list))
	}
}

// An allocation that fails half-way, and whose undoing the driver refuses, is undone later.
func TestAnAllocationThatCannotBeUndoneIsUndoneLater(t *testing.T) {
	r := newRig(t)
	before := r.free(0)
	r.fault("cuMemSetAccess:1:999,cuMemUnmap:1:999")
	if _, err := r.Malloc(1<<20, 0, disk("x"), 0); err == nil || !strings.Contains(err.Error(), "it is tried again") {
		t.Fatalf("an allocation that fails: %v", err)
	}
	r.fault("")
	if r.table.Len() != 0 || r.free(0) != before-1<<20 {
		t.Errorf("%d allocations, %d bytes held", r.table.Len(), before-r.free(0))
	}
	a := r.make(1<<20, 0, disk("x"))
	r.pause() // tries again
	if n := r.free(0); n != before {
		t.Errorf("%d bytes are held while all is paused", before-n)
	}
	r.resume()
	check(t, r.Free(a.addr, false))
	if n := r.free(0); n != before {
		t.Errorf("%d bytes are free, not %d", n, before)
	}
}

// An object whose owner has let go of it, and whose window the driver does not unmap, is released later.
func TestAnObjectThatCannotBeReleasedIsReleasedLater(t *testing.T) {
	o := newOwner(t)
	before := o.free(0)
	h := o.create(grain, 0, disk("x")) // mapped nowhere: a pause copies it through a window
	o.fault("cuMemUnmap:*:999")
	if _, err := o.Pause(nil, o.set); !errors.Is(err, ErrPartial) {
		t.Fatalf("a pause that unmaps nothing: %v", err)
	}
	check(t, o.Release(h))
	o.fault("")
	if n := o.free(0); n != before-grain || o.table.Len() != 0 {
		t.Errorf("%d bytes are held, %d objects", before-n, o.table.Len())
	}
	other := o.create(grain, 0, disk("x"))
	check(t, o.Release(other))
	if n := o.free(0); n != before {
		t.Errorf("%d bytes are held at the end", before-n)
	}
}
