// Package alloc is the allocation table: which address ranges ebb manages, of which pieces of
// physical memory they are made, and in which state each is. It is pure bookkeeping: it calls
// no driver and does no I/O.
//
// States and who moves them:
//
//	        BeginPause          Settle(Paused)
//	Active ───────────► Pausing ──────────────► Paused
//	  ▲ ◄────────────────┘  Settle(Active)        │ ▲
//	  │                                BeginResume│ │Settle(Paused)
//	  │     Settle(Active)                        ▼ │
//	  └──────────────────────────────────────── Resuming
//
//	Active, Paused ── Remove ──► gone from the table ── Restore ──► as it was
//
// An allocation in Pausing or Resuming belongs to the operation that put it there: only that
// operation touches its Pieces, and it must Settle it. Remove waits for that. An allocation
// that was removed belongs to the caller of Remove. Hold keeps one from being removed while its
// memory or backup is read. Everything else about an allocation is fixed when it is made.
//
// There are two kinds. A Range is memory that ebb made an address range for. An Object is
// physical memory that its owner maps where it likes, at no address or at several; see object.go.
//
// Locks: Table.calls orders what owners do to their memory against BeginPause and BeginResume,
// and may be held over driver calls; see Table.Owner. Table.mu is held for look-ups and state
// changes only, never while anything else is called. It comes last in every lock order.
package alloc

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sort"
	"strings"
	"sync"

	"github.com/ebb-offload/ebb/internal/mem"
)

// Backup says where the bytes of an allocation go while it is paused. The numbers are those of
// ebb_backup in the C contract.
type Backup int

// Backup modes.
const (
	BackupNone Backup = 0 // nowhere: content is undefined after resume
	BackupCPU  Backup = 1
	BackupDisk Backup = 2
)

func (b Backup) String() string {
	switch b {
	case BackupNone:
		return "none"
	case BackupCPU:
		return "cpu"
	case BackupDisk:
		return "disk"
	}
	return fmt.Sprintf("backup(%d)", int(b))
}

// State of an allocation; the package comment has the transitions.
type State int

// States.
const (
	Active State = iota
	Pausing
	Paused
	Resuming
)

func (s State) String() string {
	return [...]string{"active", "pausing", "paused", "resuming"}[s]
}

// Piece is one physical handle mapped at an offset of an allocation's address range. Handle is
// 0 while the piece has no physical memory; Mapped says whether it is mapped now.
type Piece struct {
	Offset, Length uint64
	Handle         mem.Handle
	Mapped         bool
	Granted        bool // access was granted since it was mapped
	Props          mem.Props
	Access         []mem.Access
}

// Kind of an allocation.
type Kind int

// Kinds.
const (
	Range  Kind = iota // an address range of ebb's own
	Object             // physical memory that its owner maps
)

// Allocation is managed memory.
type Allocation struct {
	ID       uint64 // unique in the process, never used again
	Kind     Kind
	Base     mem.Addr // of a Range; 0 for an Object
	Size     uint64   // logical bytes, as asked for
	Reserved uint64   // bytes of physical memory: Size rounded up to the granularity
	Device   int
	Tag      string
	Backup   Backup
	Mmap     bool    // BackupCPU in plain instead of pinned memory
	Pieces   []Piece // in order of Offset; see the package comment for who may touch them
	Owned            // of an Object

	// Guarded by Table.mu.
	state State
	asked bool     // paused at a request; see Asked
	holds int      // readers; see Hold
	kept  []string // why a pause leaves it active; see Keep
}

// At is the address through which the engine copies the allocation's bytes while a pause or
// resume has it.
func (a *Allocation) At() mem.Addr {
	if a.Kind == Object {
		return a.Through
	}
	return a.Base
}

// Address is where the allocation begins, for messages: of an Object, where it was mapped last; 0
// if it never was.
func (a *Allocation) Address() mem.Addr {
	if a.Kind == Object {
		return mem.Addr(a.latest.Load())
	}
	return a.Base
}

func (a *Allocation) String() string {
	kind, at := "allocation", "at"
	if a.Kind == Object {
		kind, at = "memory object", "last mapped at"
	}
	return fmt.Sprintf("%s %d (tag %q, device %d, %d bytes %s %v)", kind, a.ID, a.Tag, a.Device, a.Size, at, a.Address())
}

// Errors of the table.
var (
	ErrNotManaged = errors.New("not memory that ebb manages")
	ErrUnknownTag = errors.New("unknown tag")
)

// Table holds the allocations of one process. The zero value is not usable; see New.
type Table struct {
	waits func()     // see OnWait
	calls sync.Mutex // see Owner

	mu      sync.Mutex
	settled *sync.Cond                 // signalled when an allocation leaves Pausing or Resuming, or its last hold
	sorted  []*Allocation              // Ranges by address
	objects map[mem.Handle]*Allocation // by virtual handle
	mapped  []*Mapping                 // of all objects, by address
	away    int                        // allocations that are paused or being resumed
	asked   int                        // of these, those that were paused at a request
	tags    map[string]bool            // every tag that an allocation ever carried
	taken   map[string]uint64          // see Taken
	nextID  uint64
}

// New returns an empty table.
func New() *Table {
	t := &Table{waits: func() {}, objects: map[mem.Handle]*Allocation{}, tags: map[string]bool{}, taken: map[string]uint64{}}
	t.settled = sync.NewCond(&t.mu)
	return t
}

// OnWait sets what an owner's call does, once, before it waits for others. Before any other call.
func (t *Table) OnWait(waits func()) { t.waits = waits }

// Waits says that the owner's call on this goroutine is going to wait, for what is not the table's.
func (t *Table) Waits() { t.waits() }

// settle waits until an allocation settles, with mu held, which is free meanwhile. The first time in
// a call it only says that the call waits: look again.
func (t *Table) settle(said *bool) {
	if *said {
		t.settled.Wait()
		return
	}
	*said = true
	t.mu.Unlock()
	t.waits()
	t.mu.Lock()
}

// Add enters a new allocation in state Active and gives it its ID; an Object also gets its
// virtual handle.
func (t *Table) Add(a *Allocation) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.nextID++
	a.ID, a.state = t.nextID, Active
	t.tags[a.Tag] = true
	if a.Kind == Object {
		a.Virtual = handleBits | mem.Handle(a.ID)
		t.objects[a.Virtual] = a
		return
	}
	i := t.search(a.Base)
	t.sorted = slices.Insert(t.sorted, i, a)
}

// Remove takes the Range that begins at base out of the table and returns it with the
// state it had. It waits while the allocation is part of a pause or resume, or held.
func (t *Table) Remove(base mem.Addr) (*Allocation, State, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for said := false; ; {
		i := t.search(base)
		if i == len(t.sorted) || t.sorted[i].Base != base {
			return nil, 0, ErrNotManaged
		}
		a := t.sorted[i]
		if (a.state == Active || a.state == Paused) && a.holds == 0 {
			t.sorted = slices.Delete(t.sorted, i, i+1)
			t.count(a, -1)
			return a, a.state, nil
		}
		t.settle(&said)
	}
}

// Restore puts a Range back that Remove took out, with the state and the ID that it had: it could not be
// freed after all. Its addresses were its own all the while.
func (t *Table) Restore(a *Allocation) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sorted = slices.Insert(t.sorted, t.search(a.Base), a)
	t.count(a, 1)
}

// Find returns the allocation that contains [addr, addr+size), and its state: a Range, or an
// Object with a mapping that does.
func (t *Table) Find(addr mem.Addr, size uint64) (*Allocation, State, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	a, err := t.find(addr, size)
	if err != nil {
		return nil, 0, err
	}
	return a, a.state, nil
}

// find is Find with mu held.
func (t *Table) find(addr mem.Addr, size uint64) (*Allocation, error) {
	a, _, room := t.place(addr)
	if a == nil || size > room {
		return nil, ErrNotManaged
	}
	return a, nil
}

// place returns the allocation at an address, the offset in it and the bytes from there to its
// end, or to that of the mapping; nil and 0 where there is none. Called with mu held.
func (t *Table) place(addr mem.Addr) (a *Allocation, off, room uint64) {
	if i := t.search(addr + 1); i > 0 { // first base above addr
		a = t.sorted[i-1]
		if off = uint64(addr - a.Base); off < a.Size {
			return a, off, a.Size - off
		}
	}
	if m := t.mappingAt(addr); m != nil {
		off = uint64(addr - m.Addr)
		return m.Of, m.Offset + off, m.Length - off
	}
	return nil, 0, 0
}

// Place is where an address lies: the offset in its allocation, and the bytes from there to the
// end of the Range or mapping. It is of use only while the allocation is held.
func (t *Table) Place(addr mem.Addr) (off, room uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, off, room = t.place(addr)
	return off, room
}

// Hold is Find, and keeps the allocation from being removed until Unhold. It does not keep its
// state: the caller must know that no pause or resume runs.
func (t *Table) Hold(addr mem.Addr, size uint64) (*Allocation, State, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	a, err := t.find(addr, size)
	if err != nil {
		return nil, 0, err
	}
	a.holds++
	return a, a.state, nil
}

// Unhold undoes one Hold.
func (t *Table) Unhold(a *Allocation) {
	t.mu.Lock()
	defer t.mu.Unlock()
	a.holds--
	t.settled.Broadcast()
}

// Has reports whether a Range begins at base.
func (t *Table) Has(base mem.Addr) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	i := t.search(base)
	return i < len(t.sorted) && t.sorted[i].Base == base
}

// Len is the number of allocations.
func (t *Table) Len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.sorted) + len(t.objects)
}

// AnyPaused reports whether an allocation is paused, or being resumed.
func (t *Table) AnyPaused() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.away > 0
}

// Asked marks those of the set that are paused as paused at a request: whoever let the request pause them waits
// until they are back, or freed.
func (t *Table) Asked(set []*Allocation) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, a := range set {
		if a.state == Paused && t.has(a) {
			t.count(a, -1)
			a.asked = true
			t.count(a, 1)
		}
	}
}

// AnyAsked reports whether an allocation that was paused at a request is still paused, or being resumed.
func (t *Table) AnyAsked() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.asked > 0
}

// has reports whether an allocation is in the table. With mu held, as what follows.
func (t *Table) has(a *Allocation) bool {
	if a.Kind == Object {
		return t.objects[a.Virtual] == a
	}
	i := t.search(a.Base)
	return i < len(t.sorted) && t.sorted[i] == a
}

// count counts an allocation in, or out, if it is away.
func (t *Table) count(a *Allocation, n int) {
	if a.state != Paused && a.state != Resuming {
		return
	}
	t.away += n
	if a.asked {
		t.asked += n
	}
}

// turn gives an allocation another state.
func (t *Table) turn(a *Allocation, to State) {
	t.count(a, -1)
	a.state = to
	a.asked = a.asked && to != Active
	t.count(a, 1)
}

// All lists the allocations: Ranges by address, then Objects by age.
func (t *Table) All() []*Allocation {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.all()
}

// all is All with mu held.
func (t *Table) all() []*Allocation {
	list := slices.Grow(slices.Clone(t.sorted), len(t.objects))
	for _, a := range t.objects {
		list = append(list, a)
	}
	slices.SortFunc(list[len(t.sorted):], func(a, b *Allocation) int { return cmp.Compare(a.ID, b.ID) })
	return list
}

// BeginPause moves the active allocations with one of the tags (no tags: all) to Pausing, but for
// those that are kept, and returns them in the order of All. A tag that no allocation ever carried
// is an error and nothing moves. It waits while an owner's call is under way.
func (t *Table) BeginPause(tags []string) ([]*Allocation, error) {
	return t.begin(tags, Active, Pausing)
}

// BeginResume moves the paused allocations with one of the tags to Resuming, likewise.
func (t *Table) BeginResume(tags []string) ([]*Allocation, error) {
	return t.begin(tags, Paused, Resuming)
}

// ToPause reports whether there is something that a pause of the tags would take, now or when the transition that it is
// in has ended. It changes nothing.
func (t *Table) ToPause(tags []string) (bool, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.known(tags); err != nil {
		return false, err
	}
	return slices.ContainsFunc(t.all(), func(a *Allocation) bool {
		return a.state != Paused && len(a.kept) == 0 && named(a, tags)
	}), nil
}

// known returns an error for tags that no allocation ever carried. Called with mu held.
func (t *Table) known(tags []string) error {
	for _, tag := range tags {
		if !t.tags[tag] {
			return fmt.Errorf("%w %q; known tags: %s", ErrUnknownTag, tag, t.knownTags())
		}
	}
	return nil
}

func (t *Table) begin(tags []string, from, to State) ([]*Allocation, error) {
	t.calls.Lock()
	defer t.calls.Unlock()
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.known(tags); err != nil {
		return nil, err
	}
	var set []*Allocation
	for _, a := range t.all() {
		if a.state == from && len(a.kept) == 0 && named(a, tags) {
			t.turn(a, to)
			set = append(set, a)
		}
	}
	return set, nil
}

// named says whether an allocation has one of the tags; no tags name all.
func named(a *Allocation, tags []string) bool {
	return len(tags) == 0 || slices.Contains(tags, a.Tag)
}

// Settle ends the transition of allocations in Pausing or Resuming. to is Active or Paused.
func (t *Table) Settle(set []*Allocation, to State) {
	t.mu.Lock()
	defer t.mu.Unlock()
	counted := map[string]bool{}
	for _, a := range set {
		if a.state == Pausing && to == Paused && !counted[a.Tag] {
			counted[a.Tag] = true
			t.taken[a.Tag]++
		}
		t.turn(a, to)
	}
	t.settled.Broadcast()
}

// Taken is how many pauses made memory with a tag Paused so far, however many allocations each: those of one Settle.
func (t *Table) Taken(tag string) uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.taken[tag]
}

// Tag sums up the allocations of one tag: their number and logical bytes by state and backup.
// An allocation in Pausing counts as active, one in Resuming as paused.
type Tag struct {
	Tag         string
	Allocations int
	Active      uint64
	Paused      map[Backup]uint64
}

// Summary lists the tags of present allocations in order of name.
func (t *Table) Summary() []Tag {
	t.mu.Lock()
	defer t.mu.Unlock()
	byTag := map[string]*Tag{}
	for _, a := range t.all() {
		s := byTag[a.Tag]
		if s == nil {
			s = &Tag{Tag: a.Tag, Paused: map[Backup]uint64{}}
			byTag[a.Tag] = s
		}
		s.Allocations++
		if a.state == Active || a.state == Pausing {
			s.Active += a.Size
		} else {
			s.Paused[a.Backup] += a.Size
		}
	}
	list := make([]Tag, 0, len(byTag))
	for _, s := range byTag {
		list = append(list, *s)
	}
	sort.Slice(list, func(i, j int) bool { return list[i].Tag < list[j].Tag })
	return list
}

// search returns the index of the first allocation whose base is not below addr.
func (t *Table) search(addr mem.Addr) int {
	return sort.Search(len(t.sorted), func(i int) bool { return t.sorted[i].Base >= addr })
}

func (t *Table) knownTags() string {
	if len(t.tags) == 0 {
		return "none yet"
	}
	names := make([]string, 0, len(t.tags))
	for tag := range t.tags {
		names = append(names, fmt.Sprintf("%q", tag))
	}
	sort.Strings(names)
	return strings.Join(names, ", ")
}
