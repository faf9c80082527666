package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A rank is killed at a random moment of a pause and resume, beside the other ranks of its run and beside
// another run on the same disk directory, which is parked all the while.
func TestAKilledRankLeavesNothingAndHarmsNobody(t *testing.T) {
	t.Parallel()
	rng, rounds := random(t), 4
	if long() {
		rounds = 200
	}
	n := newNode(t, 256)
	n.env = []string{"SOFTGPU_GRANULARITY_KB=64", "SOFTGPU_LINK_GBPS=0.1"}
	disk := filepath.Join(n.disk, "disk")
	bystander := parkedBystander(t, n, disk)

	killed := map[string]int{}
	for round := range rounds {
		reports := filepath.Join(work, fmt.Sprintf("%s-reports-%d", n.name, round))
		if err := os.Mkdir(reports, 0o700); err != nil {
			t.Fatal(err)
		}
		flags := append(diskFlags(disk), "--nproc-per-node", "3", "--job", "killed")
		o := run(t, n.ebbRun(t, flags, "kill_cycle.py", rng.Text(), reports))
		if o.status != 128+int(syscall.SIGKILL) || len(lines(o.stderr, "Error")) > 0 {
			t.Fatalf("round %d: want 137, got %v", round, o)
		}
		if left := below(t, disk, "bystander"); len(left) > 0 {
			t.Fatalf("round %d: left behind: %q", round, left)
		}
		for rank := 1; rank < 3; rank++ {
			if got, err := os.ReadFile(filepath.Join(reports, fmt.Sprint(rank))); err != nil || string(got) != "right" {
				t.Fatalf("round %d: rank %d: %q, %v\n%v", round, rank, got, err, o)
			}
		}
		phase := readFile(t, filepath.Join(reports, "phase-0"))[0]
		killed[[]string{"writes", "pauses", "is parked", "resumes", "checks"}[phase]]++
	}
	t.Logf("%d kills: %v", rounds, killed)
	bystander.resumes(t)
	if left := below(t, disk, "nobody"); len(left) > 0 {
		t.Errorf("left behind at the end: %q", left)
	}
}

// diskFlags park all memory of a run in directories.
func diskFlags(dirs ...string) []string {
	return []string{"--offload-train", "--offload-train-target", "disk", "--offload-train-disk-chunk-mb", "1", "--offload-train-disk-dir", strings.Join(dirs, ",")}
}

// below lists what is under a disk directory, but for ebb's own, empty one, the count of who holds what,
// and the files of a job.
func below(t *testing.T, dir, job string) []string {
	t.Helper()
	var found []string
	err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		name, _ := filepath.Rel(dir, path)
		if err == nil && name != "." && name != ".ebb" && name != ".ebb/usage" && name != job && !strings.HasPrefix(name, job+"/") && !strings.HasPrefix(name, ".ebb/"+job+"__") {
			found = append(found, name)
		}
		return unlessGone(dir, path, err)
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// bystander is a run that is parked while others are tested.
type bystander struct {
	cmd   *exec.Cmd
	stop  string
	ended chan error
	out   *strings.Builder
}

func parkedBystander(t *testing.T, n *node, disk string) *bystander {
	t.Helper()
	b := &bystander{stop: filepath.Join(work, n.name+"-stop"), ended: make(chan error, 1), out: &strings.Builder{}}
	parked := filepath.Join(work, n.name+"-parked")
	b.cmd = n.ebbRun(t, append(diskFlags(disk), "--job", "bystander"), "bystander.py", parked, b.stop)
	// It lives as long as the test, not as long as a victim may.
	whole := exec.Command(b.cmd.Path, b.cmd.Args[1:]...)
	whole.Env, whole.SysProcAttr = b.cmd.Env, b.cmd.SysProcAttr
	whole.Stdout, whole.Stderr = b.out, b.out
	b.cmd = whole
	if err := b.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { b.ended <- b.cmd.Wait() }()
	t.Cleanup(func() {
		if b.ended != nil {
			_ = b.cmd.Process.Kill()
			<-b.ended //nolint:errcheck // it was killed
		}
	})
	for {
		if _, err := os.Stat(parked); err == nil {
			return b
		}
		select {
		case err := <-b.ended:
			b.ended = nil
			t.Fatalf("the bystander ended: %v\n%s", err, b.out)
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// resumes tells the bystander to resume, and checks that it found what it had parked.
func (b *bystander) resumes(t *testing.T) {
	t.Helper()
	if err := os.WriteFile(b.stop, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	err := <-b.ended
	b.ended = nil
	if err != nil {
		t.Errorf("the bystander lost something: %v\n%s", err, b.out)
	}
}
