package rankdir

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// marker proves that ebb made a rank directory.
type marker struct {
	Version    int      `json:"version"`
	Identity   Identity `json:"identity"`
	Dir        string   `json:"dir"` // for people; decisions go by the identity
	Base       dirID    `json:"base"`
	RankDir    dirID    `json:"rank_dir"` // zero: about to be made
	Supervisor Owner    `json:"supervisor"`
	Host       string   `json:"host"` // for people, and to tell a reboot from another node
}

const (
	markerVersion = 1
	maxMarker     = 64 << 10 // bytes
	tempSuffix    = ".tmp"
)

// errMarker says that a marker proves nothing.
var errMarker = errors.New("marker is not usable")

// readMarker reads a marker of the base directory. An error is ENOENT, errMarker, or of I/O.
func (b *baseDir) readMarker(name string) (*marker, error) {
	fd, err := openat(b.ebb, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ELOOP) {
		return nil, fmt.Errorf("%w: it is a symlink", errMarker)
	}
	if errors.Is(err, unix.ENXIO) {
		return nil, fmt.Errorf("%w: it is a socket", errMarker)
	}
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), name)
	defer func() { _ = f.Close() }()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || int(st.Uid) != os.Geteuid() || st.Nlink > 1 || st.Size > maxMarker {
		return nil, fmt.Errorf("%w: not a small plain file of this user", errMarker)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxMarker))
	if err != nil {
		return nil, err
	}
	return decodeMarker(name, text)
}

// decodeMarker makes a marker of the text in a file of that name. An error is errMarker.
func decodeMarker(name string, text []byte) (*marker, error) {
	m := new(marker)
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(m); err != nil {
		return nil, fmt.Errorf("%w: %w", errMarker, err)
	}
	switch {
	case m.Version != markerVersion:
		return nil, fmt.Errorf("%w: version %d", errMarker, m.Version)
	case m.Identity.Validate() != nil || m.Identity.key()+markerSuffix != name:
		return nil, fmt.Errorf("%w: it is of another rank", errMarker)
	case m.Supervisor.UID != os.Geteuid():
		return nil, fmt.Errorf("%w: it is of user %d", errMarker, m.Supervisor.UID)
	}
	return m, nil
}

// writeMarker replaces the marker of an identity, all or nothing. Called with the entry locked.
func (b *baseDir) writeMarker(m *marker) error {
	name := m.Identity.key() + markerSuffix
	err := b.replaceFile(name, m)
	if err != nil {
		return fmt.Errorf("write marker %s: %w", filepath.Join(b.path, ebbDir, name), err)
	}
	return nil
}

func (b *baseDir) replaceFile(name string, m *marker) (err error) {
	text, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	temp := name + tempSuffix
	if err := b.remove(temp); err != nil { // of a claim that was killed here
		return err
	}
	fd, err := openat(b.ebb, temp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), temp)
	_, err = f.Write(append(text, '\n'))
	// Synced, so that after a power failure the directory never is there without its marker.
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = unix.Renameat(b.ebb, temp, b.ebb, name)
	}
	if err != nil {
		return errors.Join(err, b.remove(temp))
	}
	return unix.Fsync(b.ebb)
}

// remove unlinks a file of the .ebb directory; one that is not there is fine.
func (b *baseDir) remove(name string) error {
	err := retry(func() error { return unix.Unlinkat(b.ebb, name, 0) })
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove %s: %w", filepath.Join(b.path, ebbDir, name), err)
	}
	return nil
}
