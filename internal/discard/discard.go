// Package discard gives the blocks of a file back before the file's name goes.
//
// Removing a file only makes its blocks free: the drive keeps the bytes until something overwrites
// them or the drive is told that nobody needs them. File asks for more, as far as file system and
// drive offer it. It never writes the bytes over: that would wear the drive as much as the pause did.
package discard

import (
	"errors"

	"golang.org/x/sys/unix"
)

// modes of fallocate(2), best first.
var modes = []uint32{
	// The drive is made to return zeros, by a command that moves no data (NVMe Write Zeroes with
	// deallocation, SCSI WRITE SAME with unmap). Linux 6.17, and drives that can do it fast.
	unix.FALLOC_FL_WRITE_ZEROES,
	// The file system frees the blocks at once, even where another process has the file open, and
	// tells the drive if it is mounted with -o discard.
	unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE,
}

// fallocate is the system call.
var fallocate = unix.Fallocate

// File gives back the first size bytes of a file that is open for writing. Where the file system can
// do neither the error is EOPNOTSUPP.
func File(fd int, size int64) error {
	if size <= 0 {
		return nil
	}
	for _, mode := range modes {
		err := retry(func() error { return fallocate(fd, mode, 0, size) })
		if !unsupported(err) {
			return err
		}
	}
	return unix.EOPNOTSUPP
}

// unsupported reports whether an error says that the way is not offered: kernels and file systems
// that do not know a mode disagree about how to say so.
func unsupported(err error) bool {
	return errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.ENODEV)
}

// retry repeats a call that a signal interrupted.
func retry(call func() error) error {
	for {
		if err := call(); err != unix.EINTR {
			return err
		}
	}
}
