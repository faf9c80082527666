package hostmem

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

func TestParseCPUList(t *testing.T) {
	for text, want := range map[string][]int{
		"0-3,8,10-11\n": {0, 1, 2, 3, 8, 10, 11},
		"5\n":           {5},
		"\n":            nil,
	} {
		if got, err := parseCPUList(text); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: %v, %v; want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"a", "1-", "-1", "1,,2", "0-99999999"} {
		if got, err := parseCPUList(text); err == nil {
			t.Errorf("%q: %v, want an error", text, got)
		}
	}
}

func TestNodeCPUsAreThoseThatTheProcessMayUse(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var mine unix.CPUSet
	if err := unix.SchedGetaffinity(0, &mine); err != nil {
		t.Fatal(err)
	}
	foreign := 0 // a CPU that this process does not have
	for mine.IsSet(foreign) {
		foreign++
	}
	sysfs := t.TempDir()
	node := func(n int, list string) {
		dir := filepath.Join(sysfs, "devices/system/node", fmt.Sprint("node", n))
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "cpulist"), []byte(list), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	node(0, "0-1023\n")
	node(2, "nonsense\n")
	if got := nodeCPUs(sysfs, 0); got != mine {
		t.Errorf("a node of all CPUs: %v, want those of the process, %v", got, mine)
	}
	node(1, fmt.Sprintln(foreign))
	if got := nodeCPUs(sysfs, 1); got.Count() != 0 {
		t.Errorf("a node of a CPU that is not ours: %v", got)
	}
	for _, n := range []int{-1, 2, 7} {
		if got := nodeCPUs(sysfs, n); got.Count() != 0 {
			t.Errorf("node %d: %v, want none", n, got)
		}
	}
}

func TestOnCPUsBindsOnlyItsOwnThread(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var before, one, inside, after unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		t.Fatal(err)
	}
	for c := range 1024 {
		if before.IsSet(c) {
			one.Set(c)
			break
		}
	}
	want := errors.New("what f returned")
	err := <-onCPUs(one, func() error {
		if err := unix.SchedGetaffinity(0, &inside); err != nil {
			return err
		}
		return want
	})
	if !errors.Is(err, want) {
		t.Fatal(err)
	}
	if inside != one {
		t.Errorf("f ran on %v, want %v", inside, one)
	}
	if err := unix.SchedGetaffinity(0, &after); err != nil || after != before {
		t.Errorf("the caller is bound to %v, was %v (%v)", after, before, err)
	}
}
