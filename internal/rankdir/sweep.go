package rankdir

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// SweepOptions are what Sweep and SweepBare can be told.
type SweepOptions struct {
	Dry     bool // only report
	Discard bool // give the blocks of files back before their names go, where that can be done
	// Empty: SweepBare removes directories that are named as those of ranks are and have nothing in them.
	Empty bool
	// Progress, if not nil, is called each time a file was looked at or removed.
	Progress func()
}

// moved says that a sweep goes on.
func (o SweepOptions) moved() {
	if o.Progress != nil {
		o.Progress()
	}
}

// Sweep reclaims what dead ranks left under a base directory. Live ranks are left alone, and so
// is everything without a marker. A problem with one rank does not keep the others from being
// swept; problems are joined into the error.
func Sweep(base string, how SweepOptions) ([]Report, error) {
	b, err := openBase(base, false)
	if errors.Is(err, unix.ENOENT) {
		return nil, nil // ebb was never here
	}
	if err != nil {
		return nil, fmt.Errorf("sweep %s: %w", base, err)
	}
	defer b.close()
	reports, err := b.sweep(how)
	if err != nil {
		return reports, fmt.Errorf("sweep %s: %w", b.path, err)
	}
	return reports, nil
}

func (b *baseDir) sweep(how SweepOptions) ([]Report, error) {
	self, err := Self()
	if err != nil {
		return nil, err
	}
	list, err := names(b.ebb)
	if err != nil {
		return nil, err
	}
	var reports []Report
	var errs []error
	for _, name := range list {
		key, isMarker := strings.CutSuffix(name, markerSuffix)
		if !isMarker {
			continue
		}
		rep, err := b.sweepEntry(self, key, how)
		how.moved()
		if err != nil {
			errs = append(errs, err)
		}
		if rep != nil {
			reports = append(reports, *rep)
		}
	}
	for _, name := range list {
		key, isLease := strings.CutSuffix(name, leaseSuffix)
		id, ok := parseKey(key)
		if !isLease || !ok || slices.Contains(list, key+markerSuffix) {
			continue
		}
		switch err := b.sweepLease(id, how.Dry); {
		case errors.Is(err, errLease):
			reports = append(reports, Report{Dir: id.LeasePath(b.path), Identity: id, State: KeptForeign, Why: err.Error()})
		case err != nil:
			errs = append(errs, err)
		}
	}
	return reports, errors.Join(errs...)
}

// sweepEntry reclaims one rank, if it is dead. The report is nil when the entry vanished.
func (b *baseDir) sweepEntry(self Owner, key string, how SweepOptions) (*Report, error) {
	name := key + markerSuffix
	m, err := b.readMarker(name)
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil, nil
	case errors.Is(err, errMarker):
		return &Report{Dir: filepath.Join(b.path, ebbDir, printable(name)), State: KeptForeign, Why: err.Error()}, nil
	case err != nil:
		return nil, fmt.Errorf("read marker %s: %w", printable(name), err)
	}
	id := m.Identity
	rep := &Report{Dir: id.Path(b.path), Identity: id}
	live := func(busy *InUseError) (*Report, error) {
		rep.State, rep.HeldBy, rep.Why = Live, busy.PID, busy.Error()
		return rep, nil
	}

	// A live rank is recognised without a lock that others might run into.
	missing := false
	f, err := openLease(b.ebb, key+leaseSuffix, id.LeasePath(b.path), false)
	switch {
	case err == nil:
		busy := f.user()
		f.put()
		if busy != nil {
			return live(busy)
		}
	case errors.Is(err, unix.ENOENT):
		missing = true
	case errors.Is(err, errLease):
		rep.State, rep.Why = KeptForeign, fmt.Sprintf("%s: %v", id.LeasePath(b.path), err)
		return rep, nil
	default:
		return nil, fmt.Errorf("open lease %s: %w", id.LeasePath(b.path), err)
	}
	if how.Dry {
		r := reclaimer{base: b, marker: m, self: self, how: how, strict: missing}
		found, err := r.run()
		return &found, err
	}

	busy := (*InUseError)(nil)
	f, fresh, err := b.lockEntry(id, true)
	if errors.As(err, &busy) { // somebody changes the entry, and was stopped in the middle of it
		return live(busy)
	}
	if err != nil {
		return nil, err
	}
	defer f.put()
	defer f.unlockChange()
	if err := f.takeDead(); err != nil {
		if errors.As(err, &busy) {
			return live(busy)
		}
		return nil, err
	}
	defer func() {
		_ = f.unlock(byteRank)
		_ = f.unlock(byteSupervisor)
	}()
	// What was read before the lock may have been reclaimed by another, or claimed anew.
	m, err = b.readMarker(name)
	if errors.Is(err, unix.ENOENT) {
		return nil, b.remove(key + leaseSuffix)
	}
	if err != nil {
		return nil, fmt.Errorf("read marker %s: %w", name, err)
	}
	r := reclaimer{base: b, marker: m, self: self, how: how, strict: fresh}
	found, err := r.run()
	if err == nil {
		err = b.forget(&found, f)
	}
	return &found, err
}

// sweepLease removes a dead lease without a marker: an empty file that a claim or reclaim left
// when it was killed. What is no lease is errLease.
func (b *baseDir) sweepLease(id Identity, dry bool) error {
	if dry {
		return b.lookAtLease(id)
	}
	f, _, err := b.lockEntry(id, false)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.put()
	defer f.unlockChange()
	if err := f.takeDead(); errors.Is(err, ErrInUse) {
		return nil
	} else if err != nil {
		return err
	}
	defer func() {
		_ = f.unlock(byteRank)
		_ = f.unlock(byteSupervisor)
	}()
	var st unix.Stat_t
	if err := unix.Fstatat(b.ebb, id.key()+markerSuffix, &st, unix.AT_SYMLINK_NOFOLLOW); !errors.Is(err, unix.ENOENT) {
		return err
	}
	if err := unix.Fstat(f.fd, &st); err != nil || st.Size > 0 || st.Nlink != 1 {
		return err
	}
	if err := b.remove(id.key() + markerSuffix + tempSuffix); err != nil {
		return err
	}
	return b.remove(id.key() + leaseSuffix)
}

func (b *baseDir) lookAtLease(id Identity) error {
	var st unix.Stat_t
	err := unix.Fstatat(b.ebb, id.key()+leaseSuffix, &st, unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err == nil {
		err = checkLease(&st)
	}
	return err
}

var dirName = regexp.MustCompile(`^(.+)_cell([0-9]{1,9})_rank([0-9]{1,9})$`)

// parseKey is the inverse of Identity.key.
func parseKey(key string) (Identity, bool) {
	joint := strings.LastIndex(key, "__")
	if joint < 0 {
		return Identity{}, false
	}
	m := dirName.FindStringSubmatch(key[joint+2:])
	if m == nil {
		return Identity{}, false
	}
	cell, _ := strconv.Atoi(m[2]) // nine digits
	rank, _ := strconv.Atoi(m[3])
	id := Identity{Job: key[:joint], Role: m[1], Cell: cell, Rank: rank}
	return id, id.Validate() == nil && id.key() == key
}

// OfLease takes the path of a lease apart: the base directory, and whose lease it is.
func OfLease(path string) (base string, id Identity, ok bool) {
	dir, name := filepath.Split(path)
	dir = filepath.Clean(dir)
	key, isLease := strings.CutSuffix(name, leaseSuffix)
	id, ok = parseKey(key)
	return filepath.Dir(dir), id, ok && isLease && filepath.Base(dir) == ebbDir
}

// OfDir takes the path of a rank directory apart: the base directory, and whose it is. A path of another
// form is none that ebb named.
func OfDir(path string) (base string, id Identity, ok bool) {
	job, rank := filepath.Split(filepath.Clean(path))
	job = filepath.Clean(job)
	id, ok = parseKey(filepath.Base(job) + "__" + rank)
	return filepath.Dir(job), id, ok && filepath.IsAbs(path)
}

// SweepBare removes the data files whose process is known to be dead from a directory that ebb
// did not make (one given to ranks without a supervisor), and from the directories below it that
// are named as rank directories are: <dir>/<job>/<role>_cell<C>_rank<R>. Those of the reports in
// seen are left out. With Empty such a directory that is empty then goes too, and its job's with the last
// one: a rank that lives makes them anew when it pauses. Nothing else is touched or reported, and no symlink is followed, even one that
// takes a directory's place meanwhile.
func SweepBare(dir string, seen []Report, how SweepOptions) ([]Report, error) {
	base, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("sweep %s: %w", dir, err)
	}
	fd, err := openBelow(unix.AT_FDCWD, base)
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("sweep %s: %w", base, err)
	}
	defer func() { _ = unix.Close(fd) }()
	s := bareSweep{seen: seen, how: how}
	s.sweep(fd, base)
	jobs, err := names(fd)
	if err != nil {
		s.fail(base, err)
	}
	for _, job := range jobs {
		s.job(fd, job, filepath.Join(base, job))
	}
	return s.reports, errors.Join(s.errs...)
}

// SweepFiles is SweepBare for the directory itself, and not those below it.
func SweepFiles(dir string, how SweepOptions) ([]Report, error) {
	path, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("sweep %s: %w", dir, err)
	}
	fd, err := openBelow(unix.AT_FDCWD, path)
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("sweep %s: %w", path, err)
	}
	defer func() { _ = unix.Close(fd) }()
	s := bareSweep{how: how}
	s.sweep(fd, path)
	return s.reports, errors.Join(s.errs...)
}

// SweepOwn removes the data files of one process from an open directory. The caller knows that the process
// has no use for them. path is for people.
func SweepOwn(fd int, path string, owner Owner, how SweepOptions) (Report, error) {
	rep := Report{Dir: printable(path), State: NothingThere}
	err := removeDataFiles(fd, &rep, func(o Owner) bool { return o.FilePrefix() == owner.FilePrefix() }, how)
	rep.Left = nil // not that process's
	if len(rep.Files) > 0 {
		rep.State = Reclaimed
	}
	return rep, err
}

// bareSweep is one SweepBare.
type bareSweep struct {
	seen    []Report
	how     SweepOptions
	reports []Report
	errs    []error
}

func (s *bareSweep) fail(path string, err error) {
	s.errs = append(s.errs, fmt.Errorf("sweep %s: %w", printable(path), err))
}

// job sweeps the rank directories of what may be a job's directory.
func (s *bareSweep) job(base int, name, path string) {
	fd, err := openBelow(base, name)
	if err != nil {
		return // no directory, or somebody else's
	}
	defer func() { _ = unix.Close(fd) }()
	ranks, err := names(fd)
	if err != nil {
		s.fail(path, err)
		return
	}
	ours := defaultJob.MatchString(name)
	for _, rank := range ranks {
		if dirName.MatchString(rank) {
			s.how.moved()
			s.rank(fd, rank, filepath.Join(path, rank))
			if !leased(base, name, rank) { // a claim that is under way has its lease first
				ours = s.removeEmpty(fd, rank, filepath.Join(path, rank)) || ours
			}
		}
	}
	if ours {
		s.removeEmpty(base, name, path)
	}
}

// defaultJob is the name of a job that nobody named: see launch.DefaultJob.
var defaultJob = regexp.MustCompile(`^run-[0-9]+-[0-9]+-[0-9a-f]{8}$`)

// leased says whether a rank directory has a lease, or may have one.
func leased(base int, job, rank string) bool {
	var st unix.Stat_t
	ebb, err := openBelow(base, ebbDir)
	if err == nil {
		err = retry(func() error { return unix.Fstatat(ebb, job+"__"+rank+leaseSuffix, &st, unix.AT_SYMLINK_NOFOLLOW) })
		_ = unix.Close(ebb)
	}
	return !errors.Is(err, unix.ENOENT)
}

// removeEmpty removes an empty directory of this user that is as ebb makes them, unless it is one of the reports.
func (s *bareSweep) removeEmpty(parent int, name, path string) bool {
	if !s.how.Empty || s.how.Dry || slices.ContainsFunc(s.seen, func(r Report) bool { return r.Dir == path }) {
		return false
	}
	var st unix.Stat_t
	err := retry(func() error { return unix.Fstatat(parent, name, &st, unix.AT_SYMLINK_NOFOLLOW) })
	if err != nil || st.Mode != unix.S_IFDIR|0o700 || int(st.Uid) != os.Geteuid() {
		return false
	}
	return retry(func() error { return unix.Unlinkat(parent, name, unix.AT_REMOVEDIR) }) == nil // else it has something in it
}

func (s *bareSweep) rank(job int, name, path string) {
	if slices.ContainsFunc(s.seen, func(r Report) bool { return r.Dir == path }) {
		return
	}
	fd, err := openBelow(job, name)
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP):
		return
	case err != nil:
		s.fail(path, err)
		return
	}
	defer func() { _ = unix.Close(fd) }()
	s.sweep(fd, path)
}

func (s *bareSweep) sweep(fd int, path string) {
	rep := Report{Dir: printable(path), State: NothingThere}
	if err := rep.sweepBare(fd, local(fd), s.how); err != nil {
		s.fail(path, err)
	}
	if rep.State != NothingThere {
		s.reports = append(s.reports, rep)
	}
}

// openBelow opens a directory within another, and only if it is one itself.
func openBelow(parent int, name string) (int, error) {
	return openat(parent, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
}

// sweepBare fills in the report of a bare directory.
func (rep *Report) sweepBare(fd int, local bool, how SweepOptions) error {
	err := removeDataFiles(fd, rep, func(o Owner) bool { return Dead(o, local) }, how)
	rep.Left = slices.DeleteFunc(rep.Left, func(name string) bool { return !IsDataFile(name) })
	switch {
	case len(rep.Files) > 0 && how.Dry:
		rep.State = Reclaimable
	case len(rep.Files) > 0:
		rep.State = Reclaimed
	case len(rep.Left) > 0:
		rep.State = KeptForeign
	}
	if len(rep.Left) > 0 {
		rep.Why = "the process of a data file lives, or cannot be known to be dead"
	}
	return err
}
