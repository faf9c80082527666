package fingerprint

import (
	"math/rand/v2"
	"testing"
	"unsafe"
)

// words is n bytes that begin at a multiple of 8.
func words(n int) []byte {
	w := make([]uint64, n/8+1)
	return unsafe.Slice((*byte)(unsafe.Pointer(&w[0])), n)
}

func TestTheFastHashIsTheHash(t *testing.T) {
	random := rand.NewChaCha8([32]byte{7})
	key, err := ReadKey(random)
	if err != nil {
		t.Fatal(err)
	}
	h := NewHash(key)
	sizes := []int{1, 15, 16, 17, rowBytes - 1, rowBytes, rowBytes + 1, TileBytes - 1, TileBytes, TileBytes + 1, 3*TileBytes + 7*rowBytes + 5}
	for range 50 {
		sizes = append(sizes, 1+rand.IntN(2*TileBytes))
	}
	for i, n := range sizes {
		p := words(n)
		if i%4 > 0 {
			_, _ = random.Read(p)
		}
		if i%4 == 2 { // a single byte that is not zero
			clear(p)
			p[rand.IntN(n)] = 1
		}
		want, wantZero := key.Of(p)
		if got, zero := h.Sum(p); got != want || zero != wantZero {
			t.Errorf("%d bytes: %x %v, want %x %v", n, got, zero, want, wantZero)
		}
	}
}

func TestAKeySurvivesItsBytes(t *testing.T) {
	key, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	again, err := ParseKey(key.Bytes())
	if err != nil || *again != *key {
		t.Errorf("another key came back (%v)", err)
	}
	bad := key.Bytes()
	bad[len(bad)-1] = 0xff
	for _, p := range [][]byte{nil, bad, bad[1:]} {
		if _, err := ParseKey(p); err == nil {
			t.Errorf("%d bytes were taken for a key", len(p))
		}
	}
}

func BenchmarkHash(b *testing.B) {
	key, err := NewKey()
	if err != nil {
		b.Fatal(err)
	}
	p := words(4 << 20)
	_, _ = rand.NewChaCha8([32]byte{}).Read(p)
	h := NewHash(key)
	b.SetBytes(int64(len(p)))
	for b.Loop() {
		h.Sum(p)
	}
}
