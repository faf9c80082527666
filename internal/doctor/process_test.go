package doctor

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ebb-offload/ebb/internal/control"
	"github.com/ebb-offload/ebb/internal/launch"
	"github.com/ebb-offload/ebb/internal/rankdir"
	"github.com/ebb-offload/ebb/internal/testutil"
)

const (
	shim   = "/opt/ebb/lib/libebb.so"
	engine = "/opt/ebb/lib/libebb-engine.so"
	saver  = "/v/site-packages/torch_memory_saver_hook_mode_preload.abi3.so"
)

func TestEbbInAProcess(t *testing.T) {
	const preload = "/opt/ebb/lib/torch_memory_saver/libebb.so"
	libc := "/lib/libc.so.6"
	for _, c := range []struct {
		name    string
		files   []string
		preload string
		own     string
		status  Status
		words   string
	}{
		{"at work", []string{libc, shim, engine}, preload, shim, OK, "with its engine"},
		{"no memory yet", []string{libc, shim}, preload, shim, OK, "not loaded yet"},
		{"not there", []string{libc}, "", shim, Fail, "ebb run"},
		{"passed over", []string{libc}, preload, shim, Fail, "passed over it"},
		{"of another installation", []string{shim, engine}, preload, "/other/libebb.so", OK, "not the one of this ebb"},
		{"not preloaded", []string{shim, engine}, "", shim, OK, "not preloaded"},
		{"two copies", []string{shim, "/other/libebb.so", engine}, preload, shim, Warn, "2 copies"},
		{"replaced meanwhile", []string{shim + deleted, engine + deleted}, preload, shim, Warn, "installed anew"},
	} {
		t.Run(c.name, func(t *testing.T) { expect(t, judgeLibrary(c.files, c.preload, c.own), c.status, c.words) })
	}
}

func TestOtherSavers(t *testing.T) {
	expect(t, judgeSavers([]string{shim}, shim), OK, "no other memory saver")
	expect(t, judgeSavers([]string{shim}, shim+":/x/libjemalloc.so"), OK, "preloaded as well: /x/libjemalloc.so")
	expect(t, judgeSavers([]string{shim, saver}, shim), Fail, saver, "ebb adopt")
	// Ebb's own library lies in a folder of that name.
	expect(t, judgeSavers([]string{"/opt/ebb/lib/torch_memory_saver/libebb.so"}, ""), OK)
}

func TestRuntimes(t *testing.T) {
	self, err := os.Executable() // a program of Go
	if err != nil {
		t.Fatal(err)
	}
	as := func(file string) string { return file }
	expect(t, judgeRuntimes([]string{"/missing/libc.so.6", engine}, as), OK, "no Go runtime but the engine's")
	expect(t, judgeRuntimes([]string{engine, self}, as), Warn, "second Go runtime", self)
	expect(t, judgeRuntimes([]string{engine, "/copy/libebb-engine.so"}, as), Fail, "two engines")
	expect(t, judgeRuntimes([]string{"/lib/ld-musl-x86_64.so.1"}, as), Fail, "musl")
}

// processRoot is a root with one process.
func processRoot(t *testing.T, state string, environ, files []string) system {
	t.Helper()
	var maps strings.Builder
	maps.WriteString("7f0000000000-7f0000001000 rw-p 00000000 00:00 0 \n")
	for i, f := range files {
		for range 2 { // a file has several mappings
			fmt.Fprintf(&maps, "7f%010x-7f%010x r-xp 00001000 08:02 135522                     %s\n", i, i+1, f)
		}
	}
	maps.WriteString("7ffc00000000-7ffc00021000 rw-p 00000000 00:00 0                          [stack]\n")
	return changed(t, "", map[string]string{
		"proc/4711/root" + shim: "a library", "proc/4711/maps": maps.String(), "proc/4711/environ": strings.Join(environ, "\x00") + "\x00", "proc/4711/comm": "python3\n",
		"proc/4711/status": "Name:\tpython3\nState:\t" + state + "\nUid:\t1000\t1000\t1000\t1000\n",
	})
}

func lookAtProcess(t *testing.T, s system) map[string]Finding {
	t.Helper()
	x := examination{system: s}
	x.o.Libraries.Preload = shim
	rows := map[string]Finding{}
	for _, f := range x.process(4711).run(t.Context(), hangs) {
		rows[f.Check] = f
	}
	return rows
}

func TestAProcess(t *testing.T) {
	environ := []string{"LD_PRELOAD=" + shim, "CUDA_LAUNCH_BLOCKING=1", "EBB_CONTROL=0", "HF_TOKEN=secret"}
	rows := lookAtProcess(t, processRoot(t, "S (sleeping)", environ, []string{shim, saver}))
	expect(t, rows["process"], OK, "python3, of user 1000, waiting for something")
	expect(t, rows["process-library"], OK, shim)
	expect(t, rows["process-savers"], Fail, saver)
	expect(t, rows["process-control"], OK, "EBB_CONTROL=0")
	expect(t, rows["process-environment"], Warn, "CUDA_LAUNCH_BLOCKING=1")
	if strings.Contains(fmt.Sprint(rows), "secret") {
		t.Error("a token is told")
	}
}

func TestAProcessThatIsStoppedOrHangs(t *testing.T) {
	expect(t, lookAtProcess(t, processRoot(t, "T (stopped)", nil, nil))["process"], Warn, "stopped", "kill -CONT 4711")
	expect(t, lookAtProcess(t, processRoot(t, "D (disk sleep)", nil, nil))["process"], Warn, "nothing can end it", "/proc/4711/stack")
	rows := lookAtProcess(t, processRoot(t, "Z (zombie)", nil, nil))
	expect(t, rows["process"], Fail, "ended")
	expect(t, rows["process-library"], Skip)
	if rows := lookAtProcess(t, changed(t, "", nil)); rows["process"].Status != Fail || !strings.Contains(rows["process"].Text, "no process 4711") {
		t.Errorf("none: %+v", rows["process"])
	}
}

// A rank whose engine takes the call and says nothing: stopped, or hanging.
func TestARankThatDoesNotAnswer(t *testing.T) {
	self, err := rankdir.Self() // this process is the rank
	if err != nil {
		t.Fatal(err)
	}
	dir := testutil.SocketDir(t)
	l, err := net.Listen("unix", filepath.Join(dir, control.SocketName(self)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	x := examination{system: system{root: "/"}}
	p := &program{x: x, pid: os.Getpid(), dir: "/proc/self", getenv: launch.Lookup([]string{"EBB_RUNTIME_DIR=" + dir})}
	expect(t, p.control(t.Context()), Fail, "no answer on "+dir, " in 2s", "ebb status says more")
}

func TestGlibcVersions(t *testing.T) {
	if got := newest([]string{"GLIBC_2.2.5", "GLIBC_2.34", "GLIBC_2.4", "GLIBC_PRIVATE", "GCC_3.0"}); got.String() != "2.34" {
		t.Errorf("the newest is %v", got)
	}
	if !(glibcVersion{2, 9}).less(glibcVersion{2, 34}) || (glibcVersion{3, 0}).less(glibcVersion{2, 34}) {
		t.Error("versions are compared as numbers, part by part")
	}
	library := built(t)
	// A process with a C library, as /proc/self/maps tells.
	libc := mappedIn(t, "/proc/self/maps", "libc.so.6")
	expect(t, judgeGlibc(system{root: "/"}, library), OK, "glibc 2.", "need 2.")
	if have, err := offeredGlibc(libc); err != nil || !have.known() {
		t.Errorf("the system's is %v, %v", have, err)
	}
	// A C library that offers less than is needed: ebb's own defines no version at all, as musl's.
	old := changed(t, "", map[string]string{"proc/self/maps": "7f0000000000-7f0000001000 r-xp 00000000 08:02 1 /lib/libc.so.6\n"})
	copyFile(t, library, old.path("lib/libc.so.6"))
	expect(t, judgeGlibc(old, library), Skip, "cannot be read")
}

// oldC is a C library that offers no more than version 2.17.
const oldC = `int f(void); int f(void) { return 1; }`

func TestAGlibcThatIsTooOld(t *testing.T) {
	dir := t.TempDir()
	source, script, made := filepath.Join(dir, "c.c"), filepath.Join(dir, "c.map"), filepath.Join(dir, "libc.so.6")
	for file, text := range map[string]string{source: oldC, script: "GLIBC_2.17 { global: f; local: *; };"} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := exec.Command("gcc", "-shared", "-fPIC", "-nostdlib", "-o", made, "-Wl,--version-script="+script, source).CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v: %s", err, out)
	}
	s := changed(t, "", map[string]string{"proc/self/maps": "7f0000000000-7f0000001000 r-xp 00000000 08:02 1 /lib/libc.so.6\n"})
	copyFile(t, made, s.path("lib/libc.so.6"))
	expect(t, judgeGlibc(s, built(t)), Fail, "glibc is 2.17", "need 2.34")
}
