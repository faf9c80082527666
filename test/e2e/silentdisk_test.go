package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ebb-offload/ebb/internal/rankdir"
)

// A disk that gives no answer ends every verb of ebb at EBB_IO_TIMEOUT with a line that names the
// directory, and no rank is started. When it answers again, all is as before.
func TestADiskThatFreezesUnderTheLauncher(t *testing.T) {
	for _, c := range []struct {
		name string
		make func(t *testing.T) mount
	}{{"frozen ext4", frozenExt4}, {"stopped FUSE server", stoppedServer}} {
		t.Run(c.name, func(t *testing.T) {
			n := newNode(t, 64)
			n.env = append(n.env, "EBB_IO_TIMEOUT=1")
			m := c.make(t)
			disk := filepath.Join(m.dir, "disk")
			ebb := filepath.Join(root, "dist/bin/ebb")
			launch := func(verb string) []string {
				return append(append([]string{verb, "--device", "soft"}, diskFlags(disk)...), "--", "true")
			}
			if o := run(t, n.process(t, ebb, launch("run")...)); o.status != 0 {
				t.Fatal(o)
			}
			verbs := [][]string{launch("run"), launch("exec"), {"gc", "--disk-dir", disk}, {"gc", "--json", "--disk-dir", disk}}
			if m.reads { // those of a frozen ext4 are answered
				verbs = append(verbs, []string{"verify", disk})
			}
			for _, args := range verbs {
				plantOfDead(t, filepath.Join(disk, "job", "actor_cell0_rank0"))
				o := m.whileFrozen(t, n.process(t, ebb, args...), args[0] == "gc" || args[0] == "verify")
				said := lines(o.stderr, "no answer in ")
				if o.status != 73 || len(said) != 1 || !strings.Contains(said[0], " of "+disk+":") {
					t.Errorf("ebb %s: %v", strings.Join(args, " "), o)
				}
			}
			if o := run(t, n.process(t, ebb, "gc", "--disk-dir", disk)); o.status != 0 {
				t.Error(o)
			}
			wantNoFiles(t, m.dir)
			if o := run(t, n.process(t, ebb, launch("run")...)); o.status != 0 {
				t.Error(o)
			}
		})
	}
}

// A disk that freezes while a rank runs: ebb run ends, and says what it leaves and who removes it.
func TestADiskThatFreezesBeforeTheLauncherRemoves(t *testing.T) {
	n := newNode(t, 64)
	n.env = append(n.env, "EBB_IO_TIMEOUT=1")
	m := stoppedServer(t)
	disk := filepath.Join(m.dir, "disk")
	// The rank stops the server of its disk directory and ends without touching it.
	args := append(append([]string{"run", "--device", "soft"}, diskFlags(disk)...), "--", "kill", "-STOP", strconv.Itoa(m.server))
	o := run(t, n.process(t, filepath.Join(root, "dist/bin/ebb"), args...))
	if err := m.thaw(); err != nil {
		t.Fatal(err)
	}
	said := lines(o.stderr, "no answer in ")
	if len(said) != 1 || !strings.Contains(said[0], disk) || len(lines(o.stderr, "ebb gc --disk-dir "+disk)) != 1 {
		t.Error(o)
	}
	if o := run(t, n.process(t, filepath.Join(root, "dist/bin/ebb"), "gc", "--disk-dir", disk)); o.status != 0 {
		t.Error(o)
	}
}

// plantOfDead makes a backup file of a process that has ended.
func plantOfDead(t *testing.T, dir string) {
	t.Helper()
	owner, err := rankdir.Self()
	if err != nil {
		t.Fatal(err)
	}
	owner.StartTime--
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, owner.DataFile(1)), []byte("parked"), 0o600); err != nil {
		t.Fatal(err)
	}
}

// whileFrozen runs a process while the disk is frozen, until it has ended or, unless it ends all the same, said
// that it gives up: with a thread in uninterruptible sleep its exit is only over when the disk answers again.
func (m mount) whileFrozen(t *testing.T, cmd *exec.Cmd, ends bool) outcome {
	t.Helper()
	log, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = log.Close() }()
	cmd.Stderr = log
	if err := m.freeze(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan outcome, 1)
	go func() { ended <- run(t, cmd) }()
	var o outcome
	for over, thawed := false, false; !over; {
		select {
		case o = <-ended:
			over = true
		case <-time.After(5 * time.Millisecond):
		}
		if !thawed && (over || !ends && len(lines(readText(t, log.Name()), "no answer in ")) > 0) {
			thawed = true
			if err := m.thaw(); err != nil {
				t.Error(err)
			}
		}
	}
	o.stderr = readText(t, log.Name())
	return o
}

func readText(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// A rank that cannot take its lease in time has no managed memory, and says why; the launcher goes on.
func TestARankWhoseLeaseGivesNoAnswer(t *testing.T) {
	n := newNode(t, 64)
	n.env = append(n.env, "EBB_IO_TIMEOUT=1")
	m := stoppedServer(t)
	o := run(t, n.ebbRun(t, diskFlags(filepath.Join(m.dir, "disk")), "lease.py", strconv.Itoa(m.server)))
	said := lines(o.stdout, "no answer in ")
	if o.status != 0 || len(said) != 1 || !strings.Contains(said[0], filepath.Join(m.dir, "disk", ".ebb")) {
		t.Error(o)
	}
	wantNoFiles(t, m.dir)
}
