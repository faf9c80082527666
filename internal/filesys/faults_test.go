package filesys

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// disk is a file behind faults.
type disk struct {
	*Faults
	t    *testing.T
	path string
	fd   int
}

func newDisk(t *testing.T, flags int) *disk {
	t.Helper()
	d := &disk{Faults: NewFaults(Kernel{}), t: t, path: filepath.Join(t.TempDir(), "f")}
	fd, err := d.Openat(unix.AT_FDCWD, d.path, unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC|flags, 0o600)
	if err != nil {
		t.Skip(err)
	}
	d.fd = fd
	t.Cleanup(func() { _ = unix.Close(fd) })
	return d
}

func (d *disk) set(spec string) {
	d.t.Helper()
	if err := d.Set(spec); err != nil {
		d.t.Fatal(err)
	}
}

// page is n bytes at a multiple of the unit of direct I/O, none of them zero.
func page(n int) []byte {
	p := make([]byte, n+unit)
	skip := -int(uintptr(unsafe.Pointer(&p[0]))) & (unit - 1)
	p = p[skip : skip+n]
	for i := range p {
		p[i] = byte(i%251 + 1)
	}
	return p
}

func TestOccurrences(t *testing.T) {
	for occurrence, want := range map[string]string{
		"1": "x......", "3": "..x....", "3+": "..xxxxx", "/3": "..x..x.", "*": "xxxxxxx", "9": ".......",
	} {
		d := newDisk(t, 0)
		d.set("fsync:" + occurrence + ":EIO")
		var got strings.Builder
		for range 7 {
			got.WriteString(map[bool]string{true: "x", false: "."}[errors.Is(d.Fsync(d.fd), unix.EIO)])
			var st unix.Stat_t
			if err := d.Fstat(d.fd, &st); err != nil { // another call does not count
				t.Fatal(err)
			}
		}
		if got.String() != want || d.Hits() != strings.Count(want, "x") {
			t.Errorf("%s: %s with %d hits, want %s", occurrence, &got, d.Hits(), want)
		}
		if calls := d.Calls(); calls["fsync"] != 7 || calls["fstat"] != 7 || len(calls) != 2 {
			t.Errorf("calls: %v", calls)
		}
	}
}

func TestAnyCountsAllCalls(t *testing.T) {
	d := newDisk(t, 0)
	d.set("any:3:ENOSPC, fsync:1:EIO")
	var st unix.Stat_t
	got := fmt.Sprint(d.Fstat(d.fd, &st), d.Fsync(d.fd), d.Fstat(d.fd, &st), d.Fsync(d.fd))
	if want := fmt.Sprint(nil, unix.EIO, unix.ENOSPC, nil); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// Each call that can only fail fails by its name, and is not made.
func TestEveryCallFailsByItsName(t *testing.T) {
	d := newDisk(t, 0)
	dir := filepath.Dir(d.path)
	at, err := d.Openat(unix.AT_FDCWD, dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	calls := map[string]func() error{
		"mkdir":     func() error { return d.Mkdir(dir+"/d", 0, 0o700) },
		"open":      func() error { _, err := d.Openat(at, "g", unix.O_RDWR|unix.O_CREAT, 0o600); return err },
		"opendir":   func() error { _, err := d.Openat(at, ".", unix.O_PATH, 0); return err },
		"fstat":     func() error { return d.Fstat(d.fd, &st) },
		"fstatat":   func() error { return d.Fstatat(at, "f", &st) },
		"fstatfs":   func() error { return d.Fstatfs(d.fd, new(unix.Statfs_t)) },
		"statx":     func() error { return d.StatxAlign(d.fd, new(unix.Statx_t)) },
		"readdir":   func() error { _, err := d.Names(at); return err },
		"unlink":    func() error { return d.Unlinkat(at, "f") },
		"rename":    func() error { return d.Renameat(at, "f", "g") },
		"fchmod":    func() error { return d.Fchmod(d.fd, 0o644) },
		"fallocate": func() error { return d.Fallocate(d.fd, 1<<20) },
		"discard":   func() error { return d.Discard(d.fd, 1<<20) },
		"ftruncate": func() error { return d.Ftruncate(d.fd, 100) },
		"pread":     func() error { _, err := d.Pread(d.fd, page(unit), 0); return err },
		"pwrite":    func() error { _, err := d.Pwrite(d.fd, page(unit), 0); return err },
		"setfl":     func() error { return d.SetFlags(d.fd, unix.O_APPEND) },
		"syncrange": func() error { return d.SyncRange(d.fd, 0, 0) },
		"fadvise":   func() error { return d.DropCache(d.fd, 0, 0) },
		"fsync":     func() error { return d.Fsync(d.fd) },
		"lock":      func() error { return d.Lock(d.fd, true) },
		"rmdir":     func() error { return d.Rmdirat(at, "none") },
		"clone":     func() error { return d.Clone(d.fd, 0, d.fd, 0, 0) },
		"close":     func() error { return d.Close(at) },
	}
	if len(calls) != int(nCalls) {
		t.Fatalf("%d calls are tried, there are %d", len(calls), nCalls)
	}
	for name, call := range calls {
		if name == "close" {
			continue
		}
		d.set(name + ":1:EXDEV")
		if err := call(); err != unix.EXDEV {
			t.Errorf("%s: %v", name, err)
		}
	}
	d.set("")
	left, err := d.Names(at)
	if err != nil || fmt.Sprint(left) != "[f]" {
		t.Errorf("left in the directory: %v (%v)", left, err)
	}
	if err := d.Fstat(d.fd, &st); err != nil || st.Size != 0 || st.Mode&0o777 != 0o600 {
		t.Errorf("a call that failed was made: %d bytes, mode %o (%v)", st.Size, st.Mode, err)
	}
	// A close that reports an error has closed.
	d.set("close:1:EXDEV")
	if err := calls["close"](); err != unix.EXDEV {
		t.Errorf("close: %v", err)
	}
	d.set("")
	if err := d.Fstat(at, &st); err != unix.EBADF {
		t.Errorf("after close: %v", err)
	}
}

func TestTransfersThatAreShortOrWrong(t *testing.T) {
	const n = 4 * unit
	good := page(n)
	half := append(bytes.Clone(good[:n/2]), make([]byte, n/2)...)
	flipped := bytes.Clone(good)
	flipped[0] ^= 1
	for _, flags := range []int{0, unix.O_DIRECT} {
		for _, c := range []struct {
			faults string
			wrote  int    // told by the write
			read   int    // told by the read
			holds  []byte // what the file has, at least
			gives  []byte // what the read gives
		}{
			{"", n, n, good, good},
			{"pwrite:1:short", n / 2, n / 2, good[:n/2], good[:n/2]},
			{"pwrite:1:short=100", 100, unit, good[:unit], good[:unit]},
			{"pwrite:1:short=0", 0, 0, nil, nil},
			{"pwrite:1:torn", n, n / 2, good[:n/2], good[:n/2]},
			{"pwrite:1:flip", n, n, flipped, flipped},
			{"pread:1:short", n, n / 2, good, good[:n/2]},
			{"pread:1:short=0", n, 0, good, nil},
			{"pread:1:torn", n, n, good, half},
			{"pread:1:flip", n, n, good, flipped},
		} {
			d := newDisk(t, flags)
			d.set(c.faults)
			p := page(n)
			if wrote, err := d.Pwrite(d.fd, p, 0); err != nil || wrote != c.wrote || !bytes.Equal(p, good) {
				t.Fatalf("%s: wrote %d (%v)", c.faults, wrote, err)
			}
			clear(p)
			read, err := d.Pread(d.fd, p, 0)
			if err != nil || read != c.read || !bytes.Equal(p[:read], c.gives) {
				t.Errorf("%s: read %d (%v), other bytes: %v", c.faults, read, err, !bytes.Equal(p[:max(read, 0)], c.gives))
			}
			d.set("")
			clear(p)
			if _, err := d.Pread(d.fd, p, 0); err != nil || !bytes.Equal(p[:len(c.holds)], c.holds) {
				t.Errorf("%s: the file holds other bytes (%v)", c.faults, err)
			}
		}
	}
}

func TestDirectIOIsRefused(t *testing.T) {
	d := newDisk(t, unix.O_DIRECT)
	d.set("open:*:nodirect,pwrite:*:nodirect=EOPNOTSUPP,pread:*:align=8192,statx:*:align=8192")
	if _, err := d.Openat(unix.AT_FDCWD, d.path+"2", unix.O_RDWR|unix.O_CREAT|unix.O_DIRECT, 0o600); err != unix.EINVAL {
		t.Errorf("open: %v", err)
	}
	fd, err := d.Openat(unix.AT_FDCWD, d.path+"2", unix.O_RDWR, 0) // the file is there
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = d.Close(fd) }()
	if _, err := d.Pwrite(d.fd, page(unit), 0); err != unix.EOPNOTSUPP {
		t.Errorf("write: %v", err)
	}
	if _, err := d.Pwrite(fd, page(100), 0); err != nil {
		t.Errorf("write through the page cache: %v", err)
	}
	for _, c := range []struct {
		n, off int
		want   error
	}{{unit, 0, unix.EINVAL}, {2 * unit, unit, unix.EINVAL}, {2 * unit, 2 * unit, nil}} {
		if _, err := d.Pread(d.fd, page(c.n), int64(c.off)); !errors.Is(err, c.want) {
			t.Errorf("read of %d at %d: %v", c.n, c.off, err)
		}
	}
	var st unix.Statx_t
	if err := d.StatxAlign(d.fd, &st); err != nil || st.Mask&unix.STATX_DIOALIGN == 0 || st.Dio_offset_align != 8192 {
		t.Errorf("statx: %v, %+v", err, st)
	}
}

func TestACallHangsUntilTheFaultsAreReplaced(t *testing.T) {
	d := newDisk(t, 0)
	d.set("fsync:1:hang")
	done := make(chan error)
	go func() { done <- d.Fsync(d.fd) }()
	d.AwaitHang()
	if err := d.Fsync(d.fd); err != nil { // others go on
		t.Error(err)
	}
	select {
	case err := <-done:
		t.Fatalf("it did not hang: %v", err)
	default:
	}
	d.set("")
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestTheProcessGetsASignalAndTheCallIsMade(t *testing.T) {
	got := make(chan os.Signal, 2)
	signal.Notify(got, unix.SIGUSR1)
	defer signal.Stop(got)
	d := newDisk(t, 0)
	d.set("pwrite:2:SIGUSR1")
	for off := range int64(3) {
		if n, err := d.Pwrite(d.fd, []byte{'a' + byte(off)}, off); n != 1 || err != nil {
			t.Fatal(n, err)
		}
	}
	if sig := <-got; sig != unix.SIGUSR1 || len(got) > 0 || d.Hits() != 1 {
		t.Errorf("got %v and %d more, %d calls met the fault", sig, len(got), d.Hits())
	}
	if text, err := os.ReadFile(d.path); string(text) != "abc" {
		t.Errorf("the file holds %q (%v)", text, err)
	}
}

func TestADelayIsAtLeastAsLongAsItSays(t *testing.T) {
	d := newDisk(t, 0)
	d.set("fsync:1:delay=20ms")
	begun := time.Now()
	if err := d.Fsync(d.fd); err != nil || time.Since(begun) < 20*time.Millisecond {
		t.Errorf("%v after %v", err, time.Since(begun))
	}
}

func TestWhatIsNoFaultIsRefused(t *testing.T) {
	f := NewFaults(Kernel{})
	if err := f.Set("fsync:*:EIO"); err != nil {
		t.Fatal(err)
	}
	for _, spec := range []string{
		"pwrite", "pwrite:1", "pwrite:1:EIO:1", ",", "pwrite:1:EIO,", "write:1:EIO", "pwrite:0:EIO", "pwrite:-1:EIO", "pwrite:x:EIO",
		"pwrite:/2+:EIO", "pwrite::EIO", "pwrite:1:", "pwrite:1:EFOO", "pwrite:1:5", "pwrite:1:delay", "pwrite:1:delay=-1s", "pwrite:1:delay=1",
		"pwrite:1:short=", "pwrite:1:short=-1", "fsync:1:short", "fsync:1:flip", "any:1:torn", "fsync:1:nodirect", "open:1:align=4096", "pwrite:1:align=0",
		"pwrite:1:align", "pwrite:1:nodirect=EFOO", "pwrite:1:hang=1", "pwrite:1:SIGFOO", "pwrite:1:flip=1",
	} {
		if err := f.Set(spec); err == nil {
			t.Errorf("%q was taken", spec)
		}
	}
	if err := f.Fsync(-1); err != unix.EIO {
		t.Errorf("what was refused took the place of what was set: %v", err)
	}
	if err := Check(""); err != nil {
		t.Error(err)
	}
}

// In the last components of a path no link is followed, or made something behind; before them links are.
func TestNoLinkIsFollowedInTheOwnComponentsOfAPath(t *testing.T) {
	root := t.TempDir()
	for _, err := range []error{
		os.MkdirAll(root+"/real/disk/job/rank", 0o700),
		os.Symlink("real", root+"/link"),            // to what the disk directory is in
		os.Symlink("job", root+"/real/disk/linked"), // in the place of a job's directory
		os.Symlink("rank", root+"/real/disk/job/linked"),
		os.Symlink("disk", root+"/real/other"),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	d := NewDeadline(NewFaults(Kernel{}), limit)
	for _, c := range []struct {
		path string
		own  int
		want error
	}{
		{"/link/disk/job/rank", 3, nil},
		{"/link/disk/linked/rank", 3, unix.ENOTDIR},
		{"/link/disk/linked/rank", 1, nil},
		{"/link/disk/job/linked", 3, unix.ENOTDIR},
		{"/link/disk/job/linked", 1, unix.ENOTDIR},
		{"/link/disk/job/linked", 0, nil},
		{"/link/other/job/rank", 3, unix.ENOTDIR},
		{"/link/other/job/rank", 2, nil},
		{"/link/disk/job/none", 3, unix.ENOENT},
		{"/link/disk/none/rank", 3, unix.ENOENT},
	} {
		fd, err := d.Opendir(root+c.path, c.own)
		if !errors.Is(err, c.want) {
			t.Errorf("open %s, %d components: %v, want %v", c.path, c.own, err, c.want)
		}
		if err == nil {
			if err := d.Close(fd); err != nil {
				t.Error(err)
			}
		}
	}
	if err := d.Mkdir(root+"/link/disk/linked/made", 3, 0o700); !errors.Is(err, unix.ENOTDIR) {
		t.Errorf("make a directory behind a link: %v", err)
	}
	if err := d.Mkdir(root+"/link/disk/job/made", 3, 0o700); err != nil {
		t.Errorf("make a directory: %v", err)
	}
}
