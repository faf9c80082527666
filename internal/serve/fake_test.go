package serve

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ebb-offload/ebb/internal/control"
	"github.com/ebb-offload/ebb/internal/node"
)

// fake is a node whose ranks do what a test says.
type fake struct {
	mu      sync.Mutex
	ranks   []node.RankStatus
	silent  []node.Silent
	err     error
	do      func(ctx context.Context, verb string, rank node.Rank, id string) node.Outcome // nil: done at once
	hold    chan struct{}                                                                  // not nil: a status waits for it
	calls   []call
	looks   int
	finds   int                            // how often the ranks were looked for
	listed  chan struct{}                  // who waits here hears of the next list of sockets
	tellers map[string]func(control.Event) // by socket: who watches
	watched chan string                    // sockets, as they are watched
}

// call is one command that reached a rank.
type call struct {
	verb, id, rank string
	tags           []string
	timeout        time.Duration
}

func newFake(n int) *fake {
	f := &fake{tellers: map[string]func(control.Event){}, watched: make(chan string, 1024)}
	for i := range n {
		f.ranks = append(f.ranks, node.RankStatus{
			Rank: node.Rank{
				Who:    control.Who{Job: "grpo", Role: "actor", Cell: "0", Rank: fmt.Sprint(i), PID: 1000 + i},
				Socket: fmt.Sprintf("/run/%d.sock", i), Version: "1", Started: time.Unix(1, 0),
			},
			Status: node.Status{
				Device: "softgpu", Active: 1 << 30,
				Tags: []node.TagStatus{{Tag: "weights", Active: 1 << 29, Allocations: 1}, {Tag: "optimizer", Active: 1 << 29, Allocations: 1}},
			},
		})
	}
	return f
}

func (f *fake) Discover(context.Context) ([]node.Rank, []node.Silent, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.finds++
	var ranks []node.Rank
	for _, r := range f.ranks {
		ranks = append(ranks, r.Rank)
	}
	return ranks, append([]node.Silent(nil), f.silent...), f.err
}

func (f *fake) Sockets() (sockets []string) {
	f.mu.Lock()
	for _, r := range f.ranks {
		sockets = append(sockets, r.Socket)
	}
	for _, q := range f.silent {
		sockets = append(sockets, q.Socket)
	}
	f.mu.Unlock()
	select {
	case f.listed <- struct{}{}:
	default:
	}
	return sockets
}

func (f *fake) Status(_ context.Context, ranks []node.Rank, _ time.Duration) []node.RankStatus {
	f.mu.Lock()
	hold := f.hold
	f.looks++
	f.mu.Unlock()
	if hold != nil {
		<-hold
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	var all []node.RankStatus
	for _, want := range ranks {
		for _, r := range f.ranks {
			if r.Socket == want.Socket {
				all = append(all, r)
			}
		}
	}
	return all
}

func (f *fake) Pause(ctx context.Context, ranks []node.Rank, tags []string, timeout time.Duration, id string) node.Report {
	return f.operate(ctx, control.CmdPause, ranks, tags, timeout, id)
}

func (f *fake) Resume(ctx context.Context, ranks []node.Rank, tags []string, timeout time.Duration, id string) node.Report {
	return f.operate(ctx, control.CmdResume, ranks, tags, timeout, id)
}

func (f *fake) operate(ctx context.Context, verb string, ranks []node.Rank, tags []string, timeout time.Duration, id string) node.Report {
	report := node.Report{Operation: verb}
	for _, rank := range ranks {
		f.mu.Lock()
		f.calls = append(f.calls, call{verb, id, rank.Who.Rank, tags, timeout})
		do := f.do
		f.mu.Unlock()
		o := done(1 << 30)
		if do != nil {
			o = do(ctx, verb, rank, id)
		}
		o.Rank, o.Seconds = rank, 0.5
		report.Outcomes = append(report.Outcomes, o)
	}
	return report
}

func (f *fake) Watch(ctx context.Context, rank node.Rank, tell func(control.Event)) {
	f.mu.Lock()
	f.tellers[rank.Socket] = tell
	f.mu.Unlock()
	f.watched <- rank.Socket
	<-ctx.Done()
}

// emit sends an event of a rank, which must be watched.
func (f *fake) emit(t testing.TB, i int, e control.Event) {
	t.Helper()
	f.mu.Lock()
	rank := f.ranks[i]
	tell := f.tellers[rank.Socket]
	f.mu.Unlock()
	if tell == nil {
		t.Fatalf("rank %d is not watched", i)
	}
	e.Who, e.V = rank.Who, control.Version
	tell(e)
}

func (f *fake) commanded() []call {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]call(nil), f.calls...)
}

func done(bytes uint64) node.Outcome {
	return node.Outcome{State: node.Done, Done: &control.Done{Bytes: bytes, DeviceBytes: bytes, DiskBytes: bytes, Freed: bytes}}
}

func failure(state node.State, message string) node.Outcome {
	return node.Outcome{State: state, Err: &control.Error{Code: 7, Message: message}}
}

// served is a server of a fake under test, with a client of it.
type served struct {
	*Server
	t      testing.TB
	client *http.Client
	base   string // of URLs
	stop   func() // ends the server and waits for its end
}

// serving starts a server on a socket; change may alter its options.
func serving(t testing.TB, of Node, change func(*Options)) *served {
	t.Helper()
	o := Options{
		Node: of, Listen: "127.0.0.1:0", Version: "1.2.3", Grace: time.Minute,
		Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
	}
	if change != nil {
		change(&o)
	}
	server, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(ctx) }()
	transport := &http.Transport{}
	s := &served{Server: server, t: t, client: &http.Client{Transport: transport}, base: server.URL()}
	var once sync.Once
	s.stop = func() {
		once.Do(func() {
			transport.CloseIdleConnections()
			cancel()
			if err := <-ended; err != nil {
				t.Errorf("the server ended with: %v", err)
			}
		})
	}
	t.Cleanup(s.stop)
	return s
}

// response is a reply, read to its end.
type response struct {
	status int
	header http.Header
	body   []byte
}

// request sends one request; headers are pairs.
func (s *served) request(method, path, body string, headers ...string) response {
	s.t.Helper()
	r, err := http.NewRequest(method, s.base+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	if method == http.MethodPost {
		r.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i+1 < len(headers); i += 2 {
		if headers[i] == "Host" {
			r.Host = headers[i+1]
			continue
		}
		r.Header.Set(headers[i], headers[i+1])
	}
	reply, err := s.client.Do(r)
	if err != nil {
		s.t.Fatalf("%s %s: %v", method, path, err)
	}
	defer reply.Body.Close()
	text, err := io.ReadAll(reply.Body)
	if err != nil {
		s.t.Fatalf("%s %s: %v", method, path, err)
	}
	return response{reply.StatusCode, reply.Header, text}
}

func (s *served) get(path string, headers ...string) response {
	s.t.Helper()
	return s.request(http.MethodGet, path, "", headers...)
}

func (s *served) post(path, body string, headers ...string) response {
	s.t.Helper()
	return s.request(http.MethodPost, path, body, headers...)
}

// as reads a reply of that status into a value.
func as[T any](t testing.TB, r response, status int) T {
	t.Helper()
	var v T
	if r.status != status {
		t.Fatalf("status %d, want %d: %s", r.status, status, r.body)
	}
	if err := json.NewDecoder(bytes.NewReader(r.body)).Decode(&v); err != nil {
		t.Fatalf("%v: %s", err, r.body)
	}
	return v
}

// told is a refusal as it is read.
type told struct {
	Error struct {
		Code, Message, Remedy string
		Known                 []string
		Report                commandReport
	} `json:"error"`
}

// refused reads a refusal, which must have that status and code.
func refused(t testing.TB, r response, status int, code string) told {
	t.Helper()
	e := as[told](t, r, status)
	if e.Error.Code != code || e.Error.Message == "" {
		t.Fatalf("code %q, want %q: %s", e.Error.Code, code, r.body)
	}
	return e
}

func tokenFile(t testing.TB, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "token")
	writeFile(t, path, text, 0o600)
	return path
}
