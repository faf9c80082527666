package serve

import (
	"crypto/tls"
	"net"
	"net/http"
	"sync"
	"time"
)

const (
	// maxConnections are held at once; one more takes the place of the one that has been idle for the longest time.
	maxConnections = 512
	// silent is how long a new connection may say nothing before it counts as idle.
	silent = 2 * time.Second
	// recheck is how often is looked whether one has become so.
	recheck = 100 * time.Millisecond
)

// limited is a listener that lets so many connections in at once. Those that nobody uses, which a client may keep open
// by the hundred, keep nobody out: they are closed for new ones. Where all are in use a new one waits.
type limited struct {
	net.Listener
	most   int
	change chan struct{} // a connection was closed, or became idle
	closed chan struct{}
	once   sync.Once

	mu   sync.Mutex
	held map[*counted]struct{}
}

// counted is a connection of a limited listener.
type counted struct {
	net.Conn
	of *limited

	idle  bool      // guarded by limited.mu, as the next ones
	since time.Time // when it became idle, or was accepted
	fresh bool      // nothing has come yet
	gone  bool      // it makes room for another one
}

func limit(l net.Listener, n int) *limited {
	return &limited{Listener: l, most: n, change: make(chan struct{}, 1), closed: make(chan struct{}), held: map[*counted]struct{}{}}
}

func (l *limited) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &counted{Conn: conn, of: l, since: time.Now(), fresh: true}
	for !l.enter(c) {
		if idle := l.idlest(); idle != nil {
			_ = idle.Close()
			continue
		}
		select {
		case <-l.change:
		case <-time.After(recheck):
		case <-l.closed:
			_ = conn.Close()
			return nil, net.ErrClosed
		}
	}
	return c, nil
}

// enter lets a connection in, if there is room.
func (l *limited) enter(c *counted) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.held) >= l.most {
		return false
	}
	l.held[c] = struct{}{}
	return true
}

// idlest is the connection that nobody has used for the longest time, which is used no more then; nil: all are in use.
func (l *limited) idlest() (idlest *counted) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.held {
		unused := c.idle || c.fresh && time.Since(c.since) > silent
		if unused && (idlest == nil || c.since.Before(idlest.since)) {
			idlest = c
		}
	}
	if idlest != nil {
		idlest.gone = true
	}
	return idlest
}

// Read decides by what comes: from then on the connection is in use, long before the HTTP server says so, unless it is
// gone. No request is carried out whose caller then hears that the connection was closed.
func (c *counted) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n == 0 {
		return n, err
	}
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	if c.gone {
		return 0, net.ErrClosed
	}
	c.idle, c.fresh = false, false
	return n, err
}

// state takes note of what the HTTP server says about a connection (http.Server.ConnState).
func (l *limited) state(conn net.Conn, state http.ConnState) {
	if secure, ok := conn.(*tls.Conn); ok {
		conn = secure.NetConn()
	}
	c, ok := conn.(*counted)
	if !ok || state == http.StateNew {
		return
	}
	l.mu.Lock()
	c.idle, c.fresh, c.since = state == http.StateIdle, false, time.Now()
	l.mu.Unlock()
	if state == http.StateIdle {
		l.changed()
	}
}

func (l *limited) changed() {
	select {
	case l.change <- struct{}{}:
	default:
	}
}

func (l *limited) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.Listener.Close()
}

// Close gives its room back.
func (c *counted) Close() error {
	c.of.mu.Lock()
	delete(c.of.held, c)
	c.of.mu.Unlock()
	c.of.changed()
	return c.Conn.Close()
}
