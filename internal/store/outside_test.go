package store

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/ebb-offload/ebb/internal/filesys"
)

// padded is memory for a block of n bytes, as the store wants it.
func padded(n int) []byte {
	room := make([]byte, n+2*ioAlign)
	skip := ioAlign - int(uintptr(unsafe.Pointer(&room[0]))%ioAlign)
	return room[skip : skip+n : skip+int(alignUp(uint64(n)))]
}

func TestAPartIsSettledWhileOtherBlocksAreAbsent(t *testing.T) {
	dir := t.TempDir()
	s := New(Options{BlockBytes: 4096, Dirs: func() []string { return []string{dir} }, Name: func(seq uint64) string { return fmt.Sprint("f", seq) }})
	defer func() { _ = s.Close() }()
	b, err := s.Open(1, 3*4096)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Settle(); err == nil {
		t.Error("settled without room")
	}
	p := padded(4096)
	p[0] = 7
	if err := errors.Join(b.Reserve(), b.WriteBlock(4096, p, Block{State: Stored}), b.Settle()); err != nil {
		t.Fatal(err)
	}
	if err := b.Commit(); !errors.Is(err, ErrAbsent) {
		t.Errorf("committed: %v", err)
	}
	got := padded(4096)
	in, err := b.InFile(4096, func(fd int, at int64) error {
		_, err := unix.Pread(fd, got, at)
		return err
	})
	if !in || err != nil || got[0] != 7 {
		t.Errorf("in a file: %v, %v", in, err)
	}
	if err := os.Remove(filepath.Join(dir, "f0")); err != nil {
		t.Fatal(err)
	}
	if err := b.Settle(); !errors.Is(err, ErrLost) || b.Block(4096).State != Absent {
		t.Errorf("settled although the file is gone: %v", err)
	}
}

// A file outside has the bytes and the size that it was given, with direct I/O and without.
func TestAFileOutsideOfTheStore(t *testing.T) {
	for _, faults := range []string{"", "open:*:nodirect", "pwrite:*:nodirect,pread:*:nodirect", "pwrite:*:nodirect=EOPNOTSUPP"} {
		dir := t.TempDir()
		sys := filesys.NewFaults(filesys.Kernel{})
		fd, err := sys.Openat(unix.AT_FDCWD, dir, unix.O_RDONLY|unix.O_DIRECTORY, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = sys.Close(fd) }()
		if err := sys.Set(faults); err != nil {
			t.Fatal(err)
		}
		want := padded(5000)
		for i := range want {
			want[i] = byte(i * 7)
		}
		f, err := CreateOutside(sys, fd, dir, "x")
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(f.Take(9096), f.Write(4096, want), f.Finish(9096)); err != nil {
			t.Fatal(err)
		}
		f.Close()
		if faults == "" { // without direct I/O the kernel may have made the file before it refused
			if _, err := CreateOutside(sys, fd, dir, "x"); !errors.Is(err, unix.EEXIST) {
				t.Errorf("made over what is there: %v", err)
			}
		}
		f, err = OpenOutside(sys, fd, dir, "x")
		if err != nil {
			t.Fatal(err)
		}
		got := padded(5000)
		if err := f.Read(4096, got); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%q: other bytes came back (%v)", faults, err)
		}
		if size, err := f.Size(); err != nil || size != 9096 {
			t.Errorf("%d bytes, %v", size, err)
		}
		if err := f.Read(8192, got); !errors.Is(err, ErrLost) {
			t.Errorf("beyond the end: %v", err)
		}
		f.Close()
		if _, err := OpenOutside(sys, fd, dir, "y"); !errors.Is(err, ErrLost) {
			t.Errorf("no such file: %v", err)
		}
	}
}
