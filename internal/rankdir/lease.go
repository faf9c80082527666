package rankdir

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	ebbfd "github.com/ebb-offload/ebb/internal/fd"
)

// Bytes of a lease file that are locked.
const (
	byteRank       = 0
	byteSupervisor = 1
	byteChange     = 2
)

// ErrInUse says that a live process has the rank. The error is an *InUseError.
var ErrInUse = errors.New("rank is in use")

// InUseError says which process has a rank.
type InUseError struct {
	Path string // lease file
	Who  string // "supervisor", "rank process" or "reclaim"
	PID  int    // 0: in another pid namespace or on another node
}

func (e *InUseError) Error() string {
	pid := fmt.Sprintf("pid %d", e.PID)
	if e.PID <= 0 {
		pid = "in another pid namespace or on another node"
	}
	return fmt.Sprintf("%s: in use by a live %s (%s): end that run, or use another job, role or cell", e.Path, e.Who, pid)
}

// Is makes errors.Is(err, ErrInUse) true.
func (e *InUseError) Is(target error) bool { return target == ErrInUse }

// Lease is an engine process's proof that it lives.
type Lease struct {
	file *leaseFile
	once sync.Once
	err  error
}

// HoldLease locks byte 0 of the lease file at path, shared with the other processes of the
// rank, until Release or the end of the process. The file must exist: the supervisor makes it.
// Nothing else in the process may open the file; closing it anywhere would drop the lock.
func HoldLease(path string) (*Lease, error) {
	l, err := holdLease(path)
	if err != nil {
		return nil, fmt.Errorf("hold lease %s: %w", path, err)
	}
	return l, nil
}

func holdLease(path string) (*Lease, error) {
	dir, err := leaseDir(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = unix.Close(dir) }()
	f, err := openLease(dir, filepath.Base(path), path, false)
	if errors.Is(err, unix.ENOENT) {
		return nil, fmt.Errorf("%w: the rank's supervisor has ended, or the environment is of another run", err)
	}
	if err != nil {
		return nil, err
	}
	if err := f.hold(); err != nil {
		f.put()
		return nil, err
	}
	// A supervisor that found the rank dead removes the file before it lets go of it.
	if !f.named(dir, filepath.Base(path)) {
		err := errors.Join(errors.New("the file was removed meanwhile: the rank's supervisor has ended"), f.unhold())
		f.put()
		return nil, err
	}
	return &Lease{file: f}, nil
}

// leaseDir opens the directory of a lease. As for a claim, neither it nor the base directory may be a
// symlink: through one that took its place meanwhile, the lock would be on another base's lease.
func leaseDir(path string) (int, error) {
	const flags = unix.O_PATH | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	dir := filepath.Dir(path)
	base, err := openat(unix.AT_FDCWD, filepath.Dir(dir), flags, 0)
	if err != nil {
		return -1, err
	}
	defer func() { _ = unix.Close(base) }()
	return openat(base, filepath.Base(dir), flags, 0)
}

// Release gives the lease up. Idempotent.
func (l *Lease) Release() error {
	l.once.Do(func() {
		l.err = l.file.unhold()
		l.file.put()
	})
	return l.err
}

// leaseFile is this process's only descriptor of a lease file.
type leaseFile struct {
	id   fileID
	path string // for people
	fd   int
	on   *leases

	refs  int   // guarded by on.mu
	spare []int // more descriptors of the file, not to be closed before refs is 0; same guard

	change sync.Mutex // what byte 2 is between processes, within this one; guards the rest
	held   int        // holders of byte 0 in this process
	claim  bool       // a claim of this process holds byte 1
}

// leases are the lease files of one file system that this process has open. The lock is held over opening
// and closing them, is taken last, and is one for each file system: one that gives no answer does not keep
// the process from its leases on others.
type leases struct {
	mu   sync.Mutex
	open map[fileID]*leaseFile
}

var leaseSystems = struct {
	mu sync.Mutex // held over no call
	of map[uint64]*leases
}{of: map[uint64]*leases{}}

// leasesIn returns those of the file system that a directory lies on.
func leasesIn(dir int) (*leases, error) {
	var st unix.Stat_t
	if err := retry(func() error { return unix.Fstat(dir, &st) }); err != nil {
		return nil, err
	}
	leaseSystems.mu.Lock()
	defer leaseSystems.mu.Unlock()
	on := leaseSystems.of[st.Dev]
	if on == nil {
		on = &leases{open: map[fileID]*leaseFile{}}
		leaseSystems.of[st.Dev] = on
	}
	return on, nil
}

// openLease opens a lease file or shares the descriptor that the process has. The caller calls
// put.
func openLease(dir int, name, path string, create bool) (*leaseFile, error) {
	on, err := leasesIn(dir)
	if err != nil {
		return nil, err
	}
	on.mu.Lock()
	defer on.mu.Unlock()
	for range 1000 {
		var st unix.Stat_t
		err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW)
		if err != nil && !(create && errors.Is(err, unix.ENOENT)) {
			return nil, err
		}
		flags := unix.O_RDWR | unix.O_NOFOLLOW | unix.O_CLOEXEC | unix.O_NONBLOCK
		if err == nil {
			if err := checkLease(&st); err != nil {
				return nil, err
			}
			if f := on.open[idOf(&st)]; f != nil {
				f.refs++
				return f, nil
			}
		} else {
			flags |= unix.O_CREAT | unix.O_EXCL
		}
		fd, err := openat(dir, name, flags, 0o600)
		if errors.Is(err, unix.EEXIST) || create && errors.Is(err, unix.ENOENT) {
			continue // made or removed meanwhile
		}
		if err != nil {
			return nil, err
		}
		if err := unix.Fstat(fd, &st); err != nil {
			// Which file it is is not known, so neither is what closing it would drop.
			return nil, err
		}
		if f := on.open[idOf(&st)]; f != nil {
			f.spare = append(f.spare, fd)
			f.refs++
			return f, nil
		}
		if err := checkLease(&st); err != nil {
			_ = unix.Close(fd)
			return nil, err
		}
		// No lock of this process is on the file yet that moving it could drop.
		if fd, err = ebbfd.AboveStreams(fd); err != nil {
			return nil, err
		}
		f := &leaseFile{id: idOf(&st), path: path, fd: fd, on: on, refs: 1}
		on.open[f.id] = f
		return f, nil
	}
	return nil, errors.New("it is made and removed again and again, or its directory is gone")
}

// errLease says that what has the name of a lease is none.
var errLease = errors.New("it is no lease")

func checkLease(st *unix.Stat_t) error {
	if st.Mode&unix.S_IFMT != unix.S_IFREG || int(st.Uid) != os.Geteuid() {
		return fmt.Errorf("%w: not a plain file of user %d (mode %o, owner %d)", errLease, os.Geteuid(), st.Mode, st.Uid)
	}
	return nil
}

// ours reports whether a descriptor still is the file. A program that closes descriptors it does
// not know closes this one too, which drops the locks, and its next file may get the number.
func (f *leaseFile) ours(fd int) bool {
	var st unix.Stat_t
	return unix.Fstat(fd, &st) == nil && idOf(&st) == f.id
}

// put gives back one reference; the last one closes the file, which drops all its locks.
func (f *leaseFile) put() {
	f.on.mu.Lock()
	defer f.on.mu.Unlock()
	f.refs--
	if f.refs > 0 {
		return
	}
	delete(f.on.open, f.id)
	for _, fd := range append(f.spare, f.fd) {
		if f.ours(fd) {
			_ = unix.Close(fd)
		}
	}
}

// named reports whether a name still is the file.
func (f *leaseFile) named(dir int, name string) bool {
	var st unix.Stat_t
	err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	return err == nil && idOf(&st) == f.id
}

// hold takes byte 0 for one more holder of this process.
func (f *leaseFile) hold() error {
	f.change.Lock()
	defer f.change.Unlock()
	if f.held == 0 {
		if err := f.lock(byteRank, unix.F_RDLCK, "reclaim"); err != nil {
			return err
		}
	}
	f.held++
	return nil
}

func (f *leaseFile) unhold() error {
	f.change.Lock()
	defer f.change.Unlock()
	f.held--
	if f.held > 0 || !f.ours(f.fd) {
		return nil
	}
	return f.unlock(byteRank)
}

// lock takes a byte without waiting. who names those who hold it otherwise.
func (f *leaseFile) lock(at int64, kind int16, who string) error {
	lk := unix.Flock_t{Type: kind, Whence: unix.SEEK_SET, Start: at, Len: 1}
	err := retry(func() error { return unix.FcntlFlock(uintptr(f.fd), unix.F_SETLK, &lk) })
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
		pid, _ := f.holder(at, kind)
		return &InUseError{Path: f.path, Who: who, PID: pid}
	}
	if err != nil {
		return fmt.Errorf("lock %s: %w: the file system must support POSIX record locks", f.path, err)
	}
	return nil
}

func (f *leaseFile) unlock(at int64) error {
	lk := unix.Flock_t{Type: unix.F_UNLCK, Whence: unix.SEEK_SET, Start: at, Len: 1}
	return retry(func() error { return unix.FcntlFlock(uintptr(f.fd), unix.F_SETLK, &lk) })
}

// holder returns a process, other than this one, whose lock keeps this one from the byte.
func (f *leaseFile) holder(at int64, kind int16) (pid int, found bool) {
	lk := unix.Flock_t{Type: kind, Whence: unix.SEEK_SET, Start: at, Len: 1}
	err := retry(func() error { return unix.FcntlFlock(uintptr(f.fd), unix.F_GETLK, &lk) })
	if err != nil || lk.Type == unix.F_UNLCK {
		return 0, false
	}
	return int(lk.Pid), true
}

// changeWait is how long to wait for another process that changes an entry. A change takes
// milliseconds, unless its process is stopped.
const changeWait = 10 * time.Second

// lockChange begins a change of the entry: one at a time on the node.
func (f *leaseFile) lockChange() error {
	f.change.Lock()
	deadline := time.Now().Add(changeWait)
	for {
		err := f.lock(byteChange, unix.F_WRLCK, "reclaim")
		if err == nil {
			return nil
		}
		if !errors.Is(err, ErrInUse) || time.Now().After(deadline) {
			f.change.Unlock()
			return err
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// unlockChange ends it.
func (f *leaseFile) unlockChange() {
	_ = f.unlock(byteChange) // fails only where locking had failed
	f.change.Unlock()
}

// takeDead write-locks bytes 1 and 0, which is possible only when the rank is dead. Called
// between lockChange and unlockChange.
func (f *leaseFile) takeDead() error {
	if f.claim {
		return &InUseError{Path: f.path, Who: "supervisor", PID: os.Getpid()}
	}
	if err := f.lock(byteSupervisor, unix.F_WRLCK, "supervisor"); err != nil {
		return err
	}
	if err := f.takeRank(); err != nil {
		_ = f.unlock(byteSupervisor)
		return err
	}
	return nil
}

// takeRank write-locks byte 0, which is possible only when no engine process of the rank lives.
func (f *leaseFile) takeRank() error {
	if f.held > 0 {
		return &InUseError{Path: f.path, Who: "rank process", PID: os.Getpid()}
	}
	return f.lock(byteRank, unix.F_WRLCK, "rank process")
}

// user returns who has the rank, without locking anything; nil when it is dead.
func (f *leaseFile) user() *InUseError {
	f.change.Lock()
	defer f.change.Unlock()
	if f.claim {
		return &InUseError{Path: f.path, Who: "supervisor", PID: os.Getpid()}
	}
	if f.held > 0 {
		return &InUseError{Path: f.path, Who: "rank process", PID: os.Getpid()}
	}
	if pid, found := f.holder(byteSupervisor, unix.F_WRLCK); found {
		return &InUseError{Path: f.path, Who: "supervisor", PID: pid}
	}
	if pid, found := f.holder(byteRank, unix.F_WRLCK); found {
		return &InUseError{Path: f.path, Who: "rank process", PID: pid}
	}
	return nil
}
