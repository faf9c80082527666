package hostmem

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/ebb-offload/ebb/internal/sizes"
)

// groupVariable makes the test binary a child in a cgroup: the child moves itself there first.
const groupVariable = "HOSTMEM_TEST_CGROUP"

// newGroup makes a real memory cgroup of version 1 below the test's own, or skips the test.
func newGroup(t *testing.T, limit uint64) (dir, name string) {
	t.Helper()
	membership, _ := os.ReadFile("/proc/self/cgroup")
	mountinfo, _ := os.ReadFile("/proc/self/mountinfo")
	groups := memoryGroups(string(membership), string(mountinfo))
	if len(groups) == 0 {
		t.Skip("no memory cgroup here")
	}
	parent, file := groups[0], "memory.limit_in_bytes"
	if parent.v2 {
		file = "memory.max"
	}
	base := fmt.Sprintf("ebb-test-%d", os.Getpid())
	dir = filepath.Join(parent.dir, base)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Skipf("no memory cgroup can be made: %v", err)
	}
	t.Cleanup(func() {
		// The kernel lets go of the last process a moment after its parent has learned of its end.
		for deadline := time.Now().Add(time.Minute); ; {
			err := os.Remove(dir)
			if err == nil {
				return
			}
			if time.Now().After(deadline) {
				t.Errorf("the test's cgroup stays: %v", err)
				return
			}
		}
	})
	if err := os.WriteFile(filepath.Join(dir, file), fmt.Append(nil, limit), 0o644); err != nil {
		t.Skipf("no limit can be set: %v", err)
	}
	return dir, filepath.Join(parent.path, base)
}

// inGroup runs another test of this binary as a process in a cgroup. Whatever it does, it must not
// be killed.
func inGroup(t *testing.T, dir, test string) string {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run", "^"+test+"$", "-test.v")
	cmd.Env = append(os.Environ(), groupVariable+"="+dir)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("the process in the cgroup: %v\n%s", err, out)
	}
	return string(out)
}

// enter moves this process into the group that its parent made, or skips the test.
func enter(t *testing.T) {
	t.Helper()
	dir := os.Getenv(groupVariable)
	if dir == "" {
		t.Skip("runs in the processes of other tests")
	}
	if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), fmt.Append(nil, os.Getpid()), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestMoreThanTheCgroupLeavesIsRefusedAndNobodyIsKilled(t *testing.T) {
	dir, name := newGroup(t, 256*mib)
	out := inGroup(t, dir, "TestInACgroupOf256MiB")
	if !strings.Contains(out, "cgroup "+name+" allows 256.0 MiB") || strings.Contains(out, "SKIP") {
		t.Errorf("the refusal does not name the cgroup:\n%s", out)
	}
}

func TestInACgroupOf256MiB(t *testing.T) {
	enter(t)
	limits, err := Look()
	if err != nil || len(limits.Groups) == 0 || limits.Groups[0].Limit != 256*mib {
		t.Fatalf("%+v, %v", limits, err)
	}
	_, _, err = Pages(300*mib, -1)
	var short *ShortError
	if !errors.As(err, &short) || short.Need != 300*mib || short.Left > 256*mib || short.Left < 128*mib {
		t.Fatalf("300 MiB: %v", err)
	}
	t.Log(err)

	// What fits is given, and counts from then on.
	_, free, err := Pages(120*mib, -1)
	if err != nil {
		t.Fatalf("120 MiB: %v", err)
	}
	if _, _, err := Pages(120*mib, -1); !errors.Is(err, ErrMemory) {
		t.Errorf("as much again: %v", err)
	}
	if err := free(); err != nil {
		t.Fatal(err)
	}

	a, err := New(Options{BlockBytes: mib, PieceBytes: 32 * mib, NUMANode: -1})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.Alloc(300 * mib); !errors.Is(err, ErrMemory) {
		t.Errorf("an arena of 300 MiB: %v", err)
	}
	// Region by region until there is no more: refused, not killed.
	taken := uint64(0)
	for {
		region, err := a.Alloc(32 * mib)
		if err == nil {
			_, err = region.Bytes(0, 32*mib)
		}
		if err != nil {
			if !errors.Is(err, ErrMemory) {
				t.Errorf("after %s: %v", sizes.Binary(taken), err)
			}
			break
		}
		taken += 32 * mib
	}
	if taken < 64*mib || taken > 256*mib {
		t.Errorf("%s were taken", sizes.Binary(taken))
	}
	if err := a.Close(); err != nil {
		t.Error(err)
	}

	budget, err := Budget(2)
	if err != nil || budget.Bytes == 0 || budget.Bytes > 112*mib || !strings.Contains(budget.String(), "allows 256.0 MiB") {
		t.Errorf("%v, %v", budget, err)
	}
}

// File cache counts in a cgroup, and gives way.
func TestFileCacheIsNoReasonToRefuse(t *testing.T) {
	dir, _ := newGroup(t, 256*mib)
	if out := inGroup(t, dir, "TestInACgroupFullOfFileCache"); strings.Contains(out, "SKIP") {
		t.Error(out)
	}
}

func TestInACgroupFullOfFileCache(t *testing.T) {
	enter(t)
	file, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	chunk := make([]byte, mib)
	for range 300 {
		if _, err := file.Write(chunk); err != nil {
			t.Fatal(err)
		}
	}
	if err := file.Sync(); err != nil {
		t.Fatal(err)
	}
	if _, free, err := Pages(100*mib, -1); err != nil {
		t.Error(err)
	} else if err := free(); err != nil {
		t.Error(err)
	}
}

// The registered pieces of an arena under a limit are those of a real taking: the driver is asked
// for nothing that was refused.
func TestNothingIsRegisteredBeyondTheLimit(t *testing.T) {
	dir, _ := newGroup(t, 128*mib)
	inGroup(t, dir, "TestInACgroupOf128MiB")
}

func TestInACgroupOf128MiB(t *testing.T) {
	enter(t)
	r := registry{pinned: map[unsafe.Pointer]uint64{}}
	a := newArena(t, &r, func(o *Options) { o.Allow = nil })
	if _, err := a.Alloc(128 * mib); !errors.Is(err, ErrMemory) || r.bytes() != 0 {
		t.Errorf("%v, %d registered", err, r.bytes())
	}
}
