package control

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/ebb-offload/ebb/internal/rankdir"
)

// This file says where sockets are. A rank makes its socket in a runtime directory, since the path of a
// socket may not be longer than maxSocketPath; a pointer file beside its lease names it. The names of both
// say whose they are, so that those of dead processes are known without asking.

// Names of variables.
const (
	runtimeVariable = "EBB_RUNTIME_DIR"
	xdgVariable     = "XDG_RUNTIME_DIR"
)

// maxSocketPath is the longest path of a socket, in bytes: sun_path less its final zero.
const maxSocketPath = 107

const (
	socketSuffix  = ".sock"
	leaseSuffix   = ".lease"
	pointerSuffix = ".control"
)

// Dirs are the directories in which a user's sockets may be, in order: those that the environment names,
// then those that a rank with another environment may have used.
func Dirs(getenv func(string) string, uid int) []string {
	var dirs []string
	if dir := getenv(runtimeVariable); dir != "" {
		dirs = append(dirs, dir)
	}
	if dir := getenv(xdgVariable); dir != "" {
		dirs = append(dirs, filepath.Join(dir, "ebb"))
	}
	for _, dir := range []string{fmt.Sprintf("/run/user/%d/ebb", uid), sharedDir(uid)} {
		if !slices.Contains(dirs, dir) {
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

func sharedDir(uid int) string { return fmt.Sprintf("/tmp/ebb-%d", uid) }

// Place is the directory in which a rank makes a socket of that name: the first of runtimeDir (EBB_RUNTIME_DIR),
// a directory in xdgDir (XDG_RUNTIME_DIR), if that exists, and the user's directory in /tmp, in which the path is not
// too long. Empty values are unset ones.
func Place(runtimeDir, xdgDir string, uid int, name string) string {
	if Fits(runtimeDir, name) {
		return runtimeDir
	}
	if dir := filepath.Join(xdgDir, "ebb"); Fits(dir, name) && isDir(xdgDir) {
		return dir
	}
	return sharedDir(uid)
}

// Fits reports whether a rank can have a socket of that name in a directory. Else it has it elsewhere (Place).
func Fits(dir, name string) bool { return Unfit(dir, name) == "" }

// Unfit says why a rank cannot have a socket of that name in a directory; it is empty where it can.
func Unfit(dir, name string) string {
	switch long := len(filepath.Join(dir, name)) - maxSocketPath; {
	case !filepath.IsAbs(dir):
		return "is no absolute path"
	case long > 0:
		return fmt.Sprintf("is %d bytes too long: the path of a socket in it may have %d", long, maxSocketPath)
	}
	return ""
}

func isDir(path string) bool {
	var st unix.Stat_t
	return unix.Stat(path, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR
}

// SocketName is the name of a process's socket: "<boot id, 8 digits>-<pid namespace>-<pid>-<start time>.sock".
func SocketName(o rankdir.Owner) string {
	return strings.TrimSuffix(strings.TrimPrefix(o.FilePrefix(), "ebb-"), "-") + socketSuffix
}

var socketName = regexp.MustCompile(`^([0-9a-f]{8})-([0-9a-f]{1,16})-([0-9]{1,10})-([0-9]{1,20})\.sock$`)

// ParseSocketName takes the name of a socket apart. ok is false for any name that SocketName would not make.
func ParseSocketName(name string) (owner rankdir.Owner, ok bool) {
	m := socketName.FindStringSubmatch(name)
	if m == nil {
		return rankdir.Owner{}, false
	}
	ns, err1 := strconv.ParseUint(m[2], 16, 64)
	pid, err2 := strconv.ParseInt(m[3], 10, 32)
	start, err3 := strconv.ParseUint(m[4], 10, 64)
	if errors.Join(err1, err2, err3) != nil {
		return rankdir.Owner{}, false
	}
	owner = rankdir.Owner{BootID: m[1], PIDNamespace: ns, PID: int(pid), StartTime: start, UID: -1}
	return owner, pid > 0 && SocketName(owner) == name // no leading zeros
}

// Dead reports whether the process of a socket is known to be gone, by the socket's name. Sockets live in
// memory of this node's kernel alone, even where their names are on a shared file system; so one of another
// boot proves nothing.
func Dead(name string) bool {
	owner, ok := ParseSocketName(name)
	return ok && rankdir.Dead(owner, false)
}

// RemoveDead removes the sockets of dead processes from directories, and returns the paths of those that
// it removed. It looks only at sockets of the calling user, and follows no symbolic link at the end of a path.
// dry: it only says what it would remove.
func RemoveDead(dirs []string, dry bool) (removed []string, err error) {
	for _, dir := range dirs {
		list, e := removeDeadIn(dir, dry)
		removed = append(removed, list...)
		err = errors.Join(err, e)
	}
	return removed, err
}

func removeDeadIn(dir string, dry bool) (removed []string, err error) {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, nil // nothing of ebb's is there, or nothing of this user's
	}
	f := os.NewFile(uintptr(fd), dir)
	defer func() { _ = f.Close() }()
	names, err := f.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("list directory %s: %w", dir, err)
	}
	slices.Sort(names)
	for _, name := range names {
		var st unix.Stat_t
		if !Dead(name) || unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil ||
			st.Mode&unix.S_IFMT != unix.S_IFSOCK || int(st.Uid) != os.Geteuid() {
			continue
		}
		path := filepath.Join(dir, name)
		if !dry {
			if e := unix.Unlinkat(fd, name, 0); e != nil {
				if !errors.Is(e, unix.ENOENT) {
					err = errors.Join(err, fmt.Errorf("remove socket %s: %w", path, e))
				}
				continue
			}
		}
		removed = append(removed, path)
	}
	return removed, err
}

// PointerPath is the pointer file of a process beside its lease.
func PointerPath(lease string, self rankdir.Owner) string {
	return fmt.Sprintf("%s.%d-%d%s", strings.TrimSuffix(lease, leaseSuffix), self.PID, self.StartTime, pointerSuffix)
}

// maxPointer is more than a pointer file holds, in bytes.
const maxPointer = 4096

// Pointers are the sockets that the pointer files in a disk directory name, in the order of the files' names.
// What is no pointer file of this user is passed over.
func Pointers(diskDir string) (sockets []string, err error) {
	dir := filepath.Join(diskDir, ".ebb")
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: dir, Err: err}
	}
	f := os.NewFile(uintptr(fd), dir)
	defer func() { _ = f.Close() }()
	names, err := f.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("list directory %s: %w", dir, err)
	}
	slices.Sort(names)
	for _, name := range names {
		if !strings.HasSuffix(name, pointerSuffix) {
			continue
		}
		if socket, ok := readPointer(fd, name); ok {
			sockets = append(sockets, socket)
		}
	}
	return sockets, nil
}

func readPointer(dir int, name string) (socket string, ok bool) {
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", false
	}
	defer func() { _ = unix.Close(fd) }()
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG || int(st.Uid) != os.Geteuid() {
		return "", false
	}
	text := make([]byte, maxPointer)
	n, err := unix.Read(fd, text)
	if err != nil || n == len(text) {
		return "", false
	}
	socket, ok = strings.CutSuffix(string(text[:n]), "\n")
	if _, named := ParseSocketName(filepath.Base(socket)); !named {
		return "", false
	}
	return socket, ok && filepath.IsAbs(socket)
}

// WritePointer makes a pointer file.
func WritePointer(path, socket string) error {
	if err := RemovePointer(path); err != nil { // of this process before it replaced its program
		return err
	}
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return &fs.PathError{Op: "make", Path: path, Err: err}
	}
	line := []byte(socket + "\n")
	n, err := unix.Write(fd, line)
	_ = unix.Close(fd)
	if err == nil && n < len(line) {
		err = unix.ENOSPC
	}
	if err != nil {
		return errors.Join(&fs.PathError{Op: "write", Path: path, Err: err}, RemovePointer(path))
	}
	return nil
}

// RemovePointer removes a pointer file, if it is there.
func RemovePointer(path string) error {
	if err := unix.Unlink(path); err != nil && !errors.Is(err, unix.ENOENT) {
		return &fs.PathError{Op: "remove", Path: path, Err: err}
	}
	return nil
}
