package report

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/ebb-offload/ebb/internal/control"
)

// writer writes the log of a process as the engine does: what happens to it in turn, and time passes.
type writer struct {
	control.Event
	lines []string
}

var begin = time.Date(2026, 3, 14, 9, 0, 0, 0, time.UTC)

func process0(job, role string, rank, pid int, host string, from time.Time) *writer {
	return &writer{Event: control.Event{
		V: control.Version, Time: from, Host: host,
		Who: control.Who{Job: job, Role: role, Cell: "0", Rank: fmt.Sprint(rank), PID: pid},
	}}
}

// say writes an event.
func (w *writer) say(e control.Event) *writer {
	w.Seq++
	e.V, e.Time, e.Seq, e.Who, e.Host = w.V, w.Time, w.Seq, w.Who, w.Host
	line, err := json.Marshal(e)
	if err != nil {
		panic(err)
	}
	w.lines = append(w.lines, string(line))
	return w
}

func (w *writer) start() *writer { return w.say(control.Event{Kind: control.EventStart}) }
func (w *writer) exit() *writer  { return w.say(control.Event{Kind: control.EventExit}) }

// pass lets time pass.
func (w *writer) pass(seconds float64) *writer {
	w.Time = w.Time.Add(time.Duration(seconds * 1e9))
	return w
}

// operation writes a pause or resume that takes as long as its outcome says.
func (w *writer) operation(name string, o map[string]any, tags ...string) *writer {
	bytes, _ := o["bytes"].(int)
	s, _ := o["seconds"].(float64)
	w.say(control.Event{Kind: control.EventBegin, Operation: name, By: "program", Tags: tags, Total: uint64(bytes)})
	w.pass(s / 2).say(control.Event{Kind: control.EventProgress, Operation: name, Bytes: uint64(bytes / 2), Total: uint64(bytes)})
	w.pass(s / 2).say(control.Event{Kind: control.EventPhase, Operation: name, Phase: "move", Seconds: s})
	text, _ := o["error"].(string)
	raw, err := json.Marshal(o)
	if err != nil {
		panic(err)
	}
	return w.say(control.Event{Kind: control.EventEnd, Operation: name, Seconds: s, Outcome: raw, Error: text})
}

// moved is the outcome of an operation that moves bytes to or from disk.
func movedBytes(bytes int, seconds float64) map[string]any {
	return map[string]any{"bytes": bytes, "device_bytes": bytes, "disk_bytes": bytes, "seconds": seconds}
}

func (w *writer) save(t testing.TB, dir string) string {
	t.Helper()
	name := filepath.Join(dir, fmt.Sprintf("%s__%s_cell%s_rank%s.jsonl", w.Job, w.Role, w.Cell, w.Rank))
	f, err := os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, line := range w.lines {
		if _, err := fmt.Fprintln(f, line); err != nil {
			t.Fatal(err)
		}
	}
	return name
}

// sampleJob writes the logs of a job as jobs are: ranks on two hosts, some cycles, a failure, a restart, and
// hand-overs by ebb swap.
func sampleJob(t testing.TB, dir, job string, ranks, cycles int) {
	t.Helper()
	rng := rand.New(rand.NewPCG(7, 11))
	const gib = 1 << 30
	for rank := range ranks {
		w := process0(job, "actor", rank, 4000+rank, fmt.Sprintf("node-%d", rank/8), begin.Add(time.Duration(rank)*130*time.Millisecond)).start()
		for cycle := range cycles {
			w.Time = begin.Add(time.Duration(cycle)*4*time.Minute + time.Duration(40+rng.IntN(3)+rank/8)*time.Second)
			if rank == 3 && cycle == 2 {
				w.operation("pause", map[string]any{
					"bytes": 5 * gib, "disk_bytes": 2 * gib, "seconds": 1.4,
					"error": "ebb: pause FAILED, memory not freed: no room in /scratch/alice: 2.1 GB are needed and 0.4 GB are free",
				}).pass(1)
			}
			slow := 1 + rng.Float64()*0.25
			if cycle == cycles/2 {
				slow *= 1.7
			}
			zero, same := 1200<<20, 500<<20
			if cycle == 0 {
				same = 0
			}
			total := 5*gib + 700<<20
			disk := total - zero - same - 300<<20 - 600<<20
			s := float64(disk) / 0.31e9 * slow
			w.operation("pause", map[string]any{
				"bytes": total, "device_bytes": total + 40<<20, "disk_bytes": disk, "host_bytes": 600 << 20, "skipped_zero_bytes": zero, "skipped_same_bytes": same,
				"skipped_unused_bytes": 300 << 20, "kept_bytes": 64 << 20, "seconds": s,
				"phases": map[string]float64{"wait": 0.004, "room": 0.02, "hash": 0.09, "move": s - 0.3, "check": 0.1, "commit": 0.006, "unmap": 0.05, "rest": 0.03},
			})
			w.pass(90 + rng.Float64()*4)
			s = float64(disk) / 0.215e9 * slow
			w.operation("resume", map[string]any{
				"bytes": total, "device_bytes": total + 40<<20, "disk_bytes": disk, "host_bytes": 600 << 20, "skipped_zero_bytes": zero, "skipped_unused_bytes": same + 300<<20,
				"seconds": s, "phases": map[string]float64{"create": 0.03, "move": s - 0.2, "map": 0.01, "check": 0.14, "rest": 0.02},
			})
			w.pass(3)
			if rank == ranks-1 && cycle == cycles-3 { // killed and started again
				w.pass(20)
				n := process0(job, "actor", rank, 5000, w.Host, w.Time).start()
				n.lines = append(w.lines, n.lines...)
				w = n
			}
		}
		if rank != 1 {
			w.pass(30).exit()
		}
		w.save(t, dir)
	}
}

// sampleSwap writes the log of ebb swap for sampleJob.
func sampleSwap(t testing.TB, dir, job string, ranks, cycles int) {
	t.Helper()
	name := filepath.Join(dir, job+SwapSuffix)
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for cycle := range cycles {
		for half, operation := range []string{"to_rollout", "to_train"} {
			at := begin.Add(time.Duration(cycle)*4*time.Minute + time.Duration(40+110*half)*time.Second)
			seq := uint64(0)
			say := func(e control.Event, after float64) {
				seq++
				e.V, e.Seq, e.Time, e.Host, e.Operation, e.By = 1, seq, at.Add(time.Duration(after*1e9)), "node-0", operation, "control"
				if e.PID == 0 {
					e.Job, e.PID = job, 9000+2*cycle+half
				}
				line, err := json.Marshal(e)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := fmt.Fprintln(f, string(line)); err != nil {
					t.Fatal(err)
				}
			}
			say(control.Event{Kind: control.EventBegin}, 0)
			if operation == "to_train" {
				say(control.Event{Kind: control.EventPhase, Phase: "engine_sleep", Seconds: 1.1, Who: control.Who{Role: "engine", Rank: "http://127.0.0.1:8000"}}, 1.1)
			}
			op := map[string]string{"to_rollout": "pause", "to_train": "resume"}[operation]
			for rank := range ranks {
				s := 11.2 + float64(rank%5)*0.3
				say(control.Event{Kind: control.EventPhase, Phase: op, Seconds: s, Bytes: 6 << 30, Who: control.Who{Job: job, Role: "actor", Cell: "0", Rank: fmt.Sprint(rank), PID: 4000 + rank}}, 1.2+s)
			}
			say(control.Event{Kind: control.EventPhase, Phase: "memory", Seconds: 0.2, Bytes: 70 << 30, Total: 80 << 30, Who: control.Who{Role: "device", Rank: "GPU 0"}}, 14)
			if operation == "to_rollout" {
				say(control.Event{Kind: control.EventPhase, Phase: "engine_wake", Seconds: 2.3, Who: control.Who{Role: "engine", Rank: "http://127.0.0.1:8000"}}, 16.4)
			}
			failed := ""
			if cycle == 1 && half == 0 {
				failed = "the engine at http://127.0.0.1:8000 answers 500 to /wake_up"
			}
			say(control.Event{Kind: control.EventEnd, Seconds: 16.5, Error: failed, Outcome: json.RawMessage(`{"ok":` + fmt.Sprint(failed == "") + `,"moved":true,"stands":"` + map[bool]string{true: "nobody holds the device: ebb swap --to train goes back"}[failed != ""] + `"}`)}, 16.5)
		}
	}
}

func make0(t testing.TB, o Options, paths ...string) *Report {
	t.Helper()
	files, err := Files(paths)
	if err != nil {
		t.Fatal(err)
	}
	r, err := Make(files, o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}
