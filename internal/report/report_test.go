package report

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/ebb-offload/ebb/internal/control"
)

// told is what a report says of a job, without what tells of the logs themselves.
func told(r *Report) string {
	c := *r
	c.Left, c.Notes = Left{}, nil
	text, err := json.MarshalIndent(c, "", " ")
	if err != nil {
		panic(err)
	}
	return string(text)
}

func write(t testing.TB, lines []string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "log.jsonl")
	if err := os.WriteFile(file, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func near(a, b float64) bool { return math.Abs(a-b) <= 1e-6*max(1, math.Abs(a), math.Abs(b)) }

// history is a random life of some ranks, with what a report of it must say.
type history struct {
	lines          []string
	pauses, failed int
	bytes, disk    uint64
	seconds        float64 // of all processes
	processes      int
}

func drawHistory(t *rapid.T) (h history) {
	for rank := range rapid.IntRange(1, 4).Draw(t, "ranks") {
		from := begin.Add(time.Duration(rank) * time.Second)
		for range rapid.IntRange(1, 3).Draw(t, "processes") {
			// The same process number every time: only a start tells one from the other.
			w := process0("job", "actor", rank, 77, fmt.Sprintf("host-%d", rank%2), from).start()
			for range rapid.IntRange(0, 5).Draw(t, "cycles") {
				w.pass(rapid.Float64Range(0, 100).Draw(t, "train"))
				if rapid.Bool().Draw(t, "fails") {
					w.operation("pause", map[string]any{"bytes": 10, "seconds": 0.5, "error": "no room"})
					h.failed++
					w.pass(1)
				}
				bytes := rapid.IntRange(1, 1<<40).Draw(t, "bytes")
				disk := rapid.IntRange(0, bytes).Draw(t, "disk")
				s := rapid.Float64Range(0.001, 100).Draw(t, "seconds")
				w.operation("pause", map[string]any{"bytes": bytes, "disk_bytes": disk, "seconds": s})
				h.pauses, h.bytes, h.disk = h.pauses+1, h.bytes+uint64(bytes), h.disk+uint64(disk)
				w.pass(rapid.Float64Range(0, 100).Draw(t, "rollout"))
				w.operation("resume", movedBytes(bytes, s))
			}
			w.pass(1).exit()
			h.lines = append(h.lines, w.lines...)
			h.seconds += w.Time.Sub(from).Seconds()
			h.processes++
			from = w.Time.Add(5 * time.Second)
		}
	}
	return h
}

func TestAReportSaysWhatTheEventsSay(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		h := drawHistory(rt)
		r := make0(t, Options{}, write(t, h.lines))
		processes, rankBytes, rankSeconds := 0, uint64(0), 0.0
		for _, rank := range r.Ranks {
			processes += rank.Processes
			rankBytes += rank.Pause.Bytes.Logical
			rankSeconds += rank.Seconds.all()
			if !rank.Exited {
				rt.Errorf("%s: its end is not seen", rank.Name)
			}
		}
		if r.Pause.Done != h.pauses || r.Resume.Done != h.pauses || r.Pause.Failed != h.failed || r.Failed != h.failed || processes != h.processes {
			rt.Errorf("%d pauses, %d resumes, %d and %d failed, %d processes; want %+v", r.Pause.Done, r.Resume.Done, r.Pause.Failed, r.Failed, processes, h)
		}
		if r.Pause.Bytes.Logical != h.bytes || r.Pause.Bytes.Disk != h.disk || rankBytes != h.bytes || r.Pause.Bytes.Discarded != h.bytes-h.disk {
			rt.Errorf("bytes %+v, of the ranks %d; want %d, %d on disk", r.Pause.Bytes, rankBytes, h.bytes, h.disk)
		}
		if !near(r.Seconds.all(), h.seconds) || !near(rankSeconds, h.seconds) {
			rt.Errorf("%v s in all states, of the ranks %v; the processes lived %v s", r.Seconds.all(), rankSeconds, h.seconds)
		}
		if r.Left != (Left{}) {
			rt.Errorf("left out: %+v", r.Left)
		}
	})
}

// Threads and several writers, copies of logs and crashes: none of it changes what is told.
func TestOrderCopiesAndNoiseChangeNothing(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		h := drawHistory(rt)
		want := told(make0(t, Options{}, write(t, h.lines)))
		lines := slices.Clone(h.lines)
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 1))
		rng.Shuffle(len(lines), func(i, j int) { lines[i], lines[j] = lines[j], lines[i] })
		lines = append(lines, lines[rng.IntN(len(lines))])
		noise := rapid.SliceOf(rapid.SampledFrom([]string{"", "{}", "null", "\x00\x00", "not json", `{"event":"end","time":"2026-03-14T09:00:00Z","operation":"pause","outcome":7}`})).Draw(rt, "noise")
		bad := 0
		for _, n := range noise {
			lines = slices.Insert(lines, rng.IntN(len(lines)+1), n)
			if n != "" {
				bad++
			}
		}
		half := rng.IntN(len(lines))
		r := make0(t, Options{}, write(t, lines[:half]), write(t, lines[half:]))
		if got := told(r); got != want {
			rt.Errorf("(-in order +shuffled)\n%s", cmp.Diff(want, got))
		}
		if r.Left.Lines != bad {
			rt.Errorf("%d lines are told to be no events, want %d", r.Left.Lines, bad)
		}
	})
}

// A log that is cut anywhere, as when the process is killed while it writes, tells what is before the cut.
func TestACutLogTellsWhatIsBeforeTheCut(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		h := drawHistory(rt)
		text := strings.Join(h.lines, "\n") + "\n"
		n := rapid.IntRange(0, len(text)).Draw(rt, "cut")
		file := filepath.Join(t.TempDir(), "cut.jsonl")
		if err := os.WriteFile(file, []byte(text[:n]), 0o600); err != nil {
			rt.Fatal(err)
		}
		r, err := Make([]string{file}, Options{})
		var empty *EmptyError
		if errors.As(err, &empty) {
			if strings.Contains(text[:n], "}\n") {
				rt.Errorf("nothing is told of %q", text[:n])
			}
			return
		}
		if err != nil {
			rt.Fatal(err)
		}
		if r.Pause.Done > h.pauses || r.Pause.Bytes.Logical > h.bytes || r.Left.Cut > 1 || r.Left.Lines > 0 {
			rt.Errorf("of %d bytes: %+v, left out %+v", n, r.Pause, r.Left)
		}
		if err := r.WritePage(&bytes.Buffer{}); err != nil {
			rt.Error(err)
		}
	})
}

func TestAProcessThatIsKilledWhileItPausesIsAFailure(t *testing.T) {
	w := process0("job", "actor", 0, 7, "h", begin).start().pass(5)
	w.say(control.Event{Kind: control.EventBegin, Operation: "pause"}).pass(2)
	w.say(control.Event{Kind: control.EventPhase, Operation: "pause", Phase: "hash"})
	n := process0("job", "actor", 0, 8, "h", w.Time.Add(9*time.Second)).start().pass(1).exit()
	r := make0(t, Options{}, write(t, append(w.lines, n.lines...)))
	if r.Pause.Cut != 1 || r.Pause.Done+r.Pause.Failed != 0 || r.Failed != 2 || r.Ranks[0].Processes != 2 || !r.Ranks[0].Exited {
		t.Errorf("%+v", r)
	}
	if got := r.Failures[0]; got.Operation != "pause" || !strings.Contains(got.Text, "hash") {
		t.Errorf("%+v", got)
	}
	if got := r.Failures[1]; got.Operation != "process" || !strings.Contains(got.Text, "process 8 took its place") {
		t.Errorf("%+v", got)
	}
}

// The states of a rank, told by the pauses and resumes that came before.
func TestStatesFollowFromOperations(t *testing.T) {
	fails := map[string]any{"bytes": 5, "seconds": 1.0, "error": "no"}
	inPart := map[string]any{"bytes": 5, "device_bytes": 2, "seconds": 1.0, "error": "an unmap failed"}
	for name, c := range map[string]struct {
		do   func(*writer)
		want Times
	}{
		"nothing is parked": {func(w *writer) { w.pass(10) }, Times{Train: 10}},
		"a cycle": {func(w *writer) {
			w.pass(3).operation("pause", movedBytes(5, 1)).pass(4).operation("resume", movedBytes(5, 2)).pass(5)
		}, Times{8, 1, 4, 2}},
		"a pause that fails":  {func(w *writer) { w.operation("pause", fails).pass(4) }, Times{Train: 4, Pause: 1}},
		"a pause in part":     {func(w *writer) { w.operation("pause", inPart).pass(4) }, Times{Rollout: 4, Pause: 1}},
		"a resume that fails": {func(w *writer) { w.operation("pause", movedBytes(5, 1)).operation("resume", fails).pass(4) }, Times{0, 1, 4, 1}},
		"tags, one after another": {func(w *writer) {
			w.operation("pause", movedBytes(5, 1), "a").pass(1).operation("pause", movedBytes(3, 1), "b").pass(1).operation("resume", movedBytes(5, 1), "a").pass(1).operation("resume", movedBytes(3, 1), "b").pass(1)
		}, Times{1, 2, 3, 2}},
		"freed while parked": {func(w *writer) { w.operation("pause", movedBytes(5, 1)).operation("resume", movedBytes(2, 1)).pass(3) }, Times{3, 1, 0, 1}},
		"a second resume": {func(w *writer) {
			w.operation("pause", movedBytes(5, 1)).operation("resume", movedBytes(5, 1)).operation("resume", movedBytes(0, 0)).pass(3)
		}, Times{3, 1, 0, 1}},
	} {
		w := process0("job", "actor", 0, 7, "h", begin).start()
		c.do(w)
		w.exit()
		got := make0(t, Options{}, write(t, w.lines)).Seconds
		if !near(got.Train, c.want.Train) || !near(got.Pause, c.want.Pause) || !near(got.Rollout, c.want.Rollout) || !near(got.Resume, c.want.Resume) {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

// A clock that is set back by an hour does not make anything take an hour, nor less than nothing.
func TestAClockThatIsSetBack(t *testing.T) {
	w := process0("job", "actor", 0, 7, "node-3", begin).start().pass(10).operation("pause", movedBytes(5, 1))
	w.Time = w.Time.Add(-time.Hour)
	w.operation("resume", movedBytes(5, 2)).exit()
	r := make0(t, Options{}, write(t, w.lines))
	if r.Seconds.Resume > 2.001 || r.Seconds.all() > 14 || !near(r.Resume.Seconds.Median, 2) {
		t.Errorf("%+v, resume %+v", r.Seconds, r.Resume.Seconds)
	}
	if !slices.ContainsFunc(r.Notes, func(n string) bool { return strings.Contains(n, "node-3 was set back by") }) {
		t.Errorf("notes: %q", r.Notes)
	}
}

// Ranks of a host share its disk: what they do at the same time is one transfer.
func TestRanksOfAHostCountTogether(t *testing.T) {
	var lines []string
	for rank, host := range []string{"a", "a", "b"} {
		w := process0("job", "actor", rank, 7+rank, host, begin.Add(time.Duration(rank)*time.Second)).start()
		w.operation("pause", movedBytes(4e9, 4)).pass(10).operation("resume", movedBytes(4e9, 2)).exit()
		lines = append(lines, w.lines...)
	}
	r := make0(t, Options{Raw: &Raw{Write: 2}}, write(t, lines))
	if got := r.PauseHost; got.Seconds.Count != 2 || !near(got.Seconds.Max, 5) || !near(got.Seconds.Min, 4) || !near(got.Bytes.Max, 8e9) || math.Abs(got.DiskRate.Max-1.6) > 1e-3 {
		t.Errorf("together: %+v", got)
	}
	if r.PauseHost.OfRaw == nil || math.Abs(*r.PauseHost.OfRaw-r.PauseHost.DiskRate.Median/2) > 1e-6 || r.ResumeHost.OfRaw != nil {
		t.Errorf("of the raw disk: %v, %v", r.PauseHost.OfRaw, r.ResumeHost.OfRaw)
	}
}

func TestWavesNeverOverlapAndKeepAllBytes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ops := rapid.SliceOf(rapid.Custom(func(t *rapid.T) operation {
			from := rapid.Int64Range(0, 100).Draw(t, "from")
			return operation{begin: from, end: from + rapid.Int64Range(0, 20).Draw(t, "long"), done: &outcome{Bytes: uint64(rapid.IntRange(0, 9).Draw(t, "bytes"))}}
		})).Draw(t, "operations")
		var w, backwards waves
		total := uint64(0)
		for i := range ops {
			w.add(ops[i])
			backwards.add(ops[len(ops)-1-i])
			total += ops[i].done.Bytes
		}
		sum, ranks := uint64(0), 0
		for i, one := range w {
			sum, ranks = sum+one.bytes, ranks+one.ranks
			if i > 0 && one.begin <= w[i-1].end {
				t.Fatalf("%+v overlap", w)
			}
		}
		if sum != total || ranks != len(ops) || !slices.Equal(w, backwards) {
			t.Fatalf("%+v, backwards %+v, of %d bytes by %d", w, backwards, total, len(ops))
		}
	})
}

// A timeline in columns has all the time of the exact one.
func TestColumnsKeepAllTime(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		at, totals := begin.UnixNano(), [states]float64{}
		var exact timeline
		for range rapid.IntRange(1, 50).Draw(t, "stretches") {
			s := state(rapid.IntRange(0, 3).Draw(t, "state"))
			long := rapid.Int64Range(1, 1e12).Draw(t, "long")
			exact.exact = append(exact.exact, stretch{at, at + long, s})
			totals[s] += float64(long)
			at += long + rapid.Int64Range(0, 1e11).Draw(t, "gap")
		}
		from, to, _ := exact.span()
		dense := newColumns(from, to, rapid.IntRange(1, 700).Draw(t, "columns"))
		exact.into(dense)
		again := newColumns(from-1e9, to+1e9, rapid.IntRange(1, 300).Draw(t, "other columns"))
		timeline{dense: &dense}.into(again)
		for _, c := range []columns{dense, again} {
			var got [states]float64
			for _, column := range c.in {
				for s, ns := range column {
					got[s] += ns
				}
			}
			for s := range got {
				if math.Abs(got[s]-totals[s]) > 1e-3*float64(to-from) {
					t.Fatalf("%v ns, want %v", got, totals)
				}
			}
		}
	})
}

func TestOfSeveralJobsTheLatestIsReported(t *testing.T) {
	dir := t.TempDir()
	for i, job := range []string{"old", "newest", "older"} {
		from := begin.Add(time.Duration([]int{0, 20, 10}[i]) * time.Hour)
		process0(job, "actor", 0, 7, "h", from).start().pass(9).operation("pause", movedBytes(i+1, 1)).save(t, dir)
	}
	r := make0(t, Options{}, dir)
	if r.Job != "newest" || r.Pause.Bytes.Logical != 2 || !slices.Equal(r.OtherJobs, []string{"older", "old"}) {
		t.Errorf("%s, %d bytes, others %q", r.Job, r.Pause.Bytes.Logical, r.OtherJobs)
	}
	if r := make0(t, Options{Job: "old"}, dir); r.Job != "old" || r.Pause.Bytes.Logical != 1 {
		t.Errorf("--job old: %s, %d bytes", r.Job, r.Pause.Bytes.Logical)
	}
	files, _ := Files([]string{dir})
	_, err := Make(files, Options{Job: "none"})
	var unknown *JobError
	if !errors.As(err, &unknown) || !strings.Contains(err.Error(), "newest, older, old") {
		t.Errorf("an unknown job: %v", err)
	}
}

func TestNothingToReportIsSaid(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct{ content, want string }{
		{"", "no event logs"}, // no file at all
		{"\n", "no events in 1 file: no rank"},
		{"hello\nworld\n", "no events in 1 file, but 2 lines that are none"},
	} {
		if c.content != "" {
			if err := os.WriteFile(filepath.Join(dir, "x.jsonl"), []byte(c.content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		files, err := Files([]string{dir})
		if err != nil {
			t.Fatal(err)
		}
		var empty *EmptyError
		if _, err := Make(files, Options{}); !errors.As(err, &empty) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v, want %q", c.content, err, c.want)
		}
	}
}

// Programs without a launcher tell no rank: each process stands for itself.
func TestAPipeIsRefusedWithoutWaitingForAWriter(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "log.jsonl")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Make([]string{pipe}, Options{}); err == nil || !strings.Contains(err.Error(), "not a plain file") {
		t.Errorf("a log: %v", err)
	}
	if _, err := ReadBench(pipe); err == nil || !strings.Contains(err.Error(), "not a plain file") {
		t.Errorf("a result of ebb bench: %v", err)
	}
}

func TestProcessesWithoutALauncherStandForThemselves(t *testing.T) {
	var lines []string
	for pid := range 3 {
		w := process0("", "", 0, 100+pid, "h", begin)
		w.Who = control.Who{PID: 100 + pid}
		lines = append(lines, w.start().pass(1).operation("pause", movedBytes(1, 1)).lines...)
	}
	r := make0(t, Options{}, write(t, lines))
	if len(r.Ranks) != 3 || r.Ranks[1].Name != "pid 101" || r.Job != "" {
		t.Errorf("%d ranks, %+v", len(r.Ranks), r.Ranks)
	}
}

func TestEventsThatTheLogLacksAreCounted(t *testing.T) {
	w := process0("job", "actor", 0, 7, "h", begin).start().pass(1).operation("pause", movedBytes(5, 1)).pass(1).operation("resume", movedBytes(5, 1)).exit()
	lines := slices.Delete(slices.Clone(w.lines), 2, 5)
	r := make0(t, Options{}, write(t, lines))
	if r.Left.Lost != 3 || !strings.Contains(strings.Join(r.Notes, " "), "3 events that the logs lack") {
		t.Errorf("%+v, %q", r.Left, r.Notes)
	}
}

func TestHandOversAreReadFromTheirLog(t *testing.T) {
	dir := t.TempDir()
	sampleJob(t, dir, "j", 8, 3)
	sampleSwap(t, dir, "j", 8, 3)
	r := make0(t, Options{}, dir)
	if len(r.HandOvers) != 6 {
		t.Fatalf("%d hand-overs", len(r.HandOvers))
	}
	first, failed := r.HandOvers[0], r.HandOvers[2]
	if first.To != "rollout" || first.Bytes != 8*6<<30 || !near(first.Seconds, 16.5) || len(first.Steps) != 3 ||
		first.Steps[0].Step != "pause" || first.Steps[0].Count != 8 || first.Steps[0].Longest != "actor/0/4" || !near(first.Steps[0].End, 13.6) {
		t.Errorf("%+v", first)
	}
	if failed.Error == "" || !strings.Contains(failed.Stands, "nobody holds") {
		t.Errorf("%+v", failed)
	}
}

// The page of a large job is no larger than that of another, and says what it leaves out.
func TestThePageStaysSmall(t *testing.T) {
	ranks, cycles := 300, 4
	if os.Getenv("EBB_TEST_LONG") == "1" {
		ranks, cycles = 1000, 1000
	}
	r := &Report{Job: "large", hosts: map[string]*host{}}
	for rank := range ranks {
		one := &stream{host: fmt.Sprintf("node-%d", rank/8), pid: 7}
		at, seq := begin.UnixNano(), uint64(0)
		say := func(e event) {
			seq++
			e.at, e.seq = at, seq
			one.events = append(one.events, e)
		}
		say(event{kind: kindStart})
		n := cycles
		if rank == 5 {
			n = 10_000 // of one rank, also where the others have few
		}
		for range n {
			at += 60e9
			for _, pause := range []bool{true, false} {
				say(event{kind: kindBegin, pause: pause})
				at += 15e9
				say(event{kind: kindEnd, pause: pause, done: &outcome{Bytes: 5e9, DiskBytes: 5e9, Seconds: 15, text: map[bool]string{true: "it failed"}[rank == 9]}})
			}
		}
		r.take(&gathered{who: control.Who{Job: "large", Role: "actor", Cell: "0", Rank: fmt.Sprint(rank), PID: 7}, streams: []*stream{one}})
	}
	r.finish()
	r.note()
	var page bytes.Buffer
	if err := r.WritePage(&page); err != nil {
		t.Fatal(err)
	}
	if page.Len() > 1_500_000 {
		t.Errorf("the page has %d bytes", page.Len())
	}
	for _, want := range []string{fmt.Sprintf("48 of %d ranks are shown", ranks), "actor/0/9", "a dot is the median of several"} {
		if !strings.Contains(page.String(), want) {
			t.Errorf("the page does not say %q", want)
		}
	}
	if strings.Count(page.String(), "it failed") > maxListed {
		t.Error("too many failures are listed")
	}
	t.Logf("%d ranks with %d cycles: %d bytes", ranks, cycles, page.Len())
}

// The median of an even number is between the middle two: else that of times and that of rates, which tell of the same
// pauses, would be those of different halves.
func TestTheMedianOfAnEvenNumberIsBetweenTheMiddleTwo(t *testing.T) {
	for _, c := range []struct {
		values []float32
		want   float64
	}{{[]float32{4}, 4}, {[]float32{6, 1}, 3.5}, {[]float32{9, 1, 2}, 2}, {[]float32{9, 1, 2, 3}, 2.5}} {
		if got := spread(c.values); got.Median != c.want || got.Count != len(c.values) {
			t.Errorf("%v: %+v, want the median %v", c.values, got, c.want)
		}
	}
}

func TestRawRatesAreReadFromABenchmark(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "bench.json")
	for _, c := range []struct {
		content string
		want    Raw
		wrong   string
	}{
		{`{"message_type":"bench","points":[{"operation":"write","library":"raw","bytes":2e9,"seconds":1},{"operation":"read","library":"raw","bytes":3e9,"seconds":2},{"operation":"pause","library":"ebb","bytes":9e9,"seconds":1}]}`, Raw{2, 1.5, file}, ""},
		{`{"message_type":"bench","figures":[{"row":"raw","library":"raw","unit":"GB/s","what":"raw read","median":1.7}]}`, Raw{0, 1.7, file}, ""},
		{`{"message_type":"bench"}`, Raw{}, "no rate of the raw disk"},
		{`{"message_type":"gc"}`, Raw{}, "not what ebb bench"},
		{`hello`, Raw{}, "not what ebb bench"},
	} {
		if err := os.WriteFile(file, []byte(c.content), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := ReadBench(file)
		if c.wrong != "" && (err == nil || !strings.Contains(err.Error(), c.wrong)) || c.wrong == "" && (err != nil || got != c.want) {
			t.Errorf("%s: %+v, %v", c.content, got, err)
		}
	}
}

func TestWordsForPeople(t *testing.T) {
	for s, want := range map[float64]string{0: "0 s", 0.0042: "4.2 ms", 0.5: "0.50 s", 12.34: "12.3 s", 99.96: "1 min 40 s", 3600: "1 h", 5400: "1 h 30 min", 200000: "2 d 8 h"} {
		if got := duration(s); got != want {
			t.Errorf("%v s: %q, want %q", s, got, want)
		}
	}
	for s, want := range map[float64]string{0: "0", 0.5: "500 ms", 20: "20 s", 60: "1 min", 1800: "30 min", 7200: "2 h"} {
		if got := elapsed(s); got != want {
			t.Errorf("after %v s: %q, want %q", s, got, want)
		}
	}
	for _, c := range []struct {
		part, whole float64
		want        string
	}{{0, 1, "0 %"}, {1, 0, "0 %"}, {1, 1e6, "< 0.1 %"}, {1, 3, "33 %"}, {0.051, 1, "5.1 %"}, {1, 1, "100 %"}} {
		if got := percent(c.part, c.whole); got != c.want {
			t.Errorf("%v of %v: %q, want %q", c.part, c.whole, got, c.want)
		}
	}
}

// Lines as ranks write them are taken apart by the quick way, which says what encoding/json says; others are not,
// and lose nothing by it.
func TestTheQuickWayReadsWhatRanksWrite(t *testing.T) {
	w := process0("job-7", "actor", 3, 7, "node-1", begin.Add(123456789)).start().
		operation("pause", map[string]any{"bytes": 5, "seconds": 0.25, "phases": map[string]float64{"move": 0.2}}, "weights", "cache").pass(0.5).
		operation("resume", map[string]any{"bytes": 5, "seconds": 1.0, "error": "no"})
	w.say(control.Event{Kind: control.EventWithdraw, Operation: "pause", By: "control", Error: "the deadline passed"})
	w.say(control.Event{Kind: control.EventLost, Lost: 3}).exit()
	for _, line := range w.lines {
		var s scanner
		if !s.quick([]byte(line)) {
			t.Errorf("not the quick way: %s", line)
		}
	}
	for _, line := range []string{
		``, `{}`, `{"event":"start"}`, w.lines[0] + " ", " " + w.lines[0], w.lines[0][1:], w.lines[0][:len(w.lines[0])-1],
		strings.Replace(w.lines[0], `"pid":7`, `"pid":07`, 1), strings.Replace(w.lines[0], `"pid":7`, `"pid":0`, 1),
		strings.Replace(w.lines[0], `"pid":7`, `"PID":7`, 1), strings.Replace(w.lines[0], `"pid":7`, `"pid":-7`, 1),
		strings.Replace(w.lines[0], `"seq":1`, `"seq":1e2`, 1), strings.Replace(w.lines[0], `"seq":1`, `"seq":"1"`, 1),
		strings.Replace(w.lines[0], `job-7`, `job\u0037`, 1), strings.Replace(w.lines[0], `job-7`, "j\xffb", 1), strings.Replace(w.lines[0], `job-7`, strings.Repeat("j", 121), 1),
		strings.Replace(w.lines[0], `09:00:00`, `24:00:00`, 1), strings.Replace(w.lines[0], `03-14`, `02-30`, 1), strings.Replace(w.lines[0], `2026-`, `1999-`, 1),
	} {
		var s scanner
		if s.quick([]byte(line)) {
			t.Errorf("the quick way takes what it does not know: %s", line)
		}
	}
}

// sameFields compares what the quick way takes from a line with what encoding/json says.
func sameFields(t *testing.T, line []byte) {
	t.Helper()
	var quick, slow scanner
	if !quick.quick(line) {
		return
	}
	e, ok := decode(line)
	if !ok && string(quick.kind) == control.EventEnd && len(quick.outcome) > 0 && !json.Valid(quick.outcome) {
		return // whoever takes the outcome sees that
	}
	if !ok {
		t.Fatalf("the quick way takes what is no event: %q", line)
	}
	slow.fields = fieldsOf(e)
	if diff := cmp.Diff(slow.fields, quick.fields, cmp.AllowUnexported(fields{}), cmpopts.EquateEmpty()); diff != "" {
		t.Fatalf("%q: what encoding/json says, and the quick way: %s", line, diff)
	}
}

func FuzzLines(f *testing.F) {
	w := process0("job", "actor", 0, 7, "h", begin.Add(5e8)).start().operation("pause", map[string]any{"bytes": 5, "seconds": 0.25, "error": "no"}, "a", "b").exit()
	for _, line := range w.lines {
		f.Add([]byte(line))
	}
	f.Add([]byte(`{"pid":1,"time":"2026-03-14T09:00:00.5Z","event":"end","seconds":1.5,"outcome":{"a":"}{"}}`))
	f.Add([]byte(`{"pid":1,"pid":2,"time":"2026-03-14T09:00:00Z","event":"x","tags":["a"],"tags":["b","c"]}`))
	f.Fuzz(sameFields)
}

// An end of a disk tears a line: what stands behind it in the same line, and all others, are read all the same.
func TestALineThatWasTornCostsOnlyItself(t *testing.T) {
	w := process0("job", "actor", 0, 7, "h", begin).start().operation("pause", movedBytes(5, 1)).operation("resume", movedBytes(5, 1)).exit()
	torn := slices.Index(w.lines, w.lines[2])    // of progress
	for _, between := range []string{"", "\n"} { // as older versions of ebb went on, and as this one does
		text := strings.Join(w.lines[:torn], "\n") + "\n" + w.lines[torn][:40] + between + strings.Join(w.lines[torn+1:], "\n") + "\n"
		r := make0(t, Options{}, write(t, []string{text}))
		if r.Pause.Done != 1 || r.Resume.Done != 1 || r.Left.Lines != 1 || r.Left.Cut != 0 || r.Left.Lost != 1 {
			t.Errorf("after %q: %d pauses, %d resumes, left out %+v", between, r.Pause.Done, r.Resume.Done, r.Left)
		}
		if n := strings.Count(strings.Join(r.Notes, "\n"), "1 line that is no event"); n != 1 {
			t.Errorf("it is told %d times: %q", n, r.Notes)
		}
	}
}

// What is kept of a log grows with its operations, not with its lines.
func TestProgressIsCountedAndNotKept(t *testing.T) {
	kept := func(progress int) (events int, seen uint64) {
		files, _ := longJob(t, t.TempDir(), 2, 3, progress, true)
		l, err := look(files[0])
		if err != nil {
			t.Fatal(err)
		}
		g, err := gather("long", []log{l})
		if err != nil {
			t.Fatal(err)
		}
		for _, rank := range g.order() {
			seen += rank.progress
			for _, s := range rank.streams {
				events += len(s.events)
			}
		}
		return events, seen
	}
	few, none := kept(0)
	many, seen := kept(200)
	if few != many || none != 0 || seen != 2*3*2*200 {
		t.Errorf("%d events are kept without progress, %d with %d events of it", few, many, seen)
	}
}

// Whatever bytes a log holds, it is read to its end, and a page is made of what is there.
func FuzzEvents(f *testing.F) {
	w := process0("job", "actor", 0, 7, "h", begin).start().pass(1).operation("pause", movedBytes(5, 1), "weights").pass(1).operation("resume", movedBytes(5, 1)).exit()
	f.Add([]byte(strings.Join(w.lines, "\n")))
	f.Add([]byte(w.lines[0] + "\n" + w.lines[1] + w.lines[2]))
	f.Add([]byte(`{"event":"end","operation":"pause","time":"2026-03-14T09:00:00Z","outcome":{"seconds":1e308,"bytes":18446744073709551615,"phases":{"":-1}}}` + "\n"))
	f.Add([]byte("\x00\n\xff\n{\"event\":\"begin\",\"operation\":\"to_rollout\",\"time\":\"2026-03-14T09:00:00Z\"}"))
	f.Fuzz(func(t *testing.T, text []byte) {
		dir := t.TempDir()
		for _, name := range []string{"a.jsonl", "a" + SwapSuffix} {
			if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		files, err := Files([]string{dir})
		if err != nil {
			t.Fatal(err)
		}
		r, err := Make(files, Options{Raw: &Raw{Write: 1, Read: 1}})
		var empty *EmptyError
		if errors.As(err, &empty) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, err := json.Marshal(r); err != nil {
			t.Fatal(err)
		}
		var page bytes.Buffer
		if err := r.WritePage(&page); err != nil {
			t.Fatal(err)
		}
		for _, wrong := range []string{"NaN", "+Inf", "-Inf"} {
			if bytes.Contains(page.Bytes(), []byte(wrong)) && !bytes.Contains(text, []byte(wrong)) {
				t.Errorf("the page has %s", wrong)
			}
		}
	})
}
