package serve

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// line is a connection of its own, on which requests are made by hand.
type line struct {
	net.Conn
	t    testing.TB
	from *bufio.Reader
}

func (s *served) dial() *line {
	s.t.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(s.base, "http://"))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = c.Close() })
	if err := c.SetDeadline(time.Now().Add(2 * time.Minute)); err != nil { // so that a hang is told
		s.t.Fatal(err)
	}
	return &line{c, s.t, bufio.NewReader(c)}
}

// get asks for a path and returns the reply, whose body is not read.
func (l *line) get(path string) (*http.Response, error) {
	if _, err := io.WriteString(l, "GET "+path+" HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
		return nil, err
	}
	return http.ReadResponse(l.from, nil)
}

// health asks whether the server is well, and keeps the connection.
func (l *line) health() error {
	reply, err := l.get("/healthz")
	if err != nil {
		return err
	}
	defer reply.Body.Close()
	if _, err := io.Copy(io.Discard, reply.Body); err != nil || reply.StatusCode != http.StatusOK {
		return errors.Join(err, errors.New(reply.Status))
	}
	return nil
}

func TestIdleConnectionsOfOneClientKeepNobodyOut(t *testing.T) {
	s := serving(t, newFake(1), nil)
	follower := s.dial() // the first, and in use
	if reply, err := follower.get("/v1/events"); err != nil || reply.StatusCode != http.StatusOK {
		t.Fatal(reply, err)
	}
	var idle []*line
	for range maxConnections - 1 {
		l := s.dial()
		if err := l.health(); err != nil {
			t.Fatal(err)
		}
		idle = append(idle, l)
	}
	for range 3 {
		if err := s.dial().health(); err != nil {
			t.Errorf("a new client: %v", err)
		}
	}
	closed := 0
	for i, l := range idle {
		if err := l.health(); err == nil {
			continue
		}
		// Which became idle first is known to the server, whose order on a busy machine is about that of the requests.
		if closed++; i > len(idle)/2 {
			t.Errorf("connection %d was closed, and longer idle ones were not", i)
		}
	}
	if closed != 3 {
		t.Errorf("%d connections were closed for 3 new ones", closed)
	}
	s.listener.mu.Lock()
	held := len(s.listener.held)
	s.listener.mu.Unlock()
	if held > maxConnections {
		t.Errorf("%d connections are held", held)
	}
	if err := follower.SetReadDeadline(time.Now().Add(10 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	var none net.Error
	if _, err := follower.from.Peek(1 << 10); !errors.As(err, &none) || !none.Timeout() {
		t.Errorf("the one that follows events was closed: %v", err)
	}
}

func TestConnectionsOnWhichNothingComesKeepNobodyOut(t *testing.T) {
	s := serving(t, newFake(1), nil)
	for range maxConnections {
		s.dial()
	}
	if err := s.dial().health(); err != nil {
		t.Error(err)
	}
}

// Where all connections are in use a new one waits for the first that is over.
func TestANewConnectionWaitsWhereAllAreInUse(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := limit(inner, 1)
	busy, release := make(chan struct{}), make(chan struct{})
	server := &http.Server{ConnState: l.state, Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { //nolint:gosec // of a test
		if r.URL.Path == "/busy" {
			close(busy)
			<-release
		}
	})}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	get := func(path string) chan error {
		done := make(chan error, 1)
		go func() {
			reply, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: path == "/busy"}}).Get("http://" + inner.Addr().String() + path)
			if err == nil {
				err = reply.Body.Close()
			}
			done <- err
		}()
		return done
	}
	first := get("/busy")
	<-busy
	second := get("/")
	select {
	case err := <-second:
		t.Fatalf("it did not wait: %v", err)
	case <-time.After(3 * recheck / 2): // it has looked for room in vain
	}
	close(release)
	if err := errors.Join(<-first, <-second); err != nil {
		t.Error(err)
	}

	// And the server's end does not wait for room.
	waits, err := net.Dial("tcp", inner.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer waits.Close()
	if err := server.Close(); err != nil {
		t.Error(err)
	}
	if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
		t.Error(err)
	}
}

// A request that comes before its connection was chosen to make room is carried out, and one that comes later is not read.
func TestARequestComesEitherBeforeItsConnectionMakesRoomOrNever(t *testing.T) {
	l := limit(nil, 2)
	on := func() (c *counted, client net.Conn) {
		client, conn := net.Pipe()
		t.Cleanup(func() { _, _ = client.Close(), conn.Close() })
		c = &counted{Conn: conn, of: l, idle: true, since: time.Now()}
		if !l.enter(c) {
			t.Fatal("no room")
		}
		return c, client
	}
	send := func(c *counted, client net.Conn) (int, error) {
		go func() { _, _ = client.Write([]byte("POST ")) }()
		return c.Read(make([]byte, 5))
	}
	first, client := on()
	second, other := on()
	if n, err := send(first, client); n != 5 || err != nil {
		t.Errorf("%d bytes, %v", n, err)
	}
	if chosen := l.idlest(); chosen != second {
		t.Error("a connection on which a request comes was chosen")
	}
	if n, err := send(second, other); n != 0 || !errors.Is(err, net.ErrClosed) {
		t.Errorf("of one that was chosen %d bytes were read, %v", n, err)
	}
}
