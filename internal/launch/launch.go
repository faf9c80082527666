// Package launch starts the ranks of one node: it checks what was asked for, composes each
// rank's environment, gives each rank its directory, supervises the processes and reclaims
// what they leave.
//
// The order of a run, and the file that does each part:
//
//	options.go      what was asked for, checked without touching anything
//	identity.go     who this process is under an outer launcher
//	job.go          the job's name when none was given
//	libraries.go    ebb's own libraries
//	command.go      the program to start
//	directory.go    whether the disk directory may be used
//	environment.go  a rank's environment (pure)
//	probe.go        whether preload and GPU driver work in that environment
//	claims.go       rank directories: sweep, claim, reclaim
//	supervise.go    start, signals, exit statuses; group.go, output.go, guard.go,
//	                orphans.go, signals.go and terminal.go serve it
//
// Nothing is created before everything that can be checked was checked.
package launch

import (
	"errors"
	"fmt"
)

// Exit statuses of ebb itself; docs/exit-codes.md explains them. Everything else is the status
// of the command that ebb ran.
const (
	StatusUsage         = 2   // the command line, a variable or the disk directory is wrong
	StatusDevice        = 72  // the GPU driver or the preloaded library does not work
	StatusDirectory     = 73  // a rank directory could not be made, claimed or removed
	StatusInstall       = 74  // one of ebb's own files is missing
	StatusInternal      = 79  // a failure of the system or a defect in ebb
	StatusNotExecutable = 126 // the command exists and cannot be executed
	StatusNotFound      = 127 // the command does not exist
	statusSignal        = 128 // plus the number of the signal that ended the command
)

// Error is a failure of ebb itself, with the status it ends with. Its text is one line with
// the remedy.
type Error struct {
	Status int
	Text   string
	Err    error // the cause, or nil
}

func (e *Error) Error() string { return e.Text }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Usagef is an Error with StatusUsage.
func Usagef(format string, args ...any) *Error { return failf(StatusUsage, format, args...) }

func failf(status int, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	return &Error{Status: status, Text: err.Error(), Err: errors.Unwrap(err)}
}

// StatusOf is the status that ebb ends with after err.
func StatusOf(err error) int {
	var e *Error
	switch {
	case err == nil:
		return 0
	case errors.As(err, &e):
		return e.Status
	default:
		return StatusInternal
	}
}
