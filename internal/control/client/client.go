// Package client speaks to one rank through its control socket (package control).
//
// A connection has one goroutine, which reads: replies go to the calls that wait for them, events to the
// one subscriber. A rank that says nothing holds up only who waits for it, and only as long as that
// one's context lasts. Whatever a rank sends, at most control.MaxReply bytes of it are held at a time.
package client

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ebb-offload/ebb/internal/control"
)

// ErrEnded says that the rank ended the connection: its process has ended, or has closed it.
var ErrEnded = errors.New("the rank ended the connection")

// VersionError says that a rank speaks another version of the protocol.
type VersionError struct {
	Theirs int
	EBB    string // version of the rank's library
}

func (e *VersionError) Error() string {
	return fmt.Sprintf("the rank (ebb %s) speaks version %d of the control protocol, this ebb version %d: use the ebb that the rank was started with",
		e.EBB, e.Theirs, control.Version)
}

// ProtocolError says that a rank sent what is no message of the protocol.
type ProtocolError struct {
	What string
}

func (e *ProtocolError) Error() string { return "not the control protocol: " + e.What }

// PeerError says that the process behind a socket is another user's.
type PeerError struct {
	UID int
}

func (e *PeerError) Error() string {
	return fmt.Sprintf("the process behind the socket belongs to user %d: it is not spoken to", e.UID)
}

// Conn is a connection to a rank. Its methods may be called from several goroutines.
type Conn struct {
	hello  control.Hello
	peer   int // process that made the socket; 0: not in our pid namespace
	socket *net.UnixConn

	prefix string // of the ids that this connection gives
	number atomic.Uint64

	close  sync.Once
	closed chan struct{} // Close was called
	done   chan struct{} // the reader has ended, and err says why

	writing sync.Mutex // held while a request is written

	mu      sync.Mutex
	waiting map[string]chan control.Reply // by id; each has room for its reply
	events  chan control.Event            // of the subscriber; nil without one
	err     error                         // why the reader ended
}

// eventRoom is how many events may wait for the subscriber before the reader waits too.
const eventRoom = 256

// Dial connects to a rank's socket and hears who it is. The context bounds the wait for that alone.
func Dial(ctx context.Context, path string) (*Conn, error) {
	socket, err := connect(ctx, path)
	if err != nil {
		return nil, err
	}
	c := &Conn{
		socket: socket, prefix: rand.Text(), waiting: map[string]chan control.Reply{},
		closed: make(chan struct{}), done: make(chan struct{}),
	}
	if err := c.greet(ctx); err != nil {
		_ = socket.Close()
		return nil, err
	}
	return c, nil
}

// greet checks who is behind the socket, reads the rank's first message and starts the reader.
func (c *Conn) greet(ctx context.Context) error {
	uid, pid, err := peer(c.socket)
	if err != nil {
		return fmt.Errorf("find out whose socket it is: %w", err)
	}
	if own := os.Geteuid(); uid != own && uid != 0 && own != 0 {
		return &PeerError{UID: uid}
	}
	c.peer = pid

	stop := context.AfterFunc(ctx, func() { _ = c.socket.SetReadDeadline(time.Unix(1, 0)) })
	lines := newLines(c.socket)
	line, err := lines.next()
	if !stop() {
		// The deadline is set, or about to be: the connection is of no more use.
		return ctx.Err()
	}
	switch {
	case errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET):
		return ErrEnded
	case err != nil:
		return err
	}
	// First the version alone: the rest of another one's message may look otherwise.
	var said struct {
		V     int             `json:"v"`
		EBB   string          `json:"ebb"`
		Error json.RawMessage `json:"error"`
	}
	if err := json.Unmarshal(line, &said); err != nil || said.V == 0 {
		return &ProtocolError{What: "the first line is no greeting"}
	}
	if said.V != control.Version {
		return &VersionError{Theirs: said.V, EBB: said.EBB}
	}
	if said.Error != nil { // it takes nobody, or not us
		var refused control.Error
		if err := json.Unmarshal(said.Error, &refused); err != nil || refused.Message == "" {
			return &ProtocolError{What: "a refusal without a reason"}
		}
		return &refused
	}
	if err := json.Unmarshal(line, &c.hello); err != nil {
		return &ProtocolError{What: "the greeting: " + err.Error()}
	}
	go c.read(lines)
	return nil
}

// Hello is how the rank introduced itself.
func (c *Conn) Hello() control.Hello { return c.hello }

// Peer is the process that made the socket, 0 where that is in another pid namespace.
func (c *Conn) Peer() int { return c.peer }

// Done is closed when the connection has ended, from whichever side.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Close ends the connection. A pause that was asked for on it and has not begun is withdrawn.
func (c *Conn) Close() {
	c.close.Do(func() {
		close(c.closed)
		_ = c.socket.Close() // nothing is left in it that would have to be written
	})
	<-c.done
}

// Do sends a request and returns its result. A refusal of the rank is a *control.Error. When the context ends
// before the reply comes, the request is not withdrawn: only Close does that.
func (c *Conn) Do(ctx context.Context, r control.Request) (json.RawMessage, error) {
	if r.ID == "" {
		r.ID = c.prefix + "-" + strconv.FormatUint(c.number.Add(1), 10)
	}
	r.V = control.Version
	answer, err := c.await(r.ID)
	if err != nil {
		return nil, err
	}
	defer c.forget(r.ID)
	if err := c.send(ctx, r); err != nil {
		return nil, err
	}
	select {
	case reply := <-answer:
		return resultOf(reply)
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-c.done:
	}
	select { // it may have been the last thing that came
	case reply := <-answer:
		return resultOf(reply)
	default:
		return nil, c.cause()
	}
}

func resultOf(reply control.Reply) (json.RawMessage, error) {
	switch {
	case reply.OK:
		return reply.Result, nil
	case reply.Error == nil:
		return nil, &ProtocolError{What: "a refusal without a reason"}
	}
	return nil, reply.Error
}

// Events subscribes, and returns the channel on which events come until the connection ends; it is then closed.
// A connection has one subscription. Who does not read holds up all that comes on the connection.
func (c *Conn) Events(ctx context.Context) (<-chan control.Event, error) {
	events := make(chan control.Event, eventRoom)
	c.mu.Lock()
	if c.events != nil {
		c.mu.Unlock()
		return nil, errors.New("subscribe: this connection has a subscription")
	}
	if c.err != nil {
		defer c.mu.Unlock()
		return nil, c.err
	}
	c.events = events
	c.mu.Unlock()
	if _, err := c.Do(ctx, control.Request{Cmd: control.CmdSubscribe}); err != nil {
		return nil, fmt.Errorf("subscribe: %w", err)
	}
	return events, nil
}

// await notes that somebody waits for a reply.
func (c *Conn) await(id string) (<-chan control.Reply, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.err != nil:
		return nil, c.err
	case len(id) > control.MaxID:
		return nil, fmt.Errorf("an id of %d bytes: at most %d", len(id), control.MaxID)
	case c.waiting[id] != nil:
		return nil, fmt.Errorf("request %q is under way on this connection", id)
	}
	answer := make(chan control.Reply, 1)
	c.waiting[id] = answer
	return answer, nil
}

func (c *Conn) forget(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.waiting, id)
}

// cause is why the connection ended.
func (c *Conn) cause() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// send writes one request. One that was written in part leaves the connection of no use: it is closed.
func (c *Conn) send(ctx context.Context, r control.Request) error {
	line, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("compose the request: %w", err)
	}
	if len(line) >= control.MaxRequest {
		return fmt.Errorf("the request has %d bytes: at most %d", len(line), control.MaxRequest-1)
	}
	c.writing.Lock()
	defer c.writing.Unlock()
	deadline, _ := ctx.Deadline() // without one, as long as it takes; Close ends that too
	_ = c.socket.SetWriteDeadline(deadline)
	n, err := c.socket.Write(append(line, '\n'))
	switch {
	case err == nil:
		return nil
	case n > 0:
		_ = c.socket.Close()
	}
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return context.DeadlineExceeded
	case errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) || errors.Is(err, net.ErrClosed):
		return ErrEnded
	}
	return fmt.Errorf("send the request: %w", err)
}

// read hands out what comes until the connection ends.
func (c *Conn) read(lines *lines) {
	var err error
	for err == nil {
		var line []byte
		if line, err = lines.next(); err == nil {
			err = c.handOut(line)
		}
	}
	if errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) || errors.Is(err, unix.ECONNRESET) {
		err = ErrEnded
	}
	_ = c.socket.Close() // it may be the protocol that was broken
	c.mu.Lock()
	c.err = err
	events := c.events
	c.mu.Unlock()
	close(c.done)
	if events != nil {
		close(events)
	}
}
