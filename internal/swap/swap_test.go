package swap

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/google/go-cmp/cmp"

	"github.com/ebb-offload/ebb/internal/control"
	"github.com/ebb-offload/ebb/internal/node"
	"github.com/ebb-offload/ebb/internal/rollout"
)

// That memory really goes from hand to hand is tested with whole processes in test/e2e.

// on is a rank that sees devices.
func on(pid int, devices ...control.Device) node.RankDevices {
	return node.RankDevices{Rank: node.Rank{Who: control.Who{Role: "actor", Cell: "0", Rank: "0", PID: pid}}, Devices: devices}
}

func gpu(uuid string, free uint64) control.Device {
	return control.Device{Name: "GPU", UUID: uuid, Free: free, Total: 100}
}

func TestWhatPausedRanksNeedIsAddedUpByDevice(t *testing.T) {
	a, b := gpu("a", 50), gpu("b", 10)
	for _, tt := range []struct {
		name  string
		seen  []node.RankDevices
		need  map[int]uint64
		short string // devices that have too little; "" if none
	}{
		{"nobody needs any", []node.RankDevices{on(1, a)}, nil, ""},
		{"it fits", []node.RankDevices{on(1, a)}, map[int]uint64{1: 50}, ""},
		{"one byte is missing", []node.RankDevices{on(1, a)}, map[int]uint64{1: 51}, "a"},
		{"two ranks on one device", []node.RankDevices{on(1, a), on(2, a)}, map[int]uint64{1: 30, 2: 21}, "a"},
		{"a rank that stays beside one that comes back", []node.RankDevices{on(1, a), on(2, a)}, map[int]uint64{2: 21}, ""},
		{"each on its own", []node.RankDevices{on(1, a), on(2, b)}, map[int]uint64{1: 50, 2: 11}, "b"},
		{"a rank on two, which are counted together", []node.RankDevices{on(1, a, b)}, map[int]uint64{1: 60}, ""},
		{"a rank on two, which have too little together", []node.RankDevices{on(1, b, a)}, map[int]uint64{1: 61}, "a b"},
		{"without UUIDs", []node.RankDevices{on(1, control.Device{Ordinal: 3, Free: 1})}, map[int]uint64{1: 2}, "device 3"},
		{"a rank that tells no device", []node.RankDevices{on(1)}, map[int]uint64{1: 5}, ""},
	} {
		devices, demands := view(tt.seen, tt.need)
		lacking, _, isShort := short(devices, demands)
		if got := strings.Join(lacking.devices, " "); got != tt.short || isShort != (tt.short != "") {
			t.Errorf("%s: short is %q (%v), want %q", tt.name, got, isShort, tt.short)
		}
	}
}

func TestHoldersAreNamedTheLargestFirst(t *testing.T) {
	h := &handOver{Options: Options{Ranks: []node.Rank{{Who: control.Who{Role: "actor", Cell: "0", Rank: "3", PID: 7}}}}}
	d := gpu("a", 1<<20)
	d.Total = 64 << 20
	if got := h.heldBy(d); !strings.Contains(got, "who holds the rest is not told") {
		t.Error(got)
	}
	for i, bytes := range []uint64{1 << 20, 0, 8 << 20, 2 << 20, 4 << 20, 1 << 20} {
		d.Holders = append(d.Holders, control.Holder{PID: 5 + i, Bytes: bytes, Name: "python"})
	}
	want := "GPU a has 1 MiB free of 64 MiB, held by actor/0/3 (pid 7) 8 MiB, process 9 (python) 4 MiB, process 8 (python) 2 MiB, process 5 (python) 1 MiB, 1 more"
	if got := h.heldBy(d); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestTagsOfTheRanksAreCountedAlone(t *testing.T) {
	s := node.Status{Active: 100, Paused: 50, Tags: []node.TagStatus{
		{Tag: "weights", Active: 10, Host: 1, Disk: 2, Discarded: 4}, {Tag: "optimizer", Active: 90, Disk: 43},
	}}
	whole, part, none := &handOver{}, &handOver{Options: Options{Tags: []string{"weights"}}}, &handOver{Options: Options{Tags: []string{"x"}}}
	got := []uint64{whole.active(s), whole.paused(s), part.active(s), part.paused(s), none.active(s), none.paused(s)}
	if diff := cmp.Diff([]uint64{100, 50, 10, 7, 0, 0}, got); diff != "" {
		t.Error(diff)
	}
}

// lines are the events of a log.
func lines(t *testing.T, path string) (all []control.Event) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(text) {
		var e control.Event
		if err := json.Unmarshal(line, &e); err != nil {
			t.Fatal(err)
		}
		all = append(all, e)
	}
	return all
}

func TestStepsAreLogged(t *testing.T) {
	dir := t.TempDir()
	log, err := OpenLog(dir, "job", func(line string) { t.Error(line) })
	if err != nil {
		t.Fatal(err)
	}
	who := control.Who{Job: "job", Role: "actor", Cell: "0", Rank: "1", PID: 42}
	log.begin(Options{To: ToTrain})
	log.step((&engine{Engine: rollout.Command("engine.sh", rollout.Settings{})}).step(rollout.Asleep, false, nil))
	log.step(Step{Step: StepMemory, What: "GPU a", OK: true, Bytes: 5, Total: 9})
	log.step(rankStep(who, Step{State: "resident", OK: true, Already: true})) // nothing was done
	log.step(rankStep(who, Step{State: "paused", Error: "late"}))
	log.end(Report{To: ToTrain, Error: "late", Stands: "1 rank paused"})
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	all := lines(t, filepath.Join(dir, "job__swap.jsonl"))
	var got []string
	for i, e := range all {
		if e.V != control.Version || e.Job != "job" || e.Seq != uint64(i+1) || e.PID == 0 || e.Time.IsZero() || e.By != "control" {
			t.Errorf("%+v", e)
		}
		got = append(got, strings.Join(strings.Fields(strings.Join([]string{e.Kind, e.Operation, e.Phase, e.Role, e.Rank, e.Error}, " ")), " "))
	}
	if diff := cmp.Diff([]string{
		"begin to_train", "phase to_train engine_sleep engine engine.sh", "phase to_train memory device GPU a",
		"phase to_train resume actor 1 late", "end to_train late",
	}, got); diff != "" {
		t.Error(diff)
	}
	if last := string(all[len(all)-1].Outcome); !strings.Contains(last, `"ok":false`) || !strings.Contains(last, "1 rank paused") {
		t.Error(last)
	}
}

func TestAnEventLogIsAddedToAndNeverFollowed(t *testing.T) {
	dir := t.TempDir()
	for range 2 {
		log, err := OpenLog(dir, "", nil)
		if err != nil {
			t.Fatal(err)
		}
		log.begin(Options{To: ToRollout})
		if err := log.Close(); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(dir, "node__swap.jsonl")
	if n := len(lines(t, path)); n != 2 {
		t.Errorf("%d lines after two hand-overs", n)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if err := os.Symlink(path, filepath.Join(dir, "elsewhere__swap.jsonl")); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(filepath.Join(dir, "pipe__swap.jsonl"), 0o600); err != nil { // that nobody reads
		t.Fatal(err)
	}
	for _, job := range []string{"elsewhere", "pipe", "../x", ".hidden"} {
		if _, err := OpenLog(dir, job, nil); err == nil {
			t.Errorf("the log of job %q was opened", job)
		}
	}
	if _, err := OpenLog(filepath.Join(dir, "missing"), "job", nil); err == nil {
		t.Error("a log in a directory that is not there was opened")
	}
}

// A line that a full disk tore, here the limit of the size of files, costs only itself.
func TestAfterATornLineTheLogGoesOnInALineOfItsOwn(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "job__swap.jsonl")
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &before); err != nil {
		t.Fatal(err)
	}
	limit := func(most uint64) {
		if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: most, Max: before.Max}); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { limit(before.Cur) })
	said := 0
	log, err := OpenLog(dir, "job", func(string) { said++ })
	if err != nil {
		t.Fatal(err)
	}
	log.begin(Options{To: ToTrain})
	limit(uint64(len(readAll(t, path))) + 20)
	log.step(Step{Step: StepMemory, What: "torn"})
	limit(before.Cur)
	log.end(Report{})
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	wantKinds := func(want string) {
		t.Helper()
		var got []string
		for line := range strings.Lines(readAll(t, path)) {
			var e control.Event
			if json.Unmarshal([]byte(line), &e) != nil {
				e.Kind = "torn"
			}
			got = append(got, e.Kind)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%q, want %s", got, want)
		}
	}
	wantKinds("begin torn end")
	if said != 1 {
		t.Errorf("it is said %d times", said)
	}

	// Also where it was another process that did not come to the end of its line.
	if err := os.WriteFile(path, []byte(`{"v":1,`), 0o600); err != nil {
		t.Fatal(err)
	}
	if log, err = OpenLog(dir, "job", nil); err != nil {
		t.Fatal(err)
	}
	log.begin(Options{To: ToTrain})
	log.end(Report{})
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	wantKinds("torn begin end")
}

func readAll(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestALogThatCannotBeWrittenIsSaidOnceAndInNobodysWay(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	var said []string
	log := &Log{file: full, warn: func(line string) { said = append(said, line) }}
	log.begin(Options{To: ToTrain})
	log.end(Report{})
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	if len(said) != 1 || !strings.Contains(said[0], "/dev/full") {
		t.Errorf("%q", said)
	}
	var none *Log // no log was asked for
	none.begin(Options{})
	none.step(Step{})
	none.end(Report{})
	if err := none.Close(); err != nil {
		t.Error(err)
	}
}

// Whoever is late is named, with what helps for each; of very many, the first.
func TestAllRanksThatDoNotAnswerAreNamed(t *testing.T) {
	for _, n := range []int{1, 2, 8, 10} {
		h := &handOver{Options: Options{To: ToRollout}}
		for i := range n {
			h.Silent = append(h.Silent, node.Silent{Who: control.Who{Role: "actor", Cell: "0", Rank: strconv.Itoa(i)}, Why: fmt.Sprintf("stopped (kill -CONT %d)", 100+i)})
		}
		err := h.toRollout(t.Context())
		if err == nil || !late(err) || !strings.HasSuffix(err.Error(), "; nothing was moved") || len(h.report.Steps) != n || h.report.Moved {
			t.Fatalf("%d: %v, %+v", n, err, h.report)
		}
		for i := range n {
			name := fmt.Sprintf("actor cell 0 rank %d does not answer: stopped (kill -CONT %d)", i, 100+i)
			if strings.Contains(err.Error(), name) != (i < told) {
				t.Errorf("of %d ranks, rank %d: %v", n, i, err)
			}
		}
		if more := strings.Contains(err.Error(), "; and 2 more;"); more != (n == 10) {
			t.Errorf("%d: %v", n, err)
		}
	}
}
