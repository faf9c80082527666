package sizing

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Range is a figure with the range that it is expected in. The zero Range is not known.
type Range struct {
	Low     float64 `json:"low"`
	Typical float64 `json:"typical"`
	High    float64 `json:"high"`
}

// Known reports whether there is a figure.
func (r Range) Known() bool { return r.Typical > 0 }

// Of is the range of measurements: their median between the lowest and the highest.
func Of(values ...float64) Range {
	if len(values) == 0 {
		return Range{}
	}
	slices.Sort(values)
	n := len(values)
	return Range{Low: values[0], Typical: (values[(n-1)/2] + values[n/2]) / 2, High: values[n-1]}
}

// times is the product of two figures, each anywhere in its range.
func (r Range) times(s Range) Range {
	return Range{Low: r.Low * s.Low, Typical: r.Typical * s.Typical, High: r.High * s.High}
}

// scaled is each end times a number.
func (r Range) scaled(by float64) Range { return r.times(Range{by, by, by}) }

// seconds is how long bytes take at a rate. The shortest time is that of the highest rate.
func (r Range) seconds(bytes uint64) Range {
	if !r.Known() {
		return Range{}
	}
	n := float64(bytes)
	return Range{Low: n / r.High, Typical: n / r.Typical, High: n / r.Low}
}

// later is the later of two ends.
func (r Range) later(s Range) Range {
	return Range{Low: max(r.Low, s.Low), Typical: max(r.Typical, s.Typical), High: max(r.High, s.High)}
}

// What ebb reaches of the rate that disk or link have by themselves: medians and intervals of the rows
// pause, resume, adamw and cpu in docs/benchmarks.md (one H200, one virtual disk). A resume is not taken
// to be faster than the disk, though the median of that row is.
var (
	pauseOfDisk  = Range{0.80, 0.975, 1.065}
	resumeOfDisk = Range{0.84, 1, 1.12}
	pauseOfLink  = Range{0.83, 0.85, 0.89}
	resumeOfLink = Range{0.94, 1, 1.03}
)

// TypicalLink is a copy between device and pinned host memory: the lowest and the highest of the
// medians in docs/benchmarks.md (one H200, PCIe 5 x16).
var TypicalLink = Range{47.1e9, 53.5e9, 55.3e9}

// firstOfArena is a first pause to host memory, making the arena included (row cpu-first, one rank).
var firstOfArena = Range{12.5e9, 15.4e9, 16.7e9}

// fastest is more than what a node's disks or a GPU's link do, in GB/s.
const fastest = 1000

// ParseRate parses GB/s (10⁹ bytes a second): one number, or the lowest and the highest as LOW-HIGH.
func ParseRate(s string) (Range, error) {
	low, high, ranged := strings.Cut(s, "-")
	if !ranged {
		high = low
	}
	a, errLow := strconv.ParseFloat(strings.TrimSpace(low), 64)
	b, errHigh := strconv.ParseFloat(strings.TrimSpace(high), 64)
	if errLow == nil && a > fastest && !math.IsInf(a, 0) { // of one in MB/s
		return Range{}, fmt.Errorf("is faster than any disk or link: give GB/s (10⁹ bytes a second), as %.3g for %g MB/s", a/1000, a)
	}
	// Also false for NaN.
	if errLow != nil || errHigh != nil || !(a >= 0.001 && b <= fastest && a <= b) {
		return Range{}, fmt.Errorf("must be GB/s (10⁹ bytes a second), as 2.6, or lowest and highest, as 2.3-2.9")
	}
	return Range{a * 1e9, math.Sqrt(a*b) * 1e9, b * 1e9}, nil
}
