// Package store holds the bytes of paused allocations: in host memory (Host) or in files
// (Files). Both implement Store; one conformance suite (storetest) runs on both.
//
// The block map is the truth about what a backing holds: per block absent, zero, stored or dead,
// and the fingerprint of its bytes where that is known. An entry is set to absent before its
// block is overwritten and to the new state after the write returned, so that a failed pause
// never leaves a claim on bytes that were not written.
package store

import (
	"errors"
	"fmt"
	"unsafe"
)

// Store makes backings. All methods may be called from any goroutine.
type Store interface {
	// Open returns a new, empty backing for an allocation of size bytes. It takes no room
	// yet. id is unique in the process and names the backing in errors.
	Open(id, size uint64) (Backing, error)
	// Rest gives up what is kept between calls only for speed: open files. The engine calls it
	// at the end of each operation, so that between operations no forked child inherits them
	// (a removed file would keep its room as long as the child lives), and that a descriptor
	// which the program closed and used for a file of its own is never taken for ours.
	Rest()
	// Usage is what all open backings take now.
	Usage() Usage
	// Close releases every open backing (files removed, memory freed) and the store.
	// Further calls return ErrClosed. Idempotent.
	Close() error
}

// Backing holds the bytes of one allocation. WriteBlock and ReadBlock may be called from many
// goroutines at once for different blocks; the other methods from one at a time, with no block
// call under way.
type Backing interface {
	// Reserve takes the room for all size bytes (file extents, host pages), so that a lack of
	// it shows before anything is copied. Idempotent; room is kept until Release. Room that
	// someone else took away (a file removed by a launcher that empties its directory) is
	// taken again, with all blocks absent: call it for memory that is still on the device.
	Reserve() error
	// WriteBlock stores p as the block that begins at byte off of the allocation; off is a
	// multiple of the store's block size. p is a whole block, or shorter for the last one.
	// p begins at a multiple of 4096 in memory, and p[:cap(p)] reaches to the next one: the
	// store may overwrite p[len(p):] with zeros and write it too. The block's entry is absent
	// until the write has returned, then b: Stored, with the fingerprint of p if that is known.
	WriteBlock(off uint64, p []byte, b Block) error
	// ReadBlock fills p with the block at off, which must not be absent (ErrAbsent): with what
	// was written, or zeros. The same rule for p's capacity holds.
	ReadBlock(off uint64, p []byte) error
	// Block is what is known of the block at off. Entries stay true from one pause to the next.
	Block(off uint64) Block
	// Mark sets the entry of the block at off without a write. Absent: before its Memory is
	// written directly. Stored: after that; ignored for a block without Memory. Zero: the bytes
	// are all zero, and so is the block's host memory afterwards, if it has any. Dead: the
	// bytes are not needed, and are zero when read.
	Mark(off uint64, b Block)
	// Memory is the block at off as host memory that devices can copy to and from directly, or
	// nil when it must go through WriteBlock and ReadBlock. A user that writes to it directly
	// marks the block absent before, and stored after. Valid from Reserve to Release.
	Memory(off uint64) []byte
	// Commit is called after the last write: no block may be absent (ErrAbsent names the first
	// that is), and all is on the device when it returns.
	Commit() error
	// Invalidate forgets all blocks and keeps the room.
	Invalidate()
	// Pointer is the address of byte off in host memory, whether or not devices can copy to
	// it; ErrNoMemory when the backing has none now, ErrAbsent while a block is absent. What
	// dead blocks show is undefined. Valid until Release.
	Pointer(off uint64) (unsafe.Pointer, error)
	// Where names for people the place of the block at off: "file /x/ebb-….bak (offset 4096)"
	// or "host memory".
	Where(off uint64) string
	// Release gives back all room; other calls fail from then on. Idempotent. After an error
	// it can be called again.
	Release() error
}

// Usage counts what backings take, in bytes.
type Usage struct {
	HostBytes uint64 // host memory held
	DiskBytes uint64 // bytes of files
	Files     int
	Buffered  bool // some directory refused direct I/O
}

// Errors of this package; wrapped with the backing and the block they concern.
var (
	ErrClosed     = errors.New("store is closed")
	ErrAbsent     = errors.New("block is not stored")
	ErrNoSpace    = errors.New("no space left")
	ErrHostMemory = errors.New("not enough host memory")
	ErrIO         = errors.New("I/O error")
	ErrLost       = errors.New("backup file is gone, replaced or cut") // by someone else
	ErrNoMemory   = errors.New("the backing holds no host memory now")
)

// NoSpaceError says how much room was needed and free in a directory, in bytes.
type NoSpaceError struct {
	Dir        string
	Need, Free uint64
	InodesFree uint64
	Err        error // the system's error
}

func (e *NoSpaceError) Error() string {
	s := fmt.Sprintf("%v in %s: %s needed, %s free", ErrNoSpace, e.Dir, Size(e.Need), Size(e.Free))
	if e.InodesFree == 0 {
		s += ", no inodes free"
	}
	return fmt.Sprintf("%s (%v): make room there or name another directory", s, e.Err)
}

// Size is a number of bytes for people: "512 bytes", "1.5 MiB".
func Size(n uint64) string {
	if n < 1<<10 {
		return fmt.Sprintf("%d bytes", n)
	}
	units := []string{"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}
	v, unit := float64(n)/1024, 0
	for v >= 1024 && unit < len(units)-1 {
		v, unit = v/1024, unit+1
	}
	return fmt.Sprintf("%.1f %s", v, units[unit])
}

// Unwrap makes errors.Is(err, ErrNoSpace) and errors.Is(err, unix.ENOSPC) true.
func (e *NoSpaceError) Unwrap() []error { return []error{ErrNoSpace, e.Err} }
