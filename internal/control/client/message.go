package client

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/ebb-offload/ebb/internal/control"
)

// lines reads messages, each of one line. A longer one than the protocol allows is an error before it is
// held as a whole.
type lines struct {
	from *bufio.Reader
}

func newLines(r io.Reader) *lines { return &lines{from: bufio.NewReaderSize(r, 16<<10)} }

// next is the next line, without its end. It is the caller's.
func (l *lines) next() ([]byte, error) {
	var line []byte
	for {
		part, err := l.from.ReadSlice('\n')
		if len(line)+len(part) > control.MaxReply {
			return nil, &ProtocolError{What: fmt.Sprintf("a message of more than %d bytes", control.MaxReply)}
		}
		line = append(line, part...)
		switch {
		case err == nil:
			return line[:len(line)-1], nil
		case errors.Is(err, bufio.ErrBufferFull):
		case errors.Is(err, io.EOF) && len(line) > 0:
			return nil, &ProtocolError{What: "the connection ended within a message"}
		default:
			return nil, err
		}
	}
}

// message is a Reply or an Event, as it comes.
type message struct {
	V    int              `json:"v"`
	OK   *bool            `json:"ok"`    // of replies
	Kind *json.RawMessage `json:"event"` // of events
}

// handOut gives one message to whom it is for. Replies that nobody waits for, and what is neither reply
// nor event, are passed over: later versions of a rank may say more.
func (c *Conn) handOut(line []byte) error {
	var m message
	if err := json.Unmarshal(line, &m); err != nil {
		return &ProtocolError{What: "a line that is no JSON object: " + err.Error()}
	}
	switch {
	case m.OK != nil:
		var reply control.Reply
		if err := json.Unmarshal(line, &reply); err != nil {
			return &ProtocolError{What: "a reply: " + err.Error()}
		}
		c.mu.Lock()
		answer := c.waiting[reply.ID]
		delete(c.waiting, reply.ID) // a second reply is nobody's
		c.mu.Unlock()
		if answer != nil {
			answer <- reply
		}
	case m.Kind != nil:
		var event control.Event
		if err := json.Unmarshal(line, &event); err != nil {
			return &ProtocolError{What: "an event: " + err.Error()}
		}
		c.mu.Lock()
		events := c.events
		c.mu.Unlock()
		if events != nil {
			select {
			case events <- event:
			case <-c.closed:
			}
		}
	}
	return nil
}
