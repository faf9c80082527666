package engine

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/ebb-offload/ebb/internal/mem"
)

// lastPause is what the status says of the latest pause.
func (r *rig) lastPauseTold() outcome {
	r.t.Helper()
	var s Status
	check(r.t, json.Unmarshal(r.Status(nil), &s))
	return *s.LastPause
}

func TestAPauseTellsWhatBecameFree(t *testing.T) {
	r := newRig(t)
	r.make(20<<20, 0, none("x"))
	r.make(10<<20, 1, pinned("x"))
	r.pause()
	if o := r.lastPauseTold(); o.Freed < 30<<20 || o.Missing != 0 {
		t.Errorf("freed %d, missing %d", o.Freed, o.Missing)
	}
	if log := r.logged(); strings.Contains(log, "did not become free") {
		t.Errorf("log:\n%s", log)
	}
	r.resume()
}

// alias maps the memory of an array a second time, as a registration keeps it: it stays although it
// is released.
func (r *rig) alias(a *array) (end func()) {
	r.t.Helper()
	found, _, err := r.table.Find(a.addr, 1)
	check(r.t, err)
	p := found.Pieces[0]
	var at mem.Addr
	check(r.t, r.withDevice(a.dev, func() (err error) {
		if at, err = r.drv.AddressReserve(p.Length, 0); err != nil {
			return err
		}
		return r.drv.MemMap(at, p.Length, 0, p.Handle)
	}))
	return func() {
		check(r.t, r.drv.MemUnmap(at, p.Length))
		check(r.t, r.drv.AddressFree(at, p.Length))
	}
}

func TestAPauseTellsWhatDidNotBecomeFree(t *testing.T) {
	r := newRig(t)
	a := r.make(24<<20, 0, pinned("x"))
	r.make(40<<20, 0, none("x"))
	end := r.alias(a)
	r.pause()
	if o := r.lastPauseTold(); o.Freed != 40<<20 || o.Missing != 24<<20 || o.Error != "" {
		t.Errorf("%+v", o)
	}
	const want = "a pause released 64.0 MiB of device memory, of which 24.0 MiB did not become free: this process still holds it"
	if log := r.logged(); strings.Count(log, want) != 1 {
		t.Errorf("log:\n%s", log)
	}
	end()
	r.resume()
	r.holds(a)
}

// What other processes take while a pause unmaps is not missing.
func TestMemoryThatAnotherProcessTakesIsNotMissing(t *testing.T) {
	before := look{free: 100 << 20, own: 60 << 20, others: map[int]uint64{7: 10 << 20, 8: 5 << 20}, told: true}
	for _, c := range []struct {
		after         look
		freed, missed int64
		because       string
	}{
		{look{free: 150 << 20, own: 10 << 20, others: map[int]uint64{7: 10 << 20, 8: 5 << 20}, told: true}, 50, 0, ""},
		{look{free: 130 << 20, own: 10 << 20, others: map[int]uint64{7: 30 << 20, 8: 5 << 20}, told: true}, 50, 0, ""},             // one grew
		{look{free: 155 << 20, own: 10 << 20, others: map[int]uint64{7: 10 << 20}, told: true}, 50, 0, ""},                         // one ended
		{look{free: 125 << 20, own: 35 << 20, others: map[int]uint64{7: 10 << 20, 8: 5 << 20}, told: true}, 25, 25, "still holds"}, // registered
		{look{free: 120 << 20, own: 10 << 20, others: map[int]uint64{7: 20 << 20, 8: 5 << 20}, told: true}, 30, 20, "pid 7 took 10.0 MiB"},
		{look{free: 120 << 20, own: 10 << 20, others: map[int]uint64{7: 10 << 20, 8: 5 << 20}, told: true}, 20, 30, "the driver keeps it"},
		{look{free: 120 << 20, others: map[int]uint64{}}, 20, 0, "another process has taken it"}, // NVML does not tell
		{look{free: 90 << 20, others: map[int]uint64{}}, 0, 0, "another process has taken it"},
	} {
		res := Result{DeviceBytes: 50 << 20}
		why := res.compare(before, c.after)
		if int64(res.Freed) != c.freed<<20 || int64(res.Missing) != c.missed<<20 || !strings.Contains(why, c.because) || (why == "") != (c.because == "") {
			t.Errorf("%+v: freed %d, missing %d: %q", c.after, res.Freed>>20, res.Missing>>20, why)
		}
	}
}

// NVML is asked at the same moment as the driver, or counts as telling nothing: what another process takes between
// the two answers would be missing.
func TestDriverAndNVMLAreAskedAtTheSameMoment(t *testing.T) {
	const mib = uint64(1 << 20)
	for _, c := range []struct {
		what   string
		free   []uint64 // as the driver says one time after the other; then it says no more
		told   bool     // by NVML
		want   look
		ok     bool
		asking int // of NVML
	}{
		{"nothing changes", []uint64{50, 50}, true, look{free: 50, told: true}, true, 1},
		{"another process takes memory meanwhile", []uint64{50, 40, 40}, true, look{free: 40, told: true}, true, 2},
		{"others never rest", []uint64{50, 40, 30, 20, 10}, true, look{free: 10}, true, looks},
		{"NVML does not tell", []uint64{50, 40}, false, look{free: 40}, true, 1},
		{"the driver does not tell", nil, true, look{}, false, 0},
		{"the driver tells no more", []uint64{50}, true, look{}, false, 1},
	} {
		asked, said := 0, c.free
		free := func() (uint64, bool) {
			if len(said) == 0 {
				return 0, false
			}
			n := said[0]
			said = said[1:]
			return n * mib, true
		}
		got, ok := lookAtOnce(free, func() look { asked++; return look{told: c.told} })
		if ok != c.ok || ok && (got.free != c.want.free*mib || got.told != c.want.told) || asked != c.asking {
			t.Errorf("%s: %+v, %t, asked %d times", c.what, got, ok, asked)
		}
	}
}

// A pause that fails half-way tells what it had written by then: in its result, in the status, in
// the log.
func TestWhatAFailedPauseHadWritten(t *testing.T) {
	r := newRig(t)
	a := r.make(8<<20, 0, disk("x"))
	blocks := uint64(8<<20) / r.block
	check(t, r.sys.Set(fmt.Sprintf("pwrite:%d:EIO", blocks/2+1))) // one is the store's own, to try direct I/O
	res, err := r.Pause(nil, r.set)
	if Code(err) != CodeIO {
		t.Fatal(err)
	}
	told := r.lastPauseTold()
	if res.DiskBytes == 0 || res.DiskBytes >= 8<<20 || res.DiskBytes%r.block != 0 || res.HostBytes != 0 || told.DiskBytes != res.DiskBytes || told.Error == "" {
		t.Errorf("result %+v, status %+v", res, told)
	}
	if log := r.logged(); !strings.Contains(log, "a pause failed when 0 bytes of host memory and ") {
		t.Errorf("log:\n%s", log)
	}
	check(t, r.sys.Set(""))
	r.holds(a)
	r.pause()
	check(t, r.sys.Set("pread:3:EIO"))
	res, err = r.Resume(nil, r.set)
	if Code(err) != CodeIO || res.DiskBytes == 0 || res.DiskBytes >= 8<<20 {
		t.Errorf("%v, result %+v", err, res)
	}
	check(t, r.sys.Set(""))
	r.resume()
	r.holds(a)
}
