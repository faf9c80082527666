package e2e

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

var backupModes = []string{"disk", "pinned", "mmap", "none"}

// A model of what every allocation holds, against whole processes with threads and forks. How the
// threads meet is the scheduler's; what each of them does is the seed's.
func TestAnySequenceOfCallsOnAnyThreadIsSafe(t *testing.T) {
	t.Parallel()
	rng, rounds, steps := random(t), 2, 600
	if long() {
		rounds, steps = 20, 2500
	}
	for range rounds {
		n := newNode(t, 64)
		n.env = []string{"SOFTGPU_GRANULARITY_KB=64", "TMS_DISK_BACKUP_CHUNK_MB=2"}
		seed := rng.Text()
		o := run(t, n.victim(t, "endurance_random.py", seed, fmt.Sprint(steps)))
		if o.status != 0 {
			t.Fatalf("victim's seed %s: %v", seed, o)
		}
		t.Log(strings.TrimSpace(o.stdout))
		wantNoFiles(t, n.disk)
	}
}

func TestTwoHundredCyclesLeakNothing(t *testing.T) {
	for _, retain := range []string{"retain", "release"} {
		if retain == "retain" && !long() {
			continue
		}
		t.Run(retain, func(t *testing.T) {
			n := newNode(t, 256)
			n.env = []string{"SOFTGPU_GRANULARITY_KB=64"}
			t.Log("\n" + succeed(t, n.victim(t, "endurance_cycles.py", retain)))
			wantNoFiles(t, n.disk)
		})
	}
}

func TestHostMemoryComesBackAfterACycleUnlessItIsRetained(t *testing.T) {
	for _, backend := range []string{"pinned", "mmap"} {
		for _, retain := range []string{"release", "retain"} {
			t.Run(backend+" "+retain, func(t *testing.T) {
				n := newNode(t, 600)
				t.Log("\n" + succeed(t, n.victim(t, "endurance_resident.py", backend, retain)))
			})
		}
	}
}

func TestWorkOnNonBlockingStreamsIsInTheBackup(t *testing.T) {
	t.Parallel()
	image := filepath.Join(work, "endurance_kernel.so")
	compile(t, "-shared", "-fPIC", "-I"+filepath.Join(root, "softgpu"), "-o", image, filepath.Join(testdir, "endurance_kernel.c"))
	for _, latency := range []string{"50", "hold"} {
		for _, backup := range []string{"disk", "pinned", "mmap"} {
			if latency != "hold" && backup != "pinned" && !long() {
				continue // where the bytes go says nothing of when
			}
			t.Run(fmt.Sprintf("%s latency %s", backup, latency), func(t *testing.T) {
				n := newNode(t, 64)
				n.env = []string{"SOFTGPU_LATENCY_US=" + latency, "SOFTGPU_GRANULARITY_KB=64"}
				t.Log(strings.TrimSpace(succeed(t, n.victim(t, "endurance_streams.py", backup, image))))
				wantNoFiles(t, n.disk)
			})
		}
	}
}

func compile(t *testing.T, args ...string) {
	t.Helper()
	cmd := exec.Command("gcc", append([]string{"-std=c11", "-Wall", "-Wextra", "-Werror"}, args...)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", cmd.Args, err, out)
	}
}

func TestAGibibyteComesBack(t *testing.T) {
	if !long() {
		t.Skip("only in the long form")
	}
	for _, mode := range backupModes {
		t.Run(mode, func(t *testing.T) {
			n := newNode(t, 1100)
			succeed(t, n.victim(t, "endurance_large.py", mode))
			wantNoFiles(t, n.disk)
		})
	}
}

// With the driver of a GPU a process needs few descriptors, whatever it has allocated; ebb adds few.
func TestTenThousandAllocationsNeedFewDescriptors(t *testing.T) {
	n := newNode(t, 1024)
	n.env = []string{"SOFTGPU_GRANULARITY_KB=64"}
	out := succeed(t, n.victim(t, "endurance_many.py", "10000"))
	if strings.HasPrefix(out, "skip") {
		t.Skip(out)
	}
	t.Log("\n" + out)
	wantNoFiles(t, n.disk)
}

func TestThousandsOfFailuresAreOneReadableLine(t *testing.T) {
	t.Parallel()
	n := newNode(t, 1024)
	n.env = []string{"SOFTGPU_GRANULARITY_KB=64", "SOFTGPU_FAULT=cuMemUnmap:3+:CUDA_ERROR_UNKNOWN"}
	o := run(t, n.victim(t, "endurance_many.py", "2000", "fault"))
	if o.status != 0 {
		t.Fatal(o)
	}
	if strings.HasPrefix(o.stdout, "skip") {
		t.Skip(o.stdout)
	}
	t.Log(o.stdout)
	if said := lines(o.stderr, "ebb: pause PARTIAL"); len(said) != 1 || len(said[0]) > 2000 || len(remarks(o.stderr)) != 1 {
		t.Errorf("want one line, got %d bytes: %.3000s", len(o.stderr), o.stderr)
	}
	wantNoFiles(t, n.disk)
}
