package engine

import (
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
// operation that moves enough finds it out.
func (e *Engine) runTuned(d pipeline.Direction, work pipeline.Work) error {
	dirs, name := e.dir(), [...]string{pipeline.Store: "pause", pipeline.Load: "resume"}[d]
	if t := e.tuned(dirs, name); t != nil {
		return e.pool.Run(d, work, t.Workers)
	}
	best, trials, err := e.pool.Probe(d, work)
	if err == nil && len(trials) > 0 {
		e.mu.Lock()
		e.tunings = append(e.tunings, tuning{Dirs: dirs, Direction: name, Workers: best, Trials: trials})
		e.mu.Unlock()
	}
	return err
}

// tuned is what is known of the directories and the direction, or nil.
func (e *Engine) tuned(dirs, direction string) *tuning {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i := range e.tunings {
		if t := &e.tunings[i]; t.Dirs == dirs && t.Direction == direction {
			return t
		}
	}
	return nil
}
