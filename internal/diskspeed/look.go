package diskspeed

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ebb-offload/ebb/internal/filesys"
)

// Access is how a directory's files can be read and written.
type Access struct {
	// Direct: O_DIRECT works. Otherwise transfers go through the page cache, and Refused says why.
	Direct  bool   `json:"direct"`
	Refused string `json:"refused,omitempty"`

	// What the file system asks of direct transfers (STATX_DIOALIGN), in bytes; 0: it does not tell.
	MemoryAlign int `json:"memory_align,omitempty"`
	OffsetAlign int `json:"offset_align,omitempty"`
}

// ErrDifferent is that the file system returned other bytes than were written.
var ErrDifferent = errors.New("other bytes are read than were written")

// Look finds out how files in a directory can be read and written, with a write and a read of 4096
// bytes. answer is as in Options.
func Look(dir string, answer time.Duration) (Access, error) {
	if answer == 0 {
		answer = DefaultAnswer
	}
	f, err := open(filesys.Kernel{}, dir, answer)
	if err != nil {
		return Access{}, err
	}
	defer f.close()
	return f.look()
}

// look leaves the file without O_DIRECT where it does not work.
func (f *file) look() (a Access, err error) {
	flags, err := unix.FcntlInt(uintptr(f.fd), unix.F_GETFL, 0) // asks no disk
	if err != nil {
		return a, fmt.Errorf("flags of a file in %s: %w", f.dir, err)
	}
	a.Direct = flags&unix.O_DIRECT != 0
	if !a.Direct {
		a.Refused = "the flag O_DIRECT is refused"
	}
	var st unix.Statx_t
	if err := f.retry(func() error { return f.sys.StatxAlign(f.fd, &st) }); err == nil && st.Mask&unix.STATX_DIOALIGN != 0 {
		a.MemoryAlign, a.OffsetAlign = int(st.Dio_mem_align), int(st.Dio_offset_align)
		if a.Direct && (a.OffsetAlign == 0 || a.MemoryAlign == 0 || align%a.OffsetAlign != 0 || align%a.MemoryAlign != 0) {
			a.Direct, a.Refused = false, fmt.Sprintf("direct transfers are aligned to %d bytes in memory and %d in the file, which %d does not serve",
				a.MemoryAlign, a.OffsetAlign, align)
		}
	}
	pages, err := newBuffers(1, 2*align)
	if err != nil {
		return a, err
	}
	defer func() { filesys.Free(err, pages.free) }()
	out, in := pages.of(0)[:align], pages.of(0)[align:]
	clear(in)

	if a.Direct {
		what, err := f.there(out, in)
		if err == nil {
			return a, nil
		}
		if !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.EOPNOTSUPP) {
			return a, fmt.Errorf("%s in %s: %w", what, f.dir, err)
		}
		a.Direct, a.Refused = false, fmt.Sprintf("the first direct %s: %v", what, err)
	}
	if err := f.sys.SetFlags(f.fd, flags&^unix.O_DIRECT); err != nil {
		return a, fmt.Errorf("take O_DIRECT off a file in %s: %w", f.dir, err)
	}
	if what, err := f.there(out, in); err != nil {
		return a, fmt.Errorf("%s in %s: %w", what, f.dir, err)
	}
	return a, nil
}

// there writes a page and reads it back. what names the call that failed.
func (f *file) there(out, in []byte) (what string, err error) {
	if err := f.all(out, 0, f.sys.Pwrite); err != nil {
		return "write", err
	}
	if err := f.all(in, 0, f.sys.Pread); err != nil {
		return "read", err
	}
	if !bytes.Equal(out, in) {
		return "read", ErrDifferent
	}
	return "", nil
}

// errShort is that a transfer moved nothing.
var errShort = errors.New("nothing was moved")

// all makes a whole transfer of what may come in parts.
func (f *file) all(p []byte, off int64, transfer func(int, []byte, int64) (int, error)) error {
	for len(p) > 0 {
		n := 0
		err := f.retry(func() (err error) {
			n, err = transfer(f.fd, p, off)
			return err
		})
		switch {
		case err != nil:
			return err
		case n <= 0:
			return errShort
		}
		p, off = p[n:], off+int64(n)
	}
	return nil
}

// buffers are a block for each worker, full of random bytes, which neither file systems nor drives can
// make smaller.
type buffers struct {
	pages []byte
	block int
}

func newBuffers(workers, block int) (*buffers, error) {
	pages, err := unix.Mmap(-1, 0, workers*block, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, fmt.Errorf("memory for %d blocks of %d bytes: %w", workers, block, err)
	}
	b := &buffers{pages: pages, block: block}
	// Direct transfers on memory that is shared with a forked child go astray.
	if err := unix.Madvise(pages, unix.MADV_DONTFORK); err != nil {
		b.free()
		return nil, fmt.Errorf("memory for %d blocks that children do not share: %w", workers, err)
	}
	var seed [32]byte
	for i := range seed {
		seed[i] = byte(rand.Uint32())
	}
	_, _ = rand.NewChaCha8(seed).Read(pages) // never fails
	return b, nil
}

func (b *buffers) of(worker int) []byte {
	return b.pages[worker*b.block : (worker+1)*b.block : (worker+1)*b.block]
}

func (b *buffers) free() { _ = unix.Munmap(b.pages) }
