package serve

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ebb-offload/ebb/internal/control"
	"github.com/ebb-offload/ebb/internal/node"
)

func TestAPauseReachesAllRanksThatAreMeant(t *testing.T) {
	f := newFake(4)
	f.ranks[3].Role = "critic"
	s := serving(t, f, nil)
	for name, test := range map[string]struct {
		body string
		want []string
	}{
		"all":           {`{}`, []string{"0", "1", "2", "3"}},
		"one":           {`{"ranks":["2"]}`, []string{"2"}},
		"two":           {`{"ranks":["2","0","2"]}`, []string{"0", "2"}},
		"a role":        {`{"roles":["critic"]}`, []string{"3"}},
		"a process":     {`{"pids":[1001]}`, []string{"1"}},
		"job and cell":  {`{"jobs":["grpo"],"cells":["0"],"roles":["actor"]}`, []string{"0", "1", "2"}},
		"with its tags": {`{"tags":["weights"],"ranks":["1"]}`, []string{"1"}},
	} {
		before := len(f.commanded())
		r := as[commandReport](t, s.post("/v1/pause", test.body), http.StatusOK)
		calls := f.commanded()[before:]
		var got []string
		for _, c := range calls {
			got = append(got, c.rank)
			if c.verb != "pause" || c.id != r.ID || strings.HasPrefix(name, "with") != slices.Equal(c.tags, []string{"weights"}) {
				t.Errorf("%s: call %+v", name, c)
			}
		}
		slices.Sort(got)
		if !slices.Equal(got, test.want) {
			t.Errorf("%s: ranks %v, want %v", name, got, test.want)
		}
		if n := len(test.want); !r.OK || r.MessageType != "pause" || r.Ranks.Total != n || r.Ranks.Done != n || r.Totals.Disk != uint64(n)<<30 {
			t.Errorf("%s: %+v", name, r)
		}
	}
	if r := as[commandReport](t, s.post("/v1/resume", `{}`), http.StatusOK); r.MessageType != "resume" {
		t.Errorf("%+v", r)
	}
}

func TestWhatIsNotKnownOfAPauseIsTold(t *testing.T) {
	outcome := node.Outcome{Rank: node.Rank{Who: control.Who{PID: 7}}, State: node.Done, Done: &control.Done{}, Note: "not known"}
	if told := name(nil, outcome, "")[0]; told.Message != "not known" || told.State != "done" {
		t.Errorf("%+v", told)
	}
}

func TestUnknownNamesAreRefusedWithThoseThatExist(t *testing.T) {
	f := newFake(2)
	s := serving(t, f, nil)
	for body, want := range map[string][]string{
		`{"roles":["critic"]}`:              {"actor"},
		`{"ranks":["7"]}`:                   {"0", "1"},
		`{"jobs":["grpo","other"]}`:         {"grpo"},
		`{"pids":[1]}`:                      {"1000", "1001"},
		`{"tags":["weights","kv"]}`:         {"optimizer", "weights"},
		`{"ranks":["0"],"pids":[1001]}`:     {"actor cell 0 rank 0", "actor cell 0 rank 1"},
		`{"tags":["kv"],"roles":["actor"]}`: {"optimizer", "weights"},
	} {
		e := refused(t, s.post("/v1/pause", body), http.StatusBadRequest, codeUnknown)
		if !slices.Equal(e.Error.Known, want) {
			t.Errorf("%s: known %q, want %q", body, e.Error.Known, want)
		}
	}
	if calls := f.commanded(); len(calls) > 0 {
		t.Errorf("ranks were commanded: %v", calls)
	}
}

func TestNoRankIsAnAnswerOfItsOwn(t *testing.T) {
	f := newFake(0)
	f.silent = []node.Silent{{Who: control.Who{PID: 5}, Dead: true}}
	s := serving(t, f, nil)
	refused(t, s.post("/v1/pause", "{}"), http.StatusConflict, codeNoRank)
	if n := as[nodeReply](t, s.get("/v1/node"), http.StatusOK); n.Ranks.Total != 0 {
		t.Errorf("%+v", n.Ranks)
	}
}

func TestBadBodiesAreRefused(t *testing.T) {
	f := newFake(1)
	s := serving(t, f, nil)
	many := `{"ranks":["` + strings.Repeat(`x","`, 2000) + `x"]}`
	for _, body := range []string{
		``, ` `, `{`, `[]`, `null`, `null x`, `true`, `"x"`, `{} {}`, `{}x`, `{"tag":["x"]}`, `{"tags":"x"}`, `{"tags":[1]}`, `{"tags":[""]}`,
		`{"ranks":[0]}`, `{"pids":["1"]}`, `{"pids":[0]}`, `{"pids":[-1]}`, `{"timeout_s":0}`, `{"timeout_s":-1}`, `{"timeout_s":1e9}`,
		`{"timeout_s":"1"}`, `{"tags":["a\u0000"]}`, `{"tags":["` + strings.Repeat("x", 300) + `"]}`, many, `{"to":"train"}`,
	} {
		refused(t, s.post("/v1/pause", body), http.StatusBadRequest, codeInvalid)
	}
	refused(t, s.post("/v1/pause", strings.Repeat(" ", maxBody)+"{}"), http.StatusRequestEntityTooLarge, codeTooLarge)
	for _, key := range []string{strings.Repeat("k", 129), "grün"} {
		refused(t, s.post("/v1/pause", "{}", "Idempotency-Key", key), http.StatusBadRequest, codeInvalid)
	}
	for _, path := range []string{"/v1/node?x=1", "/v1/node?timeout_s=0", "/v1/node?timeout_s=x", "/v1/ranks?limit=-1", "/v1/ranks?offset=x", "/v1/ranks?limit=9999", "/v1/ranks?limit=1&limit=2", "/v1/events?x", "/v1/node?%zz"} {
		refused(t, s.get(path), http.StatusBadRequest, codeInvalid)
	}
	if calls := f.commanded(); len(calls) > 0 {
		t.Errorf("ranks were commanded: %v", calls)
	}
}

func TestWhatIsWrongWithABodyIsSaidInWords(t *testing.T) {
	s := serving(t, newFake(1), nil)
	for body, want := range map[string]string{
		`{"tag":["x"]}`:                         `the body is no such request: unknown field "tag"`,
		`{"tags":"x"}`:                          `tags: got a JSON string, want a list`,
		`{"ranks":[0]}`:                         `ranks: got a JSON number, want a string`,
		`{"pids":[1.5]}`:                        `pids: got a JSON number 1.5, want a whole number`,
		`{"timeout_s":"5"}`:                     `timeout_s: got a JSON string, want a number`,
		`{"` + strings.Repeat("ü", 70) + `":1}`: `the body is no such request: unknown field "` + strings.Repeat("ü", 49) + `…`,
	} {
		if got := refused(t, s.post("/v1/pause", body), http.StatusBadRequest, codeInvalid).Error.Message; got != want {
			t.Errorf("%s: %s\nwant %s", body, got, want)
		}
	}
}

func TestAMemberThatIsNoneIsAnsweredWithThoseThatThereAre(t *testing.T) {
	s := serving(t, newFake(1), nil)
	got := refused(t, s.post("/v1/pause", `{"timeout":5}`), http.StatusBadRequest, codeInvalid).Error.Remedy
	if want := "send a JSON object with any of tags, roles, ranks, cells, jobs, pids, timeout_s"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	got = refused(t, s.post("/v1/swap", `{"direction":"train"}`), http.StatusBadRequest, codeInvalid).Error.Remedy
	if !strings.HasPrefix(got, "send a JSON object with any of ") || !strings.Contains(got, "to") || !strings.Contains(got, "timeout_s") {
		t.Errorf("of a hand-over: %q", got)
	}
}

func TestNothingOfTheClientsSteersATerminal(t *testing.T) {
	s := serving(t, newFake(1), nil)
	want := "nothing is at /\ufffd[31m\ufffdred ü"
	if got := refused(t, s.get("/%1b[31m%e2%80%aered%20%c3%bc"), http.StatusNotFound, codeNoRoute).Error.Message; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestHalfWayAndFailed(t *testing.T) {
	f := newFake(3)
	f.do = func(_ context.Context, _ string, rank node.Rank, _ string) node.Outcome {
		switch rank.Who.Rank {
		case "1":
			return failure(node.Failed, "No space left on device")
		case "2":
			return failure(node.Gone, "the process has ended")
		}
		return done(7)
	}
	s := serving(t, f, nil)
	e := refused(t, s.post("/v1/pause", "{}"), http.StatusConflict, codeHalfWay)
	r := e.Error.Report
	if r.OK || r.Ranks != (rankCounts{Total: 3, Done: 1, Failed: 1, Gone: 1}) || r.Totals.Bytes != 7 || len(r.Failed) != 2 {
		t.Errorf("%+v", r)
	}
	if n := r.Failed[0]; n.Rank != "actor cell 0 rank 1" || n.PID != 1001 || n.State != "failed" || n.Message != "No space left on device" || n.Code != 7 {
		t.Errorf("%+v", n)
	}
	if !strings.Contains(e.Error.Remedy, "/v1/resume") {
		t.Errorf("remedy %q", e.Error.Remedy)
	}
	e = refused(t, s.post("/v1/pause", `{"ranks":["1","2"]}`), http.StatusInternalServerError, codeFailed)
	if e.Error.Report.Ranks.Done != 0 {
		t.Errorf("%+v", e.Error.Report)
	}
}

// The reply comes at the request's deadline and names who has not answered, while one rank goes on.
func TestLateRanksAreNamedByTheDeadline(t *testing.T) {
	f := newFake(2)
	f.silent = []node.Silent{{Who: control.Who{Role: "actor", Cell: "0", Rank: "9", PID: 77}, Socket: "/run/9.sock", Why: "it is stopped"}}
	goOn := make(chan struct{})
	f.do = func(ctx context.Context, _ string, rank node.Rank, _ string) node.Outcome {
		switch rank.Who.Rank {
		case "1": // has begun
			<-goOn
		case "9": // hangs until it is withdrawn
			<-ctx.Done()
			return node.Outcome{State: node.Withdrawn, Err: &control.Error{Message: "withdrawn before it began"}}
		}
		return done(1)
	}
	s := serving(t, f, nil)
	e := refused(t, s.post("/v1/pause", `{"timeout_s":2}`, "Idempotency-Key", "k"), http.StatusGatewayTimeout, codeLate)
	r := e.Error.Report
	if r.Ranks != (rankCounts{Total: 3, Done: 1, Late: 2}) {
		t.Errorf("%+v", r.Ranks)
	}
	late := map[string]bool{}
	for _, n := range r.Late {
		late[n.Rank] = n.State == "late" && n.Message != ""
	}
	if !late["actor cell 0 rank 1"] || !late["actor cell 0 rank 9"] {
		t.Errorf("late: %+v", r.Late)
	}
	if r.Over || !strings.Contains(e.Error.Remedy, "same key") {
		t.Errorf("over %v, remedy %q", r.Over, e.Error.Remedy)
	}
	// The same key waits for what goes on, and asks no rank again.
	close(goOn)
	e = refused(t, s.post("/v1/pause", `{"timeout_s":60}`, "Idempotency-Key", "k"), http.StatusGatewayTimeout, codeLate)
	if e.Error.Report.Ranks != (rankCounts{Total: 3, Done: 2, Late: 1}) || !e.Error.Report.Over {
		t.Errorf("%+v", e.Error.Report)
	}
	if n := len(f.commanded()); n != 3 {
		t.Errorf("%d commands, want 3", n)
	}
}

// Ranks are given less time than the request has, so that what they say of it is heard.
func TestRanksHearOfTheDeadline(t *testing.T) {
	f := newFake(1)
	s := serving(t, f, nil)
	as[commandReport](t, s.post("/v1/pause", `{"timeout_s":10}`), http.StatusOK)
	if d := f.commanded()[0].timeout; d <= 0 || d > 9500*time.Millisecond {
		t.Errorf("the rank was given %v", d)
	}
}

func TestRepliesDoNotGrowWithTheRanks(t *testing.T) {
	size := func(n int) (command, summary int) {
		f := newFake(n)
		for i := range f.ranks {
			f.ranks[i].Status.LastPause = &node.LastOperation{Bytes: 1, Seconds: 1, Error: strings.Repeat("x", 5000)}
		}
		f.do = func(_ context.Context, _ string, rank node.Rank, _ string) node.Outcome {
			switch rank.PID % 3 {
			case 0:
				return failure(node.Failed, strings.Repeat("y", 5000))
			case 1:
				return failure(node.Late, strings.Repeat("z", 5000))
			}
			return done(1)
		}
		for i := range n {
			f.silent = append(f.silent, node.Silent{Who: control.Who{PID: 5000 + i}, Socket: fmt.Sprint("/silent/", i), Why: strings.Repeat("w", 5000)})
		}
		s := serving(t, f, nil)
		r := s.post("/v1/pause", "{}")
		e := refused(t, r, http.StatusConflict, codeHalfWay)
		if e.Error.Report.Ranks.Total != 2*n || len(e.Error.Report.Late) != maxNamed {
			t.Errorf("%+v", e.Error.Report.Ranks)
		}
		l := s.get("/v1/node")
		if reply := as[nodeReply](t, l, http.StatusOK); reply.Ranks.Total != 2*n || reply.FaultCount != n || len(reply.Faults) != maxNamed {
			t.Errorf("%+v", reply)
		}
		return len(r.body), len(l.body)
	}
	fewCommand, fewNode := size(30)
	manyCommand, manyNode := size(900)
	const digits = 400 // numbers may be longer
	if manyCommand > fewCommand+digits || manyNode > fewNode+digits {
		t.Errorf("replies of 30 ranks: %d and %d bytes, of 900: %d and %d", fewCommand, fewNode, manyCommand, manyNode)
	}
}

func TestTheSameKeyIsTheSameRequest(t *testing.T) {
	f := newFake(2)
	s := serving(t, f, nil)
	const body = `{"ranks":["0","1"],"timeout_s":30}`
	first := as[commandReport](t, s.post("/v1/pause", body, "Idempotency-Key", "step 7"), http.StatusOK)
	again := as[commandReport](t, s.post("/v1/pause", `{"timeout_s":5,"ranks":["1","0","1"]}`, "Idempotency-Key", "step 7"), http.StatusOK)
	if again.ID != first.ID || again.Ranks != first.Ranks || again.Totals != first.Totals {
		t.Errorf("%+v\nis not %+v", again, first)
	}
	if n := len(f.commanded()); n != 2 {
		t.Errorf("%d commands, want 2", n)
	}
	refused(t, s.post("/v1/pause", `{"ranks":["0"]}`, "Idempotency-Key", "step 7"), http.StatusUnprocessableEntity, codeKeyReused)
	refused(t, s.post("/v1/resume", body, "Idempotency-Key", "step 7"), http.StatusUnprocessableEntity, codeKeyReused)
	if n := len(f.commanded()); n != 2 {
		t.Errorf("%d commands, want 2", n)
	}
	// Another server, as after a new start, gives the ranks the same ids; without a key, or with another
	// one, they are new.
	other := serving(t, f, nil)
	if r := as[commandReport](t, other.post("/v1/pause", body, "Idempotency-Key", "step 7"), http.StatusOK); r.ID != first.ID {
		t.Errorf("id %s, want %s", r.ID, first.ID)
	}
	ids := map[string]bool{first.ID: true}
	for _, headers := range [][]string{nil, nil, {"Idempotency-Key", "step 8"}} {
		r := as[commandReport](t, s.post("/v1/pause", body, headers...), http.StatusOK)
		if ids[r.ID] {
			t.Errorf("id %s was used before", r.ID)
		}
		if len(r.ID) > control.MaxID {
			t.Errorf("the id has %d bytes", len(r.ID))
		}
		ids[r.ID] = true
	}
}

func TestARequestUnderWayIsJoined(t *testing.T) {
	f := newFake(1)
	begun, goOn := make(chan struct{}), make(chan struct{})
	f.do = func(context.Context, string, node.Rank, string) node.Outcome {
		close(begun) // panics if there are two
		<-goOn
		return done(1)
	}
	s := serving(t, f, nil)
	var all sync.WaitGroup
	replies := make([]response, 5)
	for i := range replies {
		all.Go(func() { replies[i] = s.post("/v1/pause", "{}", "Idempotency-Key", "k") })
	}
	<-begun
	close(goOn)
	all.Wait()
	for _, r := range replies {
		if c := as[commandReport](t, r, http.StatusOK); !c.OK {
			t.Errorf("%+v", c)
		}
	}
}

// What was refused before a rank was asked may be asked again with its key.
func TestARefusalIsNotRemembered(t *testing.T) {
	f := newFake(0)
	s := serving(t, f, nil)
	refused(t, s.post("/v1/pause", "{}", "Idempotency-Key", "k"), http.StatusConflict, codeNoRank)
	f.mu.Lock()
	f.ranks = newFake(1).ranks
	f.mu.Unlock()
	as[commandReport](t, s.post("/v1/pause", "{}", "Idempotency-Key", "k"), http.StatusOK)
}

func TestKeysAreForgottenOldestFirst(t *testing.T) {
	var k keys
	for i := range maxKeys + 10 {
		a, first, wrong := k.claim(fmt.Sprint(i), "x")
		if !first || wrong != nil {
			t.Fatalf("key %d: %v, %v", i, first, wrong)
		}
		if i == 3 {
			continue // under way
		}
		over := make(chan struct{})
		close(over)
		k.settle(fmt.Sprint(i), a, &run{done: over}, nil)
	}
	if n := len(k.byKey); n != maxKeys || len(k.order) != n {
		t.Errorf("%d keys, %d in order", n, len(k.order))
	}
	for i, want := range map[int]bool{0: false, 2: false, 3: true, 4: false, 10: false, 11: true, maxKeys + 9: true} {
		if _, kept := k.byKey[fmt.Sprint(i)]; kept != want {
			t.Errorf("key %d kept: %v", i, kept)
		}
	}
}

// A caller who goes away withdraws what has not begun, unless somebody may come back for it.
func TestACallerWhoGoesAway(t *testing.T) {
	for _, key := range []string{"", "k"} {
		f := newFake(1)
		begun, release := make(chan context.Context, 1), make(chan struct{})
		f.do = func(ctx context.Context, _ string, _ node.Rank, _ string) node.Outcome {
			begun <- ctx
			select {
			case <-ctx.Done():
				return node.Outcome{State: node.Withdrawn}
			case <-release:
				return done(1)
			}
		}
		s := serving(t, f, nil)
		ctx, leave := context.WithCancel(context.Background())
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.base+"/v1/pause", strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/json")
		if key != "" {
			r.Header.Set("Idempotency-Key", key)
		}
		gone := make(chan struct{})
		go func() {
			defer close(gone)
			if reply, err := s.client.Do(r); err == nil {
				_ = reply.Body.Close()
			}
		}()
		command := <-begun
		leave()
		<-gone
		if key == "" {
			<-command.Done() // else the test hangs
			continue
		}
		close(release)
		if c := as[commandReport](t, s.post("/v1/pause", "{}", "Idempotency-Key", key), http.StatusOK); !c.OK {
			t.Errorf("%+v", c)
		}
	}
}

func TestCommandsAreBounded(t *testing.T) {
	f := newFake(1)
	begun, goOn := make(chan struct{}, maxRuns), make(chan struct{})
	f.do = func(context.Context, string, node.Rank, string) node.Outcome {
		begun <- struct{}{}
		<-goOn
		return done(1)
	}
	s := serving(t, f, nil)
	var all sync.WaitGroup
	for range maxRuns {
		all.Go(func() { s.post("/v1/pause", "{}") })
	}
	for range maxRuns {
		<-begun
	}
	r := s.post("/v1/pause", "{}")
	refused(t, r, http.StatusServiceUnavailable, codeBusy)
	if r.header.Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
	as[nodeReply](t, s.get("/v1/node"), http.StatusOK) // looking is another matter
	close(goOn)
	all.Wait()
	as[commandReport](t, s.post("/v1/pause", "{}"), http.StatusOK)
}

func TestTheEndWaitsForCommands(t *testing.T) {
	f := newFake(1)
	begun, goOn := make(chan struct{}), make(chan struct{})
	f.do = func(context.Context, string, node.Rank, string) node.Outcome {
		close(begun)
		<-goOn
		return done(1)
	}
	s := serving(t, f, nil)
	reply := make(chan response, 1)
	go func() { reply <- s.post("/v1/pause", "{}", "Idempotency-Key", "k") }()
	<-begun
	ended := make(chan struct{})
	go func() { s.stop(); close(ended) }()
	for s.enter() { // until it ends
		s.running.Done()
		time.Sleep(time.Millisecond)
	}
	select {
	case <-ended:
		t.Error("the server ended before its command")
	default:
	}
	close(goOn)
	as[commandReport](t, <-reply, http.StatusOK)
	<-ended
}

func TestTheEndWithdrawsWhatHasNotBegun(t *testing.T) {
	f := newFake(1)
	begun := make(chan struct{})
	f.do = func(ctx context.Context, _ string, _ node.Rank, _ string) node.Outcome {
		close(begun)
		<-ctx.Done()
		return node.Outcome{State: node.Withdrawn}
	}
	s := serving(t, f, func(o *Options) { o.Grace = time.Millisecond })
	reply := make(chan response, 1)
	go func() { reply <- s.post("/v1/pause", "{}", "Idempotency-Key", "k") }()
	<-begun
	s.stop()
	e := refused(t, <-reply, http.StatusServiceUnavailable, codeStopping)
	if e.Error.Report.Ranks.Withdrawn != 1 {
		t.Errorf("%+v", e.Error.Report)
	}
}

// A rank that only once answered keeps its name when it hangs.
func TestASilentRankKeepsItsName(t *testing.T) {
	f := newFake(1)
	s := serving(t, f, nil)
	as[nodeReply](t, s.get("/v1/node"), http.StatusOK)
	f.mu.Lock()
	f.silent = []node.Silent{{Who: control.Who{PID: 1000}, Socket: f.ranks[0].Socket, Why: "it is stopped"}}
	f.ranks = nil
	f.mu.Unlock()
	s.view.stale()
	n := as[nodeReply](t, s.get("/v1/node"), http.StatusOK)
	if n.Ranks != (stateCounts{Total: 1, Silent: 1}) || len(n.Silent) != 1 || n.Silent[0].Rank != "actor cell 0 rank 0" || n.Silent[0].Message != "it is stopped" {
		t.Errorf("%+v", n)
	}
}

// slow is a node on which finding the ranks takes until it is let go, from the second time on.
type slow struct {
	*fake
	hold  chan struct{}
	times atomic.Int32
}

func (s *slow) Discover(ctx context.Context) ([]node.Rank, []node.Silent, error) {
	if s.times.Add(1) > 1 {
		<-s.hold
	}
	return s.fake.Discover(ctx)
}

// A deadline that is too short to find out who hangs is kept all the same: the ranks known are commanded.
func TestRanksKnownAreCommandedWhenFindingTakesTooLong(t *testing.T) {
	f := &slow{fake: newFake(2), hold: make(chan struct{})}
	s := serving(t, f, nil)
	defer close(f.hold)
	<-f.watched
	<-f.watched
	if r := as[commandReport](t, s.post("/v1/pause", `{"timeout_s":3}`), http.StatusOK); r.Ranks.Done != 2 {
		t.Errorf("%+v", r)
	}
}
