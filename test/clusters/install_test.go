package clusters

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
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
		return aptInstall(names)
	})
	if err != nil {
		missing(t, "install "+strings.Join(packages, ", "), err)
	}
}

// aptInstall installs packages of Debian, of which no service is started or begins with the machine. What takes a
// network has a deadline; the installation itself must not be broken off.
func aptInstall(names []string) error {
	patience := []string{"-o", "Acquire::http::Timeout=20", "-o", "Acquire::https::Timeout=20", "-o", "Acquire::Retries=1", "-o", "DPkg::Lock::Timeout=60"}
	if !installed.updated {
		if err := command("apt-get", append(patience, "update")...); err != nil {
			return err
		}
		installed.updated = true
	}
	install := slices.Concat(patience, []string{"install", "-y", "--no-install-recommends"}, names)
	if err := command("apt-get", append(install, "--download-only")...); err != nil {
		return err
	}
	before := map[string]bool{}
	for _, s := range startup {
		for _, path := range s.files() {
			before[path] = true
		}
	}
	if err := withoutServices("/usr/sbin/policy-rc.d", os.Getpid(), func() error { return within(0, "apt-get", append(install, "--no-download")...) }); err != nil {
		return err
	}
	for _, s := range startup {
		for _, path := range s.files() {
			if before[path] || strings.HasSuffix(path, "@.service") { // the latter is a pattern of services
				continue
			}
			if _, err := exec.LookPath(s.program); err != nil {
				continue // then nobody starts it either
			}
			if err := command(s.program, s.disable(filepath.Base(path))...); err != nil {
				return err
			}
		}
	}
	return nil
}

// starter is who starts services with the machine, by the files that packages put there.
type starter struct {
	pattern, program string
	disable          func(name string) []string
}

func (s starter) files() []string {
	paths, _ := filepath.Glob(s.pattern) // only a wrong pattern is an error
	return paths
}

// startup are the two ways in which services begin with a machine.
var startup = []starter{
	{"/etc/init.d/*", "update-rc.d", func(name string) []string { return []string{name, "disable"} }},
	{"/lib/systemd/system/*.service", "systemctl", func(name string) []string { return []string{"disable", name} }},
}

// withoutServices does something while packages that are installed must not start their services: Debian's
// invoke-rc.d and systemd's helpers ask the program at that path. One that is there already is somebody's decision,
// and stays. Should this process be killed, what it leaves forbids nothing.
func withoutServices(policy string, pid int, do func() error) (err error) {
	text := fmt.Sprintf("#!/bin/sh\n# ebb's tests of clusters install packages; it may be removed.\n[ ! -d /proc/%d ] || exit 101\n", pid)
	f, err := os.OpenFile(policy, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if errors.Is(err, os.ErrExist) {
		return do()
	}
	if err != nil {
		return fmt.Errorf("forbid that services are started: %w", err)
	}
	defer func() { err = errors.Join(err, os.Remove(policy)) }()
	if _, err := f.WriteString(text); err != nil {
		return errors.Join(err, f.Close())
	}
	if err := f.Close(); err != nil {
		return err
	}
	return do()
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
		if err := command(python, append([]string{"-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--timeout", "20", "--retries", "1"}, packages...)...); err != nil {
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

// downloading is how long one program may take that needs a network.
const downloading = 5 * time.Minute

// command runs a program that installs something, with a deadline.
func command(name string, args ...string) error { return within(downloading, name, args...) }

// within runs a program for so long at most (0: to its end), and then ends it with all that it started; its error has
// the last lines that it printed.
func within(limit time.Duration, name string, args ...string) error {
	ctx, cancel := context.Background(), func() {}
	if limit > 0 {
		ctx, cancel = context.WithTimeout(ctx, limit)
	}
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	out, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		err = fmt.Errorf("not done in %v: %w", limit, err)
	}
	if err != nil {
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		return fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, strings.Join(lines[max(0, len(lines)-5):], " | "))
	}
	return nil
}

// A program that hangs is given up, with what it started, and its last words are told.
func TestAnInstallationThatHangsIsGivenUp(t *testing.T) {
	left := filepath.Join(t.TempDir(), "pid")
	err := within(5*time.Second, "sh", "-c", `echo waiting for a mirror; sleep 3600 & echo $! >"$1"; wait`, "sh", left)
	if err == nil || !strings.Contains(err.Error(), "not done in 5s") || !strings.Contains(err.Error(), "waiting for a mirror") {
		t.Errorf("the error of a program that hangs: %v", err)
	}
	text, err := os.ReadFile(left)
	if err != nil {
		t.Fatal(err)
	}
	for alive := true; alive; { // a killed process may be there for a moment
		status, err := os.ReadFile(filepath.Join("/proc", strings.TrimSpace(string(text)), "cmdline"))
		alive = err == nil && strings.HasPrefix(string(status), "sleep")
	}
}

// While packages are installed, whoever asks is told to start no service (101); afterwards, and when the test was
// killed, everything may be started.
func TestNoServiceIsStartedByAnInstallation(t *testing.T) {
	policy := filepath.Join(t.TempDir(), "policy-rc.d")
	answer := func() int {
		cmd := exec.Command(policy, "munge", "start")
		_ = cmd.Run()
		return cmd.ProcessState.ExitCode()
	}
	broken := errors.New("broken")
	if err := withoutServices(policy, os.Getpid(), func() error {
		if got := answer(); got != 101 {
			t.Errorf("may munge be started? %d, want 101", got)
		}
		return broken
	}); !errors.Is(err, broken) {
		t.Errorf("the error is %v", err)
	}
	if _, err := os.Stat(policy); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it is left: %v", err)
	}

	const nobody = 1 << 30 // above every pid
	if err := withoutServices(policy, nobody, func() error {
		if got := answer(); got != 0 {
			t.Errorf("may munge be started, when the test is dead? %d, want 0", got)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}

	if err := os.WriteFile(policy, []byte("#!/bin/sh\nexit 104\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := withoutServices(policy, os.Getpid(), func() error {
		if got := answer(); got != 104 {
			t.Errorf("the administrator's own answer is %d now", got)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	if got := answer(); got != 104 {
		t.Errorf("the administrator's own file answers %d", got)
	}
}
