package store

import (
	"golang.org/x/sys/unix"

	"github.com/ebb-offload/ebb/internal/discard"
	"github.com/ebb-offload/ebb/internal/fd"
)

// system is every system call that Files makes. Each method is one call, neither retried nor
// interpreted, so that a wrapper can make any of them fail the way a disk does.
type system interface {
	mkdir(path string, mode uint32) error
	openat(dirfd int, name string, flags int, mode uint32) (int, error)
	close(fd int) error
	fstat(fd int, st *unix.Stat_t) error
	fstatat(dirfd int, name string, st *unix.Stat_t) error // does not follow a symlink
	fstatfs(fd int, st *unix.Statfs_t) error
	statxAlign(fd int, st *unix.Statx_t) error // STATX_DIOALIGN
	unlinkat(dirfd int, name string) error
	fchmod(fd int, mode uint32) error
	fallocate(fd int, size int64) error // mode 0 from offset 0
	discard(fd int, size int64) error   // the first size bytes: see package discard
	ftruncate(fd int, size int64) error
	pread(fd int, p []byte, off int64) (int, error)
	pwrite(fd int, p []byte, off int64) (int, error)
	setFlags(fd, flags int) error         // F_SETFL
	syncRange(fd int, off, n int64) error // write out and wait
	dropCache(fd int, off, n int64) error // POSIX_FADV_DONTNEED
	fsync(fd int) error
}

// kernel is the system itself.
type kernel struct{}

func (kernel) mkdir(path string, mode uint32) error { return unix.Mkdir(path, mode) }

func (kernel) openat(dirfd int, name string, flags int, mode uint32) (int, error) {
	got, err := unix.Openat(dirfd, name, flags, mode)
	if err != nil {
		return -1, err
	}
	return fd.AboveStreams(got)
}

func (kernel) close(fd int) error                  { return unix.Close(fd) }
func (kernel) fstat(fd int, st *unix.Stat_t) error { return unix.Fstat(fd, st) }

func (kernel) fstatat(dirfd int, name string, st *unix.Stat_t) error {
	return unix.Fstatat(dirfd, name, st, unix.AT_SYMLINK_NOFOLLOW)
}

func (kernel) fstatfs(fd int, st *unix.Statfs_t) error { return unix.Fstatfs(fd, st) }

func (kernel) statxAlign(fd int, st *unix.Statx_t) error {
	return unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_DIOALIGN, st)
}

func (kernel) fchmod(fd int, mode uint32) error      { return unix.Fchmod(fd, mode) }
func (kernel) unlinkat(dirfd int, name string) error { return unix.Unlinkat(dirfd, name, 0) }
func (kernel) fallocate(fd int, size int64) error    { return unix.Fallocate(fd, 0, 0, size) }
func (kernel) discard(fd int, size int64) error      { return discard.File(fd, size) }
func (kernel) ftruncate(fd int, size int64) error    { return unix.Ftruncate(fd, size) }

func (kernel) pread(fd int, p []byte, off int64) (int, error)  { return unix.Pread(fd, p, off) }
func (kernel) pwrite(fd int, p []byte, off int64) (int, error) { return unix.Pwrite(fd, p, off) }

func (kernel) setFlags(fd, flags int) error {
	_, err := unix.FcntlInt(uintptr(fd), unix.F_SETFL, flags)
	return err
}

func (kernel) syncRange(fd int, off, n int64) error {
	return unix.SyncFileRange(fd, off, n, unix.SYNC_FILE_RANGE_WRITE_AND_WAIT)
}

func (kernel) dropCache(fd int, off, n int64) error {
	return unix.Fadvise(fd, off, n, unix.FADV_DONTNEED)
}

func (kernel) fsync(fd int) error { return unix.Fsync(fd) }

// retry repeats a call that a signal interrupted.
func retry(call func() error) error {
	for {
		if err := call(); err != unix.EINTR {
			return err
		}
	}
}
