package report

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ebb-offload/ebb/internal/control"
)

// maxLine is the longest line that is looked at, in bytes: no message of a rank is longer.
const maxLine = control.MaxReply

// Times outside of these are no times of a job. Within them they are counted in nanoseconds of an int64.
var (
	earliest = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
	latest   = time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC)
)

// outcome is what an operation did: last_pause or last_resume of ebb_status. Sizes are bytes.
type outcome struct {
	Bytes       uint64             `json:"bytes"`
	DeviceBytes uint64             `json:"device_bytes"`
	HostBytes   uint64             `json:"host_bytes"`
	DiskBytes   uint64             `json:"disk_bytes"`
	SkippedZero uint64             `json:"skipped_zero_bytes"`
	SkippedSame uint64             `json:"skipped_same_bytes"`
	Unused      uint64             `json:"skipped_unused_bytes"`
	Kept        uint64             `json:"kept_bytes"`
	Missing     uint64             `json:"missing_bytes"`
	Seconds     float64            `json:"seconds"`
	Phases      map[string]float64 `json:"phases"`
	Error       string             `json:"error"`
}

// event is a line of a log that counts here.
type event struct {
	who     control.Who
	host    string
	at      int64 // Unix time in nanoseconds
	seq     uint64
	kind    string // of control
	pause   bool   // of an operation: a pause, else a resume
	partial bool   // of an operation: of some tags only
	phase   string
	done    *outcome // of an end
	text    string   // what went wrong
}

// unread counts what could not be taken from files.
type unread struct {
	Lines int // that are no events
	Cut   int // files whose last line has no end: the process was killed while it wrote, or writes it now
	Long  int // lines that are too long
}

// readLines calls take for each line of a log, which says whether it could be used. The error is that of the
// reader.
func readLines(r io.Reader, take func(line []byte) bool) (bad unread, err error) {
	in := bufio.NewReaderSize(r, 256<<10)
	var line []byte
	for {
		line, err = readLine(in, line[:0])
		whole := err == nil
		switch {
		case len(line) > maxLine:
			bad.Long++
		case len(bytes.TrimSpace(line)) == 0 || take(line):
		case whole:
			bad.Lines++
		default:
			bad.Cut++
		}
		if errors.Is(err, io.EOF) {
			return bad, nil
		}
		if err != nil {
			return bad, err
		}
	}
}

// readEvents calls take for each event of a rank's log.
func readEvents(r io.Reader, take func(event)) (unread, error) {
	return readLines(r, func(line []byte) bool {
		e, ok := parse(line)
		if ok {
			take(e)
		}
		return ok
	})
}

// readLine appends the next line to line, without its end; of one that is too long, a part that is too
// long as well. The error is io.EOF for the last line, if that has no end.
func readLine(in *bufio.Reader, line []byte) ([]byte, error) {
	for {
		part, err := in.ReadSlice('\n')
		if len(line) <= maxLine {
			line = append(line, part...)
		}
		switch {
		case err == nil:
			return bytes.TrimSuffix(line, []byte("\n")), nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return line, err
		}
	}
}

// parse takes an event from a line. What it does not know it leaves out.
func parse(line []byte) (event, bool) {
	raw, ok := decode(line)
	if !ok {
		return event{}, false
	}
	e := event{
		who: raw.Who, host: raw.Host, at: raw.Time.UnixNano(), seq: raw.Seq, kind: raw.Kind,
		pause: raw.Operation == "pause", partial: len(raw.Tags) > 0, phase: raw.Phase, text: raw.Error,
	}
	switch raw.Kind {
	case control.EventBegin, control.EventEnd:
		if raw.Operation != "pause" && raw.Operation != "resume" {
			return event{}, false
		}
	}
	if raw.Kind == control.EventEnd {
		e.done = &outcome{}
		if len(raw.Outcome) > 0 && json.Unmarshal(raw.Outcome, e.done) != nil {
			return event{}, false
		}
		if e.done.Seconds == 0 {
			e.done.Seconds = raw.Seconds
		}
		e.done.Seconds = sane(e.done.Seconds)
		for phase, s := range e.done.Phases {
			e.done.Phases[phase] = sane(s)
		}
		if e.text == "" {
			e.text = excerpt(e.done.Error)
		}
	}
	return e, true
}

// decode takes an event of any kind from a line.
func decode(line []byte) (e control.Event, ok bool) {
	if json.Unmarshal(line, &e) != nil || e.Kind == "" || e.PID <= 0 || e.Time.Before(earliest) || e.Time.After(latest) {
		return e, false
	}
	e.Who, e.Host, e.Phase, e.Error = clean(e.Who), short(e.Host), short(e.Phase), excerpt(e.Error)
	e.Seconds = sane(e.Seconds)
	return e, true
}

// sane makes a duration in seconds one that can be added up.
func sane(s float64) float64 {
	if math.IsNaN(s) || s < 0 {
		return 0
	}
	return min(s, 1e9)
}

func clean(w control.Who) control.Who {
	w.Job, w.Role, w.Cell, w.Rank = short(w.Job), short(w.Role), short(w.Cell), short(w.Rank)
	return w
}

// short bounds a name, and excerpt what was said.
func short(s string) string   { return cut(s, 120) }
func excerpt(s string) string { return cut(s, 1000) }

func cut(s string, n int) string {
	s = strings.ToValidUTF8(s, "�")
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "") + "…"
}

// SwapSuffix ends the names of the logs of ebb swap.
const SwapSuffix = "__swap.jsonl"

// Files are the logs among paths: files, and those in directories.
func Files(paths []string) ([]string, error) {
	var files []string
	for _, path := range paths {
		info, err := os.Stat(path)
		if err != nil {
			return nil, err
		}
		if !info.IsDir() {
			files = append(files, path)
			continue
		}
		entries, err := os.ReadDir(path)
		if err != nil {
			return nil, err
		}
		for _, entry := range entries {
			name := filepath.Join(path, entry.Name())
			if info, err := os.Stat(name); err == nil && info.Mode().IsRegular() && filepath.Ext(name) == ".jsonl" {
				files = append(files, name)
			}
		}
	}
	slices.Sort(files)
	return slices.Compact(files), nil
}

// ofLauncher is the form of names that ebb's launcher gives: such a file is of one rank of one job.
var ofLauncher = regexp.MustCompile(`__[^/]+_cell[0-9]+_rank[0-9]+[.]jsonl`)

// log is a file of events.
type log struct {
	path string
	swap bool             // of ebb swap
	rank string           // of a file that is one rank's: its key
	jobs map[string]int64 // the jobs that it has events of, with the time of the latest
}

// look finds out whose a file is and how new. Of one that is one rank's, both ends tell that.
func look(path string) (log, error) {
	l := log{path: path, swap: strings.HasSuffix(path, SwapSuffix), jobs: map[string]int64{}}
	one := ofLauncher.MatchString(path)
	f, err := open(path)
	if err != nil {
		return l, err
	}
	defer f.Close()
	note := func(line []byte) bool {
		e, ok := decode(line)
		if !ok {
			return false
		}
		if one && l.rank == "" {
			l.rank = key(event{who: e.Who, host: e.Host})
		}
		l.jobs[e.Job] = max(l.jobs[e.Job], e.Time.UnixNano())
		return true
	}
	const some = 64 << 10
	limit := int64(math.MaxInt64)
	if one {
		limit = some
	}
	if _, err := readLines(io.LimitReader(f, limit), note); err != nil {
		return l, fmt.Errorf("read %s: %w", path, err)
	}
	if end, err := f.Seek(0, io.SeekEnd); err != nil || end <= some || !one {
		return l, err
	}
	if _, err := f.Seek(-some, io.SeekEnd); err != nil {
		return l, fmt.Errorf("read %s: %w", path, err)
	}
	if _, err := readLines(f, note); err != nil {
		return l, fmt.Errorf("read %s: %w", path, err)
	}
	return l, nil
}

// open opens a file to read. What is no file, say a pipe, could be read only once; the opening does not wait
// for somebody who writes into one.
func open(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = &fs.PathError{Op: "read", Path: path, Err: errors.New("not a plain file")}
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// key tells ranks apart. A process that no launcher told who it is stands for itself.
func key(e event) string {
	if e.who.Rank == "" {
		return fmt.Sprintf("%s\x00%s\x00%d", e.who.Job, e.host, e.who.PID)
	}
	return fmt.Sprintf("%s\x00%s\x00%s\x00%s\x00rank", e.who.Job, e.who.Role, e.who.Cell, e.who.Rank)
}
