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
	Bytes       uint64  `json:"bytes"`
	DeviceBytes uint64  `json:"device_bytes"`
	HostBytes   uint64  `json:"host_bytes"`
	DiskBytes   uint64  `json:"disk_bytes"`
	SkippedZero uint64  `json:"skipped_zero_bytes"`
	SkippedSame uint64  `json:"skipped_same_bytes"`
	Unused      uint64  `json:"skipped_unused_bytes"`
	Kept        uint64  `json:"kept_bytes"`
	Missing     uint64  `json:"missing_bytes"`
	Seconds     float64 `json:"seconds"`

	phases []Phase
	text   string // what went wrong
}

// event is a line of a log that counts here. There may be many: whose it is stands once for all of a process.
type event struct {
	at      int64 // Unix time in nanoseconds
	seq     uint64
	phase   string
	done    *outcome // of an end
	kind    kind
	pause   bool // of an operation: a pause, else a resume
	partial bool // of an operation: of some tags only
}

// kind is that of an event, as control names it.
type kind uint8

const (
	kindOther kind = iota // that says nothing here
	kindStart
	kindBegin
	kindPhase
	kindProgress
	kindEnd
	kindWithdraw
	kindExit
)

func kindOf(name []byte) kind {
	switch string(name) {
	case control.EventProgress:
		return kindProgress
	case control.EventPhase:
		return kindPhase
	case control.EventBegin:
		return kindBegin
	case control.EventEnd:
		return kindEnd
	case control.EventStart:
		return kindStart
	case control.EventWithdraw:
		return kindWithdraw
	case control.EventExit:
		return kindExit
	}
	return kindOther
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
			takeAfter(line, take)
		default:
			bad.Cut++
			takeAfter(line, take)
		}
		if errors.Is(err, io.EOF) {
			return bad, nil
		}
		if err != nil {
			return bad, err
		}
	}
}

// takeAfter takes the event that was written behind a line that has no end, since not all of that found room on
// the disk. (In a text of an event its beginning cannot be: quotes are escaped there.)
func takeAfter(line []byte, take func(line []byte) bool) {
	if i := bytes.LastIndex(line, []byte(`{"v":`)); i > 0 {
		take(line[i:])
	}
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

// outcomeOf takes the outcome of an end.
func outcomeOf(f *fields, name func([]byte) string) (*outcome, bool) {
	wire := struct {
		outcome
		Phases map[string]float64 `json:"phases"`
		Error  string             `json:"error"`
	}{}
	if len(f.outcome) > 0 && json.Unmarshal(f.outcome, &wire) != nil {
		return nil, false
	}
	o := wire.outcome
	if o.Seconds == 0 {
		o.Seconds = f.seconds
	}
	o.Seconds = sane(o.Seconds)
	if o.text = string(f.error); o.text == "" {
		o.text = excerpt(wire.Error)
	}
	if len(wire.Phases) == 0 {
		return &o, true
	}
	o.phases = make([]Phase, 0, len(wire.Phases))
	for phase, s := range wire.Phases {
		o.phases = append(o.phases, Phase{name([]byte(cut(phase, 24))), sane(s)})
	}
	slices.SortFunc(o.phases, func(a, b Phase) int { return strings.Compare(a.Name, b.Name) }) // so that sums are the same each time
	return &o, true
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
func short(s string) string   { return cut(s, maxName) }
func excerpt(s string) string { return cut(s, maxExcerpt) }

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
	var s scanner
	note := func(line []byte) bool {
		if !s.take(line) {
			return false
		}
		if one && l.rank == "" {
			l.rank = key(s.who(), string(s.host))
		}
		if at, known := l.jobs[string(s.job)]; !known || s.at > at {
			l.jobs[string(s.job)] = s.at
		}
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
func key(who control.Who, host string) string {
	if who.Rank == "" {
		return fmt.Sprintf("%s\x00%s\x00%d", who.Job, host, who.PID)
	}
	return fmt.Sprintf("%s\x00%s\x00%s\x00%s\x00rank", who.Job, who.Role, who.Cell, who.Rank)
}
