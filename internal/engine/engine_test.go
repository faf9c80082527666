package engine

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/ebb-offload/ebb/internal/alloc"
	"github.com/ebb-offload/ebb/internal/device"
	"github.com/ebb-offload/ebb/internal/device/cuda"
	"github.com/ebb-offload/ebb/internal/mem"
	"github.com/ebb-offload/ebb/internal/store"
	"github.com/ebb-offload/ebb/internal/testutil"
)

// The tests drive the engine over softgpu, in this process, with a granularity of 64 KiB, so
// that many allocations stay cheap, and two devices of 1.5 GiB. Submitted work does not begin
// until somebody waits for it, so that a wait that is missing always shows.
func TestMain(m *testing.M) {
	if args := os.Getenv(holderEnv); args != "" {
		os.Exit(beHolder(args))
	}
	for k, v := range map[string]string{
		"SOFTGPU_NODE":           fmt.Sprintf("engine-test-%d", os.Getpid()),
		"SOFTGPU_MEM_MB":         "1536",
		"SOFTGPU_DEVICES":        "2",
		"SOFTGPU_GRANULARITY_KB": "64",
		"SOFTGPU_LATENCY_US":     "hold",
	} {
		if err := os.Setenv(k, v); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}

// rig is an engine with a disk directory of its own.
type rig struct {
	*Engine
	t   testing.TB
	dir string
	set Settings
	log *os.File
}

func newRig(t testing.TB) *rig {
	t.Helper()
	return newRigWith(t, Config{ChunkBytes: 4 << 20})
}

// newRigWith completes a configuration, with a log that logged reads.
func newRigWith(t testing.TB, c Config) *rig {
	t.Helper()
	return newRigIn(t, c, t.TempDir())
}

// newRigIn is newRigWith, with a disk directory.
func newRigIn(t testing.TB, c Config, dir string) *rig {
	t.Helper()
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	c.LogFD, c.Driver = int(log.Fd()), testutil.SoftGPU(t)
	e, err := Start(c)
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{Engine: e, t: t, dir: dir, log: log}
	r.set.DiskDir = r.dir
	t.Cleanup(func() {
		r.fault("")
		for _, a := range r.table.All() {
			if err := r.drop(a); err != nil {
				t.Errorf("free %v at the end: %v", a, err)
			}
		}
		e.Shutdown()
		e.close()
		if left := r.files(); len(left) > 0 {
			t.Errorf("files left: %v", left)
		}
		_ = log.Close()
	})
	return r
}

// logged is what the engine has logged.
func (r *rig) logged() string {
	r.t.Helper()
	text, err := os.ReadFile(r.log.Name())
	if err != nil {
		r.t.Fatal(err)
	}
	return string(text)
}

// remarks are what the engine has logged but for the line of each pause and resume.
func (r *rig) remarks() string {
	r.t.Helper()
	var rest strings.Builder
	for line := range strings.Lines(r.logged()) {
		if !strings.HasPrefix(line, "ebb: paused ") && !strings.HasPrefix(line, "ebb: resumed ") {
			rest.WriteString(line)
		}
	}
	return rest.String()
}

// close ends what an engine otherwise keeps until its process exits.
func (e *Engine) close() {
	e.warming.Wait()
	if e.pool != nil {
		e.pool.Close()
	}
	for dev, streams := range e.hash.streams {
		_ = e.withDevice(dev, func() error {
			return errors.Join(e.drv.StreamDestroy(streams[0]), e.drv.StreamDestroy(streams[1]))
		})
	}
	for _, h := range e.hash.lanes {
		if h != nil {
			_ = h.Close()
		}
	}
	if e.host.arena != nil {
		_ = e.host.arena.Close()
	}
	if e.staging != nil {
		_ = e.withDevice(e.anyDevice(), e.staging.Close)
	}
}

// fault sets softgpu's faults, for example "cuMemMap:2:2".
func (r *rig) fault(spec string) {
	r.t.Helper()
	if err := cuda.SetSoftwareFault(r.drv, spec); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) files() []string {
	r.t.Helper()
	names, err := filepath.Glob(filepath.Join(r.dir, "*"))
	if err != nil {
		r.t.Fatal(err)
	}
	return names
}

// array is managed memory and the bytes that it must hold.
type array struct {
	addr mem.Addr
	dev  int
	want []byte
}

func (r *rig) make(size int, dev int, reg Region) *array {
	r.t.Helper()
	addr, err := r.Malloc(uint64(size), dev, reg, 0)
	if err != nil {
		r.t.Fatal(err)
	}
	r.warming.Wait() // so that it makes no calls among those that a test counts
	a := &array{addr: addr, dev: dev}
	r.fill(a, size)
	return a
}

// hog takes all memory of device 0 but 30 MiB.
func (r *rig) hog(tag string) *array {
	r.t.Helper()
	addr, err := r.Malloc(r.free(0)-30<<20, 0, none(tag), 0)
	if err != nil {
		r.t.Fatal(err)
	}
	return &array{addr: addr}
}

// fill writes new random bytes.
func (r *rig) fill(a *array, size int) {
	r.t.Helper()
	a.want = randomBytes(size)
	r.copy(a.dev, func(s device.Stream) error {
		return r.drv.CopyToDevice(a.addr, unsafe.Pointer(&a.want[0]), uint64(size), s)
	})
}

// write changes some bytes.
func (r *rig) write(a *array, off int, p []byte) {
	r.t.Helper()
	copy(a.want[off:], p)
	r.copy(a.dev, func(s device.Stream) error {
		return r.drv.CopyToDevice(a.addr+mem.Addr(off), unsafe.Pointer(&p[0]), uint64(len(p)), s)
	})
}

func (r *rig) content(a *array) []byte {
	r.t.Helper()
	got := make([]byte, len(a.want))
	r.copy(a.dev, func(s device.Stream) error {
		return r.drv.CopyToHost(unsafe.Pointer(&got[0]), a.addr, uint64(len(got)), s)
	})
	return got
}

func (r *rig) copy(dev int, fn func(device.Stream) error) {
	r.t.Helper()
	if err := r.transfer(dev, fn); err != nil {
		r.t.Fatal(err)
	}
}

// transfer does something on a stream of its own and waits for it.
func (r *rig) transfer(dev int, fn func(device.Stream) error) error {
	return r.withDevice(dev, func() error {
		s, err := r.drv.StreamCreate()
		if err != nil {
			return err
		}
		return errors.Join(fn(s), r.drv.StreamSynchronize(s), r.drv.StreamDestroy(s))
	})
}

func (r *rig) holds(arrays ...*array) {
	r.t.Helper()
	for _, a := range arrays {
		if !bytes.Equal(a.want, r.content(a)) {
			r.t.Fatalf("memory of %d bytes at %v on device %d holds other bytes", len(a.want), a.addr, a.dev)
		}
	}
}

func (r *rig) pause(tags ...string) Result {
	r.t.Helper()
	res, err := r.Pause(tags, r.set)
	if err != nil {
		r.t.Fatal(err)
	}
	return res
}

func (r *rig) resume(tags ...string) Result {
	r.t.Helper()
	res, err := r.Resume(tags, r.set)
	if err != nil {
		r.t.Fatal(err)
	}
	return res
}

func (r *rig) free(dev int) uint64 {
	r.t.Helper()
	n, err := r.freeMemory(dev)
	if err != nil {
		r.t.Fatal(err)
	}
	return n
}

func (r *rig) state(a *array) alloc.State {
	r.t.Helper()
	_, s, err := r.table.Find(a.addr, 1)
	if err != nil {
		r.t.Fatal(err)
	}
	return s
}

var (
	seed   = rand.NewChaCha8([32]byte{1})
	called int // randomBytes
)

// randomBytes is never zeros only, which are not written, and never what the call before gave, which is
// skipped: not for a single byte either.
func randomBytes(n int) []byte {
	p := make([]byte, n)
	_, _ = seed.Read(p)
	called++
	p[0] = byte(1 + called%255)
	return p
}

func disk(tag string) Region   { return Region{Tag: tag, Backup: alloc.BackupDisk} }
func pinned(tag string) Region { return Region{Tag: tag, Backup: alloc.BackupCPU} }
func mmap(tag string) Region   { return Region{Tag: tag, Backup: alloc.BackupCPU, Mmap: true} }
func none(tag string) Region   { return Region{Tag: tag} }

func TestEveryBackupBringsBackTheBytesOfEverySize(t *testing.T) {
	r := newRig(t)
	var all []*array
	for _, size := range []int{1, 7, 511, 512, 513, 4095, 4096, 4097, 64 << 10, 2<<20 - 1, 2 << 20, 2<<20 + 1, 13*1024*1024 + 419430} {
		for _, reg := range []Region{disk("d"), pinned("p"), mmap("m")} {
			all = append(all, r.make(size, 0, reg))
		}
	}
	for range 2 {
		res := r.pause()
		if res.Allocations != uint64(len(all)) {
			t.Fatalf("paused %d of %d allocations", res.Allocations, len(all))
		}
		r.resume()
		r.holds(all...)
	}
}

func TestPausedMemoryIsFreeAndComesBackAtItsAddress(t *testing.T) {
	r := newRig(t)
	before := r.free(0)
	a := r.make(20<<20, 0, disk("w"))
	held := before - r.free(0)
	res := r.pause()
	if got := r.free(0); got != before {
		t.Fatalf("free while paused: %d bytes, want %d", got, before)
	}
	if res.DeviceBytes != held || res.Bytes != 20<<20 || res.DiskBytes != 20<<20 {
		t.Fatalf("result %+v", res)
	}
	r.resume()
	if got := r.free(0); got != before-held {
		t.Fatalf("free after resume: %d bytes, want %d", got, before-held)
	}
	r.holds(a)
}

func TestOnlyTheNamedTagIsPaused(t *testing.T) {
	r := newRig(t)
	w, k := r.make(1<<20, 0, disk("weights")), r.make(1<<20, 0, none("kv"))
	r.pause("kv")
	if r.state(w) != alloc.Active || r.state(k) != alloc.Paused {
		t.Fatalf("weights %v, kv %v", r.state(w), r.state(k))
	}
	r.holds(w)
	r.pause("weights")
	r.resume("weights")
	if r.state(k) != alloc.Paused {
		t.Fatal("kv came back with weights")
	}
	r.holds(w)
	r.resume("kv", "weights")
	if r.state(k) != alloc.Active {
		t.Fatal("kv did not come back")
	}
}

func TestRepeatsAndEmptySetsDoNothing(t *testing.T) {
	r := newRig(t)
	if res := r.pause(); res != (Result{}) {
		t.Fatalf("pause of nothing: %+v", res)
	}
	if res := r.resume(); res != (Result{}) {
		t.Fatalf("resume of nothing: %+v", res)
	}
	a := r.make(3<<20, 0, disk("x"))
	r.resume()
	r.pause()
	if res := r.pause(); res.Allocations != 0 {
		t.Fatalf("second pause: %+v", res)
	}
	r.resume()
	if res := r.resume(); res.Allocations != 0 {
		t.Fatalf("second resume: %+v", res)
	}
	r.holds(a)
}

func TestAnUnknownTagIsATypedErrorThatNamesTheKnownOnes(t *testing.T) {
	r := newRig(t)
	a := r.make(1<<20, 0, disk("weights"))
	_, err := r.Pause([]string{"weights", "wieghts"}, r.set)
	if !errors.Is(err, alloc.ErrUnknownTag) || !bytes.Contains([]byte(err.Error()), []byte(`known tags: "weights"`)) {
		t.Fatalf("got %v", err)
	}
	if r.state(a) != alloc.Active {
		t.Fatal("something was paused")
	}
	if _, err := r.Resume([]string{"nope"}, r.set); !errors.Is(err, alloc.ErrUnknownTag) {
		t.Fatalf("got %v", err)
	}
}

func TestFreeAndMallocWhilePaused(t *testing.T) {
	r := newRig(t)
	a, b := r.make(5<<20, 0, disk("x")), r.make(5<<20, 0, pinned("x"))
	r.pause()
	if err := r.Free(a.addr, false); err != nil {
		t.Fatal(err)
	}
	c := r.make(5<<20, 0, disk("x"))
	if n := len(r.files()); n != 0 {
		t.Fatalf("%d files for no paused memory on disk", n)
	}
	r.resume()
	r.holds(b, c)
	if err := r.Free(c.addr, false); err != nil {
		t.Fatal(err)
	}
	if err := r.Free(c.addr, false); !errors.Is(err, alloc.ErrNotManaged) {
		t.Fatalf("second free: %v", err)
	}
}

func TestTwoDevicesArePausedTogether(t *testing.T) {
	r := newRig(t)
	before := [2]uint64{r.free(0), r.free(1)}
	a, b := r.make(9<<20, 0, disk("x")), r.make(11<<20, 1, disk("x"))
	c := r.make(3<<20, 1, pinned("x"))
	r.pause()
	if now := [2]uint64{r.free(0), r.free(1)}; now != before {
		t.Fatalf("free while paused: %v, want %v", now, before)
	}
	r.resume()
	r.holds(a, b, c)
}

func TestFilesKeepNameAndSizeOverCyclesAndGoWithTheirMemory(t *testing.T) {
	r := newRig(t)
	a, b := r.make(5<<20+17, 0, disk("x")), r.make(100, 0, disk("x"))
	var first map[string]int64
	for range 3 {
		r.pause()
		sizes := map[string]int64{}
		for _, f := range r.files() {
			st, err := os.Stat(f)
			if err != nil {
				t.Fatal(err)
			}
			if st.Mode() != 0o600 {
				t.Fatalf("%s has mode %v", f, st.Mode())
			}
			sizes[f] = st.Size()
		}
		if first == nil {
			first = sizes
		}
		if len(sizes) != 2 || fmt.Sprint(sizes) != fmt.Sprint(first) {
			t.Fatalf("files %v, first %v", sizes, first)
		}
		r.resume()
		r.holds(a, b)
		r.fill(a, len(a.want))
	}
	if err := r.Free(a.addr, false); err != nil {
		t.Fatal(err)
	}
	if n := len(r.files()); n != 1 {
		t.Fatalf("%d files after a free, want 1", n)
	}
}

// submit begins a copy of new bytes into an array, on a stream that nobody waits for. The source
// is pinned: pageable memory would be read before the call returns.
func (r *rig) submit(a *array, in device.Context) {
	r.t.Helper()
	a.want = randomBytes(len(a.want))
	var p unsafe.Pointer
	var late device.Stream
	err := r.withContext(in, func() (err error) {
		if p, err = r.drv.HostAlloc(uint64(len(a.want))); err != nil {
			return err
		}
		copy(unsafe.Slice((*byte)(p), len(a.want)), a.want)
		if late, err = r.drv.StreamCreate(); err != nil {
			return err
		}
		return r.drv.CopyToDevice(a.addr, p, uint64(len(a.want)), late)
	})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		err := r.withContext(in, func() error { return errors.Join(r.drv.StreamDestroy(late), r.drv.HostFree(p)) })
		if err != nil {
			r.t.Error(err)
		}
	})
}

func (r *rig) primary(dev int) device.Context {
	r.t.Helper()
	ctx, err := r.drv.PrimaryContext(dev)
	if err != nil {
		r.t.Fatal(err)
	}
	return ctx
}

func TestWorkSubmittedBeforeAPauseIsInTheBackup(t *testing.T) {
	for name, reg := range map[string]Region{"disk": disk("x"), "pinned": pinned("x"), "mmap": mmap("x")} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			a := r.make(8<<20, 0, reg)
			r.submit(a, r.primary(0))
			r.pause()
			r.resume()
			r.holds(a)
		})
	}
}

// A pause of one tag waits for all devices: work of another one may use the memory.
func TestAPauseWaitsForEveryDevice(t *testing.T) {
	r := newRig(t)
	r.make(1<<20, 0, disk("x"))
	r.make(1<<20, 1, disk("y"))
	r.fault("cuCtxSynchronize:2:700")
	_, err := r.Pause([]string{"x"}, r.set)
	if !errors.Is(err, ErrDeviceFault) || !bytes.Contains([]byte(err.Error()), []byte("wait for device 1")) {
		t.Fatalf("the second wait was not for device 1: %v", err)
	}
}

// Work submitted through another context than the primary one is waited for where that is the
// calling thread's.
func TestAPauseWaitsForTheCallersContext(t *testing.T) {
	r := newRig(t)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	other, err := cuda.NewSoftwareContext(r.drv, 0)
	if err != nil {
		t.Fatal(err)
	}
	a := r.make(1<<20, 0, disk("x"))
	r.submit(a, other)
	if err := r.withContext(other, func() error { r.pause(); return nil }); err != nil {
		t.Fatal(err)
	}
	r.resume()
	r.holds(a)
}

func TestAFreeWaitsForWorkOnTheMemory(t *testing.T) {
	r := newRig(t)
	a := r.make(1<<20, 0, disk("x"))
	r.submit(a, r.primary(0))
	if err := r.Free(a.addr, false); err != nil {
		t.Fatal(err)
	}
	// Work that finds its memory gone poisons the context.
	if err := r.synchronize(0); err != nil {
		t.Fatal(err)
	}
}

// A fault that comes while the bytes are copied makes the copies worthless.
func TestAFaultDuringAPauseFailsIt(t *testing.T) {
	r := newRig(t)
	a := r.make(1<<20, 0, disk("x"))
	waits := len(r.devices) // for each device, before the copies; then again after them
	r.fault(fmt.Sprintf("cuCtxSynchronize:%d:700", waits+1))
	if _, err := r.Pause(nil, r.set); !errors.Is(err, ErrDeviceFault) || Code(err) != CodeDeviceFault {
		t.Fatalf("got %v", err)
	}
	r.fault("")
	r.holds(a)
}

func TestACaptureThatTheDriverReportsIsNoDeviceFault(t *testing.T) {
	r := newRig(t)
	r.make(1<<20, 0, disk("x"))
	r.fault("cuCtxSynchronize:1:900")
	if _, err := r.Pause(nil, r.set); !errors.Is(err, ErrCapture) || errors.Is(err, ErrDeviceFault) {
		t.Fatalf("got %v", err)
	}
}

func TestAPauseThatFailsGivesItsRoomBack(t *testing.T) {
	r := newRig(t)
	a, b := r.make(1<<20, 0, disk("x")), r.make(1<<20, 0, pinned("x"))
	check := func(files int) {
		t.Helper()
		r.fault("cuLaunchKernel:3:999")
		if _, err := r.Pause(nil, r.set); err == nil {
			t.Fatal("the pause succeeded")
		}
		r.fault("")
		if got := len(r.files()); got != files {
			t.Errorf("%d files, want %d", got, files)
		}
		if n := r.backings.pinned.Usage().HostBytes; n != 0 {
			t.Errorf("%d bytes of host memory are kept", n)
		}
		if _, err := r.BackupPointer(b.addr, 1); !errors.Is(err, ErrState) {
			t.Errorf("a pointer to a backup that was not finished: %v", err)
		}
		r.holds(a, b)
	}
	check(0)
	r.pause()
	r.resume()
	check(1) // files that were there before stay, for the next pause
}

// Between operations no backup file is open: a forked child would keep its room after it is
// removed, and a program that closes descriptors could put its own file in its place.
func TestNoBackupFileIsOpenBetweenOperations(t *testing.T) {
	r := newRig(t)
	a := r.make(1<<20, 0, disk("x"))
	closed := func(after string) {
		t.Helper()
		entries, err := os.ReadDir("/proc/self/fd")
		check(t, err)
		for _, e := range entries {
			if path, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && filepath.Dir(path) == r.dir {
				t.Errorf("%s is open after %s", path, after)
			}
		}
	}
	r.pause()
	closed("a pause")
	r.reads(a, 0, 100)
	closed("a read")
	r.resume()
	closed("a resume")
}

func TestNothingToDoIsNoErrorDuringACapture(t *testing.T) {
	r := newRig(t)
	a := r.make(1<<20, 0, disk("x"))
	s := r.set
	s.CaptureActive = true
	if _, err := r.Resume(nil, s); err != nil {
		t.Errorf("resume of nothing: %v", err)
	}
	r.pause()
	if _, err := r.Pause(nil, s); err != nil {
		t.Errorf("pause of nothing: %v", err)
	}
	if _, err := r.Resume(nil, s); err != nil { // it waits for no device but its own streams
		t.Errorf("resume: %v", err)
	}
	r.holds(a)
}

func TestManyErrorsAreCutToAFew(t *testing.T) {
	var l errorList
	for i := range 10000 {
		l.add(fmt.Errorf("failure %d", i))
	}
	if text := l.err().Error(); text != "failure 0\nfailure 1\nfailure 2\nand 9997 more" {
		t.Fatal(text)
	}
	if (&errorList{}).err() != nil {
		t.Fatal("no error is one")
	}
}

// While a resume waits for memory, other memory can be paused, which may be what it waits for.
func TestAWaitingResumeHoldsNothing(t *testing.T) {
	r := newRig(t)
	a := r.make(60<<20, 0, disk("w"))
	r.pause()
	r.hog("kv")
	wait := r.set
	wait.ResumeWait = time.Hour // a failure bound
	done := make(chan error)
	go func() {
		_, err := r.Resume([]string{"w"}, wait)
		done <- err
	}()
	r.pause("kv")
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	r.holds(a)
}

func TestResumeWithTooLittleMemoryStaysPausedAndCanBeRepeated(t *testing.T) {
	r := newRig(t)
	a := r.make(60<<20, 0, disk("x"))
	b := r.make(1<<20, 0, disk("x"))
	r.pause()
	hog := r.hog("hog")
	before := r.free(0)
	_, err := r.Resume([]string{"x"}, r.set)
	var short *DeviceMemoryError
	if !errors.As(err, &short) || Code(err) != CodeDeviceMemory {
		t.Fatalf("got %v", err)
	}
	if short.Need != 61<<20 || short.Free != before {
		t.Fatalf("need %d free %d, want %d and %d", short.Need, short.Free, 61<<20, before)
	}
	if r.state(a) != alloc.Paused || r.state(b) != alloc.Paused || r.free(0) != before {
		t.Fatal("a failed resume left something behind")
	}
	if err := r.Free(hog.addr, false); err != nil {
		t.Fatal(err)
	}
	r.resume()
	r.holds(a, b)
}

func TestResumeWaitsForMemoryUntilItsDeadline(t *testing.T) {
	r := newRig(t)
	a := r.make(60<<20, 0, disk("x"))
	r.pause()
	hog := r.hog("hog")
	wait := r.set
	wait.ResumeWait = time.Hour // a failure bound: the test ends when the memory is free
	done := make(chan error)
	go func() {
		_, err := r.Resume([]string{"x"}, wait)
		done <- err
	}()
	if err := r.Free(hog.addr, false); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	r.holds(a)
}

func TestPauseDuringACaptureIsRefused(t *testing.T) {
	r := newRig(t)
	a := r.make(1<<20, 0, disk("x"))
	s := r.set
	s.CaptureActive = true
	if _, err := r.Pause(nil, s); !errors.Is(err, ErrCapture) {
		t.Fatalf("pause: %v", err)
	}
	if err := r.Free(a.addr, true); !errors.Is(err, ErrCapture) {
		t.Fatalf("free: %v", err)
	}
	if err := r.Free(a.addr+1, true); !errors.Is(err, alloc.ErrNotManaged) {
		t.Fatalf("free of other memory: %v", err)
	}
	r.holds(a)
}

func TestBackupPointerShowsTheBytesOfPausedMemory(t *testing.T) {
	for name, reg := range map[string]Region{"pinned": pinned("x"), "mmap": mmap("x")} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			a := r.make(3<<20+5, 0, reg)
			if _, err := r.BackupPointer(a.addr, 1); !errors.Is(err, ErrState) {
				t.Fatalf("before a pause: %v", err)
			}
			r.pause()
			p, err := r.BackupPointer(a.addr+100, 1000)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(unsafe.Slice((*byte)(p), 1000), a.want[100:1100]) {
				t.Fatal("other bytes")
			}
			if _, err := r.BackupPointer(a.addr+100, 3<<20); !errors.Is(err, alloc.ErrNotManaged) {
				t.Fatalf("past the end: %v", err)
			}
			keep := r.set
			keep.RetainCPU = true
			if _, err := r.Resume(nil, keep); err != nil {
				t.Fatal(err)
			}
			if _, err := r.BackupPointer(a.addr, 1); err != nil {
				t.Fatalf("retained: %v", err)
			}
			r.pause()
			r.resume()
			if _, err := r.BackupPointer(a.addr, 1); !errors.Is(err, ErrState) {
				t.Fatalf("not retained: %v", err)
			}
			r.holds(a)
			if n := r.backings.pinned.Usage().HostBytes + r.backings.mmap.Usage().HostBytes; n != 0 {
				t.Fatalf("%d bytes of host memory kept", n)
			}
		})
	}
	r := newRig(t)
	d := r.make(1<<20, 0, disk("x"))
	r.pause()
	if _, err := r.BackupPointer(d.addr, 1); !errors.Is(err, ErrState) {
		t.Fatalf("disk: %v", err)
	}
}

func TestMarginAndOversizeAreRefusedAsDeviceMemory(t *testing.T) {
	r := newRig(t)
	free := r.free(0)
	for name, ask := range map[string]struct{ size, margin uint64 }{
		"margin":           {1 << 20, free},
		"margin, size":     {free - 10<<20, 20 << 20},
		"larger than all":  {free + 1, 0},
		"absurd":           {1<<64 - 1, 0},
		"absurd, margin":   {1 << 63, 1 << 63},
		"nearly 64 bits":   {1<<64 - 1<<16, 1},
		"a petabyte":       {1 << 50, 0},
		"margin above all": {1, 1 << 60},
	} {
		_, err := r.Malloc(ask.size, 0, none("x"), ask.margin)
		var short *DeviceMemoryError
		if Code(err) != CodeDeviceMemory || !errors.As(err, &short) || short.Free != free {
			t.Errorf("%s: %v, of %d free bytes", name, err, free)
		}
	}
	if r.free(0) != free {
		t.Fatal("a refused allocation kept memory")
	}
	if _, err := r.Malloc(0, 0, none("x"), 0); Code(err) != CodeInvalid {
		t.Errorf("size 0: %v", err)
	}
	if _, err := r.Malloc(1, 7, none("x"), 0); Code(err) != CodeDevice {
		t.Errorf("device 7: %v", err)
	}
}

// A driver call that fails in a pause leaves everything mapped and unchanged; the next pause
// succeeds.
func TestAPauseThatFailsChangesNothing(t *testing.T) {
	for _, fault := range []string{
		"cuCtxSynchronize:1:999", "cuCtxSynchronize:2:999", "cuMemHostRegister:1:999", "cuStreamCreate:3:999", "cuStreamCreate:5:999",
		"cuMemHostAlloc:1:999", "cuMemHostAlloc:4:999", "cuMemHostGetDevicePointer:4:999",
		"cuLaunchKernel:1:999", "cuLaunchKernel:2:999", "cuLaunchKernel:5:999",
		"cuModuleLoadData:*:209,cuMemcpyDtoHAsync:1:999", "cuModuleLoadData:*:209,cuMemcpyDtoHAsync:4:999",
	} {
		t.Run(fault, func(t *testing.T) {
			r := newRig(t)
			refused, _, _ := strings.Cut(fault, ",")
			if strings.HasPrefix(refused, "cuModuleLoadData") {
				r.fault(refused)
			}
			a, b := r.make(5<<20, 0, disk("x")), r.make(5<<20, 0, pinned("x"))
			c := r.make(1<<20, 0, mmap("x"))
			r.write(a, 0, make([]byte, 1<<20))
			r.fault(fault)
			if _, err := r.Pause(nil, r.set); err == nil {
				t.Fatal("the pause succeeded")
			}
			if r.state(a) != alloc.Active || r.state(b) != alloc.Active {
				t.Fatal("something was paused")
			}
			r.fault("")
			r.holds(a, b, c)
			r.pause()
			r.resume()
			r.holds(a, b, c)
		})
	}
}

// A driver call that fails in a resume leaves everything paused and the device's memory free;
// the next resume succeeds.
func TestAResumeThatFailsStaysPaused(t *testing.T) {
	for _, call := range []string{"cuMemCreate:2", "cuMemMap:1", "cuMemMap:3", "cuMemSetAccess:2", "cuMemcpyHtoDAsync:1", "cuMemcpyHtoDAsync:3", "cuLaunchKernel:1", "cuMemsetD8Async:1"} {
		t.Run(call, func(t *testing.T) {
			r := newRig(t)
			a, b := r.make(5<<20, 0, disk("x")), r.make(5<<20, 0, pinned("x"))
			c := r.make(1<<20, 0, mmap("x"))
			r.write(a, 0, make([]byte, 1<<20))
			r.pause()
			before := r.free(0)
			r.fault(call + ":999")
			if _, err := r.Resume(nil, r.set); Code(err) != CodeDevice {
				t.Fatalf("got %v", err)
			}
			if r.state(a) != alloc.Paused || r.state(b) != alloc.Paused || r.free(0) != before {
				t.Fatal("a failed resume left something behind")
			}
			r.resume()
			r.holds(a, b, c)
		})
	}
}

func TestAnUnmapThatFailsAfterTheCommitIsAPartialPause(t *testing.T) {
	r := newRig(t)
	a, b, c := r.make(1<<20, 0, disk("x")), r.make(2<<20, 0, disk("x")), r.make(3<<20, 0, disk("x"))
	r.fault("cuMemUnmap:2:999")
	res, err := r.Pause(nil, r.set)
	if Code(err) != CodePartial || res.Allocations != 2 {
		t.Fatalf("%+v, %v", res, err)
	}
	r.resume()
	r.holds(a, b, c)
	r.pause()
	r.resume()
	r.holds(a, b, c)
}

func TestABackupFileThatWasCutIsReportedAndNothingElseIsLost(t *testing.T) {
	r := newRig(t)
	a, b := r.make(1<<20, 0, disk("cut")), r.make(1<<20, 0, disk("kept"))
	r.pause("cut")
	cut := r.files()
	r.pause("kept")
	if err := os.Truncate(cut[0], 4096); err != nil {
		t.Fatal(err)
	}
	_, err := r.Resume(nil, r.set)
	if !errors.Is(err, store.ErrLost) || Code(err) != CodeCorrupt || !bytes.Contains([]byte(err.Error()), []byte(cut[0])) {
		t.Fatalf("got %v", err)
	}
	if r.state(a) != alloc.Paused || r.state(b) != alloc.Paused {
		t.Fatal("memory without its bytes was handed out")
	}
	r.resume("kept")
	r.holds(b)
}

func TestStatusTellsWhereTheBytesAre(t *testing.T) {
	r := newRig(t)
	r.make(1000, 0, disk("a"))
	r.make(2000, 0, pinned("a"))
	r.make(3000, 0, none("b"))
	r.pause()
	want := `"allocations":3,"bytes_active":0,"bytes_paused":6000`
	if got := r.Status(nil); !bytes.Contains(got, []byte(want)) {
		t.Fatalf("%s\nlacks %s", got, want)
	}
	want = `"tags":[{"tag":"a","allocations":2,"active":0,"host":2000,"disk":1000,"discarded":0,"in_host":2000,"in_files":1000,"skipped":0},{"tag":"b","allocations":1,"active":0,"host":0,"disk":0,"discarded":3000,"in_host":0,"in_files":0,"skipped":0}]`
	if got := r.Status(nil); !bytes.Contains(got, []byte(want)) {
		t.Fatalf("%s\nlacks %s", got, want)
	}
}
