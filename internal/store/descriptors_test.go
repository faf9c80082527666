package store

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ebb-offload/ebb/internal/filesys"
)

// openIn lists this process's descriptors of files and directories at or below a path.
func openIn(t *testing.T, dir string) map[int]string {
	t.Helper()
	list := map[int]string{}
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		fd, _ := strconv.Atoi(e.Name())
		if path, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && strings.HasPrefix(path, dir) {
			list[fd] = path
		}
	}
	return list
}

func oneStored(t *testing.T) (*Store, Backing, string, []byte) {
	t.Helper()
	dir := t.TempDir()
	s := New(Options{BlockBytes: ioAlign, Dirs: func() []string { return []string{dir} }, Name: func(seq uint64) string {
		return "test-" + strconv.FormatUint(seq, 10)
	}})
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	b, err := s.Open(1, ioAlign)
	if err != nil {
		t.Fatal(err)
	}
	p := pages(t, ioAlign)
	for i := range p {
		p[i] = byte(i * 3)
	}
	if err := b.Reserve(); err != nil {
		t.Fatal(err)
	}
	if err := b.WriteBlock(0, p, Block{State: Stored}); err != nil {
		t.Fatal(err)
	}
	return s, b, dir, p
}

func TestAtRestNoFileIsOpen(t *testing.T) {
	s, b, dir, want := oneStored(t)
	s.Rest()
	for fd, path := range openIn(t, dir) {
		if path != dir { // the directory itself takes no room on the disk
			t.Errorf("descriptor %d of %s is open", fd, path)
		}
	}
	got := bytes.Clone(want)
	p := pages(t, ioAlign)
	if err := b.ReadBlock(0, p); err != nil || !bytes.Equal(p, got) {
		t.Fatalf("read after rest: %v", err)
	}
}

// A program that closes every descriptor it does not know, and opens files of its own in their
// place, gets them neither written nor closed.
func TestADescriptorThatBecameTheProgramsIsLeftAlone(t *testing.T) {
	s, b, dir, want := oneStored(t)
	s.Rest()
	elsewhere := filepath.Join(t.TempDir(), "mine")
	taken := map[int]bool{}
	for fd := range openIn(t, dir) {
		if err := unix.Close(fd); err != nil {
			t.Fatal(err)
		}
		mine, err := unix.Open(elsewhere, unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		if mine != fd {
			if err := unix.Dup3(mine, fd, unix.O_CLOEXEC); err != nil {
				t.Fatal(err)
			}
			_ = unix.Close(mine)
		}
		taken[fd] = true
	}
	if len(taken) == 0 {
		t.Fatal("the store holds no descriptor: this test looks in the wrong place")
	}
	p := pages(t, ioAlign)
	if err := b.ReadBlock(0, p); err != nil || !bytes.Equal(p, want) {
		t.Fatalf("read: %v", err)
	}
	if err := b.WriteBlock(0, p, Block{State: Stored}); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for fd := range taken {
		if path, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd)); err != nil || path != elsewhere {
			t.Errorf("the program's descriptor %d is %q now (%v)", fd, path, err)
		}
		_ = unix.Close(fd)
	}
	if st, err := os.Stat(elsewhere); err != nil || st.Size() != 0 {
		t.Errorf("the program's file was written: %v, %v", st, err)
	}
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

// A kernel makes the file before it refuses the flag. When the process has no descriptor left just then, and the
// store gives up one of its own, the file is the one that was made.
func TestAFileThatAnOpenLeftBehindIsTheOneThatIsUsed(t *testing.T) {
	sys, dirs := filesys.NewFaults(filesys.Kernel{}), []string{t.TempDir(), t.TempDir()}
	s := New(Options{BlockBytes: testBlock, System: sys, Dirs: func() []string { return dirs }, Name: func(seq uint64) string { return fmt.Sprintf("%d.bak", seq) }})
	b, err := s.Open(1, 2*testBlock)
	if err != nil {
		t.Fatal(err)
	}
	if err := sys.Set("open:2:nodirect,open:3:EMFILE"); err != nil {
		t.Fatal(err)
	}
	if err := b.Reserve(); err != nil || sys.Hits() != 2 {
		t.Fatalf("%v; %d calls failed", err, sys.Hits())
	}
	for _, dir := range dirs {
		if list, err := os.ReadDir(dir); err != nil || len(list) != 1 {
			t.Errorf("in %s: %v, %v", dir, list, err)
		}
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	for _, dir := range dirs {
		if list, err := os.ReadDir(dir); err != nil || len(list) != 0 {
			t.Errorf("left in %s: %v, %v", dir, list, err)
		}
	}
}
