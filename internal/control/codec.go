package control

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
)

// This file makes lines of messages and messages of lines. A request is checked in full: a misspelt field
// that was passed over could pause more than was meant.

const (
	maxTag  = 255 // bytes, as in abi/ebb.h
	maxTags = 1024
)

// codeInvalid is EBB_ERR_INVALID.
const codeInvalid = 1

// Invalid is the error of a message that makes no sense.
func Invalid(format string, args ...any) *Error {
	return &Error{Code: codeInvalid, Message: fmt.Sprintf(format, args...)}
}

// Encode makes a line of a message.
func Encode(message any) ([]byte, error) {
	line, err := json.Marshal(message)
	if err != nil {
		return nil, fmt.Errorf("encode a message: %w", err)
	}
	return append(line, '\n'), nil
}

// fields are those that each command knows beside v, id and cmd.
var fields = map[string][]string{
	CmdStatus:    nil,
	CmdPause:     {"tags", "timeout_s"},
	CmdResume:    {"tags", "timeout_s"},
	CmdRead:      {"address", "size"},
	CmdDevices:   nil,
	CmdSubscribe: nil,
	CmdWithdraw:  {"of"},
}

// ParseRequest makes a request of a line and checks it. The error says what is wrong with it; the request's ID
// is set all the same where it could be read.
func ParseRequest(line []byte) (r Request, fault *Error) {
	given := map[string]json.RawMessage{}
	switch err := decode(line, &given); {
	case err != nil:
		return r, Invalid("not a request: %v; a request is one JSON object on one line", err)
	case given == nil:
		return r, Invalid("not a request: null; a request is one JSON object on one line")
	}
	var id string
	if json.Unmarshal(given["id"], &id) == nil && len(id) <= MaxID {
		r.ID = id
	}
	if fault := checkVersion(given["v"]); fault != nil {
		return r, fault
	}
	if err := json.Unmarshal(line, &r); err != nil {
		r = Request{ID: r.ID}
		return r, Invalid("not a request: %v", err)
	}
	if len(r.ID) > MaxID {
		r.ID = ""
		return r, Invalid("the id is longer than %d bytes", MaxID)
	}
	known, ok := fields[r.Cmd]
	if !ok {
		return r, Invalid("unknown command %q: this rank knows %s", r.Cmd, commands())
	}
	for name := range given {
		if !slices.Contains([]string{"v", "id", "cmd"}, name) && !slices.Contains(known, name) {
			return r, Invalid("%s knows no field %q", r.Cmd, name)
		}
	}
	return r, r.check()
}

// decode is json.Unmarshal of one value, with nothing behind it.
func decode(line []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(line))
	if err := d.Decode(into); err != nil {
		if errors.Is(err, io.EOF) {
			return errors.New("an empty line")
		}
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("more than one value on the line")
	}
	return nil
}

func checkVersion(given json.RawMessage) *Error {
	var v float64
	switch {
	case given == nil:
		return Invalid("the request names no version of the protocol: this rank speaks version %d (\"v\":%d)", Version, Version)
	case json.Unmarshal(given, &v) != nil:
		return Invalid("the request speaks version %.40q of the protocol, which is no number; this rank speaks version %d", given, Version)
	case v != Version:
		return Invalid("the request speaks version %s of the protocol, this rank version %d: use the ebb that belongs to the rank's libebb.so",
			strconv.FormatFloat(v, 'g', -1, 64), Version)
	}
	return nil
}

func commands() string {
	list := make([]string, 0, len(fields))
	for name := range fields {
		list = append(list, name)
	}
	slices.Sort(list)
	return strings.Join(list, ", ")
}

func (r *Request) check() *Error {
	if len(r.Tags) > maxTags {
		return Invalid("%d tags are more than %d", len(r.Tags), maxTags)
	}
	for _, tag := range r.Tags {
		if tag == "" || len(tag) > maxTag || strings.ContainsRune(tag, 0) {
			return Invalid("%.40q is no tag: a tag has 1 to %d bytes, none of them 0", tag, maxTag)
		}
	}
	if t := r.Timeout; t != nil && (math.IsNaN(*t) || math.IsInf(*t, 0)) {
		return Invalid("timeout_s is no number of seconds")
	}
	if r.Cmd == CmdWithdraw && r.Of == "" {
		return Invalid("withdraw needs the id of a request in the field \"of\"")
	}
	if r.Cmd != CmdRead {
		return nil
	}
	if _, err := r.At(); err != nil {
		return Invalid("address %.40q is not of the form \"0x7f00a0000000\"", r.Address)
	}
	if r.Size == 0 || r.Size > MaxRead {
		return Invalid("size %d is not between 1 and %d bytes: read more in several requests", r.Size, MaxRead)
	}
	return nil
}

// At is the address as a number.
func (r *Request) At() (uint64, error) {
	digits, ok := strings.CutPrefix(r.Address, "0x")
	if !ok {
		return 0, errors.New("no 0x")
	}
	return strconv.ParseUint(digits, 16, 64)
}
