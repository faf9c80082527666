// Package hostmem takes host memory for paused bytes: an Arena that is kept between pauses, plain
// Pages, and the guard that refuses what the node or the process's memory cgroup cannot give.
//
// An arena is one range of addresses. Memory comes into it in pieces, in the background: threads on
// the device's NUMA node bring in the pages of one piece while the one before is registered with the
// driver and the one before that is already copied to. What a pause took stays for the next one.
package hostmem

import (
	"errors"
	"fmt"
	"math/bits"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/ebb-offload/ebb/internal/sizes"
)

const (
	// defaultPiece is large enough that registering does not cost more for its number, and small
	// enough that the first is there soon and the last wastes little.
	defaultPiece = 128 << 20
	// granule is the unit of a region's size.
	granule = 64 << 10
)

// Options are the settings of an Arena.
type Options struct {
	// BlockBytes is the size of the largest copy, a power of two from 4096 on: no block of a
	// region spans two registered pieces.
	BlockBytes uint64
	// PieceBytes is the size of what is brought in and registered at a time, a multiple of
	// BlockBytes and of 2 MiB; 0: 128 MiB.
	PieceBytes uint64
	// NUMANode is the node whose memory is used; negative: any.
	NUMANode int
	// Register pins a piece for devices and Unregister undoes that. Both nil: nobody needs it.
	// They make a device context current themselves: Register is called on goroutines of the
	// arena, Unregister also within Alloc and Close, with the arena's lock held, and must
	// not wait for somebody who calls the arena.
	Register   func(p unsafe.Pointer, n uint64) error
	Unregister func(p unsafe.Pointer) error
	// Allow refuses bytes that the host should not give: it is asked for what an Alloc takes, and
	// again before each piece. nil: CheckPart.
	Allow func(n uint64) error
}

// ErrClosed says that the arena was closed, or the region freed.
var ErrClosed = errors.New("host memory is closed")

// Arena is host memory in regions. All methods are safe for any goroutine.
type Arena struct {
	options Options

	mu      sync.Mutex // guards the fields below; held while memory is given back
	closed  bool
	space   []byte   // all addresses; nil before the first Alloc
	free    extents  // of space, whether or not there is memory
	pieces  []*piece // of space; nil: no memory
	queue   []*piece // to be made
	making  bool     // a maker runs
	settled *sync.Cond
	pending uint64 // bytes of pieces that are allowed and not yet brought in
	used    uint64 // bytes of regions
}

// piece is a part of the space with memory, or one that is getting it.
type piece struct {
	index  int
	memory []byte
	done   chan struct{} // closed when it is there or failed
	err    error         // set before done is closed
}

func (p *piece) ready() bool {
	select {
	case <-p.done:
		return p.err == nil
	default:
		return false
	}
}

// New makes an arena. It takes neither memory nor addresses yet.
func New(o Options) (*Arena, error) {
	if o.PieceBytes == 0 {
		o.PieceBytes = max(defaultPiece, o.BlockBytes)
	}
	switch {
	case o.BlockBytes < 4096 || bits.OnesCount64(o.BlockBytes) != 1:
		return nil, fmt.Errorf("host arena: blocks of %d bytes: must be a power of two from 4096 on", o.BlockBytes)
	case o.PieceBytes%o.BlockBytes != 0 || o.PieceBytes%hugePage != 0:
		return nil, fmt.Errorf("host arena: pieces of %d bytes: must be whole blocks of %d and whole pages of %d", o.PieceBytes, o.BlockBytes, hugePage)
	case (o.Register == nil) != (o.Unregister == nil):
		return nil, errors.New("host arena: register and unregister go together")
	}
	if o.Allow == nil {
		o.Allow = CheckPart
	}
	a := &Arena{options: o}
	a.settled = sync.NewCond(&a.mu)
	return a, nil
}

// Region is a part of an arena that somebody uses.
type Region struct {
	arena  *Arena
	place  extent
	size   uint64 // as asked for
	memory []byte
	pieces []*piece // that it lies in
	freed  atomic.Bool
}

// Alloc takes n bytes, of one range of addresses, with old content. It returns when they are
// promised; Bytes waits until they are there. Every block of the region, counted from its start,
// lies in one piece. What the guard refuses is an error that matches ErrMemory, and nothing was taken.
func (a *Arena) Alloc(n uint64) (*Region, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	r, err := a.alloc(n)
	if err != nil {
		return nil, fmt.Errorf("take %s of host memory: %w", sizes.Binary(n), err)
	}
	return r, nil
}

// alloc is called with mu held.
func (a *Arena) alloc(n uint64) (*Region, error) {
	if a.closed {
		return nil, ErrClosed
	}
	if n == 0 || n > 1<<60 {
		return nil, &PageError{Doing: "mapping", Bytes: n, Err: unix.EINVAL}
	}
	place := extent{n: alignUp(n, granule)}
	if err := a.reserve(place.n); err != nil {
		return nil, err
	}
	// A region smaller than a block is aligned to its own size, so that it needs no whole block
	// and crosses no border either.
	align := a.options.BlockBytes
	if place.n < align {
		align = 1 << bits.Len64(place.n-1)
	}
	var found bool
	if place.off, found = a.free.fit(place.n, align, a.absent); !found {
		if place.off, found = a.free.fit(place.n, align, nil); !found {
			return nil, &PageError{Doing: "finding addresses for", Bytes: n, Err: unix.ENOMEM}
		}
	}
	first, last := a.piecesOf(place)
	if err := a.allow(first, last); err != nil {
		return nil, err
	}
	a.free.remove(place)
	a.used += place.n
	a.make(first, last)
	return &Region{
		arena: a, place: place, size: n, memory: a.space[place.off : place.off+n : place.off+n],
		pieces: append([]*piece(nil), a.pieces[first:last+1]...),
	}, nil
}

// reserve takes the range of addresses, once: twice the node's memory, so that there is a place for
// a region even between others, or less where the process may have less.
func (a *Arena) reserve(n uint64) error {
	if a.space != nil {
		return nil
	}
	least := alignUp(n, hugePage)
	least += (a.options.PieceBytes - least%a.options.PieceBytes) % a.options.PieceBytes
	size := least
	if limits, err := Look(); err == nil {
		size = max(size, 2*limits.Total)
	}
	for {
		size -= size % a.options.PieceBytes
		size = max(size, least)
		space, err := mapMemory(size, unix.PROT_NONE)
		if err == nil {
			a.space, a.pieces, a.free = space, make([]*piece, size/a.options.PieceBytes), extents{{0, size}}
			return nil
		}
		if size == least {
			return err
		}
		size /= 2
	}
}

// piecesOf are the first and the last piece of a place.
func (a *Arena) piecesOf(e extent) (first, last int) {
	return int(e.off / a.options.PieceBytes), int((e.end() - 1) / a.options.PieceBytes)
}

// absent is the end of the last piece of a place that has no memory, or 0. For extents.fit.
func (a *Arena) absent(e extent) uint64 {
	first, last := a.piecesOf(e)
	for i := last; i >= first; i-- {
		if a.pieces[i] == nil {
			return uint64(i+1) * a.options.PieceBytes
		}
	}
	return 0
}

// allow asks whether the pieces that are missing from first to last may be taken. Where not, pieces
// that nobody uses are given back first.
func (a *Arena) allow(first, last int) error {
	missing := uint64(0)
	for _, p := range a.pieces[first : last+1] {
		if p == nil {
			missing += a.options.PieceBytes
		}
	}
	if missing == 0 {
		return nil
	}
	err := a.options.Allow(a.pending + missing)
	if err == nil {
		return nil
	}
	if given, e2 := a.trim(first, last); e2 != nil || given == 0 {
		return errors.Join(err, e2)
	}
	return a.options.Allow(a.pending + missing)
}

// make queues the pieces that are missing from first to last.
func (a *Arena) make(first, last int) {
	for i := first; i <= last; i++ {
		if a.pieces[i] != nil {
			continue
		}
		off := uint64(i) * a.options.PieceBytes
		a.pieces[i] = &piece{index: i, memory: a.space[off : off+a.options.PieceBytes], done: make(chan struct{})}
		a.queue = append(a.queue, a.pieces[i])
		a.pending += a.options.PieceBytes
	}
	if len(a.queue) > 0 && !a.making {
		a.making = true
		go a.maker()
	}
}

// Bytes waits until [off, off+n) of the region is there, registered, and returns it. Its capacity is what
// a copy from off on may take: to the end of the piece or of the region. An error says
// that it could not be made; the region is then of no use and is to be freed.
func (r *Region) Bytes(off, n uint64) ([]byte, error) {
	if r.freed.Load() {
		return nil, ErrClosed
	}
	if off > r.size || n > r.size-off {
		return nil, fmt.Errorf("bytes %d to %d of a region of %d bytes of host memory: %w", off, off+n, r.size, unix.EINVAL)
	}
	end := off + n
	if n > 0 {
		size := r.arena.options.PieceBytes
		base := r.place.off / size
		for i := (r.place.off+off)/size - base; i <= (r.place.off+off+n-1)/size-base; i++ {
			p := r.pieces[i]
			<-p.done
			if p.err != nil {
				return nil, p.err
			}
		}
		end += (size - (r.place.off+end)%size) % size
	}
	return r.memory[off : off+n : min(end, r.size)], nil
}

// Free gives the region back to the arena, which keeps the memory. Nobody may use it any more. It
// never fails; other memory that takes the place of a region may. Idempotent.
func (r *Region) Free() error {
	if r.freed.Swap(true) {
		return nil
	}
	a := r.arena
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.closed {
		a.free.add(r.place)
		a.used -= r.place.n
	}
	return nil
}

// Usage is the size of an arena.
type Usage struct {
	Held uint64 // bytes of memory that it has, or is about to have
	Used uint64 // of them in regions
}

// Usage returns what the arena holds now.
func (a *Arena) Usage() Usage {
	a.mu.Lock()
	defer a.mu.Unlock()
	u := Usage{Used: a.used}
	for _, p := range a.pieces {
		if p != nil {
			u.Held += uint64(len(p.memory))
		}
	}
	return u
}

// trim gives back the pieces that are free, but those from first to last, and returns the bytes.
// Called with mu held.
func (a *Arena) trim(first, last int) (given uint64, err error) {
	size := a.options.PieceBytes
	for i, p := range a.pieces {
		if p == nil || !p.ready() || first <= i && i <= last || !a.free.has(extent{uint64(i) * size, size}) {
			continue
		}
		a.pieces[i] = nil
		if e := a.giveBack(p); e != nil {
			err = errors.Join(err, e)
			continue
		}
		given += size
	}
	return given, err
}

// giveBack unregisters a piece and gives its memory to the system, even when the driver refuses to
// unregister it.
func (a *Arena) giveBack(p *piece) error {
	var err error
	if a.options.Unregister != nil {
		if err = a.options.Unregister(address(p.memory)); err != nil {
			err = fmt.Errorf("unregister %s of host memory: %w", sizes.Binary(uint64(len(p.memory))), err)
		}
	}
	return errors.Join(err, shut(p.memory))
}

// Close gives everything back. No region may be in use; those not freed are gone. What is being made
// is waited for. Idempotent.
func (a *Arena) Close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	for a.making {
		a.settled.Wait()
	}
	var errs []error
	for _, p := range a.pieces {
		if p != nil {
			errs = append(errs, a.giveBack(p))
		}
	}
	if a.space != nil {
		unmap(a.space)
	}
	a.space, a.pieces, a.free, a.used = nil, nil, nil, 0
	return errors.Join(errs...)
}
