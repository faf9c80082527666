package serve

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/ebb-offload/ebb/internal/control"
)

// stream is a reader of the events.
type stream struct {
	t     *testing.T
	lines *bufio.Scanner
	close func()
	id    string // of the latest event
}

func (s *served) stream(t *testing.T, headers ...string) *stream {
	t.Helper()
	return s.streamOf(t, "/v1/events", headers...)
}

func (s *served) streamOf(t *testing.T, path string, headers ...string) *stream {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.base+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	reply, err := s.client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	if got := reply.Header.Get("Content-Type"); reply.StatusCode != http.StatusOK || !strings.HasPrefix(got, "text/event-stream") {
		t.Fatalf("status %d, %s", reply.StatusCode, got)
	}
	e := &stream{t: t, lines: bufio.NewScanner(reply.Body), close: func() { cancel(); _ = reply.Body.Close() }}
	t.Cleanup(e.close)
	if !e.lines.Scan() || !strings.HasPrefix(e.lines.Text(), ":") { // the reader has joined
		t.Fatalf("the stream begins with %q", e.lines.Text())
	}
	return e
}

// next is the next event; ok is false at the end.
func (e *stream) next() (event control.Event, ok bool) {
	e.t.Helper()
	for e.lines.Scan() {
		line := e.lines.Text()
		if id, found := strings.CutPrefix(line, "id: "); found {
			e.id = id
		}
		if data, found := strings.CutPrefix(line, "data: "); found {
			if err := json.Unmarshal([]byte(data), &event); err != nil {
				e.t.Fatalf("%v: %s", err, data)
			}
			return event, true
		}
	}
	return event, false
}

func TestEventsOfAllRanksAreTold(t *testing.T) {
	f := newFake(2)
	s := serving(t, f, nil)
	<-f.watched
	<-f.watched
	a, b := s.stream(t), s.stream(t)
	f.emit(t, 0, control.Event{Kind: control.EventBegin, Operation: "pause", Total: 9})
	f.emit(t, 1, control.Event{Kind: control.EventEnd, Operation: "pause", Error: "line\nbreak"})
	for _, e := range []*stream{a, b} {
		first, _ := e.next()
		second, _ := e.next()
		if first.Kind != control.EventBegin || first.Total != 9 || first.Who.Rank != "0" || second.Who.Rank != "1" || second.Error != "line\nbreak" {
			t.Errorf("%+v, %+v", first, second)
		}
	}
	// Who comes back hears what it has missed.
	a.close()
	f.emit(t, 0, control.Event{Kind: control.EventProgress, Bytes: 2}) // not told again
	f.emit(t, 0, control.Event{Kind: control.EventPhase, Bytes: 3})
	back := s.stream(t, "Last-Event-ID", a.id)
	if e, _ := back.next(); e.Bytes != 3 {
		t.Errorf("%+v", e)
	}
	// Who is new hears the recent ones when that is asked for.
	fresh := s.streamOf(t, "/v1/events?recent=2")
	for _, want := range []string{control.EventEnd, control.EventPhase} {
		if e, _ := fresh.next(); e.Kind != want {
			t.Errorf("%+v, want %s", e, want)
		}
	}
	// An id of another server, or none at all, begins now.
	for _, id := range []string{"x-1", "nonsense", a.id + "0", "-", strings.Repeat("9", 100)} {
		other := s.stream(t, "Last-Event-ID", id)
		f.emit(t, 0, control.Event{Kind: control.EventPhase, Phase: id[:1]})
		if e, _ := other.next(); e.Phase != id[:1] {
			t.Errorf("id %q: %+v", id, e)
		}
	}
}

func TestTheEndEndsStreams(t *testing.T) {
	s := serving(t, newFake(0), nil)
	e := s.stream(t)
	s.stop()
	if event, ok := e.next(); ok {
		t.Errorf("%+v", event)
	}
}

// A reader that does not read holds up nobody, and is told how many events it lost.
func TestASlowReaderLosesEventsAndIsTold(t *testing.T) {
	h := newHub(func(control.Event) {})
	slow, refused := h.join("", 0)
	if refused != nil {
		t.Fatal(refused)
	}
	const all = readerRoom + keptEvents + 10
	for i := range all {
		h.publish("/s", control.Event{Kind: control.EventPhase, Bytes: uint64(i)})
	}
	if got := len(slow.items); got != readerRoom+keptEvents {
		t.Errorf("%d events wait", got)
	}
	if n := h.missed(slow); n != 10 {
		t.Errorf("%d are lost, want 10", n)
	}
	if n := h.missed(slow); n != 0 {
		t.Errorf("%d are lost again", n)
	}
	if _, dropped := h.busy(); dropped != 10 {
		t.Errorf("%d are counted", dropped)
	}
	// Events that are not kept any longer are lost to who comes back, too.
	back, refused := h.join(fmt.Sprintf("%s-%d", h.run, 5), 0)
	if refused != nil {
		t.Fatal(refused)
	}
	if n := h.missed(back); n != all-keptEvents-5 || len(back.items) != keptEvents {
		t.Errorf("%d lost, %d told again", n, len(back.items))
	}
	// What a rank says that it lost is counted.
	h.publish("/s", control.Event{Kind: control.EventLost, Lost: 4})
	if _, dropped := h.busy(); dropped != 15 { // one more for the slow reader
		t.Errorf("%d are counted", dropped)
	}
}

func TestReadersAreBounded(t *testing.T) {
	h := newHub(func(control.Event) {})
	var last *reader
	for range maxReaders {
		r, refused := h.join("", 0)
		if refused != nil {
			t.Fatal(refused)
		}
		last = r
	}
	if _, refused := h.join("", 0); refused == nil || refused.Code != codeBusy {
		t.Errorf("one more: %v", refused)
	}
	h.leave(last)
	if _, refused := h.join("", 0); refused != nil {
		t.Error(refused)
	}
	h.close()
	if _, refused := h.join("", 0); refused == nil || refused.Code != codeStopping {
		t.Errorf("after the end: %v", refused)
	}
	h.leave(last) // again
}

// Clients that are too many and never close would keep others from their turn.
func TestWhoIsRefusedForBeingTooManyIsHungUpOn(t *testing.T) {
	s := serving(t, newFake(1), nil)
	for range maxReaders {
		s.stream(t)
	}
	refused(t, s.get("/v1/events"), http.StatusServiceUnavailable, codeBusy)
	c, err := net.Dial("tcp", s.listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, "GET /v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(c); err != nil || !strings.HasPrefix(string(text), "HTTP/1.1 503 ") { // to its end: the server closes
		t.Errorf("%v: %s", err, text)
	}
	s.get("/healthz")
}

func TestALongEventGoesWithoutItsOutcome(t *testing.T) {
	h := newHub(func(control.Event) {})
	r, _ := h.join("", 0)
	h.publish("/s", control.Event{Kind: control.EventEnd, Outcome: json.RawMessage(`"` + strings.Repeat("x", maxEvent) + `"`), Error: strings.Repeat("y", maxEvent)})
	if it := <-r.items; len(it.data) > 2048 || !strings.Contains(string(it.data), `"end"`) {
		t.Errorf("%d bytes: %.200s", len(it.data), it.data)
	}
}

func TestStatesFollowEvents(t *testing.T) {
	f := newFake(1)
	s := serving(t, f, nil)
	<-f.watched
	for _, step := range []struct {
		event control.Event
		want  string
	}{
		{control.Event{Kind: control.EventAsked, Operation: "pause"}, stateWaiting},
		{control.Event{Kind: control.EventWithdraw, Operation: "pause"}, stateResident},
		{control.Event{Kind: control.EventBegin, Operation: "pause", Total: 10}, stateMoving},
		{control.Event{Kind: control.EventProgress, Operation: "pause", Bytes: 4, Total: 10}, stateMoving},
		{control.Event{Kind: control.EventEnd, Operation: "pause"}, stateResident},
		{control.Event{Kind: control.EventBegin, Operation: "resume"}, stateMoving},
		{control.Event{Kind: control.EventLost, Lost: 1}, stateResident},
	} {
		f.emit(t, 0, step.event)
		r := as[ranksReply](t, s.get("/v1/ranks"), http.StatusOK).Ranks[0]
		if r.State != step.want {
			t.Errorf("after %s the rank is %s, want %s", step.event.Kind, r.State, step.want)
		}
		if step.event.Kind == control.EventProgress && (r.Operation == nil || r.Operation.Bytes != 4 || r.Operation.Total != 10) {
			t.Errorf("operation %+v", r.Operation)
		}
	}
}

// A new rank is followed, and one that went and came back again.
func TestNewRanksAreFollowed(t *testing.T) {
	f := newFake(1)
	serving(t, f, nil)
	if socket := <-f.watched; socket != "/run/0.sock" {
		t.Errorf("%s is watched", socket)
	}
	f.mu.Lock()
	f.ranks = append(f.ranks, newFake(2).ranks[1])
	f.mu.Unlock()
	select {
	case socket := <-f.watched:
		if socket != "/run/1.sock" {
			t.Errorf("%s is watched", socket)
		}
	case <-time.After(time.Minute):
		t.Fatal("the new rank is not watched")
	}
}

// Training processes are not woken by a server that has nothing to ask: they are looked for when there may be
// another one.
func TestRanksThatAreFollowedAreNotGreetedAgain(t *testing.T) {
	f := newFake(2)
	f.listed = make(chan struct{})
	finds := func() int {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.finds
	}
	serving(t, f, nil)
	for range 2 {
		<-f.watched
	}
	for range 2 {
		<-f.listed
	}
	if n := finds(); n != 1 {
		t.Errorf("the ranks were looked for %d times while nothing changed", n)
	}
	another := newFake(3).ranks[2]
	f.mu.Lock()
	f.ranks = append(f.ranks, another)
	f.mu.Unlock()
	var socket string
	for socket == "" {
		select {
		case <-f.listed:
		case socket = <-f.watched:
		}
	}
	if socket != another.Socket || finds() != 2 {
		t.Errorf("%s is followed, after %d looks", socket, finds())
	}
}
