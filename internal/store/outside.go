package store

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/ebb-offload/ebb/internal/filesys"
)

// Outside is a file that is none of the store's: of a checkpoint, which outlives the process. It is read and
// written past the page cache where that can be done. Its methods may be called from many goroutines, but for
// Close.
type Outside struct {
	sys    filesys.System
	dir    string
	name   string
	fd     int
	direct atomic.Bool // off when the file system refuses it, at a transfer at the latest
}

// CreateOutside makes a file in a directory, of which dirfd is a descriptor. OpenOutside opens one to be read.
func CreateOutside(sys filesys.System, dirfd int, dir, name string) (*Outside, error) {
	return outside(sys, dirfd, dir, name, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL)
}

// OpenOutside is described at CreateOutside.
func OpenOutside(sys filesys.System, dirfd int, dir, name string) (*Outside, error) {
	return outside(sys, dirfd, dir, name, unix.O_RDONLY)
}

func outside(sys filesys.System, dirfd int, dir, name string, flags int) (*Outside, error) {
	o := &Outside{sys: sys, dir: dir, name: name}
	o.direct.Store(true)
	open := func(flags int) error {
		return filesys.Retry(func() (err error) {
			o.fd, err = sys.Openat(dirfd, name, flags|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NONBLOCK, 0o600)
			return err
		})
	}
	err := open(flags | unix.O_DIRECT)
	if refusesDirect(err) {
		o.direct.Store(false)
		err = open(flags &^ unix.O_EXCL) // the kernel makes the file before it refuses the flag
	}
	if err != nil {
		return nil, o.failed("open", 0, err)
	}
	return o, nil
}

// Path is the file's.
func (o *Outside) Path() string { return filepath.Join(o.dir, o.name) }

func (o *Outside) failed(doing string, n uint64, err error) error {
	switch {
	case noRoom(err):
		e := &NoSpaceError{Dir: o.dir, Need: n, InodesFree: 1, Err: err}
		var st unix.Statfs_t
		if o.fd > 0 && filesys.Retry(func() error { return o.sys.Fstatfs(o.fd, &st) }) == nil {
			e.Free, e.InodesFree = st.Bavail*uint64(st.Bsize), st.Ffree
		}
		return fmt.Errorf("%s %s: %w", doing, o.Path(), e)
	case errors.Is(err, unix.ENOENT), errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("%w: %s %s: %w", ErrLost, doing, o.Path(), err)
	}
	return fmt.Errorf("%w: %s %s: %w", ErrIO, doing, o.Path(), err)
}

// Take takes room for size bytes, where the file system can.
func (o *Outside) Take(size uint64) error {
	err := filesys.Retry(func() error { return o.sys.Fallocate(o.fd, int64(size)) })
	if err == nil || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) {
		return nil
	}
	return o.failed("take the room of", size, err)
}

// Write writes p, which is padded as for WriteBlock, at off. What is behind the file's size is cut off by Finish.
func (o *Outside) Write(off uint64, p []byte) error {
	padded, err := pad(p)
	if err != nil {
		return err
	}
	clear(padded[len(p):])
	err = o.transfer(func(direct bool) error {
		err := writeAll(o.sys, o.fd, padded, int64(off), direct)
		if err == nil && !direct {
			err = o.emptyCache(off, len(padded))
		}
		return err
	})
	if err != nil {
		return o.failed("write", uint64(len(padded)), err)
	}
	return nil
}

// transfer makes a transfer, and once more through the page cache where the file system has taken the flag and refuses
// direct I/O all the same.
func (o *Outside) transfer(move func(direct bool) error) error {
	direct := o.direct.Load()
	err := move(direct)
	if !direct || !refusesDirect(err) {
		return err
	}
	if err := filesys.Retry(func() error { return o.sys.SetFlags(o.fd, 0) }); err != nil {
		return err
	}
	o.direct.Store(false)
	return move(false)
}

// emptyCache brings what was written through the page cache to the device, and drops it there.
func (o *Outside) emptyCache(off uint64, n int) error {
	err := filesys.Retry(func() error { return o.sys.SyncRange(o.fd, int64(off), int64(n)) })
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.ESPIPE) {
		err = nil // Finish does it
	}
	if err == nil {
		_ = filesys.Retry(func() error { return o.sys.DropCache(o.fd, 0, 0) }) // costs memory, not bytes
	}
	return err
}

// Read fills p, which is padded as for ReadBlock, from off; the end of the file within p is ErrLost.
func (o *Outside) Read(off uint64, p []byte) error {
	padded, err := pad(p)
	if err != nil {
		return err
	}
	err = o.transfer(func(direct bool) error {
		err := o.readAll(p, padded, int64(off), direct)
		if err == nil && !direct {
			_ = filesys.Retry(func() error { return o.sys.DropCache(o.fd, 0, 0) })
		}
		return err
	})
	if err != nil {
		return o.failed("read", 0, err)
	}
	return nil
}

// readAll fills p, of which padded is all that may be asked for. The last block of the file may be one that is not
// padded.
func (o *Outside) readAll(p, padded []byte, off int64, direct bool) error {
	for done := 0; done < len(p); {
		n, err := o.sys.Pread(o.fd, padded[done:], off+int64(done))
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return err
		}
		if direct && done+n < len(p) {
			n -= n % ioAlign
		}
		if n <= 0 {
			return io.ErrUnexpectedEOF
		}
		done += n
	}
	return nil
}

// Clone makes the file share the block at off with a backing. false: the file systems do not do that.
func (o *Outside) Clone(off uint64, b Backing, length uint64) (bool, error) {
	in, err := b.InFile(off, func(fd int, at int64) error {
		return filesys.Retry(func() error { return o.sys.Clone(o.fd, int64(off), fd, at, int64(alignUp(length))) })
	})
	for _, no := range []error{unix.EOPNOTSUPP, unix.EXDEV, unix.EINVAL, unix.ENOTTY, unix.ENOSYS, unix.EPERM, unix.ETXTBSY} {
		if errors.Is(err, no) {
			return false, nil
		}
	}
	if err != nil {
		return false, o.failed("share blocks with", length, err)
	}
	return in, nil
}

// Size is the file's, in bytes.
func (o *Outside) Size() (uint64, error) {
	var st unix.Stat_t
	if err := filesys.Retry(func() error { return o.sys.Fstat(o.fd, &st) }); err != nil {
		return 0, o.failed("look at", 0, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return 0, fmt.Errorf("%w: %s is not a file", ErrIO, o.Path())
	}
	return uint64(st.Size), nil
}

// Finish gives the file its size and brings it to the device.
func (o *Outside) Finish(size uint64) error {
	err := filesys.Retry(func() error { return o.sys.Ftruncate(o.fd, int64(size)) })
	if err == nil {
		err = filesys.Retry(func() error { return o.sys.Fsync(o.fd) })
	}
	if err != nil {
		return o.failed("write", size, err)
	}
	return nil
}

// Close closes the file. What was to be written was checked by Finish.
func (o *Outside) Close() { _ = o.sys.Close(o.fd) }
