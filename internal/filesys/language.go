package filesys

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// call is a call by name.
type call int

const (
	mkdir call = iota
	opendirCall
	open
	closing
	fstat
	fstatat
	fstatfs
	statx
	readdir
	unlink
	rename
	fchmod
	fallocate
	discardCall
	ftruncate
	pread
	pwrite
	setfl
	syncRange
	fadvise
	fsync
	lock
	rmdir
	clone
	nCalls

	anyCall call = -1
)

var names = [nCalls]string{
	"mkdir", "opendir", "open", "close", "fstat", "fstatat", "fstatfs", "statx", "readdir", "unlink", "rename", "fchmod",
	"fallocate", "discard", "ftruncate", "pread", "pwrite", "setfl", "syncrange", "fadvise", "fsync", "lock",
	"rmdir", "clone",
}

func (c call) String() string {
	if c == anyCall {
		return "any"
	}
	return names[c]
}

// kind is a kind of fault.
type kind int

const (
	none     kind = iota
	fail          // with an error
	delay         // the call is made later
	hang          // the call is made when the faults are replaced
	short         // fewer bytes are moved than were asked for, and that is reported
	flip          // one bit of the first byte is another one, and nothing is reported
	torn          // only the first half is moved, and all is reported
	noDirect      // O_DIRECT is refused
	align         // direct I/O works in larger units than usual
	raise         // the process gets a signal first
)

// effect is what befalls one call.
type effect struct {
	kind    kind
	err     error // of fail
	delay   time.Duration
	n       int   // bytes
	given   bool  // n was
	refusal error // of noDirect and align
	signal  unix.Signal
}

// rule is one fault: what befalls which occurrences of a call, counted from 1.
type rule struct {
	call     call
	from, to int64
	every    int64
	effect   effect
	seen     int64
}

// meets says whether the occurrence just seen is one of the rule's.
func (r *rule) meets() bool {
	return r.seen >= r.from && r.seen <= r.to && r.seen%r.every == 0
}

const forever = 1<<63 - 1

// Check says what is wrong with a text that names faults, "" being none:
//
//	CALL:OCCURRENCE:WHAT[,CALL:OCCURRENCE:WHAT]…
//
// CALL is a name of the table above, or "any". OCCURRENCE counts calls of that name from 1: "3" is
// the third, "3+" the third and all later ones, "/3" every third, "*" each. WHAT is
//
//	EIO, ENOSPC, EINTR …   the call is not made and reports this error
//	delay=200ms            the call is made that much later
//	hang                   the call is not made until the faults are replaced
//	SIGSTOP, SIGKILL …     the process gets this signal, then the call is made
//	short, short=BYTES     pread, pwrite: half of the bytes, or so many, are moved, and told
//	flip                   pread, pwrite: one bit changes, silently
//	torn                   pread, pwrite: the first half arrives, but all is told
//	nodirect               open, pread, pwrite: O_DIRECT is refused with EINVAL; an open leaves
//	                       the file that it made, as kernels do. nodirect=EOPNOTSUPP: with that
//	align=BYTES            statx tells this unit of direct I/O; pread and pwrite refuse others
//
// Where several faults meet one call the first of the list befalls it.
func Check(spec string) error {
	_, err := parse(spec)
	return err
}

func parse(spec string) (rules []rule, err error) {
	if spec == "" {
		return nil, nil
	}
	for one := range strings.SplitSeq(spec, ",") {
		r, err := parseOne(strings.TrimSpace(one))
		if err != nil {
			return nil, fmt.Errorf("fault %q: %w", one, err)
		}
		rules = append(rules, r)
	}
	return rules, nil
}

func parseOne(text string) (r rule, err error) {
	part := strings.Split(text, ":")
	if len(part) != 3 {
		return r, fmt.Errorf("it must be CALL:OCCURRENCE:WHAT")
	}
	if r.call, err = parseCall(part[0]); err != nil {
		return r, err
	}
	if err = r.parseOccurrence(part[1]); err != nil {
		return r, err
	}
	r.effect, err = parseEffect(r.call, part[2])
	return r, err
}

func parseCall(name string) (call, error) {
	if name == "any" {
		return anyCall, nil
	}
	for c := range nCalls {
		if names[c] == name {
			return c, nil
		}
	}
	return 0, fmt.Errorf("no call %q: any %s", name, strings.Join(names[:], " "))
}

func (r *rule) parseOccurrence(text string) error {
	r.from, r.to, r.every = 1, forever, 1
	if text == "*" {
		return nil
	}
	number, later := strings.CutSuffix(text, "+")
	number, every := strings.CutPrefix(number, "/")
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n < 1 || later && every {
		return fmt.Errorf("no occurrence %q: N, N+, /N or *, with N from 1", text)
	}
	switch {
	case every:
		r.every = n
	case later:
		r.from = n
	default:
		r.from, r.to = n, n
	}
	return nil
}

func parseEffect(c call, text string) (e effect, err error) {
	word, value, given := strings.Cut(text, "=")
	only := func(k kind, calls ...call) error {
		e.kind = k
		for _, allowed := range calls {
			if c == allowed {
				return nil
			}
		}
		return fmt.Errorf("%s is not for %v", word, c)
	}
	switch word {
	case "delay":
		e.kind = delay
		e.delay, err = time.ParseDuration(value)
		if err == nil && e.delay < 0 {
			err = fmt.Errorf("a time cannot be negative")
		}
		return e, err
	case "short":
		if err = only(short, pread, pwrite); err == nil && given {
			e.given = true
			e.n, err = parseBytes(value, 0)
		}
		return e, err
	case "nodirect":
		e.refusal = unix.EINVAL
		if err = only(noDirect, open, pread, pwrite); err == nil && given {
			e.refusal, err = parseErrno(value)
		}
		return e, err
	case "align":
		e.refusal = unix.EINVAL
		if err = only(align, statx, pread, pwrite); err == nil {
			e.n, err = parseBytes(value, 1)
		}
		return e, err
	}
	switch text {
	case "hang":
		e.kind = hang
		return e, nil
	case "flip":
		return e, only(flip, pread, pwrite)
	case "torn":
		return e, only(torn, pread, pwrite)
	}
	if e.signal = unix.SignalNum(text); e.signal != 0 {
		e.kind = raise
		return e, nil
	}
	e.kind = fail
	e.err, err = parseErrno(text)
	return e, err
}

func parseBytes(text string, least int) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil || n < least {
		return 0, fmt.Errorf("%q is no number of bytes", text)
	}
	return n, nil
}

// parseErrno finds an error by its name. The numbers are those of Linux's headers.
func parseErrno(name string) (error, error) {
	if name == "EOPNOTSUPP" { // known as ENOTSUP too
		return unix.EOPNOTSUPP, nil
	}
	for n := unix.Errno(1); n < 200; n++ {
		if name != "" && unix.ErrnoName(n) == name {
			return n, nil
		}
	}
	return nil, fmt.Errorf("no fault %q: the name of an error or signal, delay=TIME, hang, short, flip, torn, nodirect or align=BYTES", name)
}
