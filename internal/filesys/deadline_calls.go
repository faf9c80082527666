package filesys

import (
	"errors"

	"golang.org/x/sys/unix"
)

// The calls of System, each with the deadline.

// Mkdir implements System.
func (d *Deadline) Mkdir(path string, own int, mode uint32) error {
	return d.only("creation", location{dir: path, path: path, fd: -1}, func() error { return d.under.Mkdir(path, own, mode) })
}

// Opendir implements System. What a call opens that was given up is closed again.
func (d *Deadline) Opendir(path string, own int) (int, error) {
	return d.opened(location{dir: path, path: path, fd: -1}, func() (int, error) { return d.under.Opendir(path, own) })
}

// Openat implements System. What a call opens that was given up is closed again; a file that it made
// stays.
func (d *Deadline) Openat(dirfd int, name string, flags int, mode uint32) (int, error) {
	l := d.in(dirfd, name)
	if flags&(unix.O_PATH|unix.O_DIRECTORY) != 0 {
		l.dir = l.path
	}
	return d.opened(l, func() (int, error) { return d.under.Openat(dirfd, name, flags, mode) })
}

// opened makes a call that opens what is there.
func (d *Deadline) opened(l location, open func() (int, error)) (int, error) {
	fd, err := value(d, "opening", l, open, func(fd int) { _ = d.under.Close(fd) })
	if err != nil {
		return -1, err
	}
	l.fd = fd
	d.mu.Lock()
	d.files[fd] = l
	d.mu.Unlock()
	return fd, nil
}

// Close implements System. It never refuses: in a directory where calls hang it does not wait, and
// a descriptor that such a call was given is closed after it.
func (d *Deadline) Close(fd int) error {
	l := d.at(fd)
	d.mu.Lock()
	delete(d.files, fd) // the number is free as soon as the kernel has begun
	used := d.uses(fd)
	if used {
		d.closing[fd] = true
	}
	d.mu.Unlock()
	if used {
		return nil
	}
	l.fd = -1
	closing := func() error { return d.under.Close(fd) }
	err := d.only("closing", l, closing)
	var hang *HangError
	if errors.As(err, &hang) && hang.Because != "" {
		go func() { _ = closing() }()
	}
	return err
}

// Fstat implements System.
func (d *Deadline) Fstat(fd int, st *unix.Stat_t) error {
	return fill(d, d.at(fd), st, func(st *unix.Stat_t) error { return d.under.Fstat(fd, st) })
}

// Fstatat implements System.
func (d *Deadline) Fstatat(dirfd int, name string, st *unix.Stat_t) error {
	return fill(d, d.in(dirfd, name), st, func(st *unix.Stat_t) error { return d.under.Fstatat(dirfd, name, st) })
}

// Fstatfs implements System.
func (d *Deadline) Fstatfs(fd int, st *unix.Statfs_t) error {
	return fill(d, d.at(fd), st, func(st *unix.Statfs_t) error { return d.under.Fstatfs(fd, st) })
}

// StatxAlign implements System.
func (d *Deadline) StatxAlign(fd int, st *unix.Statx_t) error {
	return fill(d, d.at(fd), st, func(st *unix.Statx_t) error { return d.under.StatxAlign(fd, st) })
}

// Names implements System.
func (d *Deadline) Names(dirfd int) ([]string, error) {
	l := d.at(dirfd)
	return value(d, "listing", l, func() ([]string, error) { return d.under.Names(dirfd) }, nil)
}

// Unlinkat implements System.
func (d *Deadline) Unlinkat(dirfd int, name string) error {
	return d.only("removal", d.in(dirfd, name), func() error { return d.under.Unlinkat(dirfd, name) })
}

// Renameat implements System.
func (d *Deadline) Renameat(dirfd int, from, to string) error {
	return d.only("renaming", d.in(dirfd, from), func() error { return d.under.Renameat(dirfd, from, to) })
}

// Exchange implements System.
func (d *Deadline) Exchange(dirfd int, a, b string) error {
	return d.only("exchange", d.in(dirfd, a), func() error { return d.under.Exchange(dirfd, a, b) })
}

// Rmdirat implements System.
func (d *Deadline) Rmdirat(dirfd int, name string) error {
	return d.only("removal", d.in(dirfd, name), func() error { return d.under.Rmdirat(dirfd, name) })
}

// Clone implements System.
func (d *Deadline) Clone(to int, at int64, from int, off, n int64) error {
	return d.writeBack(to, func() error { return d.under.Clone(to, at, from, off, n) })
}

// Fchmod implements System.
func (d *Deadline) Fchmod(fd int, mode uint32) error {
	return d.only("change of mode", d.at(fd), func() error { return d.under.Fchmod(fd, mode) })
}

// Fallocate implements System.
func (d *Deadline) Fallocate(fd int, size int64) error {
	return d.only("preallocation", d.at(fd), func() error { return d.under.Fallocate(fd, size) })
}

// Discard implements System.
func (d *Deadline) Discard(fd int, size int64) error {
	return d.only("discard", d.at(fd), func() error { return d.under.Discard(fd, size) })
}

// Ftruncate implements System.
func (d *Deadline) Ftruncate(fd int, size int64) error {
	return d.only("change of size", d.at(fd), func() error { return d.under.Ftruncate(fd, size) })
}

// Pread implements System.
func (d *Deadline) Pread(fd int, p []byte, off int64) (int, error) {
	if d.limit <= 0 {
		return d.under.Pread(fd, p, off)
	}
	return d.transfer("read", false, fd, p, off)
}

// Pwrite implements System.
func (d *Deadline) Pwrite(fd int, p []byte, off int64) (int, error) {
	if d.limit <= 0 {
		return d.under.Pwrite(fd, p, off)
	}
	return d.transfer("write", true, fd, p, off)
}

// SetFlags implements System. It asks no disk.
func (d *Deadline) SetFlags(fd, flags int) error { return d.under.SetFlags(fd, flags) }

// SyncRange implements System.
func (d *Deadline) SyncRange(fd int, off, n int64) error {
	return d.writeBack(fd, func() error { return d.under.SyncRange(fd, off, n) })
}

// DropCache implements System.
func (d *Deadline) DropCache(fd int, off, n int64) error {
	return d.only("emptying of the cache", d.at(fd), func() error { return d.under.DropCache(fd, off, n) })
}

// Fsync implements System.
func (d *Deadline) Fsync(fd int) error {
	return d.writeBack(fd, func() error { return d.under.Fsync(fd) })
}

// Lock implements System.
func (d *Deadline) Lock(fd int, take bool) error {
	return d.only("locking", d.at(fd), func() error { return d.under.Lock(fd, take) })
}

// LockDir implements System. A lock that comes late goes when the descriptor is closed.
func (d *Deadline) LockDir(fd int, take bool) error {
	return d.only("locking", d.at(fd), func() error { return d.under.LockDir(fd, take) })
}
