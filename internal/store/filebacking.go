package store

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// fileBacking is the file of one allocation.
type fileBacking struct {
	store  *Files
	id     uint64
	blocks blockMap
	file   atomic.Pointer[diskFile] // nil: no room taken

	mu       sync.Mutex  // serialises Reserve, Commit and Release; guards the fields below
	dir      string      // directory of the first successful Reserve, absolute
	litter   []*diskFile // files that could not be removed, for the next attempt
	released bool
}

// Reserve implements Backing.
func (b *fileBacking) Reserve() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.reserve(); err != nil {
		return fmt.Errorf("room on disk for allocation %d: %w", b.id, err)
	}
	return nil
}

func (b *fileBacking) reserve() error {
	if b.released {
		return ErrClosed
	}
	s := b.store
	if f := b.file.Load(); f != nil {
		there, err := s.present(f)
		if there || err != nil {
			return err
		}
		// Launchers empty the directory of a live process. What the file held is gone.
		if b.blocks.anyStored() {
			s.warn(f.dir.path, "lost", "%s: the file was removed by someone else; it is made again", f.path())
		}
		b.blocks.forget()
		b.file.Store(nil)
		b.litter = append(b.litter, f)
	}
	if err := b.clean(); err != nil {
		return err
	}
	dir := b.dir
	if dir == "" {
		setting := s.options.Dir()
		if setting == "" {
			return fmt.Errorf("%w: no directory is set", ErrIO)
		}
		var err error
		if dir, err = filepath.Abs(setting); err != nil {
			return fmt.Errorf("directory %q: %w", setting, err)
		}
	}
	d, err := s.enter(dir)
	if err != nil {
		return err
	}
	f, err := s.create(d, int64(alignUp(b.blocks.size)))
	if err != nil {
		if f != nil {
			b.litter = append(b.litter, f) // keeps its reference to d
		} else {
			s.leave(d)
		}
		return err
	}
	b.dir = dir
	b.file.Store(f)
	return nil
}

// clean removes what could not be removed before. Called with mu held.
func (b *fileBacking) clean() error {
	for len(b.litter) > 0 {
		f := b.litter[0]
		if err := b.store.discard(f); err != nil {
			return err
		}
		b.store.leave(f.dir)
		b.litter = b.litter[1:]
	}
	return nil
}

// WriteBlock implements Backing.
func (b *fileBacking) WriteBlock(off uint64, p []byte, as Block) error {
	f, padded, err := b.transfer(off, p)
	if err == nil {
		b.blocks.at(off).store(Block{})
		clear(padded[len(p):])
		err = b.store.write(f, padded, int64(off))
	}
	if err != nil {
		return fmt.Errorf("write block at offset %d of %s: %w", off, b.name(), err)
	}
	b.blocks.at(off).store(as)
	return nil
}

// ReadBlock implements Backing.
func (b *fileBacking) ReadBlock(off uint64, p []byte) error {
	f, padded, err := b.transfer(off, p)
	if err == nil {
		switch b.blocks.at(off).load().State {
		case Stored:
			err = b.store.read(f, padded, int64(off))
		case Absent:
			err = ErrAbsent
		case Zero, Dead:
			clear(p)
		}
	}
	if err != nil {
		return fmt.Errorf("read block at offset %d of %s: %w", off, b.name(), err)
	}
	return nil
}

// transfer checks the arguments of a block call and returns the file, and p with its padding.
func (b *fileBacking) transfer(off uint64, p []byte) (*diskFile, []byte, error) {
	if err := b.blocks.check(off, uint64(len(p))); err != nil {
		return nil, nil, err
	}
	n := alignUp(uint64(len(p)))
	if uint64(cap(p)) < n || uintptr(unsafe.Pointer(unsafe.SliceData(p)))%ioAlign != 0 {
		return nil, nil, fmt.Errorf("the memory of the block (%p, %d bytes) is not aligned to and padded to %d", p, cap(p), ioAlign)
	}
	f, err := b.reserved()
	return f, p[:n], err
}

var errNoRoom = errors.New("no room was reserved")

func (b *fileBacking) reserved() (*diskFile, error) {
	f := b.file.Load()
	if f == nil {
		return nil, errNoRoom
	}
	return f, nil
}

// Commit implements Backing.
func (b *fileBacking) Commit() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.commit(); err != nil {
		return fmt.Errorf("commit %s: %w", b.name(), err)
	}
	return nil
}

func (b *fileBacking) commit() error {
	if b.released {
		return ErrClosed
	}
	f, err := b.reserved()
	if err != nil {
		return err
	}
	if off, found := b.blocks.firstAbsent(); found {
		return fmt.Errorf("block at offset %d: %w", off, ErrAbsent)
	}
	// Writes through a descriptor succeed although the name is gone; the bytes would be lost
	// as soon as the descriptor is closed to make room for another.
	there, err := b.store.present(f)
	if err == nil && !there {
		err = ErrLost
	}
	if err == nil && f.dir.buffered.Load() {
		err = b.store.flush(f)
	}
	if err != nil {
		// The system reports a failed write-back once, without saying of which bytes.
		b.blocks.forget()
	}
	return err
}

// Invalidate implements Backing.
func (b *fileBacking) Invalidate() { b.blocks.forget() }

// Block implements Backing.
func (b *fileBacking) Block(off uint64) Block { return b.blocks.at(off).load() }

// Mark implements Backing. Old bytes stay in the file.
func (b *fileBacking) Mark(off uint64, as Block) {
	if as.State != Stored { // without Memory there is nothing that it could be true of
		b.blocks.at(off).store(as)
	}
}

// Memory implements Backing: there is none.
func (b *fileBacking) Memory(uint64) []byte { return nil }

// Pointer implements Backing.
func (b *fileBacking) Pointer(uint64) (unsafe.Pointer, error) {
	return nil, fmt.Errorf("file %s: %w", b.name(), ErrNoMemory)
}

// Where implements Backing.
func (b *fileBacking) Where(off uint64) string {
	return fmt.Sprintf("file %s (offset %d)", b.name(), off)
}

func (b *fileBacking) name() string {
	if f := b.file.Load(); f != nil {
		return f.path()
	}
	return fmt.Sprintf("(none yet for allocation %d)", b.id)
}

// Release implements Backing. When the file cannot be removed it can be called again.
func (b *fileBacking) Release() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.released = true
	b.blocks.forget()
	if f := b.file.Swap(nil); f != nil {
		b.litter = append(b.litter, f)
	}
	if err := b.clean(); err != nil {
		return fmt.Errorf("release the file of allocation %d: %w", b.id, err)
	}
	b.store.released(b)
	return nil
}

// write puts p, whole, at off of f.
func (s *Files) write(f *diskFile, p []byte, off int64) error {
	return s.withFile(f, int64(len(p)), func(fd int, direct bool) error {
		if err := writeAll(s.sys, fd, p, off, direct); err != nil || direct {
			return err
		}
		err := retry(func() error { return s.sys.syncRange(fd, off, int64(len(p))) })
		if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.ESPIPE) {
			err = retry(func() error { return s.sys.fsync(fd) })
		}
		if err == nil {
			s.emptyCache(f, fd)
		}
		return err
	})
}

// read fills p from off of f.
func (s *Files) read(f *diskFile, p []byte, off int64) error {
	return s.withFile(f, int64(len(p)), func(fd int, direct bool) error {
		err := readAll(s.sys, fd, p, off, direct)
		if err == nil && !direct {
			s.emptyCache(f, fd)
		}
		return err
	})
}

// flush waits until what was written through the page cache is on the device.
func (s *Files) flush(f *diskFile) error {
	return s.withFile(f, f.size, func(fd int, _ bool) error {
		err := retry(func() error { return s.sys.fsync(fd) })
		if err == nil {
			s.emptyCache(f, fd)
		}
		return err
	})
}

// emptyCache drops the file's clean pages: all of them, because the cache's units may reach
// over the ends of a block. Failing to costs memory, not bytes.
func (s *Files) emptyCache(f *diskFile, fd int) {
	if err := retry(func() error { return s.sys.dropCache(fd, 0, 0) }); err != nil {
		s.warn(f.dir.path, "fadvise", "%s: the page cache cannot be emptied (posix_fadvise: %v); it will grow", f.dir.path, err)
	}
}

// withFile runs an operation on f's descriptor, once more if it turns out that the file system
// refuses direct I/O after all, and says in ebb's terms what failed.
func (s *Files) withFile(f *diskFile, n int64, op func(fd int, direct bool) error) error {
	for {
		fd, direct, err := s.fds.acquire(f)
		if err != nil {
			return err
		}
		err = op(fd, direct)
		s.fds.release(f)
		switch {
		case err == nil:
			return nil
		case direct && refusesDirect(err):
			f.dir.goBuffered("transfer", err) // acquire gives a buffered one from now on
		case noRoom(err):
			return s.noSpace(f.dir, n, err)
		case errors.Is(err, unix.ESTALE), errors.Is(err, io.ErrUnexpectedEOF):
			return fmt.Errorf("%w (%w)", ErrLost, err)
		default:
			return fmt.Errorf("%w: %w", ErrIO, err)
		}
	}
}

// writeAll writes all of p at off.
func writeAll(sys system, fd int, p []byte, off int64, direct bool) error {
	write := func(p []byte, off int64) (int, error) { return sys.pwrite(fd, p, off) }
	return moveAll(write, p, off, direct, io.ErrShortWrite)
}

// readAll fills p from off; the end of the file within p is an error.
func readAll(sys system, fd int, p []byte, off int64, direct bool) error {
	read := func(p []byte, off int64) (int, error) { return sys.pread(fd, p, off) }
	return moveAll(read, p, off, direct, io.ErrUnexpectedEOF)
}

// moveAll repeats a transfer until all of p is moved. The system may take less than asked for;
// nothing at all, or less than direct I/O can go on from, is the error none.
func moveAll(call func([]byte, int64) (int, error), p []byte, off int64, direct bool, none error) error {
	for len(p) > 0 {
		n, err := call(p, off)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		if direct {
			n -= n % ioAlign
		}
		if n <= 0 {
			return none
		}
		p, off = p[n:], off+int64(n)
	}
	return nil
}
