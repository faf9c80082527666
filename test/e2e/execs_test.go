package e2e

import (
	"path/filepath"
	"strings"
	"testing"
)

// Files of a program that exec'ed while its memory was parked go with the next pause of the process, under
// ebb run and in a directory that is merely given.
func TestFilesOfAProgramThatWasReplacedGoWithTheNextPause(t *testing.T) {
	n := newNode(t, 64)
	const said = "removed 3 backup files, 12.0 MiB, that this process's former program left in "
	o := run(t, n.ebbRun(t, diskFlags(filepath.Join(n.disk, "run")), "execs.py"))
	if o.status != 0 || !strings.Contains(o.stdout, "execed") || len(lines(o.stderr, said)) != 1 {
		t.Error(o)
	}
	bare := newNode(t, 64)
	if o := run(t, bare.victim(t, "execs.py")); o.status != 0 || len(lines(o.stderr, said+bare.disk)) != 1 {
		t.Error(o)
	}
	wantNoFiles(t, n.disk)
	wantNoFiles(t, bare.disk)
}
