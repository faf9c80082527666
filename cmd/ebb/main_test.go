package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/ebb-offload/ebb/internal/launch"
	"github.com/ebb-offload/ebb/internal/testutil"
)

// The test binary is also ebb and rank, when it is called by these names.
func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"ebb":  main,
		"rank": func() { os.Exit(actAsRank(os.Args[1:])) },
	})
}

// hang is when waiting counts as waiting for ever. Nothing waits this long unless it is broken.
const hang = 10 * time.Minute

// long is set by make test-long.
var long = os.Getenv("EBB_TEST_LONG") == "1"

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		WorkdirRoot:         workRoot(t),
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(e *testscript.Env) error {
			for _, variable := range environment(t, filepath.Base(e.WorkDir)) {
				name, value, _ := strings.Cut(variable, "=")
				e.Setenv(name, value)
			}
			e.Setenv("DISK", filepath.Join(e.WorkDir, "disk"))
			b := background{}
			e.Values[background{}.key()] = b
			e.Defer(b.killAll)
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": cmdExits, "start": cmdStart, "signal": cmdSignal, "finish": cmdFinish,
			"await": cmdAwait, "clean": cmdClean, "ended": cmdEnded,
		},
	})
}

// environment is what ebb under test needs to know: where the libraries are, and a software
// device that no other test has.
func environment(t testing.TB, node string) []string {
	t.Helper()
	lib := filepath.Join(testutil.Root(t), "dist", "lib")
	for _, file := range []string{"torch_memory_saver/libebb.so", "libebb-engine.so", "softgpu/libcuda.so.1"} {
		if _, err := os.Stat(filepath.Join(lib, file)); err != nil {
			t.Fatalf("%v (run make build)", err)
		}
	}
	return []string{
		"EBB_LIB_DIR=" + lib, "SOFTGPU_MEM_MB=64", "LC_ALL=C.UTF-8",
		"GORACE=atexit_sleep_ms=0 halt_on_error=1", // the race detector else sleeps at every exit
		fmt.Sprintf("SOFTGPU_NODE=cli-%d-%s", os.Getpid(), node),
	}
}

// workRoot is a directory for a test's files on the disk that holds the repository.
func workRoot(t testing.TB) string {
	t.Helper()
	return testutil.InBuild(t, "cli-")
}

// eventually waits for a condition. what says what is missing.
func eventually(what string, condition func() bool) error { return within(hang, what, condition) }

func within(limit time.Duration, what string, condition func() bool) error {
	for deadline := time.Now().Add(limit); !condition(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			return fmt.Errorf("%s: not seen in %v", what, limit)
		}
	}
	return nil
}

// ends waits for a started command and returns its exit status, 128 + a signal, or -1 if it
// hangs.
func ends(cmd *exec.Cmd) int {
	giveUp := time.AfterFunc(hang, func() { _ = cmd.Process.Kill() })
	err := cmd.Wait()
	if !giveUp.Stop() {
		return -1
	}
	return statusOf(err)
}

// exits STATUS CMD ARG... runs a command that must end with that exit status.
func cmdExits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits status command [args...]")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	err = ts.Exec(args[1], args[2:]...)
	if got := statusOf(err); got != want {
		ts.Fatalf("exit status %d, want %d (%v)", got, want, err)
	}
}

// statusOf is the exit status of a command that was run, or 128 + the signal that ended it.
func statusOf(err error) int {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		if w, ok := exit.Sys().(syscall.WaitStatus); ok && w.Signaled() {
			return 128 + int(w.Signal())
		}
		return exit.ExitCode()
	}
	return -1
}

// background are the commands that a script has started, by name.
type background map[string]*exec.Cmd

func (background) key() string { return "background" }

func (b background) killAll() {
	for _, cmd := range b {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
}

func started(ts *testscript.TestScript) background {
	return ts.Value(background{}.key()).(background)
}

// start NAME CMD ARG... starts a command, whose output goes to NAME.out and NAME.err.
func cmdStart(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: start name command [args...]")
	}
	name := args[0]
	path, err := launch.FindCommand(args[1], ts.Getenv("PATH"))
	ts.Check(err)
	cmd := exec.Command(path, args[2:]...)
	cmd.Args[0] = args[1]
	cmd.Dir, cmd.Env = ts.MkAbs("."), append(scriptEnvironment(ts), "PWD="+ts.MkAbs("."))
	out, err := os.OpenFile(ts.MkAbs(name+".out"), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	ts.Check(err)
	defer out.Close()
	errs, err := os.OpenFile(ts.MkAbs(name+".err"), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	ts.Check(err)
	defer errs.Close()
	cmd.Stdout, cmd.Stderr = out, errs
	ts.Check(cmd.Start())
	started(ts)[name] = cmd
}

// scriptEnvironment is the environment that the script's own commands get.
func scriptEnvironment(ts *testscript.TestScript) []string {
	var env []string
	ts.Check(ts.Exec("env", "-0"))
	for _, variable := range strings.Split(ts.ReadFile("stdout"), "\x00") {
		if strings.Contains(variable, "=") {
			env = append(env, variable)
		}
	}
	return env
}

// signal NAME SIGNAL sends a signal to a started command.
func cmdSignal(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 || started(ts)[args[0]] == nil {
		ts.Fatalf("usage: signal name SIGNAL")
	}
	sig, err := signalNamed(args[1])
	ts.Check(err)
	ts.Check(started(ts)[args[0]].Process.Signal(sig))
}

// finish NAME STATUS waits for a started command, which must end with that exit status.
func cmdFinish(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 || started(ts)[args[0]] == nil {
		ts.Fatalf("usage: finish name status")
	}
	cmd := started(ts)[args[0]]
	delete(started(ts), args[0])
	want, err := strconv.Atoi(args[1])
	ts.Check(err)
	if got := ends(cmd); got != want {
		ts.Fatalf("%s: exit status %d, want %d\n%s%s", args[0], got, want, ts.ReadFile(args[0]+".out"), ts.ReadFile(args[0]+".err"))
	}
}

// await FILE... waits until there are files of these names, which may hold patterns.
func cmdAwait(ts *testscript.TestScript, neg bool, args []string) {
	for _, file := range args {
		ts.Check(eventually(file, func() bool {
			found, err := filepath.Glob(ts.MkAbs(file))
			return err == nil && (len(found) > 0) != neg
		}))
	}
}

// clean DIR... checks that the directories hold nothing but ebb's own, empty one.
func cmdClean(ts *testscript.TestScript, neg bool, args []string) {
	for _, dir := range args {
		left := leftovers(ts.MkAbs(dir))
		if !neg && len(left) > 0 {
			ts.Fatalf("left behind: %q", left)
		}
		if neg && len(left) == 0 {
			ts.Fatalf("%s holds nothing", dir)
		}
	}
}

// leftovers lists what is below a disk directory.
func leftovers(dir string) []string {
	var left []string
	_ = filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if rel, _ := filepath.Rel(dir, path); err == nil && rel != "." && rel != ".ebb" {
			left = append(left, rel)
		}
		return nil
	})
	return left
}

// ended FILE... waits until the processes whose numbers are in the files have ended.
func cmdEnded(ts *testscript.TestScript, neg bool, args []string) {
	for _, file := range args {
		pid := strings.TrimSpace(ts.ReadFile(file))
		if neg {
			if !runs(pid) {
				ts.Fatalf("process %s has ended", pid)
			}
			continue
		}
		ts.Check(eventually("end of process "+pid, func() bool { return !runs(pid) }))
	}
}

// runs reports whether a process exists and is no zombie. Where its first thread has ended, another one that
// is about to end may still hold its files and leases.
func runs(pid string) bool {
	stat, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return false
	}
	_, after, _ := strings.Cut(string(stat), ") ")
	if !strings.HasPrefix(after, "Z") && !strings.HasPrefix(after, "X") {
		return true
	}
	threads, err := os.ReadDir("/proc/" + pid + "/task")
	return err == nil && len(threads) > 1
}
