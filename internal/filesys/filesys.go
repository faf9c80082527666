// Package filesys is the boundary between the engine and the kernel's files: every file call of a
// pause or resume goes through a System, so that each of them can be made to fail the way a disk
// does, by a test or by hand (Faults).
package filesys

import (
	"errors"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/ebb-offload/ebb/internal/discard"
	"github.com/ebb-offload/ebb/internal/fd"
)

// System is the calls. Each method is one, neither retried nor interpreted.
type System interface {
	// Mkdir and Opendir (O_PATH) follow no link in the last own components of the path, itself included:
	// those below a disk directory are ebb's.
	Mkdir(path string, own int, mode uint32) error
	Opendir(path string, own int) (int, error)
	Openat(dirfd int, name string, flags int, mode uint32) (int, error)
	Close(fd int) error
	Fstat(fd int, st *unix.Stat_t) error
	Fstatat(dirfd int, name string, st *unix.Stat_t) error // does not follow a symlink
	Fstatfs(fd int, st *unix.Statfs_t) error
	StatxAlign(fd int, st *unix.Statx_t) error // STATX_DIOALIGN
	Names(dirfd int) ([]string, error)         // what is in a directory, sorted
	Unlinkat(dirfd int, name string) error
	Renameat(dirfd int, from, to string) error // within one directory
	Exchange(dirfd int, a, b string) error     // the same with RENAME_EXCHANGE
	Rmdirat(dirfd int, name string) error
	Fchmod(fd int, mode uint32) error
	Fallocate(fd int, size int64) error // mode 0 from offset 0
	Discard(fd int, size int64) error   // the first size bytes: see package discard
	Ftruncate(fd int, size int64) error
	Pread(fd int, p []byte, off int64) (int, error)
	Pwrite(fd int, p []byte, off int64) (int, error)
	// Clone makes n bytes of to, from offset at on, share their blocks with those of from.
	Clone(to int, at int64, from int, off, n int64) error
	SetFlags(fd, flags int) error         // F_SETFL
	SyncRange(fd int, off, n int64) error // write out and wait
	DropCache(fd int, off, n int64) error // POSIX_FADV_DONTNEED
	Fsync(fd int) error
	// Lock takes or gives back the whole file for this descriptor's open file description
	// (F_OFD_SETLK), without waiting: EAGAIN when another has it.
	Lock(fd int, take bool) error
	// LockDir does the same with a directory (flock): EWOULDBLOCK, which is EAGAIN, when another has it.
	LockDir(fd int, take bool) error
}

// Kernel is the system itself.
type Kernel struct{}

// Mkdir is mkdirat(2) below the path's parent.
func (Kernel) Mkdir(path string, own int, mode uint32) error {
	dir, name, err := parent(path, own)
	if err != nil {
		return err
	}
	defer leave(dir)
	return unix.Mkdirat(dir, name, mode)
}

// Opendir is openat(2), from one component to the next; the descriptor is never one of the standard streams.
func (Kernel) Opendir(path string, own int) (int, error) {
	got, err := opendir(path, own)
	if err != nil {
		return -1, err
	}
	return fd.AboveStreams(got)
}

func opendir(path string, own int) (int, error) {
	dir, name, err := parent(path, own)
	if err != nil {
		return -1, err
	}
	defer leave(dir)
	flags := unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC
	if own > 0 {
		flags |= unix.O_NOFOLLOW
	}
	return unix.Openat(dir, name, flags, 0)
}

// parent is the directory from where the last component of a path is no way past a link, and its name there.
// The caller leaves it.
func parent(path string, own int) (dir int, name string, err error) {
	if own < 2 {
		return unix.AT_FDCWD, path, nil
	}
	dir, err = opendir(filepath.Dir(path), own-1)
	return dir, filepath.Base(path), err
}

func leave(dir int) {
	if dir >= 0 {
		_ = unix.Close(dir)
	}
}

// Openat is openat(2); the descriptor is never one of the standard streams.
func (Kernel) Openat(dirfd int, name string, flags int, mode uint32) (int, error) {
	got, err := unix.Openat(dirfd, name, flags, mode)
	if err != nil {
		return -1, err
	}
	return fd.AboveStreams(got)
}

// Close is close(2).
func (Kernel) Close(fd int) error { return unix.Close(fd) }

// Fstat is fstat(2).
func (Kernel) Fstat(fd int, st *unix.Stat_t) error { return unix.Fstat(fd, st) }

// Fstatat is fstatat(2).
func (Kernel) Fstatat(dirfd int, name string, st *unix.Stat_t) error {
	return unix.Fstatat(dirfd, name, st, unix.AT_SYMLINK_NOFOLLOW)
}

// Fstatfs is fstatfs(2).
func (Kernel) Fstatfs(fd int, st *unix.Statfs_t) error { return unix.Fstatfs(fd, st) }

// StatxAlign is statx(2).
func (Kernel) StatxAlign(fd int, st *unix.Statx_t) error {
	return unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_DIOALIGN, st)
}

// Names is getdents64(2), to the end.
func (Kernel) Names(dirfd int) ([]string, error) {
	got, err := unix.Openat(dirfd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(got), ".")
	list, err := f.Readdirnames(-1)
	slices.Sort(list)
	return list, errors.Join(err, f.Close())
}

// Unlinkat is unlinkat(2) of a file.
func (Kernel) Unlinkat(dirfd int, name string) error { return unix.Unlinkat(dirfd, name, 0) }

// Renameat is renameat(2).
func (Kernel) Renameat(dirfd int, from, to string) error {
	return unix.Renameat(dirfd, from, dirfd, to)
}

// Exchange is renameat2(2).
func (Kernel) Exchange(dirfd int, a, b string) error {
	return unix.Renameat2(dirfd, a, dirfd, b, unix.RENAME_EXCHANGE)
}

// Rmdirat is unlinkat(2) of a directory.
func (Kernel) Rmdirat(dirfd int, name string) error {
	return unix.Unlinkat(dirfd, name, unix.AT_REMOVEDIR)
}

// Clone is ioctl(2) with FICLONERANGE.
func (Kernel) Clone(to int, at int64, from int, off, n int64) error {
	return unix.IoctlFileCloneRange(to, &unix.FileCloneRange{
		Src_fd: int64(from), Src_offset: uint64(off), Src_length: uint64(n), Dest_offset: uint64(at),
	})
}

// Fchmod is fchmod(2).
func (Kernel) Fchmod(fd int, mode uint32) error { return unix.Fchmod(fd, mode) }

// Fallocate is fallocate(2).
func (Kernel) Fallocate(fd int, size int64) error { return unix.Fallocate(fd, 0, 0, size) }

// Discard is package discard's.
func (Kernel) Discard(fd int, size int64) error { return discard.File(fd, size) }

// Ftruncate is ftruncate(2).
func (Kernel) Ftruncate(fd int, size int64) error { return unix.Ftruncate(fd, size) }

// Pread is pread(2).
func (Kernel) Pread(fd int, p []byte, off int64) (int, error) { return unix.Pread(fd, p, off) }

// Pwrite is pwrite(2).
func (Kernel) Pwrite(fd int, p []byte, off int64) (int, error) { return unix.Pwrite(fd, p, off) }

// SetFlags is fcntl(2) with F_SETFL.
func (Kernel) SetFlags(fd, flags int) error {
	_, err := unix.FcntlInt(uintptr(fd), unix.F_SETFL, flags)
	return err
}

// SyncRange is sync_file_range(2).
func (Kernel) SyncRange(fd int, off, n int64) error {
	return unix.SyncFileRange(fd, off, n, unix.SYNC_FILE_RANGE_WRITE_AND_WAIT)
}

// DropCache is posix_fadvise(3).
func (Kernel) DropCache(fd int, off, n int64) error {
	return unix.Fadvise(fd, off, n, unix.FADV_DONTNEED)
}

// Fsync is fsync(2).
func (Kernel) Fsync(fd int) error { return unix.Fsync(fd) }

// Lock is fcntl(2) with F_OFD_SETLK.
func (Kernel) Lock(fd int, take bool) error {
	lk := unix.Flock_t{Type: unix.F_UNLCK, Whence: unix.SEEK_SET}
	if take {
		lk.Type = unix.F_WRLCK
	}
	return unix.FcntlFlock(uintptr(fd), unix.F_OFD_SETLK, &lk)
}

// LockDir is flock(2).
func (Kernel) LockDir(fd int, take bool) error {
	how := unix.LOCK_UN
	if take {
		how = unix.LOCK_EX | unix.LOCK_NB
	}
	return unix.Flock(fd, how)
}

// Retry repeats a call that a signal interrupted.
func Retry(call func() error) error {
	for {
		if err := call(); err != unix.EINTR {
			return err
		}
	}
}
