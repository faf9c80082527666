package cuda

import (
	"runtime"
	"testing"
	"unsafe"

	"github.com/ebb-offload/ebb/internal/device"
	"github.com/ebb-offload/ebb/internal/fingerprint"
)

// reset resets a device, as a program may, and makes its context current again.
func reset(t *testing.T, d device.Driver, ordinal int) {
	t.Helper()
	must(t, ResetSoftwareDevice(d, ordinal))
	d.ContextReset(ordinal)
	ctx, err := d.PrimaryContext(ordinal)
	must(t, err)
	must(t, d.SetContext(ctx))
}

// kept is the memory of pages, which is never given up: a pinner that is collected ends the process.
var kept runtime.Pinner

// pages is memory of the test's own, whole pages, and its address.
func pages(n int) unsafe.Pointer {
	const page = 4096
	p := make([]byte, n+page)
	kept.Pin(&p[0])
	first := unsafe.Pointer(&p[0])
	return unsafe.Add(first, -uintptr(first)&(page-1))
}

func TestAHasherGoesOnAfterAReset(t *testing.T) {
	d := open(t)
	onDevice(t, d, 0)
	k, err := fingerprint.NewKey()
	must(t, err)
	h, err := d.NewHasher(k, 4)
	must(t, err)
	for range 3 {
		s, err := d.StreamCreate()
		must(t, err)
		block := deviceMemory(t, d, 0, granularity)
		want := make([]byte, granularity)
		want[5] = 1
		upload(t, d, s, block, want)
		sum, _ := hashOne(t, d, h, s, device.Span{Addr: block, Bytes: granularity})
		if expect, _ := k.Of(want); sum != expect {
			t.Fatalf("%v, want %v", sum, expect)
		}
		reset(t, d, 0)
	}
	must(t, h.Close()) // without memory
	must(t, h.Close())
}

func TestRegisteredMemoryIsPinnedAgainAfterAReset(t *testing.T) {
	d := open(t)
	onDevice(t, d, 1)
	const n = 64 << 10
	here, there := pages(n), pages(n)
	must(t, d.HostRegister(there, n))
	onDevice(t, d, 0)
	must(t, d.HostRegister(here, n))
	must(t, d.Repin()) // nothing is to be done

	reset(t, d, 0)
	reaches := func(p unsafe.Pointer) bool { _, err := d.HostDevicePointer(p); return err == nil }
	if reaches(here) || !reaches(there) {
		t.Fatal("not the memory of the device that was reset is unpinned, or other memory")
	}
	must(t, SetSoftwareFault(d, "cuMemHostRegister:1:2"))
	if err := d.Repin(); !device.IsOutOfMemory(err) {
		t.Fatalf("%v", err)
	}
	must(t, SetSoftwareFault(d, ""))
	must(t, d.Repin())
	if !reaches(here) {
		t.Fatal("it is not pinned again")
	}
	must(t, d.HostUnregister(here))

	must(t, d.HostRegister(here, n))
	reset(t, d, 0)
	must(t, d.HostUnregister(here)) // it is not pinned now, and is not to be pinned again
	must(t, d.Repin())
	if reaches(here) {
		t.Fatal("it is pinned again")
	}
	must(t, d.HostUnregister(there))
	if err := d.HostUnregister(there); err == nil {
		t.Fatal("memory is unregistered twice")
	}
}

// What had outlived its context is taken for pinned.
func TestMemoryThatStayedPinnedIsNoError(t *testing.T) {
	d := open(t)
	onDevice(t, d, 0)
	const n = 64 << 10
	p := pages(n)
	must(t, d.HostRegister(p, n))
	d.ContextReset(0) // the driver was not
	ctx, err := d.PrimaryContext(0)
	must(t, err)
	must(t, d.SetContext(ctx))
	must(t, d.Repin())
	must(t, d.Repin())
	must(t, d.HostUnregister(p))
}
