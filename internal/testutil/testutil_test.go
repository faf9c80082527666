package testutil

import (
	"fmt"
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
