// Package parked tells from outside of an actor what its backup files must hold, and checks them.
//
// When a pause has succeeded the engine writes a map beside each of the rank's leases,
// <base>/.ebb/<rank>.<pid>-<start>.map: which block of which allocation lies at which offset of which file of that
// disk directory, with its fingerprint, and the key of the fingerprints. It goes with the next
// resume, before anything is written to the files again: as long as it is there it is true. Memory that
// is freed while it is paused is crossed out in it.
//
// The map is for its user only (0600): whoever has the key could make other bytes with the same
// fingerprint.
package parked

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"reflect"
	"slices"

	"github.com/ebb-offload/ebb/internal/rankdir"
)

// Map is what one rank has parked in one disk directory.
type Map struct {
	Rank        string // its directory, from the disk directory: "job/actor_cell0_rank3"
	Owner       rankdir.Owner
	Key         []byte // of the fingerprints
	Allocations []Allocation
}

// sameAs reports whether another map says the same, but for what was freed since.
func (m *Map) sameAs(o *Map) bool {
	same := func(a, b Allocation) bool {
		a.Freed, b.Freed = false, false
		return reflect.DeepEqual(a, b)
	}
	return m.Rank == o.Rank && m.Owner == o.Owner && bytes.Equal(m.Key, o.Key) && slices.EqualFunc(m.Allocations, o.Allocations, same)
}

// Allocation is paused memory.
type Allocation struct {
	ID      uint64
	Address uint64
	Size    uint64
	Tag     string
	File    string  // its name; "": no block lies in this directory
	Blocks  []Block // those in this directory
	Host    uint64  // bytes that lie in host memory, told by the map of the first directory
	Freed   bool    // since the map was written
}

// State is what there is to know about a block.
type State uint8

// States of a block.
const (
	Stored State = iota // the file holds its bytes
	Zero                // all its bytes are zero; the file may hold others
	Dead                // nobody needs its bytes
)

// Block is a block of an allocation.
type Block struct {
	Offset, Bytes uint64 // in the allocation
	At            uint64 // in the file
	State         State
	Known         bool // Sum is known
	Sum           [2]uint64
}

// ErrMap says that a file is no map, or a damaged one.
var ErrMap = errors.New("not a map of ebb's, or damaged")

// The file: magic, the fields in the order of the types above, a checksum of all that, and one byte
// for each allocation, which is not 0 when it was freed. Numbers are little-endian, texts and lists
// begin with their length.
var magic = []byte("ebbmap\x00\x01")

const blockBytes = 8 + 8 + 8 + 2 + 16

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// encode is the file.
func (m *Map) encode() []byte {
	size := 512 + len(m.Key)
	for i := range m.Allocations {
		size += 64 + len(m.Allocations[i].Tag) + len(m.Allocations[i].File) + blockBytes*len(m.Allocations[i].Blocks)
	}
	p := append(make([]byte, 0, size), magic...)
	number := func(v uint64) { p = binary.LittleEndian.AppendUint64(p, v) }
	text := func(s string) {
		number(uint64(len(s)))
		p = append(p, s...)
	}
	text(m.Rank)
	text(m.Owner.BootID)
	number(m.Owner.PIDNamespace)
	number(uint64(m.Owner.PID))
	number(m.Owner.StartTime)
	text(string(m.Key))
	number(uint64(len(m.Allocations)))
	for i := range m.Allocations {
		a := &m.Allocations[i]
		number(a.ID)
		number(a.Address)
		number(a.Size)
		text(a.Tag)
		text(a.File)
		number(a.Host)
		number(uint64(len(a.Blocks)))
		for j := range a.Blocks {
			b := &a.Blocks[j]
			number(b.Offset)
			number(b.Bytes)
			number(b.At)
			known := byte(0)
			if b.Known {
				known = 1
			}
			p = append(p, byte(b.State), known)
			number(b.Sum[0])
			number(b.Sum[1])
		}
	}
	p = binary.LittleEndian.AppendUint32(p, crc32.Checksum(p, castagnoli))
	for i := range m.Allocations {
		p = append(p, map[bool]byte{true: 1}[m.Allocations[i].Freed])
	}
	return p
}

// decoder reads the fields of a file; after its end it gives zeros and is short.
type decoder struct {
	p     []byte
	short bool
}

func (d *decoder) take(n uint64) []byte {
	if n > uint64(len(d.p)) {
		d.short, d.p = true, nil
		return nil
	}
	got := d.p[:n]
	d.p = d.p[n:]
	return got
}

func (d *decoder) number() uint64 {
	if p := d.take(8); p != nil {
		return binary.LittleEndian.Uint64(p)
	}
	return 0
}

func (d *decoder) text() string { return string(d.take(d.number())) }

// length is that of a list whose entries take at least so many bytes each.
func (d *decoder) length(least uint64) uint64 {
	n := d.number()
	if n > uint64(len(d.p))/least {
		d.short, d.p = true, nil
		return 0
	}
	return n
}

func decode(file []byte) (*Map, error) {
	d := decoder{p: file}
	if string(d.take(uint64(len(magic)))) != string(magic) {
		return nil, ErrMap
	}
	m := &Map{Rank: d.text()}
	m.Owner = rankdir.Owner{BootID: d.text(), PIDNamespace: d.number(), PID: int(min(d.number(), math.MaxInt32)), StartTime: d.number(), UID: -1}
	m.Key = []byte(d.text())
	n := d.length(56 + 1)
	m.Allocations = make([]Allocation, n)
	for i := range m.Allocations {
		a := &m.Allocations[i]
		a.ID, a.Address, a.Size = d.number(), d.number(), d.number()
		a.Tag, a.File, a.Host = d.text(), d.text(), d.number()
		a.Blocks = make([]Block, d.length(blockBytes))
		for j := range a.Blocks {
			b := &a.Blocks[j]
			b.Offset, b.Bytes, b.At = d.number(), d.number(), d.number()
			if flags := d.take(2); flags != nil {
				b.State, b.Known = State(flags[0]), flags[1] != 0
			}
			b.Sum = [2]uint64{d.number(), d.number()}
			if b.State > Dead || b.Bytes == 0 || b.Bytes > maxBlock || b.At > math.MaxInt64-maxBlock {
				d.short = true
			}
		}
	}
	body := len(file) - len(d.p)
	sum := d.take(4)
	freed := d.take(n)
	if d.short || len(d.p) > 0 || binary.LittleEndian.Uint32(sum) != crc32.Checksum(file[:body], castagnoli) {
		return nil, ErrMap
	}
	for i := range m.Allocations {
		m.Allocations[i].Freed = freed[i] != 0
	}
	return m, nil
}

// maxBlock is more bytes than any block has.
const maxBlock = 1 << 30

func (s State) String() string {
	if s > Dead {
		return fmt.Sprint(uint8(s))
	}
	return [...]string{"stored", "zero", "dead"}[s]
}
