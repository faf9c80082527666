package filesys

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Faults is a System whose calls fail as they are told to. It counts the calls by name; without
// faults that is all it does.
type Faults struct {
	under  System
	counts [nCalls]atomic.Int64
	active atomic.Bool // there are rules; so that a call without them takes no lock

	mu    sync.Mutex // guards the fields below
	cond  *sync.Cond // a call hangs, or no call hangs any more
	rules []rule
	sets  int // how often rules were set: a call hangs until the next time
	hung  int // calls that hang
	hits  int
}

// NewFaults makes a system without faults over another one.
func NewFaults(under System) *Faults {
	f := &Faults{under: under}
	f.cond = sync.NewCond(&f.mu)
	return f
}

// Set replaces the faults by those of a text in the language of Parse; the counts begin anew, and
// calls that hang go on.
func (f *Faults) Set(spec string) error {
	rules, err := parse(spec)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rules, f.hits = rules, 0
	f.sets++
	f.cond.Broadcast()
	for i := range f.counts {
		f.counts[i].Store(0)
	}
	f.active.Store(len(rules) > 0)
	return nil
}

// Calls are how often each call was made since Set; those never made are left out.
func (f *Faults) Calls() map[string]int {
	made := map[string]int{}
	for c := range nCalls {
		if n := int(f.counts[c].Load()); n > 0 {
			made[names[c]] = n
		}
	}
	return made
}

// Hits is how many calls were made to fail since Set.
func (f *Faults) Hits() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.hits
}

// AwaitHang waits until a call hangs.
func (f *Faults) AwaitHang() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for f.hung == 0 {
		f.cond.Wait()
	}
}

// step counts a call and says what befalls it; delays and hangs are over when it returns.
func (f *Faults) step(c call) effect {
	f.counts[c].Add(1)
	if !f.active.Load() {
		return effect{}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	var found effect
	for i := range f.rules {
		r := &f.rules[i]
		if r.call != c && r.call != anyCall {
			continue
		}
		if r.seen++; found.kind == none && r.meets() {
			found = r.effect
		}
	}
	if found.kind == none {
		return found
	}
	f.hits++
	switch found.kind {
	case delay:
		f.mu.Unlock()
		time.Sleep(found.delay)
		f.mu.Lock()
		return effect{}
	case hang:
		f.hung++
		f.cond.Broadcast()
		for sets := f.sets; sets == f.sets; {
			f.cond.Wait()
		}
		f.hung--
		return effect{}
	case raise:
		f.mu.Unlock()
		send(found.signal)
		f.mu.Lock()
		return effect{}
	}
	return found
}

// send sends this process a signal. To the calling thread, so that what cannot be blocked takes effect
// here; but others to the process, since threads of Go in a foreign program block them.
func send(sig unix.Signal) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if sig == unix.SIGSTOP || sig == unix.SIGKILL {
		_ = unix.Tgkill(unix.Getpid(), unix.Gettid(), sig) // of this very thread: it cannot fail
		return
	}
	_ = unix.Kill(unix.Getpid(), sig)
}

// fails is step for calls that can only fail.
func (f *Faults) fails(c call) error { return f.step(c).err }

// Mkdir implements System.
func (f *Faults) Mkdir(path string, own int, mode uint32) error {
	if err := f.fails(mkdir); err != nil {
		return err
	}
	return f.under.Mkdir(path, own, mode)
}

// Opendir implements System.
func (f *Faults) Opendir(path string, own int) (int, error) {
	if err := f.fails(opendirCall); err != nil {
		return -1, err
	}
	return f.under.Opendir(path, own)
}

// Openat implements System.
func (f *Faults) Openat(dirfd int, name string, flags int, mode uint32) (int, error) {
	c := open
	if flags&(unix.O_PATH|unix.O_DIRECTORY) != 0 {
		c = opendirCall
	}
	switch e := f.step(c); {
	case e.kind == noDirect && flags&unix.O_DIRECT != 0:
		// Kernels make the file before they refuse the flag.
		fd, err := f.under.Openat(dirfd, name, flags&^unix.O_DIRECT, mode)
		if err != nil {
			return -1, err
		}
		_ = f.under.Close(fd)
		return -1, e.refusal
	case e.err != nil:
		return -1, e.err
	}
	return f.under.Openat(dirfd, name, flags, mode)
}

// Close implements System: it closes although it reports a fault, as Linux does.
func (f *Faults) Close(fd int) error {
	err := f.fails(closing)
	if e2 := f.under.Close(fd); err == nil {
		err = e2
	}
	return err
}

// Fstat implements System.
func (f *Faults) Fstat(fd int, st *unix.Stat_t) error {
	if err := f.fails(fstat); err != nil {
		return err
	}
	return f.under.Fstat(fd, st)
}

// Fstatat implements System.
func (f *Faults) Fstatat(dirfd int, name string, st *unix.Stat_t) error {
	if err := f.fails(fstatat); err != nil {
		return err
	}
	return f.under.Fstatat(dirfd, name, st)
}

// Fstatfs implements System.
func (f *Faults) Fstatfs(fd int, st *unix.Statfs_t) error {
	if err := f.fails(fstatfs); err != nil {
		return err
	}
	return f.under.Fstatfs(fd, st)
}

// StatxAlign implements System.
func (f *Faults) StatxAlign(fd int, st *unix.Statx_t) error {
	e := f.step(statx)
	if e.err != nil {
		return e.err
	}
	err := f.under.StatxAlign(fd, st)
	if e.kind == align && err == nil {
		st.Mask |= unix.STATX_DIOALIGN
		st.Dio_mem_align, st.Dio_offset_align = uint32(e.n), uint32(e.n)
	}
	return err
}

// Names implements System.
func (f *Faults) Names(dirfd int) ([]string, error) {
	if err := f.fails(readdir); err != nil {
		return nil, err
	}
	return f.under.Names(dirfd)
}

// Unlinkat implements System.
func (f *Faults) Unlinkat(dirfd int, name string) error {
	if err := f.fails(unlink); err != nil {
		return err
	}
	return f.under.Unlinkat(dirfd, name)
}

// Renameat implements System.
func (f *Faults) Renameat(dirfd int, from, to string) error {
	if err := f.fails(rename); err != nil {
		return err
	}
	return f.under.Renameat(dirfd, from, to)
}

// Exchange implements System: as a rename.
func (f *Faults) Exchange(dirfd int, a, b string) error {
	if err := f.fails(rename); err != nil {
		return err
	}
	return f.under.Exchange(dirfd, a, b)
}

// Rmdirat implements System.
func (f *Faults) Rmdirat(dirfd int, name string) error {
	if err := f.fails(rmdir); err != nil {
		return err
	}
	return f.under.Rmdirat(dirfd, name)
}

// Clone implements System.
func (f *Faults) Clone(to int, at int64, from int, off, n int64) error {
	if err := f.fails(clone); err != nil {
		return err
	}
	return f.under.Clone(to, at, from, off, n)
}

// Fchmod implements System.
func (f *Faults) Fchmod(fd int, mode uint32) error {
	if err := f.fails(fchmod); err != nil {
		return err
	}
	return f.under.Fchmod(fd, mode)
}

// Fallocate implements System.
func (f *Faults) Fallocate(fd int, size int64) error {
	if err := f.fails(fallocate); err != nil {
		return err
	}
	return f.under.Fallocate(fd, size)
}

// Discard implements System.
func (f *Faults) Discard(fd int, size int64) error {
	if err := f.fails(discardCall); err != nil {
		return err
	}
	return f.under.Discard(fd, size)
}

// Ftruncate implements System.
func (f *Faults) Ftruncate(fd int, size int64) error {
	if err := f.fails(ftruncate); err != nil {
		return err
	}
	return f.under.Ftruncate(fd, size)
}

// Pread implements System.
func (f *Faults) Pread(fd int, p []byte, off int64) (int, error) {
	e := f.step(pread)
	if err := e.refuses(fd, p, off); err != nil {
		return -1, err
	}
	want := len(p)
	if e.kind == short {
		want = e.whole(want)
	}
	n, err := f.under.Pread(fd, p[:want], off)
	if err != nil || n == 0 {
		return n, err
	}
	switch e.kind {
	case short:
		n = min(n, e.moved(len(p)))
	case flip:
		p[0] ^= 1
	case torn:
		clear(p[e.moved(n):n]) // the rest never came
	}
	return n, nil
}

// Pwrite implements System.
func (f *Faults) Pwrite(fd int, p []byte, off int64) (int, error) {
	e := f.step(pwrite)
	if err := e.refuses(fd, p, off); err != nil {
		return -1, err
	}
	if e.kind == flip && len(p) > 0 {
		p[0] ^= 1 // no one else looks at p during the call
		defer func() { p[0] ^= 1 }()
	}
	want := len(p)
	if e.kind == short || e.kind == torn {
		want = e.whole(want)
	}
	n, err := f.under.Pwrite(fd, p[:want], off)
	switch {
	case err != nil:
	case e.kind == short:
		n = min(n, e.moved(len(p)))
	case e.kind == torn:
		n = len(p)
	}
	return n, err
}

// SetFlags implements System.
func (f *Faults) SetFlags(fd, flags int) error {
	if err := f.fails(setfl); err != nil {
		return err
	}
	return f.under.SetFlags(fd, flags)
}

// SyncRange implements System.
func (f *Faults) SyncRange(fd int, off, n int64) error {
	if err := f.fails(syncRange); err != nil {
		return err
	}
	return f.under.SyncRange(fd, off, n)
}

// DropCache implements System.
func (f *Faults) DropCache(fd int, off, n int64) error {
	if err := f.fails(fadvise); err != nil {
		return err
	}
	return f.under.DropCache(fd, off, n)
}

// Fsync implements System.
func (f *Faults) Fsync(fd int) error {
	if err := f.fails(fsync); err != nil {
		return err
	}
	return f.under.Fsync(fd)
}

// Lock implements System.
func (f *Faults) Lock(fd int, take bool) error {
	if err := f.fails(lock); err != nil {
		return err
	}
	return f.under.Lock(fd, take)
}

// LockDir implements System.
func (f *Faults) LockDir(fd int, take bool) error {
	if err := f.fails(lock); err != nil {
		return err
	}
	return f.under.LockDir(fd, take)
}

// unit is what transfers past the page cache are multiples of, in bytes.
const unit = 4096

// moved is how many of n bytes a short or torn transfer moves: as many as were named, or else
// half of them, in whole units.
func (e effect) moved(n int) int {
	if e.given {
		return min(n, e.n)
	}
	return n / 2 / unit * unit
}

// whole is how many of n bytes the kernel is asked to move for that: direct I/O moves whole units.
func (e effect) whole(n int) int {
	return min(n, (e.moved(n)+unit-1)/unit*unit)
}

// refuses is the error of a transfer that does not happen.
func (e effect) refuses(fd int, p []byte, off int64) error {
	if e.err != nil {
		return e.err
	}
	if e.kind != noDirect && e.kind != align {
		return nil
	}
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err != nil || flags&unix.O_DIRECT == 0 {
		return err
	}
	if e.kind == align && off%int64(e.n) == 0 && len(p)%e.n == 0 {
		return nil
	}
	return e.refusal
}
