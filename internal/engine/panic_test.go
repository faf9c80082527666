package engine

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/ebb-offload/ebb/internal/device"
	"github.com/ebb-offload/ebb/internal/mem"
	"github.com/ebb-offload/ebb/internal/pipeline"
)

// A defect of ebb anywhere in a pause or a resume is an error of that operation. No memory stays between two states,
// where whoever frees it would wait for ever, and no byte is lost: it can be done again.

// defective is the driver, and panics at one call.
type defective struct {
	device.Driver
	call string
	left atomic.Int64 // calls up to that one
}

func (d *defective) from(call string, n int) {
	d.call = call
	d.left.Store(int64(n))
}

func (d *defective) at(call string) {
	if d.call == call && d.left.Add(-1) == 0 {
		panic("a defect")
	}
}

func (d *defective) met() bool { return d.left.Load() <= 0 }

func (d *defective) Synchronize() error {
	d.at("Synchronize")
	return d.Driver.Synchronize()
}

func (d *defective) MemUnmap(addr mem.Addr, n uint64) error {
	d.at("MemUnmap")
	return d.Driver.MemUnmap(addr, n)
}

func (d *defective) MemCreate(n uint64, props mem.Props) (mem.Handle, error) {
	d.at("MemCreate")
	return d.Driver.MemCreate(n, props)
}

func (d *defective) MemRelease(h mem.Handle) error {
	d.at("MemRelease")
	return d.Driver.MemRelease(h)
}

func TestADefectLeavesNoMemoryBetweenTwoStates(t *testing.T) {
	for _, call := range []string{"Synchronize", "MemUnmap", "MemRelease", "MemCreate"} {
		for n, met := 1, true; met && !t.Failed(); n++ {
			t.Run(fmt.Sprint(call, " ", n), func(t *testing.T) { met = withADefect(t, call, n) })
		}
	}
}

// withADefect has the n-th call of a pause fail, and then that of a resume, and reports whether one of them makes so many.
func withADefect(t *testing.T, call string, n int) (met bool) {
	t.Helper()
	r := newRig(t)
	list := []*array{r.make(300<<10, 0, disk("a")), r.make(200<<10, 1, disk("b")), r.make(100<<10, 0, pinned("a"))}
	d := &defective{Driver: r.drv}
	r.drv = d
	d.from(call, n)
	_, err := r.Pause(nil, r.set)
	if met = d.met(); met != errors.Is(err, pipeline.ErrPanic) {
		t.Fatalf("a pause in which there was a defect, %v: %v", met, err)
	}
	d.from("", 1)
	r.pause()
	d.from(call, n)
	_, err = r.Resume(nil, r.set)
	if d.met() != errors.Is(err, pipeline.ErrPanic) {
		t.Fatalf("a resume in which there was a defect, %v: %v", d.met(), err)
	}
	met = met || d.met()
	d.from("", 1)
	if met && call == "Synchronize" && !strings.Contains(r.logged(), "panic_test.go") {
		t.Error("the log does not say where the defect was")
	}
	r.resume()
	r.drv = d.Driver
	r.holds(list...)
	return met
}
