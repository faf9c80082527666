package control

import (
	"golang.org/x/sys/unix"

	"github.com/ebb-offload/ebb/internal/fd"
)

// Torn reports whether the last line of an event log has no end, since a disk became full within it, or its writer
// was killed. Whatever is written next begins with a line break then: else it would be lost with that line. (Where
// two do so at once there is an empty line, which nobody minds.)
func Torn(path string) bool {
	var st unix.Stat_t
	if unix.Lstat(path, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size == 0 {
		return false
	}
	f, err := unix.Open(path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err == nil {
		f, err = fd.AboveStreams(f)
	}
	if err != nil {
		return false
	}
	defer func() { _ = unix.Close(f) }()
	var last [1]byte
	if unix.Fstat(f, &st) != nil || st.Size == 0 {
		return false
	}
	n, err := unix.Pread(f, last[:], st.Size-1)
	return err == nil && n == 1 && last[0] != '\n'
}
