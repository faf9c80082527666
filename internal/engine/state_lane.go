package engine

import (
	"errors"
	"fmt"
	"sync"

	"github.com/ebb-offload/ebb/internal/pipeline"
	"github.com/ebb-offload/ebb/internal/staging"
)

// lane is the workers and the staging memory of one direction. They are made when a request first needs them
// and given back with the last state.
type lane struct {
	engine    *Engine
	direction pipeline.Direction
	chunk     uint64
	workers   int

	mu      sync.Mutex // held by the request that has the lane, over its transfers
	pool    *pipeline.Pool
	staging *staging.Staging
	device  int // whose NUMA node the staging memory is on
	// Of the lane that loads: whole checkpoints that saves left beside their places, which go when there is another one
	// at the place, and unfinished ones.
	left, unfinished []string

	bytes uint64 // of staging memory; guarded by states.mu
}

// ready makes what is not there. Called with mu held. dev is the device of the first request.
func (l *lane) ready(dev int) error {
	e := l.engine
	if err := e.withDevice(dev, e.drv.Repin); err != nil {
		return err
	}
	if l.staging != nil {
		return nil
	}
	var st *staging.Staging
	err := e.take(dev, func() (err error) {
		st, err = staging.New(staging.Options{
			ChunkBytes: l.chunk, Workers: l.workers, NUMANode: e.drv.NUMANode(dev), Register: e.drv.HostRegister, Unregister: e.drv.HostUnregister,
		})
		return err
	}, func() error { return st.Close() })
	if err != nil {
		return fmt.Errorf("make the staging buffer of streamed state (EBB_STATE_CHUNK_MB): %w", err)
	}
	l.staging, l.device = st, dev
	l.pool = pipeline.New(e.drv, pipeline.Options{
		Workers: l.workers, BlockBytes: e.states.block, Key: e.hash.key, Mismatch: stateCorrupt,
		Spare: func() ([]byte, func() error, error) { return e.pinBlock(l.device, e.states.block) },
	})
	l.pool.UseStaging(st)
	e.states.mu.Lock()
	l.bytes = st.Bytes()
	e.states.mu.Unlock()
	return nil
}

// stateCorrupt is the error of a block whose bytes are not those that were written.
func stateCorrupt(m pipeline.Move) error {
	s := m.Of.(*segment)
	return &StateCorruptError{State: s.of.name, Segment: s.number, Offset: m.Offset, Bytes: m.Length, Where: m.Backing.Where(m.Offset)}
}

// close gives back what ready made, unless a call that hangs still uses some of it.
func (l *lane) close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.engine
	e.states.mu.Lock()
	used := len(e.states.open) > 0
	e.states.mu.Unlock()
	if l.staging == nil || used || len(e.states.store.Deadline().Hung()) > 0 {
		return nil
	}
	l.pool.Close()
	err := e.giveBack(l.device, l.staging.Close)
	l.pool, l.staging = nil, nil
	e.states.mu.Lock()
	l.bytes = 0
	e.states.mu.Unlock()
	return err
}

func (e *Engine) closeLanes() error {
	e.background.RLock() // no device is being reset
	defer e.background.RUnlock()
	return errors.Join(e.states.lanes[0].close(), e.states.lanes[1].close())
}
