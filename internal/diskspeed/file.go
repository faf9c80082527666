package diskspeed

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ebb-offload/ebb/internal/filesys"
)

// file is an open file without a name. Every call on it ends at a deadline.
type file struct {
	dir   string
	sys   *filesys.Deadline
	dirfd int
	fd    int
}

// open makes the file. Direct I/O is asked for; where even the flag is refused the file is without it.
func open(under filesys.System, dir string, answer time.Duration) (*file, error) {
	f := &file{dir: dir, sys: filesys.NewDeadline(under, answer), dirfd: -1, fd: -1}
	var err error
	const pathOnly = unix.O_PATH | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	if f.dirfd, err = f.openat(unix.AT_FDCWD, dir, pathOnly); err != nil {
		f.close()
		if errors.Is(err, unix.ENOTDIR) {
			err = fmt.Errorf("%w, or it is a symbolic link: name the directory itself", err)
		}
		return nil, fmt.Errorf("open directory %s: %w", dir, err)
	}
	if f.fd, err = f.nameless(unix.O_DIRECT); errors.Is(err, unix.EINVAL) {
		f.fd, err = f.nameless(0)
	}
	if err != nil {
		f.close()
		return nil, fmt.Errorf("make a file in %s: %w", dir, err)
	}
	return f, nil
}

// nameless makes a file that is gone when it is closed, by whomever.
func (f *file) nameless(flags int) (int, error) {
	flags |= unix.O_RDWR | unix.O_CLOEXEC
	fd, err := f.openat(f.dirfd, ".", flags|unix.O_TMPFILE)
	if err == nil || !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.ENOENT) {
		return fd, err
	}
	name := fmt.Sprintf(".ebb-speed-%016x", rand.Uint64())
	fd, err = f.openat(f.dirfd, name, flags|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW)
	if err == nil || errors.Is(err, unix.EINVAL) { // a refused O_DIRECT may have made it all the same
		gone := f.retry(func() error { return f.sys.Unlinkat(f.dirfd, name) })
		if gone != nil && err == nil {
			_ = f.sys.Close(fd)
			return -1, fmt.Errorf("remove %s, please do: %w", filepath.Join(f.dir, name), gone)
		}
	}
	return fd, err
}

func (f *file) openat(dirfd int, name string, flags int) (fd int, err error) {
	err = f.retry(func() error {
		fd, err = f.sys.Openat(dirfd, name, flags, 0o600)
		return err
	})
	if err != nil {
		return -1, err
	}
	return fd, nil
}

func (f *file) retry(call func() error) error { return filesys.Retry(call) }

func (f *file) close() {
	for _, fd := range []int{f.fd, f.dirfd} {
		if fd >= 0 {
			_ = f.sys.Close(fd) // what was written is not wanted
		}
	}
	f.sys.Rest()
}
