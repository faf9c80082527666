package clusters

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

var root string // the repository

func TestMain(m *testing.M) {
	if os.Getenv("EBB_TEST_LONG") == "" {
		fmt.Println("the tests of clusters run with EBB_TEST_LONG=1 only (make test-clusters)")
		os.Exit(0)
	}
	status, err := prepare(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "clusters:", err)
		status = 1
	}
	os.Exit(status)
}

func prepare(m *testing.M) (int, error) {
	var err error
	if root, err = filepath.Abs("../.."); err != nil {
		return 1, err
	}
	for _, need := range []string{"dist/bin/ebb", "dist/bin/demo-train", "dist/lib/libebb.so", "dist/lib/softgpu/libcuda.so.1"} {
		if _, err := os.Stat(filepath.Join(root, need)); err != nil {
			return 1, fmt.Errorf("%w (run make build)", err)
		}
	}
	return m.Run(), nil
}

// missing skips a test for want of something on the machine, or fails it where all must run.
func missing(t *testing.T, step string, err error) {
	t.Helper()
	if os.Getenv("EBB_TEST_CLUSTERS") == "all" {
		t.Fatalf("%s: %v", step, err)
	}
	t.Skipf("skipped: %s: %v", step, err)
}

// installed are the packages that were asked for: each is tried once.
var installed struct {
	sync.Mutex
	done    map[string]error
	updated bool // apt's lists
}

func once(key string, do func() error) error {
	installed.Lock()
	defer installed.Unlock()
	if err, tried := installed.done[key]; tried {
		return err
	}
	if installed.done == nil {
		installed.done = map[string]error{}
	}
	err := do()
	installed.done[key] = err
	return err
}

// debian makes sure that Debian packages are installed, each given with a program of it, as "slurm-wlm:sbatch". One
// without a program is installed anew.
func debian(t *testing.T, packages ...string) {
	t.Helper()
	err := once("debian "+strings.Join(packages, " "), func() error {
		var names []string
		for _, p := range packages {
			name, program, _ := strings.Cut(p, ":")
			if _, err := exec.LookPath(program); err != nil {
				names = append(names, name)
			}
		}
		if len(names) == 0 {
			return nil
		}
		if os.Geteuid() != 0 {
			return fmt.Errorf("%s is not installed, and to install it takes root", strings.Join(names, ", "))
		}
		if !installed.updated {
			if err := command("apt-get", "update"); err != nil {
				return err
			}
			installed.updated = true
		}
		return command("apt-get", append([]string{"install", "-y", "--no-install-recommends"}, names...)...)
	})
	if err != nil {
		missing(t, "install "+strings.Join(packages, ", "), err)
	}
}

// venv makes a virtual environment of that name below build/ with these packages of PyPI, given as pip takes them,
// beside those of the system's Python, and returns its Python. One that has them already is used as it is.
func venv(t *testing.T, name string, packages ...string) string {
	t.Helper()
	dir := filepath.Join(root, "build", "venv-"+name)
	python := filepath.Join(dir, "bin/python3")
	want := strings.Join(packages, "\n") + "\n"
	if command(systemPython, "-c", "import ensurepip") != nil {
		debian(t, "python3-venv") // which has no program
	}
	err := once("venv "+name, func() error {
		if have, err := os.ReadFile(filepath.Join(dir, "packages")); err == nil && string(have) == want {
			return nil
		}
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
		if err := command(systemPython, "-m", "venv", "--system-site-packages", dir); err != nil {
			return err
		}
		if err := command(python, append([]string{"-m", "pip", "install", "--quiet", "--disable-pip-version-check"}, packages...)...); err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(dir, "packages"), []byte(want), 0o644)
	})
	if err != nil {
		missing(t, "install "+strings.Join(packages, ", ")+" from PyPI", err)
	}
	return python
}

// systemPython is the distribution's own: it is what Debian's python3-torch belongs to.
const systemPython = "/usr/bin/python3"

// command runs a program that installs something; its error has the last lines that it printed.
func command(name string, args ...string) error {
	cmd := exec.Command(name, args...)
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
	out, err := cmd.CombinedOutput()
	if err != nil {
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		return fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, strings.Join(lines[max(0, len(lines)-5):], " | "))
	}
	return nil
}
