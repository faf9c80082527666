package e2e

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
)

// long says whether the long forms of random and kill tests are asked for.
func long() bool { return os.Getenv("EBB_TEST_LONG") != "" }

// source is randomness that EBB_TEST_SEED repeats.
type source struct{ *rand.Rand }

// random returns a source and prints its seed.
func random(t *testing.T) source {
	t.Helper()
	seed := rand.Uint64()
	if text := os.Getenv("EBB_TEST_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("EBB_TEST_SEED: %v", err)
		}
	}
	t.Logf("seed: EBB_TEST_SEED=%d", seed)
	return source{rand.New(rand.NewPCG(seed, 0))}
}

// Text is a new seed for a victim.
func (s source) Text() string { return strconv.FormatUint(s.Uint64(), 10) }
