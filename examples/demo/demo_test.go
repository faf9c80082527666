package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ebb-offload/ebb/internal/testutil"
	"golang.org/x/sys/unix"
)

// These tests run the built programs, over softgpu, in a small size. Some replace one program by
// a script, to make happen what must not go unnoticed.

// small is a demo of two ranks and two cycles.
func small(t *testing.T) config {
	t.Helper()
	dist := filepath.Join(testutil.Root(t), "dist")
	build := filepath.Join(testutil.Root(t), "build") // on a disk, which /tmp need not be
	if err := os.MkdirAll(build, 0o755); err != nil {
		t.Fatal(err)
	}
	base, err := os.MkdirTemp(build, "demo-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(base) })
	c := config{Dist: dist, Base: base, Ranks: 2, Cycles: 2, Steps: 3, Megabytes: 24, Timeout: 5 * time.Minute}
	if err := c.missing(); err != nil {
		t.Fatal(err)
	}
	return c
}

// replace gives the demo a dist folder in which one program is this shell script. $REAL is the
// program that it stands for.
func (c config) replace(t *testing.T, program, script string) config {
	t.Helper()
	dist := t.TempDir()
	if err := os.Symlink(filepath.Join(c.Dist, "lib"), filepath.Join(dist, "lib")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dist, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"ebb", "demo-train", "demo-rollout"} {
		var err error
		real, stand := filepath.Join(c.Dist, "bin", name), filepath.Join(dist, "bin", name)
		if name == program {
			err = os.WriteFile(stand, []byte("#!/bin/sh\nREAL="+real+"\n"+script+"\n"), 0o755)
		} else {
			err = os.Symlink(real, stand)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	c.Dist = dist
	return c
}

// wantFailure runs the demo and wants it to fail with a reason that matches, and to leave nothing
// behind.
func wantFailure(t *testing.T, c config, pattern string) {
	t.Helper()
	res, err := run(context.Background(), c, nil)
	if err == nil {
		t.Fatalf("the demo said %q", finalLine(res, err))
	}
	t.Log(finalLine(res, err))
	if !regexp.MustCompile(pattern).MatchString(oneLine(err)) {
		t.Errorf("the reason does not match %q; output:\n%s", pattern, strings.Join(res.Output, "\n"))
	}
	wantEmpty(t, c.Base)
}

func wantEmpty(t *testing.T, dir string) {
	t.Helper()
	if n, err := countEntries(dir, ""); n != 0 || err != nil {
		t.Errorf("%d entries left below %s (%v)", n, dir, err)
	}
}

func TestDemoTrainsTheSameWithAndWithoutParking(t *testing.T) {
	c := small(t)
	res, err := run(context.Background(), c, nil)
	if err != nil {
		t.Fatalf("%s\n%s", finalLine(res, err), strings.Join(res.Output, "\n"))
	}
	line := finalLine(res, err)
	found := regexp.MustCompile(`^demo: ok ranks=2 cycles=2 parked_bytes=(\d+) loss_identical=true staging_bytes=(\d+) files_left=0$`).FindStringSubmatch(line)
	if found == nil {
		t.Fatalf("last line: %s", line)
	}
	parked, _ := strconv.ParseUint(found[1], 10, 64)
	if want := uint64(c.Ranks) * res.Allocated; parked != want {
		t.Errorf("parked %d bytes, but the ranks have %d", parked, want)
	}
	if staging, _ := strconv.ParseUint(found[2], 10, 64); staging == 0 || staging > uint64(c.Ranks)*chunkMB<<20 {
		t.Errorf("staging memory of %d bytes with a chunk of %d MiB for each of %d ranks", staging, chunkMB, c.Ranks)
	}
	if res.LastLoss >= res.FirstLoss {
		t.Errorf("nothing was learnt: loss %g, then %g", res.FirstLoss, res.LastLoss)
	}
	page, err := os.ReadFile(res.ReportPage)
	if err != nil || !bytes.Contains(page, []byte("<html")) || res.ReportPage != filepath.Join(c.Base, "demo-report.html") {
		t.Errorf("the report %s has %d bytes: %v", res.ReportPage, len(page), err)
	}
	if err := os.Remove(res.ReportPage); err != nil {
		t.Error(err)
	}
	wantEmpty(t, c.Base)
}

// whenAskedTo is the begin of a script that is the program itself but for one word.
func whenAskedTo(word string) string { return `[ "$3" = ` + word + ` ] || exec "$REAL" "$@"` }

// One byte that comes back wrong must not go unnoticed, wherever it is found.
func TestCorruptedBackupFailsTheDemo(t *testing.T) {
	c := small(t)
	c = c.replace(t, "demo-rollout", whenAskedTo("generate")+`
for f in $(find `+c.Base+` -name '*.bak' -size +1000k); do
	printf '\377' | dd of="$f" bs=1 seek=500001 conv=notrunc 2>/dev/null
	corrupted=yes
done
[ "$corrupted" ] || { echo "no backup files" >&2; exit 1; }
exec "$REAL" "$@"`)
	wantFailure(t, c, `training state of rank \d at step 3 differs|(?i)corrupt|fingerprint`)
}

func TestRolloutThatDoesNotGetItsMemoryFailsTheDemo(t *testing.T) {
	c := small(t).replace(t, "demo-rollout", `SOFTGPU_FAULT=cudaMalloc:4+:2 exec "$REAL" "$@"`)
	wantFailure(t, c, `demo-rollout: the device gave \d+ of its \d+ bytes`)
}

func TestRolloutThatFailsFailsTheDemo(t *testing.T) {
	c := small(t).replace(t, "demo-rollout", `echo "no rollout today" >&2; exit 9`)
	wantFailure(t, c, `demo-rollout: exit status 9`)
}

func TestAHandOverThatFailsFailsTheDemo(t *testing.T) {
	c := small(t).replace(t, "demo-rollout", whenAskedTo("sleep")+"\necho not tired >&2; exit 5")
	wantFailure(t, c, `ebb swap: exit status 1: ebb: swap to train: engine .*: sleep: exit status 5: not tired`)
}

// Without the library the ranks train straight through, and nothing was shown.
func TestRunWithoutTheLibraryFailsTheDemo(t *testing.T) {
	c := small(t).replace(t, "ebb", `
while [ "$1" != -- ]; do shift; done
shift
LD_LIBRARY_PATH=`+filepath.Join(small(t).Dist, "lib/softgpu")+` exec "$@"`)
	c.Ranks = 1
	wantFailure(t, c, `rank 0 did not find ebb_idle_begin`)
}

func TestRankKilledWhilePausedFailsTheDemo(t *testing.T) {
	c := small(t)
	c = c.replace(t, "demo-rollout", whenAskedTo("generate")+`
for f in `+c.Base+`/demo-*/disk/.ebb/*rank1.*.control; do
	rank=${f%.control}
	rank=${rank##*.}
	kill -KILL "${rank%-*}"
done
exec "$REAL" "$@"`)
	wantFailure(t, c, `ebb (run|swap|status): exit status`)
}

// The rollout is under way, the ranks are paused: everything ends, nothing stays.
func TestInterruptedDemoLeavesNothing(t *testing.T) {
	c := small(t)
	dir := t.TempDir()
	started, never := filepath.Join(dir, "started"), filepath.Join(dir, "never")
	for _, fifo := range []string{started, never} {
		if err := unix.Mkfifo(fifo, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c = c.replace(t, "demo-rollout", whenAskedTo("generate")+"\necho $$ > "+started+"; exec cat 0<>"+never)

	ctx, interrupt := context.WithCancel(context.Background())
	defer interrupt()
	ended := make(chan error, 1)
	go func() {
		_, err := run(ctx, c, nil)
		ended <- err
		_ = os.WriteFile(started, []byte("0\n"), 0) // in case it never came to a rollout
	}()
	text, err := os.ReadFile(started)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || pid == 0 {
		t.Fatalf("no rollout was started (%q): %v", text, <-ended)
	}
	rollout, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(rollout)

	interrupt()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the demo returned %v", err)
	}
	fds := []unix.PollFd{{Fd: int32(rollout), Events: unix.POLLIN}}
	if n, err := unix.Poll(fds, 60_000); n != 1 {
		t.Errorf("the rollout still runs (%v)", err)
	}
	wantEmpty(t, c.Base)
}

func TestDemoGivesUpAtItsDeadline(t *testing.T) {
	c := small(t).replace(t, "ebb", `exec sleep 1000`)
	c.Timeout = 10 * time.Second
	wantFailure(t, c, `not finished after 10s`)
}

func TestLeftEntriesAreCounted(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{".ebb", "job", "job/rank"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := countEntries(dir, ".ebb"); n != 2 || err != nil {
		t.Errorf("two directories beside .ebb are %d (%v)", n, err)
	}
	if err := os.WriteFile(filepath.Join(dir, ".ebb", "x.lease"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if n, err := countEntries(dir, ".ebb"); n != 3 || err != nil {
		t.Errorf("with a file in .ebb they are %d (%v)", n, err)
	}
}

func TestMissingProgramIsNamed(t *testing.T) {
	c := config{Dist: t.TempDir()}
	if err := c.missing(); err == nil || !strings.Contains(err.Error(), "bin/ebb is not built: run make build") {
		t.Errorf("got %v", err)
	}
}

func TestUsage(t *testing.T) {
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"--cycles", "0"}, "--cycles 0: must be from 1 to 1000"},
		{[]string{"--ranks", "65"}, "--ranks 65: must be from 1 to 64"},
		{[]string{"--device", "cuda"}, "make demo-gpu"},
		{[]string{"--timeout", "0s"}, "--timeout 0s: must be more than 0"},
		{[]string{"--nonsense"}, "nonsense"},
		{[]string{"extra"}, `unexpected argument "extra"`},
	} {
		var stdout, stderr bytes.Buffer
		status := command(tt.args, &stdout, &stderr)
		if status != 2 || !strings.Contains(stderr.String(), tt.want) || strings.Count(stderr.String(), "\n") != 1 || stdout.Len() > 0 {
			t.Errorf("ebb-demo %s: status %d, %q", strings.Join(tt.args, " "), status, stderr.String())
		}
	}
}

// job is a record of two ranks that took part in everything, with one cycle.
func job(change func(*record)) *record {
	r := newRecord(2)
	for rank := range 2 {
		r.add(event{Event: "start", Rank: rank, Parking: true})
		for step := range 3 {
			r.add(event{Event: "loss", Rank: rank, Step: step, Loss: fmt.Sprintf("0x1.8%dp+1", step+rank)})
		}
		r.add(event{Event: "digest", Rank: rank, Step: 0, Digest: "00ff"})
		r.add(event{Event: "digest", Rank: rank, Step: 3, Digest: "11ff"})
		paused := status{BytesPaused: 100, StagingBytes: 16, LastPause: operation{Bytes: 100}}
		r.add(event{Event: "pause", Rank: rank, Cycle: 1, Seconds: 0.5, Status: &paused})
		r.add(event{Event: "resume", Rank: rank, Cycle: 1, Seconds: 0.25, Status: &status{LastResume: operation{Bytes: 100}}})
		r.add(event{Event: "end", Rank: rank})
	}
	r.add(event{Event: "memory", Cycle: 1, When: "before", Used: 210, Total: 300})
	r.add(event{Event: "memory", Cycle: 1, When: "while", Used: 5, Total: 300})
	r.add(event{Event: "memory", Cycle: 1, When: "after", Used: 210, Total: 300})
	r.add(event{Event: "rollout", Cycle: 1, Bytes: 280, Used: 290, Total: 300, Sample: "The boat"})
	if change != nil {
		change(r)
	}
	return r
}

func TestComparisonFindsEveryDifference(t *testing.T) {
	if err := compareRuns(job(nil), job(nil)); err != nil {
		t.Fatalf("equal runs: %v", err)
	}
	for _, tt := range []struct {
		name   string
		change func(*record)
		want   string
	}{
		{"the last bit of one loss", func(r *record) { r.losses[point{1, 2}] = "0x1.84p+1" }, "loss of rank 1 at step 2 differs: 0x1.83p+1 without parking, 0x1.84p+1 with"},
		{"a missing loss", func(r *record) { delete(r.losses, point{0, 1}) }, "loss of rank 0 at step 1 differs"},
		{"an extra loss", func(r *record) { r.losses[point{0, 7}] = "0x1p+0" }, "loss of rank 0 at step 7 differs: none without"},
		{"a training state", func(r *record) { r.digests[point{1, 3}] = "11fe" }, "training state of rank 1 at step 3 differs"},
		{"two states: the first is named", func(r *record) {
			r.digests[point{1, 3}], r.digests[point{1, 0}] = "1", "2"
		}, "training state of rank 1 at step 0 differs"},
	} {
		if err := compareRuns(job(nil), job(tt.change)); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
	if err := compareRuns(newRecord(2), newRecord(2)); err == nil {
		t.Error("two runs that reported nothing are said to be the same")
	}
}

func TestReplicasMustAgree(t *testing.T) {
	if err := compareRanks(job(nil)); err != nil {
		t.Fatal(err)
	}
	if err := compareRanks(job(func(r *record) { r.digests[point{1, 3}] = "x" })); err == nil {
		t.Error("two ranks with different training states are said to agree")
	}
}

func TestIncompleteRunIsNamed(t *testing.T) {
	if err := job(nil).complete(3, 2, true); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name    string
		change  func(*record)
		parking bool
		want    string
	}{
		{"a rank that never started", func(r *record) { delete(r.parking, 1) }, true, "rank 1 never started"},
		{"a rank without the library", func(r *record) { r.parking[1] = false }, true, "rank 1 did not find ebb_idle_begin"},
		{"a library where none should be", nil, false, "rank 0 found ebb_idle_begin"},
		{"a rank that did not end", func(r *record) { delete(r.ended, 0) }, true, "rank 0 did not report its end"},
		{"a missing loss", func(r *record) { delete(r.losses, point{1, 1}) }, true, "rank 1 reported no loss for step 1"},
		{"an extra loss", func(r *record) { r.losses[point{1, 9}] = "1" }, true, "7 losses instead of 6"},
		{"a missing state", func(r *record) { delete(r.digests, point{1, 0}) }, true, "3 digests"},
	} {
		if err := job(tt.change).complete(3, 2, tt.parking); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}

func TestCycleIsSummedUp(t *testing.T) {
	all, err := summariseAll(job(nil), 1)
	if err != nil {
		t.Fatal(err)
	}
	want := summary{
		Cycle: 1, ParkedBytes: 200, PauseSeconds: 0.5, PauseGBps: 400 / 1e9, ResumeSeconds: 0.25, ResumeGBps: 800 / 1e9,
		UsedBefore: 210, UsedWhile: 5, UsedAfter: 210, DeviceBytes: 300, RolloutBytes: 280, StagingBytes: 32, Sample: "The boat",
	}
	if len(all) != 1 || all[0] != want {
		t.Errorf("got %+v, want %+v", all, want)
	}
}

func TestCycleThatProvesNothingIsRefused(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*cycle)
		want   string
	}{
		{"a pause that failed", func(c *cycle) { c.pause[1].Status.LastPause.Error = "disk full" }, "pause of rank 1: disk full"},
		{"a resume that failed", func(c *cycle) { c.resume[0].Status.LastResume.Error = "bad" }, "resume of rank 0: bad"},
		{"nothing paused", func(c *cycle) { c.pause[0].Status.BytesPaused = 0 }, "0 bytes paused after its pause"},
		{"still paused", func(c *cycle) { c.resume[0].Status.BytesPaused = 7 }, "7 after its resume"},
		{"no report of a rank", func(c *cycle) { delete(c.pause, 1) }, "rank 1 did not report"},
		{"no status", func(c *cycle) { c.pause[0] = event{} }, "rank 0 found no ebb_status"},
		{"memory not freed", func(c *cycle) { c.while = 110 }, "went from 210 to 110"},
		{"memory not back", func(c *cycle) { c.after = 110 }, "after the resume only 110 bytes"},
		{"no rollout", func(c *cycle) { c.rollout = nil }, "the rollout reported nothing"},
		{"a small rollout", func(c *cycle) { c.rollout.Bytes = 269 }, "the rollout had 269 of the device's 300 bytes"},
		{"a rollout whose memory the device does not know", func(c *cycle) { c.rollout.Used = 5 }, "the rollout had"},
	} {
		r := job(func(r *record) { tt.change(r.cycles[1]) })
		if _, err := summariseAll(r, 1); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
	if _, err := summariseAll(job(nil), 2); err == nil || !strings.Contains(err.Error(), "cycle 2 did not happen") {
		t.Errorf("a missing cycle: %v", err)
	}
}

func TestReportFitsTheTerminal(t *testing.T) {
	res := result{config: config{Ranks: 64, Cycles: 1, Steps: 9999}, DeviceMiB: 999999, Allocated: 15e9, Allocations: 20}
	res.Cycles = []summary{{
		Cycle: 1000, ParkedBytes: 9_999_999e6, PauseSeconds: 99.99, PauseGBps: 999.99, ResumeSeconds: 99.99, ResumeGBps: 999.99,
		UsedBefore: 9_999_999e6, UsedWhile: 9_999_999e6, UsedAfter: 9_999_999e6, RolloutBytes: 9_999_999e6, StagingBytes: 9_999_999e6,
		Sample: strings.Repeat("boats ", 60),
	}}
	var out bytes.Buffer
	printReport(&out, res, false)
	for line := range strings.Lines(out.String()) {
		if n := len(strings.TrimSuffix(line, "\n")); n > maxWidth {
			t.Errorf("%d columns: %s", n, line)
		}
	}
	if strings.Contains(out.String(), "\x1b") {
		t.Error("colours in plain output")
	}
}

func TestFailureIsOneLine(t *testing.T) {
	err := errors.Join(errors.New("first\nsecond"), errors.New("third"))
	if got, want := finalLine(result{}, err), "demo: FAILED first second third"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	var out bytes.Buffer
	if e := printJSON(&out, result{FilesLeft: 3}, err); e != nil {
		t.Fatal(e)
	}
	var got struct {
		OK        bool   `json:"ok"`
		Reason    string `json:"reason"`
		FilesLeft int    `json:"files_left"`
	}
	if e := json.Unmarshal(out.Bytes(), &got); e != nil || got.OK || got.Reason != "first second third" || got.FilesLeft != 3 {
		t.Errorf("got %+v (%v)", got, e)
	}
}

func TestTailKeepsTheLastLines(t *testing.T) {
	var output tail
	for i := range 100 {
		fmt.Fprintf(&output, "line %d\nhalf", i)
	}
	lines := output.Lines()
	if len(lines) != tailLines+1 || lines[0] != "halfline 75" || lines[tailLines] != "half" {
		t.Errorf("got %d lines: %q", len(lines), lines)
	}
}

func TestUnreadableEventIsReported(t *testing.T) {
	var seen []string
	path := filepath.Join(t.TempDir(), "events")
	p, err := openEvents(path, func(e event) { seen = append(seen, e.Event) })
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("{\"event\":\"start\"}\nnonsense\n{\"event\":\"end\"}\n"), 0); err != nil {
		t.Fatal(err)
	}
	if err := p.Close(); err == nil || !strings.Contains(err.Error(), "nonsense") {
		t.Errorf("got %v", err)
	}
	if strings.Join(seen, " ") != "start end" {
		t.Errorf("saw %q", seen)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the FIFO is still there: %v", err)
	}
}

// A rank that is stopped because of a failure elsewhere complains too, that it lost the others: not the reason.
func TestTheReasonIsWhatWasSaidByTheTimeOfTheFailure(t *testing.T) {
	output := &tail{}
	_, _ = fmt.Fprintln(output, "ebb: swap to train: corrupt backup")
	failed := make(chan struct{})
	swap := task(func(context.Context) error {
		defer close(failed)
		return errors.New("ebb swap: exit status 1")
	})
	rank := task(func(context.Context) error {
		<-failed
		_, _ = fmt.Fprintln(output, "[rank 1] demo-train: receive from rank 0: it is gone")
		return errors.New("exit status 1")
	})
	err := swap.because(output)(context.Background())
	if want := "ebb swap: exit status 1: ebb: swap to train: corrupt backup"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	stopped, stop := context.WithCancel(context.Background())
	stop()
	if err := rank.because(output)(stopped); err == nil || err.Error() != "exit status 1" {
		t.Errorf("of a rank that was stopped: %v", err)
	}
	if err := helper(func(context.Context) error { return nil })(context.Background()); !errors.Is(err, errEndedEarly) {
		t.Errorf("a helper that ended: %v", err)
	}
}
