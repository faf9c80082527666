package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// badInput runs a case of endurance_bad.py, under a preload of its own where one is given.
func badInput(t *testing.T, name string, preload ...string) outcome {
	t.Helper()
	n := newNode(t, 128)
	cmd := n.victim(t, "endurance_bad.py", name)
	cmd.Env = append(cmd.Env, "PYTHONPATH="+testdir+":"+filepath.Join(root, "test/python")+":"+filepath.Join(root, "python"))
	if len(preload) > 0 {
		cmd.Env = append(cmd.Env, "LD_PRELOAD="+strings.Join(preload, ":"))
	}
	o := run(t, cmd)
	if o.status != 0 {
		t.Fatal(o)
	}
	wantNoFiles(t, n.disk)
	return o
}

func TestDiskDirectoryMayDisappearWhileNothingIsPaused(t *testing.T) {
	o := badInput(t, "disk_directory_disappears")
	if said := remarks(o.stderr); len(said) > 1 {
		t.Errorf("want at most one line, got %q", said)
	}
}

func TestMemoryLargerThanTheDeviceIsRefused(t *testing.T) {
	badInput(t, "larger_than_the_device")
}

func TestARegionLeftByAnExceptionHarmsNothing(t *testing.T) {
	badInput(t, "region_left_open")
}

func TestALibraryListedTwiceIsOne(t *testing.T) {
	one, other := lib("libebb.so"), lib("torch_memory_saver/libebb.so")
	for _, preload := range [][]string{{one, one}, {one, other}, {other, one, other}} {
		o := badInput(t, "listed_twice", preload...)
		if strings.TrimSpace(o.stdout) != "['libebb-engine.so', 'libebb.so']" || len(remarks(o.stderr)) > 0 {
			t.Errorf("%q: want each library once and nothing said, got %v", preload, o)
		}
	}
}

// The engine beside the library is not the one that was built with it.
func TestAnEngineOfAnotherVersionIsRefusedInOneLine(t *testing.T) {
	var abi, version string
	for line := range strings.Lines(string(readFile(t, filepath.Join(root, "abi/ebb_engine.h")))) {
		_, _ = fmt.Sscanf(line, "#define EBB_ENGINE_ABI %s", &abi)
		_, _ = fmt.Sscanf(line, "#define EBB_VERSION %q", &version)
	}
	abi = strings.TrimSuffix(abi, "u")
	exports := strings.Fields(string(readFile(t, filepath.Join(root, "cmd/libebb/exports.txt"))))
	if abi == "" || version == "" || len(exports) < 10 {
		t.Fatalf("ABI %q, version %q, exports %q", abi, version, exports)
	}
	library := readFile(t, lib("libebb.so"))

	for name, c := range map[string]struct {
		engine []string // functions of the engine; none: there is no engine
		want   []string
	}{
		"another ABI":     {exports, []string{"ABI 77", "9.8.7", "ABI " + abi, version}},
		"without a call":  {without(exports, "ebb_engine_read"), []string{"ebb_engine_read", version}},
		"no engine":       {nil, []string{version}},
		"no library file": {[]string{}, []string{version}},
	} {
		t.Run(name, func(t *testing.T) {
			folder := filepath.Join(work, strings.ReplaceAll(t.Name(), "/", "_"))
			engine := filepath.Join(folder, "libebb-engine.so")
			preload := filepath.Join(folder, "libebb.so")
			if err := os.Mkdir(folder, 0o700); err != nil {
				t.Fatal(err)
			}
			writeFile(t, preload, library)
			switch {
			case len(c.engine) > 0:
				compileEngine(t, engine, c.engine)
			case c.engine != nil:
				writeFile(t, engine, []byte("not a library\n"))
			}

			o := badInput(t, "another_version", preload)
			said := remarks(o.stderr)
			if len(said) != 1 || strings.Count(o.stderr, "\n") != 1 {
				t.Fatalf("want one line, got %v", o)
			}
			for _, text := range []string{said[0], o.stdout} { // the line, and what callers are told
				for _, want := range append(c.want, engine) {
					if !strings.Contains(text, want) {
						t.Errorf("%q does not name %s", text, want)
					}
				}
			}
		})
	}
}

// compileEngine makes an engine that has functions, whose version is 9.8.7 with ABI 77, and which
// ends the process when anything but that is asked of it.
func compileEngine(t *testing.T, path string, functions []string) {
	t.Helper()
	source := "#include <stdlib.h>\nconst char *ebb_engine_version(void) { return \"77 9.8.7\"; }\n"
	for _, f := range without(functions, "ebb_engine_version") {
		source += "int " + f + "(void) { abort(); }\n"
	}
	cmd := exec.Command("gcc", "-std=c11", "-shared", "-fPIC", "-x", "c", "-", "-o", path)
	cmd.Stdin = strings.NewReader(source)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", cmd.Args, err, out)
	}
}

func without(list []string, name string) []string {
	var rest []string
	for _, item := range list {
		if item != name {
			rest = append(rest, item)
		}
	}
	return rest
}

func readFile(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func writeFile(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}
