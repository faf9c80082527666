package rankdir

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/ebb-offload/ebb/internal/discard"
)

// State is what became of a directory.
type State string

const (
	Live         State = "live"          // a process has it; untouched
	Reclaimed    State = "reclaimed"     // ebb's files and the directory are gone
	Reclaimable  State = "reclaimable"   // the same, but for a dry run
	KeptForeign  State = "kept"          // something stays: see Left and Why
	NothingThere State = "nothing-there" // only the marker was left
)

// Report says what was found in one rank directory (or bare directory), and what was removed.
// In a dry run it says what would be. Names that would not print as they are are quoted.
type Report struct {
	Dir      string   `json:"dir"`
	Identity Identity `json:"identity,omitzero"` // zero for a bare directory
	State    State    `json:"state"`
	HeldBy   int      `json:"held_by,omitempty"` // pid, when live and in this pid namespace
	Files    []string `json:"files,omitempty"`   // names of data files removed
	Bytes    uint64   `json:"bytes"`             // disk space they took
	// Discarded is the part of Bytes whose blocks were given back before the names went, where that
	// was asked for, and Undiscarded says why the rest was not.
	Discarded   uint64   `json:"discarded,omitempty"`
	Undiscarded string   `json:"undiscarded,omitempty"`
	Left        []string `json:"left,omitempty"` // names that stay
	Why         string   `json:"why,omitempty"`  // reason for live and kept
}

// reclaimer removes what a dead rank left. The entry is locked and the rank dead.
type reclaimer struct {
	base   *baseDir
	marker *marker
	self   Owner
	how    SweepOptions
	// strict: the lease file was missing, so that its locks prove nothing. Then every file's
	// owner must be known to be dead.
	strict bool

	proven dirID // set by run: the directory that is there and that ebb made
}

// run fills in the report. An error means that the state is not known in full.
func (r *reclaimer) run() (Report, error) {
	id := r.marker.Identity
	rep := Report{Dir: id.Path(r.base.path), Identity: id}
	keep := func(why string) (Report, error) {
		rep.State, rep.Why = KeptForeign, why
		return rep, nil
	}
	sameBoot := r.marker.Supervisor.BootID == r.self.BootID
	if !sameBoot && !r.base.local && r.marker.Host != hostname() {
		return keep(fmt.Sprintf("made on host %s, and the file system may be shared with it: reclaim it there", printable(r.marker.Host)))
	}
	same := func(a, b dirID) bool {
		return a.Ino == b.Ino && a.Born == b.Born && (a.Dev == b.Dev || !sameBoot) // devices are numbered anew
	}
	if !same(r.marker.Base, r.base.id) {
		return keep("the marker is of another base directory")
	}

	job, _, err := openDir(r.base.fd, id.Job, filepath.Dir(rep.Dir))
	if errors.Is(err, unix.ENOENT) {
		rep.State = NothingThere
		return rep, nil
	}
	if err != nil {
		return r.unusable(rep, err)
	}
	defer func() { _ = unix.Close(job) }()
	dir, found, err := openDir(job, id.dirName(), rep.Dir)
	if errors.Is(err, unix.ENOENT) {
		rep.State = NothingThere
		return rep, r.removeJob()
	}
	if err != nil {
		return r.unusable(rep, err)
	}
	defer func() { _ = unix.Close(dir) }()

	// A marker without the directory's identity was written just before the directory was
	// made: it proves nothing about files. One with another identity does not either, but there
	// the names of data files do: a rank that removes its directory has it made anew when it
	// pauses again.
	announced := r.marker.RankDir == dirID{}
	replaced := !announced && !same(r.marker.RankDir, found)
	mine := r.mine
	switch {
	case announced:
		mine = func(Owner) bool { return false }
	case replaced:
		mine = r.provenMine
	default:
		r.proven = found
	}
	if err := removeDataFiles(dir, &rep, mine, r.how); err != nil {
		return rep, err
	}
	switch {
	case len(rep.Left) > 0 && replaced:
		return keep(fmt.Sprintf("another directory has taken its place, and %s not ebb's to remove", counted(len(rep.Left))))
	case len(rep.Left) > 0:
		return keep(counted(len(rep.Left)) + " not ebb's to remove")
	case replaced && !private(dir):
		return keep("another directory has taken its place, and not one that ebb made")
	}
	rep.State = Reclaimable
	if r.how.Dry {
		return rep, nil
	}
	if now, err := identify(job, id.dirName()); err != nil || now != found {
		return keep("another directory has taken its place")
	}
	switch err := retry(func() error { return unix.Unlinkat(job, id.dirName(), unix.AT_REMOVEDIR) }); {
	case errors.Is(err, unix.ENOTEMPTY), errors.Is(err, unix.EEXIST):
		return keep("files appeared in it meanwhile")
	case errors.Is(err, unix.EBUSY):
		return keep("a file system is mounted there")
	case errors.Is(err, unix.ENOTDIR):
		return keep("something else has taken its place")
	case err != nil && !errors.Is(err, unix.ENOENT):
		return rep, fmt.Errorf("remove directory %s: %w", rep.Dir, err)
	}
	rep.State = Reclaimed
	return rep, r.removeJob()
}

func counted(names int) string {
	if names == 1 {
		return "1 name in it is"
	}
	return fmt.Sprintf("%d names in it are", names)
}

// unusable reports a directory that is not as ebb made it; other errors are passed on.
func (r *reclaimer) unusable(rep Report, err error) (Report, error) {
	var d *DirError
	if !errors.As(err, &d) {
		return rep, err
	}
	rep.State, rep.Why = KeptForeign, err.Error()
	return rep, nil
}

// removeJob removes the job's directory if no rank is left in it.
func (r *reclaimer) removeJob() error {
	if r.how.Dry {
		return nil
	}
	job := r.marker.Identity.Job
	err := retry(func() error { return unix.Unlinkat(r.base.fd, job, unix.AT_REMOVEDIR) })
	switch {
	case err == nil, errors.Is(err, unix.ENOTEMPTY), errors.Is(err, unix.EEXIST), errors.Is(err, unix.ENOENT):
		return nil
	case errors.Is(err, unix.EBUSY), errors.Is(err, unix.ENOTDIR): // a mount; what a racer put there
		return nil
	}
	return fmt.Errorf("remove directory %s: %w", filepath.Join(r.base.path, job), err)
}

// mine accepts the owners of data files in the directory that ebb made.
func (r *reclaimer) mine(o Owner) bool {
	if r.strict {
		return Dead(o, r.base.local)
	}
	// The lease says that the owner is dead. A process that never got it may yet live.
	return !running(o)
}

// provenMine accepts the owners that are dead whatever directory their files are in.
func (r *reclaimer) provenMine(o Owner) bool {
	return Dead(o, r.base.local) || !r.strict && lifeOf(o) == leaving
}

// private reports whether a directory has the mode of those that ebb makes.
func private(dir int) bool {
	var st unix.Stat_t
	return unix.Fstat(dir, &st) == nil && st.Mode&0o7777 == 0o700
}

// removeDataFiles removes the files of dir that bear a data file's name, are plain files of
// this user with one name, and whose owner mine accepts. The other names are Left.
func removeDataFiles(dir int, rep *Report, mine func(Owner) bool, how SweepOptions) error {
	list, err := names(dir)
	if err != nil {
		return fmt.Errorf("list directory %s: %w", rep.Dir, err)
	}
	for _, name := range list {
		how.moved()
		owner, _, ok := ParseDataFile(name)
		var st unix.Stat_t
		if ok {
			err := retry(func() error { return unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW) })
			if errors.Is(err, unix.ENOENT) {
				continue // removed by its owner meanwhile
			}
			if err != nil {
				return fmt.Errorf("look at %s: %w", filepath.Join(rep.Dir, name), err)
			}
			ok = st.Mode&unix.S_IFMT == unix.S_IFREG && st.Nlink == 1 && int(st.Uid) == os.Geteuid() && mine(owner)
		}
		if !ok {
			rep.Left = append(rep.Left, printable(name))
			continue
		}
		if how.Discard && !how.Dry {
			rep.discard(dir, name, &st)
		}
		if !how.Dry {
			err := retry(func() error { return unix.Unlinkat(dir, name, 0) })
			if err != nil && !errors.Is(err, unix.ENOENT) {
				return fmt.Errorf("remove %s: %w", filepath.Join(rep.Dir, name), err)
			}
		}
		rep.Files = append(rep.Files, name)
		rep.Bytes += uint64(st.Blocks) * 512
	}
	return nil
}

// discard gives the blocks of a file back. What cannot be is still removed.
func (rep *Report) discard(dir int, name string, seen *unix.Stat_t) {
	err := discardFile(dir, name, seen)
	switch {
	case err == nil:
		rep.Discarded += uint64(seen.Blocks) * 512
	case rep.Undiscarded == "":
		rep.Undiscarded = fmt.Sprintf("%s: %v", filepath.Join(rep.Dir, name), err)
	}
}

func discardFile(dir int, name string, seen *unix.Stat_t) error {
	fd, err := openat(dir, name, unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	var st unix.Stat_t
	if err := retry(func() error { return unix.Fstat(fd, &st) }); err != nil {
		return err
	}
	if idOf(&st) != idOf(seen) || st.Nlink != 1 {
		return errors.New("another file has taken its name")
	}
	return discard.File(fd, st.Size)
}

func hostname() string {
	name, err := os.Hostname()
	if err != nil {
		return ""
	}
	return name
}

// printable is a name as it is, or quoted if a terminal would not show it so.
func printable(name string) string {
	odd := func(r rune) bool { return !strconv.IsPrint(r) }
	if utf8.ValidString(name) && !strings.ContainsFunc(name, odd) {
		return name
	}
	return strconv.Quote(name)
}
