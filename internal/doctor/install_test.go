package doctor

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ebb-offload/ebb/internal/adopt"
	"github.com/ebb-offload/ebb/internal/launch"
	"github.com/ebb-offload/ebb/internal/testutil"
)

// built is ebb's own library, as it is built.
func built(t *testing.T) string {
	t.Helper()
	file := filepath.Join(testutil.Root(t), "dist/lib/libebb.so")
	if _, err := os.Stat(file); err != nil {
		t.Fatalf("%v: run make build", err)
	}
	return file
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	content, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.MkdirAll(filepath.Dir(to), 0o700), os.WriteFile(to, content, 0o700)); err != nil {
		t.Fatal(err)
	}
}

func mappedIn(t *testing.T, maps, base string) string {
	t.Helper()
	text, err := os.ReadFile(maps)
	if err != nil {
		t.Fatal(err)
	}
	file := mappedLibrary(string(text), func(b string) bool { return b == base })
	if file == "" {
		t.Skipf("this test is linked without %s", base)
	}
	return file
}

// installed is an installation of ebb of its own.
func installed(t *testing.T) (examination, launch.Libraries) {
	t.Helper()
	dir := t.TempDir()
	from := filepath.Dir(built(t))
	for _, name := range []string{"libebb.so", "libebb-engine.so"} {
		copyFile(t, filepath.Join(from, name), filepath.Join(dir, name))
	}
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "torch_memory_saver"), 0o700),
		os.Symlink("../libebb.so", filepath.Join(dir, "torch_memory_saver/libebb.so"))); err != nil {
		t.Fatal(err)
	}
	libs := launch.Libraries{Dir: dir, Preload: filepath.Join(dir, "torch_memory_saver/libebb.so"),
		Engine: filepath.Join(dir, "libebb-engine.so"), Soft: filepath.Join(dir, "softgpu")}
	environ := []string{"PATH=" + os.Getenv("PATH")}
	return examination{system: system{root: "/"}, getenv: launch.Lookup(environ),
		o: Options{Libraries: libs, Device: launch.DeviceAuto, Environ: environ}}, libs
}

func TestAnInstallation(t *testing.T) {
	x, libs := installed(t)
	expect(t, x.libraries(t.Context()), OK, libs.Dir)

	if err := os.WriteFile(libs.Engine, []byte("no library"), 0o600); err != nil {
		t.Fatal(err)
	}
	expect(t, x.libraries(t.Context()), Fail, libs.Engine+" is no library")
	if err := os.Remove(libs.Engine); err != nil {
		t.Fatal(err)
	}
	f := x.libraries(t.Context())
	expect(t, f, Fail, "incomplete", "EBB_LIB_DIR")
	if !strings.HasSuffix(f.Text, "no such file or directory") || !strings.HasPrefix(f.Remedy, "build or install it again") {
		t.Errorf("reason %q, remedy %q", f.Text, f.Remedy)
	}
	x.o.Device = launch.DeviceSoft
	expect(t, x.libraries(t.Context()), Fail, "incomplete")
}

// An engine of another version is what its own function says, not its name.
func TestAnEngineOfAnotherVersion(t *testing.T) {
	x, libs := installed(t)
	p := x.askPython(t.Context())
	if errors.Is(p.failed, exec.ErrNotFound) {
		t.Skip("no python3")
	}
	expect(t, judgePython(p), OK, p.Executable)
	expect(t, judgeVersions(p, p.Library.Version), OK, "ABI")
	expect(t, judgeVersions(p, "99.0"), Warn, "99.0")

	source := filepath.Join(t.TempDir(), "engine.c")
	const text = `const char *ebb_engine_version(void); const char *ebb_engine_version(void) { return "1 0.0.1"; }`
	if err := os.WriteFile(source, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("gcc", "-shared", "-fPIC", "-o", libs.Engine, source).CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v: %s", err, out)
	}
	p = x.askPython(t.Context())
	expect(t, judgeVersions(p, p.Library.Version), Fail, "libebb-engine.so of version 0.0.1 (ABI 1)", "refuse one another")
	if err := os.Remove(libs.Engine); err != nil {
		t.Fatal(err)
	}
	expect(t, judgeVersions(x.askPython(t.Context()), "1"), Fail, "libebb-engine.so cannot be loaded")
}

func TestPython(t *testing.T) {
	x, _ := installed(t)
	dir := t.TempDir()
	x.getenv = launch.Lookup([]string{"PATH=" + dir})
	expect(t, judgePython(x.askPython(t.Context())), Skip, "no python3 in PATH")
	for text, words := range map[string]string{
		"#!/bin/sh\necho hello\n":                           "does not answer",
		"#!/bin/sh\necho 'no module json' >&2\nexit 1\n":    "no module json",
		"#!/bin/sh\necho 'ebb-doctor {\"python\": \"3\"'\n": "cannot be asked",
	} {
		if err := os.WriteFile(filepath.Join(dir, "python3"), []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
		p := x.askPython(t.Context())
		expect(t, judgePython(p), Warn, words)
		expect(t, judgeVersions(p, "1"), Skip)
		expect(t, judgeTorch(p, x.getenv), Skip)
	}
	expect(t, judgePython(interpreter{Python: "3.12", Executable: "/usr/bin/python3", loader: "/lib/ld-musl-x86_64.so.1"}), Fail, "musl")
}

// The interpreter of a virtual environment is a link; what it leads to does not see the environment.
func TestAVirtualEnvironmentIsNotLeft(t *testing.T) {
	x, _ := installed(t)
	p := x.askPython(t.Context())
	if errors.Is(p.failed, exec.ErrNotFound) {
		t.Skip("no python3")
	}
	dir := t.TempDir()
	python := filepath.Join(dir, "bin/python3")
	if err := errors.Join(os.Mkdir(filepath.Dir(python), 0o700), os.Symlink(p.Executable, python),
		os.WriteFile(filepath.Join(dir, "pyvenv.cfg"), []byte("home = "+filepath.Dir(p.Executable)+"\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	x.getenv = launch.Lookup([]string{"PATH=" + filepath.Dir(python)})
	if p := x.askPython(t.Context()); p.failed != nil || p.Executable != python {
		t.Errorf("asked %q, %v; want %s", p.Executable, p.failed, python)
	}
}

func TestTorchAndItsSaver(t *testing.T) {
	none := launch.Lookup(nil)
	expect(t, judgeTorch(interpreter{}, none), Skip, "no PyTorch")
	expect(t, judgeTorch(interpreter{Torch: "2.11.0"}, launch.Lookup([]string{"PYTORCH_CUDA_ALLOC_CONF=a:1,expandable_segments:True"})),
		OK, "PyTorch 2.11.0", "expandable_segments:True", "managed too")
	p := interpreter{Executable: "/v/bin/python", Saver: "0.0.10"}
	for state, want := range map[adopt.State]Status{adopt.Adopted: OK, adopt.NotAdopted: OK, adopt.Replaced: Warn, adopt.Partly: Fail, adopt.Broken: Fail} {
		expect(t, judgeSaver(p, adopt.Report{State: state, Library: shim}, nil), want, "torch_memory_saver 0.0.10")
	}
	expect(t, judgeSaver(p, adopt.Report{}, errors.New("a layout that ebb does not know")), Warn, "layout")
	expect(t, judgeSaver(interpreter{}, adopt.Report{}, nil), Skip, "no torch_memory_saver")
}

func TestPreload(t *testing.T) {
	library := built(t)
	with := changed(t, "", map[string]string{"proc/self/maps": "7f0000000000-7f0000001000 r-xp 00000000 08:02 1  " + library + "\n"})
	expect(t, judgePreload(with, library), OK)
	expect(t, judgePreload(system{root: "/"}, library), Fail, "does not preload "+library, "noexec")
	expect(t, judgePreload(with, "/missing/libebb.so"), Skip)
}
