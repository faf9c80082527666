package adopt

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

const manifestFormat = 1

// manifest says what an adoption did. It names no folder, so that it holds when the tree is moved.
type manifest struct {
	Format         int            `json:"format"`
	EbbVersion     string         `json:"ebb_version"`
	AdoptedAt      time.Time      `json:"adopted_at"`
	PackageVersion string         `json:"package_version"`
	Link           string         `json:"link"`
	Copied         bool           `json:"copied"`
	Files          []manifestFile `json:"files"`
}

type manifestFile struct {
	Name   string `json:"name"`
	SHA256 string `json:"sha256"` // of the original
}

// file is the entry of a hook library, or nil. There is none in no manifest.
func (m *manifest) file(name string) *manifestFile {
	if m == nil {
		return nil
	}
	for i := range m.Files {
		if m.Files[i].Name == name {
			return &m.Files[i]
		}
	}
	return nil
}

// readManifest returns nil when there is none.
func readManifest(dir string) (*manifest, error) {
	path := filepath.Join(dir, manifestName)
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var m manifest
	if err := json.Unmarshal(text, &m); err != nil {
		return nil, refusef("%s cannot be read: %w; remove it and run ebb adopt again", path, err)
	}
	if m.Format != manifestFormat {
		return nil, refusef("%s has format %d, this ebb knows %d: use the ebb that wrote it (%s)", path, m.Format, manifestFormat, m.EbbVersion)
	}
	for _, f := range m.Files {
		if !hookPattern.MatchString(f.Name) {
			return nil, refusef("%s names %q, which is no hook library; remove it and run ebb adopt again", path, f.Name)
		}
	}
	return &m, nil
}

func (m *manifest) encode() ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	err := e.Encode(m)
	return b.Bytes(), err
}

func (m *manifest) write(dir string) error {
	text, err := m.encode()
	if err != nil {
		return err
	}
	path := filepath.Join(dir, manifestName)
	fresh := path + newSuffix
	if err := removeIfThere(fresh); err != nil {
		return err
	}
	f, err := os.OpenFile(fresh, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err == nil {
		err = f.Sync()
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Rename(fresh, path)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("writing %s: %w", path, err), removeIfThere(fresh))
	}
	return syncFolder(dir)
}
