package hostmem

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// nodeCPUs are the CPUs of a NUMA node that this process may use; an empty set when the node is
// unknown or none of its CPUs is allowed.
func nodeCPUs(sysfs string, node int) unix.CPUSet {
	var none, allowed, both unix.CPUSet
	if node < 0 {
		return none
	}
	text, err := os.ReadFile(filepath.Join(sysfs, "devices/system/node", fmt.Sprintf("node%d", node), "cpulist"))
	if err != nil {
		return none
	}
	cpus, err := parseCPUList(string(text))
	if err != nil || unix.SchedGetaffinity(0, &allowed) != nil {
		return none
	}
	for _, c := range cpus {
		if allowed.IsSet(c) {
			both.Set(c)
		}
	}
	return both
}

// parseCPUList reads the kernel's form of a set of CPUs: "0-3,8,10-11".
func parseCPUList(text string) ([]int, error) {
	var cpus []int
	text = strings.TrimSpace(text)
	if text == "" {
		return nil, nil // a node of memory only
	}
	for _, part := range strings.Split(text, ",") {
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		lo, err := strconv.ParseUint(first, 10, 16)
		if err != nil {
			return nil, fmt.Errorf("CPU list %q: %w", text, err)
		}
		hi, err := strconv.ParseUint(last, 10, 16)
		if err != nil {
			return nil, fmt.Errorf("CPU list %q: %w", text, err)
		}
		for c := lo; c <= hi; c++ {
			cpus = append(cpus, int(c))
		}
	}
	return cpus, nil
}

// onCPUs runs f on an OS thread that is bound to the given CPUs, or to none when the set is
// empty. The goroutine keeps the thread locked, so that the runtime ends the thread with it and
// the binding touches nobody else.
func onCPUs(cpus unix.CPUSet, f func() error) <-chan error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if cpus.Count() > 0 {
			// Only speed depends on it: a refusal leaves the thread where it is.
			_ = unix.SchedSetaffinity(0, &cpus)
		}
		done <- f()
	}()
	return done
}
