package pipeline

import "time"

// Trial is what a number of workers achieved on a part of the blocks for the disk.
type Trial struct {
	Workers int     `json:"workers"`
	GBPerS  float64 `json:"gb_per_s"` // 1e9 bytes a second
}

// DefaultWorkers is how many workers move what is too little to try anything out.
const DefaultWorkers = 8

// How much of an operation a trial takes. In the end the workers wait for one another, which must
// not weigh much.
const (
	trialShare  = 16 // of all blocks
	trialBlocks = 6  // at least so many for each worker
)

// candidates are the numbers of workers to try, up to most.
func candidates(most int) []int {
	var list []int
	for n := 4; n < most; n *= 2 {
		list = append(list, n)
	}
	return append(list, most)
}

// Probe is Run, and finds out how many workers are best for the disks at hand: successive parts of
// the blocks are moved by different numbers of workers, and the rest by the best. Nothing is moved
// that is not to be moved anyway. Where there are too few blocks to tell, there are no trials.
func (p *Pool) Probe(d Direction, work Work) (best int, trials []Trial, err error) {
	best = min(DefaultWorkers, p.options.Workers)
	list := candidates(p.options.Workers)
	sizes, all := trialSizes(list, work.Disk.Len)
	if len(list) < 2 || all > work.Disk.Len/2 {
		return best, nil, p.Run(d, work, best)
	}
	done := 0
	for i, n := range list {
		part := work.Disk.part(done, done+sizes[i])
		done += sizes[i]
		if err := p.start(n); err != nil { // takes time that is not the disk's
			return best, trials, err
		}
		begun := time.Now()
		if err := p.Run(d, Work{Disk: part, Kernel: work.Kernel, Moved: work.Moved}, n); err != nil {
			return best, trials, err
		}
		rate := float64(length(part)) / 1e9 / max(time.Since(begun).Seconds(), 1e-9)
		trials = append(trials, Trial{Workers: n, GBPerS: rate})
	}
	best = choose(trials)
	work.Disk = work.Disk.part(done, work.Disk.Len)
	return best, trials, p.Run(d, work, best)
}

func trialSizes(workers []int, blocks int) (sizes []int, all int) {
	for _, n := range workers {
		size := max(blocks/trialShare, trialBlocks*n)
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

// worthMore is how much faster more workers must be than fewer to be worth their threads.
const worthMore = 1.03

// choose is the least number of workers that is nearly as fast as the fastest.
func choose(trials []Trial) int {
	best := trials[0]
	for _, t := range trials[1:] {
		if t.GBPerS > best.GBPerS*worthMore {
			best = t
		}
	}
	return best.Workers
}
