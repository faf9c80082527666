package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
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

	"golang.org/x/sys/unix"
)

// The soak: for as long as SOAK says (seconds; make soak: half an hour), random actors do on one node
// whatever actors may do (soak_actor.py, and the allocator of testdata/expandable), while file calls and
// driver calls fail them at random and ranks are killed. The actors check the rule after every operation;
// one of them lives from the beginning to the end, and what it takes of its host must not grow. After
// each run nothing of it may be left.
func TestSoak(t *testing.T) {
	length := 2 * time.Second
	if long() {
		length = 55 * time.Second
	}
	if text := os.Getenv("SOAK"); text != "" {
		seconds, err := strconv.Atoi(text)
		if err != nil || seconds <= 0 {
			t.Fatalf("SOAK=%s is no number of seconds", text)
		}
		length = time.Duration(seconds) * time.Second
	}
	rng := random(t)
	s := newSoak(t, length)
	var all sync.WaitGroup
	all.Go(func() { s.steady(rand.New(rand.NewPCG(1, rng.Uint64()))) })
	for range 2 {
		rng := rand.New(rand.NewPCG(2, rng.Uint64()))
		all.Go(func() {
			for time.Now().Before(s.end) && !t.Failed() {
				s.job(rng)
			}
		})
	}
	all.Wait()
	for _, disk := range s.disks {
		if left := below(t, disk, "nobody"); len(left) > 0 {
			t.Errorf("left in %s: %q", disk, left)
		}
	}
	s.table()
}

// soak is what the actors of a soak share.
type soak struct {
	t          *testing.T
	node       *node
	begin, end time.Time
	disks      []string
	expandable string

	mu    sync.Mutex // guards the fields below
	jobs  int
	lives string                // reports of the actor that lives on
	runs  map[string]int        // by what became of them
	did   map[string]int        // what the actors did
	curve map[string][2]float64 // of the one that lives on: at the beginning and at the end
}

func newSoak(t *testing.T, length time.Duration) *soak {
	n := newNode(t, 48)
	n.env = []string{"SOFTGPU_GRANULARITY_KB=64", "SOFTGPU_DEVICES=2"}
	s := &soak{t: t, node: n, disks: diskDirs(n, 3), expandable: expandable(t), runs: map[string]int{}, did: map[string]int{}, curve: map[string][2]float64{}}
	for _, disk := range s.disks {
		if err := os.Mkdir(disk, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	s.begin = time.Now()
	s.end = s.begin.Add(length)
	return s
}

func (s *soak) count(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.runs[what]++
}

// faults of file calls, as one of so many calls of a name meets one. Those are more than an operation
// makes, so that trying again helps.
func faults(rng *rand.Rand, silent bool) string {
	every := func(call string, least int, what ...string) (list []string) {
		for _, w := range what {
			if rng.IntN(3) > 0 {
				list = append(list, fmt.Sprintf("%s:/%d:%s", call, least+rng.IntN(2*least), w))
			}
		}
		return list
	}
	list := slices.Concat(
		every("pwrite", 45, "EIO", "ENOSPC", "EINTR", "short", "delay=2ms"),
		every("pread", 45, "EIO", "EINTR", "delay=2ms"),
		every("fallocate", 20, "ENOSPC", "EDQUOT"),
		every("open", 120, "EMFILE", "EIO"), every("close", 120, "EIO"), every("fstat", 300, "EIO"), every("unlink", 20, "EIO"),
	)
	if silent {
		list = append(list, every("pwrite", 60, "flip", "torn")...)
		list = append(list, every("pread", 60, "flip", "torn", "short=0")...)
	}
	return strings.Join(list, ",")
}

// start starts a run of an actor in a job of its own.
func (s *soak) start(rng *rand.Rand, ranks, rounds int) (cmd *exec.Cmd, out *strings.Builder, job, reports string) {
	s.mu.Lock()
	s.jobs++
	job = fmt.Sprint("soak-", s.jobs)
	s.mu.Unlock()
	reports = filepath.Join(work, s.node.name+"-"+job)
	if err := os.Mkdir(reports, 0o700); err != nil {
		s.t.Error(err)
	}
	segments := rounds > 0 && rng.IntN(4) == 0 // another kind of actor, which takes no failures
	if segments {
		ranks = 1
	}
	disks := slices.Clone(s.disks)
	rng.Shuffle(len(disks), func(i, j int) { disks[i], disks[j] = disks[j], disks[i] })
	flags := append(diskFlags(disks[:1+rng.IntN(len(disks))]...), "--nproc-per-node", strconv.Itoa(ranks), "--job", job,
		"--offload-train-disk-chunk-mb", "4") // blocks of half a MiB
	if rng.IntN(2) == 0 {
		flags = append(flags, "--offload-train-target", "auto", "--offload-train-host-mb", strconv.Itoa(1+rng.IntN(3)))
	}
	seed := strconv.FormatUint(rng.Uint64(), 10)
	if segments {
		own := *s.node // where it knows how much memory is free
		own.name += "-" + job
		cmd = own.ebbRun(s.t, flags, "", seed)
		cmd.Args = append(cmd.Args[:slices.Index(cmd.Args, "--")+1], s.expandable, doors[rng.IntN(len(doors))], seed, strconv.Itoa(40*rounds))
	} else {
		cmd = s.node.ebbRun(s.t, flags, "soak_actor.py", seed, strconv.Itoa(rounds), reports)
		// Threads that come and go leave the C library's arenas in pieces, which is not the question here.
		cmd.Env = append(cmd.Env, "MALLOC_ARENA_MAX=2", "MALLOC_MMAP_THRESHOLD_=65536")
		silent := rng.IntN(2) == 0
		if rng.IntN(4) > 0 {
			cmd.Env = append(cmd.Env, "EBB_FAULT_FILES="+faults(rng, silent))
		}
		if silent {
			cmd.Env = append(cmd.Env, "SOAK_SILENT=1")
		}
	}
	if rounds == 0 { // it lives as long as the test, not as long as a victim may
		whole := exec.Command(cmd.Path, cmd.Args[1:]...)
		whole.Env, whole.SysProcAttr = cmd.Env, cmd.SysProcAttr
		cmd = whole
	}
	out = &strings.Builder{}
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		s.t.Error(err)
	}
	return cmd, out, job, reports
}

// ended looks at a run that has ended.
func (s *soak) ended(what string, cmd *exec.Cmd, out *strings.Builder, job, reports string, statuses ...int) {
	text, status := out.String(), statusOf(cmd)
	if strings.Contains(text, "Traceback") || strings.Contains(text, "FAILED") || strings.Contains(text, "panic") || !slices.Contains(statuses, status) {
		s.t.Errorf("a run (%s) ended with status %d, environment %q:\n%v\n%s", what, status, cmd.Env, cmd.Args, text)
	}
	for _, disk := range s.disks {
		for _, pattern := range []string{job, ".ebb/" + job + "__*"} {
			if left, err := filepath.Glob(filepath.Join(disk, pattern)); err != nil || len(left) > 0 {
				s.t.Errorf("a run (%s) has left %q (%v)\n%s", what, left, err, text)
			}
		}
	}
	s.count(what)
	s.collect(reports)
}

// collect adds up what the actors of a run have told.
func (s *soak) collect(reports string) {
	list, err := os.ReadDir(reports)
	if err != nil {
		s.t.Error(err)
	}
	for _, e := range list {
		if !strings.HasPrefix(e.Name(), "told-") {
			continue
		}
		var told struct {
			Did   map[string]int
			Curve map[string][2]float64
		}
		if err := json.Unmarshal(readFile(s.t, filepath.Join(reports, e.Name())), &told); err != nil {
			s.t.Error(err)
		}
		s.mu.Lock()
		for what, n := range told.Did {
			s.did[what] += n
		}
		if reports == s.lives {
			s.curve = told.Curve
		}
		s.mu.Unlock()
	}
}

// job is a run of a few seconds, to its end or until something ends it.
func (s *soak) job(rng *rand.Rand) {
	cmd, out, job, reports := s.start(rng, 1+rng.IntN(3), 1+rng.IntN(6))
	moment := time.Duration(rng.IntN(3000)) * time.Millisecond
	what, statuses := "left alone", []int{0}
	switch rng.IntN(4) {
	case 0:
		what, statuses = "a rank killed", []int{0, 128 + int(unix.SIGKILL)}
		time.Sleep(moment)
		c := &crowd{t: s.t, node: s.node, pids: reports}
		c.signal(one(rng, c.ranksOf(cmd.Process.Pid)), unix.SIGKILL)
	case 1:
		what, statuses = "ebb terminated", []int{0, 128 + int(unix.SIGTERM)}
		time.Sleep(moment)
		_ = cmd.Process.Signal(unix.SIGTERM)
	}
	_ = cmd.Wait()
	s.ended(what, cmd, out, job, reports, statuses...)
}

// steady is the run that lasts from the beginning to the end.
func (s *soak) steady(rng *rand.Rand) {
	cmd, out, job, reports := s.start(rng, 1, 0)
	s.mu.Lock()
	s.lives = reports
	s.mu.Unlock()
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	takes := func() [2]int { // threads and descriptors of ebb run
		threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", cmd.Process.Pid))
		fds, err2 := os.ReadDir(fmt.Sprintf("/proc/%d/fd", cmd.Process.Pid))
		if err != nil || err2 != nil {
			return [2]int{}
		}
		return [2]int{len(threads), len(fds)}
	}
	half, begun := s.begin.Add(time.Until(s.end)/2), func() bool {
		list, err := os.ReadDir(reports)
		return err == nil && len(list) > 0
	}
	var first [2]int
	for (time.Now().Before(s.end) || !begun()) && !s.t.Failed() && len(ended) == 0 {
		time.Sleep(10 * time.Millisecond)
		if first[0] == 0 && time.Now().After(half) && begun() {
			first = takes()
		}
	}
	last := takes()
	if first[0] == 0 {
		first = last // it has only just begun
	}
	_ = cmd.Process.Signal(unix.SIGTERM)
	select {
	case <-ended: //nolint:errcheck // statusOf tells how
	case <-time.After(hangs):
		_ = syscall.Kill(-cmd.Process.Pid, unix.SIGKILL)
		<-ended //nolint:errcheck // it was killed
		s.t.Error("the actor that lives on hangs")
	}
	s.ended("lived on", cmd, out, job, reports, 0)
	if last[1] > first[1] || last[0] > first[0]+3 { // Go starts a thread now and then
		s.t.Errorf("threads and descriptors of ebb run: %v, at the end %v", first, last)
	}
}

// table prints what happened.
func (s *soak) table() {
	var b strings.Builder
	line := func(kind string, counts map[string]int) {
		fmt.Fprintf(&b, "%-22s", kind)
		for i, what := range slices.Sorted(maps.Keys(counts)) {
			fmt.Fprintf(&b, "%s%s %d", map[bool]string{true: ", "}[i > 0], what, counts[what])
		}
		fmt.Fprintln(&b)
	}
	did, failed := map[string]int{}, map[string]map[string]int{}
	for what, n := range s.did {
		if operation, how, found := strings.Cut(what, " failed: "); found {
			if failed[operation] == nil {
				failed[operation] = map[string]int{}
			}
			failed[operation][how] += n
			continue
		}
		did[what] = n
	}
	fmt.Fprintf(&b, "soak of %v\n", time.Since(s.begin).Round(time.Second))
	line("runs", s.runs)
	line("operations", did)
	for _, operation := range slices.Sorted(maps.Keys(failed)) {
		line(operation+" failed", failed[operation])
	}
	for _, kind := range slices.Sorted(maps.Keys(s.curve)) {
		fmt.Fprintf(&b, "%-22s%.0f at the beginning, %.0f at the end\n", kind, s.curve[kind][0], s.curve[kind][1])
	}
	s.t.Log("\n" + b.String())
	if did["pauses"] == 0 || did["resumes"] == 0 || long() && (len(failed) == 0 || len(s.curve) == 0) {
		s.t.Error("too little happened to say anything")
	}
}
