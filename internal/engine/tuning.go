package engine

import (
	"strings"

	"github.com/ebb-offload/ebb/internal/pipeline"
)

// tuning is how blocks of one class of sizes are best moved to or from a set of directories, or host
// memory, and how that was found out.
type tuning struct {
	Dirs       string           `json:"dirs"`        // "": host memory
	Direction  string           `json:"operation"`   // "pause" or "resume"; of streamed state, "write" or "read"
	BlockBytes uint64           `json:"block_bytes"` // the class: no larger on average
	Workers    int              `json:"workers"`
	Snapshot   bool             `json:"snapshot"` // by way of device memory of ebb's own
	Trials     []pipeline.Trial `json:"trials"`
}

func (t *tuning) way() pipeline.Way { return pipeline.Way{Workers: t.Workers, Snapshot: t.Snapshot} }

// serves reports whether o is what t was found out for.
func (t *tuning) serves(o *tuning) bool {
	return t.Dirs == o.Dirs && t.Direction == o.Direction && t.BlockBytes == o.BlockBytes
}

// runTuned runs work in the way that was best for where it goes; the first operation that moves enough
// finds it out, where it may (try). It returns how many workers that were.
func (e *Engine) runTuned(d pipeline.Direction, work pipeline.Work, blockBytes uint64, try bool) (workers int, err error) {
	t := tuning{Direction: [...]string{pipeline.Store: "pause", pipeline.Load: "resume"}[d], BlockBytes: blockBytes}
	if work.Disk.Len > 0 {
		t.Dirs = strings.Join(e.dirs(), ",")
	}
	way, known := e.tuned(&t)
	if !known {
		way = e.pool.Default(blockBytes)
	}
	if known || !try {
		way, err = e.pool.Run(d, work, way)
		return way.Workers, err
	}
	way, t.Trials, err = e.pool.Probe(d, work, way)
	if t.Workers, t.Snapshot = way.Workers, way.Snapshot; err == nil && len(t.Trials) > 0 {
		e.mu.Lock()
		e.tunings = append(e.tunings, t)
		e.mu.Unlock()
	}
	return way.Workers, err
}

// restPool is Rest of the pool, where there is one.
func (e *Engine) restPool() (wait func() error) {
	if e.pool == nil {
		return func() error { return nil }
	}
	return e.pool.Rest()
}

// runLane is runTuned for a request of streamed state: the first one that moves enough to files tries the ways. Blocks of zeros are not moved, which looks fast and tells nothing of a disk.
func (e *Engine) runLane(l *lane, st *State, work pipeline.Work, bytes uint64) error {
	t := tuning{
		Direction:  [...]string{pipeline.Store: "write", pipeline.Load: "read"}[l.direction],
		BlockBytes: pipeline.SizeClass(bytes, work.Disk.Len), Dirs: strings.Join(st.dirs, ","),
	}
	way, known := e.tuned(&t)
	if known {
		_, err := l.pool.Run(l.direction, work, way)
		return err
	}
	way, trials, err := l.pool.Probe(l.direction, work, l.pool.Default(t.BlockBytes))
	if err == nil && len(trials) > 0 && work.Moved.Disk() >= bytes/10*9 {
		t.Workers, t.Snapshot, t.Trials = way.Workers, way.Snapshot, trials
		e.mu.Lock()
		e.tunings = append(e.tunings, t)
		e.mu.Unlock()
	}
	return err
}

// tuned is the way that was found out.
func (e *Engine) tuned(of *tuning) (way pipeline.Way, known bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, t := range e.tunings {
		if t.serves(of) {
			return t.way(), true
		}
	}
	return way, false
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
