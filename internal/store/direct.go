package store

import (
	"bytes"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/ebb-offload/ebb/internal/filesys"
)

// prove tries direct I/O in the directory, once, on a file that holds nothing yet: some file
// systems accept the flag and refuse the first write or read.
func (s *Store) prove(f *diskFile, fd int) error {
	d := f.dir
	d.proving.Lock()
	defer d.proving.Unlock()
	if d.proven {
		return nil
	}
	if !d.buffered.Load() {
		if err := s.tryDirect(f, fd); err != nil {
			return err
		}
	}
	d.proven = true
	return nil
}

func (s *Store) tryDirect(f *diskFile, fd int) (err error) {
	var align unix.Statx_t
	err = filesys.Retry(func() error { return s.sys.StatxAlign(fd, &align) })
	if err == nil && align.Mask&unix.STATX_DIOALIGN != 0 {
		for _, a := range []uint32{align.Dio_mem_align, align.Dio_offset_align} {
			if a == 0 || ioAlign%a != 0 {
				f.dir.goBuffered("statx", fmt.Errorf("memory alignment %d, offset alignment %d", align.Dio_mem_align, align.Dio_offset_align))
				return nil
			}
		}
	}
	pages, err := unix.Mmap(-1, 0, 2*ioAlign, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err == nil {
		defer func() { filesys.Free(err, func() { _ = unix.Munmap(pages) }) }()
		err = unix.Madvise(pages, unix.MADV_DONTFORK) // direct I/O on memory shared with a forked child goes astray
	}
	if err != nil {
		return fmt.Errorf("memory to try direct I/O with: %w", err)
	}
	out, in := pages[:ioAlign], pages[ioAlign:]
	for i := range out {
		out[i] = byte(i*7 + i>>8 + 1)
	}
	if err := writeAll(s.sys, fd, out, 0, true); refusesDirect(err) {
		f.dir.goBuffered("first write", err)
		return nil
	} else if err != nil {
		return fmt.Errorf("%w: first write: %w", ErrIO, err)
	}
	if err := readAll(s.sys, fd, in, 0, true); refusesDirect(err) {
		f.dir.goBuffered("first read", err)
		return nil
	} else if err != nil {
		return fmt.Errorf("%w: first read: %w", ErrIO, err)
	}
	if !bytes.Equal(out, in) {
		return fmt.Errorf("%w: the file system returns other bytes than were written", ErrIO)
	}
	return nil
}
