// Package arch checks what holds for the source tree as a whole: which package may use what, and
// that each says what it is for. What holds for the built engine is checked in cmd/libebb.
package arch

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/ebb-offload/ebb/internal/testutil"
)

const module = "github.com/ebb-offload/ebb/"

// source is one Go file of the repository.
type source struct {
	path    string // from the root: "internal/mem/mem.go"
	imports []string
	doc     *ast.CommentGroup // the package comment
}

func (s source) dir() string  { return path.Dir(s.path) }
func (s source) isTest() bool { return strings.HasSuffix(s.path, "_test.go") }

// sources are all Go files, those of tests included.
func sources(t *testing.T) []source {
	t.Helper()
	root := testutil.Root(t)
	var all []source
	err := filepath.WalkDir(root, func(file string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, file)
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if name == "dist" || name == "build" || (name != "." && strings.HasPrefix(entry.Name(), ".")) {
				return filepath.SkipDir
			}
			return nil
		}
		if filepath.Ext(name) != ".go" {
			return nil
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly|parser.ParseComments)
		if err != nil {
			return err
		}
		s := source{path: filepath.ToSlash(name), doc: parsed.Doc}
		for _, spec := range parsed.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return err
			}
			s.imports = append(s.imports, imported)
		}
		all = append(all, s)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 10 {
		t.Fatalf("only %d Go files found under %s", len(all), root)
	}
	return all
}

func TestCIsCalledInTwoPlacesOnly(t *testing.T) {
	allowed := []string{"internal/device/cuda", "cmd/libebb"}
	found := map[string]bool{}
	for _, s := range sources(t) {
		if !slices.Contains(s.imports, "C") {
			continue
		}
		found[s.dir()] = true
		if !slices.Contains(allowed, s.dir()) {
			t.Errorf(`%s has import "C": only %s may`, s.path, strings.Join(allowed, " and "))
		}
	}
	for _, dir := range allowed {
		if !found[dir] {
			t.Errorf(`no import "C" found in %s: this test looks in the wrong place`, dir)
		}
	}
}

// Tables, plans and stores are joined by the engine only, so that each can be read, tested and
// changed alone.
func TestPurePackagesKnowNoMechanism(t *testing.T) {
	allowed := map[string][]string{ // what each may import of ebb
		"internal/mem":         {},
		"internal/sizes":       {},
		"internal/hostmem":     {"internal/sizes"},
		"internal/fingerprint": {},
		"internal/alloc":       {"internal/mem"},
		"internal/plan":        {"internal/mem"},
		"internal/filesys":     {"internal/discard", "internal/fd"},
		"internal/store":       {"internal/filesys", "internal/fingerprint", "internal/sizes"},
		"internal/rankdir":     {"internal/discard", "internal/fd"},
		"internal/device":      {"internal/fingerprint", "internal/mem"},

		"internal/control":        {"internal/fd", "internal/rankdir"},
		"internal/control/server": {"internal/control", "internal/fd"},
	}
	found := map[string]bool{}
	for _, s := range sources(t) {
		list, pure := allowed[s.dir()]
		if !pure || s.isTest() {
			continue
		}
		found[s.dir()] = true
		for _, imported := range s.imports {
			if of, ours := strings.CutPrefix(imported, module); ours && !slices.Contains(list, of) {
				t.Errorf("%s imports %s: the package may know %v of ebb, nothing else", s.path, of, list)
			}
		}
	}
	for dir := range allowed {
		if !found[dir] {
			t.Errorf("no source found in %s: this test looks in the wrong place", dir)
		}
	}
}

func TestOnlyTestsUseTestHelpers(t *testing.T) {
	for _, s := range sources(t) {
		inHelper := s.dir() == "internal/testutil" || path.Base(s.dir()) == "storetest"
		if s.isTest() || inHelper || strings.HasPrefix(s.path, "test/") {
			continue
		}
		for _, imported := range s.imports {
			if imported == "testing" || imported == module+"internal/testutil" || path.Base(imported) == "storetest" {
				t.Errorf("%s imports %s", s.path, imported)
			}
		}
	}
}

func TestEveryPackageSaysWhatItIsFor(t *testing.T) {
	documented := map[string][]string{} // folder → files with a package comment
	for _, s := range sources(t) {
		if s.isTest() {
			continue
		}
		if _, seen := documented[s.dir()]; !seen {
			documented[s.dir()] = nil
		}
		if s.doc != nil && strings.TrimSpace(s.doc.Text()) != "" {
			documented[s.dir()] = append(documented[s.dir()], s.path)
		}
	}
	for dir, files := range documented {
		if len(files) != 1 {
			t.Errorf("%s: %d package comments %v, want one", dir, len(files), files)
		}
	}
}
