// Package fd keeps the engine's descriptors off those of the standard streams. A process that
// closed stdin, stdout or stderr would otherwise get a backup file or a lease as its standard
// stream, and write into it or close it.
package fd

import "golang.org/x/sys/unix"

// AboveStreams returns a descriptor of the same open file that is at least 3, and closes the
// given one if it was not. It is close-on-exec. When it fails the given one is closed too.
func AboveStreams(fd int) (int, error) {
	if fd > 2 {
		return fd, nil
	}
	moved, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
	_ = unix.Close(fd)
	if err != nil {
		return -1, err
	}
	return moved, nil
}
