package bench

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ebb-offload/ebb/internal/launch"
)

func TestDirectoriesThatCannotBeMeasured(t *testing.T) {
	dir := diskDir(t)
	if disk, err := checkDirectory(dir); err != nil || disk.Dir != dir || disk.FileSystem == "" {
		t.Errorf("a good directory: %+v, %v", disk, err)
	}
	file, link, colon := filepath.Join(dir, "file"), filepath.Join(dir, "link"), filepath.Join(dir, "a:b")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(colon, 0o700); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		filepath.Join(dir, "missing"): "no such file or directory; make it, or name a directory on a local disk with --disk-dir",
		file:                          "is not a directory",
		link:                          "is a symbolic link",
		colon:                         "has a colon",
		"/dev/shm":                    "that is memory, no disk",
	} {
		_, err := checkDirectory(path)
		if launch.StatusOf(err) != launch.StatusUsage || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
	}
}

// A run removes what dead runs left, and nothing else.
func TestFoldersOfDeadRunsAreRemoved(t *testing.T) {
	base := diskDir(t)
	dead, live := filepath.Join(base, runPrefix+"dead"), filepath.Join(base, runPrefix+"live")
	foreign := filepath.Join(base, "mine")
	for _, dir := range []string{dead, live, foreign} {
		if err := os.MkdirAll(filepath.Join(dir, "rank-1"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "rank-1", "ebb-x.bak"), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	lock, err := lockFolder(live)
	if err != nil || lock == nil {
		t.Fatal(lock, err)
	}
	defer lock.Close()

	f, err := makeFolder(base)
	if err != nil {
		t.Fatal(err)
	}
	path, err := f.forRank()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(path, "y"), []byte("y"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dead); !os.IsNotExist(err) {
		t.Errorf("the folder of a dead run is still there (%v)", err)
	}
	// A second run at the same time takes neither the first one's nor the other's.
	g, err := makeFolder(base)
	if err != nil {
		t.Fatal(err)
	}
	for _, kept := range []string{live, foreign} {
		if _, err := os.Stat(filepath.Join(kept, "rank-1", "ebb-x.bak")); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Stat(filepath.Join(path, "y")); err != nil {
		t.Error(err)
	}
	for _, one := range []*folder{f, g} {
		if err := one.remove(); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(one.path); !os.IsNotExist(err) {
			t.Errorf("%s is still there (%v)", one.path, err)
		}
	}
}

func TestADiskWithoutRoom(t *testing.T) {
	base := diskDir(t)
	f, err := makeFolder(base)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := f.remove(); err != nil {
			t.Error(err)
		}
	}()
	s := &session{o: NewOptions(), bytes: 1 << 50, libs: []library{{}}, folders: []*folder{f}}
	s.o.Rows = []string{"pause"}
	err = s.checkRoom(math.MaxUint64)
	if launch.StatusOf(err) != launch.StatusUsage || !strings.Contains(err.Error(), "in "+base+" at a time and ") {
		t.Errorf("error %v", err)
	}
}
