// Package fingerprint is the hash by which blocks are compared: 128 bits of a universal hash whose
// key is drawn anew in every process. Two given blocks that differ have the same fingerprint
// with a probability below 2^-102 (docs/fingerprints.md has the proof), whatever is in them, as long
// as the key is secret. Fingerprints of different processes cannot be compared.
//
// The hash is computed in three places, in tiles: by a kernel on the GPU and in C on the CPU, both in
// internal/device/cuda, and here in plain Go. What is here is the definition, for tests to compare the
// others with, and the last step, which joins the tiles that the GPU hashed. All three read the Key
// and write the Part as they lie in memory, so their layout is that of fingerprint.h.
package fingerprint

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/bits"

	"golang.org/x/sys/unix"
)

// A block is cut into tiles, and a tile into rows of 256 chunks of 16 bytes. The chunks with the same place in
// their rows are a column.
const (
	TileBytes = rowBytes * rows

	chunkBytes = 16
	columns    = 256
	rows       = 64
	rowBytes   = columns * chunkBytes

	lanes    = 4                               // values of NH per column
	keyWords = rows*chunkBytes/4 + 2*lanes - 2 // lane j takes its key from word 2j on

	prime = 1<<61 - 1
)

// Sum is the fingerprint of one block.
type Sum [2]uint64

// Part is what one tile contributes to the fingerprint of its block.
type Part struct {
	P   [2]uint64 // the values of its two polynomials, below 2^61-1
	Any uint64    // 1 if one of its bytes is not zero, else 0
	_   uint64
}

// Tiles is the number of tiles, and of parts, of a block of n bytes.
func Tiles(n uint64) int { return int((n + TileBytes - 1) / TileBytes) }

// Key selects the hash. It is constant once made; the zero Key is not one.
type Key struct {
	words  [keyWords]uint32 // of NH
	powers [2][7]uint64     // x^(2^k) for the two points x at which the polynomials of a tile are evaluated
	points [2]uint64        // those at which the polynomials of a block are evaluated, whose coefficients are the tiles
}

// NewKey draws a key.
func NewKey() (*Key, error) { return ReadKey(kernelRandom{}) }

// kernelRandom reads getrandom(2). Package crypto/rand ends the process where that fails.
type kernelRandom struct{}

func (kernelRandom) Read(p []byte) (int, error) {
	for {
		n, err := unix.Getrandom(p, 0)
		if !errors.Is(err, unix.EINTR) {
			return max(n, 0), err
		}
	}
}

// ReadKey makes a key of the bytes of r, which should be random.
func ReadKey(r io.Reader) (*Key, error) {
	k := new(Key)
	if err := binary.Read(r, binary.LittleEndian, &k.words); err != nil {
		return nil, fmt.Errorf("draw a fingerprint key: %w", err)
	}
	for q := range 2 {
		x, err := readPoint(r)
		if err != nil {
			return nil, err
		}
		y, err := readPoint(r)
		if err != nil {
			return nil, err
		}
		k.setPoints(q, x, y)
	}
	return k, nil
}

// setPoints sets the points of one of the two polynomials: for the columns of a tile, and for the
// tiles of a block.
func (k *Key) setPoints(q int, x, y uint64) {
	for i := range k.powers[q] {
		k.powers[q][i] = x
		x = mul(x, x)
	}
	k.points[q] = y
}

// readPoint draws a number below the prime, each with the same probability.
func readPoint(r io.Reader) (uint64, error) {
	for {
		var b [8]byte
		if _, err := io.ReadFull(r, b[:]); err != nil {
			return 0, fmt.Errorf("draw a fingerprint key: %w", err)
		}
		if x := binary.LittleEndian.Uint64(b[:]) & prime; x != prime {
			return x, nil
		}
	}
}

// Fold joins the parts of a block of n bytes, n > 0, in their order. zero says that all its bytes are zero.
func (k *Key) Fold(parts []Part, n uint64) (s Sum, zero bool) {
	s, zero = Sum{n % prime, n % prime}, true
	for i := range parts {
		for q := range s {
			s[q] = reduce(mul(s[q], k.points[q]) + parts[i].P[q])
		}
		zero = zero && parts[i].Any == 0
	}
	return s, zero
}

// Of is the fingerprint of a block, len(p) > 0, slowly. zero says that all its bytes are zero.
func (k *Key) Of(p []byte) (s Sum, zero bool) {
	parts := make([]Part, 0, Tiles(uint64(len(p))))
	for rest := p; len(rest) > 0; {
		tile := rest[:min(len(rest), TileBytes)]
		rest = rest[len(tile):]
		parts = append(parts, k.tile(tile))
	}
	return k.Fold(parts, uint64(len(p)))
}

// tile is the part of one tile. The missing end of its last row counts as zeros; rows behind that do not count.
func (k *Key) tile(p []byte) Part {
	var part Part
	for _, b := range p {
		if b != 0 {
			part.Any = 1
		}
	}
	padded := make([]byte, (len(p)+rowBytes-1)/rowBytes*rowBytes)
	copy(padded, p)
	for column := columns - 1; column >= 0; column-- {
		for lane := lanes - 1; lane >= 0; lane-- {
			q := lane / 2
			part.P[q] = reduce(mul(part.P[q], k.powers[q][0]) + reduce(k.nh(padded[column*chunkBytes:], lane)))
		}
	}
	return part
}

// nh is the NH hash of the column that begins with p, in one lane.
func (k *Key) nh(p []byte, lane int) uint64 {
	var sum uint64
	for key := k.words[2*lane:]; len(p) >= chunkBytes; key = key[chunkBytes/4:] {
		for i := 0; i < chunkBytes/4; i += 2 {
			a := binary.LittleEndian.Uint32(p[4*i:]) + key[i]
			b := binary.LittleEndian.Uint32(p[4*i+4:]) + key[i+1]
			sum += uint64(a) * uint64(b)
		}
		p = p[min(rowBytes, len(p)):]
	}
	return sum
}

// mul and reduce compute modulo the prime; mul takes factors below it.
func mul(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	return reduce(lo&prime + (hi<<3 | lo>>61))
}

func reduce(v uint64) uint64 {
	if v = v&prime + v>>61; v >= prime {
		v -= prime
	}
	return v
}
