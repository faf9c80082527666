package server

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/ebb-offload/ebb/internal/control"
)

// Bounds of one connection.
const (
	maxUnder  = 16                   // requests under way
	maxQueue  = 2 * control.MaxReply // bytes of replies that it did not read
	maxEvents = 256 << 10            // bytes in the queue beyond which events are dropped
	patience  = 10 * time.Second     // for the end of a line that began, or of a connection
)

// conn is one connection. What is queued for it is guarded by Server.mu; the loop alone reads it.
type conn struct {
	descriptor
	slot  int
	lines splitter
	until time.Time // when the line that has begun, or the connection, must have ended; zero: neither

	subscribed bool
	under      int // requests under way
	queue      [][]byte
	queued     int    // bytes in queue
	sent       int    // of the first of queue
	lost       uint64 // events dropped since the last that was queued
	lostSeq    uint64 // of the last of them
	eof        bool   // no more requests come
	ending     bool   // it is closed when the queue is empty
	broken     bool   // it is closed at once
}

// put queues a message. Called with mu held.
func (c *conn) put(line []byte) {
	if c.ending || c.broken {
		return
	}
	if c.queued+len(line) > maxQueue {
		c.broken = true // it does not read: what is owed to it is more than memory is kept for
		return
	}
	c.queue = append(c.queue, line)
	c.queued += len(line)
}

// event queues an event, or counts it as lost. Called with mu held.
func (c *conn) event(line []byte, seq uint64, lost func(n, seq uint64) []byte) {
	if c.queued+len(line) > maxEvents {
		c.lost, c.lostSeq = c.lost+1, seq
		return
	}
	c.tellLost(lost)
	c.put(line)
}

// tellLost queues the event that tells of lost ones, if there are any. Called with mu held.
func (c *conn) tellLost(lost func(n, seq uint64) []byte) {
	if c.lost > 0 && c.queued < maxEvents {
		c.put(lost(c.lost, c.lostSeq))
		c.lost = 0
	}
}

// finished reports whether the connection is of no use any more. Called with mu held.
func (c *conn) finished() bool {
	done := c.ending || c.eof && c.under == 0 && !c.subscribed
	return c.broken || done && len(c.queue) == 0
}

// wants are the events that the loop waits for. Called with mu held.
func (c *conn) wants() (events int16) {
	if !c.eof && !c.ending {
		events |= unix.POLLIN
	}
	if len(c.queue) > 0 {
		events |= unix.POLLOUT
	}
	return events
}

// send writes what the socket takes. Called with mu held; it never waits.
func (c *conn) send() {
	for len(c.queue) > 0 && c.ours() {
		first := c.queue[0]
		n, err := unix.SendmsgN(c.fd, first[c.sent:], nil, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		switch {
		case err == unix.EINTR:
			continue
		case err == unix.EAGAIN:
			return
		case err != nil:
			c.broken = true
			return
		}
		c.sent += n
		c.queued -= n
		if c.sent == len(first) {
			c.queue[0] = nil
			c.queue, c.sent = c.queue[1:], 0
		}
	}
	if len(c.queue) == 0 {
		c.queue = nil
	}
}
