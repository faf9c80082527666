package store

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/ebb-offload/ebb/internal/filesys"
)

// diskFile is a file that this process made. Its identity (device and inode) is remembered, so
// that it is known again when it has to be opened a second time.
type diskFile struct {
	dir      *directory
	name     string
	size     int64  // guarded by mu of its backing
	made     bool   // there may be a file; set by openNew
	making   error  // of the call that was to make it, and may still do so: it hangs
	dev, ino uint64 // 0: not known yet

	// What others change of the file since the last Commit shows in its stamp. Of use to Reserve and
	// Commit, of which one runs at a time.
	stamp   stamp
	touched atomic.Bool // by this store, since the stamp was taken

	opening sync.Mutex // one goroutine opens the file, the others wait for the descriptor

	// Guarded by fdCache.mu.
	fd      int // -1: not open
	direct  bool
	users   int
	dropped bool      // to be closed by the last user, and never opened again
	newer   *diskFile // neighbours in fdCache.idle when open without users, else nil
	older   *diskFile
}

// stamp is what a file system changes when a file is changed in whatever way.
type stamp struct {
	size         int64
	mtime, ctime unix.Timespec
}

func stampOf(st *unix.Stat_t) stamp { return stamp{st.Size, st.Mtim, st.Ctim} }

func (f *diskFile) path() string { return f.dir.path + "/" + f.name }

// create makes a file of size bytes in d, with all its room, and leaves it open and unused.
// When it fails it removes what it made; the file is returned beside the error if even that
// failed, for the caller to discard later.
func (s *Store) create(d *directory, size int64) (*diskFile, error) {
	if err := s.take(d, size); err != nil {
		return nil, err
	}
	defer s.taken(d)
	f := &diskFile{dir: d, size: size, fd: -1}
	s.fds.take()
	fd, direct, err := s.openNew(f)
	for tooMany(err) && s.fds.closeOne() {
		fd, direct, err = s.openNew(f)
	}
	s.files.Add(1)
	if err == nil {
		s.fds.install(f, fd, direct)
		err = s.prepare(f, fd)
		s.fds.release(f)
	} else {
		s.fds.give()
	}
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
		return f, filesys.Also(err, left)
	}
	return nil, err
}

// take counts room that is about to be taken in a directory.
func (s *Store) take(d *directory, n int64) error {
	if s.options.Take != nil {
		left, err := s.options.Take(d.path, n)
		if errors.Is(err, ErrIO) {
			return err
		}
		if err != nil {
			return &NoSpaceError{Dir: d.path, Need: uint64(n), Free: left, InodesFree: 1, Err: err, dev: d.dev}
		}
	}
	s.bytes.Add(n)
	return nil
}

// taken ends what take began.
func (s *Store) taken(d *directory) {
	if s.options.Taken != nil {
		s.options.Taken(d.path)
	}
}

// give counts room as given back.
func (s *Store) give(d *directory, n int64) {
	if s.options.Give != nil {
		s.options.Give(d.path, n)
	}
	s.bytes.Add(-n)
}

// openNew makes the file under a name that no file has yet, or opens the one that it made in an earlier call
// which failed.
func (s *Store) openNew(f *diskFile) (fd int, direct bool, err error) {
	dir, err := f.dir.handle(s.sys)
	if err != nil {
		return -1, false, err
	}
	open := func(flags int) error {
		return filesys.Retry(func() (err error) {
			fd, err = s.sys.Openat(dir, f.name, unix.O_RDWR|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_CLOEXEC|flags, 0o600)
			return err
		})
	}
	// Names carry this process's identity; those taken are of another store in the process, or
	// were put there by someone. The bound is for a Name that ignores its argument.
	for range 1000 {
		excl := unix.O_EXCL
		if f.made {
			excl = 0
		} else {
			f.name = s.options.Name(s.named.Add(1) - 1)
		}
		if direct = !f.dir.buffered.Load(); direct {
			err = open(excl | unix.O_DIRECT)
		} else {
			err = open(excl)
		}
		if direct && refusesDirect(err) {
			f.dir.goBuffered("open", err)
			direct = false
			// Kernels make the file before they refuse the flag, so it may be there now, and
			// O_EXCL would stumble over it. That it is ours and empty is checked later.
			f.made = true
			err = open(0)
		}
		if !errors.Is(err, unix.EEXIST) {
			break
		}
	}
	if filesys.InUse(err) != nil {
		f.making = err
	}
	f.made = f.made || err == nil || f.making != nil
	if err != nil && !noRoom(err) {
		return -1, false, fmt.Errorf("%w: %w", ErrIO, err)
	}
	return fd, direct, err
}

// isNew reports whether st is an empty regular file of this user with one name.
func isNew(st *unix.Stat_t) bool {
	return st.Mode&unix.S_IFMT == unix.S_IFREG && st.Nlink == 1 && int(st.Uid) == os.Geteuid() && st.Size == 0
}

// prepare checks the file just made and takes its room.
func (s *Store) prepare(f *diskFile, fd int) error {
	var st unix.Stat_t
	if err := filesys.Retry(func() error { return s.sys.Fstat(fd, &st) }); err != nil {
		return fmt.Errorf("%w: look at it: %w", ErrIO, err)
	}
	if !isNew(&st) {
		return fmt.Errorf("%w: not a new, plain file of user %d (mode %o, links %d, owner %d, %d bytes): choose a directory of your own, on a file system that keeps owners", ErrIO, os.Geteuid(), st.Mode, st.Nlink, st.Uid, st.Size)
	}
	f.dev, f.ino = st.Dev, st.Ino
	if st.Mode&0o777 != 0o600 { // a umask that takes the owner's bits would make it unreadable
		if err := filesys.Retry(func() error { return s.sys.Fchmod(fd, 0o600) }); err != nil {
			return fmt.Errorf("%w: set its mode: %w", ErrIO, err)
		}
	}
	if err := s.allocate(f, fd, f.size); noRoom(err) {
		return err
	} else if err != nil {
		return ioError(err)
	}
	return s.prove(f, fd)
}

// allocate takes the file's extents up to size. There is no emulation by writing zeros: it would
// double the bytes written. Without support the room is only known to be there when it is
// written.
func (s *Store) allocate(f *diskFile, fd int, size int64) error {
	err := filesys.Retry(func() error { return s.sys.Fallocate(fd, size) })
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) {
		s.warn(f.dir.path, "fallocate", "%s: the file system cannot preallocate (fallocate: %v); a lack of space will show only while writing", f.dir.path, err)
		err = filesys.Retry(func() error { return s.sys.Ftruncate(fd, size) })
	}
	if err != nil && !noRoom(err) {
		return fmt.Errorf("preallocate %d bytes: %w", size, err)
	}
	return err
}

// grow takes more room for a file.
func (s *Store) grow(f *diskFile, size int64) error {
	more := size - f.size
	if err := s.take(f.dir, more); err != nil {
		return err
	}
	defer s.taken(f.dir)
	f.touched.Store(true)
	if err := s.withFile(f, more, func(fd int, _ bool) error { return s.allocate(f, fd, size) }); err != nil {
		s.give(f.dir, more)
		return fmt.Errorf("more room in %s: %w", f.path(), err)
	}
	f.size = size
	return nil
}

// present reports whether the file's name still is the file.
func (s *Store) present(f *diskFile) (bool, error) {
	var st unix.Stat_t
	return s.look(f, &st)
}

// intact reports whether the file is still there and as this store left it, and returns its stamp.
// A file that was cut, or written to, would only show when its bytes are needed: blocks that it
// holds already are not written again.
func (s *Store) intact(f *diskFile) (bool, stamp, error) {
	var st unix.Stat_t
	there, err := s.look(f, &st)
	now := stampOf(&st)
	if f.stamp != (stamp{}) && !f.touched.Load() {
		there = there && now == f.stamp
	}
	return there && st.Size >= f.size, now, err
}

// look is present, and fills st.
func (s *Store) look(f *diskFile, st *unix.Stat_t) (bool, error) {
	dir, err := f.dir.handle(s.sys)
	if err == nil {
		err = filesys.Retry(func() error { return s.sys.Fstatat(dir, f.name, st) })
	}
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ESTALE), errors.Is(err, ErrLost):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("%w: look at %s: %w", ErrIO, f.path(), err)
	}
	if f.ino == 0 { // made, but it could not be looked at
		return isNew(st), nil
	}
	return st.Dev == f.dev && st.Ino == f.ino, nil
}

// discard closes the file and removes it if its name still is the file. On an error the file
// may still be there, and discard can be called again.
func (s *Store) discard(f *diskFile) error {
	if hangs(f.making) {
		return f.making
	}
	if s.options.Discard && f.ino != 0 {
		s.giveBack(f)
	}
	s.fds.drop(f)
	there, err := f.made, error(nil)
	if there {
		there, err = s.present(f)
	}
	if err != nil {
		return err
	}
	if there {
		dir, err := f.dir.handle(s.sys)
		if err == nil {
			err = filesys.Retry(func() error { return s.sys.Unlinkat(dir, f.name) })
		}
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("%w: remove %s: %w", ErrIO, f.path(), err)
		}
	}
	s.files.Add(-1)
	s.give(f.dir, f.size)
	return nil
}

// giveBack gives the blocks of a file back that is about to be removed.
func (s *Store) giveBack(f *diskFile) {
	// Not through the cache, where it might wait for transfers that a disk holds up.
	fd, _, err := f.reopen(s.sys)
	if errors.Is(err, ErrLost) {
		return
	}
	if err == nil {
		err = filesys.Retry(func() error { return s.sys.Discard(fd, f.size) })
		_ = s.sys.Close(fd)
	}
	if err != nil {
		s.warn(f.dir.path, "discard", "%s: the blocks of removed files are not given back first (%v); the drive keeps their bytes until it overwrites or discards them", f.dir.path, err)
	}
}

func readOnly(err error) bool {
	return errors.Is(err, unix.EROFS) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM)
}

// reopen opens the file again and makes sure that it is the one made earlier.
func (f *diskFile) reopen(sys filesys.System) (fd int, direct bool, err error) {
	dir, err := f.dir.handle(sys)
	if errors.Is(err, unix.ENOENT) {
		err = fmt.Errorf("%w (%w)", ErrLost, err)
	}
	if err != nil {
		return -1, false, err
	}
	open := func(flags int) error {
		return filesys.Retry(func() (err error) {
			fd, err = sys.Openat(dir, f.name, unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NONBLOCK|flags, 0)
			return err
		})
	}
	openAs := func(access int) error {
		if direct = !f.dir.buffered.Load(); direct {
			err := open(access | unix.O_DIRECT)
			if !refusesDirect(err) {
				return err
			}
			f.dir.goBuffered("open", err)
			direct = false
		}
		return open(access)
	}
	// What has taken the name may be anything; opening it must tell nothing about the directory.
	var named unix.Stat_t
	err = filesys.Retry(func() error { return sys.Fstatat(dir, f.name, &named) })
	if err == nil && (named.Dev != f.dev || named.Ino != f.ino) {
		return -1, false, fmt.Errorf("%w: another file has taken its name", ErrLost)
	}
	if err == nil {
		if err = openAs(unix.O_RDWR); readOnly(err) { // a disk that went read-only still has the bytes
			err = openAs(unix.O_RDONLY)
		}
	}
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ELOOP), errors.Is(err, unix.ESTALE):
		return -1, false, fmt.Errorf("%w (%w)", ErrLost, err)
	case err != nil:
		return -1, false, fmt.Errorf("%w: open it again: %w", ErrIO, err)
	}
	var st unix.Stat_t
	if err := filesys.Retry(func() error { return sys.Fstat(fd, &st) }); err != nil {
		_ = sys.Close(fd)
		return -1, false, fmt.Errorf("%w: look at it: %w", ErrIO, err)
	}
	if st.Dev != f.dev || st.Ino != f.ino {
		_ = sys.Close(fd)
		return -1, false, fmt.Errorf("%w: another file has taken its name", ErrLost)
	}
	return fd, direct, nil
}
