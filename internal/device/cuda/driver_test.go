package cuda

import (
	"bytes"
	"errors"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"github.com/ebb-offload/ebb/internal/device"
	"github.com/ebb-offload/ebb/internal/mem"
	"github.com/ebb-offload/ebb/internal/testutil"
)

const granularity = 64 << 10

// The tests run on softgpu: two devices of 64 MiB.
func TestMain(m *testing.M) {
	if args := os.Getenv(holderEnv); args != "" {
		os.Exit(beHolder(args))
	}
	os.Exit(testutil.OnSoftGPU(m, map[string]string{
		"MEM_MB": "64", "DEVICES": "2", "GRANULARITY_KB": strconv.Itoa(granularity >> 10),
	}))
}

func open(t *testing.T) device.Driver {
	t.Helper()
	d, err := Open(testutil.SoftGPU(t))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// onDevice makes the device's primary context current on the test's thread until the test ends.
func onDevice(t *testing.T, d device.Driver, ordinal int) {
	t.Helper()
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
	before, err := d.Context()
	must(t, err)
	ctx, err := d.PrimaryContext(ordinal)
	must(t, err)
	must(t, d.SetContext(ctx))
	t.Cleanup(func() { must(t, d.SetContext(before)) })
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// onNewThread runs f on an OS thread that no test has used: one without context or capture mode.
func onNewThread(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		f()
	}()
	<-done
}

func TestMissingLibraryIsATypedError(t *testing.T) {
	_, err := Open("/nowhere/libcuda.so.1")
	var e *LoadError
	if !errors.As(err, &e) || e.Library != "/nowhere/libcuda.so.1" || e.Symbol != "" || e.Reason == "" {
		t.Fatalf("Open = %#v", err)
	}
	for _, want := range []string{"/nowhere/libcuda.so.1", "install the NVIDIA driver", "--device soft"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not say %q", err, want)
		}
	}
}

func TestLibraryWithoutAFunctionIsATypedError(t *testing.T) {
	_, err := Open("libc.so.6")
	var e *LoadError
	if !errors.As(err, &e) || e.Library != "libc.so.6" || e.Symbol != "cuInit" || e.Reason == "" {
		t.Fatalf("Open = %#v", err)
	}
	for _, want := range []string{"libc.so.6", "cuInit", "update the NVIDIA driver"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not say %q", err, want)
		}
	}
}

func TestDriverThatDoesNotInitialiseIsTheDriversError(t *testing.T) {
	d := open(t)
	must(t, SetSoftwareFault(d, "cuInit:1:100"))
	defer func() { must(t, SetSoftwareFault(d, "")) }()
	_, err := Open(testutil.SoftGPU(t))
	var e *device.Error
	if !errors.As(err, &e) || e.Call != "cuInit" || e.Code != 100 || e.Name != "CUDA_ERROR_NO_DEVICE" {
		t.Fatalf("Open = %v", err)
	}
}

func TestOpeningAgainIsHarmless(t *testing.T) {
	first, second := open(t), open(t)
	a, err := first.PrimaryContext(0)
	must(t, err)
	b, err := second.PrimaryContext(0)
	must(t, err)
	if a != b {
		t.Errorf("primary contexts %#x and %#x", a, b)
	}
}

func TestDevices(t *testing.T) {
	d := open(t)
	v, err := d.Version()
	if err != nil || v < 12000 {
		t.Errorf("version %d, %v", v, err)
	}
	n, err := d.DeviceCount()
	if err != nil || n != 2 {
		t.Errorf("%d devices, %v", n, err)
	}
	for i := range n {
		if name, err := d.DeviceName(i); err != nil || name == "" {
			t.Errorf("device %d is named %q, %v", i, name, err)
		}
		if _, err := d.SupportsRDMA(i); err != nil {
			t.Error(err)
		}
		if node := d.NUMANode(i); node < -1 {
			t.Errorf("device %d is at NUMA node %d", i, node)
		}
		if g, err := d.Granularity(mem.DeviceProps(i, false)); err != nil || g != granularity {
			t.Errorf("device %d: granularity %d, %v", i, g, err)
		}
	}
}

func TestUnknownDeviceIsATypedError(t *testing.T) {
	d := open(t)
	_, name := d.DeviceName(9)
	_, rdma := d.SupportsRDMA(9)
	_, ctx := d.PrimaryContext(9)
	for what, err := range map[string]error{"name": name, "RDMA": rdma, "context": ctx} {
		if !device.IsCode(err, 101) || !strings.Contains(err.Error(), "device 9") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if n := d.NUMANode(9); n != -1 {
		t.Errorf("NUMA node %d", n)
	}
}

// One range of two pieces: written, read back, taken away and given new memory at its address.
func TestMemoryRoundTrip(t *testing.T) {
	d := open(t)
	onDevice(t, d, 1)
	props := mem.DeviceProps(1, false)
	const piece = 2 * granularity
	before, total, err := d.MemInfo()
	must(t, err)
	if total != 64<<20 || before > total {
		t.Errorf("free %d of %d bytes", before, total)
	}

	addr, err := d.AddressReserve(2*piece, granularity)
	must(t, err)
	if uint64(addr)%granularity != 0 {
		t.Errorf("reserved at %v", addr)
	}
	back := func() (handles [2]mem.Handle) {
		for i := range handles {
			at := addr + mem.Addr(i*piece)
			handles[i], err = d.MemCreate(piece, props)
			must(t, err)
			must(t, d.MemMap(at, piece, 0, handles[i]))
			must(t, d.MemSetAccess(at, piece, []mem.Access{mem.ReadWrite(1)}))
		}
		return handles
	}
	stream, err := d.StreamCreate()
	must(t, err)
	p, err := d.HostAlloc(2 * piece)
	must(t, err)
	host := unsafe.Slice((*byte)(p), 2*piece)

	for round := range 2 {
		handles := back()
		during, _, err := d.MemInfo()
		must(t, err)
		if before-during != 2*piece {
			t.Errorf("round %d: %d bytes in use, want %d", round, before-during, 2*piece)
		}
		want := make([]byte, 2*piece)
		for i := range want {
			want[i] = byte(i*7 + i/251 + round)
		}
		copy(host, want)
		must(t, d.CopyToDevice(addr, p, 2*piece, stream))
		must(t, d.StreamSynchronize(stream))
		clear(host)
		must(t, d.CopyToHost(p, addr, 2*piece, stream))
		must(t, d.StreamSynchronize(stream))
		if !bytes.Equal(host, want) {
			t.Errorf("round %d: other bytes came back", round)
		}
		must(t, d.Synchronize())
		for i, h := range handles {
			must(t, d.MemUnmap(addr+mem.Addr(i*piece), piece))
			must(t, d.MemRelease(h))
		}
	}

	must(t, d.HostFree(p))
	must(t, d.StreamDestroy(stream))
	must(t, d.AddressFree(addr, 2*piece))
	if after, _, err := d.MemInfo(); err != nil || after != before {
		t.Errorf("free %d bytes, were %d (%v)", after, before, err)
	}
}

func TestOutOfMemoryIsATypedError(t *testing.T) {
	d := open(t)
	onDevice(t, d, 0)
	_, err := d.MemCreate(1<<30, mem.DeviceProps(0, false))
	if !device.IsOutOfMemory(err) {
		t.Fatalf("MemCreate = %v", err)
	}
	var e *device.Error
	if !errors.As(err, &e) || e.Call != "cuMemCreate" || e.Name != "CUDA_ERROR_OUT_OF_MEMORY" || e.Text == "" {
		t.Errorf("%#v", e)
	}
}

// An offset beyond the handle is refused: it reaches the driver.
func TestMappingBeyondAHandleIsRefused(t *testing.T) {
	d := open(t)
	onDevice(t, d, 0)
	addr, err := d.AddressReserve(granularity, 0)
	must(t, err)
	h, err := d.MemCreate(granularity, mem.DeviceProps(0, false))
	must(t, err)
	if err := d.MemMap(addr, granularity, granularity, h); err == nil {
		t.Error("mapped")
	}
	must(t, d.MemRelease(h))
	must(t, d.AddressFree(addr, granularity))
}

// Every refusal names the driver's function.
func TestRefusalsNameTheCall(t *testing.T) {
	d := open(t)
	onDevice(t, d, 0)
	const nowhere = mem.Addr(granularity)
	own := make([]byte, 4096)
	_, granularityErr := d.Granularity(mem.Props{LocationID: 77})
	_, reserveErr := d.AddressReserve(1, 0)
	_, createErr := d.MemCreate(1, mem.DeviceProps(0, false))
	for call, err := range map[string]error{
		"cuMemGetAllocationGranularity": granularityErr,
		"cuMemAddressReserve":           reserveErr,
		"cuMemAddressFree":              d.AddressFree(nowhere, granularity),
		"cuMemCreate":                   createErr,
		"cuMemMap":                      d.MemMap(nowhere, granularity, 0, 12345),
		"cuMemUnmap":                    d.MemUnmap(nowhere, granularity),
		"cuMemSetAccess":                d.MemSetAccess(nowhere, granularity, []mem.Access{mem.ReadWrite(0)}),
		"cuMemRelease":                  d.MemRelease(12345),
		"cuMemHostUnregister":           d.HostUnregister(unsafe.Pointer(&own[0])),
		"cuMemFreeHost":                 d.HostFree(unsafe.Pointer(&own[0])),
	} {
		var e *device.Error
		if !errors.As(err, &e) || e.Call != call || e.Code == 0 || !strings.HasPrefix(e.Name, "CUDA_ERROR_") || e.Text == "" {
			t.Errorf("%s: %v", call, err)
		}
	}
}

func TestEveryCallReportsItsFault(t *testing.T) {
	d := open(t)
	onDevice(t, d, 0)
	stream, err := d.StreamCreate()
	must(t, err)
	p, err := d.HostAlloc(4096)
	must(t, err)
	pools, err := d.Pools(0)
	must(t, err)
	event, err := d.EventCreate()
	must(t, err)
	for call, do := range map[string]func() error{
		"cuDriverGetVersion":                func() error { _, err := d.Version(); return err },
		"cuDeviceGetCount":                  func() error { _, err := d.DeviceCount(); return err },
		"cuDeviceGetName":                   func() error { _, err := d.DeviceName(0); return err },
		"cuDeviceGetAttribute":              func() error { _, err := d.SupportsRDMA(0); return err },
		"cuCtxGetCurrent":                   func() error { _, err := d.Context(); return err },
		"cuCtxSetCurrent":                   func() error { return d.SetContext(0) },
		"cuCtxSynchronize":                  d.Synchronize,
		"cuThreadExchangeStreamCaptureMode": func() error { _, err := d.ExchangeCaptureMode(0); return err },
		"cuMemGetInfo":                      func() error { _, _, err := d.MemInfo(); return err },
		"cuStreamCreate":                    func() error { _, err := d.StreamCreate(); return err },
		"cuStreamDestroy":                   func() error { return d.StreamDestroy(stream) },
		"cuStreamSynchronize":               func() error { return d.StreamSynchronize(stream) },
		"cuStreamIsCapturing":               func() error { _, err := d.StreamCaptures(stream); return err },
		"cuMemcpyDtoHAsync":                 func() error { return d.CopyToHost(p, granularity, 1, stream) },
		"cuMemcpyHtoDAsync":                 func() error { return d.CopyToDevice(granularity, p, 1, stream) },
		"cuEventCreate":                     func() error { _, err := d.EventCreate(); return err },
		"cuEventRecord":                     func() error { return d.EventRecord(event, stream) },
		"cuEventSynchronize":                func() error { return d.EventSynchronize(event) },
		"cuEventDestroy":                    func() error { return d.EventDestroy(event) },
		"cuPointerGetAttribute":             func() error { _, err := d.PointerDevice(granularity); return err },
		"cuMemHostAlloc":                    func() error { _, err := d.HostAlloc(4096); return err },
		"cuMemHostRegister":                 func() error { return d.HostRegister(p, 4096) },
		"cuMemExportToShareableHandle":      func() error { return d.MemExport(p, 1, 1, 0) },
		"cuDeviceGetDefaultMemPool":         func() error { _, err := d.Pools(0); return err },
		"cuDeviceGetMemPool":                func() error { _, err := d.Pools(0); return err },
		"cuMemPoolGetAttribute":             func() error { _, err := d.PoolUsage(pools[0]); return err },
		"cuMemPoolTrimTo":                   func() error { return d.PoolTrim(pools[0], 0) },
		"cuDeviceGetGraphMemAttribute":      func() error { _, err := d.GraphUsage(0); return err },
		"cuDeviceGraphMemTrim":              func() error { return d.GraphTrim(0) },
	} {
		must(t, SetSoftwareFault(d, call+":1:719"))
		err := do()
		must(t, SetSoftwareFault(d, ""))
		var e *device.Error
		if !errors.As(err, &e) || e.Call != call || e.Code != 719 || e.Name != "CUDA_ERROR_LAUNCH_FAILED" {
			t.Errorf("%s: %v", call, err)
		}
	}
	must(t, d.HostFree(p))
	must(t, d.EventDestroy(event))
	must(t, d.StreamDestroy(stream))
}

func TestResultThatTheDriverDoesNotKnowIsStillAnError(t *testing.T) {
	err := open(t).(*driver).check("cuMystery", 12345)
	var e *device.Error
	if !errors.As(err, &e) || e.Code != 12345 || e.Name == "" || e.Text == "" {
		t.Errorf("%v", err)
	}
}

func TestHostMemoryIsRegisteredOnce(t *testing.T) {
	d := open(t)
	onDevice(t, d, 0)
	pages := make([]byte, 3*4096)
	p := unsafe.Pointer(&pages[0])
	p = unsafe.Add(p, -uintptr(p)&4095)
	must(t, d.HostRegister(p, 4096))
	if err := d.HostRegister(p, 4096); !device.IsCode(err, 712) {
		t.Errorf("registered again: %v", err)
	}
	must(t, d.HostUnregister(p))
	if err := d.HostUnregister(p); !device.IsCode(err, 713) {
		t.Errorf("unregistered again: %v", err)
	}
	runtime.KeepAlive(pages)
}

func TestContextsOfAThreadAreItsOwn(t *testing.T) {
	d := open(t)
	zero, err := d.PrimaryContext(0)
	must(t, err)
	one, err := d.PrimaryContext(1)
	must(t, err)
	if zero == 0 || one == 0 || zero == one {
		t.Fatalf("primary contexts %#x and %#x", zero, one)
	}
	onNewThread(func() {
		is := func(want device.Context) {
			t.Helper()
			if got, err := d.Context(); err != nil || got != want {
				t.Errorf("current context %#x, %v; want %#x", got, err, want)
			}
		}
		is(0)
		if _, err := d.PrimaryContext(1); err != nil {
			t.Error(err)
		}
		is(0) // asking for one does not make it current
		for _, c := range []device.Context{zero, one, 0} {
			if err := d.SetContext(c); err != nil {
				t.Error(err)
			}
			is(c)
			onNewThread(func() { is(0) })
		}
	})
}

func TestPrimaryContextIsRetainedOnceByManyThreads(t *testing.T) {
	d := open(t)
	var got [16]device.Context
	var all sync.WaitGroup
	for i := range got {
		all.Go(func() {
			c, err := d.PrimaryContext(i % 2)
			if err != nil {
				t.Error(err)
			}
			got[i] = c
		})
	}
	all.Wait()
	for i, c := range got {
		if c == 0 || c != got[i%2] {
			t.Errorf("thread %d got context %#x, another %#x", i, c, got[i%2])
		}
	}
	must(t, SetSoftwareFault(d, "cuDevicePrimaryCtxRetain:1:719"))
	defer func() { must(t, SetSoftwareFault(d, "")) }()
	if _, err := d.PrimaryContext(0); err != nil {
		t.Errorf("retained again: %v", err)
	}
}

func TestCaptureModeOfAThreadIsExchanged(t *testing.T) {
	d := open(t)
	const global = 0
	onNewThread(func() {
		for _, step := range []struct{ set, former int }{
			{device.CaptureRelaxed, global}, {global, device.CaptureRelaxed}, {device.CaptureRelaxed, global},
		} {
			if got, err := d.ExchangeCaptureMode(step.set); err != nil || got != step.former {
				t.Errorf("mode before %d was %d, %v; want %d", step.set, got, err, step.former)
			}
		}
		onNewThread(func() {
			if got, err := d.ExchangeCaptureMode(global); err != nil || got != global {
				t.Errorf("another thread has mode %d, %v", got, err)
			}
		})
	})
	if _, err := d.ExchangeCaptureMode(99); err == nil {
		t.Error("a mode that does not exist was taken")
	}
}

func TestCallsOfSoftgpuAreCounted(t *testing.T) {
	d := open(t)
	before := SoftwareCalls(d)["cuDeviceGetCount"]
	_, err := d.DeviceCount()
	must(t, err)
	if got := SoftwareCalls(d)["cuDeviceGetCount"]; got != before+1 {
		t.Errorf("%d calls were counted, before %d", got, before)
	}
	if got := SoftwareCalls(nil); len(got) > 0 {
		t.Errorf("calls of another driver: %v", got)
	}
}

func TestFaultsAreSoftgpusOnly(t *testing.T) {
	if err := SetSoftwareFault(nil, ""); err == nil {
		t.Error("a driver of another kind was taken")
	}
	if err := SetSoftwareFault(open(t), "no such spec"); err == nil {
		t.Error("an unreadable spec was taken")
	}
}
