package engine

import (
	"errors"
	"fmt"
	"sync"

	"github.com/ebb-offload/ebb/internal/rankdir"
	"github.com/ebb-offload/ebb/internal/store"
	"github.com/ebb-offload/ebb/internal/usage"
)

// usages count what this process takes and writes in the disk directories that a launcher gave it.
// Others, which the program chose itself, are nobody's to count.
type usages struct {
	mu     sync.Mutex              // guards the map
	tables map[string]*usage.Table // by rank directory
}

// makeUsages makes the tables of the directories that have a lease. They open nothing yet.
func (e *Engine) makeUsages() {
	e.usages.tables = map[string]*usage.Table{}
	for _, path := range e.leasePaths() {
		if base, id, ok := rankdir.OfLease(path); ok {
			e.usages.tables[id.Path(base)] = usage.NewTable(e.backings.files.System(), base, id.Path(""), e.self)
		}
	}
}

// usageOf is the table of a rank directory; nil: it is not counted. Without a lease a quota alone
// makes it so: for a directory that ebb env named together with all ranks in the disk directory, two
// above, for any other by itself.
func (e *Engine) usageOf(dir string) *usage.Table {
	u := &e.usages
	u.mu.Lock()
	defer u.mu.Unlock()
	t := u.tables[dir]
	if t == nil && e.config.Lease == "" && e.config.DiskQuota > 0 {
		if base, id, ok := rankdir.OfDir(dir); ok {
			t = usage.NewTable(e.backings.files.System(), base, id.Path(""), e.self)
		} else {
			t = usage.Alone(e.backings.files.System(), dir, e.self)
		}
		u.tables[dir] = t
	}
	return t
}

// takeRoom counts room in a directory before it is taken. Where there is no quota, a count that fails
// stops nobody.
func (e *Engine) takeRoom(dir string, n int64) (left uint64, err error) {
	e.removeFormer(dir)
	t := e.usageOf(dir)
	if t == nil {
		return 0, nil
	}
	err = t.Take(uint64(n), e.config.DiskQuota)
	var quota *usage.QuotaError
	switch {
	case err == nil:
		return 0, nil
	case errors.As(err, &quota):
		return quota.Left(), err
	case e.config.DiskQuota == 0:
		e.sayOnce(err.Error())
		return 0, nil
	}
	return 0, fmt.Errorf("%w: %w", store.ErrIO, err)
}

// tookRoom says that room which takeRoom counted shows in the directory.
func (e *Engine) tookRoom(dir string) {
	if t := e.usageOf(dir); t != nil {
		t.Taken(e.config.DiskQuota)
	}
}

// giveRoom counts room as given back.
func (e *Engine) giveRoom(dir string, n int64) {
	if t := e.usageOf(dir); t != nil {
		if err := t.Give(uint64(n)); err != nil {
			e.sayOnce(err.Error())
		}
	}
}

// countWritten notes at the end of an operation what was written in the directories.
func (e *Engine) countWritten() {
	written := map[string]uint64{} // by directory
	for _, s := range []*store.Store{e.backings.files, e.states.store} {
		for _, d := range s.Usage().Dirs {
			written[d.Dir] += d.WriteBytes
		}
	}
	for dir, bytes := range written {
		t := e.usageOf(dir)
		if t == nil {
			continue
		}
		if err := t.Wrote(bytes); err != nil {
			e.sayOnce(err.Error())
		}
		t.Rest()
	}
}
