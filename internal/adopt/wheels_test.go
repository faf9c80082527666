package adopt

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ebb-offload/ebb/internal/testutil"
)

// wheel is the path of a published wheel, which is kept in build/wheels. Where it is not there and
// cannot be fetched, the test is skipped.
func wheel(t *testing.T, version string) string {
	t.Helper()
	dir := filepath.Join(testutil.Root(t), "build", "wheels")
	pattern := filepath.Join(dir, "torch_memory_saver-"+version+"-*.whl")
	kept := func() string {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		if len(found) == 0 {
			return ""
		}
		return found[0]
	}
	if path := kept(); path != "" {
		return path
	}
	fresh := t.TempDir()
	cmd := exec.CommandContext(t.Context(), python, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
		"--retries", "1", "--timeout", "10", "--dest", fresh, "torch-memory-saver=="+version)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Skipf("NOT TESTED: torch-memory-saver %s could not be fetched from PyPI, and is not in %s: %v\n%s", version, dir, err, out)
	}
	found, err := filepath.Glob(filepath.Join(fresh, "*.whl"))
	if err != nil || len(found) != 1 {
		t.Fatalf("pip fetched %q (%v)", found, err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := copyFile(found[0], filepath.Join(dir, filepath.Base(found[0])), 0o644); err != nil && kept() == "" {
		t.Fatal(err)
	}
	return kept()
}

// venv is a virtual environment, filled by the pip of the interpreter that made it.
type venv struct {
	t      *testing.T
	python string
}

func newVenv(t *testing.T) venv {
	t.Helper()
	v := venv{t, filepath.Join(t.TempDir(), "venv/bin/python")}
	v.run(python, "-m", "venv", "--without-pip", filepath.Dir(filepath.Dir(v.python)))
	return v
}

func (v venv) run(args ...string) {
	v.t.Helper()
	if out, err := exec.CommandContext(v.t.Context(), args[0], args[1:]...).CombinedOutput(); err != nil {
		v.t.Fatalf("%v: %v\n%s", args, err, out)
	}
}

func (v venv) pip(args ...string) {
	v.t.Helper()
	v.run(append([]string{python, "-m", "pip", "--quiet", "--disable-pip-version-check", "--python", v.python}, args...)...)
}

func (v venv) find(lib Library) *Package {
	v.t.Helper()
	p, err := Find(v.t.Context(), v.python, os.Environ(), lib.Path)
	if err != nil {
		v.t.Fatal(err)
	}
	return p
}

// dist is the library that was built.
func dist(t *testing.T) Library {
	t.Helper()
	lib := InFolder(filepath.Join(testutil.Root(t), "dist", "lib"))
	for _, path := range []string{lib.Path, lib.Engine, testutil.SoftGPU(t)} {
		if _, err := os.Stat(path); err != nil {
			t.Fatalf("%v (run make build)", err)
		}
	}
	return lib
}

func TestPublishedWheels(t *testing.T) {
	lib := dist(t)
	v := newVenv(t)
	for version, libraries := range map[string]int{"0.0.10": 6, "0.0.9.post1": 6, "0.0.9": 2} {
		v.pip("install", "--no-deps", "--force-reinstall", wheel(t, version))
		p := v.find(lib)
		before := tree(t, p.Dir)
		for _, copied := range []bool{false, true} {
			r := adopt(t, p, lib, copied)
			if r.State != Adopted || len(r.Files) != libraries || r.PackageVersion != version {
				t.Errorf("%s: %+v", version, r)
			}
			t.Run(fmt.Sprintf("%s, copy=%v", version, copied), func(t *testing.T) {
				for _, mode := range []string{"preload", "torch"} {
					drive(t, v, p, mode)
				}
			})
		}
		undo(t, p)
		wantTree(t, p.Dir, before)
	}
}

// drive runs the package's own C side over softgpu.
func drive(t *testing.T, v venv, p *Package, mode string) {
	t.Helper()
	disk, err := os.MkdirTemp(filepath.Join(testutil.Root(t), "build"), "adopt-") // a real disk
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(disk); err != nil {
			t.Error(err)
		}
	})
	cmd := exec.CommandContext(t.Context(), v.python, "testdata/wrapper.py", p.Dir, mode)
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "LC_ALL=C.UTF-8", "PYTHONDONTWRITEBYTECODE=1", "WRAPPER_DISK=" + disk,
		"LD_LIBRARY_PATH=" + filepath.Dir(testutil.SoftGPU(t)), "TMS_DISK_BACKUP_CHUNK_MB=4",
		"XDG_RUNTIME_DIR=" + t.TempDir(), fmt.Sprintf("SOFTGPU_NODE=adopt-%d-%s", os.Getpid(), mode), "SOFTGPU_MEM_MB=128",
	}
	cmd.WaitDelay = time.Minute
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.HasSuffix(string(out), "wrapper: ok\n") {
		t.Errorf("mode %s: %v\n%s", mode, err, out)
	}
}

func TestPipOverAnAdoptedPackage(t *testing.T) {
	older, newer := wheel(t, "0.0.9.post1"), wheel(t, "0.0.10")
	lib := dist(t)
	v := newVenv(t)
	v.pip("install", "--no-deps", newer)
	p := v.find(lib)
	published := tree(t, p.Dir)

	v.pip("install", "--no-deps", older)
	adopt(t, v.find(lib), lib, false)
	v.pip("install", "--no-deps", newer)
	p = v.find(lib)
	wantState(t, p, Replaced)
	adopt(t, p, lib, false)
	wantState(t, p, Adopted)
	undo(t, p)
	now := tree(t, p.Dir)
	for _, name := range names {
		if hash := func(s string) string { return s[strings.LastIndexByte(s, ' '):] }; hash(now[name]) != hash(published[name]) {
			t.Errorf("%s: %q, published %q", name, now[name], published[name])
		}
	}

	adopt(t, p, lib, true)
	v.pip("uninstall", "--yes", "torch-memory-saver")
	undo(t, v.find(lib))
	for path := range tree(t, p.Dir) {
		if strings.HasPrefix(path, "torch_memory_saver") {
			t.Errorf("left: %s", path)
		}
	}
	if _, err := Find(t.Context(), v.python, os.Environ(), lib.Path); err == nil {
		t.Error("the package is still found")
	}
}

// Its functions have other names.
func TestAnOldWheelIsRefused(t *testing.T) {
	lib := dist(t)
	v := newVenv(t)
	v.pip("install", "--no-deps", wheel(t, "0.0.8"))
	p := v.find(lib)
	before := tree(t, p.Dir)
	if _, err := p.Adopt(lib, Options{}); err == nil || !strings.Contains(err.Error(), "0.0.8") || !strings.Contains(err.Error(), "torch_memory_saver_cpp.abi3.so") {
		t.Errorf("error %v", err)
	}
	wantTree(t, p.Dir, before)
}
