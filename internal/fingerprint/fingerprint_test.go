package fingerprint

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math/big"
	"math/rand/v2"
	"testing"
)

func random(t *testing.T) *rand.ChaCha8 {
	t.Helper()
	var seed [32]byte
	for i := range seed {
		seed[i] = byte(rand.Uint32())
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("seed %x", seed)
		}
	})
	return rand.NewChaCha8(seed)
}

func readKey(t *testing.T, r io.Reader) *Key {
	t.Helper()
	k, err := ReadKey(r)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func randomBytes(r *rand.ChaCha8, n int) []byte {
	p := make([]byte, n)
	_, _ = r.Read(p) // never fails
	return p
}

// The hash is the sum that docs/fingerprints.md writes down, here in numbers of any size.
func TestOfIsTheSumOfTheDocumentation(t *testing.T) {
	r := random(t)
	k := readKey(t, r)
	p := big.NewInt(prime)
	for _, n := range []int{1, 16, 4097, 3*rowBytes - 5, TileBytes, TileBytes + 20} {
		block := randomBytes(r, n)
		for q := range 2 {
			x, y := new(big.Int).SetUint64(k.powers[q][0]), new(big.Int).SetUint64(k.points[q])
			tiles := int64(Tiles(uint64(n)))
			want := new(big.Int).Exp(y, big.NewInt(tiles), p)
			want.Mul(want, big.NewInt(int64(n)))
			for tile := range tiles {
				begin := int(tile) * TileBytes
				end := min(begin+TileBytes, n)
				value := new(big.Int)
				for c := range int64(2 * columns) { // coefficients
					nh := new(big.Int)
					for row := 0; begin+row*rowBytes < end; row++ {
						word := func(i int) uint32 {
							var b [4]byte
							if at := begin + row*rowBytes + int(c/2)*chunkBytes + 4*i; at < end {
								copy(b[:], block[at:end])
							}
							return binary.LittleEndian.Uint32(b[:]) + k.words[4*row+2*(2*q+int(c%2))+i]
						}
						for i := 0; i < 4; i += 2 {
							nh.Add(nh, new(big.Int).Mul(big.NewInt(int64(word(i))), big.NewInt(int64(word(i+1)))))
						}
					}
					nh.And(nh, new(big.Int).SetUint64(^uint64(0)))
					value.Add(value, nh.Mul(nh, new(big.Int).Exp(x, big.NewInt(c), p)))
				}
				value.Mul(value, new(big.Int).Exp(y, big.NewInt(tiles-1-tile), p))
				want.Add(want, value)
			}
			if sum, _ := k.Of(block); sum[q] != want.Mod(want, p).Uint64() {
				t.Errorf("%d bytes: half %d is %x, want %x", n, q, sum[q], want)
			}
		}
	}
}

func TestArithmeticIsThatOfThePrime(t *testing.T) {
	r := rand.New(random(t))
	p := new(big.Int).SetUint64(prime)
	edge := []uint64{0, 1, 2, prime - 2, prime - 1}
	for range 1000 {
		edge = append(edge[:5], r.Uint64N(prime), r.Uint64N(prime))
		for _, a := range edge {
			for _, b := range edge {
				want := new(big.Int).Mul(new(big.Int).SetUint64(a), new(big.Int).SetUint64(b))
				if got := mul(a, b); got != want.Mod(want, p).Uint64() {
					t.Fatalf("%d times %d is %d, want %d", a, b, got, want)
				}
			}
		}
	}
	for _, v := range []uint64{0, prime - 1, prime, prime + 1, 2*prime - 1, 2 * prime, 8*prime - 1, 8 * prime, 8*prime + 6, ^uint64(0)} {
		if got := reduce(v); got != v%prime {
			t.Errorf("%d is %d modulo the prime, want %d", v, got, v%prime)
		}
	}
}

func TestZeroIsSaidOfZerosOnly(t *testing.T) {
	k := readKey(t, random(t))
	for _, n := range []int{1, 16, 5000, TileBytes + 1} {
		block := make([]byte, n)
		if _, zero := k.Of(block); !zero {
			t.Errorf("%d zeros are not zero", n)
		}
		block[n-1] = 0x80
		if _, zero := k.Of(block); zero {
			t.Errorf("%d bytes, the last of which is not zero, are said to be", n)
		}
	}
}

// Blocks that end with fewer or more zeros, or whose tiles are in another order, are others.
func TestLengthAndOrderCount(t *testing.T) {
	r := random(t)
	k := readKey(t, r)
	block := append(randomBytes(r, 2*TileBytes), make([]byte, 100)...)
	seen := map[Sum]int{}
	for _, n := range []int{2*TileBytes - 1, 2 * TileBytes, 2*TileBytes + 1, 2*TileBytes + 16, 2*TileBytes + 100} {
		sum, _ := k.Of(block[:n])
		if m, ok := seen[sum]; ok {
			t.Errorf("%d and %d bytes have the same fingerprint", m, n)
		}
		seen[sum] = n
	}
	turned := append(bytes.Clone(block[TileBytes:2*TileBytes]), block[:TileBytes]...)
	if sum, _ := k.Of(turned); seen[sum] != 0 {
		t.Error("two tiles in the other order have the same fingerprint")
	}
}

func TestKeysDiffer(t *testing.T) {
	a, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	b, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	if *a == *b {
		t.Error("two keys are the same")
	}
}

// Points are below the prime, each as likely as another: what is not is drawn again.
func TestPointsAreDrawnAgain(t *testing.T) {
	var drawn []byte
	drawn = append(drawn, make([]byte, 4*keyWords)...)
	for _, v := range []uint64{prime, ^uint64(0), prime - 1, 5, 1 << 61, 7} {
		drawn = binary.LittleEndian.AppendUint64(drawn, v)
	}
	k := readKey(t, bytes.NewReader(drawn))
	if k.powers[0] != [7]uint64{prime - 1, 1, 1, 1, 1, 1, 1} || k.points[0] != 5 || k.powers[1] != [7]uint64{} || k.points[1] != 7 {
		t.Errorf("drawn: powers %d, points %d", k.powers, k.points)
	}
}

func TestKeyThatCannotBeDrawnIsAnError(t *testing.T) {
	for _, n := range []int{0, 4*keyWords - 1, 4 * keyWords, 4*keyWords + 31} {
		k, err := ReadKey(bytes.NewReader(make([]byte, n)))
		if k != nil || !(errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)) {
			t.Errorf("of %d bytes: %v, %v", n, k, err)
		}
	}
}
