package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// A rank stops inside of a pause or resume, at any one of the file calls and driver calls that these are
// made of: it stops itself there, by a fault that is a signal. What becomes of it then, another rank and
// the files must bear: they are those of a live process as long as it is stopped, and gone when it is.

// step is where a rank stops: a call, which of them, and for calls of the driver, in which operation.
type step struct {
	call string
	n    int
	of   string // "pause", "resume"; "": a file call
}

func (s step) String() string {
	if s.of == "" {
		return fmt.Sprintf("%s %d", s.call, s.n)
	}
	return fmt.Sprintf("%s %d of a %s", s.call, s.n, s.of)
}

// atTheEnd says that the step comes in a rank that is told to end during its first cycle: the memory is freed
// then, and its files go.
func (s step) atTheEnd() bool { return s.call == "unlink" && s.n == 2 }

// faults are the arguments of the rank's program that stop it there.
func (s step) faults() (files, pause, resume string) {
	spec := fmt.Sprintf("%s:%d:SIGSTOP", s.call, s.n)
	switch s.of {
	case "pause":
		return "", spec, ""
	case "resume":
		return "", "", spec
	}
	return spec, "", ""
}

// steps are those that every pause and resume to disk comes to.
func steps() (list []step) {
	for _, call := range []string{"opendir", "open", "close", "fstat", "fallocate"} {
		list = append(list, step{call: call, n: 1}, step{call: call, n: 2})
	}
	list = append(list, step{call: "pwrite", n: 14}, step{call: "pread", n: 24}) // of data
	list = append(list, step{call: "statx", n: 1})                               // before the first write
	list = append(list, step{call: "unlink", n: 1})                              // of the map, when all is resumed
	list = append(list, step{call: "unlink", n: 2})                              // of a file: see atTheEnd
	for _, call := range []string{"cuLaunchKernel", "cuMemUnmap", "cuMemRelease"} {
		list = append(list, step{call, 1, "pause"}, step{call, 3, "pause"})
	}
	for _, call := range []string{"cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemcpyHtoDAsync"} {
		list = append(list, step{call, 1, "resume"}, step{call, 3, "resume"})
	}
	return list
}

// fate is what becomes of a stopped rank.
type fate struct {
	name string
	term string // what it does at SIGTERM
	do   func(*stopped)
	// status is that of ebb run where the rank's end is the end of the run; 0: the test ends it.
	status int
}

var fates = []fate{
	{"terminated", "dies", func(s *stopped) { s.signal(syscall.SIGTERM, syscall.SIGCONT) }, 128 + int(syscall.SIGTERM)},
	{"terminated, which it handles", "ends", func(s *stopped) { s.signal(syscall.SIGTERM, syscall.SIGCONT) }, 0},
	{"killed for memory", "ends", (*stopped).outOfMemory, 128 + int(syscall.SIGKILL)},
}

func TestARankThatIsEndedAtAStepOfAPauseOrResume(t *testing.T) {
	rng, all := random(t), steps()
	rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	each := len(fates)
	if !long() {
		all, each = all[:len(fates)], 1
	} else {
		// The first read and write are those of the count of bytes, which the other rank waits for.
		all = append(all, step{call: []string{"pread", "pwrite"}[rng.IntN(2)], n: 1})
	}
	n := newNode(t, 256)
	n.env = []string{"SOFTGPU_GRANULARITY_KB=64"}
	done := map[string]int{}
	for i, at := range all {
		for k := range each {
			if at.call[0] == 'p' && at.n == 1 && k > 0 {
				break
			}
			f := fates[(i+k)%len(fates)]
			t.Run(fmt.Sprintf("%v, %s", at, f.name), func(t *testing.T) {
				if at.atTheEnd() && f.term == "dies" {
					return // it makes no such call then: ebb run removes its files
				}
				files, pause, resume := at.faults()
				s := startSteps(t, n, rng, f.term, files, pause, resume)
				if at.atTheEnd() {
					s.signal(syscall.SIGTERM)
				}
				s.awaitStop()
				s.bystands()
				f.do(s)
				s.ends(f.status)
				done[f.name]++
			})
		}
	}
	t.Log(done)
}

// Stopped at every file call and every driver call that it makes, one after the other.
func TestARankThatStopsAtEveryStepGoesOn(t *testing.T) {
	n := newNode(t, 256)
	n.env = []string{"SOFTGPU_GRANULARITY_KB=64"}
	every := func(calls ...string) string { return strings.Join(calls, ":*:SIGSTOP,") + ":*:SIGSTOP" }
	s := startSteps(t, n, random(t), "ends", every("any"),
		every("cuCtxSynchronize", "cuMemcpyDtoHAsync", "cuLaunchKernel", "cuMemUnmap", "cuMemRelease"),
		every("cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemcpyHtoDAsync", "cuLaunchKernel"))
	stops, ending := 0, false
	for !s.hasEnded() {
		if s.state() == 'T' {
			stops++
			s.signal(syscall.SIGCONT)
		}
		if !ending && s.cycles(0) >= 2 {
			ending = true
			_ = s.cmd.Process.Signal(syscall.SIGTERM)
		}
		s.pass()
	}
	s.ends(0)
	t.Logf("stopped %d times", stops)
	if stops < 50 {
		t.Error("too few to say anything")
	}
}

// stopped is a run of two ranks, the first of which stops.
type stopped struct {
	t        *testing.T
	cmd      *exec.Cmd
	out      *lastWords
	ended    chan error
	over     bool
	deadline time.Time
	disks    []string
	reports  string
	pid      int // of rank 0
}

func startSteps(t *testing.T, n *node, rng source, term, files, pause, resume string) *stopped {
	t.Helper()
	s := &stopped{
		t: t, out: &lastWords{}, ended: make(chan error, 1), deadline: time.Now().Add(hangs),
		disks: diskDirs(n, 1+rng.IntN(2)), reports: filepath.Join(work, fmt.Sprintf("%s-reports-%d", n.name, rng.Uint64())),
	}
	if err := os.Mkdir(s.reports, 0o700); err != nil {
		t.Fatal(err)
	}
	flags := append(diskFlags(s.disks...), "--nproc-per-node", "2", "--job", "steps")
	s.cmd = n.ebbRun(t, flags, "soak_steps.py", rng.Text(), s.reports, term, files, pause, resume)
	s.cmd.Stdout, s.cmd.Stderr = s.out, s.out
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { s.ended <- s.cmd.Wait() }()
	t.Cleanup(func() {
		if !s.hasEnded() {
			_ = s.cmd.Cancel()
			<-s.ended //nolint:errcheck // it was killed
		}
	})
	s.await("the number of rank 0", func() bool {
		text, err := os.ReadFile(filepath.Join(s.reports, "pid-0"))
		s.pid, _ = strconv.Atoi(string(text))
		return err == nil
	})
	return s
}

// lastWords is the end of what a process has written until now.
type lastWords struct {
	mu   sync.Mutex
	text []byte // guarded by mu
}

func (w *lastWords) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.text = append(w.text, p...)
	w.text = w.text[max(0, len(w.text)-16<<10):]
	return len(p), nil
}

func (w *lastWords) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return string(w.text)
}

func (s *stopped) hasEnded() bool {
	select {
	case err := <-s.ended:
		s.ended <- err
		s.over = true
	default:
	}
	return s.over
}

// pass lets the others run.
func (s *stopped) pass() {
	s.t.Helper()
	if time.Now().After(s.deadline) {
		s.t.Fatalf("hangs\n%s", s.out)
	}
	time.Sleep(time.Millisecond)
}

func (s *stopped) await(what string, there func() bool) {
	s.t.Helper()
	for !there() {
		if s.hasEnded() {
			s.t.Fatalf("it ended before there was %s\n%s", what, s.out)
		}
		s.pass()
	}
}

func (s *stopped) cycles(rank int) int {
	text, err := os.ReadFile(filepath.Join(s.reports, fmt.Sprint("cycles-", rank)))
	n, _ := strconv.Atoi(string(text))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		s.t.Error(err)
	}
	return n
}

// state is the kernel's letter for the state of rank 0; 0: it is gone.
func (s *stopped) state() byte {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.pid))
	_, after, found := strings.Cut(string(stat), ") ")
	if err != nil || !found {
		return 0
	}
	return after[0]
}

func (s *stopped) awaitStop() {
	s.t.Helper()
	s.await("a stop", func() bool {
		if s.cycles(0) > 2 {
			s.t.Fatalf("it does not come to this step\n%s", s.out)
		}
		return s.state() == 'T' && allStopped(s.pid) // until then another thread may be within a call to files
	})
}

func (s *stopped) signal(signals ...syscall.Signal) {
	for _, sig := range signals {
		if err := syscall.Kill(s.pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
			s.t.Error(err)
		}
	}
}

// bystands checks that the other rank goes on beside the stopped one, whose files are those of a live
// process: ebb gc leaves them alone.
func (s *stopped) bystands() {
	s.t.Helper()
	own := func() (files []string) {
		for _, disk := range s.disks {
			files = append(files, leftovers(s.t, filepath.Join(disk, "steps/actor_cell0_rank0"))...)
		}
		return files
	}
	before, then := own(), s.cycles(1)
	for _, disk := range s.disks {
		command(s.t, filepath.Join(root, "dist/bin/ebb"), "gc", "--disk-dir", disk)
	}
	if after := own(); !slices.Equal(before, after) {
		s.t.Errorf("files of a stopped rank: %q, after ebb gc %q", before, after)
	}
	s.await("another cycle of the other rank", func() bool { return s.cycles(1) > then+1 })
}

// outOfMemory has the kernel kill the rank because its memory cgroup is full.
func (s *stopped) outOfMemory() {
	s.t.Helper()
	dir, _ := memoryGroup(s.t, 8<<20)
	for path, text := range map[string]string{
		filepath.Join(dir, "cgroup.procs"):           strconv.Itoa(s.pid),
		fmt.Sprintf("/proc/%d/oom_score_adj", s.pid): "1000", // the first to go
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			s.t.Fatal(err)
		}
	}
	// It takes memory until the kernel has killed the rank, and then this one too.
	_ = exec.Command("sh", "-c", `echo $$ >"$0/cgroup.procs" && exec tail /dev/zero`, dir).Run()
	if control := string(readFile(s.t, filepath.Join(dir, "memory.oom_control"))); !strings.Contains(control, "oom_kill 2") {
		s.t.Fatalf("the kernel has not killed two processes: %s", control)
	}
}

// ends waits for the end of the run, which the test brings about where the rank does not. Nothing may
// be left, and a rank that was not killed must have found everything right.
func (s *stopped) ends(status int) {
	s.t.Helper()
	ranks := []string{"1"}
	if status == 0 {
		ranks = []string{"0", "1"}
		s.await("the end of rank 0", func() bool { return s.hasEnded() || s.state() == 0 || s.state() == 'Z' })
		_ = s.cmd.Process.Signal(syscall.SIGTERM)
	}
	for !s.hasEnded() {
		s.pass()
	}
	if got := statusOf(s.cmd); got != status {
		s.t.Errorf("want status %d, got %d\n%s", status, got, s.out)
	}
	for _, rank := range ranks {
		if got, err := os.ReadFile(filepath.Join(s.reports, rank)); string(got) != "right" {
			s.t.Errorf("rank %s: %q, %v\n%s", rank, got, err, s.out)
		}
	}
	for _, disk := range s.disks {
		if left := below(s.t, disk, "nobody"); len(left) > 0 {
			s.t.Errorf("left behind in %s: %q", disk, left)
		}
	}
}
