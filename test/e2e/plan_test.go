package e2e

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// livePlan is what ebb plan --live --json says, as far as it is looked at here.
type livePlan struct {
	RatesFrom string `json:"rates_from"`
	Ranks     []struct {
		Rank   string   `json:"rank"`
		Bytes  uint64   `json:"bytes"`
		Pause  forecast `json:"pause"`
		Resume forecast `json:"resume"`
	} `json:"ranks"`
	Written uint64   `json:"disk_written_bytes"`
	Silent  []string `json:"silent"`
}

type forecast struct {
	Moved   uint64 `json:"moved_bytes"`
	Seconds struct {
		Typical float64 `json:"typical"`
	} `json:"seconds"`
	Last  float64  `json:"last_seconds"`
	Error *float64 `json:"error_percent"`
}

// What is said beforehand of a pause is what the next pause moves; and a rank that hangs is named.
func TestARunningRankIsPlannedAsItIsThenParked(t *testing.T) {
	const size, random = 16 << 20, 8 << 20 // of a rank; the other half is zero
	r := newReader(t)
	r.env = append(r.env, "PROGRAM="+filepath.Join(testdir, "plan_actor.py"))
	r.follow(t, "<!-- background -->\n", "sh", `ebb run --nproc-per-node 2 --device soft --offload-train --offload-train-target disk \
	--offload-train-disk-dir ~/disk -- python3 $PROGRAM`)
	steps := func(rank int) int {
		text, _ := os.ReadFile(filepath.Join(r.home, "steps-"+strconv.Itoa(rank)))
		n, _ := strconv.Atoi(string(text))
		return n
	}
	goOn := func() { // every rank begins and ends a step from now on
		t.Helper()
		for rank := range 2 {
			for from, deadline := steps(rank), time.Now().Add(hangs); steps(rank) < from+2; time.Sleep(5 * time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatalf("rank %d goes no further; %s", rank, &r.said)
				}
			}
		}
	}
	goOn()
	plan, _ := r.plan(t, 0)
	for _, rank := range plan.Ranks {
		if rank.Bytes != size || rank.Pause.Seconds.Typical != 0 || rank.Resume.Seconds.Typical != 0 {
			t.Errorf("before the first pause: %+v", rank)
		}
	}

	r.follow(t, "", "sh", "ebb pause && ebb resume")
	goOn()
	plan, _ = r.plan(t, 0)
	if len(plan.Ranks) != 2 || plan.RatesFrom != "latest" || plan.Written != 2*random {
		t.Fatalf("%+v", plan)
	}
	for _, rank := range plan.Ranks {
		for _, f := range []forecast{rank.Pause, rank.Resume} {
			if f.Moved != random || f.Seconds.Typical <= 0 || f.Last <= 0 || f.Error == nil {
				t.Errorf("after the first pause: %+v", rank)
			}
		}
	}
	// 16 MiB at 1 GB/s, and a resume at as much.
	plan, _ = r.plan(t, 0, "--disk-write", "1", "--disk-read", "1")
	for _, rank := range plan.Ranks {
		if pause, resume := rank.Pause.Seconds.Typical, rank.Resume.Seconds.Typical; plan.RatesFrom != "given" ||
			pause < 2*random/1.1e9 || pause > 2*random/0.9e9 || resume < 2*random/1.1e9 || resume > 2*random/0.9e9 {
			t.Errorf("at 1 GB/s: %+v", rank)
		}
	}

	// The next pause moves what was said.
	var paused struct {
		Ranks []struct {
			Done struct {
				Disk uint64 `json:"disk_bytes"`
			} `json:"done"`
		} `json:"ranks"`
	}
	text, err := r.shell("ebb pause --json").Output()
	if err != nil || json.Unmarshal(text, &paused) != nil || len(paused.Ranks) != 2 {
		t.Fatalf("%v: %s", err, text)
	}
	for _, rank := range paused.Ranks {
		if rank.Done.Disk != random {
			t.Errorf("the pause moved %d bytes of a rank, %d were said", rank.Done.Disk, random)
		}
	}
	r.follow(t, "", "sh", "ebb resume")

	pid := r.pids(t)[0]
	stopAll(t, pid)
	plan, said := r.plan(t, 4)
	if len(plan.Ranks) != 1 || len(plan.Silent) != 1 || !strings.Contains(said, "(pid "+strconv.Itoa(pid)+") does not answer") {
		t.Errorf("with a stopped rank: %+v; %s", plan, said)
	}
	if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	r.follow(t, "", "sh", "touch stop")
	r.finish(t)
}

// plan runs ebb plan --live, which must end with a status.
func (r *reader) plan(t *testing.T, status int, flags ...string) (plan livePlan, said string) {
	t.Helper()
	cmd := r.shell(`ebb plan --live --json ` + strings.Join(flags, " "))
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	o := run(t, cmd)
	if o.status != status {
		t.Fatalf("status %d, want %d: %s%s", o.status, status, &out, &errs)
	}
	if err := json.Unmarshal(out.Bytes(), &plan); err != nil {
		t.Fatalf("%v: %s", err, &out)
	}
	return plan, errs.String()
}

// pids are those of the ranks.
func (r *reader) pids(t *testing.T) (pids []int) {
	t.Helper()
	text, err := r.shell("ebb status --json").Output()
	var status struct {
		Ranks []struct {
			PID int `json:"pid"`
		} `json:"ranks"`
	}
	if err != nil || json.Unmarshal(text, &status) != nil || len(status.Ranks) == 0 {
		t.Fatalf("%v: %s", err, text)
	}
	for _, rank := range status.Ranks {
		pids = append(pids, rank.PID)
	}
	return pids
}
