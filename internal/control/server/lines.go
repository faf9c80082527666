package server

import (
	"bytes"
	"fmt"

	"github.com/ebb-offload/ebb/internal/control"
)

// splitter cuts what comes from a connection into lines, in whatever parts it comes.
type splitter struct {
	part []byte // of the line that has not ended
}

// errLong says that a line is longer than a request may be. Where the next one begins cannot be known then.
var errLong = fmt.Errorf("a request is longer than %d bytes: the connection is closed", control.MaxRequest)

// feed takes the next bytes and calls line with each line that is complete, without its end; the line is
// valid only during the call.
func (s *splitter) feed(p []byte, line func([]byte)) error {
	for {
		n := bytes.IndexByte(p, '\n')
		if n < 0 {
			break
		}
		if len(s.part)+n+1 > control.MaxRequest {
			return errLong
		}
		if len(s.part) == 0 {
			line(p[:n])
		} else {
			s.part = append(s.part, p[:n]...)
			line(s.part)
			s.part = s.part[:0]
		}
		p = p[n+1:]
	}
	if len(s.part)+len(p) >= control.MaxRequest {
		return errLong
	}
	s.part = append(s.part, p...)
	if len(s.part) == 0 {
		s.part = nil // an idle connection keeps nothing
	}
	return nil
}
