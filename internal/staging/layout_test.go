package staging

import (
	"testing"

	"pgregory.net/rapid"
)

func TestLayoutCutsTheChunk(t *testing.T) {
	const kib, mib = 1 << 10, 1 << 20
	for _, c := range []struct {
		chunk    uint64
		workers  int
		maxBlock uint64

		block         uint64
		blocks, serve int
	}{
		{1 * mib, 1, 8 * mib, 512 * kib, 2, 1},
		{1 * mib, 4, 8 * mib, 128 * kib, 8, 4},
		{1 * mib, 8, 8 * mib, 128 * kib, 8, 4}, // a few workers before larger blocks
		{1 * mib, 16, 8 * mib, 128 * kib, 8, 4},
		{16 * mib, 16, 4 * mib, 2 * mib, 8, 4},
		{32 * mib, 16, 4 * mib, 4 * mib, 8, 4},
		{64 * mib, 16, 4 * mib, 4 * mib, 16, 8}, // and then more workers
		{100 * mib, 16, 4 * mib, 4 * mib, 24, 12},
		{256 * mib, 16, 4 * mib, 4 * mib, 32, 16}, // the rest of the chunk is not taken
		{256 * mib, 4, 8 * mib, 8 * mib, 8, 4},    // blocks stop growing at the limit
		{256 * mib, 8, 3 * mib, 2 * mib, 16, 8},   // a limit that is no power of two
		{256 * mib, 8, 1, 64 * kib, 16, 8},        // a limit below the smallest block
		{1024*mib + 5, 16, 8 * mib, 8 * mib, 32, 16},
		{256 * kib, 16, 8 * mib, 64 * kib, 4, 2}, // too small for a few
		{128 * kib, 8, 8 * mib, 64 * kib, 2, 1},  // the smallest chunk
		{128*kib - 1, 1, 8 * mib, 0, 0, 0},
		{0, 1, 8 * mib, 0, 0, 0},
		{16 * mib, 0, 8 * mib, 8 * mib, 2, 1}, // no number of workers counts as one
	} {
		block, blocks, serve := Layout(c.chunk, c.workers, c.maxBlock)
		if block != c.block || blocks != c.blocks || serve != c.serve {
			t.Errorf("Layout(%d, %d, %d) = %d × %d for %d workers, want %d × %d for %d",
				c.chunk, c.workers, c.maxBlock, block, blocks, serve, c.block, c.blocks, c.serve)
		}
	}
}

func TestLayoutOfAnyChunk(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		chunk := rapid.Uint64Range(MinChunk, 8<<30).Draw(t, "chunk")
		workers := rapid.IntRange(1, 256).Draw(t, "workers")
		maxBlock := rapid.Uint64Range(MinBlock, 256<<20).Draw(t, "maxBlock")
		block, blocks, serve := Layout(chunk, workers, maxBlock)

		switch {
		case block < MinBlock || block > maxBlock || block&(block-1) != 0:
			t.Fatalf("block of %d bytes", block)
		case uint64(blocks)*block > chunk:
			t.Fatalf("%d blocks of %d are more than the chunk", blocks, block)
		case serve < 1 || serve > workers || blocks != 2*serve:
			t.Fatalf("%d blocks serve %d workers", blocks, serve)
		case serve < min(workers, fewWorkers) && block != MinBlock:
			t.Fatalf("workers were given up for blocks of %d bytes", block)
		case serve < workers && uint64(blocks+2)*block <= chunk:
			t.Fatalf("%d workers of %d, though the chunk has room for more", serve, workers)
		case block*2 <= maxBlock && 2*uint64(min(workers, fewWorkers))*block*2 <= chunk:
			t.Fatalf("blocks of %d bytes could be larger", block)
		}
	})
}
