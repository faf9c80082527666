// Package testutil has what tests of several packages share: where the repository is and where
// its built parts are. Only tests import it.
package testutil

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// root is the folder of go.mod above this file. -trimpath builds do not know their sources, so
// the working directory of a test, which is its package's folder, is the start then.
var root = sync.OnceValue(func() string {
	dir, err := os.Getwd()
	if _, file, _, ok := runtime.Caller(0); ok && filepath.IsAbs(file) {
		dir = filepath.Dir(file)
	} else if err != nil {
		return ""
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		up := filepath.Dir(dir)
		if up == dir {
			return ""
		}
		dir = up
	}
})

// Root is the absolute path of the repository.
func Root(t testing.TB) string {
	t.Helper()
	if root() == "" {
		t.Fatal("the repository is not found: no go.mod above the test's folder")
	}
	return root()
}

// SoftGPU is the path of softgpu's driver library. The test fails when it is not built.
func SoftGPU(t testing.TB) string {
	t.Helper()
	return built(t, "dist/lib/softgpu/libcuda.so.1", "make -C softgpu")
}

// memory is where Linux has a file system in memory for everybody.
const memory = "/dev/shm"

// InMemory is an empty directory for a test that tells calls which hang from those which do not by a limit of
// a second: in memory, where that is possible, since a busy disk may take longer.
func InMemory(t testing.TB) string {
	t.Helper()
	var st unix.Statfs_t
	if err := unix.Statfs(memory, &st); err != nil || st.Type != unix.TMPFS_MAGIC {
		return t.TempDir()
	}
	dir, err := os.MkdirTemp(memory, "ebb-test-")
	if err != nil {
		return t.TempDir()
	}
	return removed(t, dir)
}

// InBuild is an empty directory for a test in the folder build of the repository, on the disk that holds it: the one
// for temporary files may lie in memory, where ebb keeps nothing.
func InBuild(t testing.TB, prefix string) string {
	t.Helper()
	build := filepath.Join(Root(t), "build")
	if err := os.MkdirAll(build, 0o755); err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp(build, prefix)
	if err != nil {
		t.Fatal(err)
	}
	return removed(t, dir)
}

// Started waits until the kernel tells of the environment of a process that was just started. Whoever starts one goes on
// when its program has been replaced, which is a moment before.
func Started(t testing.TB, pid int) {
	t.Helper()
	for {
		environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		if err != nil {
			t.Fatal(err)
		}
		if len(environ) > 0 {
			return
		}
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil || strings.Contains(string(status), "\nState:\tZ") {
			t.Fatalf("process %d has ended: %v", pid, err)
		}
	}
}

// removed has a directory removed when the test ends.
func removed(t testing.TB, dir string) string {
	t.Helper()
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// longTemp is of how many bytes the path of the directory for temporary files is too long for sockets below it: a
// socket's path holds 107 bytes, and ebb's name for one 62.
const longTemp = 12

// NewSocketDir makes an empty directory whose path is short, wherever temporary files are: control sockets have room in
// it, and in directories in it with names of 20 bytes. The caller removes it.
func NewSocketDir() (string, error) {
	base := os.TempDir()
	if len(base) > longTemp {
		base = "/tmp"
	}
	return os.MkdirTemp(base, "ebb-")
}

// SocketDir is NewSocketDir for one test.
func SocketDir(t testing.TB) string {
	t.Helper()
	dir, err := NewSocketDir()
	if err != nil {
		t.Fatal(err)
	}
	return removed(t, dir)
}

// OnSoftGPU runs the tests of a package, as the body of its TestMain, with softgpu set up for this
// process alone: settings are SOFTGPU_ variables without that prefix. The result is for os.Exit.
func OnSoftGPU(m *testing.M, settings map[string]string) int {
	// softgpu keeps the account of a node there.
	dir, err := os.MkdirTemp("", "ebb-softgpu-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }() // what is left is in the system's folder for such
	env := map[string]string{"XDG_RUNTIME_DIR": dir, "SOFTGPU_NODE": "test"}
	for name, value := range settings {
		env["SOFTGPU_"+name] = value
	}
	for name, value := range env {
		if err := os.Setenv(name, value); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	return m.Run()
}

// built is the path of a built file; the test fails, naming the command, when it is missing.
func built(t testing.TB, path, command string) string {
	t.Helper()
	full := filepath.Join(Root(t), path)
	if _, err := os.Stat(full); err != nil {
		t.Fatalf("%s is not built: run %s", path, command)
	}
	return full
}
