package clusters

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ebb-offload/ebb/internal/testutil"
)

// Each launcher is started with its line of docs/clusters/launchers.md, over the software device.

const (
	accelerateVersion = "1.2.1"
	deepspeedVersion  = "0.14.5" // accepts PyTorch 1.13
)

// launchers is a Python that has accelerate, and what DeepSpeed needs. Of what the two depend on it has what their
// launchers import, and Debian's PyTorch brings the rest: all of it would take many times as long to install.
func launchers(t *testing.T) string {
	t.Helper()
	return venv(t, "launchers", "--no-deps", "accelerate=="+accelerateVersion, "huggingface_hub==0.27.0", "safetensors", "filelock", "fsspec", "tqdm", "packaging",
		"wheel", "hjson", "py-cpuinfo", "pydantic<2")
}

// torch113 avoids a fault of PyTorch 1.13 under Python 3.11, in which "0" is no value of --redirects and --tee: they
// are given for a rank that is not there.
var torch113 = []string{"PET_REDIRECTS=9:1", "PET_TEE=9:1"}

func TestTorchrun(t *testing.T) {
	debian(t, "python3-torch:torchrun")
	launcher{
		name: "torchrun", env: torch113,
		// Names that differ by a character which a name of a directory does not keep are two jobs.
		jobs: [3]string{"my:run", "my run", "killed"},
		line: func(job, line string) string { return strings.Replace(line, "my-run", "'"+job+"'", 1) },
		says: "exitcode  : 7",
	}.test(t, 1)
}

func TestAccelerate(t *testing.T) {
	debian(t, "python3-torch:torchrun")
	python := launchers(t)
	launcher{
		name: "accelerate", env: torch113, path: filepath.Dir(python),
		jobs: [3]string{"first", "second", "killed"},
		line: func(job, line string) string {
			return strings.Replace(strings.Replace(line, "my-run", job, 1), "accelerate launch", "accelerate launch --tee 9:1", 1)
		},
		says: "exitcode  : 7",
	}.test(t, 1)
}

func TestDeepSpeedsLauncher(t *testing.T) {
	debian(t, "python3-torch:torchrun", "numactl:numactl")
	python := launchers(t)
	err := once("deepspeed", func() error {
		if command(python, "-c", "import importlib.metadata as m; assert m.version('deepspeed') == '"+deepspeedVersion+"'") == nil {
			return nil
		}
		// Its setup looks for the PyTorch that is there, which a build of its own would not see.
		return command(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--timeout", "20", "--retries", "1", "--no-deps", "--no-build-isolation", "deepspeed=="+deepspeedVersion)
	})
	if err != nil {
		missing(t, "install deepspeed from PyPI", err)
	}
	launcher{
		name: "deepspeed", path: filepath.Dir(python), env: []string{"DS_ACCELERATOR=cpu"},
		jobs: [3]string{"first", "second", "killed"},
		line: func(job, line string) string { return strings.Replace(line, "my-run", job, 1) },
	}.test(t, 7)
}

func TestMpirun(t *testing.T) {
	debian(t, "openmpi-bin:mpirun")
	launcher{
		name: "mpirun", jobs: [3]string{"first", "second", "killed"},
		env: []string{
			"OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1", "OMPI_MCA_rmaps_base_oversubscribe=1",
			"OMPI_MCA_btl_tcp_if_include=lo", "OMPI_MCA_oob_tcp_if_include=lo", "OMPI_MCA_hwloc_base_binding_policy=none",
			"OMPI_MCA_odls_base_sigkill_timeout=5", // that ebb exec has to remove the files of a rank that is ended; mpirun waits all of it
		},
		line: func(_, line string) string { return line },
	}.test(t, 7)
}

// launcher is one of the launchers, and how its line of the docs becomes that of a job.
type launcher struct {
	name string
	path string   // directory of its program, where that is not the system's
	env  []string // that it needs here
	jobs [3]string
	line func(job, line string) string
	says string // on the status of a rank, where its own is another one
}

// said is what a rank of testdata/launched.py says of itself.
type said struct {
	Rank       string `json:"RANK"`
	LocalRank  string `json:"LOCAL_RANK"`
	World      string `json:"WORLD_SIZE"`
	LocalWorld string `json:"LOCAL_WORLD_SIZE"`
	Job        string `json:"EBB_JOB"`
	EBBRank    string `json:"EBB_RANK"`
	Dir        string
	Files      int
	PID        int
	Launcher   int // the ebb exec that started it
}

// running is a job under a launcher.
type running struct {
	name   string // launched.py calls it so
	cmd    *exec.Cmd
	output bytes.Buffer
	ended  chan struct{} // closed when it has; then status is what it ended with
	status error
	ranks  []said
	out    string // where its ranks say who they are
}

// test starts three jobs at once in one disk directory: one ends well, the ranks of one end with 7, which the
// launcher passes on as the status failed, and one is killed while its memory is parked.
func (l launcher) test(t *testing.T, failed int) {
	t.Helper()
	work := testutil.SocketDir(t)
	device := fmt.Sprintf("launchers-%s-%d", l.name, os.Getpid())
	t.Cleanup(func() {
		_ = os.RemoveAll(work)
		_ = os.Remove(fmt.Sprintf("/dev/shm/softgpu-%d-%s", os.Geteuid(), device))
	})
	disk := filepath.Join(work, "disk")
	for _, dir := range []string{disk, filepath.Join(work, "out")} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	environ := append([]string{
		"PATH=" + strings.Trim(l.path+":"+filepath.Join(root, "dist/bin")+":"+os.Getenv("PATH"), ":"), "HOME=" + work, "USER=nobody", "LC_ALL=C.UTF-8",
		"PYTHONDONTWRITEBYTECODE=1", "OMP_NUM_THREADS=1",
		"PYTHONPATH=" + strings.Join([]string{filepath.Join(root, "python"), filepath.Join(root, "test/e2e/testdata"), filepath.Join(root, "test/python")}, ":"),
		"EBB_DEVICE=soft", "EBB_OFFLOAD_TRAIN_DISK_CHUNK_MB=4", "EBB_RUNTIME_DIR=" + filepath.Join(work, "run"),
		"SOFTGPU_NODE=" + device, "SOFTGPU_MEM_MB=256",
	}, l.env...)
	statuses := [3]int{0, 7, 0}
	var jobs [3]*running
	for i, job := range l.jobs {
		name := fmt.Sprintf("job%d", i)
		rank := strings.Join([]string{systemPython, filepath.Join(root, "test/clusters/testdata/launched.py"), filepath.Join(work, "out"), name, strconv.Itoa(statuses[i])}, " ")
		// Two mpirun that begin at the same moment fail to make the same directory in one TMPDIR.
		temporary := filepath.Join(work, "tmp"+strconv.Itoa(i))
		if err := os.Mkdir(temporary, 0o700); err != nil {
			t.Fatal(err)
		}
		jobs[i] = start(t, name, filepath.Join(work, "out"), l.documented(t, job, disk, rank), append(slices.Clone(environ), "TMPDIR="+temporary))
	}
	dirs := map[string]string{}
	for i, j := range jobs {
		j.await(t)
		for _, r := range j.ranks {
			l.checkRank(t, j, r, disk)
			if other, taken := dirs[r.Dir]; taken {
				t.Errorf("%s rank %s parks in %s, which is that of %s", j.name, r.Rank, r.Dir, other)
			}
			dirs[r.Dir] = j.name + " rank " + r.Rank
		}
		if l.name == "torchrun" && !strings.HasPrefix(j.ranks[0].Job, "torchrun-"+l.jobs[i][:2]) {
			t.Errorf("%s, which the launcher calls %q, is called %q", j.name, l.jobs[i], j.ranks[0].Job)
		}
	}

	killed := jobs[2]
	killed.kill(t)
	for i, j := range jobs[:2] {
		if err := os.WriteFile(filepath.Join(work, "out", "go."+j.name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		status := j.wait(t)
		if want := []int{0, failed}[i]; status != want {
			t.Errorf("%s under %s ended with %d, want %d:\n%s", j.name, l.name, status, want, &j.output)
		}
		for rank := range 2 {
			if line := fmt.Sprintf("%s rank %d: the memory is what it was", j.name, rank); statuses[i] == 0 && !strings.Contains(j.output.String(), line) {
				t.Errorf("%q was not said:\n%s", line, &j.output)
			}
		}
	}
	if !strings.Contains(jobs[1].output.String(), l.says) {
		t.Errorf("%s does not say %q of a rank that ended with 7:\n%s", l.name, l.says, &jobs[1].output)
	}

	// The jobs that ended have left nothing; what the killed one left, ebb gc removes.
	for _, dir := range parked(t, disk) {
		if job := dirs[dir]; !strings.HasPrefix(job, killed.name+" ") {
			t.Errorf("%s of %s is left", dir, job)
		}
	}
	gc := exec.Command(filepath.Join(root, "dist/bin/ebb"), "gc", "--disk-dir", disk)
	gc.Env = environ
	if out, err := gc.CombinedOutput(); err != nil {
		t.Errorf("ebb gc: %v\n%s", err, out)
	}
	if left := parked(t, disk); len(left) > 0 {
		t.Errorf("after ebb gc there is still %q", left)
	}
}

// documented is the launcher's line of the docs with two ranks and another program, for one job.
func (l launcher) documented(t *testing.T, job, disk, program string) string {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(root, "docs/clusters/launchers.md"))
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile("(?s)```bash\n(" + l.name + " .*?)```").FindSubmatch(page)
	if found == nil {
		t.Fatalf("the page has no line of %s", l.name)
	}
	line := string(found[1])
	for _, change := range [][2]string{{" 8 ", " 2 "}, {"29501", freePort(t)}, {"/scratch/$USER", disk}, {"python train.py", program}} {
		if strings.Count(line, change[0]) != 1 {
			t.Fatalf("the line of the docs has not one %q:\n%s", change[0], line)
		}
		line = strings.Replace(line, change[0], change[1], 1)
	}
	return "exec " + l.line(job, line)
}

// given are the ports that freePort gave, which their launchers may not have yet.
var given = map[int]bool{}

// freePort is a port at which nobody listens, of those that the kernel gives nobody who does not ask for it: until the
// launcher has it, nobody else gets it by chance. Each is given once.
func freePort(t *testing.T) string {
	t.Helper()
	var low, high int
	text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Sscan(string(text), &low, &high); err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	from, to := 10_000, low
	if from >= to {
		from, to = high+1, 65_536
	}
	for range 1000 {
		if from >= to {
			break
		}
		port := from + rand.IntN(to-from)
		if given[port] {
			continue
		}
		if listener, err := net.Listen("tcp", ":"+strconv.Itoa(port)); err == nil {
			_ = listener.Close()
			given[port] = true
			return strconv.Itoa(port)
		}
	}
	t.Fatalf("no port is free beside those that the kernel gives, %d to %d", low, high)
	return ""
}

func start(t *testing.T, name, out, line string, environ []string) *running {
	t.Helper()
	j := &running{name: name, cmd: exec.Command("bash", "-c", line), ended: make(chan struct{}), out: out}
	j.cmd.Env, j.cmd.Stdout, j.cmd.Stderr = environ, &j.output, &j.output
	j.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	j.cmd.WaitDelay = time.Minute // ranks that outlive a launcher have its output open
	if err := j.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { j.status = j.cmd.Wait(); close(j.ended) }()
	t.Cleanup(func() { j.kill(t) })
	return j
}

// slow is when a job counts as one that hangs.
const slow = 8 * time.Minute

// await waits until both ranks have parked their memory.
func (j *running) await(t *testing.T) {
	t.Helper()
	deadline := time.After(slow)
	for rank := range 2 {
		for {
			text, err := os.ReadFile(filepath.Join(j.out, fmt.Sprintf("%s.%d.json", j.name, rank)))
			if err == nil {
				var r said
				if err := json.Unmarshal(text, &r); err != nil {
					t.Fatal(err)
				}
				j.ranks = append(j.ranks, r)
				break
			}
			select {
			case <-j.ended:
				t.Fatalf("%s ended before its ranks had parked: %v\n%s", j.name, j.status, &j.output)
			case <-deadline:
				t.Fatalf("%s: rank %d has not parked after %v", j.name, rank, slow)
			case <-time.After(20 * time.Millisecond):
			}
		}
	}
}

func (l launcher) checkRank(t *testing.T, j *running, r said, disk string) {
	t.Helper()
	if r.LocalRank != r.Rank || r.EBBRank != r.Rank || r.World != "2" || r.LocalWorld != "2" {
		t.Errorf("%s under %s: %+v, want local rank %s of 2", j.name, l.name, r, r.Rank)
	}
	want := filepath.Join(disk, r.Job, "actor_cell0_rank"+r.Rank)
	if r.Dir != want || r.Files == 0 {
		t.Errorf("%s rank %s has %d files in %s, want some in %s", j.name, r.Rank, r.Files, r.Dir, want)
	}
}

// kill kills the launcher with its process group, then those of its ranks and who supervises them that have one of
// their own, as a node that runs out of memory would. Of a launcher that has ended, whose number another process group
// may have by now, it kills ranks alone. A rank that nobody knows of yet ends when the test's directory is gone.
func (j *running) kill(t *testing.T) {
	t.Helper()
	select {
	case <-j.ended:
	default:
		_ = syscall.Kill(-j.cmd.Process.Pid, syscall.SIGKILL)
	}
	for _, r := range j.ranks {
		for _, pid := range []int{r.Launcher, r.PID} {
			if j.runs(pid) {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
	}
	<-j.ended
	for _, r := range j.ranks {
		deadline := time.Now().Add(slow)
		for j.runs(r.PID) || j.runs(r.Launcher) {
			if time.Now().After(deadline) {
				t.Fatalf("%s: rank %s does not die", j.name, r.Rank)
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
}

// runs reports whether a process is a rank of the job, or who supervises one, and runs. One that nobody has waited for
// yet does not.
func (j *running) runs(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return err == nil && bytes.Contains(text, []byte("launched.py\x00"+j.out+"\x00"+j.name+"\x00"))
}

// wait is the status that the launcher ends with.
func (j *running) wait(t *testing.T) int {
	t.Helper()
	select {
	case <-j.ended:
		return j.cmd.ProcessState.ExitCode()
	case <-time.After(slow):
		t.Fatalf("%s does not end", j.name)
	}
	return -1
}

// parked are the rank directories in a disk directory.
func parked(t *testing.T, disk string) []string {
	t.Helper()
	dirs, err := filepath.Glob(filepath.Join(disk, "*", "*"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return slices.DeleteFunc(dirs, func(dir string) bool { return strings.HasPrefix(dir, filepath.Join(disk, ".ebb")) })
}
