package engine

import (
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/ebb-offload/ebb/internal/alloc"
	"github.com/ebb-offload/ebb/internal/mem"
	"github.com/ebb-offload/ebb/internal/pipeline"
	"github.com/ebb-offload/ebb/internal/plan"
	"github.com/ebb-offload/ebb/internal/store"
)

// Pause takes the memory of the allocations with one of the tags (none: of all) off their
// devices. What is paused already stays so. On every error but ErrPartial nothing was unmapped.
//
// The caller must not write to the memory while Pause runs. Work submitted before through the
// devices' primary contexts and the calling thread's current one is waited for; a write that
// arrives later can be lost.
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
			return res, e.refuseUnmanaged(s.Unmanaged)
		}
		return res, nil
	}
	defer e.backings.rest()
	p, err := e.save(set, s.CaptureActive)
	if err != nil {
		e.table.Settle(set, alloc.Active)
		e.recordPause(res, err)
		return res, err
	}
	paused, released, err := e.unmapAll(set)
	res = Result{
		Allocations: uint64(len(paused)), DeviceBytes: released,
		HostBytes: p.HostBytes, DiskBytes: p.DiskBytes, Duration: time.Since(start),
	}
	for _, a := range paused {
		res.Bytes += a.Size
	}
	if err != nil {
		err = fmt.Errorf("%w: %d of %d allocations: %w", ErrPartial, len(paused), len(set), err)
	}
	e.recordPause(res, err)
	return res, err
}

// contextBytes is what a process's device memory must exceed to count as held through other
// allocators: contexts and their modules take some by themselves (0.5 GB on an H200).
const contextBytes = 1 << 30

// refuseUnmanaged is the answer to a pause of everything where nothing is managed: an error if
// the process holds device memory all the same, since the caller counts on it to be freed.
// unmanaged is what the hooks saw; NVML tells of the rest, where it tells.
func (e *Engine) refuseUnmanaged(unmanaged int64) error {
	const remedy = "make it inside a region, or set TMS_INIT_ENABLE=1 to manage all that cudaMalloc makes"
	if unmanaged > 0 {
		return fmt.Errorf("%w: %d allocations were made outside of a region: %s", ErrUnmanaged, unmanaged, remedy)
	}
	if held, _ := e.ownBytes(); held > contextBytes {
		return fmt.Errorf("%w: %s, none of which came through cudaMalloc in a region: %s", ErrUnmanaged, store.Size(held), remedy)
	}
	return nil
}

// save brings all bytes of the set into its backings, or gives back what it took of host memory
// and disk. The set is in Pausing.
func (e *Engine) save(set []*alloc.Allocation, captureActive bool) (p plan.Plan, err error) {
	if captureActive { // waiting for the device would invalidate it
		return p, ErrCapture
	}
	if err := e.synchronizeAll(); err != nil {
		return p, err
	}
	held, fresh, err := e.openBackings(set)
	if err != nil {
		return p, err
	}
	defer func() {
		if err != nil {
			err = e.giveUp(err, fresh, set)
		}
	}()
	p = plan.Blocks(items(set), e.block)
	if err := e.carry(p, set, held, (*pipeline.Pool).Store); err != nil {
		return p, err
	}
	for i, b := range held {
		if b == nil {
			continue
		}
		if err := b.Commit(); err != nil {
			return p, fmt.Errorf("save %v: %w", set[i], err)
		}
	}
	// A fault that happened meanwhile would have made the copies worthless.
	return p, e.synchronizeAll()
}

// openBackings returns the backings of the set, each with its room taken; nil for allocations
// without backup. fresh are the allocations that had none before. On an error those are
// released again, and an error about a lack of room tells of all the room that was needed.
func (e *Engine) openBackings(set []*alloc.Allocation) (held []store.Backing, fresh []*alloc.Allocation, err error) {
	need := map[alloc.Backup]uint64{} // bytes of the allocations without a backing
	for _, a := range set {
		if e.backings.find(a) == nil {
			need[a.Backup] += a.Size
		}
	}
	held = make([]store.Backing, len(set))
	for i, a := range set {
		if a.Backup == alloc.BackupNone {
			continue
		}
		b, isNew, err := e.backings.open(a)
		if err != nil {
			if more := need[a.Backup]; more > a.Size {
				err = fmt.Errorf("this pause takes %s more in all: %w", store.Size(more), err)
			}
			return nil, nil, e.giveUp(err, fresh, set)
		}
		held[i] = b
		if isNew {
			fresh = append(fresh, a)
		}
	}
	return held, fresh, nil
}

// giveUp releases backings after a pause failed: those made for it, and after an I/O error all
// of the set, so that the next pause makes them anew, perhaps on another disk. The memory is
// active and loses nothing.
func (e *Engine) giveUp(err error, fresh, set []*alloc.Allocation) error {
	if errors.Is(err, store.ErrIO) || errors.Is(err, store.ErrLost) {
		fresh = set
	}
	return errors.Join(err, e.releaseBackings(fresh))
}

func (e *Engine) releaseBackings(list []*alloc.Allocation) error {
	var errs errorList
	for _, a := range list {
		errs.add(e.backings.release(a))
	}
	return errs.err()
}

// carry runs a plan over the set with the pool, making the pool and its staging buffer first
// if they are needed and not there.
func (e *Engine) carry(p plan.Plan, set []*alloc.Allocation, held []store.Backing, run func(*pipeline.Pool, pipeline.Moves) error) error {
	if p.Moves() == 0 {
		return nil
	}
	if err := e.ensurePool(); err != nil {
		return err
	}
	for i, b := range held {
		if b != nil && b.Memory(0) == nil {
			if err := e.ensureStaging(set[i].Device); err != nil {
				return err
			}
			break
		}
	}
	return run(e.pool, pipeline.Moves{Len: p.Moves(), At: func(n int) pipeline.Move {
		m := p.Move(n)
		a := set[m.Item]
		return pipeline.Move{
			Of: a, Device: a.Device, Addr: a.Base + mem.Addr(m.Offset),
			Offset: m.Offset, Length: m.Length, Backing: held[m.Item],
		}
	}})
}

// unmapAll releases the memory of the set and settles it: paused, or active where nothing of an
// allocation could be unmapped. From here on the backings are the only copy.
func (e *Engine) unmapAll(set []*alloc.Allocation) (paused []*alloc.Allocation, released uint64, err error) {
	var active []*alloc.Allocation
	var errs errorList
	for _, a := range set {
		n, e2 := e.releasePieces(a)
		released += n
		errs.add(e2)
		if allMapped(a) {
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

func allMapped(a *alloc.Allocation) bool {
	for _, p := range a.Pieces {
		if !p.Mapped {
			return false
		}
	}
	return true
}

func items(set []*alloc.Allocation) []plan.Item {
	list := make([]plan.Item, len(set))
	for i, a := range set {
		list[i] = plan.Item{Size: a.Size, Target: targets[a.Backup]}
	}
	return list
}

var targets = map[alloc.Backup]plan.Target{
	alloc.BackupNone: plan.Discard,
	alloc.BackupCPU:  plan.Host,
	alloc.BackupDisk: plan.Disk,
}
