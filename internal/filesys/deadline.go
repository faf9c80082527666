package filesys

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// A frozen device, a stalled mount or a stopped FUSE server lets a call wait for ever, and nothing
// can end such a call: a thread in uninterruptible sleep cannot even be killed. Deadline has each
// call made on a thread of its own and stops waiting for it, so that no caller hangs. The thread
// and what the call was given are left to the call until it returns, be that never.

// MaxHung is how many calls may hang at a time. Each costs a thread, and a transfer its memory; with
// so many, no further call is begun until one returns. (Those under way may come on top.)
const MaxHung = 32

// ticks is into how many parts a wait is cut. Only time in which this process runs counts: after it
// was stopped, or the machine suspended, one part may seem to be over at once, but not the wait.
const ticks = 8

// ErrHang is that a call had no answer by its deadline, or was not begun because others had none.
var ErrHang = errors.New("no answer")

// HangError says which call had no answer.
type HangError struct {
	Call    string        // "write", "open", …
	Path    string        // of the file or directory
	Waited  time.Duration // since when the call, or the one that it was not begun for, hangs
	Because string        // why the call was not begun; "": it was, and hangs

	returned <-chan struct{} // closed when the call has returned; nil: it was not begun
}

func (e *HangError) Error() string {
	if e.Because != "" {
		return fmt.Sprintf("%v: the %s of %s was not begun: %s", ErrHang, e.Call, e.Path, e.Because)
	}
	return fmt.Sprintf("%v in %v to the %s of %s: the file system or its device hangs; try again when it answers (EBB_IO_TIMEOUT: how long ebb waits)",
		ErrHang, e.Waited.Round(time.Millisecond), e.Call, e.Path)
}

// Unwrap makes errors.Is(err, ErrHang) true.
func (e *HangError) Unwrap() error { return ErrHang }

// InUse tells of memory that was given to a call which had no answer: the system may read and write
// it until the channel is closed. nil: it is the caller's again, as after every other error.
func InUse(err error) <-chan struct{} {
	var hang *HangError
	if errors.As(err, &hang) {
		return hang.returned
	}
	return nil
}

// Deadline is a System that waits for an answer no longer than a limit. A call is given up when, for
// so long, neither it was answered nor any transfer in its directory. While calls hang, further
// ones in the same directory are refused at once, until all of them have returned or somebody wants
// to try again (Retry).
type Deadline struct {
	under System
	limit time.Duration

	mu       sync.Mutex // guards the fields below; held over no call
	files    map[int]location
	places   map[string]*place // by directory
	hung     map[*waiting]struct{}
	answered func()
}

// location is where a descriptor leads.
type location struct{ dir, path string }

// place is a directory.
type place struct {
	transfers int64 // that were answered
	hung      int   // calls that hang
	refuse    bool  // no call is begun
}

// waiting is a call under way.
type waiting struct {
	call, path string
	transfer   int // bytes of memory that the call was given; 0: none
	block      bool
	place      *place
	begun      time.Time
	returned   chan struct{}

	// Guarded by Deadline.mu; at most one of them becomes true.
	over    bool // it returned in time
	givenUp bool
}

// NewDeadline makes a system over another one. With a limit of 0 it waits for ever.
func NewDeadline(under System, limit time.Duration) *Deadline {
	return &Deadline{
		under: under, limit: limit,
		files: map[int]location{}, places: map[string]*place{}, hung: map[*waiting]struct{}{},
		answered: func() {},
	}
}

// OnAnswer has f called, on a goroutine of its own, when all calls that hung in a directory have
// returned.
func (d *Deadline) OnAnswer(f func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.answered = f
}

// Retry lets calls be begun again in directories where others still hang.
func (d *Deadline) Retry() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, p := range d.places {
		p.refuse = false
	}
}

// Hung is a call that hangs.
type Hung struct {
	Call, Path string
	Bytes      int // of memory that it was given
	Since      time.Time
}

// Hung lists the calls that were given up and have not returned, the oldest first.
func (d *Deadline) Hung() (list []Hung) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for c := range d.hung {
		list = append(list, Hung{Call: c.call, Path: c.path, Bytes: c.transfer, Since: c.begun})
	}
	slices.SortFunc(list, func(a, b Hung) int { return a.Since.Compare(b.Since) })
	return list
}

// begin enters a call, or says why it is not to be made. Called with mu held.
func (d *Deadline) begin(c *waiting, dir string) error {
	if d.places[dir] == nil {
		d.places[dir] = &place{}
	}
	c.place, c.begun, c.returned = d.places[dir], time.Now(), make(chan struct{})
	refused := &HangError{Call: c.call, Path: c.path}
	switch oldest := d.oldest(c.place); {
	case c.place.refuse && oldest != nil:
		refused.Waited = time.Since(oldest.begun)
		refused.Because = fmt.Sprintf("the %s of %s there hangs since %v", oldest.call, oldest.path, refused.Waited.Round(time.Second))
		return refused
	case len(d.hung) >= MaxHung:
		oldest = d.oldest(nil)
		refused.Waited = time.Since(oldest.begun)
		refused.Because = fmt.Sprintf("%d calls hang, the first since %v (the %s of %s), and no more are begun until one returns",
			len(d.hung), refused.Waited.Round(time.Second), oldest.call, oldest.path)
		return refused
	}
	return nil
}

// oldest is the call that hangs longest in a place, nil for all places. Called with mu held.
func (d *Deadline) oldest(in *place) (found *waiting) {
	for c := range d.hung {
		if (in == nil || c.place == in) && (found == nil || c.begun.Before(found.begun)) {
			found = c
		}
	}
	return found
}

// make makes a call in a directory. late takes what it returns after it was given up.
func makeCall[T any](d *Deadline, c waiting, dir string, do func() (T, error), late func(T)) (v T, err error) {
	if d.limit <= 0 {
		return do()
	}
	d.mu.Lock()
	err = d.begin(&c, dir)
	d.mu.Unlock()
	if err != nil {
		return v, err
	}
	var got T
	var failed error
	go func() {
		defer close(c.returned)
		got, failed = guarded(do)
		if d.inTime(&c) {
			return
		}
		if failed == nil && late != nil {
			late(got)
		}
		d.returned(&c)
	}()
	if !d.await(&c) {
		return v, &HangError{Call: c.call, Path: c.path, Waited: time.Since(c.begun), returned: c.returned}
	}
	return got, failed
}

// guarded turns a panic into an error: on a goroutine of its own it would end the process.
func guarded[T any](do func() (T, error)) (v T, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("internal error in a file call: %v", r)
		}
	}()
	return do()
}

// await waits for a call; false when it was given up.
func (d *Deadline) await(c *waiting) bool {
	tick := d.limit / ticks
	timer := time.NewTimer(tick)
	defer timer.Stop()
	seen := d.transfers(c.place)
	for left := ticks; ; timer.Reset(tick) {
		select {
		case <-c.returned:
			return true
		case <-timer.C:
		}
		if now := d.transfers(c.place); now != seen {
			seen, left = now, ticks
		} else if left--; left == 0 && d.giveUp(c) {
			return false
		}
	}
}

func (d *Deadline) transfers(p *place) int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return p.transfers
}

// giveUp leaves a call to itself, unless it has just returned.
func (d *Deadline) giveUp(c *waiting) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if c.over {
		<-c.returned
		return false
	}
	c.givenUp = true
	c.place.hung++
	c.place.refuse = true
	d.hung[c] = struct{}{}
	return true
}

// inTime ends a call that has returned; false when it was given up.
func (d *Deadline) inTime(c *waiting) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if c.block {
		c.place.transfers++
	}
	c.over = !c.givenUp
	return c.over
}

// returned ends a call that was given up.
func (d *Deadline) returned(c *waiting) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.hung, c)
	if c.place.hung--; c.place.hung == 0 {
		c.place.refuse = false
		go d.answered()
	}
}

// at says where a descriptor leads, as far as it was opened here.
func (d *Deadline) at(fd int) location {
	d.mu.Lock()
	defer d.mu.Unlock()
	if l, known := d.files[fd]; known {
		return l
	}
	return location{path: fmt.Sprintf("descriptor %d", fd)}
}

// in says where a name in a directory leads.
func (d *Deadline) in(dirfd int, name string) location {
	if dirfd == unix.AT_FDCWD {
		return location{dir: filepath.Dir(name), path: name}
	}
	dir := d.at(dirfd)
	return location{dir: dir.dir, path: filepath.Join(dir.path, name)}
}

// only makes a call that has no result but its error.
func (d *Deadline) only(call string, l location, do func() error) error {
	_, err := makeCall(d, waiting{call: call, path: l.path}, l.dir, func() (struct{}, error) { return struct{}{}, do() }, nil)
	return err
}

// fill makes a call that fills a structure. The caller's is written only by a call that returned in
// time.
func fill[T any](d *Deadline, call string, l location, st *T, do func(*T) error) error {
	got, err := makeCall(d, waiting{call: call, path: l.path}, l.dir, func() (*T, error) {
		own := new(T)
		return own, do(own)
	}, nil)
	if err == nil {
		*st = *got
	}
	return err
}

// transfer makes a call that moves a block, or brings blocks to the device.
func (d *Deadline) transfer(call string, fd, memory int, do func() (int, error)) (int, error) {
	l := d.at(fd)
	n, err := makeCall(d, waiting{call: call, path: l.path, transfer: memory, block: true}, l.dir, do, nil)
	if errors.Is(err, ErrHang) {
		n = -1
	}
	return n, err
}

// Mkdir implements System.
func (d *Deadline) Mkdir(path string, mode uint32) error {
	return d.only("creation", location{dir: path, path: path}, func() error { return d.under.Mkdir(path, mode) })
}

// Openat implements System. What a call opens that was given up is closed again; a file that it made
// stays.
func (d *Deadline) Openat(dirfd int, name string, flags int, mode uint32) (int, error) {
	l := d.in(dirfd, name)
	if flags&(unix.O_PATH|unix.O_DIRECTORY) != 0 {
		l.dir = l.path
	}
	fd, err := makeCall(d, waiting{call: "opening", path: l.path}, l.dir,
		func() (int, error) { return d.under.Openat(dirfd, name, flags, mode) },
		func(fd int) { _ = d.under.Close(fd) })
	if err != nil {
		return -1, err
	}
	d.mu.Lock()
	d.files[fd] = l
	d.mu.Unlock()
	return fd, nil
}

// Close implements System. It never refuses: where calls hang it does not wait.
func (d *Deadline) Close(fd int) error {
	l := d.at(fd)
	d.mu.Lock()
	delete(d.files, fd) // the number is free as soon as the kernel has begun
	d.mu.Unlock()
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
	return fill(d, "look-up", d.at(fd), st, func(st *unix.Stat_t) error { return d.under.Fstat(fd, st) })
}

// Fstatat implements System.
func (d *Deadline) Fstatat(dirfd int, name string, st *unix.Stat_t) error {
	return fill(d, "look-up", d.in(dirfd, name), st, func(st *unix.Stat_t) error { return d.under.Fstatat(dirfd, name, st) })
}

// Fstatfs implements System.
func (d *Deadline) Fstatfs(fd int, st *unix.Statfs_t) error {
	return fill(d, "look-up", d.at(fd), st, func(st *unix.Statfs_t) error { return d.under.Fstatfs(fd, st) })
}

// StatxAlign implements System.
func (d *Deadline) StatxAlign(fd int, st *unix.Statx_t) error {
	return fill(d, "look-up", d.at(fd), st, func(st *unix.Statx_t) error { return d.under.StatxAlign(fd, st) })
}

// Names implements System.
func (d *Deadline) Names(dirfd int) ([]string, error) {
	l := d.at(dirfd)
	return makeCall(d, waiting{call: "listing", path: l.path}, l.dir, func() ([]string, error) { return d.under.Names(dirfd) }, nil)
}

// Unlinkat implements System.
func (d *Deadline) Unlinkat(dirfd int, name string) error {
	return d.only("removal", d.in(dirfd, name), func() error { return d.under.Unlinkat(dirfd, name) })
}

// Renameat implements System.
func (d *Deadline) Renameat(dirfd int, from, to string) error {
	return d.only("renaming", d.in(dirfd, from), func() error { return d.under.Renameat(dirfd, from, to) })
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
	return d.transfer("read", fd, cap(p), func() (int, error) { return d.under.Pread(fd, p, off) })
}

// Pwrite implements System.
func (d *Deadline) Pwrite(fd int, p []byte, off int64) (int, error) {
	return d.transfer("write", fd, cap(p), func() (int, error) { return d.under.Pwrite(fd, p, off) })
}

// SetFlags implements System. It asks no disk.
func (d *Deadline) SetFlags(fd, flags int) error { return d.under.SetFlags(fd, flags) }

// SyncRange implements System.
func (d *Deadline) SyncRange(fd int, off, n int64) error {
	_, err := d.transfer("write-back", fd, 0, func() (int, error) { return 0, d.under.SyncRange(fd, off, n) })
	return err
}

// DropCache implements System.
func (d *Deadline) DropCache(fd int, off, n int64) error {
	return d.only("emptying of the cache", d.at(fd), func() error { return d.under.DropCache(fd, off, n) })
}

// Fsync implements System.
func (d *Deadline) Fsync(fd int) error {
	_, err := d.transfer("write-back", fd, 0, func() (int, error) { return 0, d.under.Fsync(fd) })
	return err
}

// Lock implements System.
func (d *Deadline) Lock(fd int, take bool) error {
	return d.only("locking", d.at(fd), func() error { return d.under.Lock(fd, take) })
}
