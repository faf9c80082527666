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

	"golang.org/x/sys/unix"
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

// gone reports whether the server has closed it. One that it has not lets this wait until the time of all is over.
func (l *line) gone() bool {
	_, err := l.from.ReadByte()
	return errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET)
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
	for i, l := range idle[:3] {
		if !l.gone() {
			t.Errorf("the connection that was idle for the longest time, %d, is there yet", i)
		}
	}
	if err := idle[len(idle)-1].health(); err != nil {
		t.Errorf("the one that was used last was closed: %v", err)
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
