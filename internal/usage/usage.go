// Package usage counts what the ranks of all jobs hold in a disk directory, and what they have
// written there, so that a quota can be kept and wear be told.
//
// <base>/.ebb/usage has a record for each process. Whoever changes it locks it whole, with a lock
// of its open file description (which is dropped when the process ends, and which no other
// descriptor of the process drops), and holds the lock while room is counted and taken, not while it is
// used: room counts from before a file is made until after it is removed.
//
// A process that ended has given nothing back. Its record stays true as long as its files are there;
// they are counted anew when room is short. The record goes with the rank's supervisor (Collect), or
// when somebody needs its place and the rank has neither files nor lease.
package usage

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ebb-offload/ebb/internal/filesys"
	"github.com/ebb-offload/ebb/internal/rankdir"
	"github.com/ebb-offload/ebb/internal/sizes"
)

const (
	ebbDir   = ".ebb"
	fileName = "usage"
)

// How long to wait for others that count. They take microseconds, unless one is stopped. Whoever takes room
// with a quota must know what others have; what is only told can be told by the next call, what is tidied by
// the next ebb gc, and room without a quota is taken without waiting at all.
const (
	lockWait = 10 * time.Second
	tidyWait = time.Second
	tellWait = 200 * time.Millisecond
)

// ErrLocked is that of a file that others keep locked for longer than counting takes.
var ErrLocked = errors.New("it stays locked: a process that counts was stopped (fuser names it)")

// QuotaError is room that a quota does not leave.
type QuotaError struct {
	Dir               string // disk directory
	Quota, Held, Need uint64
	Holders           []Record // who holds it, the largest first
}

func (e *QuotaError) Error() string {
	s := fmt.Sprintf("ebb's quota (--offload-train-disk-quota-gb) of %s is %s, of which %s are taken, and %s more are needed",
		e.Dir, size(e.Quota), size(e.Held), size(e.Need))
	for i, h := range e.Holders {
		if i == holdersShown {
			s += fmt.Sprintf(" and %d more", len(e.Holders)-i)
			break
		}
		s += [...]string{": ", ", "}[min(i, 1)] + fmt.Sprintf("%s by %s", size(h.Held), h.name())
	}
	return s + "; raise the quota, or let others resume first"
}

// Limit says that nothing is wrong with the disk: see store.Limit.
func (e *QuotaError) Limit() {}

const holdersShown = 8

// Left is what the quota leaves.
func (e *QuotaError) Left() uint64 { return e.Quota - min(e.Quota, e.Held) }

// size is a number of bytes for people, in the powers of 1000 that the quota is given in.
func size(n uint64) string { return sizes.Decimal(n) }

// Path is that of the file of a disk directory.
func Path(base string) string { return filepath.Join(base, ebbDir, fileName) }

// Table is this process's part in the file of one disk directory. All methods may be called from any
// goroutine.
type Table struct {
	sys  filesys.System
	base string // disk directory
	rank string // "": see Alone
	self rankdir.Owner

	mu      sync.Mutex    // guards the fields below; held over a transaction
	file    *file         // nil: not open
	place   int           // of this process's record; -1: it has none yet
	waited  time.Duration // in vain, for the lock: until it can be had nobody waits for that long again
	held    uint64
	written uint64
	untold  bool // the record in the file is older than these two
	alone   alone
}

// NewTable makes a table; it opens nothing yet. base is the disk directory, rank the directory of the
// rank in it.
func NewTable(sys filesys.System, base, rank string, self rankdir.Owner) *Table {
	return &Table{sys: sys, base: base, rank: rank, self: self, place: -1}
}

// Take counts n more bytes as held by this process, if all processes together then hold no more than
// the quota; 0: no quota. The error is a *QuotaError when they would.
func (t *Table) Take(n, quota uint64) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.rank == "" {
		return t.takeAlone(n, quota)
	}
	if quota == 0 {
		t.held += n
		if err := t.change(0, nil, nil); err != nil && !errors.Is(err, ErrLocked) {
			t.held -= n
			return t.explain("take room", err)
		}
		return nil
	}
	err := t.change(lockWait, func(list []Record) error {
		var held uint64
		for _, r := range list {
			held += r.Held
		}
		if held+n > quota {
			list = t.recount(list)
			held = 0
			for _, r := range list {
				held += r.Held
			}
		}
		if held+n <= quota {
			return nil
		}
		return refusal(t.base, quota, held, n, list)
	}, func() { t.held += n })
	if err != nil {
		return t.explain("take room", err)
	}
	return nil
}

func refusal(dir string, quota, held, need uint64, list []Record) *QuotaError {
	list = slices.DeleteFunc(slices.Clone(list), func(r Record) bool { return r.Held == 0 })
	slices.SortFunc(list, func(a, b Record) int { return -compare(a.Held, b.Held) })
	return &QuotaError{Dir: dir, Quota: quota, Held: held, Need: need, Holders: list}
}

func compare(a, b uint64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// Give counts n bytes as given back.
func (t *Table) Give(n uint64) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.held -= min(n, t.held) // true whether or not it can be told now; the next change tells it
	if t.rank == "" {
		return nil
	}
	err := t.outside(func() error { return t.change(tellWait, nil, nil) })
	if errors.Is(err, ErrLocked) {
		return nil
	}
	return t.explain("give back room", err)
}

// Wrote notes how much this process has written in all.
func (t *Table) Wrote(total uint64) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if total == t.written && !t.untold || t.rank == "" {
		return nil
	}
	t.written = total
	return t.explain("count what was written", t.outside(func() error { return t.change(tellWait, nil, nil) }))
}

// outside closes the file again that a change opened. Called with mu held.
func (t *Table) outside(change func() error) error {
	was := t.file
	err := change()
	if was == nil {
		t.rest()
	}
	return err
}

func (t *Table) explain(what string, err error) error {
	var quota *QuotaError
	if err == nil || errors.As(err, &quota) {
		return err
	}
	return fmt.Errorf("%s in %s: %w", what, Path(t.base), err)
}

// Rest closes the file, which Take leaves open for the next Take.
func (t *Table) Rest() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rest()
}

func (t *Table) rest() {
	if t.file != nil {
		t.file.close()
		t.file = nil
	}
}

// change writes this process's record while others are kept from the file. check may refuse with
// what all records say; commit changes the record. Called with mu held.
func (t *Table) change(wait time.Duration, check func([]Record) error, commit func()) error {
	t.untold = true
	f, err := t.lock(wait)
	if err != nil {
		return err
	}
	defer f.unlock()
	list, err := f.readGood(t.base)
	if err != nil {
		return err
	}
	if t.place < 0 || t.place >= len(list) || !list[t.place].is(t.rank, t.self) {
		if t.place, err = t.settle(f, list); err != nil {
			return err
		}
	}
	if check != nil {
		if err := check(list); err != nil {
			return err
		}
	}
	held := t.held
	if commit != nil {
		commit()
	}
	err = f.write(t.place, Record{Rank: t.rank, Owner: t.self, Held: t.held, Written: t.written})
	if err != nil && commit != nil {
		t.held = held
	}
	t.untold = err != nil
	return err
}

// lock opens the file, if it is not open, and locks it. One that was removed meanwhile is opened
// anew.
func (t *Table) lock(wait time.Duration) (*file, error) {
	for {
		if t.file == nil {
			f, err := open(t.sys, t.base, true)
			if err != nil {
				return nil, err
			}
			t.file = f
		}
		named, err := t.file.lock(max(wait-t.waited, 0))
		if errors.Is(err, ErrLocked) {
			t.waited = max(t.waited, wait)
		} else {
			t.waited = 0
		}
		if err != nil {
			t.file.close()
			t.file = nil
			return nil, err
		}
		if named {
			return t.file, nil
		}
		t.file.close()
		t.file = nil
	}
}

// settle finds a place for this process's record.
func (t *Table) settle(f *file, list []Record) (int, error) {
	for i := range list {
		if list[i].Rank == "" || list[i].is(t.rank, t.self) {
			return i, nil
		}
	}
	for i := range list {
		if t.over(f, &list[i]) {
			list[i] = Record{}
			return i, nil
		}
	}
	if len(list) == maxRecords {
		return 0, fmt.Errorf("%d processes have records in it", len(list))
	}
	return len(list), nil
}

// over says whether nobody needs a record any more: its process has ended and left no files, and its
// rank has no supervisor that would ask for it.
func (t *Table) over(f *file, r *Record) bool {
	if !rankdir.Dead(r.Owner, f.local) || f.leased(r.Rank) {
		return false
	}
	n, err := f.holds(t.base, r)
	return err == nil && n == 0
}

// recount looks at the files of processes that have ended. What cannot be looked at keeps its count.
func (t *Table) recount(list []Record) []Record {
	list = slices.Clone(list)
	for i := range list {
		r := &list[i]
		if r.Held == 0 || sameProcess(r.Owner, t.self) || !rankdir.Dead(r.Owner, t.file.local) {
			continue
		}
		if n, err := t.file.holds(t.base, r); err == nil && n < r.Held {
			r.Held = n
			_ = t.file.write(i, *r)
		}
	}
	return list
}

// Written sums up what the processes of some ranks have written to a disk directory.
func Written(base string, ranks []string) (total uint64, err error) {
	err = inspect(base, lockWait, func(_ *file, list []Record) error {
		for _, r := range list {
			if slices.Contains(ranks, r.Rank) {
				total += r.Written
			}
		}
		return nil
	})
	return total, err
}

// Collect removes the records of ranks that have ended, and the file with the last one.
func Collect(base string, ranks []string) error {
	return inspect(base, lockWait, func(f *file, list []Record) error {
		left := 0
		for i, r := range list {
			switch {
			case r.Rank == "":
			case slices.Contains(ranks, r.Rank) && rankdir.Dead(r.Owner, f.local):
				if err := f.write(i, Record{}); err != nil {
					return err
				}
			default:
				left++
			}
		}
		if left > 0 {
			return nil
		}
		return f.sys.Unlinkat(f.ebb, fileName)
	})
}

// Tidy removes the records of processes that have ended and left neither files nor a lease, and the
// file with the last one. Where that cannot be done now (ErrLocked), it is as good the next time.
func Tidy(base string) error {
	return inspect(base, tidyWait, func(f *file, list []Record) error {
		t := Table{base: base, place: -1}
		left := 0
		for i := range list {
			switch {
			case list[i].Rank == "":
			case t.over(f, &list[i]):
				if err := f.write(i, Record{}); err != nil {
					return err
				}
			default:
				left++
			}
		}
		if left > 0 {
			return nil
		}
		return f.sys.Unlinkat(f.ebb, fileName)
	})
}

// inspect calls look with the file locked, if there is one, and waits for the lock so long.
func inspect(base string, wait time.Duration, look func(*file, []Record) error) error {
	sys := filesys.Kernel{}
	f, err := open(sys, base, false)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err == nil {
		defer f.close()
		var named bool
		var list []Record
		if named, err = f.lock(wait); err == nil && named {
			defer f.unlock()
			if list, err = f.readGood(base); err == nil {
				err = look(f, list)
			}
		}
	}
	if err != nil {
		return fmt.Errorf("count what ranks wrote (%s): %w", Path(base), err)
	}
	return nil
}

// file is the open file.
type file struct {
	sys     filesys.System
	ebb, fd int
	ino     uint64
	local   bool // only this node writes to it
}

// open opens the file of a disk directory. create: it is made where it is missing, and .ebb too.
func open(sys filesys.System, base string, create bool) (*file, error) {
	dir := filepath.Join(base, ebbDir)
	flags := unix.O_RDWR | unix.O_NOFOLLOW | unix.O_CLOEXEC | unix.O_NONBLOCK
	ebb, err := opendir(sys, base, ebbDir)
	if create {
		flags |= unix.O_CREAT
		if errors.Is(err, unix.ENOENT) {
			if err = filesys.Retry(func() error { return sys.Mkdir(dir, 2, 0o700) }); err != nil && !errors.Is(err, unix.EEXIST) {
				return nil, err
			}
			ebb, err = opendir(sys, base, ebbDir)
		}
	}
	if err != nil {
		return nil, err
	}
	fd, err := openat(sys, ebb, fileName, flags)
	if err != nil {
		_ = sys.Close(ebb)
		return nil, err
	}
	f := &file{sys: sys, ebb: ebb, fd: fd, local: rankdir.Local(ebb)}
	var st unix.Stat_t
	err = filesys.Retry(func() error { return sys.Fstat(fd, &st) })
	if err == nil && (st.Mode&unix.S_IFMT != unix.S_IFREG || int(st.Uid) != os.Geteuid() || st.Mode&0o077 != 0) {
		err = fmt.Errorf("not a plain file that only user %d may use (mode %o, owner %d)", os.Geteuid(), st.Mode, st.Uid)
	}
	if err != nil {
		f.close()
		return nil, err
	}
	f.ino = st.Ino
	return f, nil
}

// opendir opens a directory below a disk directory, in whose path from there on no link is followed.
func opendir(sys filesys.System, base, below string) (fd int, err error) {
	own := 1
	if below != "" {
		own += 1 + strings.Count(below, "/")
	}
	err = filesys.Retry(func() error {
		fd, err = sys.Opendir(filepath.Join(base, below), own)
		return err
	})
	return fd, err
}

func openat(sys filesys.System, dir int, name string, flags int) (fd int, err error) {
	err = filesys.Retry(func() error {
		fd, err = sys.Openat(dir, name, flags, 0o600)
		return err
	})
	return fd, err
}

func (f *file) close() {
	_ = f.sys.Close(f.fd)
	_ = f.sys.Close(f.ebb)
}

// lock takes the lock, waiting for it so long; named says whether the name still is this file.
func (f *file) lock(wait time.Duration) (named bool, err error) {
	if err := await(wait, func() error { return f.sys.Lock(f.fd, true) }); err != nil {
		return false, fmt.Errorf("lock it: %w", err)
	}
	var st unix.Stat_t
	err = filesys.Retry(func() error { return f.sys.Fstatat(f.ebb, fileName, &st) })
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	if err != nil {
		f.unlock()
		return false, err
	}
	return st.Ino == f.ino, nil
}

// await takes a lock by a call that does not wait.
func await(wait time.Duration, lock func() error) error {
	deadline := time.Now().Add(wait)
	for {
		err := filesys.Retry(lock)
		if err == nil || !errors.Is(err, unix.EAGAIN) {
			return err
		}
		if !time.Now().Before(deadline) {
			return fmt.Errorf("%w: %w", ErrLocked, err)
		}
		time.Sleep(200 * time.Microsecond)
	}
}

func (f *file) unlock() { _ = filesys.Retry(func() error { return f.sys.Lock(f.fd, false) }) }

// read reads all records.
func (f *file) read() ([]Record, error) {
	p := make([]byte, 64*recordBytes)
	n := 0
	for {
		got, err := f.sys.Pread(f.fd, p[n:], int64(n))
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return nil, err
		}
		if n += got; got == 0 {
			return decodeAll(p[:n])
		}
		if n == len(p) {
			p = append(p, make([]byte, len(p))...)
		}
	}
}

// readGood is read, and mends records that say nothing, by the files that are there: what they hold is
// counted for whoever has no other record. What those processes had written is forgotten.
func (f *file) readGood(base string) (list []Record, err error) {
	isDamaged := func(r Record) bool { return r.Rank == damaged }
	for range 2 { // it may have been the way
		if list, err = f.read(); err != nil || !slices.ContainsFunc(list, isDamaged) {
			return list, err
		}
	}
	lost, err := f.unaccounted(base, list)
	if err != nil {
		return nil, err
	}
	for i := range list {
		if list[i].Rank != damaged {
			continue
		}
		list[i] = Record{}
		if len(lost) > 0 {
			list[i], lost = lost[0], lost[1:]
		}
		if err := f.write(i, list[i]); err != nil {
			return nil, err
		}
	}
	for _, r := range lost {
		if err := f.write(len(list), r); err != nil {
			return nil, err
		}
		list = append(list, r)
	}
	return list, nil
}

// unaccounted are records of processes that have files under the disk directory and none.
func (f *file) unaccounted(base string, list []Record) (lost []Record, err error) {
	jobs, err := f.list(base, "")
	for _, job := range jobs {
		ranks, _ := f.list(base, job) // else it is no job's
		for _, rank := range ranks {
			names, _ := f.list(base, filepath.Join(job, rank))
			for _, name := range names {
				owner, _, ours := rankdir.ParseDataFile(name)
				if !ours {
					continue
				}
				r := Record{Rank: filepath.Join(job, rank), Owner: owner}
				known := func(o Record) bool {
					return o.Rank == r.Rank && strings.HasPrefix(name, o.Owner.FilePrefix())
				}
				if !slices.ContainsFunc(list, known) && !slices.ContainsFunc(lost, known) {
					if r.Held, err = f.holds(base, &r); err != nil {
						return nil, err
					}
					lost = append(lost, r)
				}
			}
		}
	}
	return lost, err
}

// list lists a directory below a disk directory, and nothing of one that is a link, or is not there.
func (f *file) list(base, below string) ([]string, error) {
	dir, err := opendir(f.sys, base, below)
	if err != nil {
		return nil, err
	}
	names, err := f.sys.Names(dir)
	_ = f.sys.Close(dir)
	return names, err
}

// write writes one record.
func (f *file) write(place int, r Record) error {
	p, off := r.encode(), int64(place)*recordBytes
	for len(p) > 0 {
		n, err := f.sys.Pwrite(f.fd, p, off)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		if n <= 0 {
			return unix.EIO
		}
		p, off = p[n:], off+int64(n)
	}
	return nil
}

// leased says whether a rank may have a supervisor.
func (f *file) leased(rank string) bool {
	var st unix.Stat_t
	name := strings.ReplaceAll(rank, "/", "__") + ".lease"
	return !errors.Is(f.sys.Fstatat(f.ebb, name, &st), unix.ENOENT)
}

// holds is the size of the files that a record's process left.
func (f *file) holds(base string, r *Record) (total uint64, err error) {
	if strings.Contains(r.Rank, "..") {
		return 0, errRecord
	}
	dir, err := opendir(f.sys, base, r.Rank)
	if errors.Is(err, unix.ENOENT) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer func() { _ = f.sys.Close(dir) }()
	names, err := f.sys.Names(dir)
	if err != nil {
		return 0, err
	}
	for _, name := range names {
		if !strings.HasPrefix(name, r.Owner.FilePrefix()) {
			continue
		}
		var st unix.Stat_t
		if err := f.sys.Fstatat(dir, name, &st); err == nil {
			total += uint64(st.Size)
		} else if !errors.Is(err, unix.ENOENT) {
			return 0, err
		}
	}
	return total, nil
}
