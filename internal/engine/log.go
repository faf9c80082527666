package engine

import (
	"bytes"
	"encoding/json"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ebb-offload/ebb/internal/control"
)

// logLines are the engine's lines for people, or for programs that collect logs.
type logLines struct {
	out    fdWriter
	who    control.Who
	prefix string // of text
	json   bool
}

// record is a line in JSON.
type record struct {
	Time  time.Time `json:"time"`
	Level string    `json:"level"` // info for a pause or resume, warn for what is out of the ordinary
	Msg   string    `json:"msg"`
	control.Who
	Operation string   `json:"operation,omitempty"`
	By        string   `json:"by,omitempty"`
	Tags      []string `json:"tags,omitempty"`
	Outcome   *outcome `json:"outcome,omitempty"`
}

func newLogLines(c Config) *logLines {
	return &logLines{out: newFDWriter(c.LogFD), who: whoOf(c), prefix: logPrefix(c.Identity), json: c.LogJSON}
}

// Write writes a message of the log that every part of the engine uses.
func (l *logLines) Write(p []byte) (int, error) {
	l.write(record{Level: "warn", Msg: string(oneLine(p))})
	return len(p), nil
}

// operation writes the line of a pause or resume.
func (l *logLines) operation(text string, ev control.Event, out *outcome) {
	l.write(record{Level: "info", Msg: text, Operation: ev.Operation, By: ev.By, Tags: ev.Tags, Outcome: out})
}

func (l *logLines) write(r record) {
	line := []byte(l.prefix + r.Msg)
	if l.json {
		r.Time, r.Who, r.Msg = time.Now(), l.who, strings.TrimRight(r.Msg, "\n")
		var err error
		if line, err = json.Marshal(r); err != nil {
			return // no field can fail to
		}
	}
	l.out.write(line)
}

// fdWriter writes lines to a raw descriptor, lossy and without Go's file poller, which
// would make a shared descriptor non-blocking. A negative one drops everything, and so does one
// that is another file by now: a program that closes descriptors it does not know has closed it.
type fdWriter struct {
	fd       int
	dev, ino uint64
}

func newFDWriter(fd int) fdWriter {
	var st unix.Stat_t
	if fd < 0 || unix.Fstat(fd, &st) != nil {
		return fdWriter{fd: -1}
	}
	return fdWriter{fd: fd, dev: st.Dev, ino: st.Ino}
}

func (w fdWriter) write(line []byte) {
	var st unix.Stat_t
	if w.fd >= 0 && unix.Fstat(w.fd, &st) == nil && st.Dev == w.dev && st.Ino == w.ino {
		_, _ = unix.Write(w.fd, append(bytes.TrimRight(line, "\n"), '\n'))
	}
}

// maxLine is where a message is cut, in bytes.
const maxLine = 4096

// oneLine makes one line of a message, whose errors may be joined by line breaks.
func oneLine(p []byte) []byte {
	line := bytes.ReplaceAll(bytes.TrimRight(p, "\n"), []byte("\n"), []byte("; "))
	if len(line) > maxLine {
		line = append(bytes.ToValidUTF8(line[:maxLine], nil), " …"...)
	}
	return append(line, '\n')
}

func logPrefix(identity string) string {
	if identity == "" {
		return "ebb: "
	}
	return "ebb: " + strings.TrimSpace(identity) + ": "
}
