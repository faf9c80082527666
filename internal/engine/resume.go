package engine

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/ebb-offload/ebb/internal/alloc"
	"github.com/ebb-offload/ebb/internal/device"
	"github.com/ebb-offload/ebb/internal/mem"
	"github.com/ebb-offload/ebb/internal/pipeline"
	"github.com/ebb-offload/ebb/internal/plan"
	"github.com/ebb-offload/ebb/internal/store"
)

// pollFree is the pause between two looks at the free memory of a device while a resume waits.
const pollFree = 50 * time.Millisecond

// Resume brings the memory of the paused allocations with one of the tags (none: of all) back
// to their addresses, with their bytes, which are checked. What is active already stays so. On every error all of
// them stay paused and can be resumed later. While a device has too little memory it waits
// until s.ResumeWait has passed, and holds nothing meanwhile: neither memory nor the operation
// lock.
func (e *Engine) Resume(tags []string, s Settings) (Result, error) {
	start := time.Now()
	o := e.newTeller(opResume, tags, s)
	for {
		res, err := e.resumeOnce(tags, s, start, o)
		var short *DeviceMemoryError
		if errors.As(err, &short) {
			if e.waitForMemory(short, start.Add(s.ResumeWait)) {
				continue
			}
			err = fmt.Errorf("%w; waited %v for it (EBB_RESUME_WAIT=SECONDS waits longer)", err, s.ResumeWait)
		}
		if err != nil || res.Allocations > 0 {
			o.ended(e.recordResume(res, err))
		}
		return res, err
	}
}

// resumeOnce is Resume without waiting.
func (e *Engine) resumeOnce(tags []string, s Settings, start time.Time, o *teller) (res Result, err error) {
	e.op.Lock()
	defer e.op.Unlock()
	set, err := e.table.BeginResume(tags)
	if err != nil || len(set) == 0 {
		return res, err
	}
	defer e.backings.begin()()
	defer e.watchDisks()()
	o.begins(set)
	created, t, err := e.restore(set, &watch{last: time.Now(), teller: o})
	if err != nil {
		e.drain()
		_, errs := e.releaseAll(set)
		e.table.Settle(set, alloc.Paused)
		res = t.halfway()
		res.Duration = time.Since(start)
		return res, errors.Join(err, errs.err())
	}
	e.closeWindows(set)
	e.table.Settle(set, alloc.Active)
	e.mapResumed(set)
	e.gate.resumed()
	t.phases.done(&t.phases.Rest)
	res = t.result()
	for _, a := range set {
		res.Bytes += a.Size
		if a.Backup == alloc.BackupCPU && !s.RetainCPU && !e.config.HostArena {
			if err := e.backings.release(a); err != nil {
				e.log.Print(err) // the memory is back; only host memory is lost
			}
		}
	}
	res.Allocations, res.DeviceBytes, res.Duration = uint64(len(set)), created, time.Since(start)
	return res, nil
}

// restore gives the set its memory and its bytes. The set is in Resuming, and does not stay there after a defect of ebb.
func (e *Engine) restore(set []*alloc.Allocation, p *watch) (created uint64, t *transfer, err error) {
	defer e.caught(&err)
	if created, err = e.createOnce(set); err != nil {
		return 0, nil, err
	}
	p.done(&p.Create)
	held := make([]store.Backing, len(set))
	for i, a := range set {
		if a.Backup == alloc.BackupNone {
			continue
		}
		if held[i] = e.backings.find(a); held[i] == nil {
			return 0, nil, fmt.Errorf("%v: %w: it has no backing", a, store.ErrLost)
		}
	}
	t = e.newTransfer(set, held, p)
	t.reach = make([]reach, len(set))
	for i, a := range set {
		t.reach[i].call = func() error { return e.mapPieces(a) }
	}
	return created, t, e.load(t)
}

// load maps the memory and brings the bytes back, and compares all of them with what was saved, where
// they are now. An allocation is mapped when its first bytes have come from the disk, while further
// ones are read.
func (e *Engine) load(t *transfer) error {
	for n := range t.blocks.Len() {
		b := t.blocks.At(n)
		action, entry := plan.Move, t.entry(b)
		switch entry.State {
		case store.Zero:
			action = plan.Zero
		case store.Dead:
			action = plan.Dead
		}
		t.plan.Add(n, b, action, t.target(b), true)
	}
	e.readyToHash(t)
	if err := e.run(t, pipeline.Load); err != nil {
		return err
	}
	if err := e.inParallel(len(t.reach), func(i int) error { return t.reach[i].now() }); err != nil {
		return err
	}
	t.phases.done(&t.phases.Map)
	wrong, err := e.verify(t, func(n int) bool { return t.plan.Action(n) != plan.Dead })
	if err != nil || len(wrong) == 0 {
		return err
	}
	first := corrupt(t.move(int(wrong[0])))
	first.More = len(wrong) - 1
	return first
}

// createOnce creates what the set lacks, or nothing.
func (e *Engine) createOnce(set []*alloc.Allocation) (created uint64, err error) {
	need := map[int]uint64{} // bytes by device
	var missing []*alloc.Piece
	for _, a := range set {
		for i := range a.Pieces {
			if p := &a.Pieces[i]; p.Handle == 0 {
				need[a.Device] += p.Length
				created += p.Length
				missing = append(missing, p)
			}
		}
	}
	err = e.inParallel(len(missing), func(i int) (err error) {
		missing[i].Handle, err = e.create(missing[i])
		return err
	})
	if err == nil {
		return created, nil
	}
	var short *DeviceMemoryError
	e.calmly(func() {
		for _, p := range missing {
			if p.Handle != 0 {
				err = errors.Join(err, e.drv.MemRelease(p.Handle))
				p.Handle = 0
			}
		}
	})
	if errors.As(err, &short) {
		var e2 error
		short.Need, short.Holders = need[short.Device], e.holders(short.Device)
		short.Free, e2 = e.freeMemory(short.Device)
		err = errors.Join(err, e2)
	}
	return 0, err
}

// create makes the physical memory of a piece. What is needed and free in all is the caller's to
// find out.
func (e *Engine) create(p *alloc.Piece) (mem.Handle, error) {
	h, err := e.drv.MemCreate(p.Length, p.Props)
	dev := int(p.Props.LocationID)
	switch {
	case err == nil:
		return h, nil
	case device.IsOutOfMemory(err):
		return 0, &DeviceMemoryError{Device: dev, Err: err}
	default:
		return 0, fmt.Errorf("create %d bytes on device %d: %w", p.Length, dev, err)
	}
}

// holders lists who else holds memory of a device, as far as the system tells.
func (e *Engine) holders(dev int) []device.Holder {
	list, err := e.drv.Holders(dev)
	if err != nil {
		return nil
	}
	return slices.DeleteFunc(list, func(h device.Holder) bool { return h.PID == os.Getpid() })
}

// waitForMemory waits until the device has as many bytes free as were needed; false when the
// deadline passes first.
func (e *Engine) waitForMemory(short *DeviceMemoryError, deadline time.Time) bool {
	for time.Now().Before(deadline) {
		time.Sleep(min(pollFree, time.Until(deadline)))
		if free, err := e.freeMemory(short.Device); err != nil || free >= short.Need {
			return err == nil
		}
	}
	return false
}
