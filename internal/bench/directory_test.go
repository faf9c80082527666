package bench

import (
	"math"
	"os"
	"path/filepath"
	"slices"
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

func TestADiskWithoutRoom(t *testing.T) {
	base := diskDir(t)
	f := newRun(t, base)
	s := &session{o: NewOptions(), bytes: 1 << 50, libs: []library{{}}, folders: []*folder{f}, freeDevice: math.MaxUint64}
	s.o.Rows = []string{"pause"}
	err := s.fits(s.need())
	if launch.StatusOf(err) != launch.StatusUsage || !strings.Contains(err.Error(), "in "+base+" at a time and ") {
		t.Errorf("error %v", err)
	}
}

// Actors that do not fit into the room at the same time are measured one after the other.
func TestPartsShareTheRoomThereIs(t *testing.T) {
	rows := func(passes [][]part) (all [][]string) {
		for _, together := range passes {
			var names []string
			for _, p := range together {
				names = append(names, p.rows[0])
			}
			all = append(all, names)
		}
		return all
	}
	s := &session{o: NewOptions(), bytes: gib, libs: []library{{}}}
	s.o.Device, s.o.GiB, s.o.Rows = launch.DeviceSoft, 1, []string{"pause", "chunk", "adamw", "unchanged", "small"}
	for free, want := range map[uint64][][]string{
		16 * gib: {{"pause", "chunk", "adamw", "unchanged", "small"}},
		4 * gib:  {{"pause", "chunk", "adamw", "unchanged"}, {"small"}},
		3 * gib:  {{"pause", "chunk"}, {"adamw", "unchanged"}, {"small"}},
	} {
		s.freeDevice = free
		got, err := s.share()
		if err != nil || !slices.EqualFunc(rows(got), want, slices.Equal) {
			t.Errorf("%d GiB free: %v, %v; want %v", free/gib, rows(got), err, want)
		}
	}
	s.freeDevice = 2 * gib
	if got, err := s.share(); launch.StatusOf(err) != launch.StatusUsage {
		t.Errorf("2 GiB free: %v, %v", rows(got), err)
	}
}
