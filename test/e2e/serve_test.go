package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/ebb-offload/ebb/internal/control"
	"github.com/ebb-offload/ebb/internal/testutil"
)

// served is `ebb serve` for the ranks of a seat.
type served struct {
	t    *testing.T
	base string
	cmd  *exec.Cmd
	errs bytes.Buffer
}

func (s *seat) serve(t *testing.T, args ...string) *served {
	t.Helper()
	cmd := s.command(t, filepath.Join(root, "dist/bin/ebb"), append([]string{"serve", "--listen", "127.0.0.1:0", "--json", "--runtime-dir", s.runtime, "--disk-dir", s.disk}, args...)...)
	v := &served{t: t, cmd: cmd}
	cmd.Stderr = &v.errs
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(v.end)
	var hello struct {
		MessageType string `json:"message_type"`
		URL         string `json:"url"`
		PID         int    `json:"pid"`
	}
	if err := json.NewDecoder(out).Decode(&hello); err != nil || hello.MessageType != "serve" || hello.PID != cmd.Process.Pid {
		t.Fatalf("%+v, %v", hello, err)
	}
	v.base = hello.URL
	return v
}

// end ends the server as systemd does, and it must end well.
func (v *served) end() {
	if v.cmd == nil {
		return
	}
	cmd := v.cmd
	v.cmd = nil
	_ = cmd.Process.Signal(syscall.SIGTERM)
	if err := cmd.Wait(); err != nil {
		v.t.Errorf("ebb serve: %v\n%s", err, &v.errs)
	}
}

// answer is a reply of the server, as far as the tests look at it.
type answer struct {
	status int
	text   string
	ID     string
	OK     bool
	Ranks  json.RawMessage
	Totals struct {
		Device uint64 `json:"device_bytes"`
		Freed  uint64 `json:"freed_bytes"`
	}
	Bytes   struct{ Device, Disk uint64 }
	Written uint64 `json:"disk_written_bytes"`
	Silent  []struct{ Rank, Message string }
	Error   struct {
		Code, Message, Remedy string
		Known                 []string
		Report                struct {
			Ranks struct{ Total, Done, Late, Failed, Gone int }
			Late  []struct {
				Rank, Message string
				PID           int
			}
			Failed []struct {
				Rank, Message string
				PID           int
			}
		}
	}
}

func (v *served) ask(method, path, body string, headers ...string) answer {
	v.t.Helper()
	r, err := http.NewRequestWithContext(v.t.Context(), method, v.base+path, strings.NewReader(body))
	if err != nil {
		v.t.Fatal(err)
	}
	if method == http.MethodPost {
		r.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	reply, err := http.DefaultClient.Do(r)
	if err != nil {
		v.t.Fatalf("%s %s: %v\n%s", method, path, err, &v.errs)
	}
	defer reply.Body.Close()
	text, err := io.ReadAll(reply.Body)
	if err != nil {
		v.t.Fatal(err)
	}
	a := answer{status: reply.StatusCode, text: string(text)}
	if err := json.Unmarshal(text, &a); err != nil {
		v.t.Fatalf("%s %s: %v: %s", method, path, err, text)
	}
	return a
}

// must is ask, and the reply must have that status.
func (v *served) must(status int, method, path, body string, headers ...string) answer {
	v.t.Helper()
	a := v.ask(method, path, body, headers...)
	if a.status != status {
		v.t.Fatalf("%s %s %s: status %d, want %d: %s\n%s", method, path, body, a.status, status, a.text, &v.errs)
	}
	return a
}

// pids are the processes of the ranks, by rank.
func (v *served) pids(n int) []int {
	v.t.Helper()
	var ranks []struct {
		Rank string
		PID  int
	}
	if err := json.Unmarshal(v.must(200, "GET", "/v1/ranks", "").Ranks, &ranks); err != nil || len(ranks) != n {
		v.t.Fatalf("%+v, %v", ranks, err)
	}
	pids := make([]int, n)
	for i, r := range ranks {
		if rank, err := strconv.Atoi(r.Rank); err == nil {
			i = rank
		}
		pids[i] = r.PID
	}
	return pids
}

// metrics are scraped and read as Prometheus does. The result is name{label="value",…} to value.
func (v *served) metrics() map[string]float64 {
	v.t.Helper()
	reply, err := http.Get(v.base + "/metrics")
	if err != nil {
		v.t.Fatal(err)
	}
	defer reply.Body.Close()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(reply.Body)
	if err != nil || reply.StatusCode != 200 {
		v.t.Fatalf("status %d, %v", reply.StatusCode, err)
	}
	all := map[string]float64{}
	for name, family := range families {
		for _, m := range family.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				if l.GetName() != "job" {
					labels = append(labels, l.GetName()+"="+l.GetValue())
				}
			}
			slices.Sort(labels)
			value := m.GetGauge().GetValue() + m.GetCounter().GetValue()
			if family.GetType() == dto.MetricType_HISTOGRAM {
				value = float64(m.GetHistogram().GetSampleCount())
			}
			all[name+"{"+strings.Join(labels, ",")+"}"] = value
		}
	}
	return all
}

func (v *served) wantMetric(series string, want float64) {
	v.t.Helper()
	m := v.metrics()
	if got, found := m[series]; !found || got != want {
		v.t.Errorf("%s is %v (there: %v), want %v", series, got, found, want)
	}
}

// follow calls see with each event until see returns true.
func (v *served) follow(see func(kind, operation, rank string) bool) (seen <-chan error) {
	v.t.Helper()
	ctx, cancel := context.WithCancel(v.t.Context())
	r, err := http.NewRequestWithContext(ctx, "GET", v.base+"/v1/events", nil)
	if err != nil {
		v.t.Fatal(err)
	}
	reply, err := http.DefaultClient.Do(r)
	if err != nil {
		v.t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		defer cancel()
		defer reply.Body.Close()
		lines := bufio.NewScanner(reply.Body)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			data, found := strings.CutPrefix(lines.Text(), "data: ")
			if !found {
				continue
			}
			var e struct{ Event, Operation, Rank string }
			if err := json.Unmarshal([]byte(data), &e); err != nil {
				done <- fmt.Errorf("%w: %s", err, data)
				return
			}
			if see(e.Event, e.Operation, e.Rank) {
				done <- nil
				return
			}
		}
		done <- fmt.Errorf("the events ended: %w", errors.Join(io.EOF, lines.Err()))
	}()
	return done
}

func TestRanksAreCommandedOverHTTP(t *testing.T) {
	s := newSeat(t, "vllm")
	v := s.serve(t, "--engine", s.engine.url)
	v.must(200, "GET", "/healthz", "")
	if n := v.must(200, "GET", "/v1/node", ""); n.Bytes.Device != 2*rankHeld || n.Bytes.Disk != 0 {
		t.Errorf("%s", n.text)
	}

	// What is refused changes nothing.
	if e := v.must(400, "POST", "/v1/pause", `{"tags":["nothing"]}`); len(e.Error.Known) == 0 {
		t.Errorf("%s", e.text)
	}
	if e := v.must(400, "POST", "/v1/pause", `{"ranks":["7"]}`); !slices.Equal(e.Error.Known, []string{"0", "1"}) {
		t.Errorf("%s", e.text)
	}
	v.must(403, "POST", "/v1/pause", `{}`, "Sec-Fetch-Site", "cross-site")
	v.must(403, "POST", "/v1/pause", `{}`, "Origin", "http://evil.example")
	v.must(415, "POST", "/v1/pause", `{}`, "Content-Type", "text/plain")
	s.wantResident(t)

	ends := map[string]bool{}
	seen := v.follow(func(kind, operation, rank string) bool {
		if kind == "end" && operation == "pause" {
			ends[rank] = true
		}
		return len(ends) == 2
	})
	first := v.must(200, "POST", "/v1/pause", `{"timeout_s":60}`, "Idempotency-Key", "step 1")
	if !first.OK || first.Totals.Device < 2*rankHeld || first.Totals.Freed < 2*rankHeld {
		t.Errorf("%s", first.text)
	}
	s.wantPaused(t)
	if err := <-seen; err != nil || !ends["0"] || !ends["1"] {
		t.Errorf("ends of pauses: %v, %v", ends, err)
	}
	n := v.must(200, "GET", "/v1/node", "")
	if n.Bytes.Device != 0 || n.Bytes.Disk != 2*rankHeld || n.Written < 2*rankHeld {
		t.Errorf("%s", n.text)
	}
	v.wantMetric("ebb_ranks{state=parked}", 2)
	v.wantMetric("ebb_rank_bytes{cell=0,rank=1,role=actor,state=paused,tier=disk}", rankHeld)
	v.wantMetric("ebb_rank_up{cell=0,rank=0,role=actor}", 1)
	v.wantMetric("ebb_pauses_total{outcome=done}", 2)
	v.wantMetric("ebb_pause_duration_seconds{}", 2)
	v.wantMetric("ebb_disk_written_bytes_total{}", float64(n.Written))

	// The same request again is the same: also after the ranks were resumed, and at a server that was
	// started anew, which knows nothing of it. The ranks do.
	again := v.must(200, "POST", "/v1/pause", `{"timeout_s":30}`, "Idempotency-Key", "step 1")
	if again.ID != first.ID || again.Totals != first.Totals {
		t.Errorf("%s\nis not %s", again.text, first.text)
	}
	v.must(422, "POST", "/v1/pause", `{"ranks":["0"]}`, "Idempotency-Key", "step 1")
	v.must(200, "POST", "/v1/resume", `{}`)
	s.wantResident(t)
	v.end()
	v = s.serve(t, "--engine", s.engine.url)
	again = v.must(200, "POST", "/v1/pause", `{"timeout_s":60}`, "Idempotency-Key", "step 1")
	if again.ID != first.ID || again.Totals != first.Totals {
		t.Errorf("%s\nis not %s", again.text, first.text)
	}
	s.wantResident(t)

	// The hand-over, with the engine that the server was started with.
	v.must(200, "POST", "/v1/swap", `{"to":"rollout"}`)
	s.wantPaused(t)
	s.wantEngine(t, true)
	v.must(200, "POST", "/v1/swap", `{"to":"train"}`)
	s.wantResident(t)
	s.wantEngine(t, false)
	v.must(400, "POST", "/v1/swap", `{"to":"nobody"}`)
	v.must(400, "POST", "/v1/swap", `{"to":"train","engine":"http://127.0.0.1:1"}`) // no request names an engine
}

// stopAll stops a process and waits until all its threads are: until then it may take a command.
func stopAll(t *testing.T, pid int) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(hangs); !allStopped(pid); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("process %d does not stop", pid)
		}
	}
}

// allStopped reports whether all threads of a process are stopped.
func allStopped(pid int) bool {
	stats, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	for _, file := range stats {
		text, err := os.ReadFile(file)
		if err == nil && !strings.Contains(string(text), ") T ") {
			return false
		}
	}
	return len(stats) > 0
}

// A rank that hangs is named by the deadline, and holds up neither the others nor a scrape.
func TestAStoppedRankIsLateOverHTTP(t *testing.T) {
	t.Parallel() // it waits, most of the time
	s := newSeat(t, "vllm")
	v := s.serve(t)
	pids := v.pids(2)
	stopAll(t, pids[1])
	defer func() { _ = syscall.Kill(pids[1], syscall.SIGCONT) }()
	// Until the deadline the other one must have written what it parks, on a disk that may be busy.
	e := v.must(504, "POST", "/v1/pause", `{"timeout_s":10}`).Error
	r := e.Report
	if e.Code != "late" || r.Ranks.Total != 2 || r.Ranks.Done != 1 || r.Ranks.Late != 1 || len(r.Late) != 1 ||
		r.Late[0].PID != pids[1] || r.Late[0].Rank != "actor cell 0 rank 1" {
		t.Errorf("%+v", e)
	}
	if n := v.must(200, "GET", "/v1/node", ""); len(n.Silent) != 1 || n.Silent[0].Rank != "actor cell 0 rank 1" || !strings.Contains(n.Silent[0].Message, "kill -CONT") {
		t.Errorf("%s", n.text)
	}
	v.wantMetric("ebb_rank_up{cell=0,rank=1,role=actor}", 0)
	v.wantMetric("ebb_rank_up{cell=0,rank=0,role=actor}", 1)
	v.wantMetric("ebb_ranks{state=silent}", 1)
	if err := syscall.Kill(pids[1], syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	// What was asked of it is over: it goes on as it was.
	if got := s.ranks[1].ask(t, "check"); got != "intact" {
		t.Errorf("rank 1: %s", got)
	}
	v.must(200, "POST", "/v1/resume", `{}`)
	s.wantResident(t)

	// One that comes to no safe point is late by its own word, and is left as it was.
	s.ranks[0].ask(t, "busy")
	e = v.must(504, "POST", "/v1/pause", `{"timeout_s":1,"ranks":["0"]}`).Error
	if e.Code != "late" || len(e.Report.Late) != 1 || e.Report.Late[0].PID != pids[0] {
		t.Errorf("%+v", e)
	}
	s.ranks[0].ask(t, "idle")
	s.wantResident(t)
}

// A process that is killed while a pause waits for it is named as gone.
func TestAKilledRankIsNamedOverHTTP(t *testing.T) {
	s := &seat{node: newNode(t, deviceMiB)}
	s.runtime = testutil.SocketDir(t)
	listener := listenForRanks(t)
	rank := s.victim(t, "swap_rank.py", listener.Addr().String(), "8")
	rank.Env = append(rank.Env, "EBB_RUNTIME_DIR="+s.runtime, "RANK=0", "TMS_INIT_ENABLE=1", "TMS_INIT_ENABLE_DISK_BACKUP=1")
	if err := rank.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = rank.Wait() // it is killed
		_ = listener.Close()
	}()
	line := rankLines(t, listener, 1, &bytes.Buffer{})[0]
	line.ask(t, "busy")
	v := s.serve(t)
	pid := v.pids(1)[0]
	events := (&commanded{t: t, runtime: s.runtime}).connect()
	var null any
	events.must(`"cmd":"subscribe"`, &null)
	go func() {
		for { // until the pause waits for a safe point
			line, err := events.lines.ReadBytes('\n')
			var e control.Event
			if err == nil {
				err = json.Unmarshal(line, &e)
			}
			if err != nil {
				t.Errorf("%q: %v", line, err)
			}
			if err != nil || e.Kind == control.EventAsked {
				break
			}
		}
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}()
	e := v.must(500, "POST", "/v1/pause", `{"timeout_s":60}`).Error
	if e.Code != "failed" || e.Report.Ranks.Gone != 1 || len(e.Report.Failed) != 1 || e.Report.Failed[0].PID != pid {
		t.Errorf("%+v", e)
	}
	<-ended
	for deadline := time.Now().Add(hangs); ; time.Sleep(10 * time.Millisecond) {
		if e := v.ask("POST", "/v1/pause", `{}`).Error; e.Code == "no_rank" {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the killed rank is still there")
		}
	}
	v.wantMetric("ebb_ranks{state=silent}", 0)
	wantServed := v.must(200, "GET", "/v1/node", "")
	if len(wantServed.Silent) > 0 {
		t.Errorf("%s", wantServed.text)
	}
}
