package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// ebb verify checks what a rank has parked, from outside and while the rank is as it is.
func TestVerifyChecksWhatARankHasParked(t *testing.T) {
	for _, count := range []int{1, 2} {
		n := newNode(t, 256)
		dirs := diskDirs(n, count)
		o := run(t, n.ebbRun(t, diskFlags(dirs...), "verify.py", append([]string{filepath.Join(root, "dist/bin/ebb")}, dirs...)...))
		if o.status != 0 || !strings.Contains(o.stdout, "verified") {
			t.Error(o)
		}
		// The last line says what was written, in all and in each directory.
		said := lines(o.stderr, "the ranks wrote ")
		if len(said) != 1 || strings.Count(said[0], " to ") != count || !strings.Contains(said[0], "13 MB") {
			t.Errorf("%q", said)
		}
		for _, dir := range dirs {
			left, err := os.ReadDir(filepath.Join(dir, ".ebb"))
			if err != nil || len(left) > 0 || len(below(t, dir, "none")) > 0 {
				t.Errorf("left in %s: %q, %v (%v)", dir, below(t, dir, "none"), left, err)
			}
		}
	}
}

// A pause beyond the quota is refused, with the numbers.
func TestAPauseBeyondTheQuotaOfARunIsRefused(t *testing.T) {
	n := newNode(t, 256)
	dirs := diskDirs(n, 1)
	o := run(t, n.ebbRun(t, append(diskFlags(dirs...), "--offload-train-disk-quota-gb", "0.01"), "verify.py", filepath.Join(root, "dist/bin/ebb"), dirs[0]))
	if o.status == 0 || !strings.Contains(o.stdout+o.stderr, "ebb's quota (--offload-train-disk-quota-gb) of "+dirs[0]+" is 10.00 MB") {
		t.Error(o)
	}
	wantNoFiles(t, n.disk)
}
