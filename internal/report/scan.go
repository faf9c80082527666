package report

import (
	"bytes"
	"strconv"
	"time"

	"github.com/ebb-offload/ebb/internal/control"
)

// A log of weeks has millions of lines, most of them of progress. So lines as ranks write them are taken apart
// here, without memory of their own; what looks otherwise is left to encoding/json (decode), which has the last
// word about what an event is.

// fields are those of an event that count here. Texts are parts of the line.
type fields struct {
	job, role, cell, rank, host   []byte
	pid                           int
	at                            int64 // Unix time in nanoseconds
	seq                           uint64
	kind, operation, phase, error []byte
	tags                          bool
	seconds                       float64
	outcome                       []byte
}

func (f *fields) who() control.Who {
	return control.Who{Job: string(f.job), Role: string(f.role), Cell: string(f.cell), Rank: string(f.rank), PID: f.pid}
}

// Lengths up to which texts are kept whole (short, excerpt).
const (
	maxName    = 120
	maxExcerpt = 1000
)

// scanner takes lines apart, one after the other.
type scanner struct {
	fields
	days map[[len(dayForm)]byte]int64 // begin of a day, in Unix nanoseconds
}

// take takes a line apart. It is false for one that is no event.
func (s *scanner) take(line []byte) bool {
	if s.quick(line) {
		return true
	}
	e, ok := decode(line)
	if !ok {
		return false
	}
	s.fields = fieldsOf(e)
	return true
}

func fieldsOf(e control.Event) fields {
	return fields{
		job: []byte(e.Job), role: []byte(e.Role), cell: []byte(e.Cell), rank: []byte(e.Rank), host: []byte(e.Host), pid: e.PID,
		at: e.Time.UnixNano(), seq: e.Seq, kind: []byte(e.Kind), operation: []byte(e.Operation), phase: []byte(e.Phase), error: []byte(e.Error),
		tags: len(e.Tags) > 0, seconds: e.Seconds, outcome: e.Outcome,
	}
}

// quick takes a line apart that has the form in which ranks write: an object of the known fields, without blanks,
// escapes, or letters that are not ASCII. It is false for all others, and for values out of their ranges.
func (s *scanner) quick(line []byte) bool {
	s.fields = fields{}
	if len(line) < 2 || line[0] != '{' || line[len(line)-1] != '}' {
		return false
	}
	rest, known := line[1:], false
	for {
		var name []byte
		if name, rest = text(rest); name == nil || len(rest) < 2 || rest[0] != ':' {
			return false
		}
		if rest, known = s.field(name, rest[1:]); !known || len(rest) == 0 {
			return false
		}
		switch {
		case rest[0] == ',':
			rest = rest[1:]
		case rest[0] == '}' && len(rest) == 1:
			return len(s.kind) > 0 && s.pid > 0 && s.at >= earliest.UnixNano() && s.at <= latest.UnixNano() &&
				(len(s.outcome) == 0 || string(s.kind) == control.EventEnd)
		default:
			return false
		}
	}
}

// field takes the value of a field, and returns what comes after it; false: it is none of those that are known here.
func (s *scanner) field(name, in []byte) (rest []byte, known bool) {
	var to *[]byte
	most := maxName
	switch string(name) {
	case "job":
		to = &s.job
	case "role":
		to = &s.role
	case "cell":
		to = &s.cell
	case "rank":
		to = &s.rank
	case "host":
		to = &s.host
	case "event":
		to = &s.kind
	case "operation":
		to = &s.operation
	case "phase":
		to = &s.phase
	case "error":
		to, most = &s.error, maxExcerpt
	case "by":
		var by []byte
		to = &by
	case "id":
		var id []byte
		to = &id
	case "time":
		var when []byte
		when, rest = text(in)
		ok := false
		s.at, ok = s.time(when)
		return rest, ok
	case "seq":
		return whole(in, &s.seq)
	case "v", "bytes", "total_bytes", "lost":
		var n uint64
		return whole(in, &n)
	case "pid":
		var n uint64
		rest, known = whole(in, &n)
		s.pid = int(n & (1<<31 - 1))
		return rest, known && n < 1<<31
	case "seconds":
		return fraction(in, &s.seconds)
	case "tags":
		return s.list(in)
	case "outcome":
		if s.outcome != nil {
			return in, false
		}
		s.outcome, rest = object(in)
		return rest, s.outcome != nil
	default:
		return in, false
	}
	*to, rest = text(in)
	return rest, *to != nil && len(*to) <= most
}

// text takes a text without escapes; nil: it is none, or has some.
func text(in []byte) (inside, rest []byte) {
	if len(in) == 0 || in[0] != '"' {
		return nil, in
	}
	for i := 1; i < len(in); i++ {
		switch c := in[i]; {
		case c == '"':
			return in[1:i:i], in[i+1:]
		case c == '\\' || c < ' ' || c >= 0x7f:
			return nil, in
		}
	}
	return nil, in
}

// whole takes a number of at most 18 digits.
func whole(in []byte, to *uint64) (rest []byte, ok bool) {
	n, i := uint64(0), 0
	for ; i < len(in) && in[i] >= '0' && in[i] <= '9'; i++ {
		n = n*10 + uint64(in[i]-'0')
	}
	*to = n
	return in[i:], i > 0 && i <= 18 && (in[0] != '0' || i == 1)
}

// fraction takes a number with or without a fraction, and without an exponent.
func fraction(in []byte, to *float64) (rest []byte, ok bool) {
	var n uint64
	rest, ok = whole(in, &n)
	if !ok {
		return rest, false
	}
	if len(rest) == 0 || rest[0] != '.' {
		*to = float64(n)
		return rest, len(rest) > 0 && rest[0] != 'e' && rest[0] != 'E'
	}
	i := 1
	for i < len(rest) && rest[i] >= '0' && rest[i] <= '9' {
		i++
	}
	if i == 1 || i > 30 || i == len(rest) || rest[i] == 'e' || rest[i] == 'E' {
		return rest, false
	}
	f, err := strconv.ParseFloat(string(in[:len(in)-len(rest)+i]), 64)
	*to = f
	return rest[i:], err == nil
}

// list takes a list of texts: what they are does not count here.
func (s *scanner) list(in []byte) (rest []byte, ok bool) {
	if len(in) < 2 || in[0] != '[' {
		return in, false
	}
	rest = in[1:]
	for {
		var one []byte
		if one, rest = text(rest); one == nil || len(rest) == 0 {
			return rest, false
		}
		s.tags = true
		switch rest[0] {
		case ']':
			return rest[1:], true
		case ',':
			rest = rest[1:]
		default:
			return rest, false
		}
	}
}

// object takes an object as it is, whatever is in it: who uses it sees whether that is one.
func object(in []byte) (all, rest []byte) {
	if len(in) == 0 || in[0] != '{' {
		return nil, in
	}
	deep := 0
	for i := 0; i < len(in); i++ {
		switch in[i] {
		case '{':
			deep++
		case '}':
			if deep--; deep == 0 {
				return in[: i+1 : i+1], in[i+1:]
			}
		case '"':
			end := bytes.IndexByte(in[i+1:], '"')
			if end < 0 || bytes.IndexByte(in[i+1:i+1+end], '\\') >= 0 {
				return nil, in
			}
			i += end + 1
		}
	}
	return nil, in
}

// Forms of times: a day, and the whole without a fraction.
const (
	dayForm    = "2006-01-02"
	secondForm = "2006-01-02T15:04:05"
)

// time takes a time in UTC as ranks write it.
func (s *scanner) time(in []byte) (ns int64, ok bool) {
	n := len(secondForm)
	if len(in) <= n || in[len(in)-1] != 'Z' || in[10] != 'T' || in[13] != ':' || in[16] != ':' {
		return 0, false
	}
	day := [len(dayForm)]byte(in)
	begin, known := s.days[day]
	if !known {
		t, err := time.Parse(dayForm, string(day[:]))
		if err != nil || t.Before(earliest) || t.After(latest) {
			return 0, false
		}
		if s.days == nil || len(s.days) > 1000 {
			s.days = map[[len(dayForm)]byte]int64{}
		}
		begin = t.UnixNano()
		s.days[day] = begin
	}
	hour, okH := two(in[11:])
	minute, okM := two(in[14:])
	second, okS := two(in[17:])
	if !okH || !okM || !okS || hour > 23 || minute > 59 || second > 59 {
		return 0, false
	}
	ns = begin + ((hour*60+minute)*60+second)*int64(time.Second)
	if in[n] == 'Z' {
		return ns, len(in) == n+1
	}
	digits := in[n+1 : len(in)-1]
	if in[n] != '.' || len(digits) == 0 || len(digits) > 9 {
		return 0, false
	}
	part := int64(time.Second)
	for _, c := range digits {
		if c < '0' || c > '9' {
			return 0, false
		}
		part /= 10
		ns += int64(c-'0') * part
	}
	return ns, true
}

// two takes two digits.
func two(in []byte) (n int64, ok bool) {
	a, b := in[0]-'0', in[1]-'0'
	return int64(a)*10 + int64(b), a <= 9 && b <= 9
}
