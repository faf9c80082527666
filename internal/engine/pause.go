package engine

import (
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/ebb-offload/ebb/internal/alloc"
	"github.com/ebb-offload/ebb/internal/filesys"
	"github.com/ebb-offload/ebb/internal/hostmem"
	"github.com/ebb-offload/ebb/internal/pipeline"
	"github.com/ebb-offload/ebb/internal/plan"
	"github.com/ebb-offload/ebb/internal/sizes"
	"github.com/ebb-offload/ebb/internal/store"
)

// Pause takes the memory of the allocations with one of the tags (none: of all) off their
// devices. What is paused already stays so. On every error but ErrPartial nothing was unmapped.
//
// The caller must not write to the memory while Pause runs. Work submitted before through the
// devices' primary contexts and the calling thread's current one is waited for. A write that
// arrives later is saved too or makes the pause fail, where devices can hash (see saveChecked), unless it
// comes after the last look at its block and before the memory is unmapped: then it is lost.
func (e *Engine) Pause(tags []string, s Settings) (res Result, err error) {
	start := time.Now()
	runtime.LockOSThread() // the calling thread's context is waited for too
	defer runtime.UnlockOSThread()
	e.op.Lock()
	defer e.op.Unlock()
	e.mu.Lock()
	e.diskDir = s.DiskDir
	e.mu.Unlock()

	set, err := e.table.BeginPause(tags)
	if err != nil {
		return res, err
	}
	if len(set) == 0 {
		if len(tags) == 0 && e.table.Len() == 0 {
			return res, e.refuseUnmanaged(s)
		}
		e.leave(&res, tags, s)
		return res, nil
	}
	defer e.backings.begin()()
	defer e.countWritten()
	defer e.watchDisks()()
	o := e.newTeller(opPause, tags, s)
	o.begins(set)
	p := &watch{last: start, teller: o}
	set, t, err := e.save(set, s, p)
	if errors.Is(err, store.ErrPromised) {
		e.goWithoutHost(set, err)
		set, t, err = e.save(set, s, p)
		e.goWithHost()
	}
	if err != nil {
		e.closeWindows(set)
		e.table.Settle(set, alloc.Active)
		res = t.halfway()
		e.tellWritten(res)
		res.Duration = time.Since(start)
		o.ended(e.recordPause(res, err))
		return res, err
	}
	before, seen := e.look(set)
	p.done(&p.Rest)
	paused, released, err := e.unmapAll(set)
	if s.requested {
		e.table.Asked(paused)
	}
	p.done(&p.Unmap)
	res = t.result()
	res.Allocations, res.DeviceBytes = uint64(len(paused)), released
	for _, a := range paused {
		res.Bytes += a.Size
	}
	if seen {
		e.freed(&res, set, before)
	}
	e.leave(&res, tags, s)
	e.mapPaused(paused)
	p.done(&p.Rest)
	res.Phases, res.Duration = p.Phases, time.Since(start)
	if err != nil {
		err = fmt.Errorf("%w: %d of %d allocations: %w", ErrPartial, len(paused), len(set), err)
	}
	o.ended(e.recordPause(res, err))
	return res, err
}

// refuseUnmanaged is the answer to a pause of everything where nothing is managed: an error if
// the process holds device memory all the same, since the caller counts on it to be freed.
// What the hooks saw is in s; NVML tells of the rest, where it tells.
func (e *Engine) refuseUnmanaged(s Settings) error {
	const remedy = "make it inside a region, or set TMS_INIT_ENABLE=1 to manage all that the process makes, " +
		"with TMS_INIT_ENABLE_CPU_BACKUP=1 or TMS_INIT_ENABLE_DISK_BACKUP=1 (without one a pause keeps no content)"
	if s.Unmanaged > 0 {
		of := e.leftBehind(nil, s.Classes)
		if of != "" {
			of = " (" + of + ")"
		}
		if len(s.Classes) == 1 && s.Classes[0].Name == classPool { // a region makes no difference to it
			return fmt.Errorf("%w: all of it from cudaMallocAsync%s, which ebb does not manage: use cudaMalloc "+
				"(in PyTorch: no backend:cudaMallocAsync in PYTORCH_CUDA_ALLOC_CONF)", ErrUnmanaged, of)
		}
		return fmt.Errorf("%w: %d allocations were made outside of a region%s: %s", ErrUnmanaged, s.Unmanaged, of, remedy)
	}
	if held, _ := e.ownBytes(); held > contextBytes {
		return fmt.Errorf("%w: %s, none of which was made in a region: %s", ErrUnmanaged, sizes.Binary(held), remedy)
	}
	return nil
}

// save brings all bytes of the set into its backings, or gives back what it took of host memory
// and disk. The set is in Pausing. rest is what of it is still the pause's: memory from which a write of streamed state
// failed meanwhile is its owner's again. A defect of ebb is an error, too: whoever frees memory waits until it has left
// Pausing.
func (e *Engine) save(set []*alloc.Allocation, s Settings, p *watch) (rest []*alloc.Allocation, t *transfer, err error) {
	rest = set
	defer e.caught(&err)
	if s.CaptureActive { // waiting for the device would invalidate it
		return set, nil, ErrCapture
	}
	if set, err = e.awaitRequests(set); err != nil {
		return set, nil, err
	}
	rest = set
	if err := e.synchronizeAll(); err != nil {
		return set, nil, err
	}
	p.done(&p.Wait)
	if err := e.openWindows(set); err != nil {
		return set, nil, err
	}
	held, fresh, err := e.openBackings(set)
	if err != nil {
		return set, nil, err
	}
	defer func() {
		if err != nil {
			err = e.giveUp(err, fresh, set)
		}
	}()
	defer e.caught(&err)
	for i, a := range set {
		e.backings.distrust(a, held[i], e.block)
	}
	p.done(&p.Room)
	t = e.newTransfer(set, held, p)
	t.fresh = len(fresh) > 0
	e.readyToHash(t)
	if err := e.saveChecked(t, plan.Union(s.Unused)); err != nil {
		return set, t, err
	}
	defer p.done(&p.Commit)
	err = e.onFiles(len(held), func(i int) error {
		if held[i] == nil {
			return nil
		}
		if err := held[i].Commit(); err != nil {
			return fmt.Errorf("save %v: %w", set[i], err)
		}
		return nil
	})
	return set, t, err
}

// rewrites is how often blocks that were written to during a pause are saved again.
const rewrites = 2

// saveChecked saves the blocks whose bytes are not known to be in their backing already, until all
// device memory is what the backings hold. All of it is hashed before, to find what need not move,
// and after: since the fingerprint that a backing keeps is that of the copy it was given, a write
// that came at any moment in between shows, even one that was undone. What is written after the last hash
// is lost: nothing looks between it and the unmapping. On a device without the kernel all
// blocks are saved, and what is written to the memory meanwhile is not found.
func (e *Engine) saveChecked(t *transfer, unused plan.Ranges) (err error) {
	defer func() {
		if e2 := e.restPool()(); err == nil {
			err = e2
		}
	}()
	if err := e.saveOnce(t, unused); err != nil {
		return err
	}
	for round := 0; ; round++ {
		rested := e.restPool()
		// A fault that happened meanwhile would have made the copies worthless.
		if err := e.synchronizeAll(); err != nil {
			return err
		}
		changed, err := e.verify(t, everyBlock)
		if e2 := rested(); err == nil {
			err = e2
		}
		if err != nil || len(changed) == 0 {
			return err
		}
		if round == rewrites {
			b := t.blocks.At(int(changed[0]))
			return &WrittenError{Allocation: t.set[b.Item], Offset: b.Offset, Bytes: b.Length, Blocks: len(changed)}
		}
		t.plan.Again()
		for _, n := range changed {
			b := t.blocks.At(int(n))
			t.plan.Move(int(n), b, t.target(b))
		}
		if err := e.run(t, pipeline.Store); err != nil {
			return err
		}
	}
}

func everyBlock(int) bool { return true }

// openBackings returns the backings of the set, each with its room taken; nil for allocations
// without backup. fresh are the allocations that had none before. On an error those are
// released again, and an error about a lack of room tells of all the room that was needed.
func (e *Engine) openBackings(set []*alloc.Allocation) (held []store.Backing, fresh []*alloc.Allocation, err error) {
	if err := e.checkHost(set); err != nil {
		return nil, nil, err
	}
	need := map[alloc.Backup]uint64{} // bytes of the allocations without a backing
	for _, a := range set {
		if e.backings.find(a) == nil {
			need[a.Backup] += a.Size
		}
	}
	held = make([]store.Backing, len(set))
	made := make([]bool, len(set))
	err = e.onFiles(len(set), func(i int) (err error) {
		a := set[i]
		if a.Backup == alloc.BackupNone {
			return nil
		}
		if held[i], made[i], err = e.backings.open(a); err != nil {
			lacking := errors.Is(err, store.ErrNoSpace) || errors.Is(err, hostmem.ErrMemory)
			if more := need[a.Backup]; lacking && more > a.Size {
				err = fmt.Errorf("this pause takes %s more in all: %w", sizes.Binary(more), err)
			}
		}
		return err
	})
	for i, a := range set {
		if made[i] {
			fresh = append(fresh, a)
		}
	}
	if err != nil {
		return nil, nil, e.giveUp(err, fresh, set)
	}
	return held, fresh, nil
}

// giveUp releases backings after a pause failed: those made for it, and after an I/O error, a defect of ebb, or for want
// of host memory that one of them was promised, all of the set, so that the next pause makes them anew, perhaps on another
// disk. The memory is active and loses nothing.
func (e *Engine) giveUp(err error, fresh, set []*alloc.Allocation) error {
	e.drain()
	for _, all := range []error{store.ErrIO, store.ErrLost, store.ErrPromised, filesys.ErrHang, pipeline.ErrPanic} {
		if errors.Is(err, all) {
			fresh = set
		}
	}
	return filesys.Also(err, e.releaseBackings(fresh))
}

func (e *Engine) releaseBackings(list []*alloc.Allocation) error {
	var errs errorList
	for _, a := range list {
		errs.add(e.backings.release(a))
	}
	return errs.err()
}

// unmapAll releases the memory of the set and settles it: paused, or active where nothing of an
// allocation could be unmapped. From here on the backings are the only copy.
func (e *Engine) unmapAll(set []*alloc.Allocation) (paused []*alloc.Allocation, released uint64, err error) {
	released, errs := e.releaseAll(set)
	var active []*alloc.Allocation
	for _, a := range set {
		if whole(a) {
			active = append(active, a)
		} else {
			paused = append(paused, a)
		}
	}
	for _, a := range active { // no host memory is kept for what was not paused
		if a.Backup == alloc.BackupCPU {
			errs.add(e.backings.release(a))
		}
	}
	e.table.Settle(active, alloc.Active)
	e.table.Settle(paused, alloc.Paused)
	return paused, released, errs.err()
}
