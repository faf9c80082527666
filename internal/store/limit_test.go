package store

import (
	"errors"
	"math"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ebb-offload/ebb/internal/filesys"
)

// refusing is a system whose writes are refused as the kernel refuses those of direct I/O that the limit of
// the size of files cuts short.
type refusing struct{ filesys.Kernel }

func (refusing) Pwrite(int, []byte, int64) (int, error) { return 0, unix.EINVAL }

// Under RLIMIT_FSIZE a direct write is refused like on a file system without direct I/O: it is not taken for that.
func TestAWriteOverTheLimitOfFilesIsNoLackOfDirectIO(t *testing.T) {
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &before); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Setrlimit(unix.RLIMIT_FSIZE, &before) })
	const limit = 1 << 40 // far above what anything else writes
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: limit, Max: before.Max}); err != nil {
		t.Skip("the limit is lower already")
	}
	p := make([]byte, ioAlign)
	if err := writeAll(refusing{}, -1, p, limit-1, true); !errors.Is(err, unix.EFBIG) || refusesDirect(err) {
		t.Errorf("over the limit: %v", err)
	}
	if err := writeAll(refusing{}, -1, p, limit-ioAlign, true); !refusesDirect(err) {
		t.Errorf("within it: %v", err)
	}
	if err := ioError(unix.EFBIG); !errors.Is(err, ErrIO) || !errors.Is(err, unix.EFBIG) || !strings.Contains(err.Error(), "ulimit -f unlimited") {
		t.Errorf("it does not say what to do: %v", err)
	}
}

// Without such a limit it is that of the file system.
func TestAFileTooLargeForTheFileSystemIsSaid(t *testing.T) {
	if overLimit(math.MaxInt64) {
		t.Skip("this process may not make files of any size")
	}
	if err := ioError(unix.EFBIG); !errors.Is(err, ErrIO) || !strings.Contains(err.Error(), "name a directory on another one") {
		t.Error(err)
	}
}
