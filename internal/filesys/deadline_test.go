package filesys

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ebb-offload/ebb/internal/testutil"
)

// limit is the deadline of these tests: calls that do not hang must be answered by then on a busy
// machine too. So the files lie in memory.
const limit = time.Second

// mount is a directory with a file in it, reached through a Deadline over faults.
type mount struct {
	*Deadline
	t      *testing.T
	faults *Faults
	dir    string
	dirfd  int
	fd     int
}

func newMount(t *testing.T, limit time.Duration) *mount {
	t.Parallel() // they wait, most of the time
	faults := NewFaults(Kernel{})
	d := &mount{Deadline: NewDeadline(faults, limit), t: t, faults: faults, dir: testutil.InMemory(t)}
	d.dirfd = d.must(d.Openat(unix.AT_FDCWD, d.dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0))
	d.fd = d.must(d.Openat(d.dirfd, "a", unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o600))
	t.Cleanup(func() {
		d.set("")
		for _, fd := range []int{d.fd, d.dirfd} {
			if err := d.Close(fd); err != nil {
				t.Error(err)
			}
		}
	})
	return d
}

func (d *mount) must(fd int, err error) int {
	d.t.Helper()
	if err != nil {
		d.t.Fatal(err)
	}
	return fd
}

func (d *mount) set(spec string) {
	d.t.Helper()
	if err := d.faults.Set(spec); err != nil {
		d.t.Fatal(err)
	}
}

// hang makes a write that hangs and is given up, and returns its error.
func (d *mount) hang(p []byte) error {
	d.t.Helper()
	d.set("pwrite:1:hang")
	_, err := d.Pwrite(d.fd, p, 0)
	if !errors.Is(err, ErrHang) {
		d.t.Fatalf("a write that hangs: %v", err)
	}
	return err
}

// refused fails unless err is that of a call that was not begun.
func refused(t *testing.T, what string, err error) {
	t.Helper()
	var hang *HangError
	if !errors.As(err, &hang) || hang.Because == "" || InUse(err) != nil {
		t.Errorf("%s: not refused, but %v", what, err)
	}
}

func TestACallThatHangsIsGivenUpAndItsMemoryIsItsOwnUntilItReturns(t *testing.T) {
	d := newMount(t, limit)
	answered := make(chan struct{})
	d.OnAnswer(func() { close(answered) })
	err := d.hang([]byte("late"))
	if !strings.Contains(err.Error(), filepath.Join(d.dir, "a")) {
		t.Errorf("the error does not name the file: %v", err)
	}
	select {
	case <-InUse(err):
		t.Fatal("the memory counts as free while the call hangs")
	default:
	}
	if hung := d.Hung(); len(hung) != 1 || hung[0].Path != filepath.Join(d.dir, "a") || hung[0].Bytes != 4 || hung[0].Call != "write" {
		t.Errorf("what hangs: %+v", hung)
	}
	d.set("")
	<-InUse(err)
	<-answered
	if hung := d.Hung(); len(hung) != 0 {
		t.Errorf("still hanging: %+v", hung)
	}
	p := make([]byte, 4)
	if n, err := d.Pread(d.fd, p, 0); err != nil || string(p[:n]) != "late" {
		t.Errorf("read %q, %v", p[:max(n, 0)], err)
	}
}

func TestADirectoryThatHangsIsRefusedAndOthersGoOn(t *testing.T) {
	d := newMount(t, limit)
	other := testutil.InMemory(t)
	otherfd := d.must(d.Openat(unix.AT_FDCWD, other, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0))
	defer func() { _ = d.Close(otherfd) }()
	err := d.hang(make([]byte, 10))
	var st unix.Stat_t
	refused(t, "a read there", d.only("read", d.at(d.fd), func() error { t.Error("begun"); return nil }))
	refused(t, "a removal there", d.Unlinkat(d.dirfd, "a"))
	refused(t, "a look there", d.Fstatat(d.dirfd, "a", &st))
	_, e2 := d.Openat(d.dirfd, "b", unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o600)
	refused(t, "an open there", e2)
	fd := d.must(d.Openat(otherfd, "c", unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o600))
	if _, err := d.Pwrite(fd, []byte("x"), 0); err != nil {
		t.Errorf("another directory: %v", err)
	}
	if err := d.Close(fd); err != nil {
		t.Error(err)
	}
	d.Retry() // the rule was for one call
	if _, err := d.Pwrite(d.fd, []byte("again"), 20); err != nil {
		t.Errorf("after Retry: %v", err)
	}
	if n := len(d.Hung()); n != 1 {
		t.Errorf("%d calls hang", n)
	}
	d.set("")
	<-InUse(err)
}

func TestADirectoryThatAnsweredIsUsedAgain(t *testing.T) {
	d := newMount(t, limit)
	err := d.hang(make([]byte, 10))
	d.set("")
	<-InUse(err)
	if _, err := d.Pwrite(d.fd, []byte("x"), 0); err != nil {
		t.Error(err)
	}
}

func TestADescriptorIsClosedAlthoughItsDirectoryHangs(t *testing.T) {
	d := newMount(t, limit)
	fd := d.must(d.Openat(d.dirfd, "b", unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o600))
	err := d.hang(make([]byte, 10))
	if err := d.Close(fd); !errors.Is(err, ErrHang) {
		t.Errorf("it was waited for: %v", err)
	}
	awaitClosed(t, filepath.Join(d.dir, "b"))
	d.set("")
	<-InUse(err)
}

// awaitClosed waits until no descriptor of the process leads to a file.
func awaitClosed(t *testing.T, path string) {
	t.Helper()
	open := func() bool {
		fds, err := filepath.Glob("/proc/self/fd/*")
		if err != nil {
			t.Fatal(err)
		}
		for _, fd := range fds {
			if to, err := os.Readlink(fd); err == nil && to == path {
				return true
			}
		}
		return false
	}
	for deadline := time.Now().Add(time.Minute); open(); {
		if time.Now().After(deadline) {
			t.Fatalf("%s stays open", path)
		}
	}
}

// Its number would become that of another file, which the call would then write to.
func TestADescriptorOfACallThatHangsIsClosedAfterIt(t *testing.T) {
	d := newMount(t, limit)
	fd := d.must(d.Openat(d.dirfd, "b", unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o600))
	d.set("pwrite:1:hang")
	_, err := d.Pwrite(fd, []byte("late"), 0)
	if !errors.Is(err, ErrHang) {
		t.Fatal(err)
	}
	if err := d.Close(fd); err != nil {
		t.Error(err)
	}
	d.Retry()
	if other := d.must(d.Openat(d.dirfd, "c", unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o600)); other == fd {
		t.Error("the number is in use again")
	} else if err := d.Close(other); err != nil {
		t.Error(err)
	}
	d.set("")
	<-InUse(err)
	awaitClosed(t, filepath.Join(d.dir, "b"))
	if got, err := os.ReadFile(filepath.Join(d.dir, "b")); err != nil || string(got) != "late" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestWhatIsOpenedTooLateIsClosed(t *testing.T) {
	d := newMount(t, limit)
	d.set("open:1:hang")
	_, err := d.Openat(d.dirfd, "b", unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o600)
	if !errors.Is(err, ErrHang) {
		t.Fatal(err)
	}
	d.set("")
	<-InUse(err)
	if _, err := os.Stat(filepath.Join(d.dir, "b")); err != nil {
		t.Fatalf("the call did not go on: %v", err)
	}
	awaitClosed(t, filepath.Join(d.dir, "b"))
}

func TestNoResultIsWrittenTooLate(t *testing.T) {
	d := newMount(t, limit)
	d.set("fstat:1:hang")
	var st unix.Stat_t
	err := d.Fstat(d.fd, &st)
	if !errors.Is(err, ErrHang) {
		t.Fatal(err)
	}
	d.set("")
	<-InUse(err)
	if st != (unix.Stat_t{}) {
		t.Errorf("%+v", st)
	}
}

func TestOnlySoManyCallsHang(t *testing.T) {
	d := newMount(t, limit)
	d.set("pread:*:hang")
	d.Deadline.limit = limit / 20 // of these alone: what does not hang has its second
	var last error
	for i := range MaxHung {
		d.Retry()
		if _, last = d.Pread(d.fd, make([]byte, 1), int64(i)); InUse(last) == nil {
			t.Fatalf("call %d: %v", i, last)
		}
	}
	d.Retry()
	_, err := d.Pread(d.fd, make([]byte, 1), 0)
	refused(t, "one more", err)
	if !strings.Contains(err.Error(), fmt.Sprint(MaxHung, " calls hang")) {
		t.Error(err)
	}
	d.Deadline.limit = limit
	d.set("")
	<-InUse(last)
	for len(d.Hung()) > 0 { // they end one by one
		runtime.Gosched()
	}
	if _, err := d.Pread(d.fd, make([]byte, 1), 0); err != nil {
		t.Error(err)
	}
}

// A slow disk is not one that hangs: what others of its transfers achieve counts.
func TestACallIsNotGivenUpWhileTransfersInItsDirectoryGoOn(t *testing.T) {
	d := newMount(t, limit)
	d.set("pread:1:hang")
	var over atomic.Bool
	done := make(chan error)
	go func() {
		_, err := d.Pread(d.fd, make([]byte, 1), 0)
		over.Store(true)
		done <- err
	}()
	d.faults.AwaitHang()
	for begin := time.Now(); time.Since(begin) < 3*limit; {
		if _, err := d.Pwrite(d.fd, []byte("x"), 0); err != nil {
			t.Fatal(err)
		}
		if over.Load() {
			t.Fatal("given up although the disk works")
		}
	}
	err := <-done // and now nothing moves
	if !errors.Is(err, ErrHang) {
		t.Fatalf("got %v", err)
	}
	d.set("")
	<-InUse(err)
}

func TestWithoutALimitACallIsWaitedFor(t *testing.T) {
	d := newMount(t, 0)
	d.set("pwrite:1:hang")
	done := make(chan error)
	go func() {
		_, err := d.Pwrite(d.fd, []byte("x"), 0)
		done <- err
	}()
	d.faults.AwaitHang()
	d.set("")
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestErrorsOfCallsThatAnswerAreTheirOwn(t *testing.T) {
	d := newMount(t, limit)
	d.set("pwrite:1:ENOSPC,unlink:1:EIO,fsync:1:EIO")
	if _, err := d.Pwrite(d.fd, []byte("x"), 0); err != unix.ENOSPC {
		t.Error(err)
	}
	if err := d.Unlinkat(d.dirfd, "a"); err != unix.EIO {
		t.Error(err)
	}
	if err := d.Fsync(d.fd); err != unix.EIO {
		t.Error(err)
	}
	if err := d.Mkdir(d.dir, 0, 0o700); err != unix.EEXIST {
		t.Error(err)
	}
}

func TestADefectOfACallIsAnError(t *testing.T) {
	d := newMount(t, limit)
	if err := d.only("call", location{}, func() error { panic("defect") }); err == nil || !strings.Contains(err.Error(), "defect") {
		t.Errorf("got %v", err)
	}
}

func BenchmarkCall(b *testing.B) {
	for _, limit := range []time.Duration{0, time.Minute} {
		b.Run(fmt.Sprint("limit ", limit), func(b *testing.B) {
			d := NewDeadline(Kernel{}, limit)
			var st unix.Stat_t
			for b.Loop() {
				if err := d.Fstat(1, &st); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
