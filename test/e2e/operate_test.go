package e2e

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ebb-offload/ebb/internal/testutil"
)

// These tests look at and command real ranks from outside, as an operator does: under `ebb run`, on one software GPU.

// Bytes of a rank of testdata/operated.py, by tag.
const (
	weightsBytes = 15<<20 + 4097 // of which weightsZero are zero
	weightsZero  = 4 << 20
	cachedBytes  = 6 << 20
	scratchBytes = 2 << 20
	operatedAll  = weightsBytes + cachedBytes + scratchBytes
)

// operated is a node with ranks, which are asked and commanded through their control sockets.
type operated struct {
	*node
	runtime string
	ranks   []*rankLine
	pids    []int
}

func newOperated(t *testing.T, ranks int) *operated {
	t.Helper()
	o := &operated{node: newNode(t, 256)}
	o.node.env = []string{"SOFTGPU_GRANULARITY_KB=64"}
	o.runtime = testutil.SocketDir(t)
	t.Cleanup(func() {
		if left, err := os.ReadDir(o.runtime); err != nil || len(left) > 0 {
			t.Errorf("sockets left behind: %v, %v", left, err)
		}
	})
	o.ranks = o.startRanks(t, func(args ...string) *exec.Cmd { return o.ebb(t, args...) }, "operated", ranks, "operated.py")
	t.Cleanup(func() {
		for _, pid := range o.pids {
			_ = syscall.Kill(pid, syscall.SIGCONT)
		}
	})
	for _, r := range o.ranks {
		pid, err := strconv.Atoi(r.ask(t, "pid"))
		if err != nil {
			t.Fatal(err)
		}
		o.pids = append(o.pids, pid)
	}
	return o
}

// ebb is a command that looks for ranks in this test's directory only.
func (o *operated) ebb(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	cmd := o.process(t, filepath.Join(root, "dist/bin/ebb"), args...)
	var env []string
	for _, variable := range cmd.Env { // what the launcher sets
		if !strings.HasPrefix(variable, "TMS_") && !strings.HasPrefix(variable, "LD_LIBRARY_PATH=") {
			env = append(env, variable)
		}
	}
	cmd.Env = append(env, "EBB_RUNTIME_DIR="+o.runtime)
	return cmd
}

// want runs a command, which must end with that status, and returns its streams.
func (o *operated) want(t *testing.T, status int, args ...string) outcome {
	t.Helper()
	out := run(t, o.ebb(t, args...))
	if out.status != status {
		t.Fatalf("ebb %v: want status %d: %v", args, status, out)
	}
	if strings.Contains(out.stdout+out.stderr, "\x1b") {
		t.Errorf("ebb %v sends escape codes to a pipe: %v", args, out)
	}
	for line := range strings.Lines(out.stdout) {
		if n := len([]rune(strings.TrimRight(line, "\n"))); n > 100 && args[len(args)-1] != "--json" {
			t.Errorf("ebb %v prints a line of %d columns: %s", args, n, line)
		}
	}
	return out
}

// status is what ebb status --json says.
type operatedStatus struct {
	Ranks []struct {
		Rank   string `json:"rank"`
		PID    int    `json:"pid"`
		Status struct {
			Active uint64 `json:"bytes_active"`
			Paused uint64 `json:"bytes_paused"`
			Tags   []struct {
				Tag                                         string
				Active, InHost, InFiles, Skipped, Discarded uint64
			} `json:"tags"`
		} `json:"status"`
		Devices []struct {
			Free uint64 `json:"free_bytes"`
		} `json:"devices"`
	} `json:"ranks"`
	Silent []struct {
		Rank string `json:"rank"`
		PID  int    `json:"pid"`
		Why  string `json:"why"`
	} `json:"silent"`
}

func (o *operated) status(t *testing.T, want int, args ...string) (s operatedStatus) {
	t.Helper()
	command := append(append([]string{"status"}, args...), "--json")
	out := run(t, o.ebb(t, command...))
	for tries := 1; want == 0 && out.status == 4 && tries < 3; tries++ { // a rank has a second for its answer, and may be late once
		out = run(t, o.ebb(t, command...))
	}
	if out.status != want {
		t.Fatalf("ebb %v: want status %d: %v", command, want, out)
	}
	if err := json.Unmarshal([]byte(out.stdout), &s); err != nil {
		t.Fatalf("%v: %s", err, out.stdout)
	}
	return s
}

// paused are the paused bytes of the ranks.
func (o *operated) paused(t *testing.T) (list []uint64) {
	t.Helper()
	for _, r := range o.status(t, 0).Ranks {
		if r.Status.Active+r.Status.Paused != operatedAll {
			t.Errorf("rank %s: %+v", r.Rank, r)
		}
		list = append(list, r.Status.Paused)
	}
	return list
}

func wantPaused(t *testing.T, got []uint64, want ...uint64) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("paused %v, want %v", got, want)
	}
	for i := range got {
		if got[i] != want[i] {
			t.Errorf("paused %v, want %v", got, want)
		}
	}
}

func wantLine(t *testing.T, text, line string) {
	t.Helper()
	if !strings.Contains(text, line) {
		t.Errorf("no line %q in:\n%s", line, text)
	}
}

// syncBuffer is output that is read while a process writes it.
type syncBuffer struct {
	mu   sync.Mutex // guards text
	text bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// await waits until a text is there so many times.
func (b *syncBuffer) await(t *testing.T, text string, times int) {
	t.Helper()
	for deadline := time.Now().Add(hangs); strings.Count(b.String(), text) < times; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not %d times %q in:\n%s", times, text, b.String())
		}
	}
}

func TestAnOperatorPausesAndResumesRanks(t *testing.T) {
	o := newOperated(t, 2)
	before := o.status(t, 0)
	watch := o.ebb(t, "watch", "--rank", "1")
	var events syncBuffer
	watch.Stdout, watch.Stderr = &events, &events
	if err := watch.Start(); err != nil {
		t.Fatal(err)
	}

	for !strings.Contains(events.String(), "actor/0/1: ") { // until it listens
		o.ranks[1].ask(t, "pause")
		o.ranks[1].ask(t, "resume")
	}

	out := o.want(t, 0, "pause")
	wantLine(t, out.stdout, "pause done on 2 ranks in ")
	after := o.status(t, 0)
	if free := after.Ranks[0].Devices[0].Free; free < before.Ranks[0].Devices[0].Free+2*operatedAll {
		t.Errorf("%d bytes of the device are free, before %d", free, before.Ranks[0].Devices[0].Free)
	}
	wantPaused(t, o.paused(t), operatedAll, operatedAll)
	wantLine(t, o.want(t, 0, "pause").stdout, "there was nothing to do") // again, and nothing happens
	text := o.want(t, 0, "status").stdout
	wantLine(t, text, "actor/0/1")
	wantLine(t, text, "paused")
	wantLine(t, text, "parked: 44.0 MB (42.0 MiB)") // what is kept of both
	wantLine(t, text, o.disk+": ")

	// One tag of one rank.
	o.want(t, 0, "resume", "--rank", "1", "--tag", "weights")
	wantPaused(t, o.paused(t), operatedAll, cachedBytes+scratchBytes)
	o.want(t, 0, "resume", "--role", "actor", "--cell", "0", "--job", "operated", "--pid", strconv.Itoa(o.pids[0])+","+strconv.Itoa(o.pids[1]))
	wantPaused(t, o.paused(t), 0, 0)
	for _, r := range o.ranks {
		if got := r.ask(t, "check"); got != "intact" {
			t.Error(got)
		}
	}
	// What a program does by itself is seen too.
	o.ranks[1].ask(t, "pause")
	wantPaused(t, o.paused(t), 0, operatedAll)
	o.ranks[1].ask(t, "resume")
	o.want(t, 0, "pause", "--tag", "scratch")
	events.await(t, "pause of tags scratch begins", 1) // the last of all
	o.want(t, 0, "resume")
	if err := watch.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if err := watch.Wait(); err != nil {
		t.Errorf("ebb watch: %v", err)
	}
	for _, line := range []string{
		"actor/0/1: pause of everything begins: 24.1 MB (23.0 MiB), asked for from outside",
		"actor/0/1: pause: move took ", "actor/0/1: paused 24.1 MB (23.0 MiB) in ",
		"actor/0/1: resume of tags weights begins", "actor/0/1: pause of everything begins: 24.1 MB (23.0 MiB), asked for by the program",
	} {
		wantLine(t, events.String(), line)
	}
	if strings.Contains(events.String(), "actor/0/0") || strings.Contains(events.String(), "\x1b") {
		t.Errorf("events of another rank, or escape codes:\n%s", events.String())
	}
}

// The status tells each byte once: on the device, in host memory, in files, skipped or given up.
func TestTheStatusOfARankSaysWhereEachTagIs(t *testing.T) {
	o := newOperated(t, 1)
	o.want(t, 0, "pause")
	var got struct {
		Ranks []struct {
			Status struct {
				Tags []map[string]any `json:"tags"`
			} `json:"status"`
		} `json:"ranks"`
	}
	if err := json.Unmarshal([]byte(o.want(t, 0, "status", "--json").stdout), &got); err != nil {
		t.Fatal(err)
	}
	want := map[string]map[string]float64{
		"weights": {"active": 0, "in_host": 0, "in_files": weightsBytes - weightsZero, "skipped": weightsZero, "discarded": 0},
		"cache":   {"active": 0, "in_host": cachedBytes, "in_files": 0, "skipped": 0, "discarded": 0},
		"scratch": {"active": 0, "in_host": 0, "in_files": 0, "skipped": 0, "discarded": scratchBytes},
	}
	if len(got.Ranks) != 1 || len(got.Ranks[0].Status.Tags) != len(want) {
		t.Fatalf("%+v", got)
	}
	for _, tag := range got.Ranks[0].Status.Tags {
		for field, bytes := range want[tag["tag"].(string)] {
			if tag[field] != bytes {
				t.Errorf("%s: %s is %v, want %v", tag["tag"], field, tag[field], bytes)
			}
		}
	}
	o.want(t, 0, "resume")
	if got := o.ranks[0].ask(t, "check"); got != "intact" {
		t.Error(got)
	}
}

// A rank that comes to no safe point is named, its pause is withdrawn, and one command brings the others back.
func TestARankThatIsBusyIsLateAndTheOthersAreBroughtBack(t *testing.T) {
	o := newOperated(t, 2)
	o.ranks[1].ask(t, "busy")
	out := o.want(t, 4, "pause", "--role", "actor", "--timeout", "2")
	wantLine(t, out.stderr, "ebb: actor cell 0 rank 1 (pid "+strconv.Itoa(o.pids[1])+") is late: ")
	wantLine(t, out.stderr, "no safe point within ")
	const back = "ebb: 1 of 2 ranks paused; to bring them back: ebb "
	at := strings.Index(out.stderr, back)
	if at < 0 {
		t.Fatal(out)
	}
	wantPaused(t, o.paused(t), operatedAll, 0)
	o.want(t, 0, strings.Fields(out.stderr[at+len(back):])...)
	wantPaused(t, o.paused(t), 0, 0)
	// The pause that was late is not carried out afterwards.
	o.ranks[1].ask(t, "idle")
	if got := o.ranks[1].ask(t, "check"); got != "intact" {
		t.Error(got)
	}
	wantPaused(t, o.paused(t), 0, 0)
}

// A stopped process takes callers and says nothing: it is named, and all others answer.
func TestAStoppedRankHoldsUpNobody(t *testing.T) {
	o := newOperated(t, 3)
	stopAll(t, o.pids[1])
	s := o.status(t, 4)
	if len(s.Ranks) != 2 || len(s.Silent) != 1 || s.Silent[0].PID != o.pids[1] || s.Silent[0].Rank != "1" ||
		!strings.Contains(s.Silent[0].Why, "the process is stopped (kill -CONT "+strconv.Itoa(o.pids[1])+" ") {
		t.Errorf("%+v", s)
	}
	out := o.want(t, 4, "pause", "--timeout", "3")
	wantLine(t, out.stderr, "ebb: actor cell 0 rank 1 (pid "+strconv.Itoa(o.pids[1])+") is late: ")
	wantLine(t, out.stderr, "ebb: 2 of 3 ranks paused; to bring them back: ebb resume")
	o.want(t, 0, "resume", "--rank", "0,2")
	if err := syscall.Kill(o.pids[1], syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	o.want(t, 0, "pause", "--tag", "cache,weights")
	o.want(t, 0, "resume")
	for _, r := range o.ranks {
		if got := r.ask(t, "check"); got != "intact" {
			t.Error(got)
		}
	}
}

// A pause that cannot be is the rank's own error; the others are told how to come back.
func TestARankWithoutRoomFailsAndSaysWhy(t *testing.T) {
	o := newOperated(t, 2)
	o.want(t, 0, "pause", "--rank", "0")
	hold := o.victim(t, "hold.py", "8") // less than a resume needs is left
	hold.Env = append(hold.Env, "LD_PRELOAD=")
	_, letGo := untilItSays(t, hold, nil)
	out := o.want(t, 1, "resume", "--timeout", "0")
	wantLine(t, out.stderr, "ebb: actor cell 0 rank 0 (pid "+strconv.Itoa(o.pids[0])+") failed: ")
	wantLine(t, out.stderr, "not enough memory on device 0: ")
	wantLine(t, out.stderr, "ebb: what is not resumed stays paused, with all its bytes: ")
	letGo()
	o.want(t, 0, "resume", "--timeout", "60")
	if got := o.ranks[0].ask(t, "check"); got != "intact" {
		t.Error(got)
	}
}

// Ctrl-C leaves the ranks that have not begun as they are.
func TestCtrlCWithdrawsAPauseThatHasNotBegun(t *testing.T) {
	o := newOperated(t, 2)
	o.ranks[1].ask(t, "busy")
	cmd := o.ebb(t, "pause", "--timeout", "1h")
	var stdout, stderr syncBuffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(hangs); o.paused(t)[0] == 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("rank 0 does not pause")
		}
	}
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if status := cmd.ProcessState.ExitCode(); status != 130 {
		t.Errorf("status %d: %s", status, stderr.String())
	}
	wantLine(t, stderr.String(), "ebb: actor cell 0 rank 1 (pid "+strconv.Itoa(o.pids[1])+") was left as it is: withdrawn before it began")
	wantLine(t, stderr.String(), "ebb: 1 of 2 ranks paused; to bring them back: ebb resume")
	o.ranks[1].ask(t, "idle")
	if got := o.ranks[1].ask(t, "check"); got != "intact" {
		t.Error(got)
	}
	wantPaused(t, o.paused(t), operatedAll, 0)
	o.want(t, 0, "resume")
}

func TestWhatIsNotThereIsSaidWithWhatIs(t *testing.T) {
	o := newOperated(t, 1)
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"pause", "--tag", "nope"}, `ebb: no tag "nope"; there are: cache, scratch, weights: give one that is there, or none for everything`},
		{[]string{"resume", "--role", "critic"}, `ebb: no role "critic"; there are: actor: give one that is there, or none for all`},
		{[]string{"status", "--rank", "7"}, `ebb: no rank "7"; there are: 0: give one that is there, or none for all`},
		{[]string{"watch", "--job", "other"}, `ebb: no job "other"; there are: operated: give one that is there, or none for all`},
		{[]string{"pause", "--timeout", "soon"}, "must be a number of seconds, or a time such as 90s or 5m"},
		{[]string{"pause", "--rank", "first"}, "must be a whole number"},
		{[]string{"status", "--pid", "0"}, "must be the number of a process"},
	} {
		wantLine(t, o.want(t, 2, test.args...).stderr, test.want)
	}
	empty := t.TempDir()
	for _, verb := range []string{"status", "watch", "pause", "resume"} {
		wantLine(t, o.want(t, 3, verb, "--runtime-dir", empty).stderr, "ebb: no rank is running: looked in "+empty)
	}
	wantPaused(t, o.paused(t), 0)
}
