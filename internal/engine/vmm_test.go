package engine

import (
	"bytes"
	"errors"
	"math"
	"os"
	"slices"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/ebb-offload/ebb/internal/alloc"
	"github.com/ebb-offload/ebb/internal/device"
	"github.com/ebb-offload/ebb/internal/mem"
)

// grain is the granularity of the tests' devices.
const grain = 64 << 10

// drop frees an allocation, whatever its owner still has of it.
func (r *rig) drop(a *alloc.Allocation) error {
	if a.Kind == alloc.Range {
		return r.Free(a.Base, false)
	}
	var err error
	for len(a.Mappings) > 0 {
		if e := r.Unmap(a.Mappings[0].Addr, a.Mappings[0].Length); e != nil {
			return e
		}
	}
	for a.Refs > 0 && err == nil {
		err = r.Release(a.Virtual)
	}
	return err
}

// owner is what an allocator of its own knows of its memory.
type owner struct {
	*rig
	t testing.TB
}

func (o owner) reserve(size uint64) mem.Addr {
	o.t.Helper()
	addr, err := o.drv.AddressReserve(size, 0)
	check(o.t, err)
	o.t.Cleanup(func() { _ = o.drv.AddressFree(addr, size) }) // one that is mapped still goes with the process
	return addr
}

func (o owner) create(size uint64, dev int, reg Region) mem.Handle {
	o.t.Helper()
	h, err := o.Create(size, mem.DeviceProps(dev, false), 0, reg, 0)
	check(o.t, err)
	return h
}

// mapped is memory of size bytes that is mapped whole, with the handle released as allocators do.
func (o owner) mapped(addr mem.Addr, size uint64, dev int, reg Region) *array {
	o.t.Helper()
	h := o.create(size, dev, reg)
	check(o.t, o.Map(addr, size, 0, h, 0))
	check(o.t, o.Release(h))
	check(o.t, o.SetAccess(addr, size, []mem.Access{mem.ReadWrite(dev)}))
	a := &array{addr: addr, dev: dev}
	o.fill(a, int(size))
	return a
}

func (o owner) refuses(what string, err error, code device.Code) {
	o.t.Helper()
	if err == nil || DriverCode(err) != code || errors.Is(err, alloc.ErrNotManaged) {
		o.t.Fatalf("%s: %v, want CUresult %d", what, err, code)
	}
}

func (o owner) passes(what string, err error) {
	o.t.Helper()
	if !errors.Is(err, alloc.ErrNotManaged) {
		o.t.Fatalf("%s: %v, want it passed on", what, err)
	}
}

func newOwner(t testing.TB) owner { return owner{newRig(t), t} }

func TestMemoryThatItsOwnerMapsComesBackWithEveryByteForEveryBackup(t *testing.T) {
	o := newOwner(t)
	before := o.free(0)
	base := o.reserve(100 * grain)
	var all []*array
	for i, reg := range []Region{disk("x"), pinned("x"), mmap("x"), disk("x")} {
		all = append(all, o.mapped(base+mem.Addr(20*i*grain), uint64(grain*(1+5*i)), 0, reg))
	}
	held := before - o.free(0)
	for range 3 {
		res := o.pause()
		if res.Allocations != 4 || res.DeviceBytes != held || o.free(0) != before {
			t.Fatalf("paused %+v, %d bytes free of %d", res, o.free(0), before)
		}
		o.resume()
		o.holds(all...)
		if o.free(0) != before-held {
			t.Fatalf("%d bytes free after resume, want %d", o.free(0), before-held)
		}
	}
	check(t, o.Unmap(base, 100*grain)) // all, and the holes between them
	if o.free(0) != before {
		t.Fatalf("%d bytes are held after the owner unmapped all", before-o.free(0))
	}
	if n := o.table.Len(); n != 0 || len(o.files()) != 0 {
		t.Fatalf("%d objects and files %v are left", n, o.files())
	}
}

func TestAVirtualHandleIsNoValueOfTheDriver(t *testing.T) {
	o := newOwner(t)
	h := o.create(grain, 0, disk("x"))
	if uint64(h)>>48 != 0xEBB0 {
		t.Fatalf("handle %x", uint64(h))
	}
	if err := o.drv.MemRelease(h); err == nil {
		t.Fatal("the driver took it")
	}
	check(t, o.Release(h))
}

func TestOneObjectMappedAtTwoAddressesStaysOne(t *testing.T) {
	o := newOwner(t)
	p, q := o.reserve(2*grain), o.reserve(2*grain)
	a := o.mapped(p, 2*grain, 0, disk("x"))
	h, err := o.Retain(p + 5)
	check(t, err)
	check(t, o.Map(q, 2*grain, 0, h, 0))
	check(t, o.SetAccess(q, 2*grain, []mem.Access{mem.ReadWrite(0)}))
	b := &array{addr: q, dev: 0, want: a.want}
	o.holds(b)
	if res := o.pause(); res.Allocations != 1 || res.Bytes != 2*grain {
		t.Fatalf("%+v", res)
	}
	o.resume()
	o.holds(a, b)
	o.fill(a, 2*grain)
	b.want = a.want
	o.holds(b)
	check(t, o.Release(h))
}

func TestWhatIsMappedNowhereOrReadOnlyIsSavedThroughAWindow(t *testing.T) {
	o := newOwner(t)
	before := o.free(0)
	p := o.reserve(3 * grain)
	h := o.create(3*grain, 0, disk("x"))
	check(t, o.Map(p, 3*grain, 0, h, 0))
	check(t, o.SetAccess(p, 3*grain, []mem.Access{mem.ReadWrite(0)}))
	a := &array{addr: p}
	o.fill(a, 3*grain)
	rights := func(flags int32) error {
		return o.SetAccess(p, 3*grain, []mem.Access{{LocationType: mem.LocationDevice, LocationID: 0, Flags: flags}})
	}
	for _, c := range []struct {
		name       string
		take, give func() error
	}{
		{"read only", func() error { return rights(mem.AccessR) }, func() error { return rights(mem.AccessRW) }},
		{"without access", func() error { return rights(0) }, func() error { return rights(mem.AccessRW) }},
		{"unmapped", func() error { return o.Unmap(p, 3*grain) }, func() error {
			return errors.Join(o.Map(p, 3*grain, 0, h, 0), rights(mem.AccessRW))
		}},
	} {
		check(t, c.take())
		o.pause()
		if o.free(0) != before {
			t.Fatalf("%s: %d bytes are held while paused", c.name, before-o.free(0))
		}
		o.resume()
		check(t, c.give())
		o.holds(a)
	}
	check(t, o.Release(h))
}

func TestOwnersGoOnWhileTheirMemoryIsPaused(t *testing.T) {
	o := newOwner(t)
	before := o.free(0)
	base := o.reserve(40 * grain)
	at := func(i int) mem.Addr { return base + mem.Addr(i*4*grain) }
	var a [6]*array
	for i := range a {
		a[i] = o.mapped(at(i), 4*grain, 0, disk("x"))
	}
	h, err := o.Retain(at(5))
	check(t, err)
	o.pause()

	o.refuses("half of a mapping", o.Unmap(at(0), 2*grain), device.CodeInvalidValue)
	o.refuses("a mapping and half of another", o.Unmap(at(0), 6*grain), device.CodeInvalidValue)
	check(t, o.Unmap(at(1), 8*grain)) // two whole ones: gone with their backups
	o.refuses("rights of half a mapping", o.SetAccess(at(0), grain, []mem.Access{mem.ReadWrite(1)}), device.CodeInvalidValue)
	check(t, o.SetAccess(at(0), 4*grain, []mem.Access{mem.ReadWrite(1)}))
	if f, err := o.Access(at(0)+7, mem.LocationDevice, 1); err != nil || f != mem.AccessRW {
		t.Fatalf("rights given while paused: %d, %v", f, err)
	}
	o.refuses("a map over paused memory", o.Map(at(3), 4*grain, 0, h, 0), device.CodeInvalidValue)
	o.refuses("half a map", o.Map(at(8), 2*grain, 0, h, 0), device.CodeNotSupported)
	o.refuses("a map at an offset", o.Map(at(8), 2*grain, 2*grain, h, 0), device.CodeNotSupported)
	o.refuses("a map at an odd address", o.Map(at(8)+4096, 4*grain, 0, h, 0), device.CodeInvalidValue)
	active := o.create(4*grain, 0, disk("y"))
	o.refuses("active memory over paused memory", o.Map(at(3), 4*grain, 0, active, 0), device.CodeInvalidValue)
	o.refuses("half of active memory over paused memory", o.Map(at(3), 2*grain, 0, active, 0), device.CodeNotSupported)
	check(t, o.Release(active))
	check(t, o.Map(at(8), 4*grain, 0, h, 0)) // a second address of the last
	check(t, o.SetAccess(at(8), 4*grain, []mem.Access{mem.ReadWrite(0)}))
	check(t, o.Unmap(at(5), 4*grain)) // and the first is given up
	b := o.mapped(at(1), 4*grain, 0, disk("x"))
	if o.free(0) != before-4*grain || len(o.files()) != 4 {
		t.Fatalf("%d bytes held, files %v", before-o.free(0), o.files())
	}
	o.refuses("address space with paused memory", o.AddressFree(base, 40*grain), device.CodeInvalidValue)
	o.passes("address space without", o.AddressFree(at(9), 4*grain))

	o.resume()
	o.holds(a[0], a[3], a[4], b)
	o.holds(&array{addr: at(8), want: a[5].want}, &array{addr: at(0), dev: 1, want: a[0].want})
	check(t, o.Release(h))
	check(t, o.Unmap(base, 40*grain))
	if o.free(0) != before || len(o.files()) != 0 {
		t.Fatalf("%d bytes held, files %v", before-o.free(0), o.files())
	}
}

func TestPausedMemoryGoesWithItsLastReference(t *testing.T) {
	o := newOwner(t)
	p := o.reserve(grain)
	h := o.create(grain, 0, disk("x"))
	check(t, o.Map(p, grain, 0, h, 0))
	o.pause()
	check(t, o.Unmap(p, grain))
	if o.table.Len() != 1 || len(o.files()) != 1 {
		t.Fatal("gone while a reference is held")
	}
	if _, err := o.Properties(h); err != nil {
		t.Fatal(err)
	}
	check(t, o.Release(h))
	if o.table.Len() != 0 || len(o.files()) != 0 {
		t.Fatal("still there")
	}
	o.refuses("a release too much", o.Release(h), device.CodeInvalidValue)
	o.refuses("a map of what is gone", o.Map(p, grain, 0, h, 0), device.CodeInvalidValue)
	o.resume()
}

func TestTheBackupsOfManyPiecesGoWithOneUnmap(t *testing.T) {
	for name, fault := range map[string]string{"": "", "without capture modes": "cuThreadExchangeStreamCaptureMode:*:999"} {
		t.Run(name, func(t *testing.T) {
			o := newOwner(t)
			base := o.reserve(40 * grain)
			for i := range 40 {
				o.mapped(base+mem.Addr(i*grain), grain, 0, disk("x"))
			}
			o.pause()
			o.fault(fault)
			check(t, o.Unmap(base, 30*grain))
			o.fault("")
			if n := len(o.files()); n != 10 || o.table.Len() != 10 {
				t.Errorf("%d files and %d pieces are left", n, o.table.Len())
			}
			o.resume()
		})
	}
}

func TestReferencesAreCountedAsTheDriverCountsThem(t *testing.T) {
	o := newOwner(t)
	before := o.free(0)
	p, q := o.reserve(grain), o.reserve(grain)
	h := o.create(grain, 0, disk("x"))
	check(t, o.Map(p, grain, 0, h, 0))
	k, err := o.Retain(p + 9)
	if err != nil || k != h {
		t.Fatalf("retained %x of %x, %v", k, h, err)
	}
	check(t, o.Release(h))
	check(t, o.Release(h))
	o.refuses("a third release", o.Release(h), device.CodeInvalidValue)
	_, err = o.Properties(h)
	o.refuses("properties without a reference", err, device.CodeInvalidValue)
	check(t, o.Map(q, grain, 0, h, 0)) // what is mapped may be mapped again
	check(t, o.Unmap(p, grain))
	if o.free(0) != before-grain {
		t.Fatal("a mapping does not keep the memory")
	}
	check(t, o.Unmap(q, grain))
	if o.free(0) != before {
		t.Fatal("the memory is held without reference or mapping")
	}
	o.refuses("a release of what is gone", o.Release(h), device.CodeInvalidValue)
	_, err = o.Retain(p)
	o.passes("retain of nothing", err)
}

func TestWhatConcernsNoManagedMemoryIsPassedOn(t *testing.T) {
	o := newOwner(t)
	p := o.reserve(2 * grain)
	props := mem.DeviceProps(0, false)
	real, err := o.drv.MemCreate(grain, props)
	check(t, err)
	defer func() { check(t, o.drv.MemRelease(real)) }()
	o.passes("map", o.Map(p, grain, 0, real, 0))
	o.passes("release", o.Release(real))
	o.passes("export", o.Export(unsafe.Pointer(new(int32)), real, 1, 0))
	_, err = o.Properties(real)
	o.passes("properties", err)
	_, err = o.Real(real, "multicast")
	o.passes("real", err)
	o.passes("unmap", o.Unmap(p, 2*grain))
	o.passes("set access", o.SetAccess(p, 2*grain, []mem.Access{mem.ReadWrite(0)}))
	_, err = o.Access(p, mem.LocationDevice, 0)
	o.passes("get access", err)
	_, err = o.Retain(p)
	o.passes("retain", err)
	for name, change := range map[string]func(*mem.Props){
		"host memory":     func(p *mem.Props) { p.LocationType = 2 },
		"an unknown type": func(p *mem.Props) { p.Type = 0 },
		"a tile pool":     func(p *mem.Props) { p.Usage = 1 },
	} {
		q := props
		change(&q)
		_, err := o.Create(grain, q, 0, disk("x"), 0)
		o.passes(name, err)
	}
	_, err = o.Create(grain, props, 1, disk("x"), 0)
	o.passes("flags", err)
}

func TestCreateRefusesWhatTheDriverRefuses(t *testing.T) {
	o := newOwner(t)
	for _, c := range []struct {
		name string
		size uint64
		dev  int
		code device.Code
	}{
		{"nothing", 0, 0, device.CodeInvalidValue},
		{"an odd size", grain / 2, 0, device.CodeInvalidValue},
		{"an unknown device", grain, 9, device.CodeInvalidDevice},
		{"more than there is", 1 << 40, 0, device.CodeOutOfMemory},
	} {
		_, err := o.Create(c.size, mem.DeviceProps(c.dev, false), 0, disk("x"), 0)
		o.refuses(c.name, err, c.code)
	}
	if _, err := o.Create(grain, mem.DeviceProps(0, false), 0, Region{Tag: "x", Backup: 7}, 0); !errors.Is(err, ErrInvalid) {
		t.Fatalf("backup 7: %v", err)
	}
}

// An allocator that hears of too little memory frees its cache and tries again.
func TestAMarginIsLeftFree(t *testing.T) {
	o := newOwner(t)
	free := o.free(0)
	_, err := o.Create(grain, mem.DeviceProps(0, false), 0, disk("x"), free)
	o.refuses("into the margin", err, device.CodeOutOfMemory)
	if Code(err) != CodeDeviceMemory {
		t.Fatalf("code %d", Code(err))
	}
	h, err := o.Create(grain, mem.DeviceProps(0, false), 0, disk("x"), free-grain)
	check(t, err)
	check(t, o.Release(h))
}

func TestMemoryOfCudaMallocIsNoneOfTheOwnersToMap(t *testing.T) {
	o := newOwner(t)
	a := o.make(2*grain, 0, disk("x"))
	h := o.create(2*grain, 0, disk("x"))
	for _, paused := range []bool{false, true} {
		if paused {
			o.pause()
		}
		o.refuses("unmap", o.Unmap(a.addr, 2*grain), device.CodeInvalidValue)
		o.refuses("set access", o.SetAccess(a.addr, 2*grain, []mem.Access{mem.ReadWrite(1)}), device.CodeInvalidValue)
		_, err := o.Retain(a.addr)
		o.refuses("retain", err, device.CodeInvalidValue)
		_, err = o.Access(a.addr, mem.LocationDevice, 0)
		o.refuses("get access", err, device.CodeInvalidValue)
		o.refuses("map", o.Map(a.addr, 2*grain, 0, h, 0), device.CodeInvalidValue)
		o.refuses("map of the driver's", o.Map(a.addr, 2*grain, 0, 1, 0), device.CodeInvalidValue)
		o.refuses("address free", o.AddressFree(a.addr, 2*grain), device.CodeInvalidValue)
	}
	o.resume()
	o.holds(a)
	check(t, o.Release(h))
}

func TestARangeOverManagedAndOtherMappings(t *testing.T) {
	o := newOwner(t)
	base := o.reserve(12 * grain)
	props := mem.DeviceProps(0, false)
	other, err := o.drv.MemCreate(4*grain, props)
	check(t, err)
	foreign := func() {
		check(t, o.drv.MemMap(base+4*grain, 4*grain, 0, other))
		check(t, o.drv.MemSetAccess(base+4*grain, 4*grain, []mem.Access{mem.ReadWrite(0)}))
	}
	foreign()
	f := &array{addr: base + 4*grain}
	o.fill(f, 4*grain)
	a := o.mapped(base, 4*grain, 0, disk("x"))
	b := o.mapped(base+8*grain, 4*grain, 0, disk("x"))
	both := []mem.Access{mem.ReadWrite(0), mem.ReadWrite(1)}
	for _, paused := range []bool{false, true} {
		if paused {
			o.pause()
		}
		check(t, o.SetAccess(base, 12*grain, both))
		o.refuses("half of the other's", o.SetAccess(base, 6*grain, both), device.CodeInvalidValue)
		o.refuses("half of the other's", o.Unmap(base, 6*grain), device.CodeInvalidValue)
		if paused {
			o.resume()
		}
		o.holds(a, b, f)
		o.holds(&array{addr: a.addr, dev: 1, want: a.want}, &array{addr: f.addr, dev: 1, want: f.want})
	}
	o.pause()
	check(t, o.Unmap(base, 8*grain)) // a, which is paused, and the other's, which is not
	o.resume()
	o.holds(b)
	if o.table.Len() != 1 {
		t.Fatalf("%d objects are left", o.table.Len())
	}
	foreign() // the address is free
	check(t, o.Unmap(base, 12*grain))
	check(t, o.drv.MemRelease(other))
}

// The driver does all of a range or nothing, so a hole at the end must not leave the begin changed.
// A range that goes beyond the last address is refused in every state, and nothing of it is changed.
func TestRangesBeyondTheLastAddressAreRefused(t *testing.T) {
	o := newOwner(t)
	base := o.reserve(4 * grain)
	a := o.mapped(base, grain, 0, disk("x"))
	h, err := o.Retain(base)
	check(t, err)
	const top = mem.Addr(math.MaxUint64 - grain + 1)
	rights := []mem.Access{mem.ReadWrite(1)}
	for _, state := range []string{"active", "paused", "resumed"} {
		for _, size := range []uint64{math.MaxUint64, math.MaxUint64 - grain + 1, -uint64(base), -uint64(base) + grain} {
			o.refuses(state+": unmap", o.Unmap(base, size), device.CodeInvalidValue)
			o.refuses(state+": set access", o.SetAccess(base, size, rights), device.CodeInvalidValue)
			o.refuses(state+": free the addresses", o.AddressFree(base, size), device.CodeInvalidValue)
			if err := o.Map(base, size, 0, h, 0); err == nil {
				t.Fatalf("%s: mapped %d bytes", state, size)
			}
		}
		o.refuses(state+": map at the top", o.Map(top, grain, 0, h, 0), device.CodeInvalidValue)
		_, err := o.Access(math.MaxUint64, mem.LocationDevice, 0)
		o.passes(state+": access at the top", err)
		flags, err := o.Access(base, mem.LocationDevice, 1)
		check(t, err)
		if flags != 0 {
			t.Fatalf("%s: device 1 has rights %d", state, flags)
		}
		if state == "active" {
			o.pause()
		} else {
			o.resume()
		}
	}
	o.holds(a)
	check(t, o.Unmap(base, grain))
	check(t, o.Release(h))
}

func TestAccessToARangeWithAHoleChangesNothingOfIt(t *testing.T) {
	o := newOwner(t)
	base := o.reserve(8 * grain)
	active := o.mapped(base, 2*grain, 0, disk("active"))
	o.mapped(base+2*grain, 2*grain, 0, disk("paused"))
	o.pause("paused")
	nobody := []mem.Access{{LocationType: mem.LocationDevice, LocationID: 0}}
	o.refuses("access to a range with a hole", o.SetAccess(base, 8*grain, nobody), device.CodeInvalidValue)
	o.holds(active)
	for _, addr := range []mem.Addr{base, base + 2*grain} {
		if f, err := o.Access(addr, mem.LocationDevice, 0); err != nil || f != mem.AccessRW {
			t.Fatalf("rights %d at %v, %v", f, addr, err)
		}
	}
	bad := []mem.Access{{LocationType: mem.LocationDevice, LocationID: 0, Flags: 2}}
	o.refuses("rights that are none", o.SetAccess(base+2*grain, 2*grain, bad), device.CodeInvalidValue)
	o.refuses("no rights", o.SetAccess(base+2*grain, 2*grain, nil), device.CodeInvalidValue)
	o.resume()
}

func TestExportedMemoryIsKeptAndExportOfPausedMemoryIsRefused(t *testing.T) {
	o := newOwner(t)
	p := o.reserve(2 * grain)
	props := mem.DeviceProps(0, false)
	props.HandleTypes = 1 // a file descriptor
	h, err := o.Create(grain, props, 0, disk("x"), 0)
	check(t, err)
	check(t, o.Map(p, grain, 0, h, 0))
	check(t, o.SetAccess(p, grain, []mem.Access{mem.ReadWrite(0)}))
	a := o.mapped(p+grain, grain, 0, disk("x"))
	fd := int32(-1)
	o.pause()
	err = o.Export(unsafe.Pointer(&fd), h, 1, 0)
	o.refuses("export of paused memory", err, device.CodeIllegalState)
	if Code(err) != CodeState || !bytes.Contains([]byte(err.Error()), []byte(`tag "x"`)) {
		t.Fatalf("%v", err)
	}
	_, err = o.Real(h, "multicast")
	o.refuses("the driver's handle of paused memory", err, device.CodeIllegalState)
	o.resume()
	check(t, o.Export(unsafe.Pointer(&fd), h, 1, 0)) // the memory made anew can be exported as well
	check(t, unix.Close(int(fd)))
	b := &array{addr: p}
	o.fill(b, grain)
	if res := o.pause(); res.Allocations != 1 {
		t.Fatalf("%+v", res)
	}
	o.holds(b) // in use by others, and therefore still there
	want := []alloc.Kept{{Reason: "exported", Count: 1, Bytes: grain}}
	if got := o.table.KeptOf(nil); len(got) != 1 || got[0] != want[0] {
		t.Fatalf("kept %+v", got)
	}
	if got := o.table.KeptOf([]string{"y"}); len(got) != 0 {
		t.Fatalf("kept of another tag: %+v", got)
	}
	o.resume()
	o.holds(a, b)
	got, err := o.Properties(h)
	if err != nil || got != props {
		t.Fatalf("properties %+v, %v", got, err)
	}
	check(t, o.Release(h))
}

func TestMemoryBoundToMulticastIsKept(t *testing.T) {
	o := newOwner(t)
	h := o.create(grain, 0, disk("x"))
	real, err := o.Real(h, "multicast")
	check(t, err)
	if alloc.IsVirtual(real) {
		t.Fatalf("%x is not the driver's", uint64(real))
	}
	if res := o.pause(); res.Allocations != 0 {
		t.Fatalf("%+v", res)
	}
	if k := o.table.KeptOf([]string{"x"}); len(k) != 1 || k[0].Reason != "multicast" {
		t.Fatalf("kept %+v", k)
	}
	check(t, o.Release(h))
	if k := o.table.KeptOf(nil); len(k) != 0 {
		t.Fatalf("kept after its end: %+v", k)
	}
}

func TestPropertiesAreTheSameInMemoryMadeAnew(t *testing.T) {
	o := newOwner(t)
	props := mem.DeviceProps(1, false)
	props.HandleTypes = 1
	h, err := o.Create(grain, props, 0, disk("x"), 0)
	check(t, err)
	o.pause()
	o.resume()
	got, err := o.Properties(h)
	if err != nil || got != props {
		t.Fatalf("%+v, %v", got, err)
	}
	fd := int32(-1)
	check(t, o.Export(unsafe.Pointer(&fd), h, 1, 0)) // the driver says so too
	check(t, unix.Close(int(fd)))
	check(t, o.Release(h))
}

func TestMappingsOfAnotherDeviceKeepTheirRights(t *testing.T) {
	o := newOwner(t)
	p := o.reserve(grain)
	a := o.mapped(p, grain, 1, disk("x"))
	check(t, o.SetAccess(p, grain, []mem.Access{{LocationType: mem.LocationDevice, LocationID: 0, Flags: mem.AccessR}}))
	o.pause()
	for dev, want := range []uint64{mem.AccessR, mem.AccessRW} {
		if got, err := o.Access(p, mem.LocationDevice, int32(dev)); err != nil || got != want {
			t.Fatalf("device %d: rights %d, %v", dev, got, err)
		}
	}
	_, err := o.Access(p, mem.LocationDevice, 9)
	o.refuses("an unknown device", err, device.CodeInvalidDevice)
	_, err = o.Access(p, 2, 0)
	o.refuses("host memory", err, device.CodeInvalidValue)
	o.resume()
	o.holds(a, &array{addr: p, dev: 0, want: a.want})
	err = o.withDevice(0, func() error {
		s, err := o.drv.StreamCreate()
		check(t, err)
		err = o.drv.CopyToDevice(p, unsafe.Pointer(&a.want[0]), 1, s)
		check(t, o.drv.StreamDestroy(s))
		return err
	})
	if err == nil {
		t.Fatal("a device that may only read has written")
	}
}

func TestAPauseThatFailsLeavesObjectsAsTheyWere(t *testing.T) {
	for _, fault := range []string{"cuMemAddressReserve:1:2", "cuMemMap:1:2", "cuMemSetAccess:1:2"} {
		o := newOwner(t)
		h := o.create(grain, 0, disk("x")) // needs a window
		p := o.reserve(grain)
		a := o.mapped(p, grain, 0, disk("x"))
		free := o.free(0)
		o.fault(fault)
		if _, err := o.Pause(nil, o.set); err == nil {
			t.Fatalf("%s: the pause succeeded", fault)
		}
		o.fault("")
		if o.state(a) != alloc.Active || o.free(0) != free {
			t.Fatalf("%s: %v, %d bytes more are held", fault, o.state(a), free-o.free(0))
		}
		o.holds(a)
		o.pause()
		o.resume()
		o.holds(a)
		check(t, o.Release(h))
	}
}

func TestAResumeThatFailsLeavesObjectsPaused(t *testing.T) {
	for _, fault := range []string{"cuMemCreate:2:2", "cuMemMap:2:1", "cuMemSetAccess:2:1", "copy:1:700"} {
		if fault == "copy:1:700" {
			continue // it poisons the device for this process
		}
		o := newOwner(t)
		p := o.reserve(2 * grain)
		a, b := o.mapped(p, grain, 0, disk("x")), o.mapped(p+grain, grain, 0, disk("x"))
		o.pause()
		free := o.free(0)
		o.fault(fault)
		if _, err := o.Resume(nil, o.set); err == nil {
			t.Fatalf("%s: the resume succeeded", fault)
		}
		o.fault("")
		if o.state(a) != alloc.Paused || o.state(b) != alloc.Paused || o.free(0) != free {
			t.Fatalf("%s: %v and %v, %d bytes are held", fault, o.state(a), o.state(b), free-o.free(0))
		}
		o.resume()
		o.holds(a, b)
	}
}

func TestAnObjectThatCannotBeUnmappedStaysActive(t *testing.T) {
	o := newOwner(t)
	p := o.reserve(2 * grain)
	a, b := o.mapped(p, grain, 0, disk("x")), o.mapped(p+grain, grain, 0, disk("x"))
	o.fault("cuMemUnmap:1:999")
	res, err := o.Pause(nil, o.set)
	if !errors.Is(err, ErrPartial) || res.Allocations != 1 {
		t.Fatalf("%+v, %v", res, err)
	}
	if o.state(a) != alloc.Active || o.state(b) != alloc.Paused {
		t.Fatalf("%v, %v", o.state(a), o.state(b))
	}
	o.fault("")
	o.holds(a)
	o.resume()
	o.holds(a, b)
}

// Of two mappings one is gone and one could not be unmapped: the object is paused, its memory is
// not, and resume makes it whole.
func TestAnObjectUnmappedInPartIsMadeWholeByResume(t *testing.T) {
	o := newOwner(t)
	p, q := o.reserve(grain), o.reserve(grain)
	a := o.mapped(p, grain, 0, disk("x"))
	h, err := o.Retain(p)
	check(t, err)
	check(t, o.Map(q, grain, 0, h, 0))
	check(t, o.SetAccess(q, grain, []mem.Access{mem.ReadWrite(0)}))
	o.fault("cuMemUnmap:2:999")
	if _, err := o.Pause(nil, o.set); !errors.Is(err, ErrPartial) {
		t.Fatal(err)
	}
	o.fault("")
	o.resume()
	o.holds(a, &array{addr: q, want: a.want})
	check(t, o.Release(h))
}

func TestAnAddressThatTheOwnerGaveAwayWhilePausedFailsTheResumeByName(t *testing.T) {
	o := newOwner(t)
	p, err := o.drv.AddressReserve(grain, 0)
	check(t, err)
	o.mapped(p, grain, 0, disk("x"))
	o.pause()
	check(t, o.drv.AddressFree(p, grain)) // past the hooks
	_, err = o.Resume(nil, o.set)
	if err == nil || !bytes.Contains([]byte(err.Error()), []byte(p.String())) {
		t.Fatalf("%v", err)
	}
	check(t, o.Unmap(p, grain))
	o.resume()
}

func TestReadOfObjectsInEveryState(t *testing.T) {
	o := newOwner(t)
	p := o.reserve(4 * grain)
	a, b := o.mapped(p, 2*grain, 0, disk("x")), o.mapped(p+2*grain, 2*grain, 0, pinned("x"))
	got := make([]byte, 1000)
	for _, paused := range []bool{false, true} {
		if paused {
			o.pause()
		}
		check(t, o.Read(p+777, got, false))
		if !bytes.Equal(got, a.want[777:1777]) {
			t.Fatalf("paused %t: other bytes", paused)
		}
		if err := o.Read(p+4*grain-10, got, false); !errors.Is(err, alloc.ErrNotManaged) {
			t.Fatalf("beyond the mappings: %v", err)
		}
		check(t, o.Read(p+2*grain-300, got, false)) // a tensor in two pieces of a segment
		if want := slices.Concat(a.want[2*grain-300:], b.want[:700]); !bytes.Equal(got, want) {
			t.Fatalf("paused %t: other bytes over two objects", paused)
		}
		if _, err := o.BackupPointer(p+2*grain-300, 1000); paused && Code(err) != CodeState {
			t.Fatalf("one backup for two objects: %v", err)
		}
	}
	o.resume()
	o.holds(a, b)
}

// Owners may take the access of the memory's own device away and still be asked for its bytes.
func TestReadOfMemoryThatItsDeviceHasNoAccessTo(t *testing.T) {
	o := newOwner(t)
	base := o.reserve(8 * grain)
	for i, reg := range []Region{disk("x"), none("x")} {
		a := o.mapped(base+mem.Addr(4*i*grain), 3*grain, 0, reg)
		free := o.free(0)
		check(t, o.SetAccess(a.addr, 3*grain, []mem.Access{{LocationType: mem.LocationDevice, LocationID: 0}}))
		for range 2 {
			o.reads(a, 0, 3*grain)
			o.reads(a, grain-1, 7)
		}
		flags, err := o.Access(a.addr, mem.LocationDevice, 0)
		check(t, err)
		if held, _, _ := o.table.Find(a.addr, 1); flags != 0 || held.Window || held.Through != 0 || o.free(0) != free {
			t.Errorf("%v: rights %d, %+v", reg.Backup, flags, held)
		}
		o.fault("cuMemSetAccess:1:999")
		if err := o.Read(a.addr, make([]byte, 1), false); Code(err) != CodeDevice {
			t.Errorf("without a window: %v", err)
		}
		o.fault("")
		o.reads(a, 5, 100)
	}
	o.pause()
	o.resume()
}

func TestTheBackupOfAnObjectIsFoundByItsAddress(t *testing.T) {
	o := newOwner(t)
	p := o.reserve(2 * grain)
	a := o.mapped(p, 2*grain, 0, pinned("x"))
	o.pause()
	host, err := o.BackupPointer(p+1000, 5000)
	check(t, err)
	if !bytes.Equal(unsafe.Slice((*byte)(host), 5000), a.want[1000:6000]) {
		t.Fatal("other bytes")
	}
	o.resume()
	o.holds(a)
}

func TestUsageNamesWhatOwnersForgot(t *testing.T) {
	o := newOwner(t)
	h, k := o.create(3*grain, 0, disk("x")), o.create(grain, 1, disk("x"))
	p := o.reserve(grain)
	check(t, o.Map(p, grain, 0, k, 0))
	u := o.table.Usage()
	if u.Unmapped != 1 || u.Loose != 3*grain || u.Device[0] != 3*grain || u.Device[1] != grain {
		t.Fatalf("%+v", u)
	}
	check(t, o.Release(h))
	check(t, o.Release(k))
}

func TestPeersMayUseManagedMemoryOfEveryAge(t *testing.T) {
	o := newOwner(t)
	old, paused := o.make(grain, 0, disk("old")), o.make(grain, 0, disk("paused"))
	o.pause("paused")
	foreign := func(a *array) error {
		return o.withDevice(1, func() error {
			s, err := o.drv.StreamCreate()
			check(t, err)
			got := make([]byte, len(a.want))
			err = o.drv.CopyToHost(unsafe.Pointer(&got[0]), a.addr, uint64(len(got)), s)
			if err == nil {
				err = o.drv.StreamSynchronize(s)
			}
			if err == nil && !bytes.Equal(got, a.want) {
				err = os.ErrInvalid
			}
			return errors.Join(err, o.drv.StreamDestroy(s))
		})
	}
	if foreign(old) == nil {
		t.Fatal("another device reads without being a peer")
	}
	for range 2 { // a repeat changes nothing
		check(t, o.PeerAccess(0, 1, true))
	}
	young := o.make(grain, 0, disk("young"))
	o.resume()
	o.pause("young")
	o.resume()
	for _, a := range []*array{old, paused, young} {
		check(t, foreign(a))
	}
	o.pause("paused")
	check(t, o.PeerAccess(0, 1, false))
	o.resume()
	for _, a := range []*array{old, paused, young} {
		if foreign(a) == nil {
			t.Fatal("another device reads and is no peer any more")
		}
		o.holds(a)
	}
	for _, bad := range [][2]int{{0, 0}, {0, 9}, {-1, 0}} {
		if err := o.PeerAccess(bad[0], bad[1], true); !errors.Is(err, ErrInvalid) {
			t.Fatalf("%v: %v", bad, err)
		}
	}
}

// What a device was given to do while it was a peer is done.
func TestAPeerEndsItsWorkBeforeItLosesTheMemory(t *testing.T) {
	o := newOwner(t)
	a := o.make(8<<20, 0, disk("x"))
	check(t, o.PeerAccess(0, 1, true))
	o.submit(a, o.primary(1))
	check(t, o.withContext(o.primary(1), func() error { return o.PeerAccess(0, 1, false) }))
	o.holds(a)
}
