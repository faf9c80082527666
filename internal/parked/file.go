package parked

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/ebb-offload/ebb/internal/filesys"
	"github.com/ebb-offload/ebb/internal/rankdir"
)

const (
	leaseSuffix = ".lease"
	suffix      = ".map"
	tempSuffix  = ".tmp" // behind the other
)

// File is the map beside a lease, as the engine writes it.
type File struct {
	sys  filesys.System
	dir  string // .ebb
	name string
	size int // of the file that is there, or may be; 0: there is none
	n    int // allocations in it
}

// NewFile is the map of a process beside its lease. It touches nothing yet.
func NewFile(sys filesys.System, lease string, self rankdir.Owner) *File {
	key := strings.TrimSuffix(filepath.Base(lease), leaseSuffix)
	return &File{sys: sys, dir: filepath.Dir(lease), name: fmt.Sprintf("%s.%d-%d%s", key, self.PID, self.StartTime, suffix)}
}

// Write replaces the map, all or nothing. After an error there is none, as far as it could be removed.
func (f *File) Write(m *Map) error {
	p := m.encode()
	err := f.in(func(dir int) error { return f.replace(dir, p) })
	f.size, f.n = len(p), len(m.Allocations)
	if err != nil {
		f.n = 0
		err = errors.Join(err, f.Remove()) // of what is there, the next one tries again
		return fmt.Errorf("write the map of parked memory %s, which only ebb verify needs: %w", filepath.Join(f.dir, f.name), err)
	}
	return nil
}

// replace writes a new file and gives it the name. It is not synced: nothing parked outlives the
// machine's next start.
func (f *File) replace(dir int, p []byte) error {
	if err := f.unlink(dir, tempSuffix); err != nil {
		return err
	}
	fd, err := f.openat(dir, f.name+tempSuffix, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL)
	if err != nil {
		return err
	}
	err = f.writeAt(fd, p, 0)
	if e := f.sys.Close(fd); err == nil {
		err = e
	}
	if err != nil {
		return err
	}
	return filesys.Retry(func() error { return f.sys.Renameat(dir, f.name+tempSuffix, f.name) })
}

// Remove removes the map, if there is one.
func (f *File) Remove() error {
	if f.size == 0 {
		return nil
	}
	err := f.in(func(dir int) error { return errors.Join(f.unlink(dir, ""), f.unlink(dir, tempSuffix)) })
	if err != nil {
		return fmt.Errorf("remove the map of parked memory %s: %w", filepath.Join(f.dir, f.name), err)
	}
	f.size, f.n = 0, 0
	return nil
}

// Free crosses out the i-th allocation of the map.
func (f *File) Free(i int) error {
	if i >= f.n {
		return nil
	}
	err := f.in(func(dir int) error {
		fd, err := f.openat(dir, f.name, unix.O_WRONLY)
		if err != nil {
			return err
		}
		err = f.writeAt(fd, []byte{1}, int64(f.size-f.n+i))
		_ = f.sys.Close(fd)
		return err
	})
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("cross out in the map of parked memory %s: %w", filepath.Join(f.dir, f.name), err)
	}
	return nil
}

// in calls do with the directory open.
func (f *File) in(do func(dir int) error) error {
	dir := -1
	err := filesys.Retry(func() (err error) {
		dir, err = f.sys.Opendir(f.dir, 2) // the disk directory and .ebb in it
		return err
	})
	if err != nil {
		return err
	}
	err = do(dir)
	_ = f.sys.Close(dir)
	return err
}

func (f *File) openat(dir int, name string, flags int) (fd int, err error) {
	err = filesys.Retry(func() error {
		fd, err = f.sys.Openat(dir, name, flags|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
		return err
	})
	return fd, err
}

func (f *File) unlink(dir int, suffix string) error {
	err := filesys.Retry(func() error { return f.sys.Unlinkat(dir, f.name+suffix) })
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

func (f *File) writeAt(fd int, p []byte, off int64) error {
	for len(p) > 0 {
		n, err := f.sys.Pwrite(fd, p, off)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		if n <= 0 {
			return io.ErrShortWrite
		}
		p, off = p[n:], off+int64(n)
	}
	return nil
}

// maxMap is more than any map has, in bytes.
const maxMap = 4 << 30

// read reads a map, as a checker, and says which file it is.
func read(ebb int, name string) (m *Map, ino uint64, err error) {
	fd, err := openat(ebb, name, unix.O_RDONLY|unix.O_NONBLOCK)
	if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENXIO) {
		return nil, 0, ErrMap
	}
	if err != nil {
		return nil, 0, err
	}
	file := os.NewFile(uintptr(fd), name)
	defer func() { _ = file.Close() }()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, 0, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || int(st.Uid) != os.Geteuid() || st.Nlink > 1 || st.Mode&0o077 != 0 || st.Size > maxMap {
		return nil, st.Ino, fmt.Errorf("%w: not a plain file that only user %d may read (mode %o, owner %d, links %d)", ErrMap, os.Geteuid(), st.Mode, st.Uid, st.Nlink)
	}
	p, err := io.ReadAll(file)
	if err != nil {
		return nil, st.Ino, err
	}
	m, err = decode(p)
	return m, st.Ino, err
}

func openat(dir int, name string, flags int) (fd int, err error) {
	err = filesys.Retry(func() error {
		fd, err = unix.Openat(dir, name, flags|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		return err
	})
	return fd, err
}
