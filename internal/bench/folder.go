package bench

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/ebb-offload/ebb/internal/rankdir"
)

// Names of what a run makes. Nothing else is ever removed.
var (
	runName  = regexp.MustCompile(`^ebb-bench-[0-9a-f]{16}$`) // its folder in a disk directory
	rankName = regexp.MustCompile(`^rank-[1-9][0-9]{0,5}$`)   // a process's folder in that
	rawName  = regexp.MustCompile(`^raw-[0-9]+-[0-9]+$`)      // a raw file that a killed process left its name
	tmsName  = regexp.MustCompile(`^tms_[A-Za-z0-9]{6}$`)     // a backup of torch_memory_saver
)

// folder is a run's folder in a disk directory. Its lock (flock) says that the run is alive; the
// kernel drops it at any death. All that is done in it goes through the open directory, so that
// whatever takes a name in the path is not reached.
type folder struct {
	base string // the disk directory, for people
	name string
	path string
	in   *os.File // the disk directory
	dir  *os.File // the folder; holds the lock
	next int      // number of the next rank's folder
}

// openDirectory opens a directory of another, or of the path where parent is nil. What is no
// directory, or a symbolic link to one, is refused.
func openDirectory(parent *os.File, name string) (*os.File, error) {
	at, path := unix.AT_FDCWD, name
	if parent != nil {
		at, path = int(parent.Fd()), filepath.Join(parent.Name(), name)
	}
	for {
		fd, err := unix.Openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return nil, &os.PathError{Op: "open", Path: path, Err: err}
		default:
			return os.NewFile(uintptr(fd), path), nil
		}
	}
}

// lookAt is what a name in a directory is, no link followed.
func lookAt(dir *os.File, name string) (st unix.Stat_t, err error) {
	if err = unix.Fstatat(int(dir.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		err = &os.PathError{Op: "look at", Path: filepath.Join(dir.Name(), name), Err: err}
	}
	return st, err
}

// list is the names in a directory, sorted.
func list(dir *os.File) ([]string, error) {
	again, err := openDirectory(dir, ".") // with a position of its own
	if err != nil {
		return nil, err
	}
	defer func() { _ = again.Close() }()
	names, err := again.Readdirnames(-1)
	slices.Sort(names)
	return names, err
}

// names reports whether a name still is the open directory.
func names(parent *os.File, name string, dir *os.File) bool {
	var held unix.Stat_t
	there, err := lookAt(parent, name)
	return err == nil && unix.Fstat(int(dir.Fd()), &held) == nil && there.Dev == held.Dev && there.Ino == held.Ino
}

// makeFolder makes the folder of a run, after removing those of dead runs. warn is told what stays.
func makeFolder(base string, warn func(string)) (*folder, error) {
	in, err := openDirectory(nil, base)
	if err != nil {
		return nil, err
	}
	if err := sweep(in, warn); err != nil {
		return nil, errors.Join(err, in.Close())
	}
	f, err := newFolder(in)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("make a folder in %s: %w", base, err), in.Close())
	}
	return f, nil
}

func newFolder(in *os.File) (*folder, error) {
	var random [8]byte
	_, _ = rand.Read(random[:]) // never fails
	name := "ebb-bench-" + hex.EncodeToString(random[:])
	if err := unix.Mkdirat(int(in.Fd()), name, 0o700); err != nil {
		return nil, err
	}
	f, err := openFolder(in, name)
	if err == nil {
		err = f.lock()
	}
	if err == nil {
		err = f.mark()
	}
	if err != nil {
		if f != nil {
			err = errors.Join(err, f.dir.Close())
		}
		// Refused where anything is in it.
		return nil, errors.Join(err, unix.Unlinkat(int(in.Fd()), name, unix.AT_REMOVEDIR))
	}
	return f, nil
}

// openFolder opens a folder that is there. The folder takes over neither in nor its closing.
func openFolder(in *os.File, name string) (*folder, error) {
	dir, err := openDirectory(in, name)
	if err != nil {
		return nil, err
	}
	return &folder{base: in.Name(), name: name, path: dir.Name(), in: in, dir: dir}, nil
}

// errLocked says that a run has the folder.
var errLocked = errors.New("another process has it")

// lock takes the lock. The error is errLocked where somebody else has it, or where the name is no
// longer the folder's.
func (f *folder) lock() error {
	err := unix.Flock(int(f.dir.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) || err == nil && !names(f.in, f.name, f.dir) {
		return errLocked
	}
	if err != nil {
		return fmt.Errorf("lock %s: %w", f.path, err)
	}
	return nil
}

// sweep removes the folders of dead runs: those with a marker that fits, whose lock is free.
func sweep(in *os.File, warn func(string)) error {
	entries, err := list(in)
	if err != nil {
		return fmt.Errorf("look for the folders of dead runs: %w", err)
	}
	for _, name := range entries {
		if !runName.MatchString(name) {
			continue
		}
		f, err := openFolder(in, name)
		if err != nil { // somebody else's, a link, or gone by now
			continue
		}
		why, err := f.removeDead()
		if err := errors.Join(err, f.dir.Close()); err != nil {
			return fmt.Errorf("remove what a dead run left: %w", err)
		}
		if why != "" {
			warn(f.stays(why))
		}
	}
	return nil
}

// stays is the line about a folder that is left as it is.
func (f *folder) stays(why string) string {
	return fmt.Sprintf("%s stays: %s; remove it yourself if nobody needs it", f.path, why)
}

// removeDead removes a folder if its run is dead. Not empty: why it stays.
func (f *folder) removeDead() (why string, err error) {
	// Before the lock is taken: a folder that is being made has no marker yet.
	m, err := f.marker()
	if m == nil || err != nil {
		return "", err
	}
	if err := f.lock(); errors.Is(err, errLocked) {
		return "", nil
	} else if err != nil {
		return "", err
	}
	if why, err := f.fits(m); why != "" || err != nil {
		return why, err
	}
	if rankdir.Alive(m.Owner) {
		return fmt.Sprintf("its run, process %d, is alive", m.Owner.PID), nil
	}
	return f.remove()
}

// forRank makes a folder for one process in the run's.
func (f *folder) forRank() (name string, err error) {
	f.next++
	name = "rank-" + strconv.Itoa(f.next)
	if err := unix.Mkdirat(int(f.dir.Fd()), name, 0o700); err != nil {
		return "", fmt.Errorf("make a folder for a rank in %s: %w", f.path, err)
	}
	return name, nil
}

// remove removes the folder with all that is in it, if that is nothing but what runs make.
// Otherwise nothing is removed, and why says what is in the way. The lock is held.
func (f *folder) remove() (why string, err error) {
	if !names(f.in, f.name, f.dir) {
		return "something else has taken its place", nil
	}
	found, err := list(f.dir)
	if err != nil {
		return "", err
	}
	var ranks []string
	for _, name := range found {
		if name == markerName {
			continue
		}
		if !rankName.MatchString(name) {
			return fmt.Sprintf("%q in it is not of a run", name), nil
		}
		if why, err := f.lookInto(name); why != "" || err != nil {
			return why, err
		}
		ranks = append(ranks, name)
	}
	for _, name := range ranks {
		if why, err := f.removeRank(name); why != "" || err != nil {
			return why, err
		}
	}
	return f.removeItself()
}

// lookInto says what stands against removing a rank's folder.
func (f *folder) lookInto(rank string) (why string, err error) {
	dir, why, err := f.openRank(rank)
	if dir == nil {
		return why, err
	}
	defer func() { _ = dir.Close() }()
	return against(dir)
}

// removeRank removes a rank's folder with the files in it, if that is all that is in it. It may be
// gone already.
func (f *folder) removeRank(rank string) (why string, err error) {
	dir, why, err := f.openRank(rank)
	if dir == nil {
		return why, err
	}
	defer func() { _ = dir.Close() }()
	if why, err := against(dir); why != "" || err != nil {
		return why, err
	}
	files, err := list(dir)
	if err != nil {
		return "", err
	}
	for _, name := range files {
		// Looked at again: it may be another file by now.
		if why, err := foreign(dir, name); why != "" || err != nil {
			return why, err
		}
		if err := unix.Unlinkat(int(dir.Fd()), name, 0); err != nil && !errors.Is(err, unix.ENOENT) {
			return "", fmt.Errorf("remove %s: %w", filepath.Join(dir.Name(), name), err)
		}
	}
	if !names(f.dir, rank, dir) {
		return fmt.Sprintf("something else has taken the place of %s", rank), nil
	}
	return removeEmpty(f.dir, rank)
}

// openRank opens a rank's folder; nil where it is gone, or is not one that a run made.
func (f *folder) openRank(rank string) (dir *os.File, why string, err error) {
	dir, err = openDirectory(f.dir, rank)
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil, "", nil
	case errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP):
		return nil, rank + " in it is no directory", nil
	case err != nil:
		return nil, "", err
	}
	var own, outer unix.Stat_t
	if err := errors.Join(unix.Fstat(int(dir.Fd()), &own), unix.Fstat(int(f.dir.Fd()), &outer)); err != nil {
		return nil, "", errors.Join(fmt.Errorf("look at %s: %w", dir.Name(), err), dir.Close())
	}
	if int(own.Uid) != os.Geteuid() || own.Mode&0o777 != 0o700 || own.Dev != outer.Dev {
		return nil, rank + " in it is not as a run makes it", dir.Close()
	}
	return dir, "", nil
}

// against says which name in a rank's folder is not of a run.
func against(dir *os.File) (why string, err error) {
	files, err := list(dir)
	if err != nil {
		return "", err
	}
	for _, name := range files {
		if why, err := foreign(dir, name); why != "" || err != nil {
			return why, err
		}
	}
	return "", nil
}

// foreign says why a name in a rank's folder is not a file of a run: a plain file of this user, of
// one name, which is one that ebb, torch_memory_saver or a raw arm gives, and no living process's.
func foreign(dir *os.File, name string) (why string, err error) {
	st, err := lookAt(dir, name)
	if errors.Is(err, unix.ENOENT) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	place := filepath.Base(dir.Name())
	owner, _, ours := rankdir.ParseDataFile(name)
	switch {
	case !ours && !rawName.MatchString(name) && !tmsName.MatchString(name),
		st.Mode&unix.S_IFMT != unix.S_IFREG, int(st.Uid) != os.Geteuid():
		return fmt.Sprintf("%q in its %s is not of a run", name, place), nil
	case st.Nlink > 1:
		return fmt.Sprintf("%s in its %s has a second name", name, place), nil
	case ours && rankdir.Alive(owner):
		return fmt.Sprintf("%s in its %s is of process %d, which is alive", name, place, owner.PID), nil
	}
	return "", nil
}

// removeItself removes the marker and then the folder, in which nothing else is.
func (f *folder) removeItself() (why string, err error) {
	left, err := list(f.dir)
	if err != nil {
		return "", err
	}
	for _, name := range left {
		if name != markerName {
			return fmt.Sprintf("%q has come into it", name), nil
		}
	}
	if err := unix.Unlinkat(int(f.dir.Fd()), markerName, 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return "", fmt.Errorf("remove %s: %w", filepath.Join(f.path, markerName), err)
	}
	if !names(f.in, f.name, f.dir) {
		return "something else has taken its place", nil
	}
	return removeEmpty(f.in, f.name)
}

// removeEmpty removes an empty directory. What is anything else by now stays.
func removeEmpty(parent *os.File, name string) (why string, err error) {
	switch err := unix.Unlinkat(int(parent.Fd()), name, unix.AT_REMOVEDIR); {
	case err == nil, errors.Is(err, unix.ENOENT):
		return "", nil
	case errors.Is(err, unix.ENOTEMPTY), errors.Is(err, unix.EEXIST):
		return "files have come into " + name, nil
	case errors.Is(err, unix.ENOTDIR):
		return "something else has taken the place of " + name, nil
	case errors.Is(err, unix.EBUSY):
		return "a file system is mounted on " + name, nil
	default:
		return "", fmt.Errorf("remove %s: %w", filepath.Join(parent.Name(), name), err)
	}
}

// close removes this run's folder. Not empty: why it stays.
func (f *folder) close() (why string, err error) {
	defer func() { _, _ = f.dir.Close(), f.in.Close() }()
	return f.remove()
}
