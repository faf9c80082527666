package engine

import (
	"strings"

	"github.com/ebb-offload/ebb/internal/pipeline"
)

// tuning is how many workers a set of directories is served with, in one direction, and how that
// was found out.
type tuning struct {
	Dirs      string           `json:"dirs"`
	Direction string           `json:"operation"` // "pause" or "resume"
	Workers   int              `json:"workers"`
	Trials    []pipeline.Trial `json:"trials"`
}

// runTuned runs work with the number of workers that was best for its directories; the first
// operation that moves enough finds it out. It returns how many that were.
func (e *Engine) runTuned(d pipeline.Direction, work pipeline.Work) (workers int, err error) {
	workers = min(pipeline.DefaultWorkers, e.workers)
	if work.Disk.Len == 0 {
		return workers, e.pool.Run(d, work, workers)
	}
	dirs, name := strings.Join(e.dirs(), ","), [...]string{pipeline.Store: "pause", pipeline.Load: "resume"}[d]
	if n := e.tuned(dirs, name); n > 0 {
		return n, e.pool.Run(d, work, n)
	}
	workers, trials, err := e.pool.Probe(d, work)
	if err == nil && len(trials) > 0 {
		e.mu.Lock()
		e.tunings = append(e.tunings, tuning{Dirs: dirs, Direction: name, Workers: workers, Trials: trials})
		e.mu.Unlock()
	}
	return workers, err
}

// tuned is the number of workers for the directories and the direction; 0: not known.
func (e *Engine) tuned(dirs, direction string) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, t := range e.tunings {
		if t.Dirs == dirs && t.Direction == direction {
			return t.Workers
		}
	}
	return 0
}

// watchDisks begins to watch how fast directories are; the result names the slow ones.
func (e *Engine) watchDisks() (done func()) {
	before := e.backings.files.Usage()
	return func() {
		for _, d := range e.backings.files.Usage().Slow(before) {
			e.sayOnce(d.String())
		}
	}
}
