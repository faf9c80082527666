package diskspeed

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ebb-offload/ebb/internal/filesys"
	"github.com/ebb-offload/ebb/internal/testutil"
)

const mib = 1 << 20

// small is a measurement that a busy machine makes quickly, and in any case to its end.
var small = Options{Bytes: 8 * mib, Workers: 2, BlockBytes: mib, Time: time.Minute, Answer: time.Minute}

// disk is an empty directory on the file system of the repository.
func disk(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp(testutil.Root(t), "build-diskspeed-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func empty(t *testing.T, dir string) {
	t.Helper()
	switch left, err := os.ReadDir(dir); {
	case err != nil:
		t.Error(err)
	case len(left) > 0:
		t.Errorf("left in %s: %v", dir, left)
	}
}

func TestRatesAreThoseOfAWholeFile(t *testing.T) {
	dir := disk(t)
	r, err := Measure(t.Context(), dir, small)
	if err != nil {
		t.Fatal(err)
	}
	if r.WriteBytesPerS <= 0 || r.ReadBytesPerS <= 0 || r.FreshBytesPerS <= 0 {
		t.Errorf("rates %+v, want all above 0", r)
	}
	if r.Bytes != small.Bytes || r.Workers != small.Workers || r.BlockBytes != small.BlockBytes {
		t.Errorf("measured %+v, want as asked for: %+v", r, small)
	}
	if !r.Direct && r.Refused == "" {
		t.Error("not direct, and nobody knows why")
	}
	empty(t, dir)
}

// However short the time, each worker carries a block, so that there is a figure.
func TestTheTimeEndsAPart(t *testing.T) {
	o := small
	o.Bytes, o.Time = 64*mib, 1
	r, err := Measure(t.Context(), disk(t), o)
	if err != nil {
		t.Fatal(err)
	}
	if r.Bytes < mib || r.Bytes > 2*mib || r.ReadBytesPerS <= 0 {
		t.Errorf("measured %d bytes at %v, want one block or two", r.Bytes, r.ReadBytesPerS)
	}
}

func TestWhatCannotBeMeasured(t *testing.T) {
	dir := disk(t)
	link, file := filepath.Join(dir, "link"), filepath.Join(dir, "file")
	if err := errors.Join(os.Symlink(dir, link), os.WriteFile(file, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	for at, want := range map[string]error{
		filepath.Join(dir, "missing"): unix.ENOENT,
		link:                          unix.ENOTDIR,
		file:                          unix.ENOTDIR,
	} {
		if _, err := Measure(t.Context(), at, small); !errors.Is(err, want) || !strings.Contains(err.Error(), at) {
			t.Errorf("%s: %v, want %v", at, err, want)
		}
	}
	for _, o := range []Options{{BlockBytes: 1000}, {Bytes: mib, BlockBytes: 2 * mib}, {Workers: -1}} {
		if _, err := Measure(t.Context(), dir, o); err == nil {
			t.Errorf("%+v: measured", o)
		}
	}
}

func TestACancelledMeasurementLeavesNothing(t *testing.T) {
	dir := disk(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Measure(ctx, dir, small); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	empty(t, dir)
}

// What a disk may do. The file is gone after each.
func TestFaults(t *testing.T) {
	for spec, want := range map[string]error{
		"pwrite:5:EIO":                  unix.EIO,
		"pread:4:EIO":                   unix.EIO,
		"fallocate:1:ENOSPC":            ErrRoom,
		"fallocate:1:EDQUOT":            ErrRoom,
		"pread:1:flip":                  ErrDifferent,
		"opendir:2:EACCES":              unix.EACCES,
		"opendir:2:EOPNOTSUPP":          nil, // a file with a name, which it loses at once
		"fallocate:1:EOPNOTSUPP":        nil, // goes on without
		"pwrite:2:short=4096":           nil, // goes on with the rest
		"pread:3:EINTR,pwrite:4:EINTR":  nil,
		"opendir:1:ENOENT,pwrite:1:EIO": unix.ENOENT,
	} {
		t.Run(spec, func(t *testing.T) {
			dir := disk(t)
			faults := filesys.NewFaults(filesys.Kernel{})
			if err := faults.Set(spec); err != nil {
				t.Fatal(err)
			}
			_, err := measure(t.Context(), faults, dir, small)
			if !errors.Is(err, want) || (err != nil && !strings.Contains(err.Error(), dir)) {
				t.Errorf("%v, want %v", err, want)
			}
			empty(t, dir)
		})
	}
}

func TestWithoutDirectIO(t *testing.T) {
	for _, spec := range []string{
		"opendir:2:EOPNOTSUPP,open:1:nodirect", // by the open, which leaves a file
		"pwrite:1:nodirect",
		"pread:1:nodirect=EOPNOTSUPP",
		"statx:1:align=8192,pwrite:*:align=8192",
	} {
		t.Run(spec, func(t *testing.T) {
			dir := disk(t)
			faults := filesys.NewFaults(filesys.Kernel{})
			if err := faults.Set(spec); err != nil {
				t.Fatal(err)
			}
			r, err := measure(t.Context(), faults, dir, small)
			if err != nil {
				t.Fatal(err)
			}
			if r.Direct || r.Refused == "" || r.WriteBytesPerS <= 0 {
				t.Errorf("%+v, want rates without direct I/O, and why", r)
			}
			empty(t, dir)
		})
	}
}

// A disk that gives no answer ends the measurement, not the caller.
func TestAHangingDisk(t *testing.T) {
	for _, spec := range []string{"pwrite:1+:hang", "pread:2:hang", "opendir:2:hang", "opendir:1:hang", "fstatfs:1:hang"} {
		t.Run(spec, func(t *testing.T) {
			faults := filesys.NewFaults(filesys.Kernel{})
			if err := faults.Set(spec); err != nil {
				t.Fatal(err)
			}
			defer func() { _ = faults.Set("") }()
			o := small
			o.Answer = 200 * time.Millisecond
			if _, err := measure(t.Context(), faults, disk(t), o); !errors.Is(err, filesys.ErrHang) {
				t.Errorf("%v, want ErrHang", err)
			}
		})
	}
}

// mounted is a file system of its own for the test, or skips it.
func mounted(t *testing.T, args ...string) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: it mounts a file system")
	}
	dir := t.TempDir()
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

func TestASmallFileSystem(t *testing.T) {
	dir := mounted(t, "-t", "tmpfs", "-o", "size=9m", "tmpfs")
	o := small
	o.Bytes = 64 * mib
	r, err := Measure(t.Context(), dir, o)
	if err != nil {
		t.Fatal(err)
	}
	if r.Bytes != 2*mib {
		t.Errorf("measured %d bytes, want whole MiB of a quarter of 9", r.Bytes)
	}
	full, err := os.Create(filepath.Join(dir, "full"))
	if err != nil {
		t.Fatal(err)
	}
	_, err = io.CopyN(full, zeros{}, 7*mib)
	if err = errors.Join(err, full.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := Measure(t.Context(), dir, o); !errors.Is(err, ErrRoom) {
		t.Errorf("a full file system: %v, want ErrRoom", err)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func TestLookSaysHowFilesAreReached(t *testing.T) {
	dir := disk(t)
	a, err := Look(dir, 0)
	if err != nil {
		t.Fatal(err)
	}
	if a.Direct == (a.Refused != "") {
		t.Errorf("%+v: direct, or why not", a)
	}
	if a.Direct && (a.MemoryAlign > align || a.OffsetAlign > align) {
		t.Errorf("%+v: more than ebb uses", a)
	}
	empty(t, dir)
}
