// Package server is the rank's side of the control socket. It lives in somebody's training process, so it
// is small and keeps to itself: no package net and none of Go's network poller, whose descriptors a host
// may close, but one goroutine that polls; bounded memory, whatever others send or do not read; and never
// a wait in Publish, which the engine calls from within a pause.
//
// A host may close descriptors that it does not know. Before each use it is checked that a descriptor
// still means the same file; a connection that does not is given up, and when the listening socket
// or the pipe that wakes the loop does not, the server ends quietly.
//
// The loop alone reads connections, accepts and closes them. Requests are carried out by goroutines,
// which queue their answers; the loop sends them.
package server

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ebb-offload/ebb/internal/control"
	"github.com/ebb-offload/ebb/internal/fd"
)

// Bounds of the server.
const (
	maxConns  = 32
	maxMoves  = 8                      // pauses and resumes under way
	deafTime  = 100 * time.Millisecond // without accepting, after the process had no descriptor for it
	closeTime = time.Second            // that Close waits for the loop
)

// atOnce is how many of each other command are carried out at once; more wait. A read waits for a pause under
// way, and must keep no status from being answered.
var atOnce = map[string]int{control.CmdStatus: 4, control.CmdRead: 2, control.CmdDevices: 2}

// Slots is how many descriptors a server has at once.
const Slots = 3 + maxConns

// Options say what a server serves.
type Options struct {
	Socket string // path
	Hello  control.Hello
	// Handle carries out a request, but for subscriptions. Each runs on a goroutine of its own.
	Handle func(*Ask) Answer
	// Note, if it is not nil, is told of each descriptor, by a slot below Slots, and with fd -1 when it is
	// closed. A forked child closes them: it must not keep a connection open, or the socket.
	Note func(slot, fd int, dev, ino uint64)
	// Broken, if it is not nil, hears of a defect that has ended the server.
	Broken func(defect any)
}

// Server is a control socket that is served.
type Server struct {
	options  Options
	listener *listener
	wakeup   [2]descriptor // a pipe: the loop polls the first, wake writes to the second
	buf      []byte        // of the loop
	deaf     time.Time     // until when no connection is accepted
	ended    chan struct{} // closed by the loop when it ends

	listening atomic.Int32 // connections that subscribed
	slots     map[string]chan struct{}

	mu      sync.Mutex // guards the fields below, and those of conns and calls that say so
	conns   [maxConns]*conn
	calls   calls
	woken   bool // there is a byte in the pipe
	closing bool
}

// Start makes the socket and serves it until Close.
func Start(o Options) (*Server, error) {
	s := &Server{
		options: o, buf: make([]byte, 16<<10), ended: make(chan struct{}), slots: map[string]chan struct{}{},
		calls: calls{under: map[*call]bool{}, byID: map[string]*call{}},
	}
	for cmd, n := range atOnce {
		s.slots[cmd] = make(chan struct{}, n)
	}
	if s.options.Note == nil {
		s.options.Note = func(int, int, uint64, uint64) {}
	}
	if err := s.makeWakeup(); err != nil {
		return nil, fmt.Errorf("make the control socket %s: %w", o.Socket, err)
	}
	l, err := listen(o.Socket)
	if err != nil {
		s.wakeup[0].close()
		s.wakeup[1].close()
		return nil, err
	}
	s.listener = l
	for slot, d := range []descriptor{s.wakeup[0], s.wakeup[1], l.descriptor} {
		s.note(slot, d)
	}
	go s.serve()
	return s, nil
}

func (s *Server) note(slot int, d descriptor) { s.options.Note(slot, d.fd, d.dev, d.ino) }

func (s *Server) makeWakeup() error {
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return err
	}
	var err error
	for i := range ends {
		var e error
		if ends[i], e = fd.AboveStreams(ends[i]); e == nil {
			s.wakeup[i], e = describe(ends[i])
		}
		err = errors.Join(err, e)
	}
	if err != nil {
		for _, end := range ends {
			if end >= 0 {
				_ = unix.Close(end)
			}
		}
	}
	return err
}

// Publish sends an event to all who subscribed. It never waits: for those who do not read it is lost, which
// they are told.
func (s *Server) Publish(e control.Event) {
	if !s.Subscribed() {
		return
	}
	line, err := control.Encode(e)
	if err != nil {
		return // no field can fail to encode
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.conns {
		if c != nil && c.subscribed {
			c.event(line, e.Seq, s.lost)
		}
	}
	s.wake()
}

// Subscribed reports whether anybody listens to events.
func (s *Server) Subscribed() bool { return s.listening.Load() > 0 }

// lost is the event that tells a subscriber what it did not get.
func (s *Server) lost(n, seq uint64) []byte {
	line, _ := control.Encode(control.Event{
		V: control.Version, Time: time.Now(), Seq: seq, Who: s.options.Hello.Who, Kind: control.EventLost, Lost: n,
	})
	return line
}

// Close removes the socket and ends all connections, after what is queued for those who read. It does not
// wait for requests under way; their askers are gone.
func (s *Server) Close() {
	s.listener.remove()
	s.mu.Lock()
	s.closing = true
	s.wake()
	s.mu.Unlock()
	if !s.wakeup[1].ours() { // the loop may sleep for ever
		return
	}
	select {
	case <-s.ended:
	case <-time.After(closeTime):
	}
}

// wake wakes the loop. Called with mu held.
func (s *Server) wake() {
	if s.woken || !s.wakeup[1].ours() {
		return
	}
	_, err := unix.Write(s.wakeup[1].fd, []byte{0})
	s.woken = err == nil
}

// ---- the loop ----------------------------------------------------------------------------

func (s *Server) serve() {
	defer close(s.ended)
	defer s.end()
	defer func() {
		// A defect ends the server, and not the program that it is in.
		if defect := recover(); defect != nil && s.options.Broken != nil {
			s.options.Broken(defect)
		}
	}()
	for {
		set, of, ok := s.watched()
		if !ok {
			return
		}
		if _, err := unix.Poll(set, s.timeout()); err != nil && err != unix.EINTR {
			return
		}
		if set[0].Revents != 0 && !s.rest() {
			return
		}
		if set[1].Revents&unix.POLLIN != 0 {
			s.accept()
		}
		for i, c := range of {
			if revents := set[2+i].Revents; revents != 0 {
				s.serveConn(c, revents)
			}
		}
		s.tidy()
	}
}

// watched is what the loop polls; false: the server is to end. A connection whose descriptor is another file
// by now is given up.
func (s *Server) watched() (set []unix.PollFd, of []*conn, ok bool) {
	if !s.wakeup[0].ours() || !s.wakeup[1].ours() || !s.listener.ours() {
		return nil, nil, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		return nil, nil, false
	}
	set = []unix.PollFd{
		{Fd: int32(s.wakeup[0].fd), Events: unix.POLLIN},
		{Fd: int32(s.listener.fd), Events: unix.POLLIN},
	}
	if time.Now().Before(s.deaf) {
		set[1].Fd = -1
	}
	for _, c := range s.conns {
		switch {
		case c == nil:
		case !c.ours():
			s.drop(c)
		default:
			set = append(set, unix.PollFd{Fd: int32(c.fd), Events: c.wants()})
			of = append(of, c)
		}
	}
	return set, of, true
}

// timeout is how long the loop may sleep, in milliseconds; -1: until something happens.
func (s *Server) timeout() int {
	var next time.Time
	sooner := func(t time.Time) {
		if !t.IsZero() && (next.IsZero() || t.Before(next)) {
			next = t
		}
	}
	sooner(s.deaf)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.conns {
		if c != nil {
			sooner(c.until)
		}
	}
	if next.IsZero() {
		return -1
	}
	return int(max(0, time.Until(next)).Milliseconds()) + 1
}

// rest empties the pipe; false: it is not ours any more.
func (s *Server) rest() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.wakeup[0].ours() {
		return false
	}
	var bytes [16]byte
	for {
		switch n, err := unix.Read(s.wakeup[0].fd, bytes[:]); {
		case err == unix.EINTR:
		case err == unix.EAGAIN:
			s.woken = false
			return true
		case err != nil || n == 0:
			return false
		}
	}
}

// accept takes a connection, if there is one.
func (s *Server) accept() {
	if !s.listener.ours() {
		return
	}
	sock, _, err := unix.Accept4(s.listener.fd, unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
	if err == nil {
		sock, err = fd.AboveStreams(sock)
	}
	switch {
	case err == unix.EMFILE || err == unix.ENFILE || err == unix.ENOMEM || err == unix.ENOBUFS:
		s.deaf = time.Now().Add(deafTime) // it stays there: without this the loop would spin
		return
	case err != nil:
		return
	}
	d, err := describe(sock)
	if err != nil {
		return
	}
	c := &conn{descriptor: d, slot: -1}
	s.mu.Lock()
	defer s.mu.Unlock()
	if fault := s.admit(c); fault != nil {
		if line, err := control.Encode(control.Reply{V: control.Version, Error: fault}); err == nil {
			c.put(line)
			c.send()
		}
		d.close()
		return
	}
	if line, err := control.Encode(s.options.Hello); err == nil {
		c.put(line)
		c.send()
	}
}

// admit gives a connection a slot, or says why it is refused. Called with mu held.
func (s *Server) admit(c *conn) *control.Error {
	uid, err := peer(c.fd)
	if err != nil {
		return control.Invalid("the user at the other end cannot be found out: %v", err)
	}
	if own := os.Geteuid(); uid != own && uid != 0 {
		return control.Invalid("user %d may not command this rank: it belongs to user %d", uid, own)
	}
	for i := range s.conns {
		if s.conns[i] == nil {
			c.slot = i
			s.conns[i] = c
			s.note(3+i, c.descriptor)
			return nil
		}
	}
	return control.Invalid("%d connections are open already: close one", maxConns)
}

func (s *Server) serveConn(c *conn, revents int16) {
	if revents&unix.POLLIN != 0 {
		s.read(c)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if revents&unix.POLLOUT != 0 {
		c.send()
		c.tellLost(s.lost)
	}
	if revents&(unix.POLLHUP|unix.POLLERR|unix.POLLNVAL) != 0 {
		c.broken = true
	}
}

// read takes what has come, once, so that no connection keeps the loop from the others.
func (s *Server) read(c *conn) {
	if !c.ours() {
		return
	}
	n, err := unix.Read(c.fd, s.buf)
	switch {
	case err == unix.EINTR || err == unix.EAGAIN:
		return
	case err != nil:
		s.mu.Lock()
		c.broken = true
		s.mu.Unlock()
		return
	case n == 0:
		s.mu.Lock()
		defer s.mu.Unlock()
		c.eof = true
		if !c.until.IsZero() {
			c.until = time.Time{}
			s.refuse(c, "", control.Invalid("the connection ended in the middle of a request"))
		}
		return
	}
	ended := false
	err = c.lines.feed(s.buf[:n], func(line []byte) {
		ended = true
		s.request(c, line)
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err != nil:
		s.hangUp(c, control.Invalid("%v", err))
	case len(c.lines.part) == 0:
		c.until = time.Time{}
	case ended || c.until.IsZero(): // a line has begun
		c.until = time.Now().Add(patience)
	}
}

// tidy ends the connections that are over, and those whose request does not come to its end.
func (s *Server) tidy() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.conns {
		if c == nil {
			continue
		}
		late := !c.until.IsZero() && time.Now().After(c.until)
		switch {
		case late && c.ending:
			c.broken = true
		case late:
			s.hangUp(c, control.Invalid("a request did not end within %v: the connection is closed", patience))
		}
		if c.finished() {
			s.drop(c)
		}
	}
}

// drop closes a connection. What only it asked for, and has not begun, is withdrawn. Called with mu held.
func (s *Server) drop(c *conn) {
	if c.subscribed {
		s.listening.Add(-1)
	}
	s.conns[c.slot] = nil
	s.options.Note(3+c.slot, -1, 0, 0)
	c.broken = true
	c.close()
	for u := range s.calls.under {
		u.leave(c)
	}
}

// end ends all, after the loop.
func (s *Server) end() {
	s.listener.remove()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closing = true
	for _, c := range s.conns {
		if c != nil {
			c.send()
			s.drop(c)
		}
	}
	for slot, d := range []descriptor{s.wakeup[0], s.wakeup[1], s.listener.descriptor} {
		s.options.Note(slot, -1, 0, 0)
		d.close()
	}
}

// ---- requests ---------------------------------------------------------------------------

// refuse queues an error. Called with mu held.
func (s *Server) refuse(c *conn, id string, fault *control.Error) {
	c.put(encodeReply(id, nil, fault))
}

// hangUp has a connection end after an error, when that is sent. Called with mu held.
func (s *Server) hangUp(c *conn, fault *control.Error) {
	s.refuse(c, "", fault)
	c.ending, c.until = true, time.Now().Add(patience)
	c.send()
}

// request begins, joins or answers what a line asks for.
func (s *Server) request(c *conn, line []byte) {
	r, fault := control.ParseRequest(line)
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.ending || c.broken {
		return
	}
	known := s.calls.find(r)
	switch {
	case fault != nil:
		s.refuse(c, r.ID, fault)
	case r.Cmd == control.CmdSubscribe:
		if !c.subscribed {
			c.subscribed = true
			s.listening.Add(1)
		}
		c.put(encodeReply(r.ID, nil, nil))
	case r.Cmd == control.CmdWithdraw:
		if of := s.calls.byID[r.Of]; of != nil && of.reply == nil {
			of.withdraw(c)
		}
		c.put(encodeReply(r.ID, nil, nil))
	case known != nil && !known.same(r):
		s.refuse(c, r.ID, control.Invalid("the id %q is that of another request, a %s of %s: give each request its own",
			r.ID, known.request.Cmd, named(known.request.Tags)))
	case known != nil && known.reply != nil:
		c.put(known.reply)
	case c.under >= maxUnder:
		s.refuse(c, r.ID, control.Invalid("%d requests of this connection are under way: wait for an answer", maxUnder))
	case known != nil:
		known.join(c)
	case moves(r.Cmd) && s.calls.moving() >= maxMoves:
		s.refuse(c, r.ID, control.Invalid("%d pauses and resumes are under way: wait for an answer", maxMoves))
	default:
		n := &call{request: r, gone: make(chan struct{})}
		n.join(c)
		s.calls.add(n)
		go s.carryOut(n, n.gone)
	}
}

func named(tags []string) string {
	if len(tags) == 0 {
		return "everything"
	}
	return fmt.Sprintf("the tags %q", tags)
}

// carryOut has the handler do what is asked, and answers all who wait for it.
func (s *Server) carryOut(n *call, gone <-chan struct{}) {
	if slot := s.slots[n.request.Cmd]; slot != nil {
		select {
		case slot <- struct{}{}:
			defer func() { <-slot }()
		case <-gone: // else those who ask, give up and come back would pile up behind one that hangs
			s.mu.Lock()
			defer s.mu.Unlock()
			s.calls.forget(n)
			return
		}
	}
	answer := s.handle(&Ask{Request: n.request, Gone: gone})
	var reply []byte
	if !answer.Withdrawn {
		reply = encodeReply(n.request.ID, answer.Result, answer.Err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.wake()
	if answer.Withdrawn {
		n.answer(&n.leaving, n.withdrawn())
	}
	if answer.Withdrawn && len(n.asking) > 0 && !s.closing { // somebody asked again meanwhile
		n.gone, n.left = make(chan struct{}), false
		go s.carryOut(n, n.gone)
		return
	}
	if answer.Withdrawn {
		s.calls.forget(n)
		return
	}
	n.reply = reply
	delete(s.calls.under, n)
	n.answer(&n.asking, reply)
	n.answer(&n.leaving, reply)
}

// handle is the handler, whose panic is its own.
func (s *Server) handle(a *Ask) (answer Answer) {
	defer func() {
		if p := recover(); p != nil {
			answer = Answer{Err: &control.Error{Code: codeInternal, Message: fmt.Sprintf("%s: defect in ebb: %v", a.Cmd, p)}}
		}
	}()
	return s.options.Handle(a)
}

// codeInternal is EBB_ERR_INTERNAL.
const codeInternal = 16

// codeTimeout is EBB_ERR_TIMEOUT.
const codeTimeout = 18

func (c *call) join(asker *conn) {
	asker.under++
	c.asking = append(c.asking, asker)
}

// leave is for a connection that ends.
func (c *call) leave(asker *conn) {
	c.leaving = slices.DeleteFunc(c.leaving, func(a *conn) bool { return a == asker })
	c.askNoMore(asker)
}

// withdraw is for a connection that asks no longer. The last one hears whether the call had begun; while others
// ask it goes on for them.
func (c *call) withdraw(asker *conn) {
	for range c.askNoMore(asker) {
		c.leaving = append(c.leaving, asker)
	}
	if len(c.asking) > 0 {
		c.answer(&c.leaving, c.withdrawn())
	}
}

// askNoMore takes a connection from those that ask, and returns how often it was there.
func (c *call) askNoMore(asker *conn) (times int) {
	before := len(c.asking)
	c.asking = slices.DeleteFunc(c.asking, func(a *conn) bool { return a == asker })
	if before > 0 && len(c.asking) == 0 && !c.left {
		c.left = true
		close(c.gone)
	}
	return before - len(c.asking)
}

// answer gives a reply to connections that wait.
func (c *call) answer(waiting *[]*conn, reply []byte) {
	for _, a := range *waiting {
		a.under--
		a.put(reply)
	}
	*waiting = nil
}

// withdrawn is the reply to who has withdrawn the call.
func (c *call) withdrawn() []byte {
	return encodeReply(c.request.ID, nil, &control.Error{Code: codeTimeout, Message: "withdrawn before it began"})
}

// encodeReply makes the line of a reply. One that would be too long is an error instead.
func encodeReply(id string, result any, fault *control.Error) []byte {
	reply := control.Reply{V: control.Version, ID: id, OK: fault == nil, Error: fault}
	var err error
	if reply.OK {
		reply.Result, err = json.Marshal(result)
	}
	var line []byte
	if err == nil {
		line, err = control.Encode(reply)
	}
	if err == nil && len(line) > control.MaxReply {
		err = fmt.Errorf("the answer has %d bytes, more than %d", len(line), control.MaxReply)
	}
	if err != nil {
		line, _ = control.Encode(control.Reply{V: control.Version, ID: id, Error: &control.Error{Code: codeInternal, Message: err.Error()}})
	}
	return line
}
