package staging

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"github.com/ebb-offload/ebb/internal/device"
	"github.com/ebb-offload/ebb/internal/hostmem"
	"golang.org/x/sys/unix"

	"github.com/ebb-offload/ebb/internal/testutil"
)

// registry is the driver's side of registration: it remembers what is pinned.
type registry struct {
	pinned map[unsafe.Pointer]uint64
	refuse error // returned by register
}

func (r *registry) register(p unsafe.Pointer, n uint64) error {
	if r.refuse != nil {
		return r.refuse
	}
	r.pinned[p] = n
	return nil
}

func (r *registry) unregister(p unsafe.Pointer) error {
	if _, ok := r.pinned[p]; !ok {
		return errors.New("not registered")
	}
	delete(r.pinned, p)
	return nil
}

func options(r *registry, chunk uint64, workers int) Options {
	r.pinned = map[unsafe.Pointer]uint64{}
	return Options{ChunkBytes: chunk, Workers: workers, NUMANode: 0, Register: r.register, Unregister: r.unregister}
}

func TestChunkIsOneRegisteredPieceOfAlignedBlocks(t *testing.T) {
	var r registry
	s, err := New(options(&r, 5<<20, 2))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if s.BlockBytes() != 1<<20 || s.Blocks() != 4 || s.Workers() != 2 || s.Bytes() != 4<<20 {
		t.Errorf("%d blocks of %d bytes, %d in all, for %d workers", s.Blocks(), s.BlockBytes(), s.Bytes(), s.Workers())
	}
	if n := r.pinned[unsafe.Pointer(&s.Block(0)[0])]; len(r.pinned) != 1 || n != s.Bytes() {
		t.Errorf("registered %v, want one piece of %d bytes from the first block", r.pinned, s.Bytes())
	}
	for i := range s.Blocks() {
		b := s.Block(i)
		if len(b) != 1<<20 || cap(b) != 1<<20 {
			t.Errorf("block %d has length %d and capacity %d", i, len(b), cap(b))
		}
		if uintptr(unsafe.Pointer(&b[0]))%4096 != 0 {
			t.Errorf("block %d begins at %p", i, &b[0])
		}
		for j := range b {
			b[j] = byte(i)
		}
	}
	for i := range s.Blocks() { // blocks do not overlap
		if b := s.Block(i); b[0] != byte(i) || b[len(b)-1] != byte(i) {
			t.Errorf("block %d holds the bytes of another", i)
		}
	}
}

func TestChunkIsNeverLargerThanAskedFor(t *testing.T) {
	var r registry
	const ask = 3<<20 + 12345
	s, err := New(options(&r, ask, 1))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if s.Bytes() > ask || s.Bytes()%s.BlockBytes() != 0 {
		t.Errorf("%d bytes in blocks of %d", s.Bytes(), s.BlockBytes())
	}
}

func TestTooSmallAChunkIsRefused(t *testing.T) {
	var r registry
	_, err := New(options(&r, MinChunk-1, 1))
	if err == nil || !strings.Contains(err.Error(), fmt.Sprint(MinChunk-1)) || !strings.Contains(err.Error(), fmt.Sprint(MinChunk)) {
		t.Errorf("error %v does not say what was given and what is needed", err)
	}
}

// The pages of the chunk are present, kept from forked children and core dumps, of the large kind
// where there is one, and not locked.
func TestMappingFlags(t *testing.T) {
	var r registry
	s, err := New(options(&r, 80<<20, 4)) // enough for two touching threads
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, i := range []int{0, s.Blocks() - 1} {
		flags := testutil.VMFlags(t, unsafe.Pointer(&s.Block(i)[0]))
		for _, want := range []string{"dc", "dd"} {
			if !flags[want] {
				t.Errorf("block %d: flag %q missing in %v", i, want, flags)
			}
		}
		if _, err := os.Stat("/sys/kernel/mm/transparent_hugepage"); err == nil && !flags["hg"] {
			t.Errorf("block %d: huge pages are not asked for: %v", i, flags)
		}
		if flags["lo"] {
			t.Errorf("block %d is mlocked: %v", i, flags)
		}
	}
	// A page that the kernel is just moving, to make a large one, is absent for that moment.
	var page int
	for range 1000 {
		if page = firstAbsent(t, s.memory); page < 0 {
			return
		}
		runtime.Gosched()
	}
	t.Fatalf("page %d of %d is not present", page, len(s.memory)/4096)
}

// firstAbsent is the first page of memory without physical memory, or -1.
func firstAbsent(t *testing.T, memory []byte) int {
	t.Helper()
	present := make([]byte, len(memory)/4096)
	if _, _, errno := syscall.Syscall(syscall.SYS_MINCORE, uintptr(unsafe.Pointer(&memory[0])), uintptr(len(memory)),
		uintptr(unsafe.Pointer(&present[0]))); errno != 0 {
		t.Fatal(errno)
	}
	return slices.IndexFunc(present, func(p byte) bool { return p&1 == 0 })
}

func TestForkedChildDoesNotGetTheChunk(t *testing.T) {
	var r registry
	s, err := New(options(&r, 1<<20, 1))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	inherited, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(inherited)

	if !mappedInChild(t, unsafe.Pointer(&inherited[0])) {
		t.Fatal("the child lacks an ordinary mapping: this test proves nothing")
	}
	if mappedInChild(t, unsafe.Pointer(&s.Block(0)[0])) {
		t.Error("the child has the staging memory")
	}
}

func TestRefusedRegistrationLeavesNothing(t *testing.T) {
	for _, c := range []struct {
		name   string
		refuse error
		isHost bool
	}{
		{"out of memory", &device.Error{Call: "cuMemHostRegister", Code: device.CodeOutOfMemory}, true},
		{"broken context", &device.Error{Call: "cuMemHostRegister", Code: 700}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			var r registry
			o := options(&r, 1<<20, 1)
			var at unsafe.Pointer
			o.Register = func(p unsafe.Pointer, n uint64) error {
				at = p
				if !testutil.VMFlags(t, p)["dc"] {
					t.Error("registered memory is not the chunk")
				}
				return c.refuse
			}
			s, err := New(o)
			if s != nil || !errors.Is(err, c.refuse) {
				t.Fatalf("New = %v, %v", s, err)
			}
			if errors.Is(err, hostmem.ErrMemory) != c.isHost {
				t.Errorf("%v: is hostmem.ErrMemory %v, want %v", err, !c.isHost, c.isHost)
			}
			var m *MemoryError
			if !errors.As(err, &m) || m.Bytes != 1<<20 || !strings.Contains(err.Error(), "1048576") {
				t.Errorf("%v does not carry the number of bytes", err)
			}
			if testutil.VMFlags(t, at)["dc"] {
				t.Error("the mapping is still there")
			}
		})
	}
}

func TestMemoryThatTheHostCannotGiveIsATypedError(t *testing.T) {
	var r registry
	o := options(&r, 1<<50, 1) // beyond the address space
	o.MaxBlock = 1 << 49
	_, err := New(o)
	var m *MemoryError
	if !errors.Is(err, hostmem.ErrMemory) || !errors.As(err, &m) || m.Bytes != 1<<50 {
		t.Errorf("New = %v", err)
	}
	if len(r.pinned) != 0 {
		t.Error("something was registered")
	}
}

func TestCloseGivesTheMemoryBack(t *testing.T) {
	var r registry
	s, err := New(options(&r, 1<<20, 1))
	if err != nil {
		t.Fatal(err)
	}
	at := unsafe.Pointer(&s.Block(0)[0])
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if len(r.pinned) != 0 || testutil.VMFlags(t, at)["dc"] {
		t.Error("still registered or mapped")
	}
	if err := s.Close(); err != nil {
		t.Errorf("closed again: %v", err)
	}
}

func TestCloseGivesTheMemoryBackWhenTheDriverRefuses(t *testing.T) {
	var r registry
	o := options(&r, 1<<20, 1)
	refused := errors.New("driver is gone")
	o.Unregister = func(unsafe.Pointer) error { return refused }
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	at := unsafe.Pointer(&s.Block(0)[0])
	if err := s.Close(); !errors.Is(err, refused) {
		t.Errorf("Close = %v", err)
	}
	if testutil.VMFlags(t, at)["dc"] {
		t.Error("still mapped")
	}
}

// mappedInChild forks, and says whether the child has the page at p.
func mappedInChild(t *testing.T, p unsafe.Pointer) bool {
	t.Helper()
	pid, errno := forkAndProbe(uintptr(p))
	if errno != 0 {
		t.Fatalf("fork: %v", errno)
	}
	var status syscall.WaitStatus
	for {
		_, err := syscall.Wait4(int(pid), &status, 0, nil)
		if err == nil {
			break
		}
		if !errors.Is(err, syscall.EINTR) {
			t.Fatal(err)
		}
	}
	if !status.Exited() || status.ExitStatus() > 1 {
		t.Fatalf("the child ended with status %#x", status)
	}
	return status.ExitStatus() == 0
}

// forkAndProbe forks a child that ends with 0 when the page at addr is mapped in it, 1 when not.
// The child has no Go runtime, only this thread: it makes raw system calls and nothing else.
//
//go:norace
//go:noinline
func forkAndProbe(addr uintptr) (uintptr, syscall.Errno) {
	pid, _, errno := syscall.RawSyscall6(syscall.SYS_CLONE, uintptr(syscall.SIGCHLD), 0, 0, 0, 0, 0)
	if errno != 0 || pid != 0 {
		return pid, errno
	}
	_, _, errno = syscall.RawSyscall(syscall.SYS_MSYNC, addr, 4096, unix.MS_ASYNC)
	status := uintptr(0)
	if errno == syscall.ENOMEM {
		status = 1
	}
	for {
		_, _, _ = syscall.RawSyscall(syscall.SYS_EXIT_GROUP, status, 0, 0)
	}
}
