package store

import (
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/ebb-offload/ebb/internal/filesys"
)

// fdCache keeps at most max files open. A descriptor in use is never closed; of those not in
// use, the one unused longest is closed first.
type fdCache struct {
	sys filesys.System
	max int

	mu   sync.Mutex // guards the fields below and those of each diskFile named there
	cond *sync.Cond // a descriptor became idle or was closed
	open int        // descriptors open, or about to be
	held int        // descriptors open
	idle diskFile   // the ring of files open without users: older is the one used last, newer the one unused longest
}

func newFDCache(sys filesys.System, max int) *fdCache {
	c := &fdCache{sys: sys, max: max}
	c.cond = sync.NewCond(&c.mu)
	c.idle.newer, c.idle.older = &c.idle, &c.idle
	return c
}

// rest closes all idle descriptors.
func (c *fdCache) rest() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for f := c.oldest(); f != nil; f = c.oldest() {
		c.closeLocked(f)
	}
	c.cond.Broadcast()
}

// oldest is the idle file unused longest, or nil. Called with mu held.
func (c *fdCache) oldest() *diskFile {
	if f := c.idle.newer; f != &c.idle {
		return f
	}
	return nil
}

// busy takes a file out of the ring of idle ones. Called with mu held.
func (c *fdCache) busy(f *diskFile) {
	if f.newer != nil {
		f.newer.older, f.older.newer = f.older, f.newer
		f.newer, f.older = nil, nil
	}
}

// take waits until one more descriptor may be open and counts it.
func (c *fdCache) take() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.open >= c.max {
		f := c.oldest()
		if f == nil {
			c.cond.Wait()
			continue
		}
		fd := f.fd
		c.forget(f)
		c.mu.Unlock()
		_ = c.sys.Close(fd) // Linux has closed it whatever it reports; writes were checked
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
		if f := c.oldest(); f != nil {
			c.closeLocked(f)
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
	c.busy(f)
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
		if err := filesys.Retry(func() error { return c.sys.SetFlags(f.fd, 0) }); err != nil {
			return -1, false, fmt.Errorf("%w: turn off O_DIRECT: %w", ErrIO, err)
		}
		f.direct = false
	}
	c.busy(f)
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
		f.newer, f.older = &c.idle, c.idle.older
		f.newer.older, f.older.newer = f, f
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
	_ = c.sys.Close(fd)
	c.open--
}
