package store

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ebb-offload/ebb/internal/filesys"
	"github.com/ebb-offload/ebb/internal/fingerprint"
)

const testBlock = 8192

// fileOf is the path of the file that holds a backing's first block.
func fileOf(b Backing) string {
	path, _, _ := strings.Cut(strings.TrimPrefix(b.Where(0), "file "), " (offset ")
	return path
}

// mode is a way in which a store works.
type mode struct {
	name   string
	faults string // as long as the test wants none
	dirs   int    // 0: one
	budget uint64 // of host memory
}

var modes = []mode{
	{name: "direct"},
	{name: "buffered", faults: "open:*:nodirect"},
	{name: "two directories", dirs: 2},
	{name: "two directories and host memory", dirs: 2, budget: 2 * testBlock},
}

// with adds faults to those of the mode.
func (m mode) with(faults string) string {
	if m.faults != "" {
		faults += "," + m.faults
	}
	return faults
}

// world is a store with two backings, and what may be read from them.
type world struct {
	t        *testing.T
	mode     mode
	sys      *filesys.Faults
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
	w := &world{t: t, mode: m, sys: filesys.NewFaults(filesys.Kernel{}), size: 2*testBlock + 100}
	w.fault("")
	w.place(t.TempDir())
	w.store = New(Options{
		BlockBytes: testBlock, MaxOpen: 1, System: w.sys,
		Name:       func(seq uint64) string { return fmt.Sprintf("backup-%d.bak", seq) },
		Dirs:       func() []string { return w.dirs },
		HostBudget: func() uint64 { return m.budget },
		Alloc: func(n uint64) (Extent, error) {
			return Plain(make([]byte, n), func() error { return nil }), nil
		},
		Warn: func(line string) { w.warned = append(w.warned, line) },
	})
	for id := range uint64(2) {
		w.open(t, id)
	}
	return w
}

// place has the directories lie under another one, before anything is written.
func (w *world) place(root string) {
	w.root, w.dirs = root, nil
	for i := range max(w.mode.dirs, 1) {
		w.dirs = append(w.dirs, filepath.Join(root, fmt.Sprint("disk", i), "b"))
	}
	w.dir = w.dirs[0]
}

// fault replaces the faults, besides those of the mode.
func (w *world) fault(faults string) {
	w.t.Helper()
	if faults == "" {
		faults = w.mode.faults
	} else {
		faults = w.mode.with(faults)
	}
	if err := w.sys.Set(faults); err != nil {
		w.t.Fatal(err)
	}
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
	// Those of a call that hung are closed a moment after it.
	for deadline := time.Now().Add(time.Minute); ; runtime.Gosched() {
		fds := openUnder(t, w.root)
		if len(fds) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("descriptors still open: %v", fds)
		}
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
	harmless := []string{"close", "fadvise", "statx", "fstatfs"}
	for _, mode := range modes {
		t.Run(mode.name, func(t *testing.T) {
			dry := newWorld(t, mode)
			for _, err := range []error{dry.cycle(t, 1), dry.cycle(t, 100), dry.store.Close()} {
				if err != nil {
					t.Fatal(err)
				}
			}
			failed := 0
			for call, times := range dry.sys.Calls() {
				for n := 1; n <= times; n++ {
					for _, errno := range []unix.Errno{unix.EIO, unix.ENOSPC} {
						w := newWorld(t, mode)
						w.fault(fmt.Sprintf("%s:%d:%s", call, n, unix.ErrnoName(errno)))
						failed++
						err := w.cycle(t, 1)
						if err == nil {
							err = w.cycle(t, 100)
						}
						if err == nil {
							err = w.store.Close()
							w.fault("")
							// A lack of room sends blocks to the other directory, where there is one.
							spilled := mode.dirs > 1 && errno == unix.ENOSPC
							if !spilled && (err == nil) != slices.Contains(harmless, call) {
								t.Fatalf("%s number %d failed with %v; the result is %v", call, n, errno, err)
							}
							w.closed(t)
							continue
						}
						w.fault("")
						if slices.Contains(harmless, call) || !errors.Is(err, errno) {
							t.Fatalf("%s number %d failed with %v; the result is %v", call, n, errno, err)
						}
						w.checkReadable(t)
						w.finish(t)
					}
				}
			}
			if failed < 120 {
				t.Fatalf("only %d calls: %v", failed, dry.sys.Calls())
			}
		})
	}
}

// TestInterruptedCalls makes every second call return EINTR: nobody sees it.
func TestInterruptedCalls(t *testing.T) {
	for _, mode := range modes {
		t.Run(mode.name, func(t *testing.T) {
			w := newWorld(t, mode)
			w.fault("any:/2:EINTR")
			for _, fill := range []byte{1, 100} {
				if err := w.cycle(t, fill); err != nil {
					t.Fatal(err)
				}
			}
			w.fault("")
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
	n := 4 // calls of the clean-up
	for _, times := range dry.sys.Calls() {
		n += times
	}
	for first := 1; first <= n; first++ {
		for second := first + 1; second <= n; second++ {
			w := newWorld(t, mode{})
			w.fault(fmt.Sprintf("any:%d:EIO,any:%d:EIO", first, second))
			_ = w.backings[0].Reserve()
			w.fault("")
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

	w.fault("pwrite:*:EIO")
	err := b.WriteBlock(testBlock, p, Block{State: Stored})
	want := fmt.Sprintf("write block at offset %d of file %s (offset %[1]d): I/O error: input/output error", testBlock, path)
	if !errors.Is(err, ErrIO) || !errors.Is(err, unix.EIO) || err.Error() != want {
		t.Errorf("failed write:\n got %v\nwant %s", err, want)
	}

	w.fault("pread:*:EIO")
	err = b.ReadBlock(0, p)
	want = fmt.Sprintf("read block at offset 0 of file %s (offset 0): I/O error: input/output error", path)
	if !errors.Is(err, ErrIO) || err.Error() != want {
		t.Errorf("failed read:\n got %v\nwant %s", err, want)
	}

	for _, errno := range []unix.Errno{unix.ENOSPC, unix.EDQUOT} {
		w.fault("pwrite:*:" + unix.ErrnoName(errno))
		err = b.WriteBlock(0, p, Block{State: Stored})
		var space *NoSpaceError
		if !errors.Is(err, ErrNoSpace) || !errors.Is(err, errno) || !errors.As(err, &space) || space.Dir != w.dir || space.Free == 0 {
			t.Errorf("%v while writing: %v", errno, err)
		}
	}
	w.fault("")
	w.finish(t)
}

// TestShortTransfers has the system move less than it was asked to.
func TestShortTransfers(t *testing.T) {
	for _, mode := range modes {
		t.Run(mode.name, func(t *testing.T) {
			w := newWorld(t, mode)
			w.fault("pwrite:*:short=4096,pread:*:short=4096")
			if err := w.cycle(t, 1); err != nil {
				t.Fatalf("one page at a time: %v", err)
			}
			if mode.name == "buffered" {
				w.fault("pwrite:*:short=1000,pread:*:short=1000")
				if err := w.cycle(t, 50); err != nil {
					t.Fatalf("1000 bytes at a time: %v", err)
				}
			}
			for _, call := range []string{"pwrite", "pread"} {
				w.fault(call + ":*:short=0")
				// Nothing read means that the file ends there: somebody cut it.
				want := ErrIO
				if call == "pread" {
					want = ErrLost
				}
				if err := w.cycle(t, 100); !errors.Is(err, want) || !strings.Contains(err.Error(), "block at offset ") {
					t.Errorf("%s moves nothing: %v", call, err)
				}
				w.fault("")
				w.checkReadable(t)
			}
			w.finish(t)
		})
	}
}

// TestSilentFaultsGoUnseen by the store: the fingerprints that its user keeps are there to find
// them.
func TestSilentFaultsGoUnseen(t *testing.T) {
	for _, fault := range []string{"pwrite:1:flip", "pwrite:1:torn", "pread:1:flip", "pread:1:torn"} {
		w := newWorld(t, mode{})
		b, p := w.backings[0], pages(t, testBlock)
		if err := b.Reserve(); err != nil {
			t.Fatal(err)
		}
		for i := range p {
			p[i] = byte(i%251 + 1)
		}
		want := bytes.Clone(p)
		w.fault(fault)
		if err := b.WriteBlock(0, p, filled(1)); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(p, want) {
			t.Errorf("%s: the bytes to be written have changed", fault)
		}
		if err := b.ReadBlock(0, p); err != nil {
			t.Fatal(err)
		}
		if bytes.Equal(p, want) || w.sys.Hits() != 1 {
			t.Errorf("%s: %d faults, and the right bytes came back", fault, w.sys.Hits())
		}
		w.fault("")
		w.finish(t)
	}
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
	for _, c := range []struct{ says, faults string }{
		{"open", "open:*:nodirect"},
		{"open", "open:*:nodirect=EOPNOTSUPP"},
		{"first write", "pwrite:*:nodirect"},
		{"transfer", "pwrite:3+:nodirect"},
		{"transfer", "pwrite:7+:nodirect"},
		{"first read", "pread:*:nodirect"},
		{"statx", "statx:*:align=8192"},
		{"first write", "pwrite:*:align=8192"},
	} {
		t.Run(c.faults, func(t *testing.T) {
			w := newWorld(t, mode{})
			w.fault(c.faults)
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
			for _, call := range []string{"syncrange", "fadvise", "fsync"} {
				if w.sys.Calls()[call] == 0 {
					t.Errorf("%s was never called", call)
				}
			}
			w.closed(t)
		})
	}
}

// TestRefusedOpenLeavesNoFile: kernels make the file before they refuse O_DIRECT.
func TestRefusedOpenLeavesNoFile(t *testing.T) {
	w := newWorld(t, mode{})
	w.fault("open:*:nodirect")
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
	w.fault("fallocate:*:EOPNOTSUPP")
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
	for _, step := range []struct {
		what string
		do   func() error
		want string // calls
	}{
		{"reserve", b.Reserve, "map[fstat:1 fstatat:1]"}, // that its directory and its name are still the same
		{"write", func() error { return b.WriteBlock(0, p, filled(1)) }, "map[fstat:2 fstatat:1 open:1 pwrite:1]"},
		{"write again", func() error { return b.WriteBlock(0, p, filled(1)) }, "map[pwrite:1]"},
		{"commit", b.Commit, "map[fstat:1 fstatat:1]"},
		{"rest", func() error { w.store.Rest(); return nil }, "map[close:1]"},
		{"read", func() error { return b.ReadBlock(0, p) }, "map[fstat:2 fstatat:1 open:1 pread:1]"},
		{"mark", func() error { b.Mark(0, Block{State: Zero}); return nil }, "map[]"},
		{"read zeros", func() error { return b.ReadBlock(0, p) }, "map[]"},
	} {
		w.fault("")
		if err := step.do(); err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(w.sys.Calls()); got != step.want {
			t.Errorf("%s: calls %s, want %s", step.what, got, step.want)
		}
	}
}

// openFiles counts the files that are open at a time.
type openFiles struct {
	filesys.System
	mu      sync.Mutex
	open    map[int]bool
	maxOpen int
}

func (s *openFiles) Openat(dir int, name string, flags int, mode uint32) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fd, err := s.System.Openat(dir, name, flags, mode)
	if err == nil && flags&unix.O_PATH == 0 {
		s.open[fd] = true
		s.maxOpen = max(s.maxOpen, len(s.open))
	}
	return fd, err
}

func (s *openFiles) Close(fd int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, fd)
	return s.System.Close(fd)
}

// TestDescriptorsAreBounded uses more files than may be open, from several goroutines.
func TestDescriptorsAreBounded(t *testing.T) {
	const limit, backings, workers = 3, 9, 6
	w := newWorld(t, mode{})
	counter := &openFiles{System: w.sys, open: map[int]bool{}}
	w.store.sys, w.store.fds.sys, w.store.fds.max = counter, counter, limit
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
	if counter.maxOpen > limit {
		t.Errorf("%d files were open at once, the limit is %d", counter.maxOpen, limit)
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

// TestAHangingDiskHoldsUpItsOwnBlocksOnly: neither other files nor Close wait for it.
func TestAHangingDiskHoldsUpItsOwnBlocksOnly(t *testing.T) {
	w := newWorld(t, mode{dirs: 2})
	w.store.fds.max = 4
	if err := w.cycle(t, 1); err != nil {
		t.Fatal(err)
	}
	w.fault("pwrite:1:hang")
	failed := make(chan error)
	p := pages(t, testBlock)
	go func() { failed <- w.backings[0].WriteBlock(0, p, filled(9)) }()
	w.sys.AwaitHang()
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
	w.fault("")
	if err := <-failed; err != nil {
		t.Errorf("the write under way: %v", err)
	}
	if got := w.backings[0].Block(0); got != (Block{}) {
		t.Errorf("after Close the block is %+v", got)
	}
	w.closed(t)
}
