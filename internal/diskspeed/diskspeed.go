// Package diskspeed measures how fast a directory's disk takes and gives back bytes that are moved
// the way ebb moves them: blocks of megabytes, several threads, O_DIRECT. It also finds out how direct
// transfers must be aligned there (Look).
//
// A measurement is short. It says what the disk does now, beside whatever else uses it, and a drive
// that answers from a cache of its own looks faster than it is for hours. Figures to decide by over the
// long run come from ebb bench.
//
// Nothing is left behind: the file has no name (O_TMPFILE), or loses it before the first byte is
// written, so that even a kill leaves nothing.
package diskspeed

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ebb-offload/ebb/internal/filesys"
)

// What is measured where Options leave it open.
const (
	DefaultBytes      = 512 << 20
	DefaultWorkers    = 4
	DefaultBlockBytes = 4 << 20
	DefaultTime       = 3 * time.Second
	DefaultAnswer     = 10 * time.Second
)

// align is that of blocks, their memory and the offsets; ebb uses no other one.
const align = 4096

// ErrRoom is that the directory has too little room to measure.
var ErrRoom = errors.New("too little room to measure")

// Options say how to measure. A zero field takes its default.
type Options struct {
	Bytes      int64         // size of the file; less where the room is small: a quarter of what is free
	Workers    int           // threads
	BlockBytes int           // of one transfer, a multiple of 4096
	Time       time.Duration // after which each of the three parts ends, wherever it is
	Answer     time.Duration // after which a call that had no answer is given up (filesys.ErrHang)
}

func (o Options) withDefaults() (Options, error) {
	if o.Bytes == 0 {
		o.Bytes = DefaultBytes
	}
	if o.Workers == 0 {
		o.Workers = DefaultWorkers
	}
	if o.BlockBytes == 0 {
		o.BlockBytes = DefaultBlockBytes
	}
	if o.Time == 0 {
		o.Time = DefaultTime
	}
	if o.Answer == 0 {
		o.Answer = DefaultAnswer
	}
	switch {
	case o.Workers < 1 || o.Time < 0 || o.Answer < 0:
		return o, fmt.Errorf("measure with %d workers for %v: both must be above 0", o.Workers, o.Time)
	case o.BlockBytes < align || o.BlockBytes%align != 0:
		return o, fmt.Errorf("measure with blocks of %d bytes: they must be a multiple of %d", o.BlockBytes, align)
	case o.Bytes < int64(o.BlockBytes):
		return o, fmt.Errorf("measure with %d bytes: at least one block of %d", o.Bytes, o.BlockBytes)
	}
	return o, nil
}

// Rates are what was measured, over all threads together.
type Rates struct {
	WriteBytesPerS float64 `json:"write_bytes_per_s"` // over blocks that were written before, as every pause but the first
	ReadBytesPerS  float64 `json:"read_bytes_per_s"`
	FreshBytesPerS float64 `json:"fresh_bytes_per_s"` // first write of preallocated blocks, as a first pause

	Bytes      int64 `json:"bytes"`       // of the file, as far as it was written
	Workers    int   `json:"workers"`     // threads
	BlockBytes int   `json:"block_bytes"` // of one transfer

	Access
}

// Measure writes a file in a directory, writes it again and reads it. dir is an existing directory and
// no symbolic link. When ctx ends it stops after the transfers under way.
func Measure(ctx context.Context, dir string, o Options) (Rates, error) {
	return measure(ctx, filesys.Kernel{}, dir, o)
}

func measure(ctx context.Context, under filesys.System, dir string, o Options) (Rates, error) {
	o, err := o.withDefaults()
	if err != nil {
		return Rates{}, err
	}
	f, err := open(under, dir, o.Answer)
	if err != nil {
		return Rates{}, err
	}
	defer f.close()
	m := measurement{file: f, o: o}
	if m.access, err = f.look(); err != nil {
		return Rates{}, err
	}
	if m.blocks, err = m.room(); err != nil {
		return Rates{}, err
	}
	return m.run(ctx)
}

// room is how many blocks the file gets.
func (m *measurement) room() (blocks int64, err error) {
	var st unix.Statfs_t
	if err := m.file.retry(func() error { return m.file.sys.Fstatfs(m.file.fd, &st) }); err != nil {
		return 0, fmt.Errorf("look for room in %s: %w", m.file.dir, err)
	}
	room := st.Bavail * uint64(st.Bsize) / 4
	var limit unix.Rlimit
	// The kernel ends a process that goes beyond it.
	if unix.Getrlimit(unix.RLIMIT_FSIZE, &limit) == nil {
		room = min(room, limit.Cur)
	}
	block := uint64(m.o.BlockBytes)
	blocks = int64(min(room, uint64(m.o.Bytes), math.MaxInt64) / block)
	if blocks == 0 {
		return 0, fmt.Errorf("%s: %w: a block of %d bytes is more than a quarter of the %d bytes free there, or than RLIMIT_FSIZE; free some room",
			m.file.dir, ErrRoom, block, st.Bavail*uint64(st.Bsize))
	}
	if err := m.file.retry(func() error { return m.file.sys.Fallocate(m.file.fd, blocks*int64(block)) }); err != nil && !unsupported(err) {
		if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) || errors.Is(err, unix.EFBIG) {
			err = fmt.Errorf("%w: %w; free some room", ErrRoom, err)
		}
		return 0, fmt.Errorf("preallocate %d bytes in %s: %w", blocks*int64(block), m.file.dir, err)
	}
	return blocks, nil
}

func unsupported(err error) bool {
	return errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENODEV)
}

// run measures the three parts.
func (m *measurement) run(ctx context.Context) (r Rates, err error) {
	if m.buffers, err = newBuffers(m.o.Workers, m.o.BlockBytes); err != nil {
		return r, err
	}
	defer func() {
		if !errors.Is(err, filesys.ErrHang) { // else several calls may use them, for as long as they hang
			m.buffers.free()
		}
	}()
	r = Rates{Workers: m.o.Workers, BlockBytes: m.o.BlockBytes, Access: m.access}

	var written int64
	if written, r.FreshBytesPerS, err = m.pass(ctx, m.blocks, m.write); err != nil {
		return r, err
	}
	r.Bytes = written * int64(m.o.BlockBytes)
	if _, r.WriteBytesPerS, err = m.pass(ctx, written, m.write); err != nil {
		return r, err
	}
	if !m.access.Direct {
		if err = m.file.retry(func() error { return m.file.sys.DropCache(m.file.fd, 0, 0) }); err != nil {
			return r, fmt.Errorf("drop the page cache of a file in %s: %w", m.file.dir, err)
		}
	}
	_, r.ReadBytesPerS, err = m.pass(ctx, written, m.read)
	return r, err
}
