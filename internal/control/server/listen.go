package server

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/ebb-offload/ebb/internal/fd"
)

// descriptor is an open file, so precisely that another one which got its number is not taken for it:
// programs close descriptors that they do not know.
type descriptor struct {
	fd       int
	dev, ino uint64
}

func describe(fd int) (descriptor, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return descriptor{fd: -1}, err
	}
	return descriptor{fd: fd, dev: st.Dev, ino: st.Ino}, nil
}

// ours reports whether the number still means the file.
func (d descriptor) ours() bool {
	now, err := describe(d.fd)
	return err == nil && now == d
}

// close closes the file, if it is still ours. Whoever has a copy, as a child that is being forked,
// keeps nobody waiting: the connection is ended too.
func (d descriptor) close() {
	if d.ours() {
		_ = unix.Shutdown(d.fd, unix.SHUT_RDWR)
		_ = unix.Close(d.fd)
	}
}

// listener is the socket that a rank listens on, with its name.
type listener struct {
	descriptor
	path          string
	nameDev, name uint64 // inode of the name
}

// listen makes the socket in its directory, which it makes where it is missing.
func listen(path string) (*listener, error) {
	dir := filepath.Dir(path)
	if err := checkDir(dir); err != nil {
		return nil, err
	}
	l, err := bind(path)
	if err != nil {
		return nil, fmt.Errorf("make the control socket %s: %w", path, err)
	}
	return l, nil
}

// checkDir makes a directory where it is missing, and refuses one in which others could put a socket, or reach
// this one.
func checkDir(path string) error {
	if err := unix.Mkdir(path, 0o700); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("make the runtime directory %s: %w", path, err)
	}
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return fmt.Errorf("look at the runtime directory %s: %w", path, err)
	}
	var why string
	switch {
	case st.Mode&unix.S_IFMT == unix.S_IFLNK:
		why = "is a symbolic link"
	case st.Mode&unix.S_IFMT != unix.S_IFDIR:
		why = "is not a directory"
	case int(st.Uid) != os.Geteuid():
		why = fmt.Sprintf("belongs to user %d, not to user %d", st.Uid, os.Geteuid())
	case st.Mode&0o777 != 0o700:
		why = fmt.Sprintf("is not private (mode %04o, must be 0700)", st.Mode&0o7777)
	default:
		return nil
	}
	return fmt.Errorf("the runtime directory %s %s: name another with EBB_RUNTIME_DIR", path, why)
}

func bind(path string) (l *listener, err error) {
	sock, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	if sock, err = fd.AboveStreams(sock); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = unix.Close(sock)
		}
	}()
	// Only this process has this name, perhaps from before it replaced its program.
	if err := unix.Unlink(path); err != nil && !errors.Is(err, unix.ENOENT) {
		return nil, err
	}
	if err := unix.Bind(sock, &unix.SockaddrUnix{Name: path}); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = unix.Unlink(path)
		}
	}()
	var st unix.Stat_t
	if err := unix.Chmod(path, 0o600); err != nil {
		return nil, err
	}
	if err := unix.Lstat(path, &st); err != nil {
		return nil, err
	}
	d, err := describe(sock)
	if err != nil {
		return nil, err
	}
	if err := unix.Listen(sock, maxConns); err != nil {
		return nil, err
	}
	return &listener{descriptor: d, path: path, nameDev: st.Dev, name: st.Ino}, nil
}

// remove removes the socket's name, unless it is another's by now.
func (l *listener) remove() {
	var st unix.Stat_t
	if unix.Lstat(l.path, &st) == nil && st.Dev == l.nameDev && st.Ino == l.name {
		_ = unix.Unlink(l.path)
	}
}

// peer is the user at the other end of a connection.
func peer(fd int) (uid int, err error) {
	cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return -1, err
	}
	return int(cred.Uid), nil
}
