package clusters

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// TestSlurm runs the demo's training program under a real Slurm of three nodes, two ranks on each, and pauses, resumes,
// cancels and breaks it.
func TestSlurm(t *testing.T) {
	c := newSlurm(t, 3)
	t.Run("a job that is paused between its phases trains as without", c.trainsAlike)
	t.Run("a job that is cancelled in mid-pause leaves nothing", c.cancelledInMidPause)
	t.Run("only the ranks of the job are meant, and a requeued one reclaims its own", c.twoJobsOnANode)
	t.Run("Ctrl-C waits for what has begun on the nodes", c.interrupted)
	t.Run("a rank that is stopped is late, and one command brings the others back", c.aRankIsLate)
	t.Run("a pause is not done without a rank that has ended, and sockets are found where the job has them", c.aRankHasEnded)
	t.Run("a node that is lost is named, and the others come back", c.losesANode)
	t.Run("jobs that cannot be reached are refused", c.cannotBeReached)
	t.Run("a job of an array and a heterogeneous job", c.arraysAndComponents)
}

// demoJob is the demo's training as a batch job.
type demoJob struct {
	c      *slurmCluster
	id     string
	dir    string
	events *os.File
	tell   *os.File // where rank 0 hears that it can go on

	heard chan struct{} // its own word "heard" was read

	mu   sync.Mutex // guards all below
	idle map[int]int
	ends int
	// losses and digests by rank and step: every bit of them
	said map[string]string
}

// jobSpec is how a job is started, with two ranks on each node.
type jobSpec struct {
	nodes      int
	plain      bool     // without ebb
	documented bool     // by the script of the docs
	ignoreTERM bool     // nothing but SIGKILL ends its ranks
	sbatch     []string // further options
	script     string   // lines of the batch script
}

// submit starts a job.
func (c *slurmCluster) submit(t *testing.T, spec jobSpec) *demoJob {
	t.Helper()
	dir, err := os.MkdirTemp(c.dir, "job-")
	if err != nil {
		t.Fatal(err)
	}
	j := &demoJob{c: c, dir: dir, heard: make(chan struct{}, 1), idle: map[int]int{}, said: map[string]string{}}
	for _, name := range []string{"events", "rollouts"} {
		if err := syscall.Mkfifo(filepath.Join(dir, name), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(filepath.Join(dir, name), slurmUser, slurmUser); err != nil {
			t.Fatal(err)
		}
	}
	train := strings.Join([]string{
		c.dir + "/dist/bin/demo-train", "--corpus", c.dir + "/corpus.txt", "--kernels", c.dir + "/dist/lib/softgpu/demo_kernels.so", "--weights", dir + "/weights",
		"--rollouts", dir + "/rollouts", "--cycles", "2", "--steps", "4", "--megabytes", "12",
	}, " ")
	rank := "exec env RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS LD_LIBRARY_PATH=" + c.dir + "/dist/lib/softgpu " + train
	if spec.ignoreTERM {
		train = `bash -c "trap '' TERM; exec ` + train + `"`
	}
	if !spec.plain {
		rank = "exec " + c.ebb() + " exec --device soft --offload-train --offload-train-target disk --offload-train-disk-chunk-mb 4 -- " + train
	}
	for name, text := range map[string]string{
		"train":   "#!/bin/bash\nexport SOFTGPU_NODE=$SLURMD_NODENAME-$SLURM_JOB_ID SOFTGPU_DEVICES=1 SOFTGPU_MEM_MB=160 DEMO_EVENTS=" + dir + "/events\nexec " + train + "\n",
		"docs.sh": documented(t, dir+"/train"),
		"rank.sh": "#!/bin/bash\nexport SOFTGPU_NODE=$SLURMD_NODENAME-$SLURM_JOB_ID\n" + rank + "\n",
		"job.sh": "#!/bin/bash\nexport MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1) MASTER_PORT=$((20000 + SLURM_JOB_ID)) SOFTGPU_DEVICES=1 SOFTGPU_MEM_MB=160 DEMO_EVENTS=" + dir + "/events\n" +
			spec.script + "\nsrun --no-kill --ntasks-per-node=2 " + dir + "/rank.sh\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chown(dir, slurmUser, slurmUser); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	// Open for both, so that neither end ever closes.
	if j.events, err = os.OpenFile(dir+"/events", os.O_RDWR, 0); err == nil {
		j.tell, err = os.OpenFile(dir+"/rollouts", os.O_RDWR, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		j.read()
	}()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the job's output:\n%s", lastLines(j.output(), 20))
		}
		_, _ = c.cmd(0, "scancel", "--signal=KILL", "--full", j.id).CombinedOutput()
		_, _ = c.cmd(0, "scancel", j.id).CombinedOutput()
		_ = j.events.SetDeadline(time.Unix(1, 0))
		<-read
		_, _ = j.events.Close(), j.tell.Close()
	})
	args := append([]string{"sbatch", "--parsable", "--chdir=/", fmt.Sprintf("--nodes=%d", spec.nodes), "--ntasks-per-node=2", "--output=" + dir + "/out", "--open-mode=append"}, spec.sbatch...)
	script := dir + "/job.sh"
	if spec.documented {
		script = dir + "/docs.sh"
	}
	j.id = c.as(append(args, script)...)
	return j
}

// read takes in what the ranks tell.
func (j *demoJob) read() {
	lines := bufio.NewScanner(j.events)
	for lines.Scan() {
		var e struct {
			Event              string
			Rank, Step, Cycle  int
			Loss, Digest, When string
		}
		if json.Unmarshal(lines.Bytes(), &e) != nil {
			continue
		}
		j.mu.Lock()
		switch e.Event {
		case "loss", "digest":
			j.said[fmt.Sprintf("%s of rank %d at step %d", e.Event, e.Rank, e.Step)] = e.Loss + e.Digest
		case "idle":
			j.idle[e.Cycle]++
		case "end":
			j.ends++
		case "heard":
			j.heard <- struct{}{}
		}
		j.mu.Unlock()
	}
}

func (j *demoJob) output() string {
	text, _ := os.ReadFile(j.dir + "/out")
	return string(text)
}

// awaitIdle waits until so many ranks are idle in a cycle.
func (j *demoJob) awaitIdle(t *testing.T, cycle, ranks int) {
	t.Helper()
	j.c.await(fmt.Sprintf("%d idle ranks in cycle %d of job %s", ranks, cycle, j.id), func() bool {
		if j.state() == "" {
			t.Fatalf("job %s has ended:\n%s", j.id, lastLines(j.output(), 20))
		}
		j.mu.Lock()
		defer j.mu.Unlock()
		return j.idle[cycle] >= ranks
	})
}

// forget forgets who was idle.
func (j *demoJob) forget() {
	j.mu.Lock()
	defer j.mu.Unlock()
	clear(j.idle)
}

// state is that of the job, or nothing when it has ended. A controller that is too busy to tell is asked again.
func (j *demoJob) state() string {
	j.c.t.Helper()
	var state string
	j.c.await("Slurm's word on job "+j.id, func() bool {
		out, err := j.c.cmd(0, "squeue", "--noheader", "--jobs="+j.id, "--format=%T").Output()
		state = strings.TrimSpace(string(out))
		var exit *exec.ExitError
		return err == nil || errors.As(err, &exit) && strings.Contains(string(exit.Stderr), "Invalid job id")
	})
	return state
}

func (j *demoJob) goOn(t *testing.T, cycle int) {
	t.Helper()
	if _, err := fmt.Fprintln(j.tell, cycle); err != nil {
		t.Fatal(err)
	}
}

// awaitEnd waits for the end of the job, and until all that its ranks told is taken in.
func (j *demoJob) awaitEnd() {
	j.c.t.Helper()
	j.c.await("the end of job "+j.id, func() bool { return j.state() == "" })
	if _, err := j.events.WriteString("\n" + `{"event":"heard"}` + "\n"); err != nil {
		j.c.t.Fatal(err)
	}
	j.c.await("what the ranks of job "+j.id+" told", func() bool { return len(j.heard) > 0 })
	<-j.heard
}

// answer is what the verbs print with --json, as far as it is looked at.
type slurmAnswer struct {
	OK    bool
	Nodes []struct{ Node, Lost string }
	Ranks []struct {
		Node, Rank, Job, State string
		Status                 struct {
			Active uint64 `json:"bytes_active"`
			Paused uint64 `json:"bytes_paused"`
		}
		Done struct{ Bytes uint64 }
	}
	Missing []struct{ Rank, Size int }
	GoBack  string `json:"go_back"`
}

// asked runs a verb with --json.
func (c *slurmCluster) asked(t *testing.T, status int, args ...string) (a slurmAnswer, r ran) {
	t.Helper()
	r = c.verb(slurmUser, append(args, "--json")...)
	if r.status != status {
		t.Fatalf("ebb %s ended with %d, want %d:\n%s%s", strings.Join(args, " "), r.status, status, r.stdout, r.stderr)
	}
	if err := json.Unmarshal([]byte(r.stdout), &a); err != nil {
		t.Fatalf("ebb %s: %v\n%s", strings.Join(args, " "), err, r.stdout)
	}
	return a, r
}

// ranksOn are the ranks by their nodes, in order.
func (a slurmAnswer) ranksOn() map[string]string {
	on := map[string]string{}
	for _, r := range a.Ranks {
		on[r.Node] = strings.TrimSpace(on[r.Node] + " " + r.Rank)
	}
	return on
}

// files are the backup files and directories of ranks on a node's disk, as JOB/RANK/FILE.
func (n *slurmNode) files(t *testing.T) (files []string) {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(n.disk, "miles_train_offload_*", "*", "*", "*"))
	if err != nil {
		t.Fatal(err)
	}
	empty, _ := filepath.Glob(filepath.Join(n.disk, "miles_train_offload_*", "*", "*"))
	for _, path := range append(all, empty...) {
		rest, _ := filepath.Rel(n.disk, path)
		_, rest, _ = strings.Cut(rest, "/")
		if !strings.HasPrefix(rest, ".ebb/") {
			files = append(files, rest)
		}
	}
	return files
}

// nothingLeft checks that no job has left anything on a node: files, control sockets, shared memory, processes.
func (n *slurmNode) nothingLeft(t *testing.T) {
	t.Helper()
	if left := n.files(t); len(left) > 0 {
		t.Errorf("%s: %d files and directories are left: %q", n.name, len(left), left)
	}
	for _, pattern := range []string{filepath.Join(n.disk, "miles_train_offload_*/.ebb/*.lease"), filepath.Join(n.disk, "miles_train_offload_*/.ebb/*.m*"),
		filepath.Join(n.disk, "miles_train_offload_*/.ebb/*.control"), n.in(fmt.Sprintf("/tmp/ebb-%d/*", slurmUser))} {
		if left, _ := filepath.Glob(pattern); len(left) > 0 {
			t.Errorf("%s: left: %q", n.name, left)
		}
	}
	// softgpu's own account of a node's device is not ebb's.
	left, _ := filepath.Glob(n.in("/dev/shm/*"))
	for _, path := range left {
		if !strings.HasPrefix(filepath.Base(path), "softgpu-") {
			t.Errorf("%s: left: %s", n.name, path)
		}
	}
	if left := n.processes(); len(left) > 0 {
		t.Errorf("%s: processes of the user are left: %q", n.name, left)
	}
}

// documented is the batch script of docs/clusters/slurm.md, with another training program and without GPUs.
func documented(t *testing.T, train string) string {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(root, "docs/clusters/slurm.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, script, _ := strings.Cut(string(page), "```sh\n")
	script, _, _ = strings.Cut(script, "```")
	for _, change := range [][2]string{{"python train.py", train}, {"#SBATCH --gpus-per-node=8\n", ""}, {"#SBATCH --ntasks-per-node=8", "#SBATCH --ntasks-per-node=2"}} {
		if strings.Count(script, change[0]) != 1 {
			t.Fatalf("the script of the docs has not one %q:\n%s", change[0], script)
		}
		script = strings.Replace(script, change[0], change[1], 1)
	}
	return script
}

func (c *slurmCluster) trainsAlike(t *testing.T) {
	plain := c.submit(t, jobSpec{nodes: 3, plain: true})
	plain.awaitEnd()
	j := c.submit(t, jobSpec{nodes: 3, documented: true, sbatch: []string{"--export=ALL,EBB_DEVICE=soft,EBB_OFFLOAD_TRAIN_DISK_CHUNK_MB=4,PATH=" + filepath.Dir(c.ebb()) + ":" + os.Getenv("PATH")}})
	for cycle := 1; cycle <= 2; cycle++ {
		j.awaitIdle(t, cycle, 6)
		paused, _ := c.asked(t, 0, "pause", "--slurm", j.id)
		if on := paused.ranksOn(); !paused.OK || !maps.Equal(on, map[string]string{"node1": "0 1", "node2": "2 3", "node3": "4 5"}) {
			t.Fatalf("paused: %+v", paused)
		}
		there, _ := c.asked(t, 0, "status", "--slurm", j.id)
		for _, r := range there.Ranks {
			if r.Status.Active != 0 || r.Status.Paused == 0 || r.Job != "slurm-"+j.id+".0" {
				t.Errorf("after the pause: %+v", r)
			}
		}
		if len(there.Ranks) != 6 {
			t.Errorf("%d ranks", len(there.Ranks))
		}
		for i, n := range c.nodes { // each rank in a directory of its own, on the disk of its node
			for _, name := range n.files(t) {
				if !regexp.MustCompile(fmt.Sprintf(`^slurm-%s\.0/actor_cell0_rank[%d%d](/ebb-.*)?$`, j.id, 2*i, 2*i+1)).MatchString(name) {
					t.Errorf("%s has %s", n.name, name)
				}
			}
			if len(n.files(t)) < 4 {
				t.Errorf("%s has %q: no files of two ranks", n.name, n.files(t))
			}
		}
		if table := c.verb(slurmUser, "status", "--slurm", j.id).stdout; strings.Count(table, "paused") != 3 {
			t.Errorf("a row for each node:\n%s", table)
		}
		resumed, _ := c.asked(t, 0, "resume", "--slurm", j.id)
		if !resumed.OK || len(resumed.Ranks) != 6 {
			t.Fatalf("resumed: %+v", resumed)
		}
		j.goOn(t, cycle)
	}
	j.awaitEnd()
	if j.ends != 6 || plain.ends != 6 || len(plain.said) != 6*(12+4) || !maps.Equal(j.said, plain.said) {
		t.Errorf("%d and %d ranks came to their end; with parking they said\n%v\nand without\n%v", j.ends, plain.ends, j.said, plain.said)
	}
	c.idle(3)
	for _, n := range c.nodes {
		n.nothingLeft(t)
	}
}

func (c *slurmCluster) cancelledInMidPause(t *testing.T) {
	j := c.submit(t, jobSpec{nodes: 3, ignoreTERM: true, script: "export EBB_FAULT_FILES=pwrite:*:delay=5s"})
	j.awaitIdle(t, 1, 6)
	pause := make(chan ran, 1)
	go func() { pause <- c.verb(slurmUser, "pause", "--slurm", j.id) }()
	for _, n := range c.nodes {
		c.await("the begin of the pause on "+n.name, func() bool { return len(n.files(t)) > 2 })
	}
	c.as("scancel", j.id)
	r := <-pause
	if r.status == 0 || !strings.HasPrefix(r.lastLine(), "ebb: ") {
		t.Errorf("the pause of a job that was cancelled ended with %d:\n%s%s", r.status, r.stdout, r.stderr)
	}
	j.awaitEnd()
	c.idle(3)
	for _, n := range c.nodes {
		n.nothingLeft(t)
	}
	log, _ := os.ReadFile(c.epilogLog())
	for _, n := range c.nodes {
		if !regexp.MustCompile(n.name + `\]: job ` + j.id + `: removed .*files`).Match(log) {
			t.Errorf("%s: no line of the epilog about what it removed:\n%s", n.name, log)
		}
	}
}

func (c *slurmCluster) twoJobsOnANode(t *testing.T) {
	c.configureEpilog("/nowhere") // so that it is the job itself that finds what its predecessor left
	defer c.configureEpilog(c.local() + "/miles_train_offload_%U")
	where := []string{"--nodelist=node1", "--requeue"}
	j, other := c.submit(t, jobSpec{nodes: 1, sbatch: where}), c.submit(t, jobSpec{nodes: 1, sbatch: where})
	j.awaitIdle(t, 1, 2)
	other.awaitIdle(t, 1, 2)
	if a, _ := c.asked(t, 0, "pause", "--slurm", j.id); !a.OK || len(a.Ranks) != 2 {
		t.Fatalf("paused: %+v", a)
	}
	a, _ := c.asked(t, 0, "status", "--slurm", other.id)
	for _, r := range a.Ranks {
		if r.Status.Paused != 0 {
			t.Errorf("the ranks of another job were paused: %+v", r)
		}
	}
	c.asked(t, 0, "pause", "--slurm", other.id)
	of := func(job *demoJob) (files []string) {
		for _, name := range c.nodes[0].files(t) {
			if strings.HasPrefix(name, "slurm-"+job.id+".0/") {
				files = append(files, name)
			}
		}
		slices.Sort(files)
		return files
	}
	before, others := of(j), of(other)
	if all := c.nodes[0].files(t); len(before) < 4 || len(others) < 4 || len(before)+len(others) != len(all) {
		t.Fatalf("the directories of two jobs: %q", all)
	}
	j.forget()
	supervisors := []*os.Process{c.processOf(t, j, 0, c.ebb(), "exec"), c.processOf(t, j, 1, c.ebb(), "exec")}
	for _, sig := range []syscall.Signal{syscall.SIGSTOP, syscall.SIGKILL} { // stopped first: none sees the end of another's rank
		for _, p := range supervisors {
			if err := p.Signal(sig); err != nil {
				t.Fatal(err)
			}
		}
	}
	j.awaitEnd()
	if left := of(j); len(left) < 4 { // a rank that still sees the end of the other one removes what it can
		t.Errorf("its supervisors were killed, and yet it left only %q of %q", left, before)
	}
	// It is held back for two minutes. A node refuses a job that ended on it within the same second.
	c.inside("scontrol", "requeue", j.id)
	c.inside("scontrol", "update", "JobId="+j.id, "StartTime=now+3")
	j.awaitIdle(t, 1, 2)
	for _, name := range of(j) {
		if strings.Contains(name, "/ebb-") {
			t.Errorf("of its first run it has still %s", name)
		}
	}
	c.await("the word of its second run on what it removed", func() bool { return strings.Contains(j.output(), "that an ended run left in "+c.local()) })
	if now := of(other); !slices.Equal(now, others) {
		t.Errorf("the other job had %q and has %q", others, now)
	}
	c.asked(t, 0, "resume", "--slurm", other.id)
	c.as("scancel", j.id, other.id)
	c.idle(3)
}

func (c *slurmCluster) interrupted(t *testing.T) {
	j := c.submit(t, jobSpec{nodes: 2, script: "export EBB_FAULT_FILES=pwrite:*:delay=1s"})
	j.awaitIdle(t, 1, 4)
	var stdout, stderr bytes.Buffer
	pause := c.cmd(slurmUser, c.ebb(), "pause", "--slurm", j.id, "--json")
	pause.Stdout, pause.Stderr = &stdout, &stderr
	if err := pause.Start(); err != nil {
		t.Fatal(err)
	}
	c.await("the begin of the pause on all ranks", func() bool {
		begun := map[string]bool{}
		for _, n := range c.nodes {
			for _, name := range n.files(t) {
				if dir, _, in := strings.Cut(name, "/ebb-"); in {
					begun[dir] = true
				}
			}
		}
		return len(begun) == 4
	})
	if err := pause.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	err := pause.Wait()
	var a slurmAnswer
	if json.Unmarshal(stdout.Bytes(), &a) != nil || err != nil || !a.OK || len(a.Ranks) != 4 || !strings.Contains(stderr.String(), "withdrawn where it has not begun") {
		t.Errorf("%v\n%s%s", err, stdout.String(), stderr.String())
	}
	c.as("scancel", j.id)
	c.idle(3)
}

func (c *slurmCluster) aRankIsLate(t *testing.T) {
	j := c.submit(t, jobSpec{nodes: 2})
	j.awaitIdle(t, 1, 4)
	stopped := c.processOf(t, j, 3, c.dir+"/dist/bin/demo-train", "--cycles")
	if err := stopped.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	paused, r := c.asked(t, 4, "pause", "--slurm", j.id)
	for _, rank := range paused.Ranks {
		if want := map[bool]string{true: "late", false: "done"}[rank.Rank == "3"]; rank.State != want {
			t.Errorf("rank %s is %s, want %s", rank.Rank, rank.State, want)
		}
	}
	if _, back, _ := strings.Cut(r.lastLine(), "3 of 4 ranks paused; to bring them back: "); paused.OK || len(paused.Ranks) != 4 || back != "ebb resume --slurm "+j.id {
		t.Errorf("%+v\n%s", paused, r.stderr)
	}
	if err := stopped.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if a, _ := c.asked(t, 0, "resume", "--slurm", j.id); !a.OK || len(a.Ranks) != 4 {
		t.Errorf("resumed: %+v", a)
	}
	a, _ := c.asked(t, 0, "status", "--slurm", j.id)
	for _, rank := range a.Ranks {
		if rank.Status.Active == 0 || rank.Status.Paused != 0 {
			t.Errorf("after the resume: %+v", rank)
		}
	}
	c.as("scancel", j.id)
	c.idle(3)
}

func (c *slurmCluster) aRankHasEnded(t *testing.T) {
	// Neither the directory of the sockets nor that of the files is one that a caller would think of.
	j := c.submit(t, jobSpec{nodes: 2, script: "export EBB_RUNTIME_DIR=/tmp/sockets-$SLURM_JOB_ID EBB_OFFLOAD_TRAIN_DISK_DIR=" + c.local() + "/named"})
	j.awaitIdle(t, 1, 4)
	if a, _ := c.asked(t, 0, "status", "--slurm", j.id); len(a.Ranks) != 4 {
		t.Errorf("found were %+v", a)
	}
	if err := c.processOf(t, j, 3, c.dir+"/dist/bin/demo-train", "--cycles").Kill(); err != nil {
		t.Fatal(err)
	}
	c.await("the end of rank 3", func() bool {
		var a slurmAnswer
		return json.Unmarshal([]byte(c.verb(slurmUser, "status", "--slurm", j.id, "--json").stdout), &a) == nil && len(a.Ranks) == 3
	})
	paused, r := c.asked(t, 1, "pause", "--slurm", j.id)
	if paused.OK || len(paused.Ranks) != 3 || len(paused.Missing) != 1 || paused.Missing[0].Rank != 3 || paused.Missing[0].Size != 4 {
		t.Errorf("%+v", paused)
	}
	for _, rank := range paused.Ranks {
		if rank.State != "done" || rank.Done.Bytes == 0 {
			t.Errorf("another rank: %+v", rank)
		}
	}
	if !strings.Contains(r.stderr, "ebb: rank 3 is not there, of the 4 ranks") || r.lastLine() != "ebb: 3 of 4 ranks paused; to bring them back: ebb resume --slurm "+j.id {
		t.Errorf("%s", r.stderr)
	}
	if a, _ := c.asked(t, 0, "resume", "--slurm", j.id); !a.OK || len(a.Ranks) != 3 {
		t.Errorf("resumed: %+v", a)
	}
	if a, _ := c.asked(t, 0, "pause", "--slurm", j.id, "--role", "actor"); !a.OK || len(a.Ranks) != 3 {
		t.Errorf("those that were chosen, paused: %+v", a)
	}
	c.as("scancel", j.id)
	c.idle(3)
	for _, n := range c.nodes {
		if left, _ := filepath.Glob(filepath.Join(n.disk, "named/*/*/*")); len(left) > 0 {
			t.Errorf("left: %q", left)
		}
		n.nothingLeft(t)
	}
}

// processOf is the process of a rank that runs a program with some argument.
func (c *slurmCluster) processOf(t *testing.T, j *demoJob, rank int, program, argument string) *os.Process {
	t.Helper()
	all, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range all {
		runs, _ := os.Readlink(dir + "/exe")
		words, _ := os.ReadFile(dir + "/cmdline")
		environ, _ := os.ReadFile(dir + "/environ")
		has := func(entry string) bool { return strings.Contains("\x00"+string(environ), "\x00"+entry+"\x00") }
		if runs == program && strings.Contains(string(words), "\x00"+argument+"\x00") && has("SLURM_JOB_ID="+j.id) && has(fmt.Sprintf("SLURM_PROCID=%d", rank)) {
			var pid int
			if _, err := fmt.Sscanf(dir, "/proc/%d", &pid); err != nil {
				t.Fatal(err)
			}
			p, err := os.FindProcess(pid)
			if err != nil {
				t.Fatal(err)
			}
			return p
		}
	}
	t.Fatalf("no process of rank %d of job %s", rank, j.id)
	return nil
}

func (c *slurmCluster) losesANode(t *testing.T) {
	j := c.submit(t, jobSpec{nodes: 3, ignoreTERM: true, sbatch: []string{"--no-kill"}})
	j.awaitIdle(t, 1, 6)
	c.asked(t, 0, "pause", "--slurm", j.id)
	c.asked(t, 0, "resume", "--slurm", j.id)
	lost := c.nodes[1]
	if len(lost.files(t)) < 4 {
		t.Fatalf("node2 has %q: no files of two ranks", lost.files(t))
	}
	lost.kill()

	paused, r := c.asked(t, 1, "pause", "--slurm", j.id)
	if on := paused.ranksOn(); paused.OK || !maps.Equal(on, map[string]string{"node1": "0 1", "node3": "4 5"}) {
		t.Errorf("paused: %+v", paused)
	}
	for _, rank := range paused.Ranks {
		if rank.State != "done" || rank.Done.Bytes == 0 {
			t.Errorf("a rank of another node: %+v", rank)
		}
	}
	for _, n := range paused.Nodes {
		if (n.Lost != "") != (n.Node == "node2") {
			t.Errorf("%s: lost %q", n.Node, n.Lost)
		}
	}
	if !strings.Contains(r.stderr, "ebb: node node2 of job "+j.id+" does not answer: ") {
		t.Errorf("the node is not named:\n%s", r.stderr)
	}
	before, back, _ := strings.Cut(r.lastLine(), "to bring them back: ebb ")
	if back != "resume --slurm "+j.id || !strings.Contains(before, "4 ranks paused on 2 of 3 nodes") || paused.GoBack != "ebb "+back {
		t.Errorf("the last line is %q", r.lastLine())
	}
	resumed, r := c.asked(t, 1, strings.Fields(back)...) // all that is there is back; the node is not
	if !strings.Contains(r.stderr, "node node2 of job ") || len(resumed.Ranks) != 4 {
		t.Errorf("%+v\n%s", resumed, r.stderr)
	}
	for _, rank := range resumed.Ranks {
		if rank.State != "done" || rank.Done.Bytes == 0 {
			t.Errorf("resumed: %+v", rank)
		}
	}

	// The node comes back, and with it the end of the job to it, and the epilog.
	c.as("scancel", j.id)
	c.boot(lost)
	j.awaitEnd()
	c.idle(3)
	for _, n := range c.nodes {
		n.nothingLeft(t)
	}
}

func (c *slurmCluster) cannotBeReached(t *testing.T) {
	j := c.submit(t, jobSpec{nodes: 1})
	j.awaitIdle(t, 1, 2)
	for _, verb := range []string{"status", "pause", "resume"} {
		for _, e := range []struct {
			user, status int
			args, words  []string
		}{
			{slurmUser, 2, []string{"--slurm", "1;id"}, []string{"the number of a job"}},
			{slurmUser, 2, []string{"--slurm", "../1"}, []string{"the number of a job"}},
			{slurmUser, 2, []string{"--slurm", "1 2"}, []string{"the number of a job"}},
			{slurmUser, 2, []string{"--slurm", j.id + ".0"}, []string{"a step has none of its own"}},
			{slurmUser, 2, []string{"--slurm", "77777"}, []string{"no job 77777", "squeue --me"}},
			{slurmUser, 2, []string{"--slurm", j.id, "--rank", "7"}, []string{`no rank "7"; there are: 0, 1`}},
			{slurmUser, 2, []string{"--slurm", j.id, "--pid", "7"}, []string{"--pid names a process of one node"}},
			{slurmUser, 3, []string{"--slurm", c.ended(t)}, []string{"no rank is running: job"}},
			{0, 2, []string{"--slurm", j.id}, []string{"is of user 65534", "runuser"}},
		} {
			r := c.verb(e.user, append([]string{verb}, e.args...)...)
			for _, word := range e.words {
				if r.status != e.status || !strings.Contains(r.stderr, word) || r.stdout != "" {
					t.Errorf("ebb %s %q ended with %d, want %d and %q:\n%s%s", verb, e.args, r.status, e.status, word, r.stdout, r.stderr)
				}
			}
		}
		if r := c.verb(slurmUser, "status", "--tags", "--slurm", j.id); r.status != 2 || !strings.Contains(r.stderr, "take --json") {
			t.Errorf("--tags: %d, %s", r.status, r.stderr)
		}
		cmd := c.cmd(slurmUser, "env", "PATH=/nowhere", c.ebb(), verb, "--slurm", j.id)
		if out, err := cmd.CombinedOutput(); cmd.ProcessState.ExitCode() != 2 || !strings.Contains(string(out), "squeue is not in PATH: run ebb on a node where") {
			t.Errorf("without Slurm's commands: %v\n%s", err, out)
		}
	}
	a, _ := c.asked(t, 0, "status", "--slurm", j.id)
	for _, r := range a.Ranks {
		if r.Status.Active == 0 || r.Status.Paused != 0 {
			t.Errorf("a verb that was refused did something: %+v", r)
		}
	}
}

// ended is a job that has ended, and that Slurm still knows.
func (c *slurmCluster) ended(t *testing.T) string {
	t.Helper()
	id := c.as("sbatch", "--parsable", "--wait", "--chdir=/", "--output=/dev/null", "--wrap=true")
	return id
}

func (c *slurmCluster) arraysAndComponents(t *testing.T) {
	sleep := []string{"--parsable", "--chdir=/", "--output=/dev/null", "--wrap=sleep 600"}
	array := c.as(append([]string{"sbatch", "--array=0-1"}, sleep...)...)
	runs := func(id string, n int) {
		t.Helper()
		c.await(fmt.Sprintf("%d jobs of %s", n, id), func() bool {
			out, _ := c.cmd(0, "squeue", "--noheader", "--states=RUNNING", "--jobs="+id, "--format=%i").Output()
			return len(strings.Fields(string(out))) == n
		})
	}
	runs(array, 2)
	if r := c.verb(slurmUser, "status", "--slurm", array); r.status != 2 || !strings.Contains(r.stderr, "is an array: name one of its jobs, such as "+array+"_") {
		t.Errorf("a whole array: %d, %s", r.status, r.stderr)
	}
	if r := c.verb(slurmUser, "status", "--slurm", array+"_1"); r.status != 3 || !strings.Contains(r.stderr, "none of job "+array+"_1 on its 1 node") {
		t.Errorf("one of an array: %d, %s", r.status, r.stderr)
	}
	c.as("scancel", array)

	het := c.submit(t, jobSpec{nodes: 1, sbatch: []string{"--nodelist=node1", ":", "--nodes=2", "--nodelist=node[2-3]", "--ntasks-per-node=2"},
		script: `srun() { command srun --het-group=0,1 "$@"; }`})
	het.awaitIdle(t, 1, 6)
	all := map[string]string{"node1": "0 1", "node2": "2 3", "node3": "4 5"}
	if a, _ := c.asked(t, 0, "pause", "--slurm", het.id); !a.OK || !maps.Equal(a.ranksOn(), all) {
		t.Errorf("a heterogeneous job, paused: %+v", a)
	}
	delete(all, "node1")
	if a, _ := c.asked(t, 0, "resume", "--slurm", het.id+"+1"); !a.OK || !maps.Equal(a.ranksOn(), all) {
		t.Errorf("a component of it, resumed: %+v", a)
	}
	c.as("scancel", het.id)
	c.idle(3)
}
