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
		return fmt.Sprintf("%v: the %s of %s was not begun: %s; try again when it answers", ErrHang, e.Call, e.Path, e.Because)
	}
	return fmt.Sprintf("%v in %v to the %s of %s: the file system or its device hangs; try again when it answers (EBB_IO_TIMEOUT: how long ebb waits)",
		ErrHang, e.Waited.Round(time.Second/10), e.Call, e.Path)
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

// Also joins what failed while an error was dealt with to that error, unless both say that a disk
// gave no answer: one line about it is enough.
func Also(err, further error) error {
	if errors.Is(err, ErrHang) && errors.Is(further, ErrHang) {
		return err
	}
	return errors.Join(err, further)
}

// Free has memory freed that was given to calls of which one ended with err: at once, or when the
// system no longer uses it.
func Free(err error, free func()) {
	returned := InUse(err)
	if returned == nil {
		free()
		return
	}
	go func() {
		<-returned
		free()
	}()
}

// Deadline is a System that waits for an answer no longer than a limit. A call is given up when, for
// so long, neither it was answered nor any transfer in its directory. While calls hang, further
// ones in the same directory are refused at once, until all of them have returned or somebody wants
// to try again (Retry).
type Deadline struct {
	under System
	limit time.Duration

	mu       sync.Mutex // guards the fields below; held over no call
	free     crew
	spare    []*request
	files    map[int]location
	places   map[string]*place // by directory
	hung     map[*request]struct{}
	closing  map[int]bool // descriptors that calls that hang still use, to be closed after them
	answered func()
}

// crew is threads that are free for further calls.
type crew struct {
	work chan *request
	rest chan struct{} // closed when they are to end
}

func newCrew() crew { return crew{work: make(chan *request), rest: make(chan struct{})} }

// location is where a descriptor leads, or a name in a directory that one leads to.
type location struct {
	dir, path string
	fd        int // -1: none
}

// place is a directory.
type place struct {
	transfers int64 // that were answered
	hung      int   // calls that hang
	refuse    bool  // no call is begun
}

// request is a call under way. It is used again, unless it was given up.
type request struct {
	call  string
	at    location
	place *place
	begun time.Time

	do   func() error // makes the call
	late func()       // takes what it returned after it was given up; nil: nothing to take

	// A read or write, in place of do, so that it takes no memory.
	transfer bool
	write    bool
	fd       int
	p        []byte
	off      int64
	n        int

	err   error
	done  chan struct{} // takes one element when it has returned in time
	timer *time.Timer

	// Guarded by Deadline.mu. At most one of them becomes true.
	over    bool // it returned in time
	givenUp bool

	returned chan struct{} // closed when it has returned after it was given up
}

// NewDeadline makes a system over another one. With a limit of 0 it waits for ever.
func NewDeadline(under System, limit time.Duration) *Deadline {
	return &Deadline{
		under: under, limit: limit, free: newCrew(),
		files: map[int]location{}, places: map[string]*place{}, hung: map[*request]struct{}{}, closing: map[int]bool{},
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

// Rest ends the threads that are kept for further calls.
func (d *Deadline) Rest() {
	d.mu.Lock()
	defer d.mu.Unlock()
	close(d.free.rest)
	d.free = newCrew()
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
	for r := range d.hung {
		list = append(list, Hung{Call: r.call, Path: r.at.path, Bytes: cap(r.p), Since: r.begun})
	}
	slices.SortFunc(list, func(a, b Hung) int { return a.Since.Compare(b.Since) })
	return list
}

// request is an empty request for a call at a place.
func (d *Deadline) request(call string, l location) *request {
	var r *request
	d.mu.Lock()
	if last := len(d.spare) - 1; last >= 0 {
		r, d.spare = d.spare[last], d.spare[:last]
	}
	d.mu.Unlock()
	if r == nil {
		r = &request{done: make(chan struct{}, 1), timer: time.NewTimer(time.Hour)}
	}
	*r = request{call: call, at: l, done: r.done, timer: r.timer}
	return r
}

// again lets a request be used again.
func (d *Deadline) again(r *request) {
	d.mu.Lock()
	defer d.mu.Unlock()
	r.p, r.do, r.late = nil, nil, nil
	d.spare = append(d.spare, r)
}

// finish makes a call. An error that is not the call's own says that it was given up, or not begun;
// otherwise the request is the caller's to read, and to give back with again.
func (d *Deadline) finish(r *request) error {
	free, err := d.begin(r)
	if err != nil {
		d.again(r)
		return err
	}
	select {
	case free.work <- r:
	default:
		go d.serve(r, free)
	}
	if !d.await(r) {
		return &HangError{Call: r.call, Path: r.at.path, Waited: time.Since(r.begun), returned: r.returned}
	}
	return nil
}

// begin enters a call, or says why it is not to be made, and who may make it.
func (d *Deadline) begin(r *request) (crew, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	dir := r.at.dir
	if d.places[dir] == nil {
		d.places[dir] = &place{}
	}
	r.place, r.begun = d.places[dir], time.Now()
	refused := func(oldest *request, why string) error {
		waited := time.Since(oldest.begun)
		return &HangError{Call: r.call, Path: r.at.path, Waited: waited,
			Because: fmt.Sprintf("the %s of %s hangs since %v%s", oldest.call, oldest.at.path, waited.Round(time.Second), why)}
	}
	if oldest := d.oldest(r.place); r.place.refuse && oldest != nil {
		return crew{}, refused(oldest, "")
	}
	if len(d.hung) >= MaxHung {
		return crew{}, refused(d.oldest(nil), fmt.Sprintf(", in all %d calls hang, and no more are begun until one returns", len(d.hung)))
	}
	return d.free, nil
}

// oldest is the call that hangs longest in a place, nil for all places. Called with mu held.
func (d *Deadline) oldest(in *place) (found *request) {
	for r := range d.hung {
		if (in == nil || r.place == in) && (found == nil || r.begun.Before(found.begun)) {
			found = r
		}
	}
	return found
}

// serve is a thread that makes calls. One that made a call that was given up ends after it.
func (d *Deadline) serve(r *request, of crew) {
	for d.perform(r) {
		select {
		case r = <-of.work:
		case <-of.rest:
			return
		}
	}
}

// perform makes a call. When it returned in time, the request is its caller's; false: it was given up.
func (d *Deadline) perform(r *request) bool {
	r.err = d.guarded(r)
	d.mu.Lock()
	if r.transfer {
		r.place.transfers++
	}
	r.over = !r.givenUp
	if r.over {
		r.done <- struct{}{}
		d.mu.Unlock()
		return true
	}
	d.mu.Unlock()
	if r.err == nil && r.late != nil {
		r.late()
	}
	d.end(r)
	return false
}

// guarded turns a panic into an error: on a goroutine of its own it would end the process.
func (d *Deadline) guarded(r *request) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("internal error in a file call: %v", p)
		}
	}()
	switch {
	case r.do != nil:
		return r.do()
	case r.write:
		r.n, err = d.under.Pwrite(r.fd, r.p, r.off)
	default:
		r.n, err = d.under.Pread(r.fd, r.p, r.off)
	}
	return err
}

// await waits for a call; false when it was given up.
func (d *Deadline) await(r *request) bool {
	tick := d.limit / ticks
	r.timer.Reset(tick)
	defer r.timer.Stop()
	seen := d.transfers(r.place)
	for left := ticks; ; r.timer.Reset(tick) {
		select {
		case <-r.done:
			return true
		case <-r.timer.C:
		}
		if now := d.transfers(r.place); now != seen {
			seen, left = now, ticks
		} else if left--; left == 0 {
			return !d.giveUp(r)
		}
	}
}

func (d *Deadline) transfers(p *place) int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return p.transfers
}

// giveUp leaves a call to itself, unless it has just returned.
func (d *Deadline) giveUp(r *request) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if r.over {
		<-r.done
		return false
	}
	r.givenUp = true
	r.returned = make(chan struct{})
	r.place.hung++
	r.place.refuse = true
	d.hung[r] = struct{}{}
	return true
}

// end ends a call that was given up.
func (d *Deadline) end(r *request) {
	d.mu.Lock()
	defer d.mu.Unlock()
	close(r.returned)
	delete(d.hung, r)
	if fd := r.at.fd; d.closing[fd] && !d.uses(fd) {
		delete(d.closing, fd)
		go func() { _ = d.under.Close(fd) }()
	}
	if r.place.hung--; r.place.hung == 0 {
		r.place.refuse = false
		go d.answered()
	}
}

// uses reports whether a call that hangs was given a descriptor, whose number must not become that of
// another file meanwhile: the call may not have looked at it yet. Called with mu held.
func (d *Deadline) uses(fd int) bool {
	for r := range d.hung {
		if r.at.fd == fd {
			return true
		}
	}
	return false
}

// at says where a descriptor leads, as far as it was opened here.
func (d *Deadline) at(fd int) location {
	d.mu.Lock()
	defer d.mu.Unlock()
	if l, known := d.files[fd]; known {
		return l
	}
	return location{path: fmt.Sprintf("descriptor %d", fd), fd: fd}
}

// in says where a name in a directory leads.
func (d *Deadline) in(dirfd int, name string) location {
	if dirfd == unix.AT_FDCWD {
		return location{dir: filepath.Dir(name), path: name, fd: -1}
	}
	dir := d.at(dirfd)
	return location{dir: dir.dir, path: filepath.Join(dir.path, name), fd: dirfd}
}

// value makes a call that has a result. late takes one that comes after it was given up.
func value[T any](d *Deadline, name string, l location, do func() (T, error), late func(T)) (v T, err error) {
	if d.limit <= 0 {
		return do()
	}
	var got T // not v, which the caller has when a late answer comes
	r := d.request(name, l)
	r.do = func() (err error) {
		got, err = do()
		return err
	}
	if late != nil {
		r.late = func() { late(got) }
	}
	if err := d.finish(r); err != nil {
		return v, err
	}
	err = r.err
	d.again(r)
	return got, err
}

// Do makes a whole piece of work in a directory, of file calls that are not made through d, as one call:
// it is given up when, for the limit, neither it ended nor Moved was called for the directory. what
// names it for people ("claim", "sweep", …). late takes a result that comes after that; nil: there is
// nothing to take.
func Do[T any](d *Deadline, what, dir string, do func() (T, error), late func(T)) (T, error) {
	return value(d, what, location{dir: dir, path: dir, fd: -1}, do, late)
}

// Moved says that work in a directory goes on, as a transfer there does.
func (d *Deadline) Moved(dir string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if p := d.places[dir]; p != nil {
		p.transfers++
	}
}

// only makes a call that has no result but its error.
func (d *Deadline) only(name string, l location, do func() error) error {
	_, err := value(d, name, l, func() (struct{}, error) { return struct{}{}, do() }, nil)
	return err
}

// fill makes a call that fills a structure. The caller's is written only by a call that returned in
// time.
func fill[T any](d *Deadline, l location, st *T, do func(*T) error) error {
	got, err := value(d, "look-up", l, func() (got T, err error) {
		err = do(&got)
		return got, err
	}, nil)
	if err == nil {
		*st = got
	}
	return err
}

// transfer reads or writes a block.
func (d *Deadline) transfer(name string, write bool, fd int, p []byte, off int64) (int, error) {
	l := d.at(fd)
	r := d.request(name, l)
	r.transfer, r.write, r.fd, r.p, r.off = true, write, fd, p, off
	if err := d.finish(r); err != nil {
		return -1, err
	}
	n, err := r.n, r.err
	d.again(r)
	return n, err
}

// writeBack brings blocks to the device, which counts as a transfer.
func (d *Deadline) writeBack(fd int, do func() error) error {
	if d.limit <= 0 {
		return do()
	}
	l := d.at(fd)
	r := d.request("write-back", l)
	r.transfer, r.do = true, do
	if err := d.finish(r); err != nil {
		return err
	}
	err := r.err
	d.again(r)
	return err
}
