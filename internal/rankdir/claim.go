package rankdir

import (
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// ClaimOptions are what NewClaim can be told.
type ClaimOptions struct {
	// Reclaimed, if not nil, is told what a dead predecessor of the same identity had left.
	Reclaimed func(Report)
	// Discard gives the blocks of files back before their names go, where that can be done.
	Discard bool
	// Progress, if not nil, is called each time a file was looked at or removed.
	Progress func()
}

// sweep is how a claim removes what is not needed any more.
func (o ClaimOptions) sweep() SweepOptions {
	return SweepOptions{Discard: o.Discard, Progress: o.Progress}
}

// Claim is a supervisor's hold on a rank directory, from before the rank starts until Reclaim.
type Claim struct {
	base   *baseDir
	file   *leaseFile
	marker *marker
	how    SweepOptions

	mu   sync.Mutex // guards done
	done bool       // given up
}

// NewClaim makes the rank directory of an identity under a base directory and locks byte 1 of
// its lease. What a dead predecessor left there is reclaimed first. A live one is ErrInUse; a
// directory that ebb may not use is a *DirError, a bad identity an *IdentityError.
func NewClaim(base string, id Identity, o ClaimOptions) (*Claim, error) {
	c, err := newClaim(base, id, o)
	if err != nil {
		return nil, fmt.Errorf("claim the rank directory of %v: %w", id, err)
	}
	return c, nil
}

func newClaim(path string, id Identity, o ClaimOptions) (_ *Claim, err error) {
	if err := id.Validate(); err != nil {
		return nil, err
	}
	self, err := Self()
	if err != nil {
		return nil, err
	}
	base, err := openBase(path, true)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			base.close()
		}
	}()
	file, fresh, err := base.lockEntry(id, true)
	if err != nil {
		return nil, err
	}
	defer func() {
		file.unlockChange()
		if err != nil {
			file.put()
		}
	}()
	if err := file.takeDead(); err != nil {
		return nil, err
	}
	defer func() {
		_ = file.unlock(byteRank)
		if err != nil {
			_ = file.unlock(byteSupervisor)
		}
	}()
	m := &marker{Version: markerVersion, Identity: id, Dir: id.Path(base.path), Base: base.id, Supervisor: self, Host: hostname()}
	if err := base.enterRank(m, fresh, o); err != nil {
		return nil, errors.Join(err, base.forgetLease(id, file))
	}
	file.claim = true
	return &Claim{base: base, file: file, marker: m, how: o.sweep()}, nil
}

// lockEntry opens an identity's lease file and begins a change of the entry. fresh: the file
// was made now. The caller calls unlockChange and put.
func (b *baseDir) lockEntry(id Identity, create bool) (f *leaseFile, fresh bool, err error) {
	name := id.key() + leaseSuffix
	for {
		var st unix.Stat_t
		fresh = errors.Is(unix.Fstatat(b.ebb, name, &st, unix.AT_SYMLINK_NOFOLLOW), unix.ENOENT)
		f, err = openLease(b.ebb, name, id.LeasePath(b.path), create)
		if err != nil {
			return nil, false, fmt.Errorf("open lease %s: %w", id.LeasePath(b.path), err)
		}
		if err := f.lockChange(); err != nil {
			f.put()
			return nil, false, err
		}
		if f.named(b.ebb, name) {
			return f, fresh, nil
		}
		// Reclaimed, and removed, while this process waited for it.
		f.unlockChange()
		f.put()
	}
}

// enterRank reclaims what the marker of a dead predecessor proves to be ebb's, makes the rank
// directory and writes m. Called with the entry locked and the rank dead.
func (b *baseDir) enterRank(m *marker, fresh bool, o ClaimOptions) error {
	id := m.Identity
	prev, err := b.readMarker(id.key() + markerSuffix)
	if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, errMarker) {
		return fmt.Errorf("read marker %s: %w", id.MarkerPath(b.path), err)
	}
	var r reclaimer
	var rep Report
	if prev != nil {
		r = reclaimer{base: b, marker: prev, self: m.Supervisor, how: o.sweep(), strict: fresh}
		if rep, err = r.run(); err != nil {
			return err
		}
		if o.Reclaimed != nil && rep.State != NothingThere {
			o.Reclaimed(rep)
		}
	}
	found, err := b.inspect(id, r.proven, rep.Why)
	if err != nil {
		return err
	}
	if found == (dirID{}) {
		// Announced before it is made, so that a claim killed in between leaves proof.
		if err := b.writeMarker(m); err != nil {
			return err
		}
		found, err = b.makeRank(id)
	}
	m.RankDir = found
	if err == nil {
		err = b.writeMarker(m)
	}
	if err != nil {
		return errors.Join(err, b.undo(m))
	}
	return nil
}

// undo takes back what a failed claim made.
func (b *baseDir) undo(m *marker) error {
	r := reclaimer{base: b, marker: m, self: m.Supervisor}
	rep, err := r.run()
	if err != nil || rep.State != Reclaimed && rep.State != NothingThere {
		return err
	}
	return b.remove(m.Identity.key() + markerSuffix)
}

// inspect returns the rank directory that is there already, or zero. It may be used when it is
// proven to be one that ebb made (and that stays because of foreign files), or empty. why says
// what kept a predecessor's directory from being reclaimed.
func (b *baseDir) inspect(id Identity, proven dirID, why string) (dirID, error) {
	path := id.Path(b.path)
	job, _, err := openDir(b.fd, id.Job, filepath.Dir(path))
	if errors.Is(err, unix.ENOENT) {
		return dirID{}, nil
	}
	if err != nil {
		return dirID{}, err
	}
	defer func() { _ = unix.Close(job) }()
	dir, found, err := openDir(job, id.dirName(), path)
	if errors.Is(err, unix.ENOENT) {
		return dirID{}, nil
	}
	if err != nil {
		return dirID{}, err
	}
	defer func() { _ = unix.Close(dir) }()
	list, err := names(dir)
	if err != nil {
		return dirID{}, fmt.Errorf("list directory %s: %w", path, err)
	}
	if len(list) > 0 && found != proven {
		if why == "" {
			why = "for example " + printable(list[0])
		}
		return dirID{}, &DirError{Path: path, Kind: ErrForeign, Detail: why, Remedy: "use another job name or disk directory, or move the directory away"}
	}
	return found, nil
}

// makeRank makes the rank directory, and the job's if it is missing.
func (b *baseDir) makeRank(id Identity) (dirID, error) {
	path := id.Path(b.path)
	for {
		job, _, err := b.sub(b.fd, id.Job, filepath.Dir(path), true)
		if err != nil {
			return dirID{}, err
		}
		err = retry(func() error { return unix.Mkdirat(job, id.dirName(), 0o700) })
		var made dirID
		if err == nil {
			made, err = identify(job, id.dirName())
		}
		_ = unix.Close(job)
		if errors.Is(err, unix.ENOENT) {
			continue // another rank of the job left and took the job's directory along
		}
		if err != nil {
			return dirID{}, fmt.Errorf("create directory %s: %w", path, err)
		}
		return made, nil
	}
}

// Identity is whose claim this is.
func (c *Claim) Identity() Identity { return c.marker.Identity }

// Dir is the absolute path of the rank directory.
func (c *Claim) Dir() string { return c.marker.Identity.Path(c.base.path) }

// LeasePath is the absolute path of the lease file.
func (c *Claim) LeasePath() string { return c.marker.Identity.LeasePath(c.base.path) }

// Env is what the rank's environment says of the claim.
func (c *Claim) Env() map[string]string {
	return map[string]string{"TMS_DISK_BACKUP_DIR": c.Dir(), "EBB_LEASE": c.LeasePath()}
}

// Reclaim removes the rank's data files, its directory, marker and lease, and gives up the
// claim. While an engine process of the rank lives it is ErrInUse, with the process in
// HeldBy, nothing is removed, and Reclaim can be called again. What is not ebb's stays, and
// the marker with it. After Reclaim or Close it does nothing.
func (c *Claim) Reclaim() (Report, error) {
	rep, err := c.reclaim()
	if err != nil {
		return rep, fmt.Errorf("reclaim %s: %w", c.Dir(), err)
	}
	return rep, nil
}

func (c *Claim) reclaim() (Report, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	rep := Report{Dir: c.Dir(), Identity: c.Identity()}
	if c.done {
		rep.State = NothingThere
		return rep, nil
	}
	self, err := Self()
	if err != nil {
		return rep, err
	}
	if err := c.file.lockChange(); err != nil {
		return rep, err
	}
	defer c.file.unlockChangeOf(c)
	if err := c.file.takeRank(); err != nil {
		if busy := (*InUseError)(nil); errors.As(err, &busy) {
			rep.State, rep.HeldBy, rep.Why = Live, busy.PID, busy.Error()
		}
		return rep, err
	}
	defer func() { _ = c.file.unlock(byteRank) }()
	r := reclaimer{base: c.base, marker: c.marker, self: self, how: c.how}
	rep, err = r.run()
	if err == nil {
		err = c.base.forget(&rep, c.file)
	}
	if err == nil {
		c.done = true
	}
	return rep, err
}

// forget removes maps, marker and lease of a rank whose directory is gone. The lease goes last: until
// then its locks keep others from the entry.
func (b *baseDir) forget(rep *Report, f *leaseFile) error {
	if rep.State != Reclaimed && rep.State != NothingThere {
		return nil
	}
	key := rep.Identity.key()
	if err := b.removeMaps(key); err != nil {
		return err
	}
	for _, name := range []string{key + markerSuffix + tempSuffix, key + markerSuffix} {
		if err := b.remove(name); err != nil {
			return err
		}
	}
	return b.forgetLease(rep.Identity, f)
}

// mapName is the end of the name of a process's map (package parked), or of the file that names its control
// socket (package control), behind the key of its rank.
var mapName = regexp.MustCompile(`^\.[0-9]{1,10}-[0-9]{1,20}\.(map(\.tmp)?|control)$`)

// removeMaps removes the maps of what a rank's processes had parked, and what named their control sockets.
func (b *baseDir) removeMaps(key string) error {
	list, err := names(b.ebb)
	if err != nil {
		return err
	}
	for _, name := range list {
		if end, ours := strings.CutPrefix(name, key); ours && mapName.MatchString(end) {
			if err := b.remove(name); err != nil {
				return err
			}
		}
	}
	return nil
}

// forgetLease removes the lease of an identity without a marker.
func (b *baseDir) forgetLease(id Identity, f *leaseFile) error {
	var st unix.Stat_t
	err := unix.Fstatat(b.ebb, id.key()+markerSuffix, &st, unix.AT_SYMLINK_NOFOLLOW)
	if !errors.Is(err, unix.ENOENT) || !f.named(b.ebb, id.key()+leaseSuffix) {
		return nil
	}
	return b.remove(id.key() + leaseSuffix)
}

// Close gives up the claim and leaves everything in place, for a later claim of the same
// identity or a sweep to reclaim. Idempotent.
func (c *Claim) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.done {
		return
	}
	c.done = true
	c.file.change.Lock()
	c.file.unlockChangeOf(c)
}

// unlockChangeOf ends a change by a claim, and the claim with it when it is done.
func (f *leaseFile) unlockChangeOf(c *Claim) {
	if c.done {
		f.claim = false
		_ = f.unlock(byteSupervisor)
	}
	f.unlockChange()
	if c.done {
		f.put()
		c.base.close()
	}
}
