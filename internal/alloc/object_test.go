package alloc

import (
	"errors"
	"slices"
	"testing"

	"github.com/ebb-offload/ebb/internal/mem"
)

func object(t *Table, size uint64, tag string) *Allocation {
	a := &Allocation{Kind: Object, Size: size, Reserved: size, Tag: tag, Device: 1, Owned: Owned{Refs: 1}}
	t.Add(a)
	return a
}

func mapAt(t *Table, a *Allocation, addr mem.Addr) *Mapping {
	m := &Mapping{Addr: addr, Length: a.Size}
	t.Map(a, m)
	return m
}

func TestVirtualHandlesAreUniqueAndMarked(t *testing.T) {
	tab := New()
	a, b := object(tab, 10, "x"), object(tab, 10, "x")
	if a.Virtual == b.Virtual || !IsVirtual(a.Virtual) || !IsVirtual(b.Virtual) {
		t.Fatalf("handles %x and %x", uint64(a.Virtual), uint64(b.Virtual))
	}
	for _, h := range []mem.Handle{0, 1, 0x7f12_3456_7890, 0xEBB1 << 48, ^mem.Handle(0)} {
		if IsVirtual(h) {
			t.Errorf("%x is the driver's", uint64(h))
		}
	}
	tab.RemoveObject(a)
	if tab.Object(a.Virtual) != nil || tab.Object(b.Virtual) != b {
		t.Fatal("the wrong one is gone")
	}
}

func TestAnObjectIsFoundByEveryAddressOfIt(t *testing.T) {
	tab := New()
	add(tab, 100, 10, "range")
	a := object(tab, 50, "x")
	m := mapAt(tab, a, 1000)
	mapAt(tab, a, 2000)
	for _, c := range []struct {
		addr      mem.Addr
		size      uint64
		found     bool
		off, room uint64
	}{
		{1000, 50, true, 0, 50}, {1049, 1, true, 49, 1}, {2010, 40, true, 10, 40}, {105, 5, true, 5, 5},
		{1049, 2, false, 49, 1}, {1050, 1, false, 0, 0}, {999, 1, false, 0, 0}, {110, 1, false, 0, 0},
	} {
		_, _, err := tab.Find(c.addr, c.size)
		off, room := tab.Place(c.addr)
		if (err == nil) != c.found || off != c.off && c.found || room != c.room {
			t.Errorf("%d bytes at %d: %v, offset %d, room %d", c.size, c.addr, err, off, room)
		}
	}
	tab.Unmap([]*Mapping{m})
	if tab.MappingAt(1000) != nil || tab.MappingAt(2049) == nil || len(a.Mappings) != 1 {
		t.Fatal("the wrong mapping is gone")
	}
}

func TestMappingsInARange(t *testing.T) {
	tab := New()
	a := object(tab, 10, "x")
	for _, addr := range []mem.Addr{30, 10, 20} { // 10 to 40 without a hole
		mapAt(tab, a, addr)
	}
	add(tab, 100, 5, "range").Reserved = 16
	for _, c := range []struct {
		addr   mem.Addr
		size   uint64
		want   []mem.Addr
		ranges bool
	}{
		{0, 10, nil, false}, {0, 11, []mem.Addr{10}, false}, {19, 1, []mem.Addr{10}, false}, {19, 2, []mem.Addr{10, 20}, false},
		{0, 100, []mem.Addr{10, 20, 30}, false}, {40, 60, nil, false}, {40, 61, nil, true}, {115, 1, nil, true},
		{116, 1, nil, false}, {35, 1<<64 - 1, []mem.Addr{30}, true}, {25, 0, []mem.Addr{20}, false},
	} {
		list, ranges := tab.MappingsIn(c.addr, c.size)
		var got []mem.Addr
		for _, m := range list {
			got = append(got, m.Addr)
		}
		if !slices.Equal(got, c.want) || ranges != c.ranges {
			t.Errorf("%d bytes at %d: mappings at %v, ranges %t", c.size, c.addr, got, ranges)
		}
	}
}

func TestMappingsOfARangeAreTakenOutTogether(t *testing.T) {
	tab := New()
	var all []*Mapping
	for i := range 9 {
		all = append(all, mapAt(tab, object(tab, 10, "x"), mem.Addr(100+10*i)))
	}
	there, _ := tab.MappingsIn(130, 30)
	tab.Unmap(there)
	tab.Unmap(nil)
	for i, m := range all {
		gone := i >= 3 && i < 6
		if found := tab.MappingAt(m.Addr) == m; found == gone || len(m.Of.Mappings) != map[bool]int{true: 0, false: 1}[gone] {
			t.Errorf("mapping %d: found %t, its object has %d", i, found, len(m.Of.Mappings))
		}
	}
}

func TestWhatWasPausedAtARequestIsAskedForUntilItIsBackOrFreed(t *testing.T) {
	tab := New()
	o := object(tab, 10, "x")
	a, freed := add(tab, 1000, 10, "y"), add(tab, 2000, 10, "z")
	is := func(what string, want bool) {
		t.Helper()
		if got := tab.AnyAsked(); got != want {
			t.Errorf("%s: %t", what, got)
		}
	}
	set, err := tab.BeginPause(nil)
	tab.Settle(set, Paused)
	is("paused by the program", false)
	_, _, err2 := tab.Remove(freed.Base)
	tab.Asked([]*Allocation{freed})
	is("freed before it was marked", false)
	tab.Asked([]*Allocation{o, a})
	tab.Asked([]*Allocation{a})
	is("paused at a request", true)
	back, err3 := tab.BeginResume([]string{"y"})
	tab.Settle(back, Paused)
	tab.RemoveObject(o)
	is("one freed, one not resumed after all", true)
	gone, _, err4 := tab.Remove(a.Base)
	is("all freed", false)
	tab.Restore(gone)
	is("one not freed after all", true)
	back, err5 := tab.BeginResume(nil)
	tab.Settle(back, Active)
	is("back", false)
	set, err6 := tab.BeginPause(nil)
	tab.Settle(set, Paused)
	is("paused by the program after that", false)
	if err := errors.Join(err, err2, err3, err4, err5, err6); err != nil {
		t.Fatal(err)
	}
}

// Objects that are freed while paused are away no longer.
func TestWhatIsPausedOrBeingResumedIsAway(t *testing.T) {
	tab := New()
	o := object(tab, 10, "x")
	add(tab, 1000, 10, "y")
	is := func(what string, want bool) {
		t.Helper()
		if got := tab.AnyPaused(); got != want {
			t.Errorf("%s: %t", what, got)
		}
	}
	set, err := tab.BeginPause(nil)
	is("being paused", false)
	tab.Settle(set, Paused)
	is("paused", true)
	back, err2 := tab.BeginResume([]string{"y"})
	tab.RemoveObject(o)
	is("one freed, one being resumed", true)
	tab.Settle(back, Paused)
	is("not resumed after all", true)
	_, _, err3 := tab.Remove(1000)
	is("all freed", false)
	if err != nil || err2 != nil || err3 != nil {
		t.Error(err, err2, err3)
	}
}

func TestTheLastWordOnALocationIsItsRight(t *testing.T) {
	m := &Mapping{}
	m.Grant([]mem.Access{mem.ReadWrite(0), mem.ReadWrite(1)})
	m.Grant([]mem.Access{{LocationType: mem.LocationDevice, LocationID: 0, Flags: mem.AccessR}})
	m.Grant([]mem.Access{{LocationType: mem.LocationDevice, LocationID: 1}})
	if m.Flags(mem.LocationDevice, 0) != mem.AccessR || m.Flags(mem.LocationDevice, 1) != 0 || len(m.Access) != 1 {
		t.Fatalf("%+v", m.Access)
	}
}

func TestKeptAllocationsStayActive(t *testing.T) {
	tab := New()
	a, b, c := object(tab, 10, "x"), object(tab, 20, "x"), object(tab, 40, "y")
	tab.Keep(b, "exported")
	tab.Keep(b, "multicast") // the first word stays
	tab.Keep(c, "multicast")
	set, err := tab.BeginPause(nil)
	if err != nil || !slices.Equal(set, []*Allocation{a}) {
		t.Fatalf("%v, %v", set, err)
	}
	tab.Settle(set, Paused)
	want := []Kept{{"exported", 1, 20}, {"multicast", 1, 40}}
	if got := tab.KeptOf(nil); !slices.Equal(got, want) {
		t.Fatalf("%v", got)
	}
	if got := tab.KeptOf([]string{"y"}); !slices.Equal(got, want[1:]) {
		t.Fatalf("%v", got)
	}
	if u := tab.Usage(); u.Device[1] != 60 || u.Objects != 3 || u.Unmapped != 3 || u.Loose != 70 {
		t.Fatalf("%+v", u)
	}
}

func TestNoPauseBeginsInTheMidstOfAnOwnersCall(t *testing.T) {
	tab := New()
	a := object(tab, 10, "x")
	unlock := tab.Owner()
	began := make(chan []*Allocation)
	go func() {
		set, _ := tab.BeginPause(nil)
		began <- set
	}()
	if !tab.Ready(a) || tab.State(a) != Active {
		t.Fatal("a pause has it")
	}
	a.Refs++ // the race detector sees it if the pause does not wait
	unlock()
	set := <-began
	if len(set) != 1 || set[0].Refs != 2 {
		t.Fatalf("%v", set)
	}
	if tab.Ready(a) {
		t.Fatal("ready while it is being paused")
	}
	done := make(chan State)
	go func() {
		tab.Await(a)
		done <- tab.State(a)
	}()
	tab.Settle(set, Paused)
	if s := <-done; s != Paused {
		t.Fatalf("ready while %v", s)
	}
}

func TestAHeldAllocationIsNotReady(t *testing.T) {
	tab := New()
	a := object(tab, 10, "x")
	mapAt(tab, a, 100)
	if got, _, err := tab.Hold(105, 1); got != a || err != nil {
		t.Fatal(err)
	}
	if tab.Ready(a) {
		t.Fatal("ready while it is read")
	}
	tab.Unhold(a)
	if !tab.Ready(a) {
		t.Fatal("not ready")
	}
	b := add(tab, 500, 10, "range")
	if s, ok := tab.HoldReady(b); !ok || s != Active {
		t.Fatalf("%v, %t", s, ok)
	}
	tab.Unhold(b)
	if _, _, err := tab.Remove(500); err != nil {
		t.Fatal(err)
	}
	if _, ok := tab.HoldReady(b); ok {
		t.Fatal("held, and gone")
	}
}

// One reason that ends leaves the others.
func TestMemoryIsKeptForAsLongAsThereIsAReason(t *testing.T) {
	table := New()
	a := &Allocation{Base: 4096, Size: 10, Reserved: 4096}
	table.Add(a)
	table.Keep(a, "unwritten")
	table.Keep(a, "exported")
	table.Keep(a, "unwritten")
	table.Unkeep(a, "unwritten")
	if kept := table.KeptOf(nil); len(kept) != 1 || kept[0] != (Kept{Reason: "exported", Count: 1, Bytes: 10}) {
		t.Errorf("kept: %+v", kept)
	}
	table.Unkeep(a, "exported")
	if kept := table.KeptOf(nil); len(kept) != 0 {
		t.Errorf("kept: %+v", kept)
	}
}
