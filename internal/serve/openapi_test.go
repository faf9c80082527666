package serve

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ebb-offload/ebb/internal/control"
	"github.com/ebb-offload/ebb/internal/node"
	"github.com/ebb-offload/ebb/internal/swap"
	"github.com/ebb-offload/ebb/internal/testutil"
)

// schema is as much of a schema as docs/serve.openapi.json uses.
type schema struct {
	Ref        string            `json:"$ref"`
	Type       any               `json:"type"` // a word, or a list of them
	Properties map[string]schema `json:"properties"`
	Required   []string          `json:"required"`
	More       *bool             `json:"additionalProperties"`
	Items      *schema           `json:"items"`
	MaxItems   int               `json:"maxItems"`
	Enum       []string          `json:"enum"`
	AnyOf      []schema          `json:"anyOf"`
}

// described is docs/serve.openapi.json.
type described struct {
	Paths map[string]map[string]struct {
		Responses map[string]struct {
			Content map[string]struct{ Schema *schema }
		}
		RequestBody *struct {
			Content map[string]struct{ Schema *schema }
		}
	}
	Components struct{ Schemas map[string]schema }
}

func readDescription(t testing.TB) described {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(testutil.Root(t), "docs/serve.openapi.json"))
	if err != nil {
		t.Fatal(err)
	}
	var d described
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	return d
}

// fits returns what in a value is not as the schema says, or "".
func (d described) fits(s schema, v any, at string) string {
	if s.Ref != "" {
		name := strings.TrimPrefix(s.Ref, "#/components/schemas/")
		to, found := d.Components.Schemas[name]
		if !found {
			return at + ": no schema " + name
		}
		return d.fits(to, v, at)
	}
	if len(s.AnyOf) > 0 {
		var all []string
		for _, one := range s.AnyOf {
			wrong := d.fits(one, v, at)
			if wrong == "" {
				return ""
			}
			all = append(all, wrong)
		}
		return strings.Join(all, "; and ")
	}
	kind := map[bool]string{true: "null"}[v == nil]
	switch x := v.(type) {
	case map[string]any:
		kind = "object"
		for _, name := range s.Required {
			if _, there := x[name]; !there {
				return fmt.Sprintf("%s.%s is missing", at, name)
			}
		}
		for name, member := range x {
			of, known := s.Properties[name]
			if !known && s.More != nil && !*s.More {
				return fmt.Sprintf("%s.%s is not described", at, name)
			}
			if known {
				if wrong := d.fits(of, member, at+"."+name); wrong != "" {
					return wrong
				}
			}
		}
	case []any:
		kind = "array"
		if s.MaxItems > 0 && len(x) > s.MaxItems {
			return fmt.Sprintf("%s has %d items, at most %d are described", at, len(x), s.MaxItems)
		}
		for i, item := range x {
			if s.Items == nil {
				break
			}
			if wrong := d.fits(*s.Items, item, fmt.Sprintf("%s[%d]", at, i)); wrong != "" {
				return wrong
			}
		}
	case string:
		kind = "string"
		if len(s.Enum) > 0 && !slices.Contains(s.Enum, x) {
			return fmt.Sprintf("%s is %q", at, x)
		}
	case bool:
		kind = "boolean"
	case float64:
		kind = "number"
		if x == float64(int64(x)) && (s.Type == "integer") {
			kind = "integer"
		}
	}
	if list, several := s.Type.([]any); several && slices.Contains(list, any(kind)) || s.Type == kind {
		return ""
	}
	return fmt.Sprintf("%s is a %s, described as %v", at, kind, s.Type)
}

// wantDescribed checks a reply against the description of its path, method and status.
func (d described) wantDescribed(t *testing.T, method, path string, r response) {
	t.Helper()
	path, _, _ = strings.Cut(path, "?")
	of, found := d.Paths[path][strings.ToLower(method)]
	if !found {
		t.Errorf("%s %s is not described", method, path)
		return
	}
	to, found := of.Responses[fmt.Sprint(r.status)]
	if !found {
		t.Errorf("%s %s: status %d is not described", method, path, r.status)
		return
	}
	kind, _, _ := strings.Cut(r.header.Get("Content-Type"), ";")
	content, found := to.Content[kind]
	if !found {
		t.Errorf("%s %s: %s is not described", method, path, kind)
		return
	}
	if content.Schema == nil {
		return
	}
	var v any
	if err := json.Unmarshal(r.body, &v); err != nil {
		t.Fatal(err)
	}
	if wrong := d.fits(*content.Schema, v, "reply"); wrong != "" {
		t.Errorf("%s %s, status %d: %s\n%s", method, path, r.status, wrong, r.body)
	}
}

func TestTheDescriptionHasAllRoutes(t *testing.T) {
	d := readDescription(t)
	s := serving(t, newFake(0), nil)
	for path, methods := range s.routes {
		for method := range methods {
			if _, found := d.Paths[path][strings.ToLower(method)]; !found {
				t.Errorf("%s %s is not described", method, path)
			}
		}
	}
	for path, methods := range d.Paths {
		for method := range methods {
			if _, found := s.routes[path][strings.ToUpper(method)]; !found {
				t.Errorf("%s %s is described, and nothing is there", method, path)
			}
		}
	}
}

func TestRepliesAreAsDescribed(t *testing.T) {
	d := readDescription(t)
	f := newFake(3)
	parked(&f.ranks[0].Status, 3, 4)
	f.ranks[0].Status.LastPause = &node.LastOperation{Bytes: 7, Seconds: 1, Phases: map[string]float64{"move": 1}}
	f.ranks[1].Status.LastResume = &node.LastOperation{Error: "disk full"}
	f.silent = []node.Silent{{Who: control.Who{Role: "critic", Rank: "8", PID: 9}, Socket: "/x", Why: "it is stopped"}}
	f.do = func(ctx context.Context, verb string, rank node.Rank, _ string) node.Outcome {
		switch {
		case rank.PID == 1000 && verb == "resume":
			return failure(node.Failed, "disk full")
		case rank.PID == 9:
			<-ctx.Done()
			return node.Outcome{State: node.Late}
		}
		return done(1)
	}
	s := serving(t, f, func(o *Options) { o.Swap = handsOver(nil) })
	for range f.ranks {
		<-f.watched
	}
	f.emit(t, 0, control.Event{Kind: control.EventBegin, Operation: "pause", Total: 5})
	for _, r := range []struct {
		method, path, body string
		status             int
	}{
		{"GET", "/", "", 200},
		{"GET", "/healthz", "", 200},
		{"GET", "/metrics", "", 200},
		{"GET", "/v1/node", "", 200},
		{"GET", "/v1/node?x", "", 400},
		{"GET", "/v1/ranks?limit=2", "", 200},
		{"GET", "/v1/ranks?offset=2", "", 200},
		{"POST", "/v1/pause", `{"roles":["actor"]}`, 200},
		{"POST", "/v1/pause", `{"timeout_s":0.1}`, 504},
		{"POST", "/v1/resume", `{"roles":["actor"]}`, 409},
		{"POST", "/v1/resume", `{"ranks":["0"]}`, 500},
		{"POST", "/v1/pause", `{"roles":["nobody"]}`, 400},
		{"POST", "/v1/swap", `{"to":"train"}`, 200},
		{"POST", "/v1/swap", `{"to":"x"}`, 400},
	} {
		reply := s.request(r.method, r.path, r.body)
		if reply.status != r.status {
			t.Errorf("%s %s %s: status %d, want %d: %s", r.method, r.path, r.body, reply.status, r.status, reply.body)
		}
		d.wantDescribed(t, r.method, r.path, reply)
	}
}

// handsOver is a hand-over that ends with an error, or well.
func handsOver(err error) HandOver {
	return func(_ context.Context, to string, ranks []node.Rank, _ []node.Silent, _ []string, _ time.Duration, tell func(swap.Step)) (swap.Report, error) {
		r := swap.Report{To: to, OK: err == nil, Moved: true, Seconds: 1, Late: false, Stands: "2 ranks paused"}
		for i := range ranks {
			r.Steps = append(r.Steps, swap.Step{Step: swap.StepRank, What: fmt.Sprint(i), State: "paused", OK: i > 0 || err == nil, Already: i > 1, Bytes: 5})
		}
		r.Steps = append(r.Steps,
			swap.Step{Step: swap.StepEngine, What: "http://127.0.0.1:1", Kind: "vllm", State: "awake", OK: true},
			swap.Step{Step: swap.StepMemory, What: "GPU 0", State: "free", OK: true, Bytes: 6, Total: 7})
		for _, step := range r.Steps {
			tell(step)
		}
		return r, err
	}
}

func TestAHandOverIsSummedUp(t *testing.T) {
	d := readDescription(t)
	s := serving(t, newFake(20), func(o *Options) { o.Swap = handsOver(nil) })
	r := as[swapReport](t, s.post("/v1/swap", `{"to":"rollout"}`), http.StatusOK)
	if !r.OK || r.Ranks != (swapCounts{Total: 20, Moved: 2, Already: 18, Bytes: 10}) || len(r.Engines) != 1 || len(r.Devices) != 1 || len(r.Failed) != 0 {
		t.Errorf("%+v", r)
	}
	s = serving(t, newFake(3), func(o *Options) { o.Swap = handsOver(fmt.Errorf("rank 0 is late")) })
	reply := s.post("/v1/swap", `{"to":"rollout"}`)
	if e := refused(t, reply, http.StatusConflict, codeHalfWay); !strings.Contains(e.Error.Remedy, `"train"`) {
		t.Errorf("%+v", e)
	}
	d.wantDescribed(t, "POST", "/v1/swap", reply)

	refused(t, serving(t, newFake(1), nil).post("/v1/swap", `{"to":"train"}`), http.StatusConflict, codeNoEngine)
}

// Two hand-overs at the same time would undo each other. The one under way can be joined by its key.
func TestOneHandOverAtATime(t *testing.T) {
	begun, goOn := make(chan struct{}), make(chan struct{})
	well := handsOver(nil)
	s := serving(t, newFake(1), func(o *Options) {
		o.Swap = func(ctx context.Context, to string, ranks []node.Rank, silent []node.Silent, tags []string, timeout time.Duration, tell func(swap.Step)) (swap.Report, error) {
			close(begun)
			<-goOn
			return well(ctx, to, ranks, silent, tags, timeout, tell)
		}
	})
	e := refused(t, s.post("/v1/swap", `{"to":"train","timeout_s":2}`, "Idempotency-Key", "k"), http.StatusGatewayTimeout, codeUnderWay)
	if !strings.Contains(e.Error.Remedy, "same key") {
		t.Errorf("%+v", e)
	}
	<-begun
	refused(t, s.post("/v1/swap", `{"to":"rollout"}`), http.StatusConflict, codeSwapping)
	close(goOn)
	if r := as[swapReport](t, s.post("/v1/swap", `{"to":"train"}`, "Idempotency-Key", "k"), http.StatusOK); !r.OK {
		t.Errorf("%+v", r)
	}
}

// One of another process, say ebb swap, is told like one of this server.
func TestAHandOverOfAnotherProcessIsNotWorkedAgainst(t *testing.T) {
	d := readDescription(t)
	s := serving(t, newFake(1), func(o *Options) {
		o.Swap = func(_ context.Context, to string, _ []node.Rank, _ []node.Silent, _ []string, _ time.Duration, _ func(swap.Step)) (swap.Report, error) {
			other := swap.Holder{PID: 4711, By: "ebb swap", To: "train", Since: time.Now()}
			return swap.Report{To: to, HeldBy: &other}, &swap.HeldError{What: "the ranks of job j", Holder: other}
		}
	})
	reply := s.post("/v1/swap", `{"to":"rollout"}`)
	if e := refused(t, reply, http.StatusConflict, codeSwapping); !strings.Contains(e.Error.Message, "ebb swap, process 4711, hands over to train since ") {
		t.Errorf("%+v", e)
	}
	d.wantDescribed(t, "POST", "/v1/swap", reply)
}
