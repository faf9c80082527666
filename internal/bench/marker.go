package bench

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/ebb-offload/ebb/internal/rankdir"
)

// markerName is the file in a run's folder that proves that a run made it.
const markerName = ".ebb-bench.json"

const (
	markerVersion = 1
	markerBytes   = 4096 // more than a marker has
)

// marker is what is in it. A folder without one is never touched. One that was copied, restored or
// renamed is another one than its marker is of.
type marker struct {
	Version int           `json:"version"`
	Name    string        `json:"name"` // of the folder
	Folder  identity      `json:"folder"`
	Owner   rankdir.Owner `json:"owner"` // the run
}

// identity is a directory. The time of birth, where the file system keeps one, tells it from a later
// one that was given the same number.
type identity struct {
	Dev  uint64 `json:"dev"` // counts within one boot
	Ino  uint64 `json:"ino"`
	Born int64  `json:"born"` // nanoseconds since 1970; 0: not kept
}

func identify(dir *os.File) (identity, error) {
	var st unix.Statx_t
	err := unix.Statx(int(dir.Fd()), "", unix.AT_EMPTY_PATH|unix.AT_SYMLINK_NOFOLLOW, unix.STATX_BASIC_STATS|unix.STATX_BTIME, &st)
	if err != nil {
		return identity{}, &os.PathError{Op: "look at", Path: dir.Name(), Err: err}
	}
	id := identity{Dev: unix.Mkdev(st.Dev_major, st.Dev_minor), Ino: st.Ino}
	if st.Mask&unix.STATX_BTIME != 0 {
		id.Born = st.Btime.Sec*1e9 + int64(st.Btime.Nsec)
	}
	return id, nil
}

// mark writes the marker.
func (f *folder) mark() error {
	id, err := identify(f.dir)
	if err != nil {
		return err
	}
	self, err := rankdir.Self()
	if err != nil {
		return err
	}
	text, err := (&marker{Version: markerVersion, Name: f.name, Folder: id, Owner: self}).text()
	if err != nil {
		return err
	}
	fd, err := unix.Openat(int(f.dir.Fd()), markerName, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return fmt.Errorf("make %s: %w", filepath.Join(f.path, markerName), err)
	}
	file := os.NewFile(uintptr(fd), filepath.Join(f.path, markerName))
	_, err = file.Write(text)
	if err = errors.Join(err, file.Close()); err != nil {
		err = errors.Join(err, unix.Unlinkat(int(f.dir.Fd()), markerName, 0))
	}
	return err
}

// marker is the folder's marker; nil where there is none, or something else has its name.
func (f *folder) marker() (*marker, error) {
	fd, err := unix.Openat(int(f.dir.Fd()), markerName, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, nil //nolint:nilerr // what cannot be read proves nothing
	}
	file := os.NewFile(uintptr(fd), filepath.Join(f.path, markerName))
	defer func() { _ = file.Close() }()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("look at %s: %w", file.Name(), err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || int(st.Uid) != os.Geteuid() || st.Nlink != 1 || st.Size > markerBytes {
		return nil, nil
	}
	text, err := io.ReadAll(io.LimitReader(file, markerBytes))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", file.Name(), err)
	}
	return parseMarker(text), nil
}

func (m *marker) text() ([]byte, error) {
	text, err := json.Marshal(m)
	return append(text, '\n'), err
}

// parseMarker is nil for what is no marker.
func parseMarker(text []byte) *marker {
	m := new(marker)
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if d.Decode(m) != nil || m.Version != markerVersion || !runName.MatchString(m.Name) {
		return nil
	}
	return m
}

// fits says why a marker is not one of this folder and of this user.
func (f *folder) fits(m *marker) (why string, err error) {
	id, err := identify(f.dir)
	if err != nil {
		return "", err
	}
	self, err := rankdir.Self()
	if err != nil {
		return "", err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.dir.Fd()), &st); err != nil {
		return "", fmt.Errorf("look at %s: %w", f.path, err)
	}
	sameDevice := id.Dev == m.Folder.Dev || m.Owner.BootID != self.BootID // numbered anew at each boot
	if m.Name != f.name || id.Ino != m.Folder.Ino || id.Born != m.Folder.Born || !sameDevice {
		return "its marker is of another folder", nil
	}
	if int(st.Uid) != self.UID || m.Owner.UID != self.UID || st.Mode&0o777 != 0o700 {
		return "it is not as a run makes it", nil
	}
	return "", nil
}
