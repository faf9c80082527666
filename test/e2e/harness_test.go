package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/ebb-offload/ebb/internal/testutil"
)

// hangs is when a victim counts as hanging.
const hangs = 10 * time.Minute

// Paths of what is tested, and of the helpers that TestMain compiles.
var (
	root    string // the repository
	work    string // folder of this run, removed at its end; on the repository's file system
	testdir string // testdata, absolute
	sockets string // directories of the nodes' control sockets; its path is short, as theirs must be
	probe   string // preloaded library that reports how a process ends up
	refuse  string // runs a program to which the kernel refuses O_DIRECT
)

func lib(name string) string { return filepath.Join(root, "dist/lib", name) }

func TestMain(m *testing.M) {
	// Victims begin with signals as they are by default, also where the tests run under nohup or behind "&".
	for _, sig := range []os.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT} {
		if signal.Ignored(sig) {
			signal.Notify(make(chan os.Signal, 1), sig) // a signal that is caught is not ignored after an exec
		}
	}
	status, err := runAll(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		status = 1
	}
	os.Exit(status)
}

func runAll(m *testing.M) (status int, err error) {
	if root, err = filepath.Abs("../.."); err != nil {
		return 1, err
	}
	testdir = filepath.Join(root, "test/e2e/testdata")
	for _, need := range []string{"dist/bin/ebb", "dist/lib/libebb.so", "dist/lib/libebb-engine.so", "dist/lib/torch_memory_saver/libebb.so", "dist/lib/softgpu/libcuda.so.1", "dist/lib/softgpu/libcudart.so.13"} {
		if _, err := os.Stat(filepath.Join(root, need)); err != nil {
			return 1, fmt.Errorf("%w (run make build)", err)
		}
	}
	if err := os.MkdirAll(filepath.Join(root, "build"), 0o755); err != nil {
		return 1, err
	}
	if work, err = os.MkdirTemp(filepath.Join(root, "build"), "e2e-"); err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	if sockets, err = testutil.NewSocketDir(); err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(sockets)) }()
	defer func() { // softgpu removes the account of a node when the same user starts one after it
		left, _ := filepath.Glob(fmt.Sprintf("/dev/shm/softgpu-*-e2e-%d-*", os.Getpid()))
		for _, file := range left { // so does any other process that starts with softgpu, also at this moment
			if e := os.Remove(file); !errors.Is(e, fs.ErrNotExist) {
				err = errors.Join(err, e)
			}
		}
	}()

	probe = filepath.Join(work, "probe.so")
	refuse = filepath.Join(work, "refuse_direct")
	for _, args := range [][]string{
		{"-shared", "-fPIC", "-o", probe, filepath.Join(testdir, "probe.c")},
		{"-o", refuse, filepath.Join(testdir, "refuse_direct.c")},
	} {
		cmd := exec.Command("gcc", append([]string{"-std=c11", "-Wall", "-Wextra", "-Werror"}, args...)...)
		if out, err := cmd.CombinedOutput(); err != nil {
			return 1, fmt.Errorf("%v: %w\n%s", cmd.Args, err, out)
		}
	}
	return m.Run(), nil
}

// node is a software GPU with a disk directory; one test's processes share it.
type node struct {
	name  string
	memMB int
	disk  string
	env   []string // added to every process, after the harness's own
}

var nodes atomic.Int64

func newNode(t *testing.T, memMB int) *node {
	t.Helper()
	name := fmt.Sprintf("e2e-%d-%d", os.Getpid(), nodes.Add(1))
	disk := filepath.Join(work, name)
	if err := os.Mkdir(disk, 0o700); err != nil {
		t.Fatal(err)
	}
	return &node{name: name, memMB: memMB, disk: disk}
}

// process is a command on a node. Its environment holds nothing of the developer's but PATH and
// HOME. It leads a process group, so that all of it can be ended, and ends with the tests, whatever ends them.
func (n *node) process(t *testing.T, name string, args ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), hangs)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append([]string{
		"PATH=" + os.Getenv("PATH"),
		"HOME=" + os.Getenv("HOME"),
		"LC_ALL=C.UTF-8",
		"PYTHONPATH=" + testdir + ":" + filepath.Join(root, "test/python"),
		"PYTHONDONTWRITEBYTECODE=1",
		"LD_LIBRARY_PATH=" + lib("softgpu"),
		"SOFTGPU_NODE=" + n.name,
		"SOFTGPU_MEM_MB=" + strconv.Itoa(n.memMB),
		"TMS_DISK_BACKUP_DIR=" + n.disk,
		"EBB_RUNTIME_DIR=" + filepath.Join(sockets, n.name),
		"TMS_DISK_BACKUP_CHUNK_MB=16",
		"E2E_DISK=" + n.disk,
	}, n.env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

// victim is a Python program of testdata under the preloaded library.
func (n *node) victim(t *testing.T, script string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := n.process(t, "python3", append([]string{filepath.Join(testdir, script)}, args...)...)
	cmd.Env = append(cmd.Env, "LD_PRELOAD="+lib("torch_memory_saver/libebb.so"))
	return cmd
}

// outcome is how a process ended.
type outcome struct {
	status         int // exit status, or 128 + signal
	stdout, stderr string
}

func (o outcome) String() string {
	return fmt.Sprintf("status %d\n--- stdout\n%s--- stderr\n%s", o.status, o.stdout, o.stderr)
}

// run runs cmd to its end. Streams that the caller has set stay as they are.
func run(t *testing.T, cmd *exec.Cmd) outcome {
	t.Helper()
	var stdout, stderr bytes.Buffer
	if cmd.Stdout == nil {
		cmd.Stdout = &stdout
	}
	if cmd.Stderr == nil {
		cmd.Stderr = &stderr
	}
	begin := time.Now()
	err := cmd.Run()
	o := outcome{stdout: stdout.String(), stderr: stderr.String()}
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		o.status = exit.ExitCode()
		if w, ok := exit.Sys().(syscall.WaitStatus); ok && w.Signaled() {
			o.status = 128 + int(w.Signal())
		}
	case err != nil:
		t.Fatalf("%v: %v\n%v", cmd.Args, err, o)
	}
	if time.Since(begin) >= hangs {
		t.Fatalf("%v: hangs\n%v", cmd.Args, o)
	}
	return o
}

// succeed runs cmd, which must end with status 0, and returns its standard output.
func succeed(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	o := run(t, cmd)
	if o.status != 0 {
		t.Fatalf("%v: %v", cmd.Args, o)
	}
	return o.stdout
}

// leftovers lists the backup files anywhere under a directory.
func leftovers(t *testing.T, dir string) []string {
	t.Helper()
	var found []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && strings.HasSuffix(path, ".bak") {
			found = append(found, path)
		}
		return unlessGone(dir, path, err)
	})
	if err != nil {
		t.Fatal(err)
	}
	sort.Strings(found)
	return found
}

// unlessGone is the error of a walk, but for what was removed while it came to it: that is left by nobody.
func unlessGone(dir, path string, err error) error {
	if path != dir && errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func wantNoFiles(t *testing.T, dir string) {
	t.Helper()
	if left := leftovers(t, dir); len(left) > 0 {
		t.Errorf("backup files left behind: %q", left)
	}
}
