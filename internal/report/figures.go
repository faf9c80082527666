package report

import (
	"cmp"
	"math"
	"slices"
)

// Spread is how a quantity is distributed.
type Spread struct {
	Count  int     `json:"count"`
	Min    float64 `json:"min"`
	Median float64 `json:"median"`
	P90    float64 `json:"p90"`
	Max    float64 `json:"max"`
}

// spread sorts values and tells how they are distributed.
func spread(values []float32) Spread {
	if len(values) == 0 {
		return Spread{}
	}
	slices.Sort(values)
	quantile := func(q float64) float64 { return float64(values[int(math.Round(q*float64(len(values)-1)))]) }
	return Spread{Count: len(values), Min: quantile(0), Median: middle(values), P90: quantile(0.9), Max: quantile(1)}
}

// middle is the median of sorted values. Of an even number it is between the two in the middle: else the better half of
// rates would stand beside the worse half of times.
func middle(values []float32) float64 {
	n := len(values)
	return (float64(values[(n-1)/2]) + float64(values[n/2])) / 2
}

// Bytes is what became of the bytes of operations.
type Bytes struct {
	Logical   uint64 `json:"logical"`        // all of them
	Disk      uint64 `json:"disk"`           // moved to or from files
	Host      uint64 `json:"host"`           // moved to or from host memory
	Zero      uint64 `json:"skipped_zero"`   // nothing but zeros
	Same      uint64 `json:"skipped_same"`   // in the backup already
	Unused    uint64 `json:"skipped_unused"` // used by nobody
	Discarded uint64 `json:"other"`          // the rest: content that may be lost
	Device    uint64 `json:"device"`         // physical memory released or created
	Kept      uint64 `json:"kept"`           // left on the device, since others use it
	Missing   uint64 `json:"missing"`        // released, and not free
}

func (b *Bytes) take(o *outcome) {
	b.Logical, b.Device = plus(b.Logical, o.Bytes), plus(b.Device, o.DeviceBytes)
	b.Disk, b.Host = plus(b.Disk, o.DiskBytes), plus(b.Host, o.HostBytes)
	b.Zero, b.Same, b.Unused = plus(b.Zero, o.SkippedZero), plus(b.Same, o.SkippedSame), plus(b.Unused, o.Unused)
	b.Kept, b.Missing = plus(b.Kept, o.Kept), plus(b.Missing, o.Missing)
	known := plus(plus(plus(o.DiskBytes, o.HostBytes), plus(o.SkippedZero, o.SkippedSame)), o.Unused)
	b.Discarded = plus(b.Discarded, o.Bytes-min(o.Bytes, known))
}

func (b *Bytes) add(o Bytes) {
	b.Logical, b.Device = plus(b.Logical, o.Logical), plus(b.Device, o.Device)
	b.Disk, b.Host = plus(b.Disk, o.Disk), plus(b.Host, o.Host)
	b.Zero, b.Same, b.Unused = plus(b.Zero, o.Zero), plus(b.Same, o.Same), plus(b.Unused, o.Unused)
	b.Kept, b.Missing = plus(b.Kept, o.Kept), plus(b.Missing, o.Missing)
	b.Discarded = plus(b.Discarded, o.Discarded)
}

// Phase is a part of operations.
type Phase struct {
	Name    string  `json:"phase"`
	Seconds float64 `json:"seconds"` // the mean of an operation
}

// Direction is pauses, or resumes.
type Direction struct {
	Done    int     `json:"done"`
	Failed  int     `json:"failed"`
	Bytes   Bytes   `json:"bytes"` // of those that were done
	Each    Spread  `json:"bytes_each"`
	Seconds Spread  `json:"seconds"`
	Rate    Spread  `json:"gb_per_s"` // 10⁹ logical bytes a second of one rank
	Phases  []Phase `json:"phases"`
	Cut     int     `json:"without_end"` // whose end is not in the log

	each, seconds, rate []float32
	phases              map[string]float64 // sums in seconds
}

// take takes an operation in.
func (d *Direction) take(o operation) {
	switch {
	case o.cut:
		d.Cut++
		return
	case o.failed:
		d.Failed++
		return
	}
	d.Done++
	d.Bytes.take(o.done)
	s := o.done.Seconds
	d.seconds, d.each = append(d.seconds, float32(s)), append(d.each, float32(o.done.Bytes))
	if s > 0 && o.done.Bytes > 0 {
		d.rate = append(d.rate, float32(float64(o.done.Bytes)/s/1e9))
	}
	if d.phases == nil {
		d.phases = map[string]float64{}
	}
	for _, p := range o.done.phases {
		if _, known := d.phases[p.Name]; known || len(d.phases) < 32 {
			d.phases[p.Name] += p.Seconds
		}
	}
}

// add joins those of another rank.
func (d *Direction) add(o Direction) {
	d.Done, d.Failed, d.Cut = d.Done+o.Done, d.Failed+o.Failed, d.Cut+o.Cut
	d.Bytes.add(o.Bytes)
	d.each, d.seconds, d.rate = append(d.each, o.each...), append(d.seconds, o.seconds...), append(d.rate, o.rate...)
	if d.phases == nil {
		d.phases = map[string]float64{}
	}
	for phase, s := range o.phases {
		d.phases[phase] += s
	}
}

// order is that of phases in an operation.
var order = []string{"wait", "create", "room", "hash", "move", "map", "check", "commit", "unmap", "rest"}

// sum works out what is told from what was gathered.
func (d *Direction) sum() {
	d.Each, d.Seconds, d.Rate = spread(d.each), spread(d.seconds), spread(d.rate)
	d.Phases = []Phase{}
	for phase, s := range d.phases {
		if s > 0 && d.Done > 0 {
			d.Phases = append(d.Phases, Phase{phase, s / float64(d.Done)})
		}
	}
	place := func(p Phase) int {
		if i := slices.Index(order, p.Name); i >= 0 {
			return i
		}
		return len(order)
	}
	slices.SortFunc(d.Phases, func(a, b Phase) int {
		return cmp.Or(cmp.Compare(place(a), place(b)), cmp.Compare(a.Name, b.Name))
	})
}
