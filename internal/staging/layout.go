package staging

const (
	// DefaultMaxBlock is the largest block that is worth having: beyond it a disk gets no faster.
	DefaultMaxBlock = 8 << 20
	// MinBlock is the smallest block: below it the cost of a request outweighs its transfer.
	MinBlock = 64 << 10
	// MinChunk holds two of the smallest blocks: what one worker needs.
	MinChunk = 2 * MinBlock
)

// Layout cuts a chunk of so many bytes into blocks for so many workers. Each worker needs two
// blocks, one at the device while the other is at the disk. A block is the largest power of two
// up to maxBlock with which all workers have theirs, and at least MinBlock; a chunk too small for
// that serves fewer workers. No more is taken of the chunk than the workers use.
// All results are 0 when the chunk is smaller than MinChunk.
func Layout(chunk uint64, workers int, maxBlock uint64) (blockBytes uint64, blocks, usableWorkers int) {
	if chunk < MinChunk {
		return 0, 0, 0
	}
	workers = max(workers, 1)
	if uint64(workers) > chunk/MinChunk {
		workers = int(chunk / MinChunk)
	}
	block := uint64(MinBlock)
	for block*2 <= maxBlock && 2*uint64(workers)*(block*2) <= chunk {
		block *= 2
	}
	return block, 2 * workers, workers
}
