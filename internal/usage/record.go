package usage

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/ebb-offload/ebb/internal/rankdir"
)

// Record is what one process holds and has written in a disk directory.
type Record struct {
	Rank    string // its directory, from the disk directory: "job/actor_cell0_rank3"
	Owner   rankdir.Owner
	Held    uint64 // bytes of its files, and of those that it is about to make
	Written uint64 // bytes that it wrote to the drive
}

// The file is an array of records of one size, each with a checksum; one that is all zeros is free.
// Numbers are little-endian.
const (
	recordBytes = 512
	bootAt      = 56
	sumAt       = 92
	rankAt      = 96
	maxRank     = recordBytes - rankAt
	maxRecords  = 1 << 16
)

// magic begins every record that is in use; its last byte is the version.
var magic = []byte("ebbuse\x00\x01")

var errRecord = errors.New("it is not one of ebb's")

// damaged is the rank of a record that says nothing.
const damaged = "\x00"

func (r *Record) encode() []byte {
	p := make([]byte, recordBytes)
	if r.Rank == "" {
		return p
	}
	copy(p, magic)
	for i, v := range []uint64{r.Held, r.Written, uint64(r.Owner.PID), r.Owner.StartTime, r.Owner.PIDNamespace, uint64(len(r.Rank))} {
		binary.LittleEndian.PutUint64(p[8+8*i:], v)
	}
	copy(p[bootAt:sumAt], r.Owner.BootID)
	copy(p[rankAt:], r.Rank)
	binary.LittleEndian.PutUint32(p[sumAt:], checksum(p))
	return p
}

// checksum is that of a record, but for its own place.
func checksum(p []byte) uint32 {
	return crc32.Update(crc32.ChecksumIEEE(p[:sumAt]), crc32.IEEETable, p[rankAt:])
}

func decode(p []byte) (r Record) {
	if bytes.Count(p, []byte{0}) == recordBytes {
		return r
	}
	number := func(i int) uint64 { return binary.LittleEndian.Uint64(p[8+8*i:]) }
	n := number(5)
	if !bytes.HasPrefix(p, magic) || n == 0 || n > maxRank || binary.LittleEndian.Uint32(p[sumAt:]) != checksum(p) {
		return Record{Rank: damaged}
	}
	boot, _, _ := bytes.Cut(p[bootAt:sumAt], []byte{0})
	r = Record{
		Rank: string(p[rankAt : rankAt+n]), Held: number(0), Written: number(1),
		Owner: rankdir.Owner{PID: int(number(2)), StartTime: number(3), PIDNamespace: number(4), BootID: string(boot), UID: -1},
	}
	return r
}

func decodeAll(p []byte) (list []Record, err error) {
	if len(p)%recordBytes != 0 || len(p) > maxRecords*recordBytes {
		return nil, fmt.Errorf("%w: %d bytes", errRecord, len(p))
	}
	for ; len(p) > 0; p = p[recordBytes:] {
		list = append(list, decode(p[:recordBytes]))
	}
	return list, nil
}

// name is who that is, for people.
func (r *Record) name() string {
	if r.Rank == "" {
		return fmt.Sprintf("pid %d", r.Owner.PID)
	}
	return fmt.Sprintf("%s (pid %d)", r.Rank, r.Owner.PID)
}

// is says whether the record is of a process.
func (r *Record) is(rank string, o rankdir.Owner) bool {
	return r.Rank == rank && sameProcess(r.Owner, o)
}

func sameProcess(a, b rankdir.Owner) bool {
	return a.FilePrefix() == b.FilePrefix() // of the boot it has the first digits, as a mended record does
}
