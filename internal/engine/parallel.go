package engine

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/ebb-offload/ebb/internal/alloc"
	"github.com/ebb-offload/ebb/internal/pipeline"
)

// sideBySide is how many calls about different allocations run at a time. Each waits for the
// driver or a disk, and with ten thousand allocations these waits add up.
const sideBySide = 8

// inParallel calls f for 0 … n-1, several at a time. After the first error no further call is
// begun; that error is returned.
func inParallel(n int, f func(i int) error) error {
	var next atomic.Int64
	var failed atomic.Bool
	var once sync.Once
	var first error
	var wg sync.WaitGroup
	for range min(sideBySide, n) {
		wg.Go(func() {
			for !failed.Load() {
				i := int(next.Add(1) - 1)
				if i >= n {
					return
				}
				if err := guarded(i, f); err != nil {
					failed.Store(true)
					once.Do(func() { first = err })
				}
			}
		})
	}
	wg.Wait()
	return first
}

// guarded turns a panic into an error: on this goroutine it would end the actor.
func guarded(i int, f func(i int) error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: %v", pipeline.ErrPanic, r)
		}
	}()
	return f(i)
}

// releaseAll unmaps the allocations and gives their memory back, as much of it as is possible.
func (e *Engine) releaseAll(set []*alloc.Allocation) (released uint64, errs errorList) {
	bytes := make([]uint64, len(set))
	failed := make([]error, len(set))
	_ = inParallel(len(set), func(i int) error {
		bytes[i], failed[i] = e.releasePieces(set[i])
		return nil // the others are released all the same
	})
	for i := range set {
		released += bytes[i]
		errs.add(failed[i])
	}
	return released, errs
}
