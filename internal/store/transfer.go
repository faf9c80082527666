package store

import (
	"errors"
	"fmt"
	"io"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ebb-offload/ebb/internal/filesys"
)

// write puts p, whole, at off of f.
func (s *Store) write(f *diskFile, p []byte, off int64) error {
	f.touched.Store(true)
	return s.withFile(f, int64(len(p)), func(fd int, direct bool) error {
		begin := time.Now()
		err := writeAll(s.sys, fd, p, off, direct)
		if err == nil && !direct {
			err = s.writeOut(f, fd, off, int64(len(p)))
		}
		if err == nil {
			f.dir.rate.write.add(len(p), time.Since(begin))
		}
		return err
	})
}

// writeOut brings what was written through the page cache to the device.
func (s *Store) writeOut(f *diskFile, fd int, off, n int64) error {
	err := filesys.Retry(func() error { return s.sys.SyncRange(fd, off, n) })
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.ESPIPE) {
		err = filesys.Retry(func() error { return s.sys.Fsync(fd) })
	}
	if err == nil {
		s.emptyCache(f, fd)
	}
	return err
}

// read fills p from off of f.
func (s *Store) read(f *diskFile, p []byte, off int64) error {
	return s.withFile(f, int64(len(p)), func(fd int, direct bool) error {
		begin := time.Now()
		err := readAll(s.sys, fd, p, off, direct)
		if err == nil {
			f.dir.rate.read.add(len(p), time.Since(begin))
			if !direct {
				s.emptyCache(f, fd)
			}
		}
		return err
	})
}

// settle makes sure that what was written to f stays, and that what was there before still is. Writes through a descriptor succeed
// although the name is gone; the bytes would be lost as soon as the descriptor is closed to make
// room for another.
func (s *Store) settle(f *diskFile) error {
	intact, now, err := s.intact(f)
	switch {
	case err != nil:
		return err
	case !intact:
		return ErrLost
	case f.dir.buffered.Load():
		err = s.flush(f)
	}
	if err == nil {
		f.stamp = now
		f.touched.Store(false)
	}
	return err
}

// flush waits until what was written through the page cache is on the device.
func (s *Store) flush(f *diskFile) error {
	return s.withFile(f, 0, func(fd int, _ bool) error {
		err := filesys.Retry(func() error { return s.sys.Fsync(fd) })
		if err == nil {
			s.emptyCache(f, fd)
		}
		return err
	})
}

// emptyCache drops the file's clean pages: all of them, because the cache's units may reach
// over the ends of a block. Failing to costs memory, not bytes.
func (s *Store) emptyCache(f *diskFile, fd int) {
	if err := filesys.Retry(func() error { return s.sys.DropCache(fd, 0, 0) }); err != nil {
		s.warn(f.dir.path, "fadvise", "%s: the page cache cannot be emptied (posix_fadvise: %v); it will grow", f.dir.path, err)
	}
}

// withFile runs an operation on f's descriptor, once more if it turns out that the file system
// refuses direct I/O after all, and says in ebb's terms what failed.
func (s *Store) withFile(f *diskFile, n int64, op func(fd int, direct bool) error) error {
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
			return ioError(err)
		}
	}
}

// writeAll writes all of p at off.
func writeAll(sys filesys.System, fd int, p []byte, off int64, direct bool) error {
	write := func(p []byte, off int64) (int, error) {
		n, err := sys.Pwrite(fd, p, off)
		if errors.Is(err, unix.EINVAL) && overLimit(off+int64(len(p))) {
			err = unix.EFBIG // cut at the limit, the write is no longer one that direct I/O takes
		}
		return n, err
	}
	return moveAll(write, p, off, direct, io.ErrShortWrite)
}

// overLimit reports whether a file of size bytes is larger than this process may make files (RLIMIT_FSIZE).
func overLimit(size int64) bool {
	var limit unix.Rlimit
	return unix.Getrlimit(unix.RLIMIT_FSIZE, &limit) == nil && uint64(size) > limit.Cur
}

// readAll fills p from off; the end of the file within p is an error.
func readAll(sys filesys.System, fd int, p []byte, off int64, direct bool) error {
	read := func(p []byte, off int64) (int, error) { return sys.Pread(fd, p, off) }
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
