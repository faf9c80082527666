package pipeline

import (
	"math/bits"
	"time"
)

// Trial is what a way of moving achieved on a part of the blocks.
type Trial struct {
	Workers  int     `json:"workers"`
	Snapshot bool    `json:"snapshot,omitempty"`
	GBPerS   float64 `json:"gb_per_s"`          // 1e9 bytes a second
	Setup    float64 `json:"setup_s,omitempty"` // seconds before the first byte, once an operation
}

func (t Trial) way() Way { return Way{Workers: t.Workers, Snapshot: t.Snapshot} }

const (
	// defaultWorkers is how many workers move what is too little to try anything out, in blocks of
	// defaultBlock. Of smaller blocks more are under way at a time.
	defaultWorkers = 8
	defaultBlock   = 4 << 20
)

// Default is the way of moving blocks of so many bytes when nothing was tried.
func (p *Pool) Default(blockBytes uint64) Way {
	n := defaultWorkers * defaultBlock / max(blockBytes, 1)
	return Way{Workers: int(min(max(n, defaultWorkers), uint64(p.options.Workers)))}
}

// SizeClass is the power of two from which on the blocks of the work are no larger on average. Blocks of
// one class are moved alike.
func SizeClass(bytes uint64, blocks int) uint64 {
	if bytes == 0 || blocks == 0 {
		return 0
	}
	return 1 << bits.Len64((bytes-1)/uint64(blocks))
}

// How much of an operation a trial takes. In the end the workers wait for one another, which must
// not weigh much.
const (
	trialShare  = 16 // of all blocks
	trialBlocks = 6  // at least so many for each worker
)

// diskWays are the ways to try for a disk, with at most so many workers: the more requests it gets at once,
// the faster it may be.
func diskWays(most int) []Way {
	var list []Way
	for n := 4; n < most; n *= 2 {
		list = append(list, Way{Workers: n})
	}
	return append(list, Way{Workers: most})
}

// hostWays are those for host memory: few workers keep a link busy, with large copies one. The
// fastest is not the same on every machine. Of ways that are equally fast in moving the first is the best, since
// fewer threads also leave the driver more time to unmap (H200, 4 GiB: 4.1 ms after 8 workers, 2.9 after 4, 2.0 after 2
// with snapshots).
func hostWays(d Direction, most int) []Way {
	few, some, more := min(2, most), min(4, most), min(8, most)
	if d == Load {
		return []Way{{Workers: few}, {Workers: some}}
	}
	return []Way{{Workers: 1, Snapshot: true}, {Workers: few, Snapshot: true}, {Workers: some}, {Workers: more}}
}

// Probe is Run, and finds out which way is best for the disks or the memory at hand: successive parts of
// the blocks are moved in different ways, and the rest in the best. Nothing is moved that is not to be moved
// anyway. Where there are too few blocks to tell, there are no trials. What goes to memory beside
// a disk is never what takes long.
func (p *Pool) Probe(d Direction, work Work, otherwise Way) (best Way, trials []Trial, err error) {
	best = otherwise
	queue, ways := &work.Disk, diskWays(p.options.Workers)
	if work.Disk.Len == 0 {
		queue, ways = &work.Host, hostWays(d, p.options.Workers)
	}
	sizes, all := trialSizes(ways, queue.Len)
	if len(ways) < 2 || all > queue.Len/2 {
		return best, nil, p.move(d, work, best)
	}
	done, bytes, made := 0, length(*queue), 0.0
	for i, way := range ways {
		setup, have, err := p.prepare(way, queue.At(done))
		if err != nil {
			return best, trials, err
		}
		if !have {
			continue
		}
		if way.Snapshot { // it was spared those that were there
			made += setup
			setup = made
		}
		part := queue.part(done, done+sizes[i])
		done += sizes[i]
		trial := Work{Moved: work.Moved}
		if queue == &work.Host {
			trial.Host = part
		} else {
			trial.Disk = part
		}
		begun := time.Now()
		if err := p.move(d, trial, way); err != nil {
			return best, trials, err
		}
		rate := float64(length(part)) / 1e9 / max(time.Since(begun).Seconds(), 1e-9)
		trials = append(trials, Trial{Workers: way.Workers, Snapshot: way.Snapshot, GBPerS: rate, Setup: setup})
	}
	best = choose(trials, bytes)
	if !best.Snapshot {
		if err := p.Rest()(); err != nil {
			return best, trials, err
		}
	}
	*queue = queue.part(done, queue.Len)
	return best, trials, p.move(d, work, best)
}

func trialSizes(ways []Way, blocks int) (sizes []int, all int) {
	for _, w := range ways {
		size := max(blocks/trialShare, trialBlocks*w.Workers)
		sizes = append(sizes, size)
		all += size
	}
	return sizes, all
}

// length is the bytes of all moves.
func length(m Moves) (n uint64) {
	for i := range m.Len {
		n += m.At(i).Length
	}
	return n
}

// worthMore is how much faster a way must be than those before it, which need less of the CPU.
const worthMore = 1.03

// seconds is what an operation of so many bytes takes.
func (t Trial) seconds(bytes uint64) float64 { return t.Setup + float64(bytes)/1e9/t.GBPerS }

// choose is the first way that is nearly as fast as the fastest for so many bytes.
func choose(trials []Trial, bytes uint64) Way {
	best := trials[0]
	for _, t := range trials[1:] {
		if t.seconds(bytes)*worthMore < best.seconds(bytes) {
			best = t
		}
	}
	return best.way()
}
