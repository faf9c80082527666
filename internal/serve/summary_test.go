package serve

import (
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/ebb-offload/ebb/internal/node"
)

func parked(s *node.Status, host, disk uint64) {
	s.Active, s.Paused = 0, host+disk
	s.Tags = []node.TagStatus{{Tag: "weights", Host: host, Disk: disk + 2, InHost: host, InFiles: disk, Skipped: 2}}
}

func TestTheNodeIsSummedUp(t *testing.T) {
	f := newFake(5)
	parked(&f.ranks[0].Status, 3, 4)
	f.ranks[1].Status = node.Status{}
	f.ranks[2].Status.Paused = 5
	f.ranks[2].Status.Tags = append(f.ranks[2].Status.Tags, node.TagStatus{Tag: "kv", Discarded: 5})
	f.ranks[3].Err = "no answer in time"
	f.ranks[0].Status.Unmanaged.Total, f.ranks[0].Status.Staging, f.ranks[0].Status.Host.Held, f.ranks[0].Status.Disk.Written = 11, 12, 13, 14
	f.ranks[0].Status.LastPause = &node.LastOperation{Bytes: 7, Seconds: 2, SkippedZero: 1}
	f.ranks[4].Status.LastPause = &node.LastOperation{Bytes: 8, Seconds: 3, SkippedSame: 2, Error: "disk full"}
	s := serving(t, f, nil)
	n := as[nodeReply](t, s.get("/v1/node"), http.StatusOK)
	if n.Ranks != (stateCounts{Total: 5, Parked: 1, Empty: 1, Partly: 1, Silent: 1, Resident: 1}) {
		t.Errorf("ranks %+v", n.Ranks)
	}
	if n.Bytes != (tierBytes{Device: 2 << 30, Host: 3, Disk: 4, Skipped: 2, Discarded: 5}) || n.Unmanaged != 11 || n.Staging != 12 || n.HostHeld != 13 || n.Written != 14 {
		t.Errorf("%+v", n)
	}
	if p := n.LastPause; p.Ranks != 2 || p.Bytes != 15 || p.Skipped != 3 || p.MaxSeconds != 3 || p.Slowest[0].Rank != "actor cell 0 rank 4" || p.Slowest[0].State != "failed" {
		t.Errorf("%+v", p)
	}
	if n.FaultCount != 1 || !strings.Contains(n.Faults[0].Message, "disk full") || n.Silent[0].Message != "no answer in time" || n.Version != "1.2.3" {
		t.Errorf("%+v", n)
	}
}

func TestRanksComeInPages(t *testing.T) {
	f := newFake(7)
	f.silent = []node.Silent{{Socket: "/run/x.sock", Why: "it is stopped"}}
	s := serving(t, f, nil)
	var names []string
	path := "/v1/ranks?limit=3"
	for range 3 {
		r := as[ranksReply](t, s.get(path), http.StatusOK)
		if r.Total != 8 {
			t.Fatalf("%+v", r)
		}
		for _, rank := range r.Ranks {
			names = append(names, rank.Name+" "+rank.State)
		}
		if r.Next == nil {
			break
		}
		path = "/v1/ranks?limit=3&offset=" + string(rune('0'+*r.Next))
	}
	if len(names) != 8 || names[0] != "actor cell 0 rank 0 resident" || names[7] != "pid 0 silent" {
		t.Errorf("%q", names)
	}
	for _, path := range []string{"/v1/ranks?offset=100", "/v1/ranks?limit=0"} {
		if r := as[ranksReply](t, s.get(path), http.StatusOK); len(r.Ranks) != 0 || r.Total != 8 {
			t.Errorf("%s: %+v", path, r)
		}
	}
}

// However many ask at the same time, the ranks are asked once; after a command they are asked anew.
func TestLooksAreShared(t *testing.T) {
	f := newFake(1)
	f.hold = make(chan struct{})
	s := serving(t, f, nil)
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() { s.get("/v1/node?timeout_s=60") }) // however long the last of them takes to come
	}
	for waiting := 0; waiting < 20; { // all are in the server
		waiting = len(s.requests)
	}
	close(f.hold)
	all.Wait()
	f.mu.Lock()
	before := f.looks
	f.mu.Unlock()
	if before > 3 { // some may have come after the look
		t.Errorf("the ranks were asked %d times", before)
	}
	as[commandReport](t, s.post("/v1/pause", "{}"), http.StatusOK)
	f.mu.Lock()
	parked(&f.ranks[0].Status, 0, 1)
	f.mu.Unlock()
	s.view.stale()
	if n := as[nodeReply](t, s.get("/v1/node"), http.StatusOK); n.Ranks.Parked != 1 {
		t.Errorf("%+v", n.Ranks)
	}
}

// A request's deadline holds while a look does not end: with what was last known, or with a refusal.
func TestALookIsInTimeOrOld(t *testing.T) {
	f := newFake(1)
	f.hold = make(chan struct{})
	s := serving(t, f, nil)
	refused(t, s.get("/v1/node?timeout_s=0.01"), http.StatusGatewayTimeout, codeLate)
	close(f.hold)
	as[nodeReply](t, s.get("/v1/node"), http.StatusOK)
	f.mu.Lock()
	f.hold = make(chan struct{})
	f.mu.Unlock()
	s.view.stale()
	n := as[nodeReply](t, s.get("/v1/node?timeout_s=0.01"), http.StatusOK)
	if n.Ranks.Total != 1 || n.Age <= 0 {
		t.Errorf("%+v", n)
	}
	close(f.hold)
}

func TestPlacesThatCannotBeLookedAtAreTold(t *testing.T) {
	f := newFake(1)
	f.err = errors.New("/scratch: cannot be looked at")
	s := serving(t, f, nil)
	if n := as[nodeReply](t, s.get("/v1/node"), http.StatusOK); !strings.Contains(n.Error, "/scratch") || n.Ranks.Total != 1 {
		t.Errorf("%+v", n)
	}
	as[commandReport](t, s.post("/v1/pause", "{}"), http.StatusOK)
	f.mu.Lock()
	f.ranks = nil
	f.mu.Unlock()
	s.view.stale()
	for _, r := range []response{s.get("/v1/node"), s.post("/v1/pause", "{}")} {
		if e := refused(t, r, http.StatusInternalServerError, codeInternal); !strings.Contains(e.Error.Message, "/scratch") {
			t.Errorf("%+v", e)
		}
	}
}
