package adopt

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// hook is one hook library of the package: what stands at its name, and what is kept of it.
type hook struct {
	name  string
	path  string
	there bool   // something stands at the name
	link  string // what the link at the name says; empty: it is no link
	ours  bool   // it is a link that Adopt made
	kept  bool   // there is an original
}

// hook looks at one name. A link to a libebb.so that somebody made by hand, without an original, is
// taken for the package's own file: it is put back as it was.
func (p *Package) hook(name string, m *manifest) (hook, error) {
	h := hook{name: name, path: filepath.Join(p.Dir, name)}
	info, err := os.Lstat(h.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return h, err
	case info.Mode()&fs.ModeSymlink != 0:
		h.there = true
		if h.link, err = os.Readlink(h.path); err != nil {
			return h, err
		}
	case info.Mode().IsRegular():
		h.there = true
	default:
		return h, refusef("%s is neither a file nor a link", h.path)
	}
	if _, err := os.Lstat(h.path + originalSuffix); err == nil {
		h.kept = true
	} else if !errors.Is(err, fs.ErrNotExist) {
		return h, err
	}
	h.ours = filepath.Base(h.link) == libraryName && (h.kept || m.file(name) != nil)
	return h, nil
}

// record is the manifest's entry for the original.
func (h *hook) record(before *manifest) (manifestFile, error) {
	original := h.path
	if h.ours {
		if old := before.file(h.name); old != nil {
			return *old, nil
		}
		original += originalSuffix
	}
	sum, err := hashOf(original)
	return manifestFile{Name: h.name, SHA256: sum}, err
}

// replace keeps the original and puts the link in its place.
func (h *hook) replace(link string) error {
	if h.ours && h.link == link {
		return nil
	}
	if !h.ours {
		if err := h.keep(); err != nil {
			return err
		}
	}
	fresh := h.path + newSuffix
	if err := removeIfThere(fresh); err != nil {
		return err
	}
	if err := os.Symlink(link, fresh); err != nil {
		return refusef("linking to libebb.so: %w; the package must lie on a file system with symbolic links", err)
	}
	if err := os.Rename(fresh, h.path); err != nil {
		return errors.Join(err, removeIfThere(fresh))
	}
	return nil
}

// keep gives the original its second name. One that is there already is of an interrupted adoption,
// or of a version that has been replaced since: then it is of no use any more.
func (h *hook) keep() error {
	kept := h.path + originalSuffix
	if h.kept {
		if err := removeIfThere(kept); err != nil {
			return err
		}
	}
	err := os.Link(h.path, kept)
	if err == nil {
		return nil
	}
	// No hard links here, or not to files of somebody else.
	if h.link != "" {
		return os.Symlink(h.link, kept)
	}
	info, errStat := os.Stat(h.path)
	if errStat != nil {
		return errors.Join(err, errStat)
	}
	if err := copyFile(h.path, kept, info.Mode().Perm()); err != nil {
		return err
	}
	return os.Chtimes(kept, info.ModTime(), info.ModTime())
}

// restore puts the original back. What stands at the name is left alone unless it is the link that
// Adopt made. why is not empty when the original cannot be put back.
func (h *hook) restore(m *manifest) (why string, err error) {
	if err := removeIfThere(h.path + newSuffix); err != nil {
		return "", err
	}
	if err := removeIfThere(h.path + originalSuffix + newSuffix); err != nil {
		return "", err
	}
	kept := h.path + originalSuffix
	if !h.ours {
		return "", removeIfThere(kept)
	}
	if !h.kept {
		return "its original is gone", nil
	}
	if f := m.file(h.name); f != nil {
		sum, err := hashOf(kept)
		if err != nil {
			return "", err
		}
		if sum != f.SHA256 {
			return "its original was changed", nil
		}
	}
	return "", os.Rename(kept, h.path)
}

// copyFile makes or replaces a file by a copy, in one step.
func copyFile(from, to string, mode fs.FileMode) error {
	fresh := to + newSuffix
	if err := removeIfThere(fresh); err != nil {
		return err
	}
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(fresh, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	if err == nil {
		err = out.Chmod(mode)
	}
	if err == nil {
		err = out.Sync()
	}
	if closeErr := out.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Rename(fresh, to)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("copying %s to %s: %w", from, to, err), removeIfThere(fresh))
	}
	return nil
}

func hashOf(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", fmt.Errorf("reading %s: %w", path, err)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

func removeIfThere(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// syncFolder makes names durable.
func syncFolder(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	defer d.Close()
	// Some file systems cannot sync a folder (EINVAL); they keep names in their own way.
	if err := d.Sync(); err != nil && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("syncing %s: %w", path, err)
	}
	return nil
}
