package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The logs of real ranks make a report: what was parked, what was zero, and the pause that failed.
func TestAReportOfRealRanks(t *testing.T) {
	const ranks, cycles, mib = 2, 4, 1 << 20
	n := newNode(t, 256)
	logs := filepath.Join(n.disk, "logs")
	ebb := lib("../bin/ebb")
	cmd := n.process(t, ebb, "run", "--nproc-per-node", "2", "--device", "soft", "--job", "real", "--offload-train",
		"--offload-train-target", "disk", "--offload-train-disk-dir", filepath.Join(n.disk, "parked"), "--event-log", logs,
		"--", "python3", filepath.Join(testdir, "cycles.py"), "4")
	cmd.Env = append(cmd.Env, "EBB_FAULT_FILES=fallocate:1:ENOSPC") // the first pause of each rank
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
	if err != nil || !strings.Contains(string(text), "actor/0/1") || !strings.Contains(string(text), "no space left on device") {
		t.Errorf("the page: %v, %d bytes", err, len(text))
	}
}
