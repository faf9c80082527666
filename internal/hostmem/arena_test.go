package hostmem

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/ebb-offload/ebb/internal/testutil"
)

const mib = 1 << 20

// registry is the driver's side: it knows what is registered, and can refuse or hold up.
type registry struct {
	mu     sync.Mutex
	pinned map[unsafe.Pointer]uint64
	refuse error           // of register
	gate   <-chan struct{} // register waits for it, if not nil
	broken error           // of unregister
}

func (r *registry) register(p unsafe.Pointer, n uint64) error {
	if r.gate != nil {
		<-r.gate
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.refuse != nil {
		return r.refuse
	}
	for q, m := range r.pinned {
		if uintptr(p) < uintptr(q)+uintptr(m) && uintptr(q) < uintptr(p)+uintptr(n) {
			return errors.New("already registered")
		}
	}
	if !present(unsafe.Slice((*byte)(p), n)) {
		return errors.New("registered memory is not there")
	}
	r.pinned[p] = n
	return nil
}

func (r *registry) unregister(p unsafe.Pointer) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.broken != nil {
		return r.broken
	}
	if _, ok := r.pinned[p]; !ok {
		return errors.New("not registered")
	}
	delete(r.pinned, p)
	return nil
}

func (r *registry) bytes() (sum uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, n := range r.pinned {
		sum += n
	}
	return sum
}

// pieceOf is the registered piece that holds all of p, by its address.
func (r *registry) pieceOf(p []byte) (unsafe.Pointer, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	lo := uintptr(address(p))
	for q, m := range r.pinned {
		if uintptr(q) <= lo && lo+uintptr(len(p)) <= uintptr(q)+uintptr(m) {
			return q, true
		}
	}
	return nil, false
}

// present reports whether all pages are there. A page that the kernel is just moving, to make a large
// one, is absent for a moment: so it looks more than once.
func present(memory []byte) bool {
	pages := make([]byte, len(memory)/4096)
	for range 1000 {
		if _, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(address(memory)), uintptr(len(memory)), uintptr(unsafe.Pointer(&pages[0]))); errno != 0 {
			return false
		}
		all := true
		for _, p := range pages {
			all = all && p&1 != 0
		}
		if all {
			return true
		}
	}
	return false
}

// newArena makes an arena of blocks of 1 MiB and pieces of 4 MiB.
func newArena(t testing.TB, r *registry, change func(*Options)) *Arena {
	t.Helper()
	r.pinned = map[unsafe.Pointer]uint64{}
	o := Options{BlockBytes: mib, PieceBytes: 4 * mib, NUMANode: 0, Register: r.register, Unregister: r.unregister}
	if change != nil {
		change(&o)
	}
	a, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = a.Close() })
	return a
}

func alloc(t testing.TB, a *Arena, n uint64) *Region {
	t.Helper()
	r, err := a.Alloc(n)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func whole(t testing.TB, r *Region) []byte {
	t.Helper()
	p, err := r.Bytes(0, r.size)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestBlocksOfARegionLieInOneRegisteredPiece(t *testing.T) {
	var r registry
	a := newArena(t, &r, nil)
	for _, n := range []uint64{1, 4096, 64 << 10, mib/2 + 1, mib, mib + 1, 3 * mib, 10*mib + 17, 2 * mib} {
		region := alloc(t, a, n)
		p := whole(t, region)
		if uint64(len(p)) != n || uint64(cap(p)) != n || uintptr(address(p))%4096 != 0 {
			t.Errorf("%d bytes: length %d, capacity %d, at %p", n, len(p), cap(p), p)
		}
		for off := uint64(0); off < n; off += mib {
			block, err := region.Bytes(off, min(mib, n-off))
			if err != nil {
				t.Fatal(err)
			}
			if &block[0] != &p[off] {
				t.Errorf("%d bytes: the block at %d is not where the region has it", n, off)
			}
			if _, ok := r.pieceOf(block); !ok {
				t.Errorf("%d bytes: the block at %d spans two pieces", n, off)
			}
		}
	}
}

// One copy may take what is registered as one: the capacity of bytes tells how far that is.
func TestTheCapacityOfBytesEndsWithTheirPiece(t *testing.T) {
	var r registry
	a := newArena(t, &r, nil) // blocks of 1 MiB in pieces of 4
	_ = alloc(t, a, mib)
	region := alloc(t, a, 6*mib+100)
	for _, c := range []struct{ off, n, want uint64 }{
		{0, mib, 3 * mib}, {2 * mib, mib, mib}, {3 * mib, mib, 3*mib + 100}, {6 * mib, 100, 100}, {0, 6*mib + 100, 6*mib + 100}, {0, 0, 0},
	} {
		memory, err := region.Bytes(c.off, c.n)
		if err != nil || uint64(len(memory)) != c.n || uint64(cap(memory)) != c.want {
			t.Errorf("%d bytes from %d on: capacity %d, want %d; %v", c.n, c.off, cap(memory), c.want, err)
		}
	}
}

func TestSmallRegionsShareBlocks(t *testing.T) {
	var r registry
	a := newArena(t, &r, nil)
	for range 64 {
		whole(t, alloc(t, a, 64<<10))
	}
	if u := a.Usage(); u.Held != 4*mib || u.Used != 4*mib {
		t.Errorf("64 regions of 64 KiB: %+v, want one piece of 4 MiB", u)
	}
}

func TestMemoryIsKeptAndUsedAgain(t *testing.T) {
	var r registry
	asked := 0
	a := newArena(t, &r, func(o *Options) { o.Allow = func(uint64) error { asked++; return nil } })
	first := alloc(t, a, 9*mib)
	p := whole(t, first)
	p[5] = 77
	before := asked
	_ = first.Free()
	if err := first.Free(); err != nil { // once more is nothing
		t.Error(err)
	}
	if u := a.Usage(); u.Held != 12*mib || u.Used != 0 || r.bytes() != 12*mib {
		t.Errorf("after the free: %+v, %d registered", u, r.bytes())
	}
	if _, err := first.Bytes(0, 1); !errors.Is(err, ErrClosed) {
		t.Errorf("bytes of a freed region: %v", err)
	}
	again := whole(t, alloc(t, a, 12*mib))
	if &again[0] != &p[0] || again[5] != 77 {
		t.Error("the second region has other memory")
	}
	if asked != before || r.bytes() != 12*mib {
		t.Errorf("taken again: %d questions, %d bytes registered", asked-before, r.bytes())
	}
}

// trim has an arena give back what nobody uses, as it does when the host has too little memory for more.
func trim(a *Arena) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	_, err := a.trim(0, -1)
	return err
}

func TestTrimGivesBackWhatNobodyUses(t *testing.T) {
	var r registry
	a := newArena(t, &r, nil)
	low, middle, high := alloc(t, a, 4*mib), alloc(t, a, 8*mib), alloc(t, a, 2*mib)
	for _, region := range []*Region{low, middle, high} {
		whole(t, region)
	}
	kept := whole(t, high)
	kept[0] = 9
	gone := whole(t, middle)
	_ = middle.Free()
	if err := trim(a); err != nil {
		t.Fatal(err)
	}
	if u := a.Usage(); u.Held != 8*mib || u.Used != 6*mib || r.bytes() != 8*mib {
		t.Errorf("after the trim: %+v, %d registered", u, r.bytes())
	}
	if present(gone) || kept[0] != 9 {
		t.Error("the wrong memory was given back")
	}
	// A small region goes where there is memory, a large one where there are addresses.
	if whole(t, alloc(t, a, 2*mib)); a.Usage().Held != 8*mib {
		t.Errorf("a region that fits into the last piece took another one: %+v", a.Usage())
	}
	large := whole(t, alloc(t, a, 8*mib))
	if &large[0] != &gone[0] || !present(large) {
		t.Error("the gap was not used again")
	}
}

// Addresses between regions are of no use to a larger one; their memory is.
func TestFreePiecesMakeRoomForALargerRegion(t *testing.T) {
	var r registry
	limit := uint64(16 * mib)
	a := newArena(t, &r, func(o *Options) {
		o.Allow = func(n uint64) error {
			if r.bytes()+n > limit {
				return &ShortError{Need: n, Left: limit - r.bytes()}
			}
			return nil
		}
	})
	holes := []*Region{alloc(t, a, 4*mib), alloc(t, a, 4*mib), alloc(t, a, 4*mib), alloc(t, a, 4*mib)}
	for _, region := range holes {
		whole(t, region)
	}
	_ = holes[0].Free()
	_ = holes[2].Free()
	whole(t, alloc(t, a, 8*mib))
	if u := a.Usage(); u.Held != 16*mib || u.Used != 16*mib {
		t.Errorf("%+v", u)
	}
	if _, err := a.Alloc(mib); !errors.Is(err, ErrMemory) {
		t.Errorf("beyond the limit: %v", err)
	}
}

func TestARefusedRegionTakesNothing(t *testing.T) {
	var r registry
	short := &ShortError{Need: 1}
	a := newArena(t, &r, func(o *Options) { o.Allow = func(uint64) error { return short } })
	_, err := a.Alloc(5 * mib)
	if !errors.Is(err, short) || !errors.Is(err, ErrMemory) || !strings.Contains(err.Error(), "5.0 MiB") {
		t.Errorf("%v", err)
	}
	if u := a.Usage(); u != (Usage{}) || r.bytes() != 0 {
		t.Errorf("%+v, %d registered", u, r.bytes())
	}
}

// The guard is asked for the whole first and then before each piece, with what is promised counted.
func TestTheGuardIsAskedBeforeEachPiece(t *testing.T) {
	var r registry
	gate := make(chan struct{})
	r.gate = gate
	var mu sync.Mutex
	var asked []uint64
	var refuse bool
	a := newArena(t, &r, func(o *Options) {
		o.Allow = func(n uint64) error {
			mu.Lock()
			defer mu.Unlock()
			asked = append(asked, n)
			if refuse && len(asked) > 2 {
				return &ShortError{Need: n}
			}
			return nil
		}
	})
	refuse = true // after the whole and the first piece
	region := alloc(t, a, 12*mib)
	close(gate)
	if _, err := region.Bytes(0, mib); err != nil {
		t.Errorf("the first piece: %v", err)
	}
	for _, off := range []uint64{4 * mib, 8 * mib} {
		if _, err := region.Bytes(off, mib); !errors.Is(err, ErrMemory) {
			t.Errorf("the piece at %d: %v", off, err)
		}
	}
	mu.Lock()
	if fmt.Sprint(asked) != fmt.Sprint([]uint64{12 * mib, 4 * mib, 4 * mib, 4 * mib}) {
		t.Errorf("asked for %v", asked)
	}
	refuse = false
	mu.Unlock()
	_ = region.Free()
	if u := a.Usage(); u.Held != 4*mib || u.Used != 0 {
		t.Errorf("after the free: %+v", u)
	}
	whole(t, alloc(t, a, 12*mib)) // what failed is tried again
}

// Region is usable piece by piece, while later ones are made.
func TestEarlyPiecesDoNotWaitForLaterOnes(t *testing.T) {
	var r registry
	gate := make(chan struct{})
	r.gate = gate
	a := newArena(t, &r, nil)
	region := alloc(t, a, 12*mib) // Alloc itself waits for nothing
	gate <- struct{}{}
	if p, err := region.Bytes(mib, 2*mib); err != nil || len(p) != 2*mib {
		t.Fatal(err)
	}
	if r.bytes() != 4*mib {
		t.Errorf("%d bytes are registered, want the first piece", r.bytes())
	}
	close(gate)
	whole(t, region)
}

func TestARefusedRegistrationLeavesNothing(t *testing.T) {
	var r registry
	r.refuse = errors.New("driver is gone")
	a := newArena(t, &r, nil)
	region := alloc(t, a, 5*mib)
	for range 2 {
		if _, err := region.Bytes(0, 5*mib); !errors.Is(err, r.refuse) || !strings.Contains(err.Error(), "register 4.0 MiB") {
			t.Errorf("%v", err)
		}
	}
	memory := region.memory
	_ = region.Free()
	if err := a.Close(); err != nil { // waits for the second piece
		t.Error(err)
	}
	if mapped(t, address(memory)) {
		t.Error("the memory is still there")
	}
}

// What panics on a goroutine of the arena is an error of the bytes that it was for, and leaves nothing.
func TestAPanicOfWhatTheArenaCallsIsAnError(t *testing.T) {
	for name, spoil := range map[string]func(o *Options, panics func()){
		"register": func(o *Options, panics func()) {
			register := o.Register
			o.Register = func(p unsafe.Pointer, n uint64) error { panics(); return register(p, n) }
		},
		"allow": func(o *Options, panics func()) {
			asked := 0
			o.Allow = func(uint64) error {
				if asked++; asked > 1 { // the first question is that of Alloc
					panics()
				}
				return nil
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			var r registry
			broken := true
			a := newArena(t, &r, func(o *Options) {
				spoil(o, func() {
					if broken {
						panic("a defect")
					}
				})
			})
			region := alloc(t, a, 2*mib)
			if _, err := region.Bytes(0, 2*mib); err == nil || !strings.Contains(err.Error(), "a defect") {
				t.Fatalf("got %v", err)
			}
			_ = region.Free()
			if u := a.Usage(); u != (Usage{}) || r.bytes() != 0 {
				t.Errorf("left: %+v, %d bytes registered", u, r.bytes())
			}
			broken = false
			whole(t, alloc(t, a, 2*mib))
		})
	}
}

func TestCloseGivesAllBack(t *testing.T) {
	var r registry
	gate := make(chan struct{})
	r.gate = gate
	a := newArena(t, &r, nil)
	region := alloc(t, a, 12*mib)
	closed := make(chan error)
	go func() { closed <- a.Close() }()
	for { // Close has begun
		if _, err := a.Alloc(1); errors.Is(err, ErrClosed) {
			break
		}
	}
	close(gate)
	if err := <-closed; err != nil {
		t.Error(err)
	}
	if r.bytes() != 0 || mapped(t, address(region.memory)) {
		t.Error("still registered or mapped")
	}
	if u := a.Usage(); u != (Usage{}) {
		t.Errorf("%+v", u)
	}
	_ = region.Free()
	if err := a.Close(); err != nil {
		t.Errorf("closed again: %v", err)
	}
}

func TestCloseGivesMemoryBackThatTheDriverDoesNotRelease(t *testing.T) {
	var r registry
	a := newArena(t, &r, nil)
	p := whole(t, alloc(t, a, 5*mib))
	r.broken = errors.New("driver is gone")
	if err := a.Close(); !errors.Is(err, r.broken) {
		t.Errorf("%v", err)
	}
	if mapped(t, address(p)) {
		t.Error("still mapped")
	}
}

func TestWhatTheArenaIsNotMadeFor(t *testing.T) {
	noop := func(unsafe.Pointer) error { return nil }
	for _, o := range []Options{
		{}, {BlockBytes: 1024}, {BlockBytes: 3 << 20}, {BlockBytes: mib, PieceBytes: mib}, {BlockBytes: 4 * mib, PieceBytes: 6 * mib},
		{BlockBytes: mib, Unregister: noop},
	} {
		if _, err := New(o); err == nil {
			t.Errorf("%+v is accepted", o)
		}
	}
	var r registry
	a := newArena(t, &r, func(o *Options) { o.Allow = func(uint64) error { return nil } })
	for _, n := range []uint64{0, 1 << 62, 1 << 59} {
		if _, err := a.Alloc(n); err == nil {
			t.Errorf("%d bytes are given", n)
		}
	}
	region := alloc(t, a, 3*mib)
	for _, part := range [][2]uint64{{3*mib + 1, 0}, {0, 3*mib + 1}, {mib, 1<<64 - 1}} {
		if _, err := region.Bytes(part[0], part[1]); err == nil {
			t.Errorf("bytes %v of 3 MiB are given", part)
		}
	}
	if p, err := region.Bytes(3*mib, 0); err != nil || len(p) != 0 {
		t.Errorf("no bytes: %v, %v", p, err)
	}
}

// Kept from forked children and core dumps, of the large kind where there is one.
func TestMappingFlags(t *testing.T) {
	var r registry
	a := newArena(t, &r, nil)
	p, free, err := Pages(3*mib, 0)
	if err != nil {
		t.Fatal(err)
	}
	for name, memory := range map[string][]byte{"region": whole(t, alloc(t, a, 5*mib)), "pages": p} {
		flags := testutil.VMFlags(t, address(memory))
		want := []string{"dc", "dd"}
		if _, err := os.Stat("/sys/kernel/mm/transparent_hugepage"); err == nil {
			want = append(want, "hg")
		}
		for _, flag := range want {
			if !flags[flag] {
				t.Errorf("%s: flag %q missing in %v", name, flag, flags)
			}
		}
		if flags["lo"] {
			t.Errorf("%s: mlocked", name)
		}
		if whole := memory[:len(memory)&^4095]; !present(whole) {
			t.Errorf("%s: not all pages are there", name)
		}
	}
	if err := free(); err != nil || mapped(t, address(p)) {
		t.Errorf("freed pages are still mapped, %v", err)
	}
}

// Random regions, each with a pattern of its own that must stay, against a limit of memory.
func TestArenaAgreesWithItsRules(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const limit = 40 * mib
		r := registry{pinned: map[unsafe.Pointer]uint64{}}
		a, err := New(Options{
			BlockBytes: mib, PieceBytes: 4 * mib, NUMANode: -1, Register: r.register, Unregister: r.unregister,
			Allow: func(n uint64) error {
				if r.bytes()+n > limit {
					return &ShortError{Need: n}
				}
				return nil
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := a.Close(); err != nil || r.bytes() != 0 {
				t.Fatalf("close: %v, %d registered", err, r.bytes())
			}
		}()
		type used struct {
			region *Region
			memory []byte
			mark   byte
		}
		var regions []used
		next := byte(0)
		marks := func(u used) []*byte {
			var list []*byte
			for off := 0; off < len(u.memory); off += 64 << 10 {
				list = append(list, &u.memory[off])
			}
			return append(list, &u.memory[len(u.memory)-1])
		}
		sum := func() (n uint64) {
			for _, u := range regions {
				n += alignUp(uint64(len(u.memory)), granule)
			}
			return n
		}
		t.Repeat(map[string]func(*rapid.T){
			"alloc": func(t *rapid.T) {
				n := rapid.OneOf(rapid.Uint64Range(1, mib), rapid.Uint64Range(1, 14*mib)).Draw(t, "n")
				region, err := a.Alloc(n)
				if err == nil {
					var p []byte
					if p, err = region.Bytes(0, n); err == nil {
						next++
						u := used{region, p, next}
						for _, m := range marks(u) {
							*m = u.mark
						}
						for off := uint64(0); off < n; off += mib {
							if _, ok := r.pieceOf(p[off:min(n, off+mib)]); !ok {
								t.Fatalf("the block at %d of %d is in no piece", off, n)
							}
						}
						regions = append(regions, u)
						return
					}
				}
				if !errors.Is(err, ErrMemory) || sum()+n+4*mib <= limit/2 {
					t.Fatalf("%d bytes beside %d: %v", n, sum(), err)
				}
			},
			"free": func(t *rapid.T) {
				if len(regions) == 0 {
					t.Skip("no region")
				}
				i := rapid.IntRange(0, len(regions)-1).Draw(t, "which")
				_ = regions[i].region.Free()
				regions = append(regions[:i], regions[i+1:]...)
			},
			"trim": func(t *rapid.T) {
				if err := trim(a); err != nil {
					t.Fatal(err)
				}
			},
			"": func(t *rapid.T) {
				for _, u := range regions {
					for _, m := range marks(u) {
						if *m != u.mark {
							t.Fatalf("a region of %d bytes holds the mark %d, want %d", len(u.memory), *m, u.mark)
						}
					}
				}
				if u := a.Usage(); u.Used != sum() || u.Held != r.bytes() || u.Held > limit || u.Held < u.Used {
					t.Fatalf("usage %+v, regions of %d bytes, %d registered", u, sum(), r.bytes())
				}
			},
		})
	})
}

// mapped reports whether an arena's mapping is at p: whoever else uses the address does not keep it
// from forked children.
func mapped(t *testing.T, p unsafe.Pointer) bool { return testutil.VMFlags(t, p)["dc"] }
