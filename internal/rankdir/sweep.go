package rankdir

import (
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Sweep reclaims what dead ranks left under a base directory. Live ranks are left alone, and so
// is everything without a marker. dry only reports. A problem with one rank does not keep the
// others from being swept; problems are joined into the error.
func Sweep(base string, dry bool) ([]Report, error) {
	b, err := openBase(base, false)
	if errors.Is(err, unix.ENOENT) {
		return nil, nil // ebb was never here
	}
	if err != nil {
		return nil, fmt.Errorf("sweep %s: %w", base, err)
	}
	defer b.close()
	reports, err := b.sweep(dry)
	if err != nil {
		return reports, fmt.Errorf("sweep %s: %w", b.path, err)
	}
	return reports, nil
}

func (b *baseDir) sweep(dry bool) ([]Report, error) {
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
		rep, err := b.sweepEntry(self, key, dry)
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
		if !dry && isLease && ok && !slices.Contains(list, key+markerSuffix) {
			errs = append(errs, b.sweepLease(id))
		}
	}
	return reports, errors.Join(errs...)
}

// sweepEntry reclaims one rank, if it is dead. The report is nil when the entry vanished.
func (b *baseDir) sweepEntry(self Owner, key string, dry bool) (*Report, error) {
	name := key + markerSuffix
	m, err := b.readMarker(name)
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil, nil
	case errors.Is(err, errMarker):
		return &Report{Dir: filepath.Join(b.path, ebbDir, name), State: KeptForeign, Why: err.Error()}, nil
	case err != nil:
		return nil, fmt.Errorf("read marker %s: %w", name, err)
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
	default:
		return nil, fmt.Errorf("open lease %s: %w", id.LeasePath(b.path), err)
	}
	if dry {
		r := reclaimer{base: b, marker: m, self: self, dry: true, strict: missing}
		found, err := r.run()
		return &found, err
	}

	f, fresh, err := b.lockEntry(id, true)
	if err != nil {
		return nil, err
	}
	defer f.put()
	defer f.unlockChange()
	if err := f.takeDead(); err != nil {
		if busy := (*InUseError)(nil); errors.As(err, &busy) {
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
	r := reclaimer{base: b, marker: m, self: self, strict: fresh}
	found, err := r.run()
	if err == nil {
		err = b.forget(&found, f)
	}
	return &found, err
}

// sweepLease removes a dead lease without a marker: an empty file that a claim or reclaim left
// when it was killed.
func (b *baseDir) sweepLease(id Identity) error {
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

// SweepBare removes from a directory that ebb did not make (one given to ranks without a
// supervisor) the data files whose process is known to be dead. Nothing else in it is touched
// or reported.
func SweepBare(dir string, dry bool) (Report, error) {
	rep := Report{Dir: dir, State: NothingThere}
	fd, err := openat(unix.AT_FDCWD, dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return rep, nil
	}
	if err != nil {
		return rep, fmt.Errorf("sweep %s: %w", dir, err)
	}
	defer func() { _ = unix.Close(fd) }()
	err = rep.sweepBare(fd, local(fd), dry)
	if err != nil {
		return rep, fmt.Errorf("sweep %s: %w", dir, err)
	}
	return rep, nil
}

// sweepBare fills in the report of a bare directory.
func (rep *Report) sweepBare(fd int, local, dry bool) error {
	err := removeDataFiles(fd, rep, func(o Owner) bool { return Dead(o, local) }, dry)
	rep.Left = slices.DeleteFunc(rep.Left, func(name string) bool { return !IsDataFile(name) })
	switch {
	case len(rep.Files) > 0 && dry:
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
