package engine

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ebb-offload/ebb/internal/alloc"
	"github.com/ebb-offload/ebb/internal/device/cuda"
	"github.com/ebb-offload/ebb/internal/mem"
	"github.com/ebb-offload/ebb/internal/testutil"
)

func (r *rig) status(told ...Class) Status {
	r.t.Helper()
	var s Status
	check(r.t, json.Unmarshal(r.Status(told), &s))
	return s
}

func (u unmanaged) class(name string) Class {
	for _, c := range u.Classes {
		if c.Name == name {
			return c
		}
	}
	return Class{}
}

// pooled takes memory from the device's default memory pool.
func (r *rig) pooled(dev int, size uint64) (free func()) {
	r.t.Helper()
	var give func() error
	check(r.t, r.withDevice(dev, func() (err error) {
		give, err = cuda.SoftwarePoolMemory(r.drv, size)
		return err
	}))
	return func() { check(r.t, r.withDevice(dev, give)) }
}

func TestStatusGivesWhatIsNotManagedByClass(t *testing.T) {
	r := newRig(t)
	r.make(5*grain, 0, disk("x"))
	before := r.status().Unmanaged
	if !before.Measured || before.Total != before.class("context").Bytes {
		t.Fatalf("at first: %+v", before)
	}
	d, err := r.deviceState(0)
	check(t, err)
	h, err := r.drv.MemCreate(7*grain, d.props)
	check(t, err)
	defer func() { check(t, r.drv.MemRelease(h)) }()
	free := r.pooled(0, 3*grain)
	told := []Class{{"nccl", 4 * grain, 2}, {"pool", 1, 1}, {"nccl", grain, 1}}
	u := r.status(told...).Unmanaged
	if u.Total != before.Total+10*grain {
		t.Fatalf("total %d, %d before", u.Total, before.Total)
	}
	if u.class("nccl") != (Class{"nccl", 5 * grain, 3}) || u.class("pool") != (Class{"pool", 3 * grain, 1}) {
		t.Fatalf("%+v", u)
	}
	if rest := u.class("context").Bytes; rest != before.Total+2*grain { // of what no hook saw
		t.Fatalf("context %d, %d before", rest, before.Total)
	}
	if !slices.IsSortedFunc(u.Classes, func(a, b Class) int { return int(int64(b.Bytes) - int64(a.Bytes)) }) {
		t.Fatalf("not the largest first: %+v", u.Classes)
	}
	if u := r.status(Class{"pool", 100 * grain, 9}).Unmanaged; u.class("pool").Bytes != 100*grain {
		t.Fatalf("pools that the driver does not tell of: %+v", u)
	}
	r.pause()
	if got := r.status(told...).Unmanaged.Total; got != u.Total {
		t.Fatalf("a pause changes what is not managed: %d, %d before", got, u.Total)
	}
	free()
}

func TestWhatIsBeyondContextsIsNamedOther(t *testing.T) {
	r := newRig(t)
	r.make(grain, 0, disk("x"))
	before := r.status().Unmanaged
	d, err := r.deviceState(1)
	check(t, err)
	var hs []mem.Handle
	for dev := range 2 {
		d.props.LocationID = int32(dev)
		h, err := r.drv.MemCreate(contextBytes+grain, d.props)
		check(t, err)
		hs = append(hs, h)
	}
	u := r.status().Unmanaged
	if u.class("context").Bytes != 2*contextBytes || u.class("other").Bytes != before.Total+2*grain {
		t.Errorf("%+v", u)
	}
	for _, h := range hs {
		check(t, r.drv.MemRelease(h))
	}
}

// Without NVML, or with process numbers of a namespace, the classes are all that is known.
func TestWhereTheSystemDoesNotTellTheClassesAreAll(t *testing.T) {
	lib := filepath.Join(t.TempDir(), "libcuda.so.1") // nothing beside it
	check(t, os.Symlink(testutil.SoftGPU(t), lib))
	e, err := Start(Config{LogFD: -1, ChunkBytes: 4 << 20, Driver: lib})
	check(t, err)
	defer func() { e.Shutdown(); e.close() }()
	u := e.unmanaged([]Class{{"nccl", 100, 1}})
	if u.Measured || u.Total != 100 || len(u.Classes) != 1 {
		t.Fatalf("%+v", u)
	}
}

func TestAPauseGivesBackTheIdleMemoryOfPools(t *testing.T) {
	r := newRig(t)
	r.make(grain, 0, disk("x"))
	before := r.free(0)
	used, idle := r.pooled(0, 2*grain), r.pooled(0, 4*grain)
	idle()
	if r.free(0) != before-6*grain {
		t.Fatal("the pool gave it back by itself")
	}
	r.pause()
	if got := r.free(0); got != before+grain-2*grain {
		t.Fatalf("%d bytes free, want %d", got, before-grain)
	}
	if p := r.status().Unmanaged.class("pool"); p.Bytes != 2*grain {
		t.Fatalf("in use: %+v", p)
	}
	used()
	r.resume()
}

// Pools and graphs are the driver's: that it cannot tell of them, or not trim them, fails no pause.
func TestAPauseDoesNotNeedPools(t *testing.T) {
	for fault, said := range map[string]string{
		"cuDeviceGetDefaultMemPool:*:801": "", "cuMemPoolGetAttribute:*:1": "",
		"cuDeviceGetGraphMemAttribute:*:801,cuDeviceGraphMemTrim:*:801": "",
		"cuMemPoolTrimTo:*:999":      "give back the idle memory of a pool of device 0",
		"cuDeviceGraphMemTrim:*:999": "give back the idle memory of graphs of device 0",
	} {
		r := newRigIn(t, Config{ChunkBytes: 4 << 20}, testutil.InBuild(t, "engine-")) // of a directory in memory more is said
		a := r.make(grain, 0, disk("x"))
		r.fault(fault)
		r.pause()
		r.status()
		r.fault("")
		r.resume()
		r.holds(a)
		if got := r.remarks(); (got == "") != (said == "") || !strings.Contains(got, said) {
			t.Errorf("%s: logged %q", fault, got)
		}
	}
}

func TestAPauseNamesWhatItLeavesOnTheDevice(t *testing.T) {
	o := newOwner(t)
	h := o.create(3*grain, 0, disk("x"))
	_, err := o.Real(h, "multicast")
	check(t, err)
	o.make(grain, 0, disk("y"))
	o.set.Classes = []Class{{"nccl", 5 << 20, 2}}
	res := o.pause()
	if res.Kept != 3*grain || res.Allocations != 1 {
		t.Fatalf("%+v", res)
	}
	for _, want := range []string{"leaves on the device", "in 1 allocations kept (multicast)", "not managed (nccl)"} {
		if !strings.Contains(o.logged(), want) {
			t.Errorf("%q does not say %q", o.logged(), want)
		}
	}
	o.resume()
	said := o.remarks()
	o.pause()
	if o.remarks() != said {
		t.Errorf("said again: %q", o.remarks())
	}
	o.resume()
	if res := o.pause("y"); res.Kept != 0 {
		t.Fatalf("kept of another tag: %+v", res)
	}
	o.resume()
	s := o.status()
	if len(s.Kept) != 1 || s.Kept[0] != (alloc.Kept{Reason: "multicast", Count: 1, Bytes: 3 * grain}) {
		t.Errorf("status: kept %+v", s.Kept)
	}
	if s.Objects != (ObjectStatus{Count: 1, Unmapped: 1, UnmappedBytes: 3 * grain}) {
		t.Errorf("status: objects %+v", s.Objects)
	}
	check(t, o.Release(h))
}

func TestAPauseOfEverythingNamesWhatPassedTheHooks(t *testing.T) {
	r := newRig(t)
	r.set.Unmanaged = 3
	r.set.Classes = []Class{{"nccl", 5 << 20, 3}}
	_, err := r.Pause(nil, r.set)
	if !errors.Is(err, ErrUnmanaged) || !strings.Contains(err.Error(), "3 allocations") || !strings.Contains(err.Error(), "nccl") ||
		!strings.Contains(err.Error(), "TMS_INIT_ENABLE_CPU_BACKUP=1 or TMS_INIT_ENABLE_DISK_BACKUP=1") {
		t.Fatalf("%v", err)
	}
}

// To put it into a region would not help.
func TestAPauseOfNothingButPoolsSaysThatTheyAreNotManaged(t *testing.T) {
	r := newRig(t)
	r.set.Unmanaged = 2
	r.set.Classes = []Class{{"pool", 5 << 20, 2}}
	_, err := r.Pause(nil, r.set)
	if !errors.Is(err, ErrUnmanaged) || !strings.Contains(err.Error(), "cudaMallocAsync") || strings.Contains(err.Error(), "region") ||
		strings.Contains(err.Error(), "TMS_INIT_ENABLE") {
		t.Fatalf("%v", err)
	}
}
