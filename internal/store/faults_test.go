package store

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ebb-offload/ebb/internal/fingerprint"
)

// faulty is the system with faults. step counts the calls; fault is asked at each one.
type faulty struct {
	kernel
	mu      sync.Mutex
	calls   []string
	fault   func(n int, call string) error // nil: none
	short   func(call string, n int) int   // nil: whole transfers; else how many bytes of n
	open    map[int]bool                   // descriptors of files, not directories
	maxOpen int
}

func (s *faulty) step(call string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, call)
	if s.fault == nil {
		return nil
	}
	return s.fault(len(s.calls)-1, call)
}

// failCall makes every call of a name fail.
func failCall(name string, err error) func(int, string) error {
	return func(_ int, call string) error {
		if call == name {
			return err
		}
		return nil
	}
}

func (s *faulty) setFault(f func(int, string) error) {
	s.mu.Lock()
	s.fault = f
	s.mu.Unlock()
}

func (s *faulty) mkdir(path string, mode uint32) error {
	if err := s.step("mkdir"); err != nil {
		return err
	}
	return s.kernel.mkdir(path, mode)
}

func (s *faulty) openat(dir int, name string, flags int, mode uint32) (int, error) {
	call := "openat"
	switch {
	case flags&unix.O_PATH != 0:
		call = "openat directory"
	case flags&unix.O_DIRECT != 0:
		call = "openat direct"
	}
	if err := s.step(call); err != nil {
		return -1, err
	}
	fd, err := s.kernel.openat(dir, name, flags, mode)
	if err == nil && flags&unix.O_PATH == 0 {
		s.mu.Lock()
		if s.open == nil {
			s.open = map[int]bool{}
		}
		s.open[fd] = true
		s.maxOpen = max(s.maxOpen, len(s.open))
		s.mu.Unlock()
	}
	return fd, err
}

// close closes although it reports a fault, as Linux does.
func (s *faulty) close(fd int) error {
	err := s.step("close")
	s.mu.Lock()
	delete(s.open, fd)
	s.mu.Unlock()
	return errors.Join(err, s.kernel.close(fd))
}

func (s *faulty) fstat(fd int, st *unix.Stat_t) error {
	if err := s.step("fstat"); err != nil {
		return err
	}
	return s.kernel.fstat(fd, st)
}

func (s *faulty) fstatat(dir int, name string, st *unix.Stat_t) error {
	if err := s.step("fstatat"); err != nil {
		return err
	}
	return s.kernel.fstatat(dir, name, st)
}

func (s *faulty) fstatfs(fd int, st *unix.Statfs_t) error {
	if err := s.step("fstatfs"); err != nil {
		return err
	}
	return s.kernel.fstatfs(fd, st)
}

func (s *faulty) statxAlign(fd int, st *unix.Statx_t) error {
	if err := s.step("statx"); err != nil {
		return err
	}
	return s.kernel.statxAlign(fd, st)
}

func (s *faulty) unlinkat(dir int, name string) error {
	if err := s.step("unlinkat"); err != nil {
		return err
	}
	return s.kernel.unlinkat(dir, name)
}

func (s *faulty) fallocate(fd int, size int64) error {
	if err := s.step("fallocate"); err != nil {
		return err
	}
	return s.kernel.fallocate(fd, size)
}

func (s *faulty) ftruncate(fd int, size int64) error {
	if err := s.step("ftruncate"); err != nil {
		return err
	}
	return s.kernel.ftruncate(fd, size)
}

func (s *faulty) pread(fd int, p []byte, off int64) (int, error) {
	if err := s.step("pread"); err != nil {
		return -1, err
	}
	return s.kernel.pread(fd, p[:s.shorten("pread", len(p))], off)
}

func (s *faulty) pwrite(fd int, p []byte, off int64) (int, error) {
	if err := s.step("pwrite"); err != nil {
		return -1, err
	}
	return s.kernel.pwrite(fd, p[:s.shorten("pwrite", len(p))], off)
}

func (s *faulty) shorten(call string, n int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.short == nil {
		return n
	}
	return s.short(call, n)
}

func (s *faulty) setFlags(fd, flags int) error {
	if err := s.step("setFlags"); err != nil {
		return err
	}
	return s.kernel.setFlags(fd, flags)
}

func (s *faulty) syncRange(fd int, off, n int64) error {
	if err := s.step("syncRange"); err != nil {
		return err
	}
	return s.kernel.syncRange(fd, off, n)
}

func (s *faulty) dropCache(fd int, off, n int64) error {
	if err := s.step("dropCache"); err != nil {
		return err
	}
	return s.kernel.dropCache(fd, off, n)
}

func (s *faulty) fsync(fd int) error {
	if err := s.step("fsync"); err != nil {
		return err
	}
	return s.kernel.fsync(fd)
}

const testBlock = 8192

// fileOf is the path of the file that holds a backing's first block.
func fileOf(b Backing) string {
	path, _, _ := strings.Cut(strings.TrimPrefix(b.Where(0), "file "), " (offset ")
	return path
}

// mode is a way in which a store works.
type mode struct {
	name   string
	fault  func(n int, call string) error // as long as the test wants none
	dirs   int                            // 0: one
	budget uint64                         // of host memory
}

var modes = []mode{
	{name: "direct"},
	{name: "buffered", fault: failCall("openat direct", unix.EINVAL)},
	{name: "two directories", dirs: 2},
	{name: "two directories and host memory", dirs: 2, budget: 2 * testBlock},
}

// world is a store with two backings, and what may be read from them.
type world struct {
	sys      *faulty
	store    *Store
	root     string // of the directories
	dirs     []string
	dir      string // the first
	backings []Backing
	size     uint64
	good     []map[uint64]byte // per backing and offset: fill of the last write, if that succeeded
	warned   []string
}

// newWorld makes the store. One descriptor serves two backings, so that each is opened again
// and again.
func newWorld(t *testing.T, m mode) *world {
	w := &world{sys: &faulty{fault: m.fault}, root: t.TempDir(), size: 2*testBlock + 100}
	for i := range max(m.dirs, 1) {
		w.dirs = append(w.dirs, filepath.Join(w.root, fmt.Sprint("disk", i), "b"))
	}
	w.dir = w.dirs[0]
	w.store = newStore(Options{
		BlockBytes: testBlock, MaxOpen: 1,
		Name:       func(seq uint64) string { return fmt.Sprintf("backup-%d.bak", seq) },
		Dirs:       func() []string { return w.dirs },
		HostBudget: func() uint64 { return m.budget },
		Alloc: func(n uint64) (Extent, error) {
			return Plain(make([]byte, n), func() error { return nil }), nil
		},
		Warn: func(line string) { w.warned = append(w.warned, line) },
	}, w.sys)
	for id := range uint64(2) {
		w.open(t, id)
	}
	return w
}

func (w *world) open(t *testing.T, id uint64) Backing {
	t.Helper()
	b, err := w.store.Open(id, w.size)
	if err != nil {
		t.Fatal(err)
	}
	w.backings = append(w.backings, b)
	w.good = append(w.good, map[uint64]byte{})
	return b
}

// filled is what the map says of a block filled with a byte.
func filled(fill byte) Block {
	return Block{State: Stored, Sum: fingerprint.Sum{uint64(fill), 7}, Known: true}
}

// pages is page-aligned memory.
func pages(t testing.TB, n int) []byte {
	t.Helper()
	p, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(p) })
	return p
}

func (w *world) blocks(visit func(i int, b Backing, off, n uint64) error) error {
	for i, b := range w.backings {
		for off := uint64(0); off < w.size; off += testBlock {
			if err := visit(i, b, off, min(testBlock, w.size-off)); err != nil {
				return err
			}
		}
	}
	return nil
}

// cycle is what a pause and a resume do with the store.
func (w *world) cycle(t *testing.T, fill byte) error {
	p := pages(t, testBlock)
	for _, b := range w.backings {
		if err := b.Reserve(); err != nil {
			return err
		}
	}
	err := w.blocks(func(i int, b Backing, off, n uint64) error {
		for k := range p {
			p[k] = fill + byte(off/testBlock)
		}
		delete(w.good[i], off)
		if err := b.WriteBlock(off, p[:n], filled(p[0])); err != nil {
			return err
		}
		w.good[i][off] = p[0]
		return nil
	})
	if err != nil {
		return err
	}
	for _, b := range w.backings {
		if err := b.Commit(); err != nil {
			return err
		}
	}
	return w.blocks(func(i int, b Backing, off, n uint64) error {
		clear(p)
		if err := b.ReadBlock(off, p[:n]); err != nil {
			return err
		}
		if want := bytes.Repeat([]byte{w.good[i][off]}, int(n)); !bytes.Equal(p[:n], want) {
			t.Fatalf("backing %d offset %d: wrong bytes", i, off)
		}
		return nil
	})
}

// checkReadable makes sure that what can be read is what the last write put there, and that the
// block map says so.
func (w *world) checkReadable(t *testing.T) {
	t.Helper()
	p := pages(t, testBlock)
	_ = w.blocks(func(i int, b Backing, off, n uint64) error {
		err := b.ReadBlock(off, p[:n])
		fill, good := w.good[i][off]
		switch known := b.Block(off); {
		case known != Block{} && (!good || known != filled(fill)):
			t.Fatalf("backing %d offset %d after the fault: %+v, good: %v, fill %d", i, off, known, good, fill)
		case known == Block{} && err == nil:
			t.Fatalf("backing %d offset %d: absent, yet it can be read", i, off)
		case err != nil && !errors.Is(err, ErrAbsent) && !errors.Is(err, errNoRoom):
			t.Fatalf("backing %d offset %d after the fault: %v", i, off, err)
		case err == nil && !good:
			t.Fatalf("backing %d offset %d: its write failed, yet it can be read", i, off)
		case err == nil && !bytes.Equal(p[:n], bytes.Repeat([]byte{fill}, int(n))):
			t.Fatalf("backing %d offset %d: wrong bytes can be read", i, off)
		}
		return nil
	})
}

// finish checks that everything works again without faults, and that nothing is left.
func (w *world) finish(t *testing.T) {
	t.Helper()
	if err := w.cycle(t, 200); err != nil {
		t.Fatalf("a cycle after the fault: %v", err)
	}
	w.closed(t)
}

func (w *world) closed(t *testing.T) {
	t.Helper()
	if err := w.store.Close(); err != nil {
		t.Fatalf("close: %v", err)
	}
	for _, dir := range w.dirs {
		if left, err := os.ReadDir(dir); err != nil && !errors.Is(err, os.ErrNotExist) || len(left) > 0 {
			t.Fatalf("left in %s: %v (error: %v)", dir, left, err)
		}
	}
	if u := w.store.Usage(); u.DiskBytes != 0 || u.Files != 0 || u.HostBytes != 0 {
		t.Fatalf("a closed store takes %+v", u)
	}
	if len(w.sys.open) > 0 {
		t.Fatalf("%d descriptors are still open", len(w.sys.open))
	}
	if fds := openUnder(t, w.root); len(fds) > 0 {
		t.Fatalf("descriptors still open: %v", fds)
	}
}

// openUnder lists this process's descriptors of files under a directory.
func openUnder(t *testing.T, dir string) (open []string) {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		if link, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && strings.HasPrefix(link, dir) {
			open = append(open, link)
		}
	}
	return open
}

// TestEachCallFailsOnce makes each system call of two cycles and of Close fail, one at a time.
func TestEachCallFailsOnce(t *testing.T) {
	// A fault of these costs nothing but memory, a figure in a message, or a guess.
	harmless := []string{"close", "dropCache", "statx", "fstatfs"}
	for _, mode := range modes {
		t.Run(mode.name, func(t *testing.T) {
			dry := newWorld(t, mode)
			for _, err := range []error{dry.cycle(t, 1), dry.cycle(t, 100), dry.store.Close()} {
				if err != nil {
					t.Fatal(err)
				}
			}
			calls := dry.sys.calls
			if len(calls) < 60 {
				t.Fatalf("only %d calls: %v", len(calls), calls)
			}
			for n := range calls {
				for _, errno := range []unix.Errno{unix.EIO, unix.ENOSPC} {
					w := newWorld(t, mode)
					call := "" // that failed; the order of files in Close varies
					w.sys.fault = func(i int, c string) error {
						if i == n {
							call = c
							return errno
						}
						if mode.fault != nil {
							return mode.fault(i, c)
						}
						return nil
					}
					err := w.cycle(t, 1)
					if err == nil {
						err = w.cycle(t, 100)
					}
					if err == nil {
						err = w.store.Close()
						w.sys.setFault(mode.fault)
						// A lack of room sends blocks to the other directory, where there is one.
						spilled := mode.dirs > 1 && errno == unix.ENOSPC
						if !spilled && (err == nil) != slices.Contains(harmless, call) {
							t.Fatalf("call %d (%s) failed with %v; the result is %v", n, call, errno, err)
						}
						w.closed(t)
						continue
					}
					w.sys.setFault(mode.fault)
					if slices.Contains(harmless, call) || !errors.Is(err, errno) {
						t.Fatalf("call %d (%s) failed with %v; the result is %v", n, call, errno, err)
					}
					w.checkReadable(t)
					w.finish(t)
				}
			}
		})
	}
}

// TestInterruptedCalls makes each call return EINTR once: nobody sees it.
func TestInterruptedCalls(t *testing.T) {
	for _, mode := range modes {
		t.Run(mode.name, func(t *testing.T) {
			w := newWorld(t, mode)
			interrupted := false
			w.sys.fault = func(n int, call string) error {
				if interrupted = !interrupted && call != "close"; interrupted {
					return unix.EINTR
				}
				if mode.fault != nil {
					return mode.fault(n, call)
				}
				return nil
			}
			for _, fill := range []byte{1, 100} {
				if err := w.cycle(t, fill); err != nil {
					t.Fatal(err)
				}
			}
			w.closed(t)
		})
	}
}

// TestTwoFaultsInReserve makes every pair of calls of a Reserve fail, so that the clean-up of
// the first fault meets the second.
func TestTwoFaultsInReserve(t *testing.T) {
	dry := newWorld(t, mode{})
	if err := dry.backings[0].Reserve(); err != nil {
		t.Fatal(err)
	}
	n := len(dry.sys.calls) + 4 // calls of the clean-up
	for first := range n {
		for second := first + 1; second < n; second++ {
			w := newWorld(t, mode{})
			w.sys.fault = func(i int, _ string) error {
				if i == first || i == second {
					return unix.EIO
				}
				return nil
			}
			_ = w.backings[0].Reserve()
			w.sys.setFault(nil)
			w.finish(t)
		}
	}
}

// TestErrorsSayWhatFailed looks at the text and the kinds of an error.
func TestErrorsSayWhatFailed(t *testing.T) {
	w := newWorld(t, mode{})
	if err := w.cycle(t, 1); err != nil {
		t.Fatal(err)
	}
	b, p := w.backings[0], pages(t, testBlock)
	path := fileOf(b)

	w.sys.setFault(failCall("pwrite", unix.EIO))
	err := b.WriteBlock(testBlock, p, Block{State: Stored})
	want := fmt.Sprintf("write block at offset %d of file %s (offset %[1]d): I/O error: input/output error", testBlock, path)
	if !errors.Is(err, ErrIO) || !errors.Is(err, unix.EIO) || err.Error() != want {
		t.Errorf("failed write:\n got %v\nwant %s", err, want)
	}

	w.sys.setFault(failCall("pread", unix.EIO))
	err = b.ReadBlock(0, p)
	want = fmt.Sprintf("read block at offset 0 of file %s (offset 0): I/O error: input/output error", path)
	if !errors.Is(err, ErrIO) || err.Error() != want {
		t.Errorf("failed read:\n got %v\nwant %s", err, want)
	}

	for _, errno := range []unix.Errno{unix.ENOSPC, unix.EDQUOT} {
		w.sys.setFault(failCall("pwrite", errno))
		err = b.WriteBlock(0, p, Block{State: Stored})
		var space *NoSpaceError
		if !errors.Is(err, ErrNoSpace) || !errors.Is(err, errno) || !errors.As(err, &space) || space.Dir != w.dir || space.Free == 0 {
			t.Errorf("%v while writing: %v", errno, err)
		}
	}
	w.sys.setFault(nil)
	w.finish(t)
}

// TestShortTransfers has the system move less than it was asked to.
func TestShortTransfers(t *testing.T) {
	for _, mode := range modes {
		t.Run(mode.name, func(t *testing.T) {
			w := newWorld(t, mode)
			w.sys.short = func(_ string, n int) int { return min(n, ioAlign) }
			if err := w.cycle(t, 1); err != nil {
				t.Fatalf("one page at a time: %v", err)
			}
			if mode.name == "buffered" {
				w.sys.short = func(_ string, n int) int { return min(n, 1000) }
				if err := w.cycle(t, 50); err != nil {
					t.Fatalf("1000 bytes at a time: %v", err)
				}
			}
			for _, call := range []string{"pwrite", "pread"} {
				w.sys.short = func(c string, n int) int {
					if c == call {
						return 0
					}
					return n
				}
				// Nothing read means that the file ends there: somebody cut it.
				want := ErrIO
				if call == "pread" {
					want = ErrLost
				}
				if err := w.cycle(t, 100); !errors.Is(err, want) || !strings.Contains(err.Error(), "block at offset ") {
					t.Errorf("%s moves nothing: %v", call, err)
				}
				w.checkableAfterShort(t)
			}
			w.sys.short = nil
			w.finish(t)
		})
	}
}

func (w *world) checkableAfterShort(t *testing.T) {
	t.Helper()
	short := w.sys.short
	w.sys.short = nil
	w.checkReadable(t)
	w.sys.short = short
}

// TestAFileCutShort is no source of bytes.
func TestAFileCutShort(t *testing.T) {
	w := newWorld(t, mode{})
	if err := w.cycle(t, 1); err != nil {
		t.Fatal(err)
	}
	b := w.backings[0]
	if err := os.Truncate(fileOf(b), testBlock); err != nil {
		t.Fatal(err)
	}
	p := pages(t, testBlock)
	if err := b.ReadBlock(0, p); err != nil {
		t.Errorf("the part that is there: %v", err)
	}
	if err := b.ReadBlock(testBlock, p); !errors.Is(err, ErrLost) {
		t.Errorf("the part that is gone: %v, want ErrLost", err)
	}
	w.finish(t)
}

// TestNoDirectIO covers the ways in which file systems say that they do not do O_DIRECT.
func TestNoDirectIO(t *testing.T) {
	// atPwrite refuses the write number n, counted from 1, and all direct ones after it.
	atPwrite := func(w *world, n int) func(int, string) error {
		seen := 0
		return func(_ int, call string) error {
			if call == "pwrite" && !w.store.Usage().Buffered {
				if seen++; seen >= n {
					return unix.EINVAL
				}
			}
			return nil
		}
	}
	for _, c := range []struct {
		name  string
		says  string
		fault func(w *world) func(int, string) error
	}{
		{"open says EINVAL", "open", func(*world) func(int, string) error { return failCall("openat direct", unix.EINVAL) }},
		{"open says EOPNOTSUPP", "open", func(*world) func(int, string) error { return failCall("openat direct", unix.EOPNOTSUPP) }},
		{"first write", "first write", func(w *world) func(int, string) error { return atPwrite(w, 1) }},
		{"third write", "transfer", func(w *world) func(int, string) error { return atPwrite(w, 3) }},
		{"last write", "transfer", func(w *world) func(int, string) error { return atPwrite(w, 7) }},
		{"first read", "first read", func(w *world) func(int, string) error {
			return func(_ int, call string) error {
				if call == "pread" && !w.store.Usage().Buffered {
					return unix.EINVAL
				}
				return nil
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, mode{})
			w.sys.fault = c.fault(w)
			for _, fill := range []byte{1, 100} {
				if err := w.cycle(t, fill); err != nil {
					t.Fatal(err)
				}
			}
			if len(w.warned) != 1 || !strings.Contains(w.warned[0], w.dir) || !strings.Contains(w.warned[0], "("+c.says+" with O_DIRECT") {
				t.Errorf("said: %q, want one line that names the directory and %q", w.warned, c.says)
			}
			if !w.store.Usage().Buffered {
				t.Error("the store does not say that it is buffered")
			}
			for _, call := range []string{"syncRange", "dropCache", "fsync"} {
				if !slices.Contains(w.sys.calls, call) {
					t.Errorf("%s was never called", call)
				}
			}
			w.closed(t)
		})
	}
}

// leavesFile is a system whose open makes the file before it refuses O_DIRECT, as kernels do.
type leavesFile struct{ *faulty }

func (s leavesFile) openat(dir int, name string, flags int, mode uint32) (int, error) {
	if flags&unix.O_DIRECT == 0 {
		return s.faulty.openat(dir, name, flags, mode)
	}
	fd, err := s.faulty.openat(dir, name, flags&^unix.O_DIRECT, mode)
	if err == nil {
		_ = s.faulty.close(fd)
		err = unix.EINVAL
	}
	return -1, err
}

func TestRefusedOpenLeavesNoFile(t *testing.T) {
	w := newWorld(t, mode{})
	w.store.sys = leavesFile{w.sys}
	w.store.fds.sys = leavesFile{w.sys}
	if err := w.cycle(t, 1); err != nil {
		t.Fatal(err)
	}
	if files, err := os.ReadDir(w.dir); err != nil || len(files) != len(w.backings) {
		t.Errorf("%d files for %d backings (error: %v)", len(files), len(w.backings), err)
	}
	w.closed(t)
}

// TestNoPreallocation goes on without, and says so once.
func TestNoPreallocation(t *testing.T) {
	w := newWorld(t, mode{})
	w.sys.fault = failCall("fallocate", unix.EOPNOTSUPP)
	if err := w.cycle(t, 1); err != nil {
		t.Fatal(err)
	}
	if len(w.warned) != 1 || !strings.Contains(w.warned[0], "cannot preallocate") {
		t.Errorf("said: %q, want one line about preallocation", w.warned)
	}
	w.closed(t)
}

// TestASmallAllocationCostsFewCalls: thousands of them must not cost more than one large one.
// Every file is opened once for writing and once for reading, and closed at rest.
func TestASmallAllocationCostsFewCalls(t *testing.T) {
	w := newWorld(t, mode{})
	w.size, w.backings = testBlock, nil
	b := w.open(t, 5)
	if err := b.Reserve(); err != nil {
		t.Fatal(err)
	}
	w.store.Rest()
	p := pages(t, testBlock)
	look := []string{"fstat", "fstatat"} // that its directory and its name are still the same
	open := append(slices.Clone(look), "openat direct", "fstat")
	for _, step := range []struct {
		what string
		do   func() error
		want []string
	}{
		{"reserve", b.Reserve, look},
		{"write", func() error { return b.WriteBlock(0, p, filled(1)) }, append(slices.Clone(open), "pwrite")},
		{"write again", func() error { return b.WriteBlock(0, p, filled(1)) }, []string{"pwrite"}},
		{"commit", b.Commit, look},
		{"rest", func() error { w.store.Rest(); return nil }, []string{"close"}},
		{"read", func() error { return b.ReadBlock(0, p) }, append(slices.Clone(open), "pread")},
		{"mark", func() error { b.Mark(0, Block{State: Zero}); return nil }, nil},
		{"read zeros", func() error { return b.ReadBlock(0, p) }, nil},
	} {
		w.sys.calls = nil
		if err := step.do(); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(w.sys.calls, step.want) {
			t.Errorf("%s: calls %v, want %v", step.what, w.sys.calls, step.want)
		}
	}
}

// TestDescriptorsAreBounded uses more files than may be open, from several goroutines.
func TestDescriptorsAreBounded(t *testing.T) {
	const limit, backings, workers = 3, 9, 6
	w := newWorld(t, mode{})
	w.store.fds.max = limit
	for id := range uint64(backings - 2) {
		w.open(t, id+2)
	}
	if err := w.cycle(t, 1); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range workers {
		p := pages(t, testBlock)
		wg.Go(func() {
			err := w.blocks(func(i int, b Backing, off, n uint64) error {
				if err := b.ReadBlock(off, p[:n]); err != nil {
					return err
				}
				if !bytes.Equal(p[:n], bytes.Repeat([]byte{w.good[i][off]}, int(n))) {
					return fmt.Errorf("backing %d offset %d: wrong bytes", i, off)
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if w.sys.maxOpen > limit {
		t.Errorf("%d files were open at once, the limit is %d", w.sys.maxOpen, limit)
	}
	w.closed(t)
}

// TestCloseDuringBlockCalls closes the store under working goroutines, as a process exit does.
func TestCloseDuringBlockCalls(t *testing.T) {
	w := newWorld(t, mode{})
	if err := w.cycle(t, 1); err != nil {
		t.Fatal(err)
	}
	started := make(chan struct{}, 4)
	var wg sync.WaitGroup
	for g := range 4 {
		p := pages(t, testBlock)
		wg.Go(func() {
			started <- struct{}{}
			for {
				if err := w.backings[g%2].WriteBlock(uint64(g/2)*testBlock, p, Block{State: Stored}); err != nil {
					if !errors.Is(err, ErrClosed) && !errors.Is(err, errNoRoom) {
						t.Error(err)
					}
					return
				}
			}
		})
	}
	for range 4 {
		<-started
	}
	if err := w.store.Close(); err != nil {
		t.Error(err)
	}
	wg.Wait()
	w.closed(t)
}

// hanging is a disk whose writes do not return until it is let go.
type hanging struct {
	*faulty
	begun, let chan struct{}
}

func (s hanging) pwrite(fd int, p []byte, off int64) (int, error) {
	s.begun <- struct{}{}
	<-s.let
	return s.faulty.pwrite(fd, p, off)
}

// TestAHangingDiskHoldsUpItsOwnBlocksOnly: neither other files nor Close wait for it.
func TestAHangingDiskHoldsUpItsOwnBlocksOnly(t *testing.T) {
	w := newWorld(t, mode{dirs: 2})
	w.store.fds.max = 4
	if err := w.cycle(t, 1); err != nil {
		t.Fatal(err)
	}
	disk := hanging{faulty: w.sys, begun: make(chan struct{}), let: make(chan struct{})}
	w.store.sys = disk
	failed := make(chan error)
	p := pages(t, testBlock)
	go func() { failed <- w.backings[0].WriteBlock(0, p, filled(9)) }()
	<-disk.begun
	for _, b := range w.backings {
		if err := b.ReadBlock(testBlock, pages(t, testBlock)); err != nil {
			t.Error(err)
		}
	}
	if got := w.backings[0].Block(0); got != (Block{}) {
		t.Errorf("during the write the block is %+v", got)
	}
	if err := w.store.Close(); err != nil {
		t.Error(err)
	}
	close(disk.let)
	if err := <-failed; err != nil {
		t.Errorf("the write under way: %v", err)
	}
	if got := w.backings[0].Block(0); got != (Block{}) {
		t.Errorf("after Close the block is %+v", got)
	}
	w.closed(t)
}
