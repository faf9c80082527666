package launch

import (
	"bytes"
	"errors"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Output of labelled ranks. A pump carries one stream of one rank, line by line and with the
// rank's label, to a sink that all ranks share. Lines never mix: a pump writes whole lines only,
// under the sink's lock. A pump that cannot write stops reading, so that a slow reader of ebb's
// output slows the ranks down instead of filling memory.

const (
	readSize = 64 << 10
	pipeSize = 256 << 10 // asked for; a smaller pipe only costs speed
	// maxLine bounds what is kept of a line that has not ended. A longer line is continued on a
	// new one, with the label again.
	maxLine = 1 << 20
)

// sink is where the lines of a stream go.
type sink struct {
	// mu orders writes. Sinks on the same file share one.
	mu *sync.Mutex
	w  io.Writer
}

// newSinks makes the sinks of standard output and standard error. Where both are one file, say
// a terminal, they share a lock.
func newSinks(stdout, stderr *os.File) (out, err *sink) {
	out = &sink{mu: new(sync.Mutex), w: stdout}
	err = &sink{mu: new(sync.Mutex), w: stderr}
	a, aErr := stdout.Stat()
	b, bErr := stderr.Stat()
	if aErr == nil && bErr == nil && os.SameFile(a, b) {
		err.mu = out.mu
	}
	return out, err
}

// pump copies r to the sink until r ends, the sink fails or stop is called. It closes r.
type pump struct {
	r       *os.File
	label   []byte
	sink    *sink
	done    chan struct{} // closed when everything has been written
	pending []byte        // the start of a line that has not ended
	out     []byte        // labelled lines of one read
}

func startPump(r *os.File, label string, s *sink) *pump {
	p := &pump{r: r, label: []byte(label), sink: s, done: make(chan struct{})}
	go p.run()
	return p
}

// stop ends the pump once it has written what is in the pipe at this moment. It is called when
// the rank has ended: a process that the rank left behind may hold the pipe open for ever.
func (p *pump) stop() {
	// The error is that of a pump which has ended by itself.
	_ = p.r.SetReadDeadline(time.Unix(1, 0))
}

func (p *pump) run() {
	defer close(p.done)
	// Closed, the pipe tells a rank that goes on writing what ebb was told: nobody reads.
	defer p.r.Close()

	buf := make([]byte, readSize)
	for {
		n, err := p.r.Read(buf)
		if p.lines(buf[:n]) != nil {
			return
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			if p.drain(buf) != nil {
				return
			}
			break
		}
		if err != nil {
			break
		}
	}
	p.rest()
}

// rest writes what is left at the end of the stream, as a line: the next one is another rank's.
func (p *pump) rest() {
	if len(p.pending) > 0 {
		_ = p.write(append(p.appendLine(p.out[:0], p.pending), '\n'))
	}
}

// drain reads the bytes that are in the pipe now, and no more.
func (p *pump) drain(buf []byte) error {
	if err := p.r.SetReadDeadline(time.Time{}); err != nil {
		return err
	}
	conn, err := p.r.SyscallConn()
	if err != nil {
		return err
	}
	left := 0
	if err := conn.Control(func(fd uintptr) { left, _ = unix.IoctlGetInt(int(fd), unix.TIOCINQ) }); err != nil {
		return err
	}
	for left > 0 {
		n := 0
		// True: this read does not wait.
		if err := conn.Read(func(fd uintptr) bool {
			n, _ = unix.Read(int(fd), buf[:min(left, len(buf))])
			return true
		}); err != nil {
			return err
		}
		if n <= 0 {
			return nil
		}
		left -= n
		if err := p.lines(buf[:n]); err != nil {
			return err
		}
	}
	return nil
}

// lines takes the next bytes of the stream and writes the lines that they complete.
func (p *pump) lines(b []byte) error {
	if len(b) == 0 {
		return nil
	}
	p.out = p.out[:0]
	for len(b) > 0 {
		end := lineEnd(b, len(p.pending) > 0 && p.pending[len(p.pending)-1] == '\r')
		if end < 0 {
			break
		}
		// A carriage return held back, and not followed by a line feed, was an end already.
		if end == 0 {
			p.out = p.appendLine(p.out, p.pending)
			p.pending = p.pending[:0]
			continue
		}
		if len(p.pending) > 0 {
			p.out = p.appendLine(p.out, p.pending)
			p.out = append(p.out, b[:end]...)
			p.pending = p.pending[:0]
		} else {
			p.out = p.appendLine(p.out, b[:end])
		}
		b = b[end:]
	}
	p.pending = append(p.pending, b...)
	if len(p.pending) >= maxLine {
		p.out = append(p.appendLine(p.out, p.pending), '\n')
		p.pending = p.pending[:0]
	}
	return p.write(p.out)
}

// lineEnd is the length of the first line of b with its end, or -1 when it has none yet. Ends
// are \n, \r\n and, as progress bars write it, a bare \r; whether a \r is bare shows only with
// the next byte. heldCR says that the bytes before b ended in \r: then 0 means that the line
// ended there.
func lineEnd(b []byte, heldCR bool) int {
	if heldCR {
		if b[0] == '\n' {
			return 1
		}
		return 0
	}
	i := bytes.IndexByte(b, '\n')
	if i < 0 {
		i = len(b)
	}
	if cr := bytes.IndexByte(b[:i], '\r'); cr >= 0 && cr+1 < i {
		return cr + 1
	}
	if i == len(b) {
		return -1
	}
	return i + 1
}

func (p *pump) appendLine(out, line []byte) []byte {
	return append(append(out, p.label...), line...)
}

func (p *pump) write(b []byte) error {
	if len(b) == 0 {
		return nil
	}
	p.sink.mu.Lock()
	defer p.sink.mu.Unlock()
	_, err := p.sink.w.Write(b)
	return err
}
