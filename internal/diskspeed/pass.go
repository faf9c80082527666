package diskspeed

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

// measurement is one file and what is done with it.
type measurement struct {
	file    *file
	o       Options
	access  Access
	blocks  int64
	buffers *buffers
}

// pass carries blocks from the first on, with all workers, until they are done or the time is over. It
// returns how many were carried without a gap, and the rate.
func (m *measurement) pass(ctx context.Context, blocks int64, carry func(p []byte, off int64) error) (done int64, rate float64, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	begun := time.Now()
	var next atomic.Int64
	var work sync.WaitGroup
	for w := range m.o.Workers {
		work.Go(func() {
			p := m.buffers.of(w)
			// The first block of each is carried however late it is, so that there is always a figure.
			for first := true; first || time.Since(begun) < m.o.Time; first = false {
				if ctx.Err() != nil {
					return
				}
				i := next.Add(1) - 1
				if i >= blocks {
					return
				}
				if err := carry(p, i*int64(m.o.BlockBytes)); err != nil {
					cancel(err)
					return
				}
			}
		})
	}
	work.Wait()
	if err := context.Cause(ctx); err != nil {
		return 0, 0, err
	}
	done = min(next.Load(), blocks)
	return done, float64(done*int64(m.o.BlockBytes)) / time.Since(begun).Seconds(), nil
}

// write writes a block that is like no other one.
func (m *measurement) write(p []byte, off int64) error {
	for page := 0; page < len(p); page += align {
		binary.LittleEndian.PutUint64(p[page:], rand.Uint64())
	}
	err := m.file.all(p, off, m.file.sys.Pwrite)
	if err == nil && !m.access.Direct {
		err = m.file.sys.SyncRange(m.file.fd, off, int64(len(p)))
	}
	if err != nil {
		return fmt.Errorf("write %d bytes in %s: %w", len(p), m.file.dir, err)
	}
	return nil
}

func (m *measurement) read(p []byte, off int64) error {
	if err := m.file.all(p, off, m.file.sys.Pread); err != nil {
		return fmt.Errorf("read %d bytes in %s: %w", len(p), m.file.dir, err)
	}
	return nil
}
