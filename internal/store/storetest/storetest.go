// Package storetest is what every store must do, as tests. A store's own tests call Run.
package storetest

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/ebb-offload/ebb/internal/fingerprint"
	"github.com/ebb-offload/ebb/internal/store"
)

// Block is the block size of the stores under test: small, so that a backing has several.
const Block = 64 << 10

// Maker is a store under test.
type Maker struct {
	// New makes a store with blocks of Block bytes; the test closes it.
	New func(t testing.TB) *store.Store
	// Lose takes away a file of a backing of size bytes, as an outsider would; false: it has
	// none.
	Lose func(t testing.TB, b store.Backing, size uint64) bool
}

// Run runs the suite.
func Run(t *testing.T, m Maker) {
	t.Run("bytes come back", m.roundTrip)
	t.Run("a block is absent until it is written", m.absent)
	t.Run("blocks in parallel", m.parallel)
	t.Run("backings in parallel", m.several)
	t.Run("overwriting in place", m.overwrite)
	t.Run("marked absent", m.markedAbsent)
	t.Run("commit needs every block", m.commit)
	t.Run("wrong block calls are refused", m.misuse)
	t.Run("release", m.release)
	t.Run("close", m.close)
	t.Run("impossible sizes", m.sizes)
	t.Run("memory", m.memory)
	t.Run("what is known of a block", m.known)
	t.Run("zero and dead blocks", m.marks)
	t.Run("random calls", m.model)
}

// Buffer is n bytes of page-aligned memory, padded to 4096 bytes, as a block buffer must be.
func Buffer(t testing.TB, n int) []byte {
	t.Helper()
	p, err := unix.Mmap(-1, 0, (n+4095)&^4095, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(p) })
	return p[:n]
}

// Fill makes bytes that depend on the seed and their place, none of them zero.
func Fill(p []byte, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 1))
	for i := range p {
		p[i] = byte(r.Uint32()%255) + 1
	}
}

// Blocks are the offset and length of each block of a backing of size bytes.
func Blocks(size uint64) (all []struct{ Off, Len uint64 }) {
	for off := uint64(0); off < size; off += Block {
		all = append(all, struct{ Off, Len uint64 }{off, min(Block, size-off)})
	}
	return all
}

// Write stores bytes made of seed in every block of b.
func Write(t testing.TB, b store.Backing, size, seed uint64) {
	t.Helper()
	p := Buffer(t, Block)
	for _, k := range Blocks(size) {
		Fill(p[:k.Len], seed+k.Off)
		if err := b.WriteBlock(k.Off, p[:k.Len], store.Block{State: store.Stored}); err != nil {
			t.Fatal(err)
		}
	}
}

// Check reads every block of b and compares it with what Write had stored.
func Check(t testing.TB, b store.Backing, size, seed uint64) {
	t.Helper()
	got, want := Buffer(t, Block), Buffer(t, Block)
	for _, k := range Blocks(size) {
		Fill(want[:k.Len], seed+k.Off)
		clear(got)
		if err := b.ReadBlock(k.Off, got[:k.Len]); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got[:k.Len], want[:k.Len]) {
			t.Fatalf("block at %d of %s: other bytes than were written", k.Off, b.Where(0))
		}
	}
}

// File is the path of the file that holds the block at off; none when it lies in host memory.
func File(b store.Backing, off uint64) string {
	where, isFile := strings.CutPrefix(b.Where(off), "file ")
	if !isFile {
		return ""
	}
	path, _, _ := strings.Cut(where, " (offset ")
	return path
}

// open returns a store and a backing with room.
func (m Maker) open(t testing.TB, size uint64) (*store.Store, store.Backing) {
	t.Helper()
	s := m.New(t)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	b, err := s.Open(7, size)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Reserve(); err != nil {
		t.Fatal(err)
	}
	return s, b
}

// Alloc takes host memory for a store.
func Alloc(n uint64) (store.Extent, error) {
	memory, err := unix.Mmap(-1, 0, int(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, err
	}
	return store.Plain(memory, func() error { return unix.Munmap(memory) }), nil
}

// room is what a store takes.
func room(s *store.Store) (held struct {
	host, disk uint64
	files      int
}) {
	u := s.Usage()
	held.host, held.disk, held.files = u.HostBytes, u.DiskBytes, u.Files
	return held
}

func (m Maker) roundTrip(t *testing.T) {
	for _, size := range []uint64{1, 511, 512, 4095, 4096, 4097, Block - 1, Block, Block + 1, 3 * Block, 3*Block + 4097} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			s, b := m.open(t, size)
			for cycle := uint64(1); cycle <= 3; cycle++ {
				if err := b.Reserve(); err != nil {
					t.Fatal(err)
				}
				Write(t, b, size, cycle*1000)
				if err := b.Commit(); err != nil {
					t.Fatal(err)
				}
				Check(t, b, size, cycle*1000)
				Check(t, b, size, cycle*1000) // reading takes nothing away
			}
			u := s.Usage()
			if total := u.HostBytes + u.DiskBytes; total < size || total >= size+4096 {
				t.Errorf("%d bytes take %+v", size, u)
			}
		})
	}
}

func (m Maker) absent(t *testing.T) {
	_, b := m.open(t, 2*Block)
	p := Buffer(t, Block)
	if err := b.ReadBlock(0, p); !errors.Is(err, store.ErrAbsent) {
		t.Errorf("read of a new backing: %v, want ErrAbsent", err)
	}
	if err := b.WriteBlock(Block, p, store.Block{State: store.Stored}); err != nil {
		t.Fatal(err)
	}
	if err := b.ReadBlock(0, p); !errors.Is(err, store.ErrAbsent) {
		t.Errorf("read of the block before the written one: %v, want ErrAbsent", err)
	}
	if err := b.ReadBlock(Block, p); err != nil {
		t.Errorf("read of the written block: %v", err)
	}
}

func (m Maker) parallel(t *testing.T) {
	const size, workers, rounds = 16*Block + 100, 8, 4
	_, b := m.open(t, size)
	blocks := Blocks(size)
	var wg sync.WaitGroup
	for w := range workers {
		p, want := Buffer(t, Block), Buffer(t, Block)
		wg.Go(func() {
			for round := range uint64(rounds) {
				for i := w; i < len(blocks); i += workers {
					k := blocks[i]
					Fill(want[:k.Len], k.Off+round)
					copy(p, want[:k.Len])
					if err := b.WriteBlock(k.Off, p[:k.Len], store.Block{State: store.Stored}); err != nil {
						t.Error(err)
						return
					}
					clear(p)
					if err := b.ReadBlock(k.Off, p[:k.Len]); err != nil || !bytes.Equal(p[:k.Len], want[:k.Len]) {
						t.Errorf("block at %d in round %d: not what was written (error: %v)", k.Off, round, err)
						return
					}
				}
			}
		})
	}
	wg.Wait()
	if err := b.Commit(); err != nil {
		t.Error(err)
	}
}

// several checks that backings come and go beside one another.
func (m Maker) several(t *testing.T) {
	const workers, rounds = 6, 8
	s, first := m.open(t, 2*Block)
	Write(t, first, 2*Block, 1)
	var wg sync.WaitGroup
	for w := range uint64(workers) {
		p, want := Buffer(t, Block), Buffer(t, Block)
		wg.Go(func() {
			for round := range uint64(rounds) {
				size := (w%3 + 1) * Block
				b, err := s.Open(100*w+round, size)
				if err == nil {
					err = b.Reserve()
				}
				for off := uint64(0); off < size && err == nil; off += Block {
					Fill(want, 1000*w+off+round)
					copy(p, want)
					if err = b.WriteBlock(off, p, store.Block{State: store.Stored}); err == nil {
						clear(p)
						err = b.ReadBlock(off, p)
					}
					if err == nil && !bytes.Equal(p, want) {
						err = fmt.Errorf("block at %d: other bytes than were written", off)
					}
				}
				if err == nil {
					err = b.Commit()
				}
				if err := errors.Join(err, b.Release()); err != nil {
					t.Errorf("worker %d, round %d: %v", w, round, err)
					return
				}
			}
		})
	}
	wg.Wait()
	Check(t, first, 2*Block, 1)
	if u := s.Usage(); u.HostBytes+u.DiskBytes != 2*Block {
		t.Errorf("one backing of %d bytes is left, which take %+v", 2*Block, u)
	}
}

func (m Maker) overwrite(t *testing.T) {
	const size = 2*Block + 5
	s, b := m.open(t, size)
	Write(t, b, size, 1)
	before, where := room(s), b.Where(0)
	Write(t, b, size, 2)
	Check(t, b, size, 2)
	if err := b.Commit(); err != nil {
		t.Fatal(err)
	}
	if room(s) != before || b.Where(0) != where {
		t.Errorf("first cycle: %+v in %s, second: %+v in %s", before, where, room(s), b.Where(0))
	}
}

// forget marks all blocks absent.
func forget(b store.Backing, size uint64) {
	for _, k := range Blocks(size) {
		b.Mark(k.Off, store.Block{})
	}
}

// markedAbsent checks that blocks marked absent are not read, and keep their room.
func (m Maker) markedAbsent(t *testing.T) {
	const size = 2 * Block
	s, b := m.open(t, size)
	Write(t, b, size, 1)
	before := room(s)
	forget(b, size)
	for _, k := range Blocks(size) {
		if err := b.ReadBlock(k.Off, Buffer(t, Block)); !errors.Is(err, store.ErrAbsent) {
			t.Errorf("block at %d, which is absent: %v, want ErrAbsent", k.Off, err)
		}
	}
	if room(s) != before {
		t.Errorf("room before: %+v, after: %+v", before, room(s))
	}
	Write(t, b, size, 2)
	Check(t, b, size, 2)
}

func (m Maker) commit(t *testing.T) {
	const size = 3 * Block
	_, b := m.open(t, size)
	p := Buffer(t, Block)
	for _, off := range []uint64{0, 2 * Block} {
		if err := b.WriteBlock(off, p, store.Block{State: store.Stored}); err != nil {
			t.Fatal(err)
		}
	}
	err := b.Commit()
	if !errors.Is(err, store.ErrAbsent) || !bytes.Contains([]byte(err.Error()), []byte(fmt.Sprintf("offset %d", Block))) {
		t.Errorf("commit without the middle block: %v, want ErrAbsent that names offset %d", err, Block)
	}
	if err := b.WriteBlock(Block, p, store.Block{State: store.Stored}); err != nil {
		t.Fatal(err)
	}
	if err := b.Commit(); err != nil {
		t.Errorf("commit with all blocks: %v", err)
	}
}

func (m Maker) misuse(t *testing.T) {
	const size = Block + 100
	_, b := m.open(t, size)
	Write(t, b, size, 1)
	p := Buffer(t, 2*Block)
	for _, c := range []struct{ off, n uint64 }{
		{1, Block}, {4096, Block}, {0, Block - 1}, {0, 0}, {Block, Block}, {Block, 99}, {Block, 101}, {2 * Block, 100}, {1 << 62, Block},
	} {
		if err := b.WriteBlock(c.off, p[:c.n], store.Block{State: store.Stored}); err == nil {
			t.Errorf("a write of %d bytes at %d was taken", c.n, c.off)
		}
		if err := b.ReadBlock(c.off, p[:c.n]); err == nil {
			t.Errorf("a read of %d bytes at %d was taken", c.n, c.off)
		}
	}
	Check(t, b, size, 1) // a refused call changes nothing

	other, err := m.open2(t).Open(8, Block)
	if err != nil {
		t.Fatal(err)
	}
	if err := other.WriteBlock(0, p[:Block], store.Block{State: store.Stored}); err == nil {
		t.Error("a write without Reserve was taken")
	}
	if err := other.ReadBlock(0, p[:Block]); err == nil {
		t.Error("a read without Reserve was taken")
	}
	if err := other.Commit(); err == nil {
		t.Error("a commit without Reserve was taken")
	}
}

func (m Maker) open2(t testing.TB) *store.Store {
	s, _ := m.open(t, 1)
	return s
}

func (m Maker) release(t *testing.T) {
	const size = 2 * Block
	s, b := m.open(t, size)
	Write(t, b, size, 1)
	first := room(s)
	other, err := s.Open(8, size)
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Reserve(); err != nil {
		t.Fatal(err)
	}
	Write(t, other, size, 2)
	both := room(s)
	for range 2 {
		if err := b.Release(); err != nil {
			t.Fatal(err)
		}
	}
	if left := room(s); left.host != both.host-first.host || left.disk != both.disk-first.disk || left.files != both.files-first.files {
		t.Errorf("one backing took %+v, two %+v, and the second alone %+v", first, both, left)
	}
	p := Buffer(t, Block)
	if b.WriteBlock(0, p, store.Block{State: store.Stored}) == nil || b.ReadBlock(0, p) == nil || !errors.Is(b.Reserve(), store.ErrClosed) || !errors.Is(b.Commit(), store.ErrClosed) {
		t.Error("a released backing still works")
	}
	if memory, _ := b.Memory(0); memory != nil || b.Direct(0) {
		t.Error("a released backing still has memory")
	}
	Check(t, other, size, 2)

	never, err := s.Open(9, size)
	if err != nil {
		t.Fatal(err)
	}
	if err := never.Release(); err != nil {
		t.Errorf("release of a backing that never took room: %v", err)
	}
}

func (m Maker) close(t *testing.T) {
	s, b := m.open(t, 2*Block)
	Write(t, b, 2*Block, 1)
	for range 2 {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if u := s.Usage(); u.HostBytes != 0 || u.DiskBytes != 0 || u.Files != 0 {
		t.Errorf("a closed store takes %+v", u)
	}
	if _, err := s.Open(8, 1); !errors.Is(err, store.ErrClosed) {
		t.Errorf("open in a closed store: %v, want ErrClosed", err)
	}
	if err := b.Reserve(); !errors.Is(err, store.ErrClosed) {
		t.Errorf("reserve in a closed store: %v, want ErrClosed", err)
	}
	if err := b.Release(); err != nil {
		t.Errorf("release after close: %v", err)
	}
}

func (m Maker) sizes(t *testing.T) {
	s := m.open2(t)
	for _, size := range []uint64{0, 1<<63 - 1, 1 << 63, 1<<64 - 1} {
		if _, err := s.Open(8, size); err == nil {
			t.Errorf("a backing of %d bytes was opened", size)
		}
	}
}

// memory checks that what a backing shows as memory and what its block calls do are the same
// bytes.
func (m Maker) memory(t *testing.T) {
	const size = 2*Block + 10
	_, b := m.open(t, size)
	p := Buffer(t, Block)
	if _, err := b.Pointer(size - 1); !errors.Is(err, store.ErrAbsent) && !errors.Is(err, store.ErrNoMemory) {
		t.Errorf("pointer to bytes that are not stored: %v", err)
	}
	Write(t, b, size, 1)
	if at, err := b.Pointer(size - 1); err == nil {
		want := Buffer(t, Block)
		Fill(want[:10], 1+2*Block)
		if *(*byte)(at) != want[9] {
			t.Error("the pointer to the last byte does not show it")
		}
	} else if !errors.Is(err, store.ErrNoMemory) {
		t.Errorf("pointer: %v", err)
	}
	for _, k := range Blocks(size) {
		at, err := b.Memory(k.Off)
		if err != nil || (at != nil) != b.Direct(k.Off) {
			t.Fatalf("direct: %v, memory: %v, error: %v", b.Direct(k.Off), at != nil, err)
		}
		if at == nil {
			continue
		}
		if uint64(len(at)) != k.Len {
			t.Fatalf("a block of %d bytes, not %d", len(at), k.Len)
		}
		b.Mark(k.Off, store.Block{})
		Fill(at, 9)
		if err := b.ReadBlock(k.Off, p[:k.Len]); !errors.Is(err, store.ErrAbsent) {
			t.Errorf("read before it is marked: %v, want ErrAbsent", err)
		}
		b.Mark(k.Off, store.Block{State: store.Stored})
		if err := b.ReadBlock(k.Off, p[:k.Len]); err != nil || !bytes.Equal(p[:k.Len], at) {
			t.Errorf("read of a block marked stored: not the bytes in memory (error: %v)", err)
		}
		b.Mark(k.Off, store.Block{State: store.Zero})
		if !bytes.Equal(at, make([]byte, k.Len)) {
			t.Error("the memory of a block marked zero is not zero")
		}
	}
	forget(b, size)
	for _, k := range Blocks(size) {
		b.Mark(k.Off, store.Block{State: store.Stored})
		if state := b.Block(k.Off).State; File(b, k.Off) != "" && state != store.Absent {
			t.Errorf("a block in a file was marked %v without a write", state)
		}
	}
}

// known checks that a block's fingerprint is kept, and forgotten with the block.
func (m Maker) known(t *testing.T) {
	_, b := m.open(t, 2*Block)
	p := Buffer(t, Block)
	want := store.Block{State: store.Stored, Sum: fingerprint.Sum{1, 2}, Known: true}
	if err := b.WriteBlock(0, p, want); err != nil {
		t.Fatal(err)
	}
	if err := b.WriteBlock(Block, p, store.Block{State: store.Stored}); err != nil {
		t.Fatal(err)
	}
	if err := b.Reserve(); err != nil { // the next pause
		t.Fatal(err)
	}
	if got := b.Block(0); got != want {
		t.Errorf("written with %+v, kept as %+v", want, got)
	}
	if got := b.Block(Block); got != (store.Block{State: store.Stored}) {
		t.Errorf("written without a fingerprint, kept as %+v", got)
	}
	if err := b.WriteBlock(0, p, store.Block{State: store.Stored}); err != nil {
		t.Fatal(err)
	}
	if got := b.Block(0); got.Known {
		t.Errorf("the fingerprint of overwritten bytes is kept: %+v", got)
	}
	b.Mark(0, store.Block{})
	if got := b.Block(0); got != (store.Block{}) {
		t.Errorf("marked absent, kept as %+v", got)
	}
}

// marks checks blocks whose bytes are not written.
func (m Maker) marks(t *testing.T) {
	const size = 2*Block + 100
	_, b := m.open(t, size)
	Write(t, b, size, 1)
	b.Mark(0, store.Block{State: store.Zero, Sum: fingerprint.Sum{3, 4}, Known: true})
	b.Mark(2*Block, store.Block{State: store.Dead})
	for _, k := range []struct{ off, n uint64 }{{0, Block}, {2 * Block, 100}} {
		p := Buffer(t, int(k.n))
		Fill(p, 5)
		if err := b.ReadBlock(k.off, p); err != nil || !bytes.Equal(p, make([]byte, k.n)) {
			t.Errorf("%v block at %d: not zeros (error: %v)", b.Block(k.off).State, k.off, err)
		}
	}
	if got := b.Block(0); got.Sum != (fingerprint.Sum{3, 4}) || !got.Known {
		t.Errorf("the zero block is kept as %+v", got)
	}
	if err := b.Commit(); err != nil {
		t.Errorf("commit with zero and dead blocks: %v", err)
	}
	if at, err := b.Pointer(0); err == nil && !bytes.Equal(unsafe.Slice((*byte)(at), Block), make([]byte, Block)) {
		t.Error("the host memory of a zero block is not zero")
	}
	Write(t, b, size, 2)
	Check(t, b, size, 2)
	b.Mark(0, store.Block{})
	if err := b.Commit(); !errors.Is(err, store.ErrAbsent) {
		t.Errorf("commit with a block marked absent: %v", err)
	}
}

// model makes random calls on a few backings and compares each answer with a map.
func (m Maker) model(t *testing.T) {
	type backing struct {
		store.Backing
		size     uint64
		reserved bool
		lost     bool
		blocks   map[uint64]uint64 // seed of the bytes stored at an offset
	}
	p, want := Buffer(t, Block), Buffer(t, Block)
	rapid.Check(t, func(rt *rapid.T) {
		s := m.New(t)
		defer func() {
			if err := s.Close(); err != nil {
				rt.Error(err)
			}
			if u := s.Usage(); u.HostBytes != 0 || u.DiskBytes != 0 || u.Files != 0 {
				rt.Errorf("a closed store takes %+v", u)
			}
		}()
		var open []*backing
		var seed uint64
		pick := func(rt *rapid.T) *backing {
			if len(open) == 0 {
				rt.Skip("nothing is open")
			}
			return rapid.SampledFrom(open).Draw(rt, "backing")
		}
		block := func(rt *rapid.T, b *backing) (off, n uint64) {
			k := rapid.SampledFrom(Blocks(b.size)).Draw(rt, "block")
			return k.Off, k.Len
		}
		rt.Repeat(map[string]func(*rapid.T){
			"open": func(rt *rapid.T) {
				if len(open) > 4 {
					rt.Skip("enough")
				}
				size := rapid.Uint64Range(1, 4*Block).Draw(rt, "size")
				b, err := s.Open(seed, size)
				if err != nil {
					rt.Fatal(err)
				}
				open = append(open, &backing{Backing: b, size: size, blocks: map[uint64]uint64{}})
			},
			"reserve": func(rt *rapid.T) {
				b := pick(rt)
				if err := b.Reserve(); err != nil {
					rt.Fatal(err)
				}
				if b.lost {
					b.lost = false
					clear(b.blocks)
				}
				b.reserved = true
			},
			"write": func(rt *rapid.T) {
				b := pick(rt)
				if b.lost {
					rt.Skip("whether the descriptor is still open is not known")
				}
				off, n := block(rt, b)
				seed++
				Fill(p[:n], seed)
				err := b.WriteBlock(off, p[:n], store.Block{State: store.Stored})
				if (err == nil) != b.reserved {
					rt.Fatalf("reserved: %v, write: %v", b.reserved, err)
				}
				if err == nil {
					b.blocks[off] = seed
				}
			},
			"read": func(rt *rapid.T) {
				b := pick(rt)
				off, n := block(rt, b)
				clear(p[:n])
				err := b.ReadBlock(off, p[:n])
				made, stored := b.blocks[off]
				switch {
				case b.lost && errors.Is(err, store.ErrLost):
				case stored && err != nil, !stored && err == nil:
					rt.Fatalf("stored: %v, lost: %v, read: %v", stored, b.lost, err)
				case !stored && b.reserved && !errors.Is(err, store.ErrAbsent):
					rt.Fatalf("read of an absent block: %v", err)
				case stored:
					Fill(want[:n], made)
					if !bytes.Equal(p[:n], want[:n]) {
						rt.Fatalf("block at %d: other bytes than were written", off)
					}
				}
			},
			"forget": func(rt *rapid.T) {
				b := pick(rt)
				forget(b, b.size)
				clear(b.blocks)
			},
			"commit": func(rt *rapid.T) {
				b := pick(rt)
				all := len(b.blocks) == len(Blocks(b.size))
				err := b.Commit()
				if (err == nil) != (all && !b.lost) {
					rt.Fatalf("all blocks stored: %v, lost: %v, commit: %v", all, b.lost, err)
				}
				if all && b.lost {
					clear(b.blocks) // a failed commit forgets
				}
			},
			"release": func(rt *rapid.T) {
				b := pick(rt)
				if err := b.Release(); err != nil {
					rt.Fatal(err)
				}
				open = slices.DeleteFunc(open, func(o *backing) bool { return o == b })
			},
			"lose": func(rt *rapid.T) {
				b := pick(rt)
				if m.Lose == nil || !b.reserved || b.lost || !m.Lose(t, b.Backing, b.size) {
					rt.Skip("not possible")
				}
				b.lost = true
			},
			"": func(rt *rapid.T) {
				var sum uint64
				for _, b := range open {
					if b.reserved {
						sum += (b.size + 4095) &^ 4095
					}
				}
				if u := s.Usage(); u.HostBytes+u.DiskBytes != sum {
					rt.Fatalf("usage %+v, want %d bytes", u, sum)
				}
			},
		})
	})
}
