package engine

import (
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ebb-offload/ebb/internal/control"
	"github.com/ebb-offload/ebb/internal/fd"
)

const (
	eventBacklog = 1024                   // events that wait to be written
	eventFlush   = 100 * time.Millisecond // that an operation waits for its end to be written
)

// eventLog appends events to a file, a line each, written as a whole. A goroutine writes, so that a disk that
// gives no answer keeps nobody: events that find no room are dropped, and counted in the next line.
//
// The file is opened anew for each line. So it may be renamed, and there is no descriptor that a host could close or
// a forked child keep.
type eventLog struct {
	path string
	say  func(string) // once for each text

	unsure  bool // whether the last line has an end; of the goroutine that writes
	queue   chan entry
	slow    atomic.Bool // what was waited for in vain is not written yet
	dropped uint64      // guarded by events.mu, like every call of add
}

// entry is an event, or a question whether all before it are written.
type entry struct {
	event   control.Event
	written chan<- struct{}
}

func newEventLog(path string, say func(string)) *eventLog {
	l := &eventLog{path: path, say: say, unsure: true, queue: make(chan entry, eventBacklog)}
	go l.serve()
	return l
}

func (l *eventLog) add(ev control.Event) {
	if l.dropped > 0 {
		lost := ev
		lost = control.Event{V: lost.V, Time: lost.Time, Seq: lost.Seq - 1, Who: lost.Who, Host: lost.Host, Kind: control.EventLost, Lost: l.dropped}
		select {
		case l.queue <- entry{event: lost}:
			l.dropped = 0
		default:
		}
	}
	select {
	case l.queue <- entry{event: ev}:
	default:
		l.dropped++
	}
}

// flush returns when all that was added is written, or after eventFlush. A disk that was waited for in vain is not
// waited for again until it has caught up.
func (l *eventLog) flush() {
	if l.slow.Load() {
		return
	}
	timer := time.NewTimer(eventFlush)
	defer timer.Stop()
	written := make(chan struct{})
	select {
	case l.queue <- entry{written: written}:
	case <-timer.C:
		l.slow.Store(true)
		return
	}
	select {
	case <-written:
	case <-timer.C:
		l.slow.Store(true)
	}
}

// serve writes until the process ends.
func (l *eventLog) serve() {
	for e := range l.queue {
		if len(l.queue) == 0 {
			l.slow.Store(false)
		}
		if e.written != nil {
			close(e.written)
			continue
		}
		if err := l.append(e.event); err != nil {
			l.say(fmt.Sprintf("the event log %s misses events: %v", l.path, err))
		}
	}
}

// append writes one event. A panic is an error: on this goroutine it would end the program.
func (l *eventLog) append(ev control.Event) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("defect in ebb: %v", p)
		}
	}()
	line, err := control.Encode(ev)
	if err != nil {
		return err
	}
	if l.unsure && control.Torn(l.path) {
		line = append([]byte{'\n'}, line...)
	}
	err = appendLine(l.path, line)
	l.unsure = err != nil
	return err
}

func appendLine(path string, line []byte) error {
	// O_NONBLOCK: a pipe that nobody reads is an error, and no wait.
	f, err := unix.Open(path, unix.O_WRONLY|unix.O_APPEND|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0o600)
	if err == nil {
		f, err = fd.AboveStreams(f)
	}
	if err != nil {
		return fmt.Errorf("open: %w", err)
	}
	n, err := unix.Write(f, line)
	_ = unix.Close(f)
	switch {
	case err != nil:
		return fmt.Errorf("write: %w", err)
	case n < len(line):
		return fmt.Errorf("write: %w", io.ErrShortWrite)
	}
	return nil
}
