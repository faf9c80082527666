package clusters

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// rayRelease is the release of Ray that docs/clusters/ray.md names as tested.
const rayRelease = "ray==2.60.0"

// rayHangs is when a run that does not end is ended: many times what it takes.
const rayHangs = 12 * time.Minute

// Everything that must hold is said by testdata/ray_job.py, on a cluster that it starts: three nodes with a software
// GPU and a scratch directory each. Here it gets namespaces of its own: of the network, so that Ray reaches nothing but
// the loopback interface, of processes, so that none is left whatever happens, and of mounts with a /dev/shm, so that
// it sees no other Ray's shared memory and leaves none.
func TestRay(t *testing.T) {
	inNamespaces := namespaces(t)
	python := venv(t, "ray", rayRelease)
	held := []string{
		"each rank has an environment and a directory of its own, on the node where it runs",
		"pauses and resumes of the whole job can be repeated, and bring the same bytes back",
		"the memory is back after an exception in the body of paused",
		"a pause with a dead rank is not done: it is named, the state of the others is known, and they come back",
		"the rank that Ray restarted has its own directory again, and the job goes on",
		"the files of a rank that is killed while paused go, and only they",
		"the losses of 12 steps are those of the run without parking, bit for bit",
		"a rank that comes too late to a pause does nothing: it is named, and the others come back",
		"a live rank that Ray cannot reach is not taken for dead, and comes back with the others",
		"ebb status shows the actors",
		"an actor that is restarted on another node is told with the node where its files were left",
		"the command that was told reclaims them there",
		"without a supervisor a restarted rank removes what its dead process left, and nothing of the living",
		"an async actor is paused between its steps, while it answers other calls",
		"ActorGroup.reclaim removes what actors left that nobody restarts",
		"a group whose actors are all dead says so",
		"the example of the page runs",
		"actors without the methods, groups of nothing, wrong deadlines and unknown tags are refused with their names",
		"an actor that ebb exec refuses on its node tells why: a disk directory that is not there, a rank that another process has",
		"nothing is left: no process, no file, no socket",
	}
	work := rayWork(t)

	ctx, cancel := context.WithTimeout(context.Background(), rayHangs)
	defer cancel()
	script := ownSharedMemory + ` && ip link set lo up && hostname localhost && "$@"; exit $?` // it stays, and reaps what others leave
	args := append(slices.Clone(inNamespaces), "sh", "-c", script, "sh",
		python, filepath.Join(root, "test/clusters/testdata/ray_job.py"), filepath.Join(work, "w"), filepath.Join(root, "dist"))
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + work, "LC_ALL=C.UTF-8", "PYTHONDONTWRITEBYTECODE=1",
		"PYTHONPATH=" + strings.Join([]string{
			filepath.Join(root, "python"), filepath.Join(root, "test/clusters/testdata"), filepath.Join(root, "test/e2e/testdata"), filepath.Join(root, "test/python"),
		}, ":"),
		"RAY_USAGE_STATS_ENABLED=0", "RAY_prestart_worker_first_driver=0", "RAY_enable_worker_prestart=0", "RAY_TMPDIR=" + work, "RAY_TEST_PAGE=" + filepath.Join(root, "docs/clusters/ray.md"), "EBB_RUNTIME_DIR=" + filepath.Join(work, "s"),
	}
	for _, dir := range []string{"w", "s"} {
		if err := os.Mkdir(filepath.Join(work, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	err := cmd.Run()

	said := map[string]bool{}
	for lines := bufio.NewScanner(bytes.NewReader(output.Bytes())); lines.Scan(); {
		if what, ok := strings.CutPrefix(lines.Text(), "held: "); ok {
			t.Log(what)
			for _, h := range held {
				said[h] = said[h] || strings.HasPrefix(what, h)
			}
		}
		if step, ok := strings.CutPrefix(lines.Text(), "skipped: "); ok {
			what, why, _ := strings.Cut(step, ": ")
			said[what] = true
			t.Run(what, func(t *testing.T) { missing(t, "have it seen", errors.New(why)) })
		}
	}
	if err != nil {
		t.Errorf("the job on Ray: %v; it said:\n%s", err, output.Bytes())
	}
	for _, h := range held {
		if !said[h] {
			t.Errorf("not said to hold: %s", h)
		}
	}
}

// ownSharedMemory gives a mount namespace a /dev/shm of its own. The size is a limit: the object stores have 240 MB of it,
// the software GPUs 768 MiB.
const ownSharedMemory = "mount -t tmpfs -o size=3g,mode=1777 tmpfs /dev/shm"

// namespaces is a command that runs another one in namespaces of its own: network, host name, processes, mounts.
func namespaces(t *testing.T) []string {
	t.Helper()
	if err := command("ip", "-V"); err != nil {
		missing(t, "find ip (apt-get install iproute2)", err)
	}
	args := []string{"unshare", "--net", "--uts", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"}
	if os.Geteuid() != 0 {
		args = append(args, "--map-root-user")
	}
	if err := command(args[0], append(args[1:], "sh", "-c", ownSharedMemory)...); err != nil {
		missing(t, "make namespaces for Ray", err)
	}
	return args
}

// rayWork is the directory of a run, below build/ where the sockets of Ray fit there: a path of a socket has 107 bytes.
func rayWork(t *testing.T) string {
	t.Helper()
	const longest = len("/r1234567890/ray/session_2026-11-30_00-10-27_291435_1234567/sockets/plasma_store.12")
	base := filepath.Join(root, "build")
	if len(base)+longest > 107 {
		base = os.TempDir()
	}
	work, err := os.MkdirTemp(base, "r")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(work); err != nil {
			t.Error(err)
		}
	})
	return work
}
