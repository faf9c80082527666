package rankdir

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// Why a directory cannot be used; the error is a *DirError.
var (
	ErrSymlink  = errors.New("is a symlink")
	ErrNotDir   = errors.New("is not a directory")
	ErrOwner    = errors.New("belongs to another user")
	ErrWritable = errors.New("is writable by others")
	ErrForeign  = errors.New("holds files that are not ebb's")
)

// DirError says which directory cannot be used, why, and what helps.
type DirError struct {
	Path   string
	Kind   error // one of the above
	Detail string
	Remedy string
}

func (e *DirError) Error() string {
	s := fmt.Sprintf("directory %s %v", e.Path, e.Kind)
	if e.Detail != "" {
		s += " (" + e.Detail + ")"
	}
	return s + ": " + e.Remedy
}

func (e *DirError) Unwrap() error { return e.Kind }

// fileID tells the files apart that are there at one time.
type fileID struct {
	Dev uint64
	Ino uint64
}

func idOf(st *unix.Stat_t) fileID { return fileID{Dev: st.Dev, Ino: st.Ino} }

// dirID is a directory as a marker remembers it. The time of birth, where the file system keeps
// one, tells it from a later directory that was given the same inode number.
type dirID struct {
	Dev  uint64 `json:"dev"`
	Ino  uint64 `json:"ino"`
	Born int64  `json:"born"` // nanoseconds since 1970; 0: not kept
}

// identify returns the identity of a name in a directory, or of the directory itself for "".
func identify(dir int, name string) (dirID, error) {
	var st unix.Statx_t
	err := retry(func() error {
		return unix.Statx(dir, name, unix.AT_EMPTY_PATH|unix.AT_SYMLINK_NOFOLLOW, unix.STATX_BASIC_STATS|unix.STATX_BTIME, &st)
	})
	id := dirID{Dev: unix.Mkdev(st.Dev_major, st.Dev_minor), Ino: st.Ino}
	if st.Mask&unix.STATX_BTIME != 0 {
		id.Born = st.Btime.Sec*1e9 + int64(st.Btime.Nsec)
	}
	return id, err
}

// retry repeats a call that a signal interrupted.
func retry(call func() error) error {
	for {
		if err := call(); err != unix.EINTR {
			return err
		}
	}
}

func openat(dir int, name string, flags int, mode uint32) (fd int, err error) {
	err = retry(func() error {
		fd, err = unix.Openat(dir, name, flags, mode)
		return err
	})
	return fd, err
}

// baseDir is an open base directory with its .ebb directory.
type baseDir struct {
	path  string // absolute
	fd    int
	ebb   int
	id    dirID
	local bool // no other node can write to the file system
}

// openBase opens a base directory. create: it is made if it is missing, but not what it is in; else
// the error is ENOENT.
func openBase(path string, create bool) (*baseDir, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("directory %q: %w", path, err)
	}
	if create {
		if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, os.ErrExist) && !errors.Is(err, unix.ENOTDIR) {
			return nil, fmt.Errorf("create directory %s: %w", path, err)
		}
	}
	fd, id, err := openDir(unix.AT_FDCWD, path, path)
	if err != nil {
		return nil, err
	}
	b := &baseDir{path: path, fd: fd, ebb: -1, id: id, local: local(fd)}
	if b.ebb, _, err = b.sub(b.fd, ebbDir, filepath.Join(path, ebbDir), create); err != nil {
		b.close()
		return nil, err
	}
	return b, nil
}

func (b *baseDir) close() {
	_ = unix.Close(b.fd)
	if b.ebb >= 0 {
		_ = unix.Close(b.ebb)
	}
}

// openDir opens a directory that is this user's alone to write; path is for people.
func openDir(parent int, name, path string) (fd int, id dirID, err error) {
	var st unix.Stat_t
	fd, err = openat(parent, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		if unix.Fstatat(parent, name, &st, unix.AT_SYMLINK_NOFOLLOW) == nil && st.Mode&unix.S_IFMT == unix.S_IFLNK {
			return -1, id, &DirError{Path: path, Kind: ErrSymlink, Remedy: "name the directory itself"}
		}
		return -1, id, &DirError{Path: path, Kind: ErrNotDir, Remedy: "choose another one"}
	}
	if err != nil {
		return -1, id, fmt.Errorf("open directory %s: %w", path, err)
	}
	if err = unix.Fstat(fd, &st); err == nil {
		id, err = identify(fd, "")
	}
	if err != nil {
		err = fmt.Errorf("look at directory %s: %w", path, err)
	} else {
		err = checkDir(&st, path)
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, id, err
	}
	return fd, id, nil
}

func checkDir(st *unix.Stat_t, path string) error {
	if int(st.Uid) != os.Geteuid() {
		return &DirError{Path: path, Kind: ErrOwner, Detail: fmt.Sprintf("uid %d, not %d", st.Uid, os.Geteuid()), Remedy: "choose a directory of your own"}
	}
	if st.Mode&0o022 != 0 {
		remedy := "run chmod go-w on it, or choose another one"
		if st.Mode&unix.S_ISVTX != 0 { // such as /tmp: meant for all users
			remedy = "choose another one, for example a new one in it"
		}
		return &DirError{Path: path, Kind: ErrWritable, Detail: fmt.Sprintf("mode %04o", st.Mode&0o7777), Remedy: remedy}
	}
	return nil
}

// sub opens a directory within another, made if it is missing and create is set.
func (b *baseDir) sub(parent int, name, path string, create bool) (fd int, id dirID, err error) {
	for {
		fd, id, err = openDir(parent, name, path)
		if !create || !errors.Is(err, unix.ENOENT) {
			return fd, id, err
		}
		err = retry(func() error { return unix.Mkdirat(parent, name, 0o700) })
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return -1, id, fmt.Errorf("create directory %s: %w", path, err)
		}
	}
}

// names lists a directory, sorted. One that was removed after it was opened has nothing in it.
func names(dir int) ([]string, error) {
	fd, err := openat(dir, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), ".")
	defer func() { _ = f.Close() }()
	list, err := f.Readdirnames(-1)
	if errors.Is(err, unix.ENOENT) { // removed between the two calls
		return nil, nil
	}
	slices.Sort(list)
	return list, err
}

// Local is local, for what lies beside the leases.
func Local(fd int) bool { return local(fd) }

// local reports whether only this node's kernel can write to the file system. Those that are
// not known to be local are taken for shared ones.
func local(fd int) bool {
	var st unix.Statfs_t
	if err := retry(func() error { return unix.Fstatfs(fd, &st) }); err != nil {
		return false
	}
	switch uint32(st.Type) {
	case unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC, unix.F2FS_SUPER_MAGIC,
		unix.TMPFS_MAGIC, unix.RAMFS_MAGIC, unix.OVERLAYFS_SUPER_MAGIC,
		0x2fc12fc1, // ZFS
		0xca451a4e: // bcachefs
		return true
	}
	return false
}
