package testutil

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestRootIsTheModule(t *testing.T) {
	mod, err := os.ReadFile(filepath.Join(Root(t), "go.mod"))
	if err != nil || !strings.HasPrefix(string(mod), "module github.com/ebb-offload/ebb\n") {
		t.Fatalf("%s holds no go.mod of ebb: %v", Root(t), err)
	}
	if !filepath.IsAbs(Root(t)) {
		t.Errorf("%s is not absolute", Root(t))
	}
}

// failing is a test that notes its end instead of ending.
type failing struct {
	testing.TB
	text string
}

func (f *failing) Fatalf(format string, args ...any) { f.text = fmt.Sprintf(format, args...); panic(f) }
func (f *failing) Helper()                           {}

func TestAMissingPartFailsTheTest(t *testing.T) {
	f := &failing{TB: t}
	defer func() {
		if recover() != f || !strings.Contains(f.text, "run make nothing") {
			t.Errorf("a missing file did not fail the test with the command that makes it: %q", f.text)
		}
	}()
	built(f, "dist/no-such-file", "make nothing")
}

// What a test's environment says of temporary files does not decide whether sockets can be made.
func TestSocketsHaveRoomWhereverTemporaryFilesAre(t *testing.T) {
	long := filepath.Join(t.TempDir(), strings.Repeat("a-long-name", 12))
	if err := os.MkdirAll(long, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, temp := range []string{"", "/tmp", long} {
		t.Setenv("TMPDIR", temp)
		path := filepath.Join(SocketDir(t), strings.Repeat("n", 20), strings.Repeat("s", 62))
		if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		if err != nil {
			t.Errorf("TMPDIR=%s: %v", temp, err)
			continue
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
}
