package store

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/ebb-offload/ebb/internal/sizes"
)

// Errors of this package; wrapped with the backing and the block they concern.
var (
	ErrClosed   = errors.New("store is closed")
	ErrAbsent   = errors.New("block is not stored")
	ErrNoSpace  = errors.New("no space left")
	ErrIO       = errors.New("I/O error")
	ErrLost     = errors.New("backup file is gone, replaced or cut") // by someone else
	ErrNoMemory = errors.New("the backing is not in host memory")
	ErrPromised = errors.New("host memory that was promised cannot be had") // the backing is to be released
)

// errNoRoom is a block call on a backing that has taken no room.
var errNoRoom = errors.New("no room was reserved")

// ioError is ErrIO; of a file that may not become as large it says who does not let it.
func ioError(err error) error {
	switch {
	case !errors.Is(err, unix.EFBIG):
		return fmt.Errorf("%w: %w", ErrIO, err)
	case overLimit(math.MaxInt64):
		return fmt.Errorf("%w: %w: the process may make no larger files (RLIMIT_FSIZE): start it with ulimit -f unlimited", ErrIO, err)
	default:
		return fmt.Errorf("%w: %w: the file system takes no larger files: name a directory on another one", ErrIO, err)
	}
}

// NoSpaceError says how much room was needed and free, in bytes.
type NoSpaceError struct {
	Dir        string // or several, with commas between them
	Need, Free uint64
	InodesFree uint64
	Err        error // the system's error, or a Limit

	dev  uint64          // the device of Dir
	each []*NoSpaceError // of several directories: what each said
}

// Limit is an error of Options.Take that says all there is to say: the disk itself is not full.
type Limit interface {
	error
	Limit()
}

func (e *NoSpaceError) limited() bool {
	var limit Limit
	return errors.As(e.Err, &limit)
}

func (e *NoSpaceError) Error() string {
	if slices.ContainsFunc(e.each, (*NoSpaceError).limited) {
		var all []string
		for _, one := range e.each {
			all = append(all, one.Error())
		}
		return "no directory has room: " + strings.Join(all, "; ")
	}
	if e.limited() {
		return e.Err.Error()
	}
	s := fmt.Sprintf("%v in %s: %s needed, %s free", ErrNoSpace, e.Dir, sizes.Binary(e.Need), sizes.Binary(e.Free))
	if e.InodesFree == 0 {
		s += ", no inodes free"
	}
	return fmt.Sprintf("%s (%v): make room there or name another directory", s, e.Err)
}

// Unwrap makes errors.Is(err, ErrNoSpace) and errors.Is(err, unix.ENOSPC) true.
func (e *NoSpaceError) Unwrap() []error { return []error{ErrNoSpace, e.Err} }

// allFull is the lack of need bytes in all of several directories, of which each reported its own.
func allFull(need uint64, each []*NoSpaceError) error {
	if len(each) == 1 {
		return each[0]
	}
	var names []string
	counted := map[uint64]bool{} // devices
	all := &NoSpaceError{Need: need, Err: each[0].Err, each: slices.Clone(each)}
	for _, e := range each {
		names = append(names, e.Dir)
		if !counted[e.dev] {
			all.Free += e.Free
			all.InodesFree += e.InodesFree
		}
		counted[e.dev] = true
	}
	all.Dir = strings.Join(names, ", ")
	return all
}
