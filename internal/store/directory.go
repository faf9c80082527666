package store

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/ebb-offload/ebb/internal/filesys"
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
	own      int    // components of it in which no link is followed
	dev, ino uint64
	rate     *rate
	refs     int // files and callers; guarded by Store.dirMu

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
func (d *directory) handle(sys filesys.System) (int, error) {
	d.handling.Lock()
	defer d.handling.Unlock()
	if ours, err := d.owns(sys, d.fd); ours || err != nil {
		return d.fd, err
	}
	fd := -1
	err := filesys.Retry(func() (err error) {
		fd, err = sys.Opendir(d.path, d.own)
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
	_ = sys.Close(fd)
	if err != nil {
		return -1, err
	}
	return -1, fmt.Errorf("directory %s: %w: its path names another directory now", d.path, ErrLost)
}

// owns reports whether a descriptor is of this directory.
func (d *directory) owns(sys filesys.System, fd int) (bool, error) {
	var st unix.Stat_t
	err := filesys.Retry(func() error { return sys.Fstat(fd, &st) })
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

// directories are those of the setting, absolute and each once.
func (s *Store) directories() ([]string, error) {
	var setting []string
	for _, dir := range s.options.Dirs() {
		if dir == "" {
			continue
		}
		abs, err := filepath.Abs(dir)
		if err != nil {
			return nil, fmt.Errorf("directory %q: %w", dir, err)
		}
		setting = append(setting, abs)
	}
	switch len(setting) {
	case 0:
		return nil, fmt.Errorf("%w: no directory is set", ErrIO)
	case 1:
		return setting, nil
	}
	s.mu.Lock()
	members := s.members
	if !slices.Equal(s.setting, setting) {
		members = nil
	}
	s.mu.Unlock()
	if members != nil {
		return members, nil
	}
	members, err := s.compare(setting)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.setting, s.members = setting, members
	s.mu.Unlock()
	return members, nil
}

// compare looks at several directories, making those that are missing. One that is named twice
// is used once.
func (s *Store) compare(paths []string) (members []string, err error) {
	var seen []*directory
	defer func() {
		for _, d := range seen {
			s.leave(d)
		}
	}()
	for _, path := range paths {
		d, err := s.enter(path)
		if err != nil {
			return nil, err
		}
		same := slices.IndexFunc(seen, func(o *directory) bool { return o.dev == d.dev && o.ino == d.ino })
		seen = append(seen, d)
		if same >= 0 {
			s.warn(path, "same", "%s and %s are the same directory: it is used once", seen[same].path, path)
			continue
		}
		members = append(members, path)
	}
	return members, nil
}

// enter returns the directory at path, made if it is missing. The caller calls leave.
func (s *Store) enter(path string) (*directory, error) {
	d, fresh, err := s.find(path)
	if fresh {
		s.warnOfMemory(d)
	}
	return d, err
}

// find is enter, and tells whether the directory was not in use before.
func (s *Store) find(path string) (d *directory, fresh bool, err error) {
	s.dirMu.Lock()
	defer s.dirMu.Unlock()
	fd, err := s.openDir(path)
	if err != nil {
		return nil, false, err
	}
	var st unix.Stat_t
	if err := filesys.Retry(func() error { return s.sys.Fstat(fd, &st) }); err != nil {
		_ = s.sys.Close(fd)
		return nil, false, fmt.Errorf("%w: look at directory %s: %w", ErrIO, path, err)
	}
	if d := s.dirs[path]; d != nil && d.dev == st.Dev && d.ino == st.Ino {
		_ = s.sys.Close(fd)
		d.refs++
		return d, false, nil
	}
	// Not seen yet, or removed and made again since. The former one lives on as long as a
	// backing refers to it.
	d = &directory{path: path, own: s.own(), fd: fd, dev: st.Dev, ino: st.Ino, rate: s.rates.of(path), refs: 1}
	d.refused = func(call string, err error) {
		s.buffered.Store(true)
		s.warn(path, "direct", "%s: no direct I/O here (%s with O_DIRECT: %v); going on through the page cache, emptying it as it goes", path, call, err)
	}
	s.dirs[path] = d
	return d, true, nil
}

// warnOfMemory says when files in a directory are host memory themselves.
func (s *Store) warnOfMemory(d *directory) {
	var st unix.Statfs_t
	if err := filesys.Retry(func() error { return s.sys.Fstatfs(d.fd, &st) }); err != nil {
		return // only the warning is lost
	}
	if name := memoryFileSystems[st.Type]; name != "" {
		s.warn(d.path, "memory", "%s is on %s, which is host memory: backups there save none; name a directory on a disk", d.path, name)
	}
}

var memoryFileSystems = map[int64]string{unix.TMPFS_MAGIC: "tmpfs", unix.RAMFS_MAGIC: "ramfs"}

// leave gives back one reference.
func (s *Store) leave(d *directory) {
	s.dirMu.Lock()
	defer s.dirMu.Unlock()
	d.refs--
	if d.refs > 0 {
		return
	}
	if s.dirs[d.path] == d {
		delete(s.dirs, d.path)
	}
	// Not through s.sys: like the close itself, this has no failure that a caller could act on. It
	// asks no disk, so that nobody waits for one with the lock held.
	var st unix.Statx_t
	err := unix.Statx(d.fd, "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, unix.STATX_INO, &st)
	if err == nil && unix.Mkdev(st.Dev_major, st.Dev_minor) == d.dev && st.Ino == d.ino {
		_ = s.sys.Close(d.fd)
	}
}

// ownComponents are the disk directory, the job's in it and the rank's in that.
const ownComponents = 3

// own is in how many of the last components of a directory's path no link is followed.
func (s *Store) own() int {
	if s.options.NoFollowDir {
		return ownComponents
	}
	return 0
}

// openDir opens the directory at path. A missing one is made, with its parents.
func (s *Store) openDir(path string) (fd int, err error) {
	open := func() error {
		return filesys.Retry(func() (err error) {
			fd, err = s.sys.Opendir(path, s.own())
			return err
		})
	}
	err = open()
	if errors.Is(err, unix.ENOENT) {
		if err := s.makeDir(path, s.own()); err != nil {
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
func (s *Store) makeDir(path string, own int) error {
	mkdir := func() error { return filesys.Retry(func() error { return s.sys.Mkdir(path, own, 0o700) }) }
	err := mkdir()
	if parent := filepath.Dir(path); errors.Is(err, unix.ENOENT) && parent != path {
		if err := s.makeDir(parent, max(own-1, 0)); err != nil {
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
func (s *Store) noSpace(d *directory, need int64, cause error) error {
	e := &NoSpaceError{Dir: d.path, Need: uint64(need), Err: cause, dev: d.dev}
	var st unix.Statfs_t
	dir, err := d.handle(s.sys)
	if err != nil {
		return e
	}
	if err := filesys.Retry(func() error { return s.sys.Fstatfs(dir, &st) }); err == nil {
		e.Free = st.Bavail * uint64(st.Bsize)
		e.InodesFree = st.Ffree
	}
	return e
}

// Room is a NoSpaceError where the directories have less than need bytes free in all, for a caller whose
// backings are so large that even the maps of their blocks are too much to make in vain.
func (s *Store) Room(need uint64) error {
	paths, err := s.directories()
	if err != nil {
		return err
	}
	var each []*NoSpaceError
	for _, path := range paths {
		d, err := s.enter(path)
		if err != nil {
			return err
		}
		var lack *NoSpaceError
		if errors.As(s.noSpace(d, 0, unix.ENOSPC), &lack) {
			lack.Need = need
			each = append(each, lack)
		}
		s.leave(d)
	}
	var lack *NoSpaceError
	if err := allFull(need, each); !errors.As(err, &lack) || lack.Free < need {
		return err
	}
	return nil
}

// freeIn is how many bytes are free in a directory now.
func (s *Store) freeIn(path string) (uint64, error) {
	d, err := s.enter(path)
	if err != nil {
		return 0, err
	}
	defer s.leave(d)
	dir, err := d.handle(s.sys)
	if err != nil {
		return 0, err
	}
	var st unix.Statfs_t
	if err := filesys.Retry(func() error { return s.sys.Fstatfs(dir, &st) }); err != nil {
		return 0, err
	}
	return st.Bavail * uint64(st.Bsize), nil
}
