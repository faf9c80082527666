package fd

import (
	"testing"

	"golang.org/x/sys/unix"
)

func TestADescriptorOfAStandardStreamIsMoved(t *testing.T) {
	saved, err := unix.Dup(0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Dup2(saved, 0); err != nil {
			t.Error(err)
		}
		_ = unix.Close(saved)
	}()
	if err := unix.Close(0); err != nil {
		t.Fatal(err)
	}
	low, err := unix.Open("/dev/null", unix.O_RDONLY, 0)
	if err != nil || low != 0 {
		t.Fatalf("opened as %d, %v", low, err)
	}
	fd, err := AboveStreams(low)
	if err != nil || fd < 3 {
		t.Fatalf("moved to %d, %v", fd, err)
	}
	defer func() { _ = unix.Close(fd) }()
	if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Errorf("flags %d, %v: not close-on-exec", flags, err)
	}
	if _, err := unix.FcntlInt(0, unix.F_GETFD, 0); err != unix.EBADF {
		t.Errorf("descriptor 0 is still open: %v", err)
	}
}

func TestAnyOtherDescriptorStays(t *testing.T) {
	fd, err := unix.Open("/dev/null", unix.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	if got, err := AboveStreams(fd); got != fd || err != nil {
		t.Fatalf("got %d, %v", got, err)
	}
	if _, err := AboveStreams(-1); err == nil {
		t.Fatal("no descriptor was moved")
	}
}
