package engine

import (
	"errors"
	"fmt"
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
// The caller must not write to the memory while Pause runs: work submitted before is waited
// for, a write that arrives later can be lost.
func (e *Engine) Pause(tags []string, s Settings) (res Result, err error) {
	start := time.Now()
	if s.CaptureActive {
		return res, ErrCapture
	}
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
		if len(tags) == 0 && s.Unmanaged > 0 && e.table.Len() == 0 {
			return res, fmt.Errorf("%w: %d allocations were made outside of a region (TMS_INIT_ENABLE=1 manages all)", ErrUnmanaged, s.Unmanaged)
		}
		return res, nil
	}
	p, err := e.save(set)
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

// save brings all bytes of the set into its backings. The set is in Pausing.
func (e *Engine) save(set []*alloc.Allocation) (plan.Plan, error) {
	if err := e.synchronizeAll(set); err != nil {
		return plan.Plan{}, err
	}
	held, err := e.openBackings(set)
	if err != nil {
		return plan.Plan{}, err
	}
	p := plan.Blocks(items(set), e.block)
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
	return p, e.synchronizeAll(set)
}

// openBackings returns the backings of the set, each with its room taken; nil for allocations
// without backup. Those opened before an error keep their room for the next try.
func (e *Engine) openBackings(set []*alloc.Allocation) ([]store.Backing, error) {
	held := make([]store.Backing, len(set))
	for i, a := range set {
		if a.Backup == alloc.BackupNone {
			continue
		}
		b, err := e.backings.open(a)
		if err != nil {
			return nil, fmt.Errorf("make room for %v: %w", a, err)
		}
		held[i] = b
	}
	return held, nil
}

// carry runs a plan over the set with the pool, making the pool and its staging buffer first
// if they are needed and not there.
func (e *Engine) carry(p plan.Plan, set []*alloc.Allocation, held []store.Backing, run func(*pipeline.Pool, []pipeline.Move) error) error {
	if len(p.Moves) == 0 {
		return nil
	}
	if err := e.ensurePool(); err != nil {
		return err
	}
	moves := make([]pipeline.Move, len(p.Moves))
	staged := false
	for i, m := range p.Moves {
		a := set[m.Item]
		moves[i] = pipeline.Move{
			Device: a.Device, Addr: a.Base + mem.Addr(m.Offset),
			Offset: m.Offset, Length: m.Length, Backing: held[m.Item],
		}
		staged = staged || held[m.Item].Memory() == nil
	}
	if staged {
		if err := e.ensureStaging(set[p.Moves[0].Item].Device); err != nil {
			return err
		}
	}
	return run(e.pool, moves)
}

// unmapAll releases the memory of the set and settles it: paused, or active where nothing of an
// allocation could be unmapped. From here on the backings are the only copy.
func (e *Engine) unmapAll(set []*alloc.Allocation) (paused []*alloc.Allocation, released uint64, err error) {
	var active []*alloc.Allocation
	for _, a := range set {
		n, e2 := e.releasePieces(a)
		released += n
		err = errors.Join(err, e2)
		if allMapped(a) {
			active = append(active, a)
		} else {
			paused = append(paused, a)
		}
	}
	e.table.Settle(active, alloc.Active)
	e.table.Settle(paused, alloc.Paused)
	return paused, released, err
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
