package store

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ebb-offload/ebb/internal/sizes"
)

// rate counts the transfers of one directory.
type rate struct {
	write, read counter
}

type counter struct {
	bytes, busy atomic.Int64 // busy: nanoseconds, summed over transfers, which may overlap
}

func (c *counter) add(bytes int, busy time.Duration) {
	c.bytes.Add(int64(bytes))
	c.busy.Add(int64(busy))
}

// DirUsage is what a directory did since the store was made.
type DirUsage struct {
	Dir                   string
	WriteBytes, ReadBytes uint64
	WriteBusy, ReadBusy   time.Duration // summed over transfers, which may overlap
}

// rates are those of all directories used so far.
type rates struct {
	mu     sync.Mutex       // guards byPath; held over no call, so that readers never wait for a disk
	byPath map[string]*rate // absolute
}

// of is the rate of a directory.
func (r *rates) of(path string) *rate {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.byPath == nil {
		r.byPath = map[string]*rate{}
	}
	if r.byPath[path] == nil {
		r.byPath[path] = &rate{}
	}
	return r.byPath[path]
}

// usage lists them by path.
func (r *rates) usage() (list []DirUsage) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for dir, r := range r.byPath {
		list = append(list, DirUsage{
			Dir:        dir,
			WriteBytes: uint64(r.write.bytes.Load()), WriteBusy: time.Duration(r.write.busy.Load()),
			ReadBytes: uint64(r.read.bytes.Load()), ReadBusy: time.Duration(r.read.busy.Load()),
		})
	}
	slices.SortFunc(list, func(a, b DirUsage) int { return cmp.Compare(a.Dir, b.Dir) })
	return list
}

// SlowDir is a directory that held up the others.
type SlowDir struct {
	Dir          string
	Writing      bool    // or reading
	Rate, Others float64 // bytes per second of one transfer: its own, and the others' median
}

func (d SlowDir) String() string {
	doing := "reads"
	if d.Writing {
		doing = "writes"
	}
	return fmt.Sprintf("%s is slow: it %s %s/s where the other directories do %s/s", d.Dir, doing, sizes.Binary(uint64(d.Rate)), sizes.Binary(uint64(d.Others)))
}

// slowBytes is what directories must have moved before they are compared: less is the latency
// of a few transfers.
const slowBytes = 64 << 20

// Slow names the directories whose rate since an earlier reading was less than half of the
// median of the others' rates. Blocks are dealt evenly, so that one such directory sets the
// time of a pause.
func (u Usage) Slow(before Usage) (slow []SlowDir) {
	for _, writing := range []bool{true, false} {
		var all []SlowDir
		for _, d := range u.Dirs {
			i := slices.IndexFunc(before.Dirs, func(o DirUsage) bool { return o.Dir == d.Dir })
			var was DirUsage
			if i >= 0 {
				was = before.Dirs[i]
			}
			bytes, busy := d.ReadBytes-was.ReadBytes, d.ReadBusy-was.ReadBusy
			if writing {
				bytes, busy = d.WriteBytes-was.WriteBytes, d.WriteBusy-was.WriteBusy
			}
			if bytes >= slowBytes && busy > 0 {
				all = append(all, SlowDir{Dir: d.Dir, Writing: writing, Rate: float64(bytes) / busy.Seconds()})
			}
		}
		for i, d := range all {
			var others []float64
			for k, o := range all {
				if k != i {
					others = append(others, o.Rate)
				}
			}
			if d.Others = median(others); d.Rate < d.Others/2 {
				slow = append(slow, d)
			}
		}
	}
	return slow
}

// median is the lower one of an even number, and 0 of nothing.
func median(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	slices.Sort(v)
	return v[(len(v)-1)/2]
}
