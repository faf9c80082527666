package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ebb-offload/ebb/internal/testutil"
)

// These tests hand the memory of one software GPU over between two ranks under `ebb run` and an engine, a
// server with vLLM's or SGLang's endpoints that holds memory of the same GPU. Ranks and engine together do not
// fit: whoever is woken or resumed before the other has let go fails.

const (
	deviceMiB  = 176
	rankMiB    = 40 // of two ranks
	weightsMiB = 24
	cacheMiB   = 88
	engineHeld = (weightsMiB + cacheMiB) << 20
	rankHeld   = rankMiB << 20
)

// seat is where an operator sits: ranks, an engine, and the command.
type seat struct {
	*node
	runtime string
	ranks   []*rankLine
	engine  *engineServer
}

// newSeat starts an engine, which is put to sleep as by somebody else, and then two ranks.
func newSeat(t *testing.T, kind string, engineArgs ...string) *seat {
	t.Helper()
	s := &seat{node: newNode(t, deviceMiB)}
	s.node.env = []string{"SOFTGPU_GRANULARITY_KB=64"}
	s.runtime = testutil.SocketDir(t)
	s.engine = s.startEngine(t, kind, engineArgs...)
	s.engine.putToSleep(t)
	s.ranks = s.startRanks(t, func(args ...string) *exec.Cmd {
		return s.command(t, filepath.Join(root, "dist/bin/ebb"), args...)
	}, "swapped", 2, "swap_rank.py", strconv.Itoa(rankMiB))
	return s
}

func (s *seat) command(t *testing.T, name string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := s.process(t, name, args...)
	cmd.Env = append(cmd.Env, "EBB_RUNTIME_DIR="+s.runtime)
	return cmd
}

// engineServer is testdata/engine_server.py.
type engineServer struct {
	kind, url, token string
	cmd              *exec.Cmd
}

func (s *seat) startEngine(t *testing.T, kind string, args ...string) *engineServer {
	t.Helper()
	cmd := s.process(t, "python3", append([]string{filepath.Join(testdir, "engine_server.py"), kind,
		"--weights-mib", strconv.Itoa(weightsMiB), "--kv-cache-mib", strconv.Itoa(cacheMiB)}, args...)...)
	cmd.Stderr = os.Stderr
	port, _ := untilItSays(t, cmd, nil)
	e := &engineServer{kind: kind, url: "http://127.0.0.1:" + port, cmd: cmd}
	if i := slices.Index(args, "--token"); i >= 0 {
		e.token = args[i+1]
	}
	return e
}

// engineState is what the server itself says.
type engineState struct {
	Calls   []string `json:"calls"`
	Asleep  []string `json:"asleep"`
	Held    uint64   `json:"held"`
	Weights *string  `json:"weights"`
	Paused  bool     `json:"paused"`
	PID     int      `json:"pid"`
}

// posts is how many calls changed something, or tried to.
func (e engineState) posts() (n int) {
	for _, call := range e.Calls {
		if strings.HasPrefix(call, "POST ") {
			n++
		}
	}
	return n
}

func (e *engineServer) request(t *testing.T, method, path, body string) []byte {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, e.url+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+e.token)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != 200 {
		t.Fatalf("%s %s: status %d (%v): %s", method, path, response.StatusCode, err, text)
	}
	return text
}

// manners changes how the server behaves.
func (e *engineServer) manners(t *testing.T, to string) { e.request(t, "PUT", "/_control", to) }

func (e *engineServer) state(t *testing.T) engineState {
	t.Helper()
	var s engineState
	if err := json.Unmarshal(e.request(t, "GET", "/_control", ""), &s); err != nil {
		t.Fatal(err)
	}
	return s
}

func (e *engineServer) putToSleep(t *testing.T) {
	t.Helper()
	switch e.kind {
	case "vllm":
		e.request(t, "POST", "/sleep?level=1", "")
	case "sglang":
		e.request(t, "POST", "/release_memory_occupation", "{}")
	}
}

// swapCommand is the command, for the seat's engine where the arguments name none.
func (s *seat) swapCommand(t *testing.T, to string, args ...string) *exec.Cmd {
	t.Helper()
	all := append([]string{"swap", "--to", to, "--runtime-dir", s.runtime, "--disk-dir", s.disk}, args...)
	if !slices.Contains(args, "--engine") && !slices.Contains(args, "--engine-command") {
		all = append(all, "--engine", s.engine.url)
	}
	return s.command(t, filepath.Join(root, "dist/bin/ebb"), all...)
}

func (s *seat) swap(t *testing.T, to string, args ...string) outcome {
	t.Helper()
	o := run(t, s.swapCommand(t, to, args...))
	for line := range strings.Lines(o.stdout) {
		if n := len([]rune(strings.TrimSuffix(line, "\n"))); n > 100 && !strings.HasPrefix(line, "{") {
			t.Errorf("a line of %d columns: %s", n, line)
		}
	}
	t.Logf("ebb swap --to %s %s: %v", to, strings.Join(args, " "), o)
	return o
}

// mustSwap is swap, which must do it.
func (s *seat) mustSwap(t *testing.T, to string, args ...string) outcome {
	t.Helper()
	o := s.swap(t, to, args...)
	if o.status != 0 {
		t.Fatalf("ebb swap --to %s: %v", to, o)
	}
	return o
}

// mustFail is swap, which must end with a status and say all of these.
func (s *seat) mustFail(t *testing.T, status int, said []string, to string, args ...string) outcome {
	t.Helper()
	o := s.swap(t, to, args...)
	if o.status != status {
		t.Errorf("ebb swap --to %s: want status %d: %v", to, status, o)
	}
	for _, text := range append(said, "ebb: to go back: ebb swap --to ", "ebb: or repeat the command") {
		if !strings.Contains(o.stderr, text) {
			t.Errorf("ebb swap --to %s does not say %q: %v", to, text, o)
		}
	}
	return o
}

// wantResident checks that every rank has its memory, with what was written to it.
func (s *seat) wantResident(t *testing.T) {
	t.Helper()
	for i, r := range s.ranks {
		if got := r.ask(t, "where"); !strings.HasPrefix(got, fmt.Sprint(rankHeld)) || !strings.HasSuffix(got, " 0") {
			t.Fatalf("rank %d has active and paused bytes: %s", i, got)
		}
		if got := r.ask(t, "check"); got != "intact" {
			t.Errorf("rank %d: %s", i, got)
		}
	}
}

func (s *seat) wantPaused(t *testing.T) {
	t.Helper()
	for i, r := range s.ranks {
		if got := r.ask(t, "where"); got != fmt.Sprintf("0 %d", rankHeld) {
			t.Errorf("rank %d has active and paused bytes: %s", i, got)
		}
	}
}

func (s *seat) wantEngine(t *testing.T, awake bool) engineState {
	t.Helper()
	state := s.engine.state(t)
	switch {
	case awake && (state.Held != engineHeld || len(state.Asleep) > 0):
		t.Errorf("the engine is not awake: %+v", state)
	case awake && (state.Weights == nil || *state.Weights != "kept"):
		t.Errorf("the engine's weights are not what they were: %+v", state)
	case !awake && state.Held != 0:
		t.Errorf("the engine is not asleep: %+v", state)
	}
	return state
}

func TestMemoryIsHandedOverAndBack(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"vllm", "sglang"} {
		t.Run(kind, func(t *testing.T) {
			s := newSeat(t, kind)
			var more []string
			if kind == "sglang" { // it does not tell, and ebb did not do it
				s.mustFail(t, 1, []string{"--engine-state asleep or awake"}, "rollout")
				s.wantResident(t)
				more = []string{"--engine-state", "asleep", "--engine-pause", "abort"}
			}
			for range 2 {
				s.mustSwap(t, "rollout", more...)
				s.wantPaused(t)
				posts := s.wantEngine(t, true).posts()
				if o := s.mustSwap(t, "rollout", more...); !strings.Contains(o.stdout, "nothing was moved: the engine is awake") {
					t.Errorf("a repeated hand-over: %v", o)
				}
				s.wantPaused(t)

				s.mustSwap(t, "train", more...)
				s.wantResident(t)
				state := s.wantEngine(t, false)
				if kind == "sglang" && !state.Paused {
					t.Error("its generation is not paused while it sleeps")
				}
				if o := s.mustSwap(t, "train", more...); !strings.Contains(o.stdout, "nothing was moved: the ranks are resident") {
					t.Errorf("a repeated hand-over: %v", o)
				}
				s.wantResident(t)
				if want, got := state.posts(), s.engine.state(t).posts(); got != want || want <= posts {
					t.Errorf("%d calls changed something, then %d, then %d", posts, want, got)
				}
			}
		})
	}
}

// What goes wrong with the engine while the ranks are resident moves nothing.
func TestNothingIsMovedForAnEngineThatCannotBeWoken(t *testing.T) {
	t.Parallel()
	s := newSeat(t, "vllm")
	stopped := s.startEngine(t, "none", "--weights-mib", "1", "--kv-cache-mib", "1")
	for _, tt := range []struct {
		name   string
		faults string
		args   []string
		status int
		said   []string
	}{
		{"no such endpoint", `{"/is_sleeping":{"status":404,"body":"{\"detail\":\"Not Found\"}"}}`, []string{"--engine-kind", "vllm"}, 1,
			[]string{"status 404: Not Found", "VLLM_SERVER_DEV_MODE=1", "--enable-sleep-mode"}},
		{"neither kind", "", []string{"--engine", stopped.url}, 1, []string{"neither vLLM's", "--engine-command"}},
		{"another kind", "", []string{"--engine-kind", "sglang", "--engine-state", "asleep", "--timeout", "30"}, 1, []string{"status 404", "SGLang"}},
		{"redirected", `{"/is_sleeping":{"status":307,"location":"http://127.0.0.1:1/"}}`, nil, 1, []string{"status 307", "which is not followed"}},
		{"no token", `{"/is_sleeping":{"status":401,"body":"{\"error\":\"Unauthorized\"}"}}`, nil, 1, []string{"status 401: Unauthorized", "--engine-token-file"}},
		{"a huge answer", `{"/is_sleeping":{"status":200,"body":5000000}}`, []string{"--engine-kind", "vllm"}, 1, []string{"more than 4194304 bytes"}},
		{"a hang", `{"/is_sleeping":{"hang":true}}`, []string{"--timeout", "2"}, 4, []string{"GET /is_sleeping: no answer by the deadline"}},
		{"a command that fails", "", []string{"--engine-command", "echo broken >&2; exit 5;"}, 1, []string{"exit status 5: broken"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.faults == "" {
				tt.faults = "{}"
			}
			s.engine.manners(t, `{"faults":`+tt.faults+`}`)
			o := s.mustFail(t, tt.status, append(tt.said, "ebb: now: 2 ranks", "ebb: to go back: ebb swap --to train"), "rollout", tt.args...)
			if tt.name != "another kind" {
				if strings.Contains(o.stdout, "paused") {
					t.Errorf("a rank was paused: %v", o)
				}
			} else {
				s.engine.manners(t, `{"faults":{}}`)
				s.mustSwap(t, "train")
			}
			s.wantResident(t)
			s.engine.manners(t, `{"faults":{}}`)
		})
	}
	if err := stopped.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if _, err := stopped.cmd.Process.Wait(); err != nil {
		t.Fatal(err)
	}
	s.mustFail(t, 1, []string{"connection refused; start the engine"}, "rollout", "--engine", stopped.url)
	s.wantResident(t)
	s.wantEngine(t, false)
}

// A hand-over to rollout that fails half-way says where it stands, and goes on or back by a command.
func TestAHandOverToRolloutThatFailsHalfWay(t *testing.T) {
	t.Parallel()
	s := newSeat(t, "vllm")

	s.ranks[1].ask(t, "busy")
	o := s.mustFail(t, 4, []string{"actor cell 0 rank 1: late", "1 rank resident; 1 rank paused, memory safe", "or repeat the command"}, "rollout", "--timeout", "3")
	if got := s.ranks[0].ask(t, "where"); got != fmt.Sprintf("0 %d", rankHeld) {
		t.Errorf("rank 0, which was in time, has active and paused bytes: %s", got)
	}
	s.wantEngine(t, false)
	back := regexp.MustCompile(`to go back: ebb (swap --to train .*)`).FindStringSubmatch(o.stderr)
	if back == nil {
		t.Fatalf("no command to go back: %v", o)
	}
	succeed(t, s.command(t, filepath.Join(root, "dist/bin/ebb"), strings.Fields(back[1])...))
	s.ranks[1].ask(t, "idle")
	s.wantResident(t)

	s.engine.manners(t, `{"faults":{"/wake_up":{"status":500,"body":"Internal Server Error"}}}`)
	s.mustFail(t, 1, []string{"POST /wake_up: status 500: Internal Server Error", "2 ranks paused, memory safe", "ebb swap --to train --engine " + s.engine.url}, "rollout")
	s.wantPaused(t)
	s.wantEngine(t, false)
	s.mustSwap(t, "train")
	s.wantResident(t)

	// It says that it is awake, and is not.
	s.engine.manners(t, `{"faults":{},"wake_fails":true}`)
	s.mustFail(t, 4, []string{"GET /is_sleeping: ", "the deadline"}, "rollout", "--timeout", "3")
	s.wantPaused(t)
	s.engine.manners(t, `{"wake_fails":false}`)
	s.mustSwap(t, "rollout") // the command repeated
	s.wantPaused(t)
	s.wantEngine(t, true)
	s.mustSwap(t, "train")
	s.wantResident(t)

	// Another process takes the memory in between.
	tenant := s.tenant(t, (deviceMiB-2*rankMiB-8)<<20)
	s.mustFail(t, 1, []string{"out of memory", fmt.Sprintf("process %d", tenant.Process.Pid), "2 ranks paused"}, "rollout")
	s.wantPaused(t)
	s.mustSwap(t, "train")
	s.wantResident(t)
}

// tenant holds device memory until the test ends.
func (s *seat) tenant(t *testing.T, bytes int) *exec.Cmd {
	t.Helper()
	cmd := s.process(t, "python3", filepath.Join(testdir, "tenant.py"), strconv.Itoa(bytes))
	if said, _ := untilItSays(t, cmd, nil); said != "took it" {
		t.Fatal(said)
	}
	return cmd
}

// A reply is not free memory: the ranks are resumed when the driver shows that it is.
func TestAHandOverToTrainWaitsForTheMemoryNotForTheReply(t *testing.T) {
	t.Parallel()
	s := newSeat(t, "vllm")
	s.mustSwap(t, "rollout")
	s.engine.manners(t, `{"hold":true}`)

	pid := s.engine.state(t).PID
	s.mustFail(t, 4, []string{"at the deadline", "is free of the 80 MiB", "that the paused ranks need", fmt.Sprintf("process %d", pid), "says that it sleeps", "--enable-sleep-mode",
		"2 ranks paused, memory safe", "to go back: ebb swap --to rollout"}, "train", "--timeout", "3")
	s.wantPaused(t)
	if held := s.engine.state(t).Held; held != engineHeld {
		t.Fatalf("the engine holds %d bytes", held)
	}

	// The same command again; the memory becomes free while it waits.
	log := t.TempDir()
	cmd := s.swapCommand(t, "train", "--json", "--event-log", log)
	var stdout bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	asked := len(s.engine.state(t).Calls)
	for len(s.engine.state(t).Calls) == asked { // it has not looked at the engine yet
		time.Sleep(10 * time.Millisecond)
	}
	s.wantPaused(t)
	select {
	case err := <-ended:
		t.Fatalf("it ended before the memory was free: %v", err)
	default:
	}
	s.engine.manners(t, `{"hold":false}`)
	if err := <-ended; err != nil {
		t.Fatal(err, stdout.String())
	}
	s.wantResident(t)
	s.wantEngine(t, false)

	var report struct {
		MessageType string `json:"message_type"`
		To          string `json:"to"`
		OK, Moved   bool
		Steps       []struct{ Step, State string }
	}
	if err := json.Unmarshal(stdout.Bytes(), &report); err != nil {
		t.Fatal(err, stdout.String())
	}
	if report.MessageType != "swap" || report.To != "train" || !report.OK || !report.Moved || len(report.Steps) != 4 {
		t.Errorf("the report is %s", &stdout)
	}
	wantEvents(t, filepath.Join(log, "swapped__swap.jsonl"), "begin to_train", "phase to_train memory device", "phase to_train resume actor",
		"phase to_train resume actor", "end to_train")
}

// wantEvents checks kind, operation, phase and role of an event log's lines.
func wantEvents(t *testing.T, path string, want ...string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for line := range bytes.Lines(text) {
		var e struct {
			V                            int
			Event, Operation, Phase, Job string
			Role                         string
		}
		if err := json.Unmarshal(line, &e); err != nil {
			t.Fatal(err)
		}
		if e.V != 1 || e.Job != "swapped" {
			t.Errorf("%s", line)
		}
		got = append(got, strings.Join(strings.Fields(e.Event+" "+e.Operation+" "+e.Phase+" "+e.Role), " "))
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("the event log has\n%s\ninstead of\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestAHandOverToTrainThatFailsHalfWay(t *testing.T) {
	t.Parallel()
	s := newSeat(t, "vllm")
	s.mustSwap(t, "rollout")

	s.engine.manners(t, `{"faults":{"/sleep":{"hang":true}}}`)
	s.mustFail(t, 4, []string{"POST /sleep?level=1: no answer by the deadline", "2 ranks paused", fmt.Sprintf("process %d", s.engine.state(t).PID)}, "train", "--timeout", "3")
	s.wantPaused(t)
	s.wantEngine(t, true)

	s.engine.manners(t, `{"faults":{"/sleep":{"status":500,"body":"boom"}}}`)
	s.mustFail(t, 1, []string{"status 500: boom", "look at the engine's log"}, "train")
	s.wantPaused(t)

	s.mustFail(t, 1, []string{"connection refused", "where it has ended, ebb resume brings the ranks back"}, "train", "--engine", "http://127.0.0.1:1")
	s.wantPaused(t)

	// It slept, and the answer was lost: the command repeated finds it asleep.
	s.engine.manners(t, `{"faults":{"/sleep":{"break":true,"after":true}}}`)
	s.mustFail(t, 1, []string{"POST /sleep?level=1: the connection ended before its answer", "2 ranks paused"}, "train")
	s.wantEngine(t, false)
	s.engine.manners(t, `{"faults":{}}`)
	s.mustSwap(t, "train")
	s.wantResident(t)

	// With the ranks resident the engine is only looked at, and need not be there.
	o := s.mustSwap(t, "train", "--engine", "http://127.0.0.1:1")
	if !strings.Contains(o.stdout, "connection refused") || !strings.Contains(o.stdout, "nothing was moved") {
		t.Errorf("%v", o)
	}
	s.wantResident(t)
}

// SGLang ends when it is told to release or to resume twice, so whatever went wrong it is not.
func TestSGLangIsToldNothingTwice(t *testing.T) {
	t.Parallel()
	s := newSeat(t, "sglang")
	s.mustSwap(t, "rollout", "--engine-state", "asleep")

	s.engine.manners(t, `{"faults":{"/release_memory_occupation":{"status":400,"body":"{\"error\":{\"message\":\"not now\"}}"}}}`)
	s.mustFail(t, 1, []string{"POST /release_memory_occupation: status 400: not now", "2 ranks paused"}, "train")
	s.wantPaused(t)
	s.wantEngine(t, true)

	// It replies, and the memory is not free.
	s.engine.manners(t, `{"faults":{},"hold":true}`)
	s.mustFail(t, 4, []string{"that the paused ranks need", "was SGLang started with --enable-memory-saver?"}, "train", "--timeout", "3")
	s.wantPaused(t)
	s.engine.manners(t, `{"hold":false}`)
	s.mustSwap(t, "train")
	s.wantResident(t)
	s.wantEngine(t, false)
	if !long() {
		return
	}

	// No answer came, and nothing was done: only the user can know.
	s.mustSwap(t, "rollout")
	s.engine.manners(t, `{"faults":{"/release_memory_occupation":{"hang":true}}}`)
	s.mustFail(t, 4, []string{"POST /release_memory_occupation: no answer by the deadline"}, "train", "--timeout", "3")
	s.engine.manners(t, `{"faults":{}}`)
	s.mustFail(t, 4, []string{"that the paused ranks need"}, "train", "--timeout", "3")
	s.mustSwap(t, "train", "--engine-state", "awake")
	s.wantResident(t)

	// The resume was done, and its answer was lost.
	s.engine.manners(t, `{"faults":{"/resume_memory_occupation":{"break":true,"after":true}}}`)
	s.mustFail(t, 1, []string{"the connection ended before its answer"}, "rollout")
	s.engine.manners(t, `{"faults":{}}`)
	s.mustFail(t, 1, []string{"an earlier call to resume its memory had no answer", "--engine-state asleep or awake"}, "rollout")
	s.mustSwap(t, "rollout", "--engine-state", "awake")
	s.wantEngine(t, true)
	s.mustSwap(t, "train") // what was said is noted
	s.wantResident(t)
	s.wantEngine(t, false)
}

// A rank that hangs is named. Nothing is given away while it may hold memory, and the others come back.
func TestARankThatDoesNotAnswerIsNamed(t *testing.T) {
	t.Parallel()
	s := newSeat(t, "vllm")
	pid, err := strconv.Atoi(s.ranks[1].ask(t, "pid"))
	if err != nil {
		t.Fatal(err)
	}
	goOn := func() {
		if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGCONT) })
	stopAll(t, pid)
	s.mustFail(t, 4, []string{"actor cell 0 rank 1 does not answer", "nothing was moved", "1 rank resident; 1 rank without an answer"}, "rollout", "--timeout", "2")
	goOn()
	s.wantResident(t)
	s.wantEngine(t, false)
	if !long() {
		return
	}
	s.mustSwap(t, "rollout")
	stopAll(t, pid)
	s.mustFail(t, 4, []string{"actor cell 0 rank 1 does not answer", "the other ranks are resident"}, "train", "--timeout", "20")
	if got := s.ranks[0].ask(t, "check"); got != "intact" {
		t.Errorf("rank 0: %s", got)
	}
	goOn()
	s.mustSwap(t, "train")
	s.wantResident(t)
}

// A command that is interrupted while it waits for a rank withdraws: nothing is paused later.
func TestAnInterruptedHandOverWithdraws(t *testing.T) {
	t.Parallel()
	s := newSeat(t, "vllm")
	for _, r := range s.ranks {
		r.ask(t, "busy")
	}
	cmd := s.swapCommand(t, "rollout")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for s.engine.state(t).Calls == nil || len(s.engine.state(t).Calls) < 2 { // it has looked at the engine
		time.Sleep(10 * time.Millisecond)
	}
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	err := cmd.Wait()
	if cmd.ProcessState.ExitCode() != 130 {
		t.Errorf("%v: %s", err, &stderr)
	}
	for _, r := range s.ranks {
		r.ask(t, "idle")
	}
	s.wantResident(t)
	s.wantEngine(t, false)
}

// hasEnded reports whether a command that was started has come to its end. It can be waited for all the same.
func hasEnded(t *testing.T, cmd *exec.Cmd) bool {
	t.Helper()
	info := unix.Siginfo{}
	if err := unix.Waitid(unix.P_PID, cmd.Process.Pid, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil); err != nil {
		t.Fatalf("wait for process %d: %v", cmd.Process.Pid, err)
	}
	return info.Signo != 0
}

// What waits for a command to begin its work must see that it has ended instead.
func TestAnEndIsSeenBeforeItIsWaitedFor(t *testing.T) {
	t.Parallel()
	cmd := exec.Command("cat")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if hasEnded(t, cmd) {
		t.Error("it is running")
	}
	if err := stdin.Close(); err != nil {
		t.Error(err)
	}
	for deadline := time.Now().Add(hangs); !hasEnded(t, cmd); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("its end is not seen")
		}
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

// started is a hand-over that is under way: it has looked at the engine, and waits for ranks that are busy.
func (s *seat) started(t *testing.T, to string, stderr *bytes.Buffer) *exec.Cmd {
	t.Helper()
	cmd, looked := s.swapCommand(t, to), len(s.engine.state(t).Calls)
	cmd.Stderr = stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(hangs); len(s.engine.state(t).Calls) == looked; {
		if time.Now().After(deadline) {
			t.Fatalf("ebb swap --to %s does not look at the engine", to)
		}
		if hasEnded(t, cmd) {
			t.Fatalf("ebb swap --to %s has ended and not looked at the engine: %v\n%s", to, cmd.Wait(), stderr)
		}
		time.Sleep(10 * time.Millisecond)
	}
	return cmd
}

// Two hand-overs in opposite directions would undo each other: the second waits for the end of the first, or says
// who it is. A first one that is killed keeps nobody out.
func TestOppositeHandOversWaitForEachOther(t *testing.T) {
	t.Parallel()
	s := newSeat(t, "vllm")
	for _, r := range s.ranks {
		r.ask(t, "busy")
	}
	var said bytes.Buffer
	first := s.started(t, "rollout", &said)
	o := s.swap(t, "train", "--timeout", "0.5")
	holder := fmt.Sprintf("ebb swap, process %d, hands over to rollout since ", first.Process.Pid)
	if o.status != 4 || !strings.Contains(o.stderr, "ebb: waiting for the end of another hand-over: "+holder) || strings.Contains(o.stderr, "to go back") {
		t.Errorf("status %d, want 4 and the other one's name: %v", o.status, o)
	}
	if err := first.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = first.Wait()
	if o := s.mustSwap(t, "train"); !strings.Contains(o.stdout, "nothing was moved") || strings.Contains(o.stderr, "waiting") {
		t.Errorf("the dead one holds the lock: %v", o)
	}

	first = s.started(t, "rollout", &said)
	second := s.swapCommand(t, "train")
	stderr, err := second.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := second.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(stderr).ReadString('\n'); err != nil || !strings.Contains(line, fmt.Sprintf("process %d,", first.Process.Pid)) {
		t.Errorf("%q, %v", line, err)
	}
	for _, r := range s.ranks {
		r.ask(t, "idle")
	}
	if err := first.Wait(); err != nil {
		t.Errorf("the first: %v: %s", err, &said)
	}
	if err := second.Wait(); err != nil {
		t.Errorf("the second: %v", err)
	}
	s.wantResident(t)
	s.wantEngine(t, false)
	if left, _ := filepath.Glob(filepath.Join(s.runtime, "swap-*")); len(left) > 0 {
		t.Errorf("locks stay behind: %v", left)
	}
}

// Who reads what it prints may go away: half a hand-over would be nobody's.
func TestAHandOverThatNobodyReadsComesToItsEnd(t *testing.T) {
	t.Parallel()
	s := newSeat(t, "vllm")
	for _, to := range []string{"rollout", "train"} {
		read, write, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		cmd := s.swapCommand(t, to)
		var stderr bytes.Buffer
		cmd.Stdout, cmd.Stderr = write, &stderr
		_ = read.Close()
		err = cmd.Run()
		_ = write.Close()
		if cmd.ProcessState.ExitCode() != 79 || !strings.Contains(stderr.String(), "its output could not be written: write /dev/stdout: broken pipe") {
			t.Errorf("--to %s: %v: %s", to, err, &stderr)
		}
		if s.wantEngine(t, to == "rollout"); to == "rollout" {
			s.wantPaused(t)
		}
	}
	s.wantResident(t)
}

// Two engines, one of them behind a command, are woken and put to sleep together.
func TestSeveralEnginesAreHandedTheMemory(t *testing.T) {
	t.Parallel()
	s := newSeat(t, "vllm", "--token", "t0p-s3cret")
	state := filepath.Join(t.TempDir(), "state")
	if err := os.WriteFile(state, []byte("asleep"), 0o600); err != nil {
		t.Fatal(err)
	}
	script := fmt.Sprintf(`f() { case $1 in status) cat %[1]s;; sleep) echo asleep >%[1]s;; wake) echo awake >%[1]s;; esac; }; f`, state)
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("t0p-s3cret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"--engine", s.engine.url, "--engine-command", script}
	o := s.mustFail(t, 1, []string{"status 401"}, "rollout", args...)
	s.wantResident(t)
	args = append(args, "--engine-token-file", token)
	for _, to := range []string{"rollout", "train"} {
		got := s.mustSwap(t, to, args...)
		o.stdout, o.stderr = o.stdout+got.stdout, o.stderr+got.stderr
		text, err := os.ReadFile(state)
		if want := map[string]string{"rollout": "awake", "train": "asleep"}[to]; strings.TrimSpace(string(text)) != want || err != nil {
			t.Errorf("to %s: the command's engine is %s (%v)", to, text, err)
		}
	}
	s.wantResident(t)
	if strings.Contains(o.stdout+o.stderr, "s3cret") {
		t.Errorf("the token is told: %v", o)
	}
}

// The program that hands a real GPU over runs on the software device too.
func TestTheHandOverOfAGPUOnTheSoftwareDevice(t *testing.T) {
	t.Parallel()
	if !long() {
		t.Skip("a long test")
	}
	n := newNode(t, deviceMiB)
	cmd := n.process(t, "python3", filepath.Join(root, "test/gpu/swap.py"), "--soft")
	cmd.Env = append(cmd.Env, "GPUTEST_DISK="+n.disk)
	if said := succeed(t, cmd); strings.Count(said, "PASS swap: ") < 10 || strings.Contains(said, "\nFAIL ") {
		t.Error(said)
	}
}
