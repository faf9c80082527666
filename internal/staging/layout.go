package staging

const (
	// DefaultMaxBlock is the largest block that is worth having: beyond it a disk gets no faster.
	DefaultMaxBlock = 4 << 20
	// MinBlock is the smallest block: below it the cost of a request outweighs its transfer.
	MinBlock = 64 << 10
	// MinChunk holds two of the smallest blocks: what one worker needs.
	MinChunk = 2 * MinBlock
)

// fewWorkers is the number of workers below which a small chunk is better cut into smaller blocks:
// a disk wants several requests at once.
const fewWorkers = 4

// Layout cuts a chunk of so many bytes into blocks for at most so many workers. Each worker needs
// two blocks, one at the device while the other is at the disk. A block is the largest power of two
// up to maxBlock with which a few workers have theirs, and at least MinBlock; then there are as many
// workers as the chunk has blocks for. No more is taken of the chunk than the workers use.
// All results are 0 when the chunk is smaller than MinChunk.
func Layout(chunk uint64, maxWorkers int, maxBlock uint64) (blockBytes uint64, blocks, workers int) {
	if chunk < MinChunk {
		return 0, 0, 0
	}
	maxWorkers = max(maxWorkers, 1)
	few := uint64(min(maxWorkers, fewWorkers))
	block := uint64(MinBlock)
	for block*2 <= maxBlock && 2*few*(block*2) <= chunk {
		block *= 2
	}
	workers = int(min(uint64(maxWorkers), chunk/(2*block)))
	return block, 2 * workers, workers
}
