package alloc

import (
	"cmp"
	"math"
	"slices"
	"sort"
	"sync/atomic"

	"github.com/ebb-offload/ebb/internal/mem"
)

// handleBits are the top bits of a virtual handle (EBB_ENGINE_HANDLE), which no driver's handle
// has.
const (
	handleBits  mem.Handle = 0xEBB0 << handleShift
	handleShift            = 48
)

// IsVirtual says whether a handle is one that a table gave.
func IsVirtual(h mem.Handle) bool { return h>>handleShift == handleBits>>handleShift }

// Owned is what the owner of an Object did with it, and what the engine needs to do the same
// again. It lives as long as there is a reference or a mapping. While the Object is Active or
// Paused, whoever has the table's Owner lock may change it; in Pausing and Resuming nobody adds or
// takes mappings or changes access, and the operation may change the rest.
type Owned struct {
	Virtual  mem.Handle // the owner's name for it
	Refs     int        // references: of create and retain, less those released
	Mappings []*Mapping // in the order in which they were made
	Through  mem.Addr   // an address at which the engine may copy; 0: none now
	Window   bool       // Through is a mapping of the engine's own

	latest atomic.Uint64 // address of the latest mapping, for messages
}

// Mapping is an Object mapped at an address by its owner.
type Mapping struct {
	Of             *Allocation
	Addr           mem.Addr
	Offset, Length uint64 // of the Object
	Mapped         bool   // at the driver, now
	Granted        bool   // Access was granted since it was mapped
	Access         []mem.Access
}

// End is the first address behind the mapping.
func (m *Mapping) End() mem.Addr { return m.Addr + mem.Addr(m.Length) }

// Grant enters access rights that were set: the last word on each location counts.
func (m *Mapping) Grant(list []mem.Access) {
	for _, g := range list {
		m.Access = slices.DeleteFunc(m.Access, func(a mem.Access) bool {
			return a.LocationType == g.LocationType && a.LocationID == g.LocationID
		})
		if g.Flags != 0 {
			m.Access = append(m.Access, g)
		}
	}
}

// Flags are the rights of a location, 0 for none.
func (m *Mapping) Flags(locationType, locationID int32) int32 {
	for _, a := range m.Access {
		if a.LocationType == locationType && a.LocationID == locationID {
			return a.Flags
		}
	}
	return 0
}

// Owner takes the lock under which owners change their memory: no allocation enters Pausing or
// Resuming until unlock is called. Driver calls may be made meanwhile, and nothing that waits for
// a pause or resume.
func (t *Table) Owner() (unlock func()) {
	if !t.calls.TryLock() {
		t.waits()
		t.calls.Lock()
	}
	return t.calls.Unlock
}

// Ready says whether an owner may change the allocations now: none is part of a pause or resume,
// or held. The Owner lock keeps it so, but for new holds.
func (t *Table) Ready(list ...*Allocation) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return !slices.ContainsFunc(list, busy)
}

// Await waits until the allocations are ready. The caller must not have the Owner lock, and looks
// again once it has: they may be gone.
func (t *Table) Await(list ...*Allocation) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for said := false; slices.ContainsFunc(list, busy); {
		t.settle(&said)
	}
}

func busy(a *Allocation) bool { return a.state == Pausing || a.state == Resuming || a.holds > 0 }

// HoldReady holds an allocation that is ready, and returns its state; false when it is not, or is
// no longer in the table as a Range.
func (t *Table) HoldReady(a *Allocation) (State, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	i := t.search(a.Base)
	if i == len(t.sorted) || t.sorted[i] != a || a.state == Pausing || a.state == Resuming {
		return a.state, false
	}
	a.holds++
	return a.state, true
}

// State is the state of an allocation.
func (t *Table) State(a *Allocation) State {
	t.mu.Lock()
	defer t.mu.Unlock()
	return a.state
}

// Object returns the Object of a virtual handle, or nil. For this and what follows the caller has
// the Owner lock.
func (t *Table) Object(h mem.Handle) *Allocation {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.objects[h]
}

// RemoveObject takes an Object without mappings, which is ready, out of the table.
func (t *Table) RemoveObject(a *Allocation) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.objects, a.Virtual)
	t.count(a, -1)
}

// Map enters a mapping of a.
func (t *Table) Map(a *Allocation, m *Mapping) {
	t.mu.Lock()
	defer t.mu.Unlock()
	m.Of = a
	a.latest.Store(uint64(m.Addr))
	a.Mappings = append(a.Mappings, m)
	t.mapped = slices.Insert(t.mapped, t.searchMapped(m.Addr), m)
}

// Unmap takes out mappings that MappingsIn has listed, all at once: what it costs to close the gap does not
// grow with their number.
func (t *Table) Unmap(list []*Mapping) {
	if len(list) == 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, m := range list {
		m.Of.Mappings = slices.DeleteFunc(m.Of.Mappings, func(o *Mapping) bool { return o == m })
	}
	i := t.searchMapped(list[0].Addr) // neighbours from here on: mappings do not overlap
	t.mapped = slices.Delete(t.mapped, i, i+len(list))
}

// MappingAt returns the mapping at an address, or nil.
func (t *Table) MappingAt(addr mem.Addr) *Mapping {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.mappingAt(addr)
}

// MappingsIn lists the mappings that overlap [addr, addr+size), by address, and says whether a
// Range does.
func (t *Table) MappingsIn(addr mem.Addr, size uint64) (list []*Mapping, ranges bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	end := addr + mem.Addr(size)
	if end < addr {
		end = math.MaxUint64
	}
	first := t.searchMapped(addr)
	if first > 0 && t.mapped[first-1].End() > addr {
		first--
	}
	last := first
	for last < len(t.mapped) && t.mapped[last].Addr < end {
		last++
	}
	i := t.search(addr)
	ranges = i < len(t.sorted) && t.sorted[i].Base < end ||
		i > 0 && t.sorted[i-1].Base+mem.Addr(t.sorted[i-1].Reserved) > addr
	return slices.Clone(t.mapped[first:last]), ranges
}

// mappingAt is MappingAt with mu held.
func (t *Table) mappingAt(addr mem.Addr) *Mapping {
	if i := t.searchMapped(addr + 1); i > 0 && t.mapped[i-1].End() > addr {
		return t.mapped[i-1]
	}
	return nil
}

// searchMapped returns the index of the first mapping that does not begin below addr.
func (t *Table) searchMapped(addr mem.Addr) int {
	return sort.Search(len(t.mapped), func(i int) bool { return t.mapped[i].Addr >= addr })
}

// Keep makes pauses leave the allocation active from now on, and says why: one word. There may be several reasons.
func (t *Table) Keep(a *Allocation, why string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !slices.Contains(a.kept, why) {
		a.kept = append(a.kept, why)
	}
}

// Unkeep ends what Keep said for this reason; the others hold.
func (t *Table) Unkeep(a *Allocation, why string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	a.kept = slices.DeleteFunc(a.kept, func(known string) bool { return known == why })
}

// Kept sums up the allocations that a pause leaves active for one reason, the first that each has. Bytes are logical.
type Kept struct {
	Reason string `json:"reason"`
	Count  int    `json:"count"`
	Bytes  uint64 `json:"bytes"`
}

// KeptOf lists by reason what a pause of the tags leaves active.
func (t *Table) KeptOf(tags []string) []Kept {
	t.mu.Lock()
	defer t.mu.Unlock()
	byReason := map[string]*Kept{}
	for _, a := range t.all() {
		if len(a.kept) == 0 || !named(a, tags) {
			continue
		}
		why := a.kept[0]
		if byReason[why] == nil {
			byReason[why] = &Kept{Reason: why}
		}
		byReason[why].Count++
		byReason[why].Bytes += a.Size
	}
	list := make([]Kept, 0, len(byReason))
	for _, k := range byReason {
		list = append(list, *k)
	}
	slices.SortFunc(list, func(a, b Kept) int { return cmp.Compare(a.Reason, b.Reason) })
	return list
}

// Usage is what the table holds by physical memory, in bytes.
type Usage struct {
	Device   map[int]uint64 // on devices now, by ordinal; what is in Pausing is there, in Resuming is not
	Objects  int
	Unmapped int    // Objects that are mapped nowhere
	Loose    uint64 // their bytes
}

// Usage sums up.
func (t *Table) Usage() Usage {
	t.mu.Lock()
	defer t.mu.Unlock()
	u := Usage{Device: map[int]uint64{}}
	for _, a := range t.all() {
		if a.state == Active || a.state == Pausing {
			u.Device[a.Device] += a.Reserved
		}
		if a.Kind != Object {
			continue
		}
		u.Objects++
		if len(a.Mappings) == 0 {
			u.Unmapped++
			u.Loose += a.Size
		}
	}
	return u
}
