package engine

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestLogIsNotWrittenIntoAFileThatTookItsDescriptor(t *testing.T) {
	dir := t.TempDir()
	file := func(name string) *os.File {
		f, err := os.Create(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.Close() })
		return f
	}
	want := func(f *os.File, text string) {
		t.Helper()
		if got, err := os.ReadFile(f.Name()); err != nil || string(got) != text {
			t.Errorf("%s holds %q, %v, want %q", f.Name(), got, err, text)
		}
	}
	given, other := file("log"), file("other")
	w := newFDWriter(int(given.Fd()))
	for _, line := range []string{"one\n", "two\n"} {
		w.write([]byte(line))
		if err := unix.Dup2(int(other.Fd()), int(given.Fd())); err != nil {
			t.Fatal(err)
		}
	}
	want(given, "one\n")
	want(other, "")
	for _, closed := range []int{-1, 1 << 20} {
		newFDWriter(closed).write([]byte("three"))
	}
}
