package node

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/ebb-offload/ebb/internal/control"
)

// Places are where sockets are looked for.
type Places struct {
	RuntimeDirs []string // directories of sockets
	DiskDirs    []string // disk directories, whose pointer files name sockets
	PIDs        []int    // processes, whose environment says where their sockets are
}

// Default is where a user's ranks have their sockets.
func Default(getenv func(string) string, uid int) Places {
	return Places{RuntimeDirs: control.Dirs(getenv, uid)}
}

// PlaceError says why a place was not looked at.
type PlaceError struct {
	Place string
	Why   string
	Err   error
}

func (e *PlaceError) Error() string { return fmt.Sprintf("%s: %s", e.Place, e.Why) }

// Unwrap returns the cause.
func (e *PlaceError) Unwrap() error { return e.Err }

// Sockets are the paths of all sockets that can be found in the places, in order. Nobody is spoken to: a process learns
// of a look at it only by a greeting, which wakes it.
func Sockets(places Places) []string {
	paths, _ := places.sockets() // what cannot be looked at, Discover tells
	slices.Sort(paths)
	return paths
}

// sockets are the paths of all sockets in the places, each once. A directory that is not there has none.
func (p Places) sockets() (paths []string, err error) {
	dirs := slices.Clone(p.RuntimeDirs)
	for _, pid := range p.PIDs {
		dirs = append(dirs, dirsOf(pid)...)
	}
	seen := map[file]bool{}
	add := func(path string) {
		var st unix.Stat_t
		if unix.Lstat(path, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFSOCK {
			return // gone meanwhile, or something else
		}
		if id := (file{st.Dev, st.Ino}); !seen[id] {
			seen[id] = true
			paths = append(paths, path)
		}
	}
	for _, dir := range dirs {
		names, e := socketsIn(dir)
		err = errors.Join(err, e)
		for _, name := range names {
			add(filepath.Join(dir, name))
		}
	}
	for _, dir := range p.DiskDirs {
		pointed, e := control.Pointers(dir)
		if e != nil {
			err = errors.Join(err, &PlaceError{Place: dir, Why: "cannot be looked at: " + cause(e), Err: e})
		}
		for _, path := range pointed {
			add(path)
		}
	}
	return paths, err
}

// file is which file it is, by whatever path.
type file struct{ dev, ino uint64 }

// socketsIn lists the names of sockets in a directory, which must be the user's or root's, and writable for
// nobody else: in another one anybody could put a socket.
func socketsIn(dir string) ([]string, error) {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
			return nil, nil
		}
		return nil, &PlaceError{Place: dir, Why: "cannot be looked at: " + err.Error(), Err: err}
	}
	switch own := os.Geteuid(); {
	case int(st.Uid) != own && st.Uid != 0 && own != 0:
		return nil, &PlaceError{Place: dir, Why: fmt.Sprintf("belongs to user %d: not looked into", st.Uid)}
	case st.Mode&0o022 != 0:
		return nil, &PlaceError{Place: dir, Why: "others may write to it: not looked into; chmod 700 it"}
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, &PlaceError{Place: dir, Why: "cannot be listed: " + cause(err), Err: err}
	}
	var names []string
	for _, entry := range entries {
		if _, ok := control.ParseSocketName(entry.Name()); ok {
			names = append(names, entry.Name())
		}
	}
	return names, nil
}

// cause is an error without the path that the message has already.
func cause(err error) string {
	var path *fs.PathError
	if errors.As(err, &path) {
		return path.Err.Error()
	}
	return err.Error()
}

// dirsOf are the directories in which a process may have its socket, by its environment and its user. They are none
// where the process may not be looked at.
func dirsOf(pid int) []string {
	var st unix.Stat_t
	environ, err := environment(pid)
	if err != nil || unix.Stat(fmt.Sprintf("/proc/%d", pid), &st) != nil {
		return nil
	}
	return control.Dirs(func(name string) string { return environ[name] }, int(st.Uid))
}

// environment is that with which a process was started.
func environment(pid int) (map[string]string, error) {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "environ"))
	if err != nil {
		return nil, err
	}
	set := map[string]string{}
	for entry := range bytes.SplitSeq(text, []byte{0}) {
		if name, value, ok := strings.Cut(string(entry), "="); ok {
			set[name] = value
		}
	}
	return set, nil
}
