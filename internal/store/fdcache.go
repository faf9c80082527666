package store

import (
	"container/list"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// diskFile is a file that this process made. Its identity (device and inode) is remembered, so
// that it is known again when it has to be opened a second time.
type diskFile struct {
	dir      *directory
	name     string
	size     int64
	dev, ino uint64 // 0: not known yet

	opening sync.Mutex // one goroutine opens the file, the others wait for the descriptor

	// Guarded by fdCache.mu.
	fd      int // -1: not open
	direct  bool
	users   int
	dropped bool          // to be closed by the last user, and never opened again
	idle    *list.Element // in fdCache.idle when open without users
}

func (f *diskFile) path() string { return f.dir.path + "/" + f.name }

// fdCache keeps at most max files open. A descriptor in use is never closed; of those not in
// use, the one unused longest is closed first.
type fdCache struct {
	sys system
	max int

	mu   sync.Mutex // guards the fields below and those of each diskFile named there
	cond *sync.Cond // a descriptor became idle or was closed
	open int        // descriptors open, or about to be
	held int        // descriptors open
	idle *list.List // of *diskFile, most recently used first
}

func newFDCache(sys system, max int) *fdCache {
	c := &fdCache{sys: sys, max: max, idle: list.New()}
	c.cond = sync.NewCond(&c.mu)
	return c
}

// rest closes all idle descriptors.
func (c *fdCache) rest() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for e := c.idle.Front(); e != nil; e = c.idle.Front() {
		c.closeLocked(e.Value.(*diskFile))
	}
	c.cond.Broadcast()
}

// take waits until one more descriptor may be open and counts it.
func (c *fdCache) take() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.open >= c.max {
		oldest := c.idle.Back()
		if oldest == nil {
			c.cond.Wait()
			continue
		}
		f := oldest.Value.(*diskFile)
		fd := f.fd
		c.forget(f)
		c.mu.Unlock()
		_ = c.sys.close(fd) // Linux has closed it whatever it reports; writes were checked
		c.mu.Lock()
		c.open--
	}
	c.open++
}

func tooMany(err error) bool { return errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) }

// closeOne closes a descriptor that is not in use, waiting for one if all are; false when the
// cache has none.
func (c *fdCache) closeOne() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.held > 0 {
		if oldest := c.idle.Back(); oldest != nil {
			c.closeLocked(oldest.Value.(*diskFile))
			return true
		}
		c.cond.Wait()
	}
	return false
}

// give takes back what take counted, when no descriptor came of it.
func (c *fdCache) give() {
	c.mu.Lock()
	c.open--
	c.cond.Broadcast()
	c.mu.Unlock()
}

// forget clears f's descriptor. Called with mu held.
func (c *fdCache) forget(f *diskFile) {
	if f.idle != nil {
		c.idle.Remove(f.idle)
		f.idle = nil
	}
	f.fd = -1
	c.held--
}

// install hands over a new descriptor that take counted; the caller is its first user.
func (c *fdCache) install(f *diskFile, fd int, direct bool) {
	c.mu.Lock()
	f.fd, f.direct, f.users = fd, direct, 1
	c.held++
	c.mu.Unlock()
}

// acquire returns f's descriptor, opening the file when needed, and whether it works past the
// page cache. The caller calls release when done.
func (c *fdCache) acquire(f *diskFile) (fd int, direct bool, err error) {
	f.opening.Lock()
	defer f.opening.Unlock()
	if fd, direct, err = c.use(f); fd >= 0 || err != nil {
		return fd, direct, err
	}
	c.take()
	fd, direct, err = f.reopen(c.sys)
	for tooMany(err) && c.closeOne() { // the process has none left, but the cache has
		fd, direct, err = f.reopen(c.sys)
	}
	if err != nil {
		c.give()
		return -1, false, err
	}
	c.install(f, fd, direct)
	return fd, direct, nil
}

// use returns the descriptor of an open file, or -1. A descriptor that was opened for direct
// I/O before its directory turned out not to support it is changed first.
func (c *fdCache) use(f *diskFile) (fd int, direct bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f.dropped {
		return -1, false, ErrClosed
	}
	if f.fd < 0 {
		return -1, false, nil
	}
	if f.direct && f.dir.buffered.Load() {
		if err := retry(func() error { return c.sys.setFlags(f.fd, 0) }); err != nil {
			return -1, false, fmt.Errorf("%w: turn off O_DIRECT: %w", ErrIO, err)
		}
		f.direct = false
	}
	if f.idle != nil {
		c.idle.Remove(f.idle)
		f.idle = nil
	}
	f.users++
	return f.fd, f.direct, nil
}

// release ends one use.
func (c *fdCache) release(f *diskFile) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f.users--
	if f.users > 0 {
		return
	}
	if f.dropped {
		c.closeLocked(f)
	} else {
		f.idle = c.idle.PushFront(f)
	}
	c.cond.Broadcast()
}

// drop closes the file for good, at once or when its last user is done. It waits for one who
// is opening the file, and needs its directory, after which nobody will.
func (c *fdCache) drop(f *diskFile) {
	f.opening.Lock()
	defer f.opening.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	f.dropped = true
	if f.fd >= 0 && f.users == 0 {
		c.closeLocked(f)
		c.cond.Broadcast()
	}
}

func (c *fdCache) closeLocked(f *diskFile) {
	fd := f.fd
	c.forget(f)
	_ = c.sys.close(fd)
	c.open--
}

func readOnly(err error) bool {
	return errors.Is(err, unix.EROFS) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM)
}

// reopen opens the file again and makes sure that it is the one made earlier.
func (f *diskFile) reopen(sys system) (fd int, direct bool, err error) {
	dir, err := f.dir.handle(sys)
	if errors.Is(err, unix.ENOENT) {
		err = fmt.Errorf("%w (%w)", ErrLost, err)
	}
	if err != nil {
		return -1, false, err
	}
	open := func(flags int) error {
		return retry(func() (err error) {
			fd, err = sys.openat(dir, f.name, unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NONBLOCK|flags, 0)
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
	err = retry(func() error { return sys.fstatat(dir, f.name, &named) })
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
	if err := retry(func() error { return sys.fstat(fd, &st) }); err != nil {
		_ = sys.close(fd)
		return -1, false, fmt.Errorf("%w: look at it: %w", ErrIO, err)
	}
	if st.Dev != f.dev || st.Ino != f.ino {
		_ = sys.close(fd)
		return -1, false, fmt.Errorf("%w: another file has taken its name", ErrLost)
	}
	return fd, direct, nil
}
