package fingerprint

import (
	"encoding/binary"
	"fmt"
	"unsafe"
)

// This file computes the same as Of, as fast as plain Go can: for a process that checks files, where
// neither a GPU nor C is at hand.

// Hash is Of, for blocks whose memory begins at a multiple of 8.
type Hash struct {
	key   *Key
	sums  [columns * lanes]uint64
	parts []Part
	row   [rowBytes]byte // the last row of a block, padded
}

// NewHash makes a hash for one goroutine.
func NewHash(k *Key) *Hash { return &Hash{key: k} }

// Sum is Of.
func (h *Hash) Sum(p []byte) (s Sum, zero bool) {
	n := uint64(len(p))
	h.parts = h.parts[:0]
	for len(p) > 0 {
		tile := p[:min(len(p), TileBytes)]
		p = p[len(tile):]
		h.parts = append(h.parts, h.tile(tile))
	}
	return h.key.Fold(h.parts, n)
}

// tile is the part of one tile. It goes row by row, as the memory lies, and keeps the sums of all
// columns.
func (h *Hash) tile(p []byte) (part Part) {
	clear(h.sums[:])
	var any uint64
	words := h.key.words[:]
	for ; len(p) > 0; words = words[chunkBytes/4:] {
		row := p
		if len(row) < rowBytes {
			clear(h.row[copy(h.row[:], row):])
			row = h.row[:]
		}
		any |= h.addRow((*[2 * columns]uint64)(unsafe.Pointer(unsafe.SliceData(row))), (*[2*lanes + 2]uint32)(words))
		p = p[min(rowBytes, len(p)):]
	}
	for column := columns - 1; column >= 0; column-- {
		for lane := lanes - 1; lane >= 0; lane-- {
			q := lane / 2
			part.P[q] = reduce(mul(part.P[q], h.key.powers[q][0]) + reduce(h.sums[column*lanes+lane]))
		}
	}
	if any != 0 {
		part.Any = 1
	}
	return part
}

// addRow adds one row to the sums of its columns. The words of a chunk are little-endian, as is the
// machine.
func (h *Hash) addRow(row *[2 * columns]uint64, k *[2*lanes + 2]uint32) (any uint64) {
	k0, k1, k2, k3, k4 := k[0], k[1], k[2], k[3], k[4]
	k5, k6, k7, k8, k9 := k[5], k[6], k[7], k[8], k[9]
	for c := range columns {
		lo, hi := row[2*c], row[2*c+1]
		any |= lo | hi
		d0, d1, d2, d3 := uint32(lo), uint32(lo>>32), uint32(hi), uint32(hi>>32)
		s := (*[lanes]uint64)(h.sums[c*lanes:])
		s[0] += uint64(d0+k0)*uint64(d1+k1) + uint64(d2+k2)*uint64(d3+k3)
		s[1] += uint64(d0+k2)*uint64(d1+k3) + uint64(d2+k4)*uint64(d3+k5)
		s[2] += uint64(d0+k4)*uint64(d1+k5) + uint64(d2+k6)*uint64(d3+k7)
		s[3] += uint64(d0+k6)*uint64(d1+k7) + uint64(d2+k8)*uint64(d3+k9)
	}
	return any
}

// Bytes is the key as bytes, for ParseKey: whoever has them can make blocks that agree.
func (k *Key) Bytes() []byte {
	p := make([]byte, 0, keyBytes)
	for _, w := range k.words {
		p = binary.LittleEndian.AppendUint32(p, w)
	}
	for q := range 2 {
		p = binary.LittleEndian.AppendUint64(p, k.powers[q][0])
		p = binary.LittleEndian.AppendUint64(p, k.points[q])
	}
	return p
}

const keyBytes = 4*keyWords + 4*8

// ParseKey makes a key of what Bytes gave.
func ParseKey(p []byte) (*Key, error) {
	if len(p) != keyBytes {
		return nil, fmt.Errorf("a fingerprint key of %d bytes, not %d", len(p), keyBytes)
	}
	k := new(Key)
	for i := range k.words {
		k.words[i] = binary.LittleEndian.Uint32(p)
		p = p[4:]
	}
	for q := range 2 {
		x, y := binary.LittleEndian.Uint64(p), binary.LittleEndian.Uint64(p[8:])
		if x >= prime || y >= prime {
			return nil, fmt.Errorf("a fingerprint key with a point that is no number below 2^61-1")
		}
		k.setPoints(q, x, y)
		p = p[16:]
	}
	return k, nil
}
