package engine

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"unsafe"

	"github.com/ebb-offload/ebb/internal/alloc"
	"github.com/ebb-offload/ebb/internal/device"
	"github.com/ebb-offload/ebb/internal/mem"
	"pgregory.net/rapid"
)

// slots is how many pieces of the granularity the model's address range has.
const slots = 24

// modelObject is what an owner expects of memory that it created.
type modelObject struct {
	handle  mem.Handle
	dev     int
	reg     Region
	size    uint64
	refs    int
	paused  bool
	kept    bool
	unknown bool // its bytes were given up
	want    []byte
	at      []*modelMapping
}

// GoString is how a failure shows it.
func (o *modelObject) GoString() string {
	return fmt.Sprintf("%x of %d bytes on device %d, %v, refs %d, paused %t", uint64(o.handle), o.size, o.dev, o.reg, o.refs, o.paused)
}

type modelMapping struct {
	of     *modelObject
	addr   mem.Addr
	access map[int32]int32
}

func (m *modelMapping) end() mem.Addr { return m.addr + mem.Addr(m.of.size) }

// model is the owners' view of all objects and of one address range.
type model struct {
	owner
	base    mem.Addr
	objects []*modelObject
	failed  map[string]int // operations, by name
}

func (m *model) mappings() (all []*modelMapping) {
	for _, o := range m.objects {
		all = append(all, o.at...)
	}
	return all
}

// in lists the mappings that overlap a range, and says whether all lie in it as a whole.
func (m *model) in(addr mem.Addr, size uint64) (list []*modelMapping, whole bool) {
	whole = true
	for _, x := range m.mappings() {
		if x.addr < addr+mem.Addr(size) && addr < x.end() {
			list = append(list, x)
			whole = whole && x.addr >= addr && x.end() <= addr+mem.Addr(size)
		}
	}
	return list, whole
}

// forget takes objects out that nothing holds any more.
func (m *model) forget() {
	m.objects = slices.DeleteFunc(m.objects, func(o *modelObject) bool { return o.refs == 0 && len(o.at) == 0 })
}

// move copies between p and an address on a device; toDevice says which way.
func (m *model) move(t *rapid.T, dev int, addr mem.Addr, p []byte, toDevice bool) {
	err := m.withDevice(dev, func() error {
		s, err := m.drv.StreamCreate()
		if err != nil {
			return err
		}
		if toDevice {
			err = m.drv.CopyToDevice(addr, unsafe.Pointer(&p[0]), uint64(len(p)), s)
		} else {
			err = m.drv.CopyToHost(unsafe.Pointer(&p[0]), addr, uint64(len(p)), s)
		}
		if err == nil {
			err = m.drv.StreamSynchronize(s)
		}
		_ = m.drv.StreamDestroy(s)
		return err
	})
	if err != nil {
		t.Fatalf("copy %d bytes at %v by device %d: %v", len(p), addr, dev, err)
	}
}

// Any sequence of the driver's calls by owners, on two devices and mixed with pauses and resumes, of which any may
// fail, and reads, answers as the driver would, and keeps every byte at every address.
func TestAnySequenceOfOwnersCallsKeepsEveryByte(t *testing.T) {
	setChecks(t, 300, 10000)
	o := newOwner(t)
	base := o.reserve(slots * grain)
	free := [2]uint64{o.free(0), o.free(1)}
	regions := []Region{disk("a"), disk("b"), pinned("a"), mmap("b"), none("a")}
	failed := map[string]int{}
	rapid.Check(t, func(t *rapid.T) {
		m := &model{owner: o, base: base, failed: failed}
		defer m.end(t, free)
		t.Repeat(m.actions(regions))
	})
	if !t.Failed() && len(failed) == 0 {
		t.Error("nothing failed")
	}
}

func (m *model) actions(regions []Region) map[string]func(*rapid.T) {
	object := func(t *rapid.T) *modelObject {
		if len(m.objects) == 0 {
			t.Skip("no objects")
		}
		return rapid.SampledFrom(m.objects).Draw(t, "object")
	}
	mapping := func(t *rapid.T) *modelMapping {
		all := m.mappings()
		if len(all) == 0 {
			t.Skip("no mappings")
		}
		return rapid.SampledFrom(all).Draw(t, "mapping")
	}
	span := func(t *rapid.T) (mem.Addr, uint64) {
		from := rapid.IntRange(0, slots-1).Draw(t, "from")
		return m.base + mem.Addr(from*grain), uint64(rapid.IntRange(1, slots-from).Draw(t, "pieces") * grain)
	}
	refused := func(t *rapid.T, what string, err error, code device.Code) {
		if err == nil || DriverCode(err) != code {
			t.Fatalf("%s: %v, want CUresult %d", what, err, code)
		}
	}
	ok := func(t *rapid.T, err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	tags := func(t *rapid.T) []string {
		if tag := rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "tag"); tag != "" {
			return []string{tag}
		}
		return nil
	}
	matches := func(o *modelObject, tags []string) bool { return tags == nil || o.reg.Tag == tags[0] }

	return map[string]func(*rapid.T){
		"create": func(t *rapid.T) {
			if len(m.objects) == 10 {
				t.Skip("enough")
			}
			o := &modelObject{
				dev: rapid.IntRange(0, 1).Draw(t, "device"), reg: rapid.SampledFrom(regions).Draw(t, "region"),
				size: uint64(rapid.IntRange(1, 6).Draw(t, "pieces") * grain), refs: 1,
			}
			props := mem.DeviceProps(o.dev, false)
			props.HandleTypes = 1
			var err error
			o.handle, err = m.Create(o.size, props, 0, o.reg, 0)
			ok(t, err)
			o.want = make([]byte, o.size) // new memory is zero
			m.objects = append(m.objects, o)
		},
		"map": func(t *rapid.T) {
			o := object(t)
			addr, _ := span(t)
			there, _ := m.in(addr, o.size)
			err := m.Map(addr, o.size, 0, o.handle, 0)
			switch {
			case len(there) > 0 || addr+mem.Addr(o.size) > m.base+slots*grain && !o.paused:
				refused(t, "map over a mapping or beyond the range", err, device.CodeInvalidValue)
			case addr+mem.Addr(o.size) > m.base+slots*grain:
				ok(t, err) // nobody can tell while it is paused; take it back
				ok(t, m.Unmap(addr, o.size))
				m.forget()
			default:
				ok(t, err)
				o.at = append(o.at, &modelMapping{of: o, addr: addr, access: map[int32]int32{}})
			}
		},
		"unmap": func(t *rapid.T) {
			addr, size := span(t)
			there, whole := m.in(addr, size)
			err := m.Unmap(addr, size)
			switch {
			case len(there) == 0:
				if err == nil || DriverCode(err) != device.CodeUnknown { // passed on
					t.Fatalf("unmap of nothing managed: %v", err)
				}
			case !whole:
				refused(t, "unmap of half a mapping", err, device.CodeInvalidValue)
			default:
				ok(t, err)
				for _, x := range there {
					x.of.at = slices.DeleteFunc(x.of.at, func(y *modelMapping) bool { return x == y })
				}
				m.forget()
			}
		},
		"set access": func(t *rapid.T) {
			x := mapping(t)
			addr, size := x.addr, x.of.size
			if rapid.Bool().Draw(t, "several") {
				addr, size = span(t)
			}
			there, whole := m.in(addr, size)
			var covered uint64
			for _, y := range there {
				covered += y.of.size
			}
			if len(there) == 0 {
				t.Skip("the driver's")
			}
			dev := rapid.Int32Range(0, 1).Draw(t, "device")
			flags := rapid.SampledFrom([]int32{0, mem.AccessR, mem.AccessRW}).Draw(t, "rights")
			err := m.SetAccess(addr, size, []mem.Access{{LocationType: mem.LocationDevice, LocationID: dev, Flags: flags}})
			if !whole || covered != size {
				refused(t, "access to what is not whole mappings", err, device.CodeInvalidValue)
				return
			}
			ok(t, err)
			for _, y := range there {
				y.access[dev] = flags
			}
		},
		"release": func(t *rapid.T) {
			o := object(t)
			err := m.Release(o.handle)
			if o.refs == 0 {
				refused(t, "release without reference", err, device.CodeInvalidValue)
				return
			}
			ok(t, err)
			o.refs--
			m.forget()
		},
		"retain": func(t *rapid.T) {
			x := mapping(t)
			h, err := m.Retain(x.addr + mem.Addr(rapid.Uint64Range(0, x.of.size-1).Draw(t, "offset")))
			ok(t, err)
			if h != x.of.handle {
				t.Fatalf("retained %x, want %x", uint64(h), uint64(x.of.handle))
			}
			x.of.refs++
		},
		"keep": func(t *rapid.T) {
			o := object(t)
			if rapid.IntRange(0, 9).Draw(t, "seldom") > 0 {
				t.Skip("seldom")
			}
			_, err := m.Real(o.handle, "multicast")
			switch {
			case o.refs == 0:
				refused(t, "handle without reference", err, device.CodeInvalidValue)
			case o.paused:
				refused(t, "handle of paused memory", err, device.CodeIllegalState)
			default:
				ok(t, err)
				o.kept = true
			}
		},
		"write": func(t *rapid.T) {
			x := mapping(t)
			for dev, flags := range x.access {
				if !x.of.paused && flags == mem.AccessRW {
					copy(x.of.want, randomBytes(int(x.of.size)))
					m.move(t, int(dev), x.addr, x.of.want, true)
					x.of.unknown = false
					return
				}
			}
		},
		"read": func(t *rapid.T) {
			x := mapping(t)
			if x.of.unknown || !x.of.paused && x.access[int32(x.of.dev)] == 0 {
				t.Skip("no bytes")
			}
			off := rapid.Uint64Range(0, x.of.size-1).Draw(t, "offset")
			p := make([]byte, rapid.Uint64Range(1, x.of.size-off).Draw(t, "length"))
			err := m.Read(x.addr+mem.Addr(off), p, false)
			if x.of.paused && x.of.reg.Backup == alloc.BackupNone {
				if Code(err) != CodeState {
					t.Fatalf("read of bytes given up: %v", err)
				}
			} else if err != nil || !bytes.Equal(p, x.of.want[off:off+uint64(len(p))]) {
				t.Fatalf("read of %d bytes at %d: other bytes, or %v", len(p), off, err)
			}
		},
		"pause": func(t *rapid.T) {
			tags := tags(t)
			failed := m.ends(t, m.failing(t), func() error { _, err := m.Pause(tags, m.set); return err })
			for _, o := range m.objects {
				switch {
				case o.paused || o.kept || !matches(o, tags):
				case failed == nil:
					o.paused = true
				case Code(failed) == CodePartial:
					o.paused = m.table.State(m.table.Object(o.handle)) == alloc.Paused
				}
			}
		},
		"resume": func(t *rapid.T) {
			tags := tags(t)
			if m.ends(t, m.failing(t), func() error { _, err := m.Resume(tags, m.set); return err }) != nil {
				return // all of it is still paused
			}
			for _, o := range m.objects {
				if o.paused && matches(o, tags) {
					o.paused = false
					o.unknown = o.unknown || o.reg.Backup == alloc.BackupNone
				}
			}
		},
		"": m.agrees,
	}
}

// ends does something of which an operation fails, and takes the fault away. The error is that of the operation.
func (m *model) ends(t *rapid.T, fails string, do func() error) error {
	err := do()
	m.fault("")
	check(m.t, m.sys.Set(""))
	if Code(err) == CodeUnknownTag {
		return nil // nothing has one of the tags
	}
	if err != nil {
		if fails == "" {
			t.Fatal(err)
		}
		m.failed[fails]++
	}
	return err
}

// agrees compares what the engine and the devices say with the model.
func (m *model) agrees(t *rapid.T) {
	if n := m.table.Len(); n != len(m.objects) {
		t.Fatalf("the engine has %d objects, the model %d", n, len(m.objects))
	}
	for _, o := range m.objects {
		a := m.table.Object(o.handle)
		if a == nil || (m.table.State(a) == alloc.Paused) != o.paused || a.Refs != o.refs || len(a.Mappings) != len(o.at) {
			t.Fatalf("the engine has %+v, the model %+v", a, o)
		}
		for _, x := range o.at {
			for dev := range int32(2) {
				if f, err := m.Access(x.addr, mem.LocationDevice, dev); err != nil || int32(f) != x.access[dev] {
					t.Fatalf("device %d has rights %d at %v, the model says %d (%v)", dev, f, x.addr, x.access[dev], err)
				}
				if o.paused || o.unknown || x.access[dev] == 0 {
					continue
				}
				got := make([]byte, o.size)
				m.move(t, int(dev), x.addr, got, false)
				if !bytes.Equal(got, o.want) {
					t.Fatalf("other bytes at %v, seen by device %d", x.addr, dev)
				}
			}
		}
	}
}

// end drops everything and looks whether the devices have it back.
func (m *model) end(t *rapid.T, free [2]uint64) {
	for _, a := range m.table.All() {
		if err := m.drop(a); err != nil {
			t.Fatal(err)
		}
	}
	m.tryAgain() // what the driver did not take when it was freed
	if now := [2]uint64{m.free(0), m.free(1)}; now != free || len(m.files()) > 0 {
		t.Fatalf("%v bytes are free, %v at first; files %v", now, free, m.files())
	}
}

// Owners on many threads that grow and shrink ranges, while others pause and resume: no deadlock,
// no race, every byte kept. An owner knows its bytes from a read that works in every state.
func TestOwnersOnManyThreadsWhileOthersPause(t *testing.T) {
	o := newOwner(t)
	rounds := 30
	if long {
		rounds = 1000
	}
	stop := make(chan struct{})
	var owners, others sync.WaitGroup
	for range 2 {
		others.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				// An owner's write in the midst of a pause makes it fail; see Pause.
				if _, err := o.Pause(nil, o.set); err != nil && Code(err) != CodeWritten {
					t.Error(err)
				}
				if _, err := o.Resume(nil, o.set); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for i := range 4 {
		base := o.reserve(8 * grain)
		owners.Go(func() {
			dev := i % 2
			for n := range rounds {
				h, err := o.Create(8*grain, mem.DeviceProps(dev, false), 0, disk("thread"+strconv.Itoa(i)), 0)
				if err != nil {
					t.Error(err)
					return
				}
				steps := []func() error{
					func() error { return o.Map(base, 8*grain, 0, h, 0) },
					func() error { return o.SetAccess(base, 8*grain, []mem.Access{mem.ReadWrite(dev)}) },
					func() error { return o.Release(h) },
					func() error { _, err := o.Retain(base + mem.Addr(n)); return err },
					func() error { return o.Read(base+3, make([]byte, 100), false) },
					func() error { return o.Unmap(base, 8*grain) },
					func() error { return o.Map(base, 8*grain, 0, h, 0) },
					func() error { return o.Unmap(base, 8*grain) },
					func() error { return o.Release(h) },
				}
				for k, step := range steps {
					if err := step(); err != nil {
						t.Errorf("step %d: %v", k, err)
					}
				}
			}
		})
	}
	owners.Wait()
	close(stop)
	others.Wait()
}
