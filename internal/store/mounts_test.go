package store_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ebb-offload/ebb/internal/store"
	"github.com/ebb-offload/ebb/internal/store/storetest"
)

// mount mounts a file system for the test, or skips it.
func mount(t *testing.T, args ...string) (dir string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: it mounts a file system")
	}
	dir = t.TempDir()
	if out, err := exec.Command("mount", append(args, dir)...).CombinedOutput(); err != nil {
		t.Skipf("mount %v: %v: %s", args, err, out)
	}
	t.Cleanup(func() {
		if out, err := exec.Command("umount", dir).CombinedOutput(); err != nil {
			t.Errorf("umount: %v: %s", err, out)
		}
	})
	return dir
}

// smallExt4 is an ext4 of its own, of a few MiB.
func smallExt4(t *testing.T, mib int64, options ...string) (dir string) {
	t.Helper()
	image := filepath.Join(t.TempDir(), "image")
	f, err := os.Create(image)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Truncate(mib<<20), f.Close()); err != nil {
		t.Fatal(err)
	}
	args := append([]string{"-q", "-F", "-O", "^has_journal", "-m", "0"}, options...)
	if out, err := exec.Command("mkfs.ext4", append(args, image)...).CombinedOutput(); err != nil {
		t.Skipf("mkfs.ext4: %v: %s", err, out)
	}
	return mount(t, "-o", "loop", image)
}

func free(t *testing.T, dir string) (bytes, inodes uint64) {
	t.Helper()
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		t.Fatal(err)
	}
	return st.Bavail * uint64(st.Bsize), st.Ffree
}

// TestDiskFull runs into a real lack of space.
func TestDiskFull(t *testing.T) {
	dir := smallExt4(t, 32)
	s := files(t, store.Options{Dirs: in(dir)})
	before, _ := free(t, dir)
	const big = 64 << 20
	b, err := s.Open(1, big)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		err = b.Reserve()
		var space *store.NoSpaceError
		if !errors.Is(err, store.ErrNoSpace) || !errors.Is(err, unix.ENOSPC) || !errors.As(err, &space) {
			t.Fatalf("reserve: %v, want a NoSpaceError", err)
		}
		if space.Need != big || space.Free != before || space.Dir != dir {
			t.Errorf("reported: %+v, want need %d and free %d in %s", space, big, before, dir)
		}
		if after, _ := free(t, dir); after != before {
			t.Errorf("free before: %d, after: %d", before, after)
		}
	}
	fits := backing(t, s, 8<<20)
	storetest.Write(t, fits, 8<<20, 1)
	if err := fits.Commit(); err != nil {
		t.Fatal(err)
	}
	storetest.Check(t, fits, 8<<20, 1)
	if u := s.Usage(); u.Files != 1 {
		t.Errorf("%d files, want 1", u.Files)
	}
}

// Two directories of one file system have its free bytes together, and not each.
func TestFreeBytesOfTwoDirectoriesOnOneFileSystemCountOnce(t *testing.T) {
	dir := smallExt4(t, 32)
	one, two := filepath.Join(dir, "one"), filepath.Join(dir, "two")
	if err := errors.Join(os.Mkdir(one, 0o700), os.Mkdir(two, 0o700)); err != nil {
		t.Fatal(err)
	}
	before, _ := free(t, dir)
	b, err := files(t, store.Options{Dirs: in(one, two)}).Open(1, 64<<20)
	if err != nil {
		t.Fatal(err)
	}
	var space *store.NoSpaceError
	if err := b.Reserve(); !errors.As(err, &space) {
		t.Fatal(err)
	}
	const overhead = 1 << 20 // of the files that were tried
	if space.Free > before || space.Free < before-overhead || space.Dir != one+", "+two {
		t.Errorf("%v: %d bytes are free, it says %d", err, before, space.Free)
	}
}

// TestReserveHoldsTheRoom: what was reserved can be written though the rest of the disk is full.
func TestReserveHoldsTheRoom(t *testing.T) {
	dir := smallExt4(t, 32)
	b := backing(t, files(t, store.Options{Dirs: in(dir)}), 8<<20)
	hog, err := os.Create(filepath.Join(dir, "hog"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = hog.Close() }()
	chunk := make([]byte, 1<<20)
	for err == nil {
		_, err = hog.Write(chunk)
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	for seed := range uint64(2) {
		storetest.Write(t, b, 8<<20, seed)
		if err := b.Commit(); err != nil {
			t.Fatal(err)
		}
		storetest.Check(t, b, 8<<20, seed)
	}
}

// TestInodesExhausted has space, but no inode.
func TestInodesExhausted(t *testing.T) {
	dir := smallExt4(t, 32, "-N", "32")
	for i := 0; ; i++ {
		err := os.WriteFile(filepath.Join(dir, fmt.Sprint("other-", i)), nil, 0o600)
		if errors.Is(err, unix.ENOSPC) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	s := files(t, store.Options{Dirs: in(dir)})
	b, err := s.Open(1, size)
	if err != nil {
		t.Fatal(err)
	}
	err = b.Reserve()
	var space *store.NoSpaceError
	if !errors.As(err, &space) || space.InodesFree != 0 || space.Free < size {
		t.Fatalf("reserve: %v, want a NoSpaceError with no inodes and enough bytes free", err)
	}
	below, err := files(t, store.Options{Dirs: in(filepath.Join(dir, "new"))}).Open(1, size)
	if err != nil {
		t.Fatal(err)
	}
	if err := below.Reserve(); !errors.Is(err, store.ErrNoSpace) {
		t.Errorf("reserve in a directory that cannot be made: %v, want ErrNoSpace", err)
	}
	if err := os.Remove(filepath.Join(dir, "other-0")); err != nil {
		t.Fatal(err)
	}
	if err := b.Reserve(); err != nil {
		t.Errorf("with one inode free: %v", err)
	}
}

// TestReadOnly says so and makes nothing.
func TestReadOnly(t *testing.T) {
	dir := mount(t, "-t", "tmpfs", "-o", "ro", "tmpfs")
	b, err := files(t, store.Options{Dirs: in(dir)}).Open(1, size)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Reserve(); !errors.Is(err, unix.EROFS) {
		t.Errorf("reserve: %v, want EROFS", err)
	}
}

// TestOtherFileSystems runs the conformance suite where the file system differs from that of
// the other tests: tmpfs refuses O_DIRECT on older kernels, ext4 with 1 KiB blocks has another
// alignment, overlayfs passes calls on.
func TestOtherFileSystems(t *testing.T) {
	for what, make := range map[string]func(t *testing.T) string{
		"tmpfs":     func(t *testing.T) string { return mount(t, "-t", "tmpfs", "-o", "size=64m", "tmpfs") },
		"ext4 1KiB": func(t *testing.T) string { return smallExt4(t, 32, "-b", "1024") },
		"overlay": func(t *testing.T) string {
			d := mount(t, "-t", "tmpfs", "-o", "size=64m", "tmpfs")
			for _, sub := range []string{"lower", "upper", "work"} {
				if err := os.Mkdir(filepath.Join(d, sub), 0o700); err != nil {
					t.Fatal(err)
				}
			}
			return mount(t, "-t", "overlay", "-o", fmt.Sprintf("lowerdir=%[1]s/lower,upperdir=%[1]s/upper,workdir=%[1]s/work", d), "overlay")
		},
	} {
		t.Run(what, func(t *testing.T) {
			dir := make(t)
			storetest.Run(t, storetest.Maker{New: func(testing.TB) *store.Store {
				return store.New(store.Options{BlockBytes: storetest.Block, Name: name, MaxOpen: 2, Dirs: in(dir)})
			}})
			if n := len(entries(t, dir)); n > 0 {
				t.Errorf("%d files are left", n)
			}
		})
	}
}

// entries lists a directory without what mkfs puts there.
func entries(t *testing.T, dir string) (names []string) {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		if e.Name() != "lost+found" {
			names = append(names, e.Name())
		}
	}
	return names
}

func TestADirectoryInMemoryIsSaidOnce(t *testing.T) {
	dir := mount(t, "-t", "tmpfs", "-o", "size=8m", "tmpfs")
	var said []string
	s := store.New(store.Options{
		BlockBytes: 4096, Dirs: func() []string { return []string{dir} },
		Name: func(seq uint64) string { return fmt.Sprintf("file-%d", seq) },
		Warn: func(line string) {
			if strings.Contains(line, "tmpfs") {
				said = append(said, line)
			}
		},
	})
	for id := range uint64(2) {
		b, err := s.Open(id, 4096)
		if err != nil {
			t.Fatal(err)
		}
		if err := b.Reserve(); err != nil {
			t.Fatal(err)
		}
	}
	if len(said) != 1 || !strings.Contains(said[0], dir) || !strings.Contains(said[0], "host memory") {
		t.Errorf("said: %q", said)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
