package bench

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/ebb-offload/ebb/internal/launch"
)

// runPrefix begins the name of a run's folder in a disk directory.
const runPrefix = "ebb-bench-"

// folder is a run's folder in a disk directory. Its lock (flock) says that the run is alive; the
// kernel drops it at any death.
type folder struct {
	base string // the disk directory
	path string
	lock *os.File
	next int // number of the next rank's folder
}

// checkDirectory refuses a directory whose disk cannot be measured.
func checkDirectory(dir string) (Disk, error) {
	const remedy = "name a directory on a local disk with --disk-dir"
	info, err := os.Lstat(dir)
	switch {
	case err != nil:
		return Disk{}, launch.Usagef("disk directory %s: %w; make it, or %s", dir, err, remedy)
	case info.Mode()&fs.ModeSymlink != 0:
		return Disk{}, launch.Usagef("disk directory %s is a symbolic link: name the directory it points to with --disk-dir", dir)
	case !info.IsDir():
		return Disk{}, launch.Usagef("disk directory %s is not a directory: %s", dir, remedy)
	}
	if err := unix.Faccessat(unix.AT_FDCWD, dir, unix.W_OK|unix.X_OK, unix.AT_EACCESS); err != nil {
		return Disk{}, launch.Usagef("disk directory %s is not writable: %w; %s", dir, err, remedy)
	}
	if strings.ContainsAny(dir, ":\n") {
		return Disk{}, launch.Usagef("disk directory %q has a colon or a line break in its name: %s", dir, remedy)
	}
	on, err := launch.FileSystemOf(dir)
	switch {
	case err != nil:
		return Disk{}, launch.Usagef("disk directory %s: its file system cannot be found out: %w; %s", dir, err, remedy)
	case on.InMemory:
		return Disk{}, launch.Usagef("disk directory %s lies on %s, which is %s: that is memory, no disk; %s", dir, on.Mount, on.Type, remedy)
	case on.Network:
		return Disk{}, launch.Usagef("disk directory %s lies on %s, a network file system (%s); %s", dir, on.Mount, on.Type, remedy)
	}
	return Disk{Dir: dir, FileSystem: on.Type, Mount: on.Mount}, nil
}

// sameDisk are two directories of one device, if there are any.
func sameDisk(dirs []string) (a, b string, same bool) {
	seen := map[uint64]string{}
	for _, dir := range dirs {
		var st unix.Stat_t
		if unix.Stat(dir, &st) != nil {
			continue
		}
		if first, ok := seen[st.Dev]; ok {
			return first, dir, true
		}
		seen[st.Dev] = dir
	}
	return "", "", false
}

// makeFolder makes the folder of a run, after removing those of dead runs.
func makeFolder(base string) (*folder, error) {
	if err := sweep(base); err != nil {
		return nil, err
	}
	for {
		path, err := os.MkdirTemp(base, runPrefix+"*")
		if err != nil {
			return nil, fmt.Errorf("make a folder in %s: %w", base, err)
		}
		lock, err := lockFolder(path)
		if err != nil {
			return nil, errors.Join(err, os.Remove(path))
		}
		if lock != nil {
			return &folder{base: base, path: path, lock: lock}, nil
		}
		// The sweep of another run came in between and has it, or had it.
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
}

// lockFolder locks a folder; nil when somebody else has it, or it is gone or another one by now.
func lockFolder(path string) (*os.File, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	lock := os.NewFile(uintptr(fd), path)
	var held, named unix.Stat_t
	switch err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB); {
	case errors.Is(err, unix.EWOULDBLOCK):
		_ = lock.Close()
		return nil, nil
	case err != nil:
		_ = lock.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	if unix.Fstat(fd, &held) != nil || unix.Lstat(path, &named) != nil || held.Dev != named.Dev || held.Ino != named.Ino {
		_ = lock.Close()
		return nil, nil
	}
	return lock, nil
}

// sweep removes the folders of runs that are dead: those of this user whose lock is free.
func sweep(base string) error {
	entries, err := os.ReadDir(base)
	if err != nil {
		return fmt.Errorf("look for the folders of dead runs: %w", err)
	}
	for _, entry := range entries {
		path := filepath.Join(base, entry.Name())
		var st unix.Stat_t
		if !entry.IsDir() || !strings.HasPrefix(entry.Name(), runPrefix) || unix.Lstat(path, &st) != nil || int(st.Uid) != os.Geteuid() {
			continue
		}
		lock, err := lockFolder(path)
		if err != nil {
			return err
		}
		if lock == nil {
			continue
		}
		dead := &folder{base: base, path: path, lock: lock}
		if err := dead.remove(); err != nil {
			return fmt.Errorf("remove what a dead run left: %w", err)
		}
	}
	return nil
}

// forRank makes a folder for one process in the run's.
func (f *folder) forRank() (string, error) {
	f.next++
	path := filepath.Join(f.path, "rank-"+strconv.Itoa(f.next))
	if err := os.Mkdir(path, 0o700); err != nil {
		return "", fmt.Errorf("make a folder for a rank: %w", err)
	}
	return path, nil
}

// removeFolder removes a rank's folder with the files in it. It may be gone already.
func removeFolder(path string) error {
	entries, err := os.ReadDir(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, entry := range entries {
		if err := os.Remove(filepath.Join(path, entry.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// remove removes the folder of a run, and those of its ranks. It may be gone already.
func (f *folder) remove() error {
	defer func() { _ = f.lock.Close() }()
	entries, err := os.ReadDir(f.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, entry := range entries {
		if err := removeFolder(filepath.Join(f.path, entry.Name())); err != nil {
			return err
		}
	}
	if err := os.Remove(f.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
