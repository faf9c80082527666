package hostmem

import (
	"errors"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"
)

const (
	// touchSlice is what a thread brings in at a time: enough to be worth a hand-over, and a
	// multiple of hugePage.
	touchSlice = 8 << 20
	// maxTouchThreads is how many threads bring in memory at the same time: on a large machine
	// 16 of them reach 52 GB/s, and each of the node's ranks has its own.
	maxTouchThreads = 16
)

// touchers are threads on the CPUs of a NUMA node that bring in memory, since the kernel takes a
// page from the node of the thread that first uses it.
type touchers struct {
	work    chan touchJob
	threads sync.WaitGroup
}

type touchJob struct {
	memory []byte
	done   func(error)
}

// newTouchers starts as many threads as are worth it for n bytes.
func newTouchers(node int, n uint64) *touchers {
	cpus := nodeCPUs("/sys", node)
	usable := cpus.Count()
	if usable == 0 {
		usable = runtime.NumCPU()
	}
	count := min(uint64(min(usable, maxTouchThreads)), (n+touchSlice-1)/touchSlice)
	t := &touchers{work: make(chan touchJob)}
	for range count {
		t.threads.Add(1)
		onCPUs(cpus, func() error {
			defer t.threads.Done()
			for job := range t.work {
				job.done(safely(func() error { return populate(job.memory) }))
			}
			return nil
		})
	}
	return t
}

// touch brings in memory and calls done for each slice, on a thread of its own. It returns when the
// last slice was handed over.
func (t *touchers) touch(memory []byte, done func(error)) {
	for len(memory) > 0 {
		slice := memory[:min(touchSlice, len(memory))]
		memory = memory[len(slice):]
		t.work <- touchJob{slice, done}
	}
}

// sliceCount is how often touch calls done for n bytes.
func sliceCount(n uint64) int { return int((n + touchSlice - 1) / touchSlice) }

// close ends the threads when they have done what was handed over.
func (t *touchers) close() {
	close(t.work)
	t.threads.Wait()
}

// Pages takes n bytes of memory in huge pages where possible, from the given NUMA node (negative:
// any), all of them present, neither inherited by forked children nor part of core dumps. A lack of
// memory is an error that matches ErrMemory, found before it becomes the kernel's business: the
// guard is asked for all of it, and again before each part.
func Pages(n uint64, node int) (memory []byte, free func() error, err error) {
	if err := Check(n); err != nil {
		return nil, nil, err
	}
	if memory, err = mapMemory(n, unix.PROT_READ|unix.PROT_WRITE); err != nil {
		return nil, nil, err
	}
	if err := bringIn(memory, node); err != nil {
		unmap(memory)
		return nil, nil, err
	}
	return memory, func() error { unmap(memory); return nil }, nil
}

func bringIn(memory []byte, node int) error {
	const part = 256 << 20
	t := newTouchers(node, uint64(len(memory)))
	defer t.close()
	for rest := memory; len(rest) > 0; {
		now := rest[:min(part, len(rest))]
		if len(rest) < len(memory) {
			if err := check(uint64(len(now)), uint64(len(memory))); err != nil {
				return err
			}
		}
		rest = rest[len(now):]
		results := make(chan error, sliceCount(uint64(len(now))))
		t.touch(now, func(err error) { results <- err })
		var failed error
		for range cap(results) {
			failed = errors.Join(failed, <-results)
		}
		if failed != nil {
			return &PageError{Doing: "touching", Bytes: uint64(len(memory)), Err: failed}
		}
	}
	return nil
}
