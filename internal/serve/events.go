package serve

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ebb-offload/ebb/internal/control"
	"github.com/ebb-offload/ebb/internal/node"
)

// Limits of events.
const (
	maxReaders   = 32       // who follow the events at the same time
	readerRoom   = 256      // events that wait for one of them
	keptEvents   = 256      // for those that come back
	maxEvent     = 32 << 10 // bytes of one; a longer one goes without its outcome
	heartbeat    = 15 * time.Second
	findEvery    = 2 * time.Second // how soon a new rank is followed
	writePatient = 10 * time.Second
)

// operation is what a rank is at.
type operation struct {
	Name    string // pause, resume; of a waiting one what was asked for
	Waiting bool   // for a safe point
	Bytes   uint64
	Total   uint64
}

// item is an event as it is sent.
type item struct {
	seq  uint64 // 0: of progress, which is not told again
	data []byte // one JSON object
}

// reader is one who follows the events.
type reader struct {
	items chan item
	lost  uint64 // did not fit since the reader was last told; hub.mu
}

// hub takes the events of all ranks and gives them to all readers. A reader that is too slow loses
// events and is told how many; it holds up nobody.
type hub struct {
	run     string               // begins the ids of this server's events
	counted func(control.Event)  // hears of every event, one at a time
	mu      sync.Mutex           // guards what follows, and is held while counted runs
	seq     uint64               // of the latest event
	kept    []item               // the latest, oldest first
	readers map[*reader]struct{} //
	now     map[string]operation // by socket: ranks that are at something
	dropped uint64               // events that readers did not get, and that ranks said were lost
	closed  bool                 // no more readers
}

func newHub(counted func(control.Event)) *hub {
	return &hub{
		run: strconv.FormatInt(time.Now().UnixNano(), 36), counted: counted,
		readers: map[*reader]struct{}{}, now: map[string]operation{},
	}
}

// publish takes one event of a rank.
func (h *hub) publish(socket string, e control.Event) {
	data, err := json.Marshal(e)
	if len(data) > maxEvent {
		e.Outcome, e.Tags, e.Error = nil, nil, cut(e.Error, maxName)
		data, err = json.Marshal(e)
	}
	if err != nil {
		return // an outcome that is no JSON: the client has checked that it is
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.counted(e)
	switch e.Kind {
	case control.EventAsked:
		h.now[socket] = operation{Name: e.Operation, Waiting: true}
	case control.EventBegin, control.EventProgress:
		h.now[socket] = operation{Name: e.Operation, Bytes: e.Bytes, Total: e.Total}
	case control.EventEnd, control.EventWithdraw, control.EventExit:
		delete(h.now, socket)
	case control.EventLost:
		h.dropped += e.Lost
		delete(h.now, socket) // its end may be among them
	}
	it := item{data: data}
	if e.Kind != control.EventProgress {
		h.seq++
		it.seq = h.seq
		if len(h.kept) == keptEvents {
			h.kept = append(h.kept[:0], h.kept[1:]...)
		}
		h.kept = append(h.kept, it)
	}
	for r := range h.readers {
		select {
		case r.items <- it:
		default:
			r.lost++
			h.dropped++
		}
	}
}

// gone forgets what a rank was at that is followed no longer.
func (h *hub) gone(socket string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.now, socket)
}

// busy is what the ranks are at, by socket, and how many events were lost.
func (h *hub) busy() (now map[string]operation, dropped uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now = make(map[string]operation, len(h.now))
	for socket, o := range h.now {
		now[socket] = o
	}
	return now, h.dropped
}

// join begins to follow. since is the id of the last event that a reader who comes back has seen: what
// came after it and is still kept comes first, and what is not counts as lost. Who is new gets the recent
// ones first, as many as are wanted.
func (h *hub) join(since string, recent int) (*reader, *refusal) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.closed:
		return nil, stopping()
	case len(h.readers) >= maxReaders:
		return nil, refuse(http.StatusServiceUnavailable, codeBusy, "try again later", "%d readers follow the events already", len(h.readers))
	}
	r := &reader{items: make(chan item, readerRoom+keptEvents)}
	run, number, _ := strings.Cut(since, "-")
	if seq, err := strconv.ParseUint(number, 10, 64); err == nil && run == h.run && seq < h.seq {
		if oldest := h.seq - uint64(len(h.kept)); seq < oldest {
			r.lost = oldest - seq
		}
		for _, it := range h.kept {
			if it.seq > seq {
				r.items <- it
			}
		}
	} else {
		for _, it := range h.kept[max(0, len(h.kept)-recent):] {
			r.items <- it
		}
	}
	h.readers[r] = struct{}{}
	return r, nil
}

func (h *hub) leave(r *reader) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, joined := h.readers[r]; joined {
		delete(h.readers, r)
		close(r.items)
	}
}

// close ends all readers.
func (h *hub) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	for r := range h.readers {
		delete(h.readers, r)
		close(r.items)
	}
}

// missed is how many events a reader has lost since it was last asked.
func (h *hub) missed(r *reader) uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := r.lost
	r.lost = 0
	return n
}

// text is an event in the form of the stream.
func (h *hub) text(it item) string {
	if it.seq == 0 {
		return fmt.Sprintf("data: %s\n\n", it.data)
	}
	return fmt.Sprintf("id: %s-%d\ndata: %s\n\n", h.run, it.seq, it.data)
}

// events answers with a stream of server-sent events, one for each event of a rank.
func (s *Server) events(w http.ResponseWriter, r *http.Request) *refusal {
	q := queryOf(r, "recent")
	recent := q.number("recent", 0, keptEvents)
	if q.wrong != nil {
		return q.wrong
	}
	reader, refused := s.hub.join(r.Header.Get("Last-Event-ID"), recent)
	if refused != nil {
		return refused
	}
	defer s.hub.leave(reader)
	out := http.NewResponseController(w)
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	w.Header().Set("X-Accel-Buffering", "no") // proxies pass it on at once
	send := func(text string) error {
		// A reader that takes nothing is not waited for longer than this.
		if err := out.SetWriteDeadline(time.Now().Add(writePatient)); err != nil {
			return err
		}
		if _, err := w.Write([]byte(text)); err != nil {
			return err
		}
		return out.Flush()
	}
	if send(": the events of this node's ranks\nretry: 2000\n\n") != nil {
		return nil
	}
	beat := time.NewTicker(heartbeat)
	defer beat.Stop()
	for {
		if n := s.hub.missed(reader); n > 0 {
			lost, _ := json.Marshal(control.Event{V: control.Version, Time: time.Now().UTC(), Kind: control.EventLost, Lost: n})
			if send(fmt.Sprintf("data: %s\n\n", lost)) != nil {
				return nil
			}
		}
		select {
		case it, open := <-reader.items:
			if !open || send(s.hub.text(it)) != nil {
				return nil
			}
		case <-beat.C:
			if send(":\n\n") != nil {
				return nil
			}
		case <-r.Context().Done():
			return nil
		}
	}
}

// follow subscribes to every rank that it finds, until the context ends. It returns when all its
// subscriptions have ended. Ranks are looked for when there may be another one: to ask them wakes each.
func (s *Server) follow(ctx context.Context) {
	var (
		watchers sync.WaitGroup
		mu       sync.Mutex
		followed = map[string]bool{} // by socket
		sockets  []string            // that there were at the latest search
		settled  bool                // it found all, and all of them are still followed
	)
	defer watchers.Wait()
	every := time.NewTicker(findEvery)
	defer every.Stop()
	for {
		now := s.node.Sockets()
		mu.Lock()
		again := !settled || !slices.Equal(now, sockets)
		sockets, settled = now, true
		mu.Unlock()
		if again {
			d := s.view.search()
			s.findings.say(d.err)
			if d.err != nil || len(d.silent) > 0 {
				mu.Lock()
				settled = false
				mu.Unlock()
			}
			for _, rank := range d.ranks {
				mu.Lock()
				known := followed[rank.Socket]
				followed[rank.Socket] = true
				mu.Unlock()
				if known {
					continue
				}
				watchers.Go(func() {
					s.watch(ctx, rank)
					mu.Lock()
					delete(followed, rank.Socket)
					settled = false
					mu.Unlock()
				})
			}
		}
		select {
		case <-every.C:
		case <-ctx.Done():
			return
		}
	}
}

func (s *Server) watch(ctx context.Context, rank node.Rank) {
	defer s.hub.gone(rank.Socket)
	s.node.Watch(ctx, rank, func(e control.Event) { s.hub.publish(rank.Socket, e) })
}

// cut is a text of at most so many bytes, without half a character at its end.
func cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "…"
}
