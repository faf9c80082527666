package main

import (
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ebb-offload/ebb/internal/testutil"
)

// built is a folder with the library, as the Makefile makes it, and testdata/abi.c as a program.
var built struct{ library, program string }

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "ebb-libebb-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	built.library = filepath.Join(dir, "lib/libebb-engine.so")
	built.program = filepath.Join(dir, "abi")
	for _, cmd := range [][]string{
		{"make", "--no-print-directory", "-C", "../..", "engine", "DIST=" + dir},
		{"cc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-I../../abi", "-o", built.program, "testdata/abi.c", "-pthread", "-ldl"},
	} {
		c := exec.Command(cmd[0], cmd[1:]...)
		// A make that runs this test hands its own flags on to no other.
		c.Env = slices.DeleteFunc(os.Environ(), func(v string) bool {
			return strings.HasPrefix(v, "MAKEFLAGS=") || strings.HasPrefix(v, "MFLAGS=") || strings.HasPrefix(v, "MAKELEVEL=")
		})
		if out, err := c.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n%s", strings.Join(cmd, " "), err, out)
			return 1
		}
	}
	return m.Run()
}

func TestLibraryExportsTheHeadersFunctionsAndNothingElse(t *testing.T) {
	f, err := elf.Open(built.library)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	symbols, err := f.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	var exported []string
	for _, s := range symbols {
		if s.Section != elf.SHN_UNDEF {
			exported = append(exported, s.Name)
		}
	}
	slices.Sort(exported)
	if diff := cmp.Diff(lines(t, "exports.txt"), exported); diff != "" {
		t.Errorf("exports differ from exports.txt (-, +):\n%s", diff)
	}

	header, err := os.ReadFile(filepath.Join(testutil.Root(t), "abi/ebb_engine.h"))
	if err != nil {
		t.Fatal(err)
	}
	var declared []string
	for _, m := range regexp.MustCompile(`\(\*(ebb_engine_\w+)_fn\)`).FindAllStringSubmatch(string(header), -1) {
		declared = append(declared, m[1])
	}
	slices.Sort(declared)
	if diff := cmp.Diff(declared, exported); diff != "" {
		t.Errorf("exports differ from abi/ebb_engine.h (-, +):\n%s", diff)
	}
}

// A loaded Go runtime cannot be unloaded, so dlclose must do nothing.
func TestLibraryStaysLoaded(t *testing.T) {
	f, err := elf.Open(built.library)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	flags, err := f.DynValue(elf.DT_FLAGS_1)
	if err != nil || len(flags) != 1 || flags[0]&uint64(elf.DF_1_NODELETE) == 0 {
		t.Errorf("DT_FLAGS_1 is %#x, %v: no NODELETE", flags, err)
	}
}

// Static TLS is scarce in a process that loads many libraries late.
func TestLibraryTakesOnePointerOfThreadLocalMemory(t *testing.T) {
	f, err := elf.Open(built.library)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_TLS && p.Memsz > 8 {
			t.Errorf("%d bytes of thread-local memory, want Go's 8", p.Memsz)
		}
	}
}

func TestLibrarySize(t *testing.T) {
	info, err := os.Stat(built.library)
	if err != nil {
		t.Fatal(err)
	}
	if limit := limit(t, "library_bytes"); info.Size() > limit {
		t.Errorf("the library has %d bytes, its limit is %d", info.Size(), limit)
	}
}

// The engine is linked into somebody's training process: what it brings along is on a list.
func TestDependencies(t *testing.T) {
	list := func(filter string) []string {
		out, err := exec.Command("go", "list", "-deps", "-f", "{{if "+filter+"}}{{.ImportPath}}{{end}}", ".").Output()
		if err != nil {
			t.Fatal(err)
		}
		names := strings.Fields(string(out))
		slices.Sort(names)
		return names
	}
	if diff := cmp.Diff(lines(t, "deps.txt"), list("not .Standard")); diff != "" {
		t.Errorf("packages differ from deps.txt (-, +):\n%s", diff)
	}
	denied := map[string]string{
		"net":           "the engine opens no sockets",
		"net/http":      "the engine serves nobody",
		"os/exec":       "the engine starts no processes",
		"os/signal":     "signals belong to the host",
		"os/user":       "its look-ups call the host's name service",
		"plugin":        "the engine loads no code but the driver",
		"flag":          "the engine has no command line",
		"testing":       "it is for tests",
		"text/template": "it makes the linker keep every method",
		"runtime/pprof": "the engine does not profile its host",
		"runtime/trace": "the engine does not profile its host",
	}
	for _, name := range list(".Standard") {
		if why, ok := denied[name]; ok {
			t.Errorf("the library contains %s: %s", name, why)
		}
	}
}

// Each scenario of testdata/abi.c in a process of its own.
func TestCallsFromC(t *testing.T) {
	for _, scenario := range []string{
		"before start", "starting", "round trip", "foreign pointers", "null arguments", "result size",
		"reading", "safe points", "unmanaged", "error text", "error json", "long error", "status", "panics", "objects", "streamed state",
	} {
		t.Run(scenario, func(t *testing.T) {
			if out, err := abi(t, scenario); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

func TestThreadsOfAnEngineThatDidNotPauseYet(t *testing.T) {
	out, err := abi(t, "threads")
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	n, err := strconv.ParseInt(strings.TrimSpace(out), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	if limit := limit(t, "threads_after_first_allocation"); n > limit {
		t.Errorf("%d threads, the limit is %d", n, limit)
	}
}

// What the owner's calls on memory that is managed take more than the driver's own; see "overhead"
// in testdata/abi.c.
func BenchmarkOverheadOfTheDriversCalls(b *testing.B) {
	out, err := abi(b, "overhead")
	if err != nil {
		b.Fatalf("%v\n%s", err, out)
	}
	for line := range strings.Lines(out) {
		var call string
		var ns float64
		if _, err := fmt.Sscan(line, &call, &ns); err != nil {
			b.Fatalf("%q: %v", line, err)
		}
		b.ReportMetric(ns, call+"-ns")
	}
	b.ReportMetric(0, "ns/op")
}

// abi runs a scenario on a software device of its own.
func abi(t testing.TB, scenario string) (string, error) {
	t.Helper()
	cmd := exec.Command(built.program, built.library, testutil.SoftGPU(t), scenario)
	cmd.Env = append(os.Environ(),
		"XDG_RUNTIME_DIR="+t.TempDir(), // where softgpu keeps the account of a node
		"SOFTGPU_NODE=libebb", "SOFTGPU_MEM_MB=64", "SOFTGPU_DEVICES=1", "SOFTGPU_GRANULARITY_KB=64",
		"GOMAXPROCS=64", // of the host: not for the engine
	)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func lines(t *testing.T, name string) []string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(string(text))
}

func limit(t *testing.T, name string) int64 {
	t.Helper()
	text, err := os.ReadFile("limits.txt")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			n, err := strconv.ParseInt(strings.TrimSpace(value), 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatalf("limits.txt has no %s", name)
	return 0
}
