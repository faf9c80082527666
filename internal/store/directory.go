package store

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// ioAlign is the unit, in bytes, of offsets, lengths and memory addresses in direct I/O. File
// sizes are multiples of it. A file system that asks for a coarser one is used through the
// page cache, because the memory that callers hand over is padded to this one only.
const ioAlign = 4096

// maxSize keeps offsets, padding included, within the system's signed 64 bits.
const maxSize = 1<<63 - ioAlign

func alignUp(n uint64) uint64 { return (n + ioAlign - 1) &^ (ioAlign - 1) }

// directory is a directory that holds files of this store. Its descriptor stays open, so that
// the files are found although the directory was renamed.
type directory struct {
	path     string // absolute
	dev, ino uint64
	refs     int // files and callers; guarded by Files.dirMu

	// buffered is set once, when the file system turns out not to do direct I/O.
	buffered atomic.Bool
	refused  func(call string, err error) // says so

	handling sync.Mutex // guards fd; held over opening it again
	fd       int        // O_PATH; see handle

	proving sync.Mutex // guards proven; held while trying
	proven  bool       // direct I/O was tried and the answer is in buffered
}

// goBuffered gives up direct I/O in the directory because a call was refused.
func (d *directory) goBuffered(call string, err error) {
	d.buffered.Store(true)
	d.refused(call, err)
}

// handle returns the directory's descriptor. It is kept as long as the directory is used; a
// program that closes descriptors it does not know, and opens files of its own, may have put
// another file in its place. Then the directory is opened again, if its path still names it.
func (d *directory) handle(sys system) (int, error) {
	d.handling.Lock()
	defer d.handling.Unlock()
	if ours, err := d.owns(sys, d.fd); ours || err != nil {
		return d.fd, err
	}
	fd := -1
	err := retry(func() (err error) {
		fd, err = sys.openat(unix.AT_FDCWD, d.path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return -1, fmt.Errorf("open directory %s again: %w", d.path, err)
	}
	ours, err := d.owns(sys, fd)
	if err == nil && ours {
		d.fd = fd
		return fd, nil
	}
	_ = sys.close(fd)
	if err != nil {
		return -1, err
	}
	return -1, fmt.Errorf("directory %s: %w: its path names another directory now", d.path, ErrLost)
}

// owns reports whether a descriptor is of this directory.
func (d *directory) owns(sys system, fd int) (bool, error) {
	var st unix.Stat_t
	err := retry(func() error { return sys.fstat(fd, &st) })
	if errors.Is(err, unix.EBADF) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("%w: look at directory %s: %w", ErrIO, d.path, err)
	}
	return st.Dev == d.dev && st.Ino == d.ino, nil
}

// refusesDirect reports whether err is how file systems say that they do not do O_DIRECT.
func refusesDirect(err error) bool {
	return errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP)
}

// enter returns the directory at path, made if it is missing. The caller calls leave.
func (s *Files) enter(path string) (*directory, error) {
	d, fresh, err := s.find(path)
	if fresh {
		s.warnOfMemory(d)
	}
	return d, err
}

// find is enter, and tells whether the directory was not in use before.
func (s *Files) find(path string) (d *directory, fresh bool, err error) {
	s.dirMu.Lock()
	defer s.dirMu.Unlock()
	fd, err := s.openDir(path)
	if err != nil {
		return nil, false, err
	}
	var st unix.Stat_t
	if err := retry(func() error { return s.sys.fstat(fd, &st) }); err != nil {
		_ = s.sys.close(fd)
		return nil, false, fmt.Errorf("%w: look at directory %s: %w", ErrIO, path, err)
	}
	if d := s.dirs[path]; d != nil && d.dev == st.Dev && d.ino == st.Ino {
		_ = s.sys.close(fd)
		d.refs++
		return d, false, nil
	}
	// Not seen yet, or removed and made again since. The former one lives on as long as a
	// backing refers to it.
	d = &directory{path: path, fd: fd, dev: st.Dev, ino: st.Ino, refs: 1}
	d.refused = func(call string, err error) {
		s.buffered.Store(true)
		s.warn(path, "direct", "%s: no direct I/O here (%s with O_DIRECT: %v); going on through the page cache, emptying it as it goes", path, call, err)
	}
	s.dirs[path] = d
	return d, true, nil
}

// warnOfMemory says when files in a directory are host memory themselves.
func (s *Files) warnOfMemory(d *directory) {
	var st unix.Statfs_t
	if err := retry(func() error { return s.sys.fstatfs(d.fd, &st) }); err != nil {
		return // only the warning is lost
	}
	if name := memoryFileSystems[st.Type]; name != "" {
		s.warn(d.path, "memory", "%s is on %s, which is host memory: backups there save none; name a directory on a disk", d.path, name)
	}
}

var memoryFileSystems = map[int64]string{unix.TMPFS_MAGIC: "tmpfs", unix.RAMFS_MAGIC: "ramfs"}

// leave gives back one reference.
func (s *Files) leave(d *directory) {
	s.dirMu.Lock()
	defer s.dirMu.Unlock()
	d.refs--
	if d.refs > 0 {
		return
	}
	if s.dirs[d.path] == d {
		delete(s.dirs, d.path)
	}
	// Not through s.sys: like the close itself, this has no failure that a caller could act on.
	if ours, err := d.owns(kernel{}, d.fd); ours || err != nil {
		_ = s.sys.close(d.fd)
	}
}

// openDir opens the directory at path. A missing one is made, with its parents.
func (s *Files) openDir(path string) (fd int, err error) {
	flags := unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC
	if s.options.NoFollowDir {
		flags |= unix.O_NOFOLLOW
	}
	open := func() error {
		return retry(func() (err error) {
			fd, err = s.sys.openat(unix.AT_FDCWD, path, flags, 0)
			return err
		})
	}
	err = open()
	if errors.Is(err, unix.ENOENT) {
		if err := s.makeDir(path); err != nil {
			return -1, err
		}
		err = open()
	}
	switch {
	case errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP):
		return -1, fmt.Errorf("%w: open directory %s: it is not a directory, or a symlink where none is allowed: %w", ErrIO, path, err)
	case err != nil:
		return -1, fmt.Errorf("%w: open directory %s: %w", ErrIO, path, err)
	}
	return fd, nil
}

// makeDir makes a directory and the parents that are missing, for this user only.
func (s *Files) makeDir(path string) error {
	mkdir := func() error { return retry(func() error { return s.sys.mkdir(path, 0o700) }) }
	err := mkdir()
	if parent := filepath.Dir(path); errors.Is(err, unix.ENOENT) && parent != path {
		if err := s.makeDir(parent); err != nil {
			return err
		}
		err = mkdir()
	}
	switch {
	case err == nil, errors.Is(err, unix.EEXIST):
		return nil
	case noRoom(err):
		return fmt.Errorf("create directory %s: %w: %w", path, ErrNoSpace, err)
	}
	return fmt.Errorf("%w: create directory %s: %w", ErrIO, path, err)
}

// noRoom reports whether err says that space, inodes or quota ran out.
func noRoom(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }

// noSpace describes a lack of room for need bytes, with what is free now.
func (s *Files) noSpace(d *directory, need int64, cause error) error {
	e := &NoSpaceError{Dir: d.path, Need: uint64(need), Err: cause}
	var st unix.Statfs_t
	dir, err := d.handle(s.sys)
	if err != nil {
		return e
	}
	if err := retry(func() error { return s.sys.fstatfs(dir, &st) }); err == nil {
		e.Free = st.Bavail * uint64(st.Bsize)
		e.InodesFree = st.Ffree
	}
	return e
}

// create makes a file of size bytes in d, with all its room, and leaves it open and unused.
// When it fails it removes what it made; the file is returned beside the error if even that
// failed, for the caller to discard later.
func (s *Files) create(d *directory, size int64) (*diskFile, error) {
	f := &diskFile{dir: d, size: size, fd: -1}
	s.fds.take()
	fd, direct, err := s.openNew(f)
	if err != nil {
		s.fds.give()
		if noRoom(err) {
			return nil, s.noSpace(d, size, err)
		}
		return nil, fmt.Errorf("create %s: %w", f.path(), err)
	}
	s.fds.install(f, fd, direct)
	s.files.Add(1)
	s.bytes.Add(size)
	err = s.prepare(f, fd)
	s.fds.release(f)
	if err == nil {
		return f, nil
	}
	// Removed before the free space is counted, so that the count is what others see too.
	left := s.discard(f)
	if noRoom(err) {
		err = s.noSpace(d, size, err)
	} else {
		err = fmt.Errorf("create %s: %w", f.path(), err)
	}
	if left != nil {
		return f, errors.Join(err, left)
	}
	return nil, err
}

// openNew makes the file under a name that no file has yet.
func (s *Files) openNew(f *diskFile) (fd int, direct bool, err error) {
	dir, err := f.dir.handle(s.sys)
	if err != nil {
		return -1, false, err
	}
	open := func(flags int) error {
		return retry(func() (err error) {
			fd, err = s.sys.openat(dir, f.name, unix.O_RDWR|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_CLOEXEC|flags, 0o600)
			return err
		})
	}
	// Names carry this process's identity; those taken are of another store in the process, or
	// were put there by someone. The bound is for a Name that ignores its argument.
	for range 1000 {
		f.name = s.options.Name(s.seq.Add(1) - 1)
		if direct = !f.dir.buffered.Load(); direct {
			err = open(unix.O_EXCL | unix.O_DIRECT)
		} else {
			err = open(unix.O_EXCL)
		}
		if direct && refusesDirect(err) {
			f.dir.goBuffered("open", err)
			direct = false
			// Kernels make the file before they refuse the flag, so it may be there now, and
			// O_EXCL would stumble over it. That it is ours and empty is checked later.
			err = open(0)
		}
		if !errors.Is(err, unix.EEXIST) {
			break
		}
	}
	if err != nil {
		return -1, false, err
	}
	return fd, direct, nil
}

// isNew reports whether st is an empty regular file of this user with one name.
func isNew(st *unix.Stat_t) bool {
	return st.Mode&unix.S_IFMT == unix.S_IFREG && st.Nlink == 1 && int(st.Uid) == os.Geteuid() && st.Size == 0
}

// prepare checks the file just made and takes its room.
func (s *Files) prepare(f *diskFile, fd int) error {
	var st unix.Stat_t
	if err := retry(func() error { return s.sys.fstat(fd, &st) }); err != nil {
		return fmt.Errorf("%w: look at it: %w", ErrIO, err)
	}
	if !isNew(&st) {
		return fmt.Errorf("%w: not a new, plain file of user %d (mode %o, links %d, owner %d, %d bytes): choose a directory of your own, on a file system that keeps owners", ErrIO, os.Geteuid(), st.Mode, st.Nlink, st.Uid, st.Size)
	}
	f.dev, f.ino = st.Dev, st.Ino
	if st.Mode&0o777 != 0o600 { // a umask that takes the owner's bits would make it unreadable
		if err := retry(func() error { return s.sys.fchmod(fd, 0o600) }); err != nil {
			return fmt.Errorf("%w: set its mode: %w", ErrIO, err)
		}
	}
	if err := s.allocate(f, fd); err != nil {
		return err
	}
	return s.prove(f, fd)
}

// allocate takes the file's extents. There is no emulation by writing zeros: it would double
// the bytes written. Without support the room is only known to be there when it is written.
func (s *Files) allocate(f *diskFile, fd int) error {
	err := retry(func() error { return s.sys.fallocate(fd, f.size) })
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) {
		s.warn(f.dir.path, "fallocate", "%s: the file system cannot preallocate (fallocate: %v); a lack of space will show only while writing", f.dir.path, err)
		err = retry(func() error { return s.sys.ftruncate(fd, f.size) })
	}
	if err != nil && !noRoom(err) {
		return fmt.Errorf("%w: preallocate %d bytes: %w", ErrIO, f.size, err)
	}
	return err
}

// prove tries direct I/O in the directory, once, on a file that holds nothing yet: some file
// systems accept the flag and refuse the first write or read.
func (s *Files) prove(f *diskFile, fd int) error {
	d := f.dir
	d.proving.Lock()
	defer d.proving.Unlock()
	if d.proven {
		return nil
	}
	if !d.buffered.Load() {
		if err := s.tryDirect(f, fd); err != nil {
			return err
		}
	}
	d.proven = true
	return nil
}

func (s *Files) tryDirect(f *diskFile, fd int) error {
	var align unix.Statx_t
	err := retry(func() error { return s.sys.statxAlign(fd, &align) })
	if err == nil && align.Mask&unix.STATX_DIOALIGN != 0 {
		for _, a := range []uint32{align.Dio_mem_align, align.Dio_offset_align} {
			if a == 0 || ioAlign%a != 0 {
				f.dir.goBuffered("statx", fmt.Errorf("memory alignment %d, offset alignment %d", align.Dio_mem_align, align.Dio_offset_align))
				return nil
			}
		}
	}
	// A page of its own: direct I/O on memory shared with a forked child goes astray.
	page, free, err := MmapAlloc(2 * ioAlign)
	if err != nil {
		return err
	}
	defer func() { _ = free() }()
	out, in := page[:ioAlign], page[ioAlign:2*ioAlign]
	for i := range out {
		out[i] = byte(i*7 + i>>8 + 1)
	}
	if err := writeAll(s.sys, fd, out, 0, true); refusesDirect(err) {
		f.dir.goBuffered("first write", err)
		return nil
	} else if err != nil {
		return fmt.Errorf("%w: first write: %w", ErrIO, err)
	}
	if err := readAll(s.sys, fd, in, 0, true); refusesDirect(err) {
		f.dir.goBuffered("first read", err)
		return nil
	} else if err != nil {
		return fmt.Errorf("%w: first read: %w", ErrIO, err)
	}
	if !bytes.Equal(out, in) {
		return fmt.Errorf("%w: the file system returns other bytes than were written", ErrIO)
	}
	return nil
}

// present reports whether the file's name still is the file.
func (s *Files) present(f *diskFile) (bool, error) {
	var st unix.Stat_t
	dir, err := f.dir.handle(s.sys)
	if err == nil {
		err = retry(func() error { return s.sys.fstatat(dir, f.name, &st) })
	}
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ESTALE), errors.Is(err, ErrLost):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("%w: look at %s: %w", ErrIO, f.path(), err)
	}
	if f.ino == 0 { // made, but it could not be looked at
		return isNew(&st), nil
	}
	return st.Dev == f.dev && st.Ino == f.ino, nil
}

// discard closes the file and removes it if its name still is the file. On an error the file
// may still be there, and discard can be called again.
func (s *Files) discard(f *diskFile) error {
	s.fds.drop(f)
	there, err := s.present(f)
	if err != nil {
		return err
	}
	if there {
		dir, err := f.dir.handle(s.sys)
		if err == nil {
			err = retry(func() error { return s.sys.unlinkat(dir, f.name) })
		}
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("%w: remove %s: %w", ErrIO, f.path(), err)
		}
	}
	s.files.Add(-1)
	s.bytes.Add(-f.size)
	return nil
}
