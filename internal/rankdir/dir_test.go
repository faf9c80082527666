package rankdir

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// Another process may remove a directory between its opening and its listing: a sweep meets the
// directories of jobs that end meanwhile.
func TestADirectoryThatWasRemovedHasNothingInIt(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run")
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	dir, err := openBelow(unix.AT_FDCWD, path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(dir) }()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if list, err := names(dir); err != nil || len(list) > 0 {
		t.Errorf("names = %v, %v, want none", list, err)
	}
}
