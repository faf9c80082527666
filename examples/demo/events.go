package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// event is one JSON line from a rank, the rollout engine or the conductor. Which fields count depends on Event.
type event struct {
	Event   string  `json:"event"` // start, loss, digest, memory, idle, pause, rollout, resume, end; engine: it listens
	Rank    int     `json:"rank"`
	Step    int     `json:"step"`
	Loss    string  `json:"loss"`   // every bit of it: C's %a
	Digest  string  `json:"digest"` // hash of all training state
	Cycle   int     `json:"cycle"`
	When    string  `json:"when"` // before, while, after
	Used    uint64  `json:"used"` // bytes of the device, by all processes
	Total   uint64  `json:"total"`
	Bytes   uint64  `json:"bytes"` // of a rollout
	Seconds float64 `json:"seconds"`
	Status  *status `json:"status"`
	Sample  string  `json:"sample"`
	Parking bool    `json:"parking"`

	Allocations uint64 `json:"allocations"`
	Allocated   uint64 `json:"allocated"`
}

// status is the part of ebb_status that the demo looks at.
type status struct {
	BytesPaused  uint64    `json:"bytes_paused"`
	StagingBytes uint64    `json:"staging_bytes"`
	LastPause    operation `json:"last_pause"`
	LastResume   operation `json:"last_resume"`
}

// operation is what the last pause or resume of a rank did.
type operation struct {
	Bytes uint64 `json:"bytes"`
	Error string `json:"error"`
}

// eventPipe is the FIFO that the processes of one job write their events to.
type eventPipe struct {
	path string
	file *os.File
	done chan error
}

// lastEvent is what the reader's own end writes when all other writers are gone.
const lastEvent = "closed"

// openEvents makes the FIFO and calls handle for each event, one at a time, until Close.
func openEvents(path string, handle func(event)) (*eventPipe, error) {
	if err := unix.Mkfifo(path, 0o600); err != nil {
		return nil, fmt.Errorf("make FIFO %s: %w", path, err)
	}
	// Open for writing too: the reader sees no end of file while ranks come and go.
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open events: %w", err), os.Remove(path))
	}
	p := &eventPipe{path: path, file: file, done: make(chan error, 1)}
	go func() { p.done <- readEvents(bufio.NewScanner(file), handle) }()
	return p, nil
}

// readEvents goes on after a line it cannot read, so that no writer is ever stuck, and returns
// the first such error at the end.
func readEvents(lines *bufio.Scanner, handle func(event)) error {
	var first error
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			if first == nil {
				first = fmt.Errorf("event %q: %w", lines.Text(), err)
			}
			continue
		}
		if e.Event == lastEvent {
			return first
		}
		handle(e)
	}
	return errors.Join(first, lines.Err())
}

// write is for events of the driver's own.
func (p *eventPipe) write(e event) error {
	line, err := json.Marshal(e)
	if err == nil {
		_, err = p.file.Write(append(line, '\n'))
	}
	if err != nil {
		return fmt.Errorf("write event %s: %w", e.Event, err)
	}
	return nil
}

// Close is called when no process of the job lives. It returns when everything that they wrote
// was handled.
func (p *eventPipe) Close() error {
	_, err := fmt.Fprintf(p.file, "{\"event\":%q}\n", lastEvent)
	if err == nil {
		err = <-p.done
	}
	return errors.Join(err, p.file.Close(), os.Remove(p.path))
}
