package discard

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ebb-offload/ebb/internal/testutil"
)

// onDisk is a new file with content, on the file system of the repository.
func onDisk(t *testing.T, content []byte) *os.File {
	t.Helper()
	dir, err := os.MkdirTemp(testutil.Root(t), "build-discard-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	f, err := os.OpenFile(filepath.Join(dir, "file"), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if _, err := f.Write(content); err != nil {
		t.Fatal(err)
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	return f
}

func blocks(t *testing.T, f *os.File) int64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		t.Fatal(err)
	}
	return st.Blocks
}

// Whoever has the file open sees zeros, and its blocks are free although it is open.
func TestBlocksAreGivenBackWhileOthersHaveTheFileOpen(t *testing.T) {
	const size = 1 << 20
	f := onDisk(t, bytes.Repeat([]byte("parked!!"), size/8))
	before := blocks(t, f)
	other, err := os.Open(f.Name())
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()

	switch err := File(int(f.Fd()), size); {
	case errors.Is(err, unix.EOPNOTSUPP):
		t.Skip("this file system gives no blocks back")
	case err != nil:
		t.Fatal(err)
	}
	content, err := io.ReadAll(other)
	if err != nil {
		t.Fatal(err)
	}
	if len(content) != size || len(bytes.Trim(content, "\x00")) > 0 {
		t.Errorf("%d bytes are read, not %d zeros", len(content), size)
	}
	// Zeroed blocks stay the file's own; punched ones do not.
	if after := blocks(t, f); after > before {
		t.Errorf("%d blocks, before that %d", after, before)
	}
}

func TestAnEmptyFileHasNothingToGive(t *testing.T) {
	if err := File(int(onDisk(t, nil).Fd()), 0); err != nil {
		t.Error(err)
	}
}

// A way that is not offered leads to the next, a failure to its caller.
func TestTheBestWayThatIsOffered(t *testing.T) {
	const zeroes, punch = unix.FALLOC_FL_WRITE_ZEROES, unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE
	defer func() { fallocate = unix.Fallocate }()
	for what, c := range map[string]struct {
		answers []error
		tried   []uint32
		want    error
	}{
		"the drive zeroes":             {[]error{nil}, []uint32{zeroes}, nil},
		"an interrupted call":          {[]error{unix.EINTR, nil}, []uint32{zeroes, zeroes}, nil},
		"only holes":                   {[]error{unix.EOPNOTSUPP, nil}, []uint32{zeroes, punch}, nil},
		"a kernel that knows no zeros": {[]error{unix.EINVAL, nil}, []uint32{zeroes, punch}, nil},
		"neither":                      {[]error{unix.EOPNOTSUPP, unix.EOPNOTSUPP}, []uint32{zeroes, punch}, unix.EOPNOTSUPP},
		"a broken disk":                {[]error{unix.EIO}, []uint32{zeroes}, unix.EIO},
		"a broken disk without zeros":  {[]error{unix.EOPNOTSUPP, unix.EIO}, []uint32{zeroes, punch}, unix.EIO},
	} {
		var tried []uint32
		fallocate = func(_ int, mode uint32, off, size int64) error {
			if off != 0 || size != 4096 {
				t.Errorf("%s: %d bytes at %d, want 4096 at 0", what, size, off)
			}
			tried = append(tried, mode)
			return c.answers[len(tried)-1]
		}
		if err := File(3, 4096); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", what, err, c.want)
		}
		if !slices.Equal(tried, c.tried) {
			t.Errorf("%s: modes %#x, want %#x", what, tried, c.tried)
		}
	}
}
