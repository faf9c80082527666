package arch

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/ebb-offload/ebb/internal/testutil"
)

var (
	namedTest    = regexp.MustCompile("`(Test[A-Z][A-Za-z0-9]*)`")
	declaredTest = regexp.MustCompile(`(?m)^func (Test[A-Z][A-Za-z0-9]*)\(`)
)

// What the page about failures promises is shown by tests: every row of the tables of faults names
// one, and all that are named exist.
func TestFailuresAreShownByTests(t *testing.T) {
	root := testutil.Root(t)
	page, err := os.ReadFile(filepath.Join(root, "docs/failures.md"))
	if err != nil {
		t.Fatal(err)
	}
	declared := map[string]bool{}
	err = filepath.WalkDir(root, func(path string, entry os.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (entry.Name() == ".git" || entry.Name() == "build" || entry.Name() == "dist"):
			return filepath.SkipDir
		case !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		source, err := os.ReadFile(path)
		for _, found := range declaredTest.FindAllSubmatch(source, -1) {
			declared[string(found[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	named := namedTest.FindAllSubmatch(page, -1)
	if len(named) < 40 {
		t.Errorf("the page names %d tests only", len(named))
	}
	for _, name := range named {
		if !declared[string(name[1])] {
			t.Errorf("docs/failures.md names %s, which is no test", name[1])
		}
	}
	faults := false // within a table of faults
	for line := range strings.Lines(string(page)) {
		switch {
		case strings.HasPrefix(line, "| fault |"):
			faults = true
			continue
		case !strings.HasPrefix(line, "|"):
			faults = false
		}
		if faults && !strings.HasPrefix(line, "|---") && !namedTest.MatchString(line) {
			t.Errorf("docs/failures.md: no test shows %.60s", line)
		}
	}
}
