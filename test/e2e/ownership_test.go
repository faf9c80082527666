package e2e

import (
	"bytes"
	"context"
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

// Jobs of random roles, cells and ranks start, park, are killed in every way and start again on the same
// two disk directories, beside ebb gc. Every rank checks that what it parked is its own and untouched
// (ownership.py). At the end nothing is left.
func TestManyJobsOnTheSameDirectories(t *testing.T) {
	n := newNode(t, 2048)
	crowded(t, n, 2*time.Minute, filepath.Join(n.disk, "first"), filepath.Join(n.disk, "second"))
}

func TestManyJobsOnDirectoriesOfTwoFileSystems(t *testing.T) {
	other := mountExt4(t, "2G")
	n := newNode(t, 2048)
	crowded(t, n, 20*time.Second, filepath.Join(n.disk, "first"), filepath.Join(other, "second"))
}

// crowded runs many jobs at a time, for a few seconds, or in the long form for as long as is said.
func crowded(t *testing.T, n *node, length time.Duration, disks ...string) {
	rng, jobs := random(t), 50
	if !long() {
		jobs, length = 6, 3*time.Second
	}
	c := newCrowd(t, n, disks)
	end := time.Now().Add(length)
	var all sync.WaitGroup
	for range jobs {
		rng := rand.New(rand.NewPCG(rng.Uint64(), 0))
		all.Go(func() {
			for time.Now().Before(end) && !t.Failed() {
				c.job(rng)
			}
			// On a slow machine all jobs until then may have been ended before their first cycle.
			for !c.has("cycles") && time.Now().Before(end.Add(time.Minute)) && !t.Failed() {
				c.job(rng)
			}
		})
	}
	all.Go(func() {
		rng := rand.New(rand.NewPCG(rng.Uint64(), 1))
		for time.Now().Before(end) && !t.Failed() {
			c.collect(rng)
		}
	})
	all.Wait()
	c.allEnded()
	// A rank that was just killed may hold its lease for some moments more, when its environment is gone and with it
	// all by which it was known.
	var left []string
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		c.ebb("gc", "--disk-dir", strings.Join(c.disks, ","))
		left = nil
		for _, disk := range c.disks {
			for _, name := range below(t, disk, "nobody") {
				left = append(left, filepath.Join(disk, name))
			}
		}
		if len(left) == 0 || time.Now().After(deadline) {
			break
		}
	}
	if len(left) > 0 {
		t.Errorf("left: %q", left)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	ended := 0
	for _, kind := range slices.Sorted(maps.Keys(c.count)) {
		t.Logf("%5d %s", c.count[kind], kind)
		if strings.HasPrefix(kind, "job") {
			ended += c.count[kind]
		}
	}
	if ended < jobs || c.count["cycles"] == 0 {
		t.Errorf("%d jobs ended and %d cycles were made: too few to say anything", ended, c.count["cycles"])
	}
}

// crowd is many jobs on one node.
type crowd struct {
	t     *testing.T
	node  *node
	disks []string
	pids  string // directory with the numbers of all ranks so far

	mu    sync.Mutex
	count map[string]int
}

func newCrowd(t *testing.T, n *node, disks []string) *crowd {
	n.env = []string{"SOFTGPU_GRANULARITY_KB=64"}
	c := &crowd{t: t, node: n, pids: filepath.Join(work, n.name+"-pids"), disks: disks, count: map[string]int{}}
	if err := os.Mkdir(c.pids, 0o700); err != nil {
		t.Fatal(err)
	}
	return c
}

func (c *crowd) counted(kind string, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.count[kind] += n
}

// has reports whether there was any of a kind.
func (c *crowd) has(kind string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.count[kind] > 0
}

// ebb runs a verb that must succeed.
func (c *crowd) ebb(args ...string) {
	ctx, cancel := context.WithTimeout(context.Background(), hangs)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(root, "dist/bin/ebb"), args...)
	cmd.WaitDelay = 5 * time.Second
	if out, err := cmd.CombinedOutput(); err != nil {
		c.t.Errorf("%v: %v\n%s", args, err, out)
	}
}

// collect runs ebb gc, which takes only what is dead.
func (c *crowd) collect(rng *rand.Rand) {
	if _, err := os.Stat(c.disks[0]); err != nil {
		time.Sleep(time.Millisecond) // no job has made it yet
		return
	}
	args := []string{"gc", "--disk-dir", c.disks[0]}
	switch rng.IntN(4) {
	case 0:
		args = append(args, "--discard")
	case 1:
		args = append(args, "--dry-run")
	}
	c.ebb(args...)
	c.counted("ebb gc", 1)
}

// deeds are what is done to a job while it runs; each is told what to choose by rng.
var deeds = map[string]func(c *crowd, rng *rand.Rand, job *exec.Cmd, ranks []int){
	"left alone": func(*crowd, *rand.Rand, *exec.Cmd, []int) {},
	"a rank killed": func(c *crowd, rng *rand.Rand, _ *exec.Cmd, ranks []int) {
		c.signal(one(rng, ranks), unix.SIGKILL)
	},
	"ebb killed": func(_ *crowd, _ *rand.Rand, job *exec.Cmd, _ []int) { _ = job.Process.Kill() },
	"all killed": func(c *crowd, _ *rand.Rand, job *exec.Cmd, ranks []int) {
		_ = job.Process.Kill()
		c.signal(ranks, unix.SIGKILL)
	},
	"ebb terminated":    func(_ *crowd, _ *rand.Rand, job *exec.Cmd, _ []int) { _ = job.Process.Signal(unix.SIGTERM) },
	"a rank terminated": func(c *crowd, rng *rand.Rand, _ *exec.Cmd, ranks []int) { c.signal(one(rng, ranks), unix.SIGTERM) },
	"a rank stopped and killed": func(c *crowd, rng *rand.Rand, _ *exec.Cmd, ranks []int) {
		some := one(rng, ranks)
		c.signal(some, unix.SIGSTOP)
		pass(rng)
		c.signal(some, unix.SIGKILL)
	},
	"a rank stopped, ebb killed": func(c *crowd, rng *rand.Rand, job *exec.Cmd, ranks []int) {
		c.signal(one(rng, ranks), unix.SIGSTOP)
		pass(rng)
		_ = job.Process.Kill()
	},
	"ebb stopped, a rank killed, ebb goes on": func(c *crowd, rng *rand.Rand, job *exec.Cmd, ranks []int) {
		_ = job.Process.Signal(unix.SIGSTOP)
		c.signal(one(rng, ranks), unix.SIGKILL)
		pass(rng)
		_ = job.Process.Signal(unix.SIGCONT)
	},
	"ebb stopped and killed": func(_ *crowd, rng *rand.Rand, job *exec.Cmd, _ []int) {
		_ = job.Process.Signal(unix.SIGSTOP)
		pass(rng)
		_ = job.Process.Kill()
	},
}

// pass lets a little time go by: which moment comes next is the seed's and the scheduler's.
func pass(rng *rand.Rand) { time.Sleep(time.Duration(rng.IntN(300)) * time.Millisecond) }

func one(rng *rand.Rand, ranks []int) []int {
	if len(ranks) == 0 {
		return nil
	}
	return []int{ranks[rng.IntN(len(ranks))]}
}

// job runs one job to its end. Its name is one of few, so that it meets others of the same.
func (c *crowd) job(rng *rand.Rand) {
	names := slices.Sorted(maps.Keys(deeds))
	deed := names[rng.IntN(len(names))]
	if rng.IntN(3) == 0 {
		deed = "left alone"
	}
	disks := slices.Clone(c.disks)
	rng.Shuffle(len(disks), func(i, j int) { disks[i], disks[j] = disks[j], disks[i] })
	flags := append(diskFlags(disks[:1+rng.IntN(len(disks))]...),
		"--nproc-per-node", strconv.Itoa(1+rng.IntN(3)),
		"--role", []string{"actor", "critic"}[rng.IntN(2)], "--cell", strconv.Itoa(rng.IntN(2)))
	if rng.IntN(3) > 0 {
		flags = append(flags, "--job", []string{"a", "b", "c", "d"}[rng.IntN(4)])
	}
	if rng.IntN(4) == 0 {
		flags = append(flags, "--discard")
	}
	cmd := c.node.ebbRun(c.t, flags, "ownership.py", strconv.FormatUint(rng.Uint64(), 10), c.pids)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		c.t.Error(err)
		return
	}
	pass(rng)
	pass(rng)
	deeds[deed](c, rng, cmd, c.ranksOf(cmd.Process.Pid))
	_ = cmd.Wait()
	text, status := out.String(), statusOf(cmd)
	c.counted("cycles", strings.Count(text, ": cycle\n"))
	inUse := status == 73 && strings.Contains(text, "in use by a live")
	switch {
	case strings.Contains(text, "Traceback"), strings.Contains(text, "FAILED"), strings.Contains(text, "panic"):
		c.t.Errorf("a rank of a job (%s) found something wrong:\n%s", deed, text)
	case inUse:
		c.counted("job refused, another had the name", 1)
	case deed == "left alone" && status != 0 && status != 5:
		c.t.Errorf("a job that was left alone ended with status %d:\n%s", status, text)
	default:
		c.counted("job "+deed, 1)
	}
}

func statusOf(cmd *exec.Cmd) int {
	if w, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && w.Signaled() {
		return 128 + int(w.Signal())
	}
	return cmd.ProcessState.ExitCode()
}

// ranksOf are the ranks of a job that have told their numbers.
func (c *crowd) ranksOf(supervisor int) (ranks []int) {
	for _, pid := range c.told() {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			continue
		}
		_, after, _ := strings.Cut(string(stat), ") ")
		if f := strings.Fields(after); len(f) > 1 && f[1] == strconv.Itoa(supervisor) {
			ranks = append(ranks, pid)
		}
	}
	return ranks
}

func (c *crowd) told() (pids []int) {
	list, err := os.ReadDir(c.pids)
	if err != nil {
		c.t.Error(err)
	}
	for _, e := range list {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// signal sends a signal to processes of this node. A number may be another process's by now: the
// descriptor holds on to the one that is looked at.
func (c *crowd) signal(pids []int, sig syscall.Signal) {
	for _, pid := range pids {
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			continue
		}
		if c.ours(pid) {
			_ = unix.PidfdSendSignal(fd, sig, nil, 0)
		}
		_ = unix.Close(fd)
	}
}

// ours reports whether a process runs on this test's software GPU.
func (c *crowd) ours(pid int) bool {
	environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	return err == nil && bytes.Contains(environ, []byte("SOFTGPU_NODE="+c.node.name+"\x00"))
}

// allEnded waits until no rank runs: those of a killed ebb end by themselves.
func (c *crowd) allEnded() {
	deadline := time.Now().Add(hangs)
	for _, pid := range c.told() {
		for c.ours(pid) {
			if time.Now().After(deadline) {
				c.t.Fatalf("process %d of a job that has ended does not end", pid)
			}
			time.Sleep(2 * time.Millisecond)
		}
	}
}
