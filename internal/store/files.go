package store

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
)

// FilesOptions are the settings of a store in files.
type FilesOptions struct {
	// BlockBytes is the size of a block, a multiple of 4096.
	BlockBytes uint64
	// Name makes the name of a file. seq is another one at each call.
	Name func(seq uint64) string
	// Dir is the directory for new files. It is asked at the first Reserve of each backing,
	// which then keeps to that directory.
	Dir func() string
	// NoFollowDir refuses a directory whose last component is a symlink. Without it a
	// symlink to a directory is the user's choice.
	NoFollowDir bool
	// MaxOpen is the number of files open at one time; 0: 64.
	MaxOpen int
	// Warn, if not nil, takes one line without a newline, once per directory and kind. It is
	// called within calls of the store and makes none itself.
	Warn func(line string)
}

// Files keeps every backing in a file of its own, which is made at the first Reserve, takes its
// full size at once, is overwritten in place, and is removed by Release. Files are read and
// written past the page cache (O_DIRECT); where the file system refuses that, Files says so
// once and goes on through the page cache, emptying it as it goes.
//
// Locks, in the order they are taken: fileBacking.mu; diskFile.opening or directory.proving;
// then one of Files.dirMu, Files.mu and fdCache.mu, which are never held together.
type Files struct {
	options  FilesOptions
	sys      system
	fds      *fdCache
	seq      atomic.Uint64
	bytes    atomic.Int64 // of all files
	files    atomic.Int64
	buffered atomic.Bool // some directory refused direct I/O

	mu       sync.Mutex // guards the fields below
	closed   bool
	backings map[*fileBacking]struct{}
	warned   map[string]bool // by directory and kind

	dirMu sync.Mutex            // guards the map and the reference counts; held over opening one
	dirs  map[string]*directory // by absolute path
}

// NewFiles makes a store in files. It touches no file yet.
func NewFiles(o FilesOptions) *Files { return newFiles(o, kernel{}) }

func newFiles(o FilesOptions, sys system) *Files {
	if o.MaxOpen <= 0 {
		o.MaxOpen = 64
	}
	return &Files{
		options:  o,
		sys:      sys,
		fds:      newFDCache(sys, o.MaxOpen),
		backings: map[*fileBacking]struct{}{},
		warned:   map[string]bool{},
		dirs:     map[string]*directory{},
	}
}

// Open implements Store.
func (s *Files) Open(id, size uint64) (Backing, error) {
	if err := checkSizes(s.options.BlockBytes, size); err != nil {
		return nil, fmt.Errorf("open a file backing for allocation %d: %w", id, err)
	}
	b := &fileBacking{store: s, id: id, blocks: newBlockMap(size, s.options.BlockBytes)}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, fmt.Errorf("open a file backing for allocation %d: %w", id, ErrClosed)
	}
	s.backings[b] = struct{}{}
	return b, nil
}

// checkSizes refuses what no backing can have.
func checkSizes(block, size uint64) error {
	if block == 0 || block%ioAlign != 0 {
		return fmt.Errorf("block size %d is not a multiple of %d", block, ioAlign)
	}
	if size == 0 || size > maxSize {
		return fmt.Errorf("size %d is not between 1 and %d", size, uint64(maxSize))
	}
	return nil
}

// Rest implements Store.
func (s *Files) Rest() { s.fds.rest() }

// Usage implements Store.
func (s *Files) Usage() Usage {
	return Usage{DiskBytes: uint64(s.bytes.Load()), Files: int(s.files.Load()), Buffered: s.buffered.Load()}
}

// Close implements Store. A file that could not be removed is tried again by the next call.
func (s *Files) Close() error {
	s.mu.Lock()
	s.closed = true
	var open []*fileBacking
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
func (s *Files) released(b *fileBacking) {
	s.mu.Lock()
	delete(s.backings, b)
	s.mu.Unlock()
}

// warn says a line once per directory and kind.
func (s *Files) warn(dir, kind, format string, args ...any) {
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
