package swap

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// This file is about the file of a lock. Its directory may be one that others write to, as where EBB_RUNTIME_DIR
// names /tmp. So nothing is followed, waited for or written to that this user, or the superuser for this user, did
// not make as a file of its own: a link could lead to a file that is dear to the user, and a lock that somebody else
// can hold would keep all hand-overs out.

// plantedError says that there is something else in the place of a lock.
type plantedError struct {
	what      string
	owner     *uint32 // not nil: it may be the lock of this other user, and be held
	directory bool
}

func (e plantedError) Error() string {
	if e.owner != nil {
		return "there " + e.what + ", which may be a lock of that user's"
	}
	return "there " + e.what + ", which ebb did not put there"
}

// removal is the command that removes it.
func (e plantedError) removal() string {
	if e.directory {
		return "rmdir"
	}
	return "rm"
}

// ownedError says that the directory is another user's, who can remove what is in it.
type ownedError struct {
	dir string
	uid uint32
}

func (e ownedError) Error() string {
	return fmt.Sprintf("the directory %s belongs to user %d, not to user %d", e.dir, e.uid, os.Geteuid())
}

// remedy is what helps where a lock cannot be taken.
func remedy(path string, err error) string {
	dir := filepath.Dir(path)
	var planted plantedError
	var owned ownedError
	switch {
	case errors.As(err, &planted) && planted.owner != nil:
		return fmt.Sprintf("let a hand-over of user %d end that is under way; if there is none, remove it, and repeat the command: rm %s", *planted.owner, path)
	case errors.As(err, &planted):
		return "remove it, and repeat the command: " + planted.removal() + " " + path
	case errors.As(err, &owned):
		return "name another directory with EBB_RUNTIME_DIR, for the ranks too"
	case errors.Is(err, unix.EROFS):
		return "its file system is read-only here: mount it writable, or hand over from where the ranks run"
	case errors.Is(err, fs.ErrPermission):
		return fmt.Sprintf("user %d may not write there: hand over as the user whose ranks they are, or make %s that user's, with mode 0700", os.Geteuid(), dir)
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return "make room in " + dir
	case errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENAMETOOLONG):
		return "name a directory with EBB_RUNTIME_DIR"
	}
	return "see to it that files can be made in " + dir
}

// tryLock takes a lock and writes who holds it. The error is EWOULDBLOCK where somebody does.
func tryLock(path string, self Holder) (int, error) {
	for {
		fd, err := openLock(path)
		if err != nil {
			return -1, err
		}
		if err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB); err != nil {
			_ = unix.Close(fd)
			if err == unix.EINTR {
				continue
			}
			return -1, err
		}
		if !isThere(fd, path) {
			_ = unix.Close(fd) // its holder removed it in between
			continue
		}
		// Where this cannot be written the lock holds all the same, and only does not tell whose it is.
		text, _ := json.Marshal(self) // no field can fail to
		_ = unix.Ftruncate(fd, 0)
		_, _ = unix.Pwrite(fd, text, 0)
		return fd, nil
	}
}

// isThere reports whether an open file is the one that a path names.
func isThere(fd int, path string) bool {
	var mine, there unix.Stat_t
	return unix.Fstat(fd, &mine) == nil && unix.Lstat(path, &there) == nil && mine.Ino == there.Ino && mine.Dev == there.Dev
}

// openLock opens the file of a lock, and makes it where it is missing. One that the superuser makes belongs to the
// user whose directory it is, who could not open it else.
func openLock(path string) (int, error) {
	const flags = unix.O_RDWR | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_CLOEXEC
	var dir unix.Stat_t
	if err := unix.Stat(filepath.Dir(path), &dir); err != nil {
		return -1, err
	}
	if uid := os.Geteuid(); uid != 0 && dir.Uid != 0 && int(dir.Uid) != uid {
		return -1, ownedError{filepath.Dir(path), dir.Uid}
	}
	for {
		made := false
		fd, err := unix.Open(path, flags, 0)
		if err == unix.ENOENT {
			fd, err = unix.Open(path, flags|unix.O_CREAT|unix.O_EXCL, 0o600)
			made = err == nil
		}
		switch {
		case err == unix.EEXIST: // another's, made in between
			continue
		case err != nil:
			return -1, planted(path, err)
		case made:
			if int(dir.Uid) != os.Geteuid() {
				_ = unix.Fchown(fd, int(dir.Uid), int(dir.Gid))
			}
			return fd, nil
		}
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			_ = unix.Close(fd)
			return -1, err
		}
		if st.Nlink == 0 { // its holder removed it in between
			_ = unix.Close(fd)
			continue
		}
		if what := foreign(st, dir); what != nil {
			_ = unix.Close(fd)
			return -1, *what
		}
		return fd, nil
	}
}

// planted is the error of an open that failed, with what is there where that is no file of this user's.
func planted(path string, err error) error {
	var st, dir unix.Stat_t
	if unix.Lstat(path, &st) != nil || unix.Stat(filepath.Dir(path), &dir) != nil {
		return err
	}
	if err == unix.EACCES && st.Uid == 0 && int(dir.Uid) == os.Geteuid() {
		return unix.EWOULDBLOCK // the superuser has just made it, and gives it to this user next
	}
	if what := foreign(st, dir); what != nil {
		return *what
	}
	return err
}

// foreign says what something is that is no lock of this user's, or of the user whose directory it lies in where
// this is the superuser. It is nil for a lock.
func foreign(st, dir unix.Stat_t) *plantedError {
	uid := os.Geteuid()
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
	case unix.S_IFLNK:
		return &plantedError{what: "is a symbolic link"}
	case unix.S_IFIFO:
		return &plantedError{what: "is a FIFO"}
	case unix.S_IFSOCK:
		return &plantedError{what: "is a socket"}
	case unix.S_IFDIR:
		return &plantedError{what: "is a directory", directory: true}
	default:
		return &plantedError{what: "is a device"}
	}
	switch {
	case int(st.Uid) != uid && !(uid == 0 && st.Uid == dir.Uid):
		return &plantedError{what: fmt.Sprintf("is a file of user %d", st.Uid), owner: &st.Uid}
	case st.Nlink > 1:
		return &plantedError{what: fmt.Sprintf("is a file with %d names", st.Nlink)}
	}
	return nil
}
