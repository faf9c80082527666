package testutil

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"testing"
	"unsafe"
)

// VMFlags are the kernel's flags of the mapping at p (proc_pid_smaps(5)); none when p is not mapped.
func VMFlags(t *testing.T, p unsafe.Pointer) map[string]bool {
	t.Helper()
	f, err := os.Open("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	flags := map[string]bool{}
	inside := false
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var lo, hi uintptr
		if n, _ := fmt.Sscanf(lines.Text(), "%x-%x ", &lo, &hi); n == 2 {
			inside = lo <= uintptr(p) && uintptr(p) < hi
		}
		if text, ok := strings.CutPrefix(lines.Text(), "VmFlags:"); ok && inside {
			for _, flag := range strings.Fields(text) {
				flags[flag] = true
			}
		}
	}
	return flags
}
