package engine

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"

	"github.com/ebb-offload/ebb/internal/alloc"
	"github.com/ebb-offload/ebb/internal/device"
	"github.com/ebb-offload/ebb/internal/pipeline"
)

// sideBySide is how many calls about different allocations run at a time. Each waits for the
// driver or a disk, and with ten thousand allocations these waits add up.
const sideBySide = 8

// inParallel calls f for 0 … n-1, several at a time. After the first error no further call is
// begun; that error is returned. The calls are made on threads with capture mode relaxed.
func (e *Engine) inParallel(n int, f func(i int) error) error {
	return sideBySideIn(e.relaxed, n, f)
}

// onFiles is inParallel for calls that ask disks. Each file call is made on another thread (filesys.Deadline), and to
// wait for one on a thread of one's own takes ten times as long. Where f asks the driver, for host memory, it does so by
// way of take or giveBack, which see to the thread.
func (e *Engine) onFiles(n int, f func(i int) error) error {
	return sideBySideIn(func(f func() error) error { return f() }, n, f)
}

// sideBySideIn calls f for 0 … n-1 on several goroutines, each of which runs in around.
func sideBySideIn(around func(func() error) error, n int, f func(i int) error) error {
	var next atomic.Int64
	var failed atomic.Bool
	var once sync.Once
	var first error
	var wg sync.WaitGroup
	for range min(sideBySide, n) {
		wg.Go(func() {
			err := around(func() error {
				for !failed.Load() {
					i := int(next.Add(1) - 1)
					if i >= n {
						break
					}
					if err := guarded(i, f); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				failed.Store(true)
				once.Do(func() { first = err })
			}
		})
	}
	wg.Wait()
	return first
}

// relaxed runs f on an OS thread with capture mode relaxed, so that no driver call of f's disturbs a stream
// capture of the actor, and puts back the mode that the thread had.
func (e *Engine) relaxed(f func() error) (err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	mode, err := e.drv.ExchangeCaptureMode(device.CaptureRelaxed)
	if err != nil {
		return err
	}
	defer func() {
		if _, e2 := e.drv.ExchangeCaptureMode(mode); err == nil && e2 != nil {
			err = restoreError(e2)
		}
	}()
	return f()
}

// calmly is relaxed for what is done in any case, and is done whether or not the mode can be set: memory that a pause
// has saved is released all the same.
func (e *Engine) calmly(f func()) {
	begun := false
	err := e.relaxed(func() error {
		begun = true
		f()
		return nil
	})
	if err != nil {
		e.log.Printf("the stream capture mode of the calling thread: %v", err)
	}
	if !begun {
		f()
	}
}

// guarded turns a panic into an error: on this goroutine it would end the actor.
func guarded(i int, f func(i int) error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = panicError(r)
		}
	}()
	return f(i)
}

func panicError(r any) error { return fmt.Errorf("%w: %v", pipeline.ErrPanic, r) }

// caught makes an error of a panic, whose stack goes to the log: where it is caught it would be lost. It is deferred.
func (e *Engine) caught(err *error) {
	if r := recover(); r != nil {
		e.log.Printf("a defect in ebb: %v\n%s", r, debug.Stack())
		*err = panicError(r)
	}
}

// releaseAll unmaps the allocations and gives their memory back, as much of it as is possible: one after
// the other, since the driver does no two at a time and more threads only get in each other's way (H200: 58 to 71 ms
// for 1,536 allocations by one thread, 78 to 90 ms by 2 to 8).
func (e *Engine) releaseAll(set []*alloc.Allocation) (released uint64, errs errorList) {
	e.calmly(func() {
		for i := range set {
			errs.add(guarded(i, func(i int) error {
				bytes, err := e.releasePieces(set[i])
				released += bytes
				return err
			}))
		}
	})
	return released, errs
}
