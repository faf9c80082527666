// Package store holds the bytes of paused allocations, block by block, in host memory and in
// files. A Backing holds those of one allocation; which of its blocks lie where is settled when
// it takes its room. One conformance suite (storetest) runs on every kind of store.
//
// The block map is the truth about what a backing holds: per block absent, zero, stored or dead,
// its place, and the fingerprint of its bytes where that is known. An entry is set to absent
// before its block is overwritten and to the new state after the write returned, so that a
// failed pause never leaves a claim on bytes that were not written.
//
// Files are read and written past the page cache (O_DIRECT); where the file system refuses
// that, the store says so once and goes on through the page cache, emptying it as it goes.
//
// Locks, in the order they are taken: backing.mu; diskFile.opening or directory.proving; then
// one of directory.handling, Store.dirMu, Store.mu and fdCache.mu, which are never held
// together. No lock is held over a transfer, nor over waiting for host memory, so that a disk
// that hangs holds up its own blocks only, and Release nothing.
package store

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ebb-offload/ebb/internal/filesys"
)

// Options are the settings of a store.
type Options struct {
	// BlockBytes is the size of a block, a multiple of 4096.
	BlockBytes uint64

	// Alloc takes size bytes of host memory, a multiple of 4096, for the blocks of one backing.
	// It is needed by a store that keeps blocks in host memory.
	Alloc func(size uint64) (Extent, error)
	// Direct says that devices can copy to and from memory of Alloc (it is pinned), so that
	// blocks there show it as Memory.
	Direct bool

	// Dirs are the directories of files; blocks are dealt to them in turn. It is asked at the
	// first Reserve of each backing, which then keeps to the answer. nil: the store uses no
	// disk, and all blocks lie in host memory.
	Dirs func() []string
	// HostBudget is how much host memory, in bytes, the backings of a store with directories
	// may take in all; the first blocks of a backing lie there, as many as fit. It is asked
	// like Dirs. nil: none. What Alloc refuses goes to disk.
	HostBudget func() uint64
	// Name makes the name of a file. seq is another one at each call.
	Name func(seq uint64) string
	// NoFollowDir refuses a directory if one of the last three components of its path is a symlink: the disk
	// directory, the job's and the rank's in it. Without it a symlink to a directory is the user's choice.
	NoFollowDir bool
	// Discard gives the blocks of a file back to file system and drive before its name goes, where
	// that can be done. What cannot be is removed all the same.
	Discard bool
	// Take, if not nil, counts n bytes more as held in a directory, before they are taken, or refuses
	// them: as too many, with those that it would leave, or with ErrIO. Give counts bytes as given back. Both are called from any
	// goroutine, with no lock held that another disk's answer waits for.
	Take func(dir string, n int64) (left uint64, err error)
	Give func(dir string, n int64)
	// Taken, if not nil, is called once for each Take that did not refuse, when what it counted shows in the
	// directory as the size of a file, or was given back.
	Taken func(dir string)
	// System makes the file calls; nil: the kernel.
	System filesys.System
	// Timeout is how long a disk may give no answer before the calls that wait for it fail with
	// filesys.ErrHang; 0: for ever. See hang.go.
	Timeout time.Duration
	// MaxOpen is the number of files open at one time; 0: 64.
	MaxOpen int
	// Warn, if not nil, takes one line without a newline, once per directory and kind. It is
	// called within calls of the store and makes none itself.
	Warn func(line string)
}

// Store makes backings. All methods may be called from any goroutine.
type Store struct {
	options  Options
	deadline *filesys.Deadline // of Options.System
	sys      filesys.System    // deadline
	fds      *fdCache
	named    atomic.Uint64 // names asked for
	dealt    atomic.Uint64 // blocks dealt to directories
	bytes    atomic.Int64  // of all files
	files    atomic.Int64
	buffered atomic.Bool // some directory refused direct I/O
	litter   atomic.Bool // some file could not be removed

	mu       sync.Mutex // guards the fields below
	closed   bool
	backings map[*backing]struct{}
	host     uint64          // bytes of host memory held, or about to be
	warned   map[string]bool // by directory and kind
	setting  []string        // the last setting of several directories
	members  []string        // what came of it

	dirMu sync.Mutex            // guards the map and the reference counts; held over opening a directory
	dirs  map[string]*directory // by absolute path
	rates rates
}

// New makes a store. It takes no memory and touches no file yet.
func New(o Options) *Store {
	if o.System == nil {
		o.System = filesys.Kernel{}
	}
	if o.MaxOpen <= 0 {
		o.MaxOpen = 64
	}
	sys := filesys.NewDeadline(o.System, o.Timeout)
	s := &Store{
		options:  o,
		deadline: sys,
		sys:      sys,
		fds:      newFDCache(sys, o.MaxOpen),
		backings: map[*backing]struct{}{},
		warned:   map[string]bool{},
		dirs:     map[string]*directory{},
	}
	sys.OnAnswer(s.sweep)
	return s
}

// Open returns a new, empty backing for an allocation of size bytes. It takes no room yet. id is
// unique in the process and names the backing in errors.
func (s *Store) Open(id, size uint64) (Backing, error) {
	fail := func(err error) error { return fmt.Errorf("open a backing for allocation %d: %w", id, err) }
	if block := s.options.BlockBytes; block == 0 || block%ioAlign != 0 {
		return nil, fail(fmt.Errorf("block size %d is not a multiple of %d", block, ioAlign))
	}
	if size == 0 || size > maxSize {
		return nil, fail(fmt.Errorf("size %d is not between 1 and %d", size, uint64(maxSize)))
	}
	b := &backing{store: s, id: id, blocks: newBlockMap(size, s.options.BlockBytes)}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, fail(ErrClosed)
	}
	s.backings[b] = struct{}{}
	return b, nil
}

// System is what makes the store's file calls: with its deadline, and the faults of tests.
func (s *Store) System() filesys.System { return s.sys }

// Deadline is that of System, for work in directories that is not made of its calls.
func (s *Store) Deadline() *filesys.Deadline { return s.deadline }

// Rest gives up what is kept between calls only for speed: open files. The engine calls it at
// the end of each operation, so that between operations no forked child inherits them (a
// removed file would keep its room as long as the child lives), and that a descriptor which the
// program closed and used for a file of its own is never taken for ours. Host memory is kept.
func (s *Store) Rest() {
	s.fds.rest()
	s.deadline.Rest()
}

// Usage is what all open backings take now, and what the directories did so far.
type Usage struct {
	HostBytes uint64 // host memory held
	DiskBytes uint64 // bytes of files
	Files     int
	Buffered  bool // some directory refused direct I/O
	Dirs      []DirUsage
	Hung      []filesys.Hung // calls that hang, the oldest first
}

// Usage counts.
func (s *Store) Usage() Usage {
	u := Usage{DiskBytes: uint64(s.bytes.Load()), Files: int(s.files.Load()), Buffered: s.buffered.Load(), Dirs: s.rates.usage(), Hung: s.deadline.Hung()}
	s.mu.Lock()
	defer s.mu.Unlock()
	u.HostBytes = s.host
	return u
}

// Close releases every open backing (files removed, memory freed) and the store. Further calls
// return ErrClosed. Idempotent; what could not be given back is tried again by the next call.
func (s *Store) Close() error {
	s.mu.Lock()
	s.closed = true
	var open []*backing
	for b := range s.backings {
		open = append(open, b)
	}
	s.mu.Unlock()
	var errs []error
	for _, b := range open {
		errs = append(errs, b.Release())
	}
	return errors.Join(errs...)
}

// released takes a backing out of the list of those that hold room.
func (s *Store) released(b *backing) {
	s.mu.Lock()
	delete(s.backings, b)
	s.mu.Unlock()
}

// claim counts host memory for a backing of size bytes, and says how much it may take: all
// that it needs, or as many whole blocks as are left in the budget.
func (s *Store) claim(size uint64) (n uint64) {
	n = alignUp(size)
	budget := n
	if s.options.Dirs != nil {
		budget = 0
		if s.options.HostBudget != nil {
			budget = s.options.HostBudget()
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.options.Dirs != nil {
		if left := budget - min(budget, s.host); n > left {
			n = left / s.options.BlockBytes * s.options.BlockBytes
		}
	}
	s.host += n
	return n
}

// unclaim counts n bytes of host memory as given back.
func (s *Store) unclaim(n uint64) {
	s.mu.Lock()
	s.host -= n
	s.mu.Unlock()
}

// warn says a line once per directory and kind.
func (s *Store) warn(dir, kind, format string, args ...any) {
	if s.options.Warn == nil {
		return
	}
	s.mu.Lock()
	key := kind + "\x00" + dir
	said := s.warned[key]
	s.warned[key] = true
	s.mu.Unlock()
	if !said {
		s.options.Warn(fmt.Sprintf(format, args...))
	}
}
