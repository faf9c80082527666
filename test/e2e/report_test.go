package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ebb-offload/ebb/internal/testutil"
)

// The log of a real rank makes a report: what was parked, what was zero, and the pause that failed.
func TestAReportOfARealRank(t *testing.T) {
	const ranks, cycles, mib = 1, 4, 1 << 20 // ranks on one device would see each other's memory come and go
	n := newNode(t, 256)
	// In memory: an exit waits a tenth of a second for its event to be written, and no longer.
	logs := filepath.Join(testutil.InMemory(t), "logs")
	ebb := lib("../bin/ebb")
	cmd := n.process(t, ebb, "run", "--device", "soft", "--job", "real", "--offload-train",
		"--offload-train-target", "disk", "--offload-train-disk-dir", filepath.Join(n.disk, "parked"), "--event-log", logs,
		"--", "python3", filepath.Join(testdir, "report_cycles.py"), "4")
	cmd.Env = append(cmd.Env, "EBB_FAULT_FILES=fallocate:1:ENOSPC") // the first pause
	succeed(t, cmd)

	var r struct {
		Job           string
		Pause, Resume struct {
			Done, Failed int
			Bytes        struct {
				Logical, Disk uint64
				Zero          uint64 `json:"skipped_zero"`
			}
			Phases []struct{ Phase string }
		}
		Ranks []struct {
			Rank   string
			Exited bool
			Failed int
		}
		Failures []struct{ Operation, Error string }
		Left     struct {
			Lines  int    `json:"unreadable_lines"`
			Events uint64 `json:"missing_events"`
		} `json:"left_out"`
	}
	page := filepath.Join(n.disk, "report.html")
	out := succeed(t, n.process(t, ebb, "report", "--event-log", logs, "--json", "-o", page))
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	const done = ranks * (cycles - 1)
	if r.Job != "real" || r.Pause.Done != done || r.Resume.Done != done || r.Pause.Failed != ranks || len(r.Ranks) != ranks {
		t.Errorf("%s", out)
	}
	if b := r.Pause.Bytes; b.Logical != done*24*mib || b.Zero != done*8*mib || b.Disk != done*16*mib {
		t.Errorf("bytes: %+v", b)
	}
	if r.Left.Lines != 0 || r.Left.Events != 0 || len(r.Pause.Phases) == 0 {
		t.Errorf("left out %+v, phases %+v", r.Left, r.Pause.Phases)
	}
	for _, rank := range r.Ranks {
		if !rank.Exited || rank.Failed != 1 || !strings.HasPrefix(rank.Rank, "actor/0/") {
			t.Errorf("%+v", rank)
		}
	}
	for _, f := range r.Failures {
		if f.Operation != "pause" || !strings.Contains(f.Error, "no space left on device") {
			t.Errorf("%+v", f)
		}
	}
	text, err := os.ReadFile(page)
	if err != nil || !strings.Contains(string(text), "actor/0/0") || !strings.Contains(string(text), "no space left on device") {
		t.Errorf("the page: %v, %d bytes", err, len(text))
	}
}

// SIGUSR1 to ebb asks the ranks themselves, and does them no harm.
func TestSIGUSR1TellsWhatRealRanksHold(t *testing.T) {
	n := newNode(t, 256)
	sockets := testutil.SocketDir(t)
	there, said := filepath.Join(n.disk, "there-"), filepath.Join(n.disk, "said")
	cmd := n.process(t, lib("../bin/ebb"), "run", "--nproc-per-node", "2", "--device", "soft", "--offload-train",
		"--offload-train-target", "disk", "--offload-train-disk-dir", filepath.Join(n.disk, "parked"),
		"--", "python3", filepath.Join(testdir, "report_cycles.py"), "1", there)
	cmd.Env = append(cmd.Env, "EBB_RUNTIME_DIR="+sockets)
	out, err := os.Create(said)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	cmd.Stderr = out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	eventually := func(what string, seen func() bool) {
		t.Helper()
		for deadline := time.Now().Add(hangs); !seen(); time.Sleep(5 * time.Millisecond) {
			if time.Now().After(deadline) {
				text, _ := os.ReadFile(said)
				t.Fatalf("%s: not seen; %s", what, text)
			}
		}
	}
	for _, rank := range []string{"0", "1"} {
		eventually("rank "+rank, func() bool { _, err := os.Stat(there + rank); return err == nil })
	}
	if err := cmd.Process.Signal(syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	asked := 1
	eventually("the line", func() bool {
		text, _ := os.ReadFile(said)
		there := strings.Contains(string(text), "ebb: 2 ranks: 0 B on the devices, 50 MB parked (34 MB in files, 0 B in host memory); 2 parked; last pause 50 MB in ")
		if !there && strings.Count(string(text), "ebb: 2 ranks: ") == asked && asked < 3 {
			asked++ // a rank has a second for its answer, and may be late once
			if err := cmd.Process.Signal(syscall.SIGUSR1); err != nil {
				t.Fatal(err)
			}
		}
		return there
	})
	for _, rank := range []string{"0", "1"} {
		if err := os.Remove(there + rank); err != nil {
			t.Fatal(err)
		}
	}
	if err := cmd.Wait(); err != nil {
		text, _ := os.ReadFile(said)
		t.Errorf("%v: %s", err, text)
	}
}
