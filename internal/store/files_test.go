package store_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ebb-offload/ebb/internal/store"
	"github.com/ebb-offload/ebb/internal/store/storetest"
)

const size = 3*storetest.Block + 100

// files makes a store on a directory; the test closes it.
func files(t *testing.T, o store.Options) *store.Store {
	t.Helper()
	o.BlockBytes = storetest.Block
	if o.Name == nil {
		o.Name = name
	}
	s := store.New(o)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func in(dirs ...string) func() []string { return func() []string { return dirs } }

// backing opens a backing and reserves its room.
func backing(t *testing.T, s *store.Store, size uint64) store.Backing {
	t.Helper()
	b, err := s.Open(1, size)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Reserve(); err != nil {
		t.Fatal(err)
	}
	return b
}

func pathOf(b store.Backing) string { return storetest.File(b, 0) }

func stat(t *testing.T, path string) (st unix.Stat_t) {
	t.Helper()
	if err := unix.Lstat(path, &st); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return st
}

func isEmpty(t *testing.T, dir string) bool {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	return len(list) == 0
}

func TestNothingIsMadeBeforeReserve(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "x")
	b, err := files(t, store.Options{Dirs: in(dir)}).Open(1, size)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory is there before Reserve (%v)", err)
	}
	if err := b.Reserve(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); err != nil {
		t.Error(err)
	}
}

// TestTheFile looks at what Reserve makes, and that cycles change neither size nor inode.
func TestTheFile(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "deep", "er")
	b := backing(t, files(t, store.Options{Dirs: in(dir)}), size)
	for _, d := range []string{dir, filepath.Dir(dir)} {
		if st := stat(t, d); st.Mode&0o7777 != 0o700 {
			t.Errorf("directory %s has mode %o, want 0700", d, st.Mode&0o7777)
		}
	}
	first := stat(t, pathOf(b))
	const padded = (size + 4095) &^ 4095
	if first.Mode != unix.S_IFREG|0o600 || first.Size != padded || first.Blocks*512 < padded {
		t.Errorf("mode %o, size %d, room %d; want a plain file 0600 of %d bytes with all its room", first.Mode, first.Size, first.Blocks*512, padded)
	}
	for seed := range uint64(3) {
		if err := b.Reserve(); err != nil {
			t.Fatal(err)
		}
		storetest.Write(t, b, size, seed)
		if err := b.Commit(); err != nil {
			t.Fatal(err)
		}
		if st := stat(t, pathOf(b)); st.Ino != first.Ino || st.Size != first.Size || st.Blocks != first.Blocks {
			t.Errorf("cycle %d: inode %d size %d blocks %d, was %d %d %d", seed, st.Ino, st.Size, st.Blocks, first.Ino, first.Size, first.Blocks)
		}
	}
}

// TestPaddingIsZero: what lies behind a block in its buffer does not reach the disk.
func TestPaddingIsZero(t *testing.T) {
	b := backing(t, files(t, store.Options{Dirs: in(t.TempDir())}), 100)
	p := storetest.Buffer(t, 4096)
	for i := range p {
		p[i] = 0xee
	}
	if err := b.WriteBlock(0, p[:100], store.Block{State: store.Stored}); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(pathOf(b))
	if err != nil {
		t.Fatal(err)
	}
	want := append(bytes.Repeat([]byte{0xee}, 100), make([]byte, 3996)...)
	if !bytes.Equal(got, want) {
		t.Errorf("the file holds %x", got)
	}
}

// TestUnalignedMemoryIsRefused, rather than taken for a file system without direct I/O.
func TestUnalignedMemoryIsRefused(t *testing.T) {
	s := files(t, store.Options{Dirs: in(t.TempDir())})
	b := backing(t, s, storetest.Block)
	p := storetest.Buffer(t, 2*storetest.Block)
	if err := b.WriteBlock(0, p[512:512+storetest.Block], store.Block{State: store.Stored}); err == nil {
		t.Error("a buffer that begins within a page was taken")
	}
	small := backing(t, s, 100)
	if err := small.WriteBlock(0, p[:100:4095], store.Block{State: store.Stored}); err == nil {
		t.Error("a buffer without padding was taken")
	}
	if s.Usage().Buffered {
		t.Error("the store gave up direct I/O")
	}
}

// TestDirectorySetting: a backing keeps to the directory of its first Reserve, later ones take
// the new setting.
func TestDirectorySetting(t *testing.T) {
	one, two := t.TempDir(), t.TempDir()
	setting := one
	s := files(t, store.Options{Dirs: func() []string { return []string{setting} }})
	first := backing(t, s, size)
	setting = two
	second := backing(t, s, size)
	storetest.Write(t, first, size, 1)
	storetest.Write(t, second, size, 2)
	for _, c := range []struct {
		b   store.Backing
		dir string
	}{{first, one}, {second, two}} {
		if err := c.b.Reserve(); err != nil {
			t.Fatal(err)
		}
		if filepath.Dir(pathOf(c.b)) != c.dir {
			t.Errorf("%s is not in %s", pathOf(c.b), c.dir)
		}
	}
	storetest.Check(t, first, size, 1)
	storetest.Check(t, second, size, 2)
}

// TestBadDirectoryThenGood: a failed Reserve binds the backing to nothing.
func TestBadDirectoryThenGood(t *testing.T) {
	setting := ""
	b, err := files(t, store.Options{Dirs: func() []string { return []string{setting} }}).Open(1, size)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("user"), 0o600); err != nil {
		t.Fatal(err)
	}
	for bad, says := range map[string]string{
		"": "no directory is set", file: file, file + "/below": file, "/proc/no": "create directory /proc/no",
	} {
		setting = bad
		if err := b.Reserve(); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("directory %q: %v, want an error that says %q", bad, err, says)
		}
	}
	setting = t.TempDir()
	if err := b.Reserve(); err != nil {
		t.Error(err)
	}
}

func TestRelativeDirectory(t *testing.T) {
	t.Chdir(t.TempDir())
	s := files(t, store.Options{Dirs: in("backups"), MaxOpen: 1})
	b := backing(t, s, size)
	storetest.Write(t, b, size, 1)
	t.Chdir(t.TempDir())
	other := backing(t, s, size) // takes the one descriptor
	storetest.Write(t, other, size, 2)
	storetest.Check(t, b, size, 1)
}

func TestSymlinkedDirectory(t *testing.T) {
	target := t.TempDir()
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(target, link); err != nil {
		t.Fatal(err)
	}
	b := backing(t, files(t, store.Options{Dirs: in(link)}), size)
	if stat(t, filepath.Join(target, filepath.Base(pathOf(b)))).Size == 0 {
		t.Error("the file is not in the symlink's target")
	}
	strict, err := files(t, store.Options{Dirs: in(link), NoFollowDir: true}).Open(1, size)
	if err != nil {
		t.Fatal(err)
	}
	if err := strict.Reserve(); !errors.Is(err, unix.ENOTDIR) || !strings.Contains(err.Error(), "symlink") {
		t.Errorf("with NoFollowDir: %v, want a refusal that says symlink", err)
	}
}

// A job's directory that a link has taken the place of is refused as the rank's is, and nothing is made where
// it leads.
func TestALinkInPlaceOfAJobsDirectoryIsNotFollowed(t *testing.T) {
	base, elsewhere := t.TempDir(), t.TempDir()
	if err := os.Symlink(elsewhere, filepath.Join(base, "job")); err != nil {
		t.Fatal(err)
	}
	for _, made := range []bool{false, true} {
		if made {
			if err := os.Mkdir(filepath.Join(elsewhere, "rank"), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		b, err := files(t, store.Options{Dirs: in(filepath.Join(base, "job", "rank")), NoFollowDir: true}).Open(1, size)
		if err != nil {
			t.Fatal(err)
		}
		if err := b.Reserve(); !errors.Is(err, unix.ENOTDIR) {
			t.Errorf("the rank's directory made %v: %v", made, err)
		}
		for _, name := range []string{"rank/*", "*.bak"} {
			if found, _ := filepath.Glob(filepath.Join(elsewhere, name)); len(found) > 0 {
				t.Errorf("made there: %v", found)
			}
		}
	}
}

// TestNamesAlreadyTaken: whatever is there under the next name stays as it is.
func TestNamesAlreadyTaken(t *testing.T) {
	dir, victim := t.TempDir(), filepath.Join(t.TempDir(), "victim")
	for _, path := range []string{victim, filepath.Join(dir, name(0))} {
		if err := os.WriteFile(path, []byte("theirs"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Symlink(victim, filepath.Join(dir, name(1))), os.Mkdir(filepath.Join(dir, name(2)), 0o700), unix.Mkfifo(filepath.Join(dir, name(3)), 0o600)); err != nil {
		t.Fatal(err)
	}
	b := backing(t, files(t, store.Options{Dirs: in(dir)}), size)
	storetest.Write(t, b, size, 1)
	if got := filepath.Base(pathOf(b)); got != name(4) {
		t.Errorf("the file is %s, want %s", got, name(4))
	}
	for _, path := range []string{victim, filepath.Join(dir, name(0))} {
		if got, err := os.ReadFile(path); err != nil || string(got) != "theirs" {
			t.Errorf("%s holds %q (error: %v)", path, got, err)
		}
	}
	stuck, err := files(t, store.Options{Dirs: in(dir), Name: func(uint64) string { return name(0) }}).Open(1, size)
	if err != nil {
		t.Fatal(err)
	}
	if err := stuck.Reserve(); !errors.Is(err, unix.EEXIST) {
		t.Errorf("with one name for all: %v, want EEXIST", err)
	}
}

// evict makes the store close the descriptor of every file but one (MaxOpen is 1).
func evict(t *testing.T, s *store.Store) { backing(t, s, 1) }

func TestLostFile(t *testing.T) {
	lose := map[string]func(t *testing.T, path string){
		"file removed": func(t *testing.T, path string) {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		},
		"file replaced": func(t *testing.T, path string) {
			if err := errors.Join(os.Rename(path, path+".old"), os.WriteFile(path, []byte("theirs"), 0o600)); err != nil {
				t.Fatal(err)
			}
		},
		"file replaced by a symlink": func(t *testing.T, path string) {
			if err := errors.Join(os.Rename(path, path+".old"), os.Symlink(path+".old", path)); err != nil {
				t.Fatal(err)
			}
		},
		"directory removed": func(t *testing.T, path string) {
			if err := os.RemoveAll(filepath.Dir(path)); err != nil {
				t.Fatal(err)
			}
		},
		"directory emptied and made again": func(t *testing.T, path string) {
			if err := errors.Join(os.RemoveAll(filepath.Dir(path)), os.Mkdir(filepath.Dir(path), 0o755)); err != nil {
				t.Fatal(err)
			}
		},
	}
	for what, lose := range lose {
		t.Run(what, func(t *testing.T) {
			var said []string
			s := files(t, store.Options{
				Dirs: in(filepath.Join(t.TempDir(), "d")), MaxOpen: 1, Warn: func(line string) { said = append(said, line) },
			})
			b := backing(t, s, size)
			path := pathOf(b)
			storetest.Write(t, b, size, 1)
			if err := b.Commit(); err != nil {
				t.Fatal(err)
			}
			evict(t, s)
			lose(t, path)
			if err := b.ReadBlock(0, storetest.Buffer(t, storetest.Block)); !errors.Is(err, store.ErrLost) || !strings.Contains(err.Error(), path) {
				t.Errorf("read: %v, want ErrLost that names the file", err)
			}
			if err := b.Commit(); !errors.Is(err, store.ErrLost) {
				t.Errorf("commit: %v, want ErrLost", err)
			}
			// The next pause makes it again.
			if err := b.Reserve(); err != nil {
				t.Fatal(err)
			}
			if err := b.ReadBlock(0, storetest.Buffer(t, storetest.Block)); !errors.Is(err, store.ErrAbsent) {
				t.Errorf("read of the new file: %v, want ErrAbsent", err)
			}
			storetest.Write(t, b, size, 2)
			if err := b.Commit(); err != nil {
				t.Fatal(err)
			}
			storetest.Check(t, b, size, 2)
			if u := s.Usage(); u.Files != 2 {
				t.Errorf("%d files, want 2", u.Files)
			}
			// What took the name stays.
			if strings.HasPrefix(what, "file replaced") {
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
				stat(t, path)
			}
		})
	}
}

// TestFileChangedBetweenPauses: blocks that the file holds are not written again, so what somebody
// else did to it must be found before memory is given up for them.
func TestFileChangedBetweenPauses(t *testing.T) {
	edit := func(t *testing.T, path string, call func(fd int) error) {
		t.Helper()
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		// A file system's clock has ticks: go on until the change has another time than our last write.
		for before := stat(t, path).Ctim; stat(t, path).Ctim == before; {
			if err := call(int(f.Fd())); err != nil {
				t.Fatal(err)
			}
		}
	}
	change := map[string]func(t *testing.T, path string){
		"cut": func(t *testing.T, path string) {
			edit(t, path, func(fd int) error { return unix.Ftruncate(fd, storetest.Block) })
		},
		"cut and made as long again": func(t *testing.T, path string) {
			long := stat(t, path).Size
			edit(t, path, func(fd int) error {
				return errors.Join(unix.Ftruncate(fd, 0), unix.Ftruncate(fd, long))
			})
		},
		"written to": func(t *testing.T, path string) {
			edit(t, path, func(fd int) error { _, err := unix.Pwrite(fd, []byte("theirs"), 10); return err })
		},
		"a hole made": func(t *testing.T, path string) {
			edit(t, path, func(fd int) error {
				return unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, storetest.Block)
			})
		},
	}
	for what, change := range change {
		t.Run(what, func(t *testing.T) {
			b := backing(t, files(t, store.Options{Dirs: in(t.TempDir())}), size)
			storetest.Write(t, b, size, 1)
			if err := b.Commit(); err != nil {
				t.Fatal(err)
			}
			if err := b.Reserve(); err != nil || b.Block(0).State != store.Stored {
				t.Fatalf("untouched: %v, block 0 %v, want it stored", err, b.Block(0))
			}
			change(t, pathOf(b))
			if err := b.Commit(); !errors.Is(err, store.ErrLost) {
				t.Errorf("commit of a pause that wrote nothing: %v, want ErrLost", err)
			}
			if b.Block(0).State != store.Absent {
				t.Errorf("block 0 after it: %v, want it absent", b.Block(0))
			}
			storetest.Write(t, b, size, 2)
			if err := b.Commit(); what != "cut" && err != nil {
				t.Errorf("commit after all was written again: %v", err)
			}
			change(t, pathOf(b))
			if err := b.Reserve(); err != nil {
				t.Fatal(err)
			}
			if b.Block(0).State != store.Absent {
				t.Errorf("block 0 in the next pause: %v, want it absent", b.Block(0))
			}
			storetest.Write(t, b, size, 3)
			if err := b.Commit(); err != nil {
				t.Fatal(err)
			}
			storetest.Check(t, b, size, 3)
		})
	}
}

// TestDirectoryRenamed while its files hold bytes: they are found, and removed in the end.
func TestDirectoryRenamed(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "d")
	s := files(t, store.Options{Dirs: in(dir), MaxOpen: 1})
	b := backing(t, s, size)
	storetest.Write(t, b, size, 1)
	evict(t, s)
	if err := os.Rename(dir, dir+"2"); err != nil {
		t.Fatal(err)
	}
	storetest.Check(t, b, size, 1)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if !isEmpty(t, dir+"2") {
		t.Error("the file is still there")
	}
}
