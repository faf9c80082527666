// Package control is what a rank and those that command it from outside say to each other. This file
// has the messages; docs/control.md describes the protocol for programs in other languages.
//
// A connection is a stream socket of the Unix domain. Each message is one JSON object on one line. The
// rank speaks first (Hello), then each Request is answered by one Reply with its id, in any order, since
// a pause may wait while a status does not. After a subscription come Events, which have no id.
//
// The package knows no engine and no command line: package control/server is the rank's side,
// control/client the other.
package control

import (
	"encoding/json"
	"time"
)

// Version is that of the protocol. A rank refuses requests of another one and names both.
const Version = 1

// Limits of one message, in bytes with its line break.
const (
	MaxRequest = 64 << 10
	MaxReply   = 4 << 20
	MaxRead    = 1 << 20 // bytes of memory in one answer to Read
	MaxID      = 128
)

// Who tells who a rank is. Texts are empty where no launcher told.
type Who struct {
	Job  string `json:"job,omitempty"`
	Role string `json:"role,omitempty"`
	Cell string `json:"cell,omitempty"`
	Rank string `json:"rank,omitempty"`
	PID  int    `json:"pid"`
}

// Hello is the first message of a connection, from the rank.
type Hello struct {
	V   int    `json:"v"`
	EBB string `json:"ebb"` // version of the library
	Who
	Started time.Time `json:"started"` // when the engine started
}

// Commands.
const (
	CmdStatus    = "status"    // Result: the JSON object of ebb_status
	CmdPause     = "pause"     // at the rank's next safe point; Result: Done
	CmdResume    = "resume"    // Result: Done
	CmdRead      = "read"      // Result: Bytes
	CmdDevices   = "devices"   // Result: []Device
	CmdSubscribe = "subscribe" // Result: null; Events follow until the connection ends
	CmdWithdraw  = "withdraw"  // this connection no longer asks for the pause Of; Result: null. The pause's own reply says whether it had begun
)

// Request asks for something. The same ID again, on any connection, is the same request: one under way
// is joined, one that is done is answered as it was. IDs of pauses and resumes are remembered for the latest
// 64; an empty ID is nobody's, and its reply has none.
type Request struct {
	V       int      `json:"v"`
	ID      string   `json:"id,omitempty"`
	Cmd     string   `json:"cmd"`
	Tags    []string `json:"tags,omitempty"`      // pause, resume; none: everything
	Timeout *float64 `json:"timeout_s,omitempty"` // pause: for the safe point; resume: for device memory. Missing: the rank's default
	Address string   `json:"address,omitempty"`   // read: "0x7f…"
	Size    uint64   `json:"size,omitempty"`      // read
	Of      string   `json:"of,omitempty"`        // withdraw: the ID of a pause or resume
}

// Reply answers one Request: with a Result, or with an Error.
type Reply struct {
	V      int             `json:"v"`
	ID     string          `json:"id,omitempty"`
	OK     bool            `json:"ok"`
	Result json.RawMessage `json:"result,omitempty"`
	Error  *Error          `json:"error,omitempty"`
}

// Error is why a request failed. Code is that of abi/ebb.h; of the protocol's own faults it is
// 1 (EBB_ERR_INVALID).
type Error struct {
	Code    int      `json:"code"`
	Message string   `json:"message"`
	Device  *int     `json:"device,omitempty"`
	Need    uint64   `json:"need_bytes,omitempty"`
	Free    uint64   `json:"free_bytes,omitempty"`
	Dir     string   `json:"dir,omitempty"`
	Holders []Holder `json:"holders,omitempty"`
	Done    *Done    `json:"done,omitempty"` // what was done all the same, of a pause in part
}

func (e *Error) Error() string { return e.Message }

// Done is what a pause or resume did; all are bytes but the times.
type Done struct {
	Allocations uint64  `json:"allocations"`
	Bytes       uint64  `json:"bytes"`        // logical
	DeviceBytes uint64  `json:"device_bytes"` // physical memory released or created
	HostBytes   uint64  `json:"host_bytes"`
	DiskBytes   uint64  `json:"disk_bytes"`
	SkippedZero uint64  `json:"skipped_zero_bytes"`
	SkippedSame uint64  `json:"skipped_same_bytes"`
	Kept        uint64  `json:"kept_bytes"`
	Freed       uint64  `json:"freed_bytes"`   // of a pause: that became free on the devices, as the driver says
	Missing     uint64  `json:"missing_bytes"` // of a pause: released, and neither free nor taken by others; see Unclear
	Seconds     float64 `json:"seconds"`
	Waited      float64 `json:"waited_seconds"` // for the safe point, before Seconds
}

// Tolerance is by how many bytes what became free may differ from what was released: the driver's own tables
// grow and shrink too.
func Tolerance(released uint64) uint64 { return max(4<<20, released/64) }

// Unclear is how much of what a pause released is neither known to be free nor to be missing: the driver shows less
// free memory than it should, or nothing, and what other processes took meanwhile is not told.
func Unclear(released, freed, missing uint64) uint64 {
	if missing > 0 || freed+Tolerance(released) >= released {
		return 0
	}
	return released - freed
}

// Device is one device that the rank has memory on. Sizes are bytes.
type Device struct {
	Ordinal int      `json:"ordinal"` // in the rank
	Name    string   `json:"name"`
	UUID    string   `json:"uuid,omitempty"`
	Total   uint64   `json:"total_bytes"`
	Free    uint64   `json:"free_bytes"`
	Holders []Holder `json:"holders"` // processes that hold its memory; empty where that is not told
}

// Holder is a process that holds device memory.
type Holder struct {
	PID   int    `json:"pid"`
	Bytes uint64 `json:"bytes"`
	Name  string `json:"name"`
}

// Bytes is memory that was read.
type Bytes struct {
	Data []byte `json:"data"` // base64 on the wire
}

// Kinds of events.
const (
	EventStart    = "start"    // the engine started
	EventBegin    = "begin"    // an operation begins: Operation, Tags, By, Total
	EventPhase    = "phase"    // a phase ended: Phase, Seconds, Bytes moved so far
	EventProgress = "progress" // Bytes of Total are moved, at most 4 a second
	EventEnd      = "end"      // the operation ended: Outcome, and Error where it failed
	EventAsked    = "asked"    // a pause from outside waits for a safe point
	EventWithdraw = "withdraw" // it was withdrawn, or its time is over
	EventLost     = "lost"     // Lost events did not reach this subscriber, who reads too slowly
	EventExit     = "exit"     // the process exits
)

// Event is something that happened in a rank. The lines of an event log are Events too.
type Event struct {
	V    int       `json:"v"`
	Time time.Time `json:"time"`
	Seq  uint64    `json:"seq"` // counts up by one in each process
	Who
	Host      string          `json:"host,omitempty"`
	Kind      string          `json:"event"`
	Operation string          `json:"operation,omitempty"` // pause, resume
	By        string          `json:"by,omitempty"`        // program, control
	ID        string          `json:"id,omitempty"`        // of the request that the operation was asked for with
	Tags      []string        `json:"tags,omitempty"`      // none: everything
	Phase     string          `json:"phase,omitempty"`     // as in last_pause.phases
	Bytes     uint64          `json:"bytes,omitempty"`
	Total     uint64          `json:"total_bytes,omitempty"`
	Seconds   float64         `json:"seconds,omitempty"`
	Lost      uint64          `json:"lost,omitempty"`
	Outcome   json.RawMessage `json:"outcome,omitempty"` // of an end: the object of last_pause or last_resume
	Error     string          `json:"error,omitempty"`
}
