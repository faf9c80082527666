package adopt

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

const python = "python3"

// names of the newest wheels.
var names = []string{
	"torch_memory_saver_hook_mode_preload.abi3.so",
	"torch_memory_saver_hook_mode_preload_cu12.abi3.so",
	"torch_memory_saver_hook_mode_preload_cu13.abi3.so",
	"torch_memory_saver_hook_mode_torch.abi3.so",
	"torch_memory_saver_hook_mode_torch_cu12.abi3.so",
	"torch_memory_saver_hook_mode_torch_cu13.abi3.so",
}

// compiled makes a shared library with these functions, once for each text.
var (
	compiledMu sync.Mutex
	compiled   = map[string][]byte{}
)

func sharedLibrary(t testing.TB, source string) []byte {
	t.Helper()
	compiledMu.Lock()
	defer compiledMu.Unlock()
	if b, ok := compiled[source]; ok {
		return b
	}
	path := filepath.Join(t.TempDir(), "made.so")
	cmd := exec.Command("gcc", "-std=c11", "-shared", "-fPIC", "-o", path, "-x", "c", "-")
	cmd.Stdin = strings.NewReader(source)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", cmd.Args, err, out)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	compiled[source] = b
	return b
}

const (
	hookSource = `int tms_pause(const char *t) { return t != 0; } int tms_resume(const char *t) { return t != 0; }`
	ebbSource  = hookSource + ` int tms_more; const char *ebb_version(void) { return "7.8.9"; }`
)

func put(t testing.TB, path string, content []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	// Others may read it, whatever the umask is.
	if err := errors.Join(os.WriteFile(path, content, 0o644), os.Chmod(path, 0o644), os.Chmod(filepath.Dir(path), 0o755)); err != nil {
		t.Fatal(err)
	}
}

// site makes a folder of Python packages that holds a torch_memory_saver. Its package cannot be
// imported: nobody is to try.
func site(t testing.TB, dir string) {
	t.Helper()
	put(t, filepath.Join(dir, "torch_memory_saver/__init__.py"), []byte("raise SystemExit('imported')\n"))
	put(t, filepath.Join(dir, "torch_memory_saver-1.2.3.dist-info/METADATA"), []byte("Metadata-Version: 2.1\nName: torch_memory_saver\nVersion: 1.2.3\n"))
	record := "torch_memory_saver/__init__.py,,\n"
	for i, name := range names {
		record += name + ",,\n"
		put(t, filepath.Join(dir, name), sharedLibrary(t, fmt.Sprintf("%s int file = %d;", hookSource, i)))
		then := time.Date(2026, 1, 2, 3, 4, i, 0, time.UTC)
		if err := os.Chtimes(filepath.Join(dir, name), then, then); err != nil {
			t.Fatal(err)
		}
	}
	put(t, filepath.Join(dir, "torch_memory_saver-1.2.3.dist-info/RECORD"), []byte(record))
	put(t, filepath.Join(dir, "neighbour.so"), []byte("not of this package"))
}

func installed(t testing.TB, dir string) Library {
	t.Helper()
	lib := InFolder(dir)
	put(t, lib.Path, sharedLibrary(t, ebbSource))
	put(t, lib.Engine, []byte("engine of "+dir))
	return lib
}

func tryFind(t testing.TB, dir string, lib Library) (*Package, error) {
	t.Helper()
	return Find(t.Context(), python, []string{"PATH=" + os.Getenv("PATH"), "PYTHONPATH=" + dir}, lib.Path)
}

func find(t testing.TB, dir string, lib Library) *Package {
	t.Helper()
	p, err := tryFind(t, dir, lib)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// setUp is a package and an ebb beside one another.
func setUp(t testing.TB) (dir string, p *Package, lib Library) {
	t.Helper()
	root := t.TempDir()
	dir = filepath.Join(root, "site")
	site(t, dir)
	lib = installed(t, filepath.Join(root, "ebb/lib"))
	return dir, find(t, dir, lib), lib
}

func adopt(t testing.TB, p *Package, lib Library, copied bool) Report {
	t.Helper()
	r, err := p.Adopt(lib, Options{Copy: copied, Now: time.Unix(1_900_000_000, 0)})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func undo(t testing.TB, p *Package) Report {
	t.Helper()
	r, err := p.Undo()
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func wantState(t testing.TB, p *Package, want State) Report {
	t.Helper()
	r, err := p.Check()
	if err != nil {
		t.Fatal(err)
	}
	if r.State != want {
		t.Fatalf("state %q, want %q: %+v", r.State, want, r)
	}
	return r
}

// tree describes all that is below a folder: what each name is, with mode, time and content.
func tree(t testing.TB, dir string) map[string]string {
	t.Helper()
	found := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, path)
		switch {
		case d.IsDir():
			found[rel] = info.Mode().String()
		case info.Mode()&fs.ModeSymlink != 0:
			link, err := os.Readlink(path)
			found[rel] = "-> " + link
			return err
		default:
			sum, err := hashOf(path)
			found[rel] = fmt.Sprint(info.Mode(), info.ModTime(), sum)
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func wantTree(t testing.TB, dir string, want map[string]string) {
	t.Helper()
	if diff := cmp.Diff(want, tree(t, dir)); diff != "" {
		t.Fatalf("the folder differs (-before +now):\n%s", diff)
	}
}

func TestAdoptionLinksEveryNameToOneLibraryAndUndoRestoresExactly(t *testing.T) {
	for _, copied := range []bool{false, true} {
		t.Run(fmt.Sprintf("copy=%v", copied), func(t *testing.T) {
			dir, p, lib := setUp(t)
			before := tree(t, dir)
			wantState(t, p, NotAdopted)

			r := adopt(t, p, lib, copied)
			library := lib.Path
			if copied {
				library = filepath.Join(dir, copyFolder, libraryName)
			}
			if r.State != Adopted || !r.Changed || r.Library != library || r.EbbVersion != "7.8.9" || r.PackageVersion != "1.2.3" || len(r.Notes) != 0 {
				t.Errorf("report %+v", r)
			}
			for _, name := range names {
				if path, err := filepath.EvalSymlinks(filepath.Join(dir, name)); err != nil || path != library {
					t.Errorf("%s leads to %q (%v), want %s", name, path, err, library)
				}
				if got := tree(t, dir)[name+originalSuffix]; got != before[name] {
					t.Errorf("the original of %s: %q, want %q", name, got, before[name])
				}
			}
			for path, was := range before {
				if now := tree(t, dir)[path]; now != was && !slices.Contains(names, path) {
					t.Errorf("%s was touched: %q, was %q", path, now, was)
				}
			}
			wantState(t, p, Adopted)

			if r := undo(t, p); r.State != NotAdopted || !r.Changed {
				t.Errorf("report of undo %+v", r)
			}
			wantTree(t, dir, before)
		})
	}
}

func TestRepeatsAreNoOps(t *testing.T) {
	dir, p, lib := setUp(t)
	if r := undo(t, p); r.Changed {
		t.Error("an undo of nothing changed something")
	}
	for _, copied := range []bool{false, true} {
		adopt(t, p, lib, copied)
		once := tree(t, dir)
		r, err := p.Adopt(lib, Options{Copy: copied, Now: time.Unix(2_000_000_000, 0)})
		if err != nil || r.Changed || r.State != Adopted {
			t.Errorf("the second adoption: %+v, %v", r, err)
		}
		wantTree(t, dir, once)
	}
	undo(t, p)
	if r := undo(t, p); r.Changed {
		t.Error("the second undo changed something")
	}
}

func TestAdoptionByAnotherEbbMovesTheLinksAndKeepsTheOriginals(t *testing.T) {
	dir, p, lib := setUp(t)
	before := tree(t, dir)
	other := installed(t, filepath.Join(t.TempDir(), "lib"))
	adopt(t, p, lib, true)
	adopt(t, p, lib, false)
	if r := adopt(t, p, other, false); r.Library != other.Path || !r.Changed {
		t.Errorf("report %+v", r)
	}
	if _, err := os.Lstat(filepath.Join(dir, copyFolder)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the copies stay: %v", err)
	}
	undo(t, p)
	wantTree(t, dir, before)
}

func TestATreeThatIsMoved(t *testing.T) {
	move := func(t *testing.T, p *Package, from, to string, lib Library, copied bool) Report {
		t.Helper()
		adopt(t, p, lib, copied)
		if err := os.Rename(from, to); err != nil {
			t.Fatal(err)
		}
		return wantState(t, find(t, to, Library{}), Adopted)
	}
	t.Run("linked to an ebb elsewhere", func(t *testing.T) {
		dir, p, lib := setUp(t)
		if r := move(t, p, dir, dir+"-moved", lib, false); r.Library != lib.Path {
			t.Errorf("report %+v", r)
		}
	})
	t.Run("with copies", func(t *testing.T) {
		dir, p, lib := setUp(t)
		if r := move(t, p, dir, dir+"-moved", lib, true); r.Library != filepath.Join(dir+"-moved", copyFolder, libraryName) {
			t.Errorf("report %+v", r)
		}
	})
	t.Run("with ebb in it", func(t *testing.T) {
		root := filepath.Join(t.TempDir(), "venv")
		dir := filepath.Join(root, "site-packages")
		site(t, dir)
		lib := installed(t, filepath.Join(root, "ebb/lib"))
		p := find(t, dir, lib)
		p.Prefix = root // what a virtual environment's interpreter says
		adopt(t, p, lib, false)
		if err := os.Rename(root, root+"-moved"); err != nil {
			t.Fatal(err)
		}
		r := wantState(t, find(t, root+"-moved/site-packages", Library{}), Adopted)
		if r.Library != root+"-moved/ebb/lib/libebb.so" {
			t.Errorf("report %+v", r)
		}
	})
}

// An installer removes the links, which its metadata lists as files, and writes its own files.
func reinstall(t *testing.T, dir string, changed string) {
	t.Helper()
	for _, name := range names {
		path := filepath.Join(dir, name)
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		put(t, path, sharedLibrary(t, hookSource+changed))
	}
}

func TestAPackageThatIsUpgraded(t *testing.T) {
	dir, p, lib := setUp(t)
	adopt(t, p, lib, false)
	reinstall(t, dir, "int upgraded;")
	upgraded := tree(t, dir)
	wantState(t, p, Replaced)

	t.Run("undo keeps the new files", func(t *testing.T) {
		undo(t, p)
		for _, name := range names {
			if now := tree(t, dir)[name]; now != upgraded[name] {
				t.Errorf("%s: %q, want %q", name, now, upgraded[name])
			}
			if _, there := tree(t, dir)[name+originalSuffix]; there {
				t.Errorf("the older original of %s stays", name)
			}
		}
		wantState(t, p, NotAdopted)
	})
	t.Run("adoption keeps the new files as originals", func(t *testing.T) {
		adopt(t, p, lib, false)
		reinstall(t, dir, "int upgraded_again;")
		again := tree(t, dir)
		adopt(t, p, lib, false)
		undo(t, p)
		for _, name := range names {
			if now := tree(t, dir)[name]; now != again[name] {
				t.Errorf("%s: %q, want %q", name, now, again[name])
			}
		}
	})
	t.Run("some files only", func(t *testing.T) {
		adopt(t, p, lib, false)
		path := filepath.Join(dir, names[2])
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		put(t, path, sharedLibrary(t, hookSource))
		wantState(t, p, Partly)
		adopt(t, p, lib, false)
		wantState(t, p, Adopted)
	})
}

func TestAPackageThatIsUninstalled(t *testing.T) {
	dir, p, lib := setUp(t)
	adopt(t, p, lib, true)
	for _, name := range append([]string{"torch_memory_saver", "torch_memory_saver-1.2.3.dist-info"}, names...) {
		if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	p = find(t, dir, lib)
	var refusal *Refusal
	if _, err := p.Check(); !errors.As(err, &refusal) || !strings.Contains(err.Error(), "finds no package") {
		t.Errorf("check: %v", err)
	}
	if _, err := p.Adopt(lib, Options{}); !errors.As(err, &refusal) {
		t.Errorf("adopt: %v", err)
	}
	if r := undo(t, p); r.PackageVersion != "1.2.3" {
		t.Errorf("undone for version %q, want that of the adoption", r.PackageVersion)
	}
	if left := tree(t, dir); len(left) != 2 || left["neighbour.so"] == "" {
		t.Errorf("left: %v", left)
	}
}

// Every combination of what an adoption that ended early can leave of two files. Undo restores
// from each, and a second adoption completes each.
func TestAnInterruptedAdoptionIsUndoneOrCompleted(t *testing.T) {
	dir, p, lib := setUp(t)
	before := tree(t, dir)
	adopt(t, p, lib, false)
	manifestText, err := os.ReadFile(filepath.Join(dir, manifestName))
	if err != nil {
		t.Fatal(err)
	}
	undo(t, p)

	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	steps := []struct {
		name  string
		leave func(path string)
	}{
		{"untouched", func(string) {}},
		{"copying the original", func(path string) { put(t, path+originalSuffix+newSuffix, []byte("half")) }},
		{"original kept", func(path string) { must(os.Link(path, path+originalSuffix)) }},
		{"original kept as a copy", func(path string) {
			info, err := os.Stat(path)
			must(err)
			must(copyFile(path, path+originalSuffix, 0o644))
			must(os.Chtimes(path+originalSuffix, info.ModTime(), info.ModTime()))
		}},
		{"link made", func(path string) {
			must(os.Link(path, path+originalSuffix))
			must(os.Symlink(lib.Path, path+newSuffix))
		}},
		{"replaced", func(path string) {
			must(os.Rename(path, path+originalSuffix))
			must(os.Symlink(lib.Path, path))
		}},
	}
	n := len(steps)
	for i := range n * n {
		chosen := []int{i % n, i / n}
		label := ""
		for _, then := range []string{"undo", "adopt and undo"} {
			label = then
			put(t, filepath.Join(dir, manifestName), manifestText)
			for file, step := range chosen {
				steps[step].leave(filepath.Join(dir, names[file]))
				label += ", " + steps[step].name
			}
			if then == "adopt and undo" {
				if r := adopt(t, p, lib, false); r.State != Adopted {
					t.Fatalf("%s: %+v", label, r)
				}
			}
			undo(t, p)
			if diff := cmp.Diff(before, tree(t, dir)); diff != "" {
				t.Fatalf("%s (-before +now):\n%s", label, diff)
			}
		}
	}
}

func TestAnAdoptionThatFailsHalfwayCanBeUndone(t *testing.T) {
	dir, p, lib := setUp(t)
	before := tree(t, dir)
	obstacle := filepath.Join(dir, names[3]+newSuffix)
	put(t, filepath.Join(obstacle, "file"), nil) // a folder that cannot be removed
	if _, err := p.Adopt(lib, Options{}); err == nil || !strings.Contains(err.Error(), "--undo") {
		t.Fatalf("error %v", err)
	}
	wantState(t, p, Partly)
	if err := os.RemoveAll(obstacle); err != nil {
		t.Fatal(err)
	}
	undo(t, p)
	wantTree(t, dir, before)
}

func TestTogether(t *testing.T) {
	dir, p, lib := setUp(t)
	before := tree(t, dir)
	other := installed(t, filepath.Join(t.TempDir(), "lib"))
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			var err error
			if i%4 == 3 {
				_, err = p.Undo()
			} else {
				_, err = p.Adopt([]Library{lib, other}[i%2], Options{Copy: i%4 == 2})
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	adopt(t, p, lib, false)
	wantState(t, p, Adopted)
	undo(t, p)
	wantTree(t, dir, before)
}

func TestRefusals(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(t *testing.T, dir string)
		want   []string
	}{
		{"no package", func(t *testing.T, dir string) {
			if err := os.RemoveAll(filepath.Join(dir, "torch_memory_saver")); err != nil {
				t.Fatal(err)
			}
		}, []string{python, "finds no package torch_memory_saver"}},
		{"remains of a package", func(t *testing.T, dir string) {
			if err := os.Remove(filepath.Join(dir, "torch_memory_saver/__init__.py")); err != nil {
				t.Fatal(err)
			}
		}, []string{"finds no package torch_memory_saver"}},
		{"no libraries", func(t *testing.T, dir string) {
			for _, name := range names {
				if err := os.Remove(filepath.Join(dir, name)); err != nil {
					t.Fatal(err)
				}
			}
		}, []string{"1.2.3", "no libraries of a layout that ebb knows"}},
		{"an old layout", func(t *testing.T, dir string) {
			for _, name := range names {
				if err := os.Remove(filepath.Join(dir, name)); err != nil {
					t.Fatal(err)
				}
			}
			put(t, filepath.Join(dir, "torch_memory_saver_cpp.abi3.so"), sharedLibrary(t, hookSource))
		}, []string{"1.2.3", "layout that ebb does not know", "torch_memory_saver_cpp.abi3.so"}},
		{"a layout to come", func(t *testing.T, dir string) {
			put(t, filepath.Join(dir, "torch_memory_saver_hook_mode_torch_cu14.abi3.so"), sharedLibrary(t, hookSource))
		}, []string{"layout that ebb does not know", "_cu14.abi3.so", "_cu13.abi3.so"}},
		{"libraries in two places", func(t *testing.T, dir string) {
			put(t, filepath.Join(dir, "torch_memory_saver", names[0]), sharedLibrary(t, hookSource))
		}, []string{"reinstall"}},
		{"functions that ebb has not", func(t *testing.T, dir string) {
			put(t, filepath.Join(dir, names[4]), sharedLibrary(t, hookSource+"void tms_new(void) {} void cudaMallocNew(void) {} int _Zmangled(void) { return 1; }"))
		}, []string{names[4], "cudaMallocNew, tms_new, which libebb.so has not"}},
		{"a file that is no library", func(t *testing.T, dir string) {
			put(t, filepath.Join(dir, names[1]), []byte("text"))
		}, []string{names[1], "reinstall"}},
		{"a file of somebody else", func(t *testing.T, dir string) {
			record := filepath.Join(dir, "torch_memory_saver-1.2.3.dist-info/RECORD")
			text, err := os.ReadFile(record)
			if err != nil {
				t.Fatal(err)
			}
			put(t, record, []byte(strings.Replace(string(text), names[5]+",,\n", "", 1)))
		}, []string{names[5], "is not a file of torch_memory_saver 1.2.3"}},
		{"a folder in a file's place", func(t *testing.T, dir string) {
			if err := os.Remove(filepath.Join(dir, names[0])); err != nil {
				t.Fatal(err)
			}
			put(t, filepath.Join(dir, names[0], "file"), nil)
		}, []string{names[0], "neither a file nor a link"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "site")
			site(t, dir)
			lib := installed(t, t.TempDir())
			test.change(t, dir)
			before := tree(t, dir)
			p, err := tryFind(t, dir, lib)
			if err == nil {
				_, err = p.Adopt(lib, Options{})
			}
			var refusal *Refusal
			if !errors.As(err, &refusal) {
				t.Fatalf("error %v, want a refusal", err)
			}
			for _, want := range test.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q does not tell of %q", err, want)
				}
			}
			wantTree(t, dir, before)
		})
	}
}

func TestInterpreters(t *testing.T) {
	dir, _, lib := setUp(t)
	environment := []string{"PATH=" + os.Getenv("PATH"), "PYTHONPATH=" + dir}
	if _, err := Find(t.Context(), "/no/such/python", environment, lib.Path); !errors.Is(err, ErrNoPython) || !strings.Contains(err.Error(), "/no/such/python") {
		t.Errorf("an interpreter that is not there: %v", err)
	}
	var refusal *Refusal
	if _, err := Find(t.Context(), "true", environment, lib.Path); !errors.As(err, &refusal) || !strings.Contains(err.Error(), "no Python interpreter") {
		t.Errorf("a program that is no interpreter: %v", err)
	}
	if _, err := Find(t.Context(), "false", environment, lib.Path); !errors.As(err, &refusal) {
		t.Errorf("a program that fails: %v", err)
	}
	put(t, lib.Path, []byte("text"))
	if _, err := tryFind(t, dir, lib); !errors.As(err, &refusal) || !strings.Contains(err.Error(), "cannot load libebb.so") {
		t.Errorf("a libebb.so that cannot be loaded: %v", err)
	}
}

// A folder of the package's name where ebb is called is not what a program imports.
func TestTheCurrentFolderDoesNotCount(t *testing.T) {
	dir, _, lib := setUp(t)
	t.Chdir(dir)
	if _, err := Find(t.Context(), python, []string{"PATH=" + os.Getenv("PATH")}, lib.Path); err == nil {
		t.Error("the package was found in the current folder")
	}
}

func TestLinksThatLeadNowhere(t *testing.T) {
	_, p, lib := setUp(t)
	adopt(t, p, lib, false)
	if err := os.Rename(lib.Engine, lib.Engine+".away"); err != nil {
		t.Fatal(err)
	}
	if r := wantState(t, p, Broken); len(r.Notes) != 1 || !strings.Contains(r.Notes[0], engineName) {
		t.Errorf("notes %q", r.Notes)
	}
	if err := os.RemoveAll(filepath.Dir(lib.Path)); err != nil {
		t.Fatal(err)
	}
	wantState(t, p, Broken)
	other := installed(t, t.TempDir())
	if r := adopt(t, p, other, false); r.Library != other.Path {
		t.Errorf("report %+v", r)
	}
	wantState(t, p, Adopted)
}

// What was linked by hand is put back as it was.
func TestALinkMadeByHand(t *testing.T) {
	dir, p, lib := setUp(t)
	other := installed(t, t.TempDir())
	path := filepath.Join(dir, names[0])
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(other.Path, path); err != nil {
		t.Fatal(err)
	}
	before := tree(t, dir)
	wantState(t, p, Partly)
	adopt(t, p, lib, false)
	wantState(t, p, Adopted)
	undo(t, p)
	wantTree(t, dir, before)
}

// Some installers link to their cache.
func TestOriginalsThatAreLinks(t *testing.T) {
	dir, p, lib := setUp(t)
	cache := t.TempDir()
	for i, name := range names {
		path, kept := filepath.Join(dir, name), filepath.Join(cache, name)
		if err := os.Rename(path, kept); err != nil {
			t.Fatal(err)
		}
		var err error
		if i%2 == 0 {
			err = os.Symlink(kept, path)
		} else {
			err = os.Link(kept, path)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	before, cached := tree(t, dir), tree(t, cache)
	adopt(t, p, lib, false)
	wantState(t, p, Adopted)
	wantTree(t, cache, cached)
	undo(t, p)
	wantTree(t, dir, before)
	wantTree(t, cache, cached)
}

func TestAnOriginalThatCannotBePutBack(t *testing.T) {
	for what, spoil := range map[string]func(path string) error{
		"gone":    os.Remove,
		"changed": func(path string) error { return os.WriteFile(path, []byte("other"), 0o644) },
	} {
		t.Run(what, func(t *testing.T) {
			dir, p, lib := setUp(t)
			before := tree(t, dir)
			adopt(t, p, lib, false)
			if err := spoil(filepath.Join(dir, names[1]+originalSuffix)); err != nil {
				t.Fatal(err)
			}
			_, err := p.Undo()
			var refusal *Refusal
			if !errors.As(err, &refusal) || !strings.Contains(err.Error(), names[1]) || !strings.Contains(err.Error(), "torch-memory-saver==1.2.3") {
				t.Fatalf("error %v", err)
			}
			for _, name := range names {
				if name != names[1] && tree(t, dir)[name] != before[name] {
					t.Errorf("%s was not restored", name)
				}
			}
		})
	}
}

func TestAManifestThatIsNotOurs(t *testing.T) {
	dir, p, lib := setUp(t)
	for text, want := range map[string]string{
		"{":             "cannot be read",
		`{"format": 2}`: "format 2",
		`{"format": 1, "files": [{"name": "../other.so"}]}`: "no hook library",
	} {
		put(t, filepath.Join(dir, manifestName), []byte(text))
		before := tree(t, dir)
		_, adoptErr := p.Adopt(lib, Options{})
		_, undoErr := p.Undo()
		for _, err := range []error{adoptErr, undoErr} {
			var refusal *Refusal
			if !errors.As(err, &refusal) || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v", text, err)
			}
		}
		wantTree(t, dir, before)
	}
}

// Without its manifest an adoption is known by its originals.
func TestAManifestThatIsLost(t *testing.T) {
	dir, p, lib := setUp(t)
	before := tree(t, dir)
	for _, again := range []bool{false, true} {
		adopt(t, p, lib, false)
		if err := os.Remove(filepath.Join(dir, manifestName)); err != nil {
			t.Fatal(err)
		}
		wantState(t, p, Adopted)
		if again {
			adopt(t, p, lib, false)
		}
		undo(t, p)
		wantTree(t, dir, before)
	}
}

// asNobody runs f on a thread that has no rights but those of others. As an ordinary user it runs
// f as it is.
func asNobody(t *testing.T, f func()) {
	t.Helper()
	if os.Getuid() != 0 {
		f()
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		const nobody = 65534
		if _, _, err := unix.RawSyscall(unix.SYS_SETRESUID, nobody, nobody, nobody); err != 0 {
			t.Error(err)
			return
		}
		f()
	}()
	<-done
}

// open lets others look into a test's folder.
func open(t *testing.T, dirs ...string) {
	t.Helper()
	for _, dir := range dirs {
		for ; dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
			if err := os.Chmod(dir, 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestAFolderThatCannotBeWritten(t *testing.T) {
	dir, p, lib := setUp(t)
	open(t, dir, filepath.Dir(lib.Path))
	if err := os.Chmod(dir, 0o555); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Error(err)
		}
	})
	before := tree(t, dir)
	asNobody(t, func() {
		var refusal *Refusal
		if _, err := p.Adopt(lib, Options{}); !errors.As(err, &refusal) || !strings.Contains(err.Error(), dir) || !strings.Contains(err.Error(), "cannot be written") {
			t.Errorf("error %v", err)
		}
	})
	wantTree(t, dir, before)
}

// The kernel may refuse second names for files of somebody else.
func TestOriginalsThatCannotHaveASecondName(t *testing.T) {
	protected, err := os.ReadFile("/proc/sys/fs/protected_hardlinks")
	if os.Getuid() != 0 || err != nil || strings.TrimSpace(string(protected)) != "1" {
		t.Skip("needs root and protected_hardlinks")
	}
	dir, p, lib := setUp(t)
	open(t, dir, filepath.Dir(lib.Path))
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	before := tree(t, dir)
	asNobody(t, func() {
		if _, err := p.Adopt(lib, Options{}); err != nil {
			t.Error(err)
		}
	})
	wantState(t, p, Adopted)
	first, errFirst := os.Stat(filepath.Join(dir, names[0]+originalSuffix))
	if errFirst != nil || first.Sys() == nil {
		t.Fatal(errFirst)
	}
	asNobody(t, func() {
		if _, err := p.Undo(); err != nil {
			t.Error(err)
		}
	})
	wantTree(t, dir, before)
}
