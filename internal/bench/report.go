package bench

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// Report is the result of a run.
type Report struct {
	MessageType string   `json:"message_type"`
	Version     string   `json:"version"`
	Machine     Machine  `json:"machine"`
	Setup       Setup    `json:"setup"`
	Figures     []Figure `json:"figures"` // ratios first
	Spans       []Spans  `json:"spans"`   // where the time of pauses and resumes went
	Points      []Point  `json:"points"`
	Took        []Took   `json:"took"`            // where the time went
	Seconds     float64  `json:"seconds"`         // of the run
	Ended       string   `json:"ended,omitempty"` // why it ended early; then rows or rounds are missing
}

// Took is the time for some rows.
type Took struct {
	What    string  `json:"what"`
	Seconds float64 `json:"seconds"`
}

// Machine is where it was measured.
type Machine struct {
	Device string `json:"device"`
	Driver int    `json:"driver_version"` // 13000 is CUDA 13.0
	CPUs   int    `json:"cpus"`
	Memory uint64 `json:"memory_bytes"`
	Kernel string `json:"kernel"`
	Disks  []Disk `json:"disks"`
}

// Disk is a directory of backup files.
type Disk struct {
	Dir        string `json:"dir"`
	FileSystem string `json:"file_system"`
	Mount      string `json:"mount"`
}

// Setup is what was measured.
type Setup struct {
	Bytes   uint64 `json:"bytes"`
	Rounds  int    `json:"rounds"`
	Ranks   int    `json:"ranks"`
	ChunkMB int    `json:"chunk_mb"`
	Writers int    `json:"write_workers"` // of ebb, and of the raw arms
	Readers int    `json:"read_workers"`
	Block   uint64 `json:"block_bytes"`
	Against string `json:"against,omitempty"`
}

// Point is one operation that was timed.
type Point struct {
	Operation string  `json:"operation"` // pause, resume, write, read
	Library   string  `json:"library"`   // raw for write and read
	Bytes     uint64  `json:"bytes"`
	Seconds   float64 `json:"seconds"`
}

// Units of figures.
const (
	unitRatio   = ""
	unitRate    = "GB/s"
	unitBytes   = "bytes"
	unitCPU     = "s/GB"
	unitSeconds = "s"
)

// Figure is one line of the result.
type Figure struct {
	Row     string `json:"row"`
	What    string `json:"what"`
	Library string `json:"library"`
	Unit    string `json:"unit"` // empty: a ratio
	Interval
	Values  []float64 `json:"values"`             // round by round
	AtLeast *float64  `json:"at_least,omitempty"` // the goal, for the lower end of the interval
	AtMost  *float64  `json:"at_most,omitempty"`  // the same for the upper end
	Sides   []Side    `json:"sides,omitempty"`    // of a ratio: what was divided by what
	Note    string    `json:"note,omitempty"`
	Missing string    `json:"not_available,omitempty"` // why there is no figure
}

// Side is the median of one side of a ratio.
type Side struct {
	What   string  `json:"what"`
	Unit   string  `json:"unit"`
	Median float64 `json:"median"`
}

func (f Figure) isRatio() bool { return f.Unit == unitRatio }

// value is a figure of a quantity by itself.
func value(row, library, what, unit string, values []float64) Figure {
	return Figure{Row: row, Library: library, What: what, Unit: unit, Interval: summarize(values), Values: values}
}

// series is a quantity measured once a round.
type series struct {
	what   string
	unit   string
	values []float64
}

func (s series) side() Side { return Side{What: s.what, Unit: s.unit, Median: median(s.values)} }

// ratio is a figure of paired ratios, of the rounds that both have.
func ratio(row, library, what string, above, below series) Figure {
	n := min(len(above.values), len(below.values))
	above.values, below.values = above.values[:n], below.values[:n]
	f := value(row, library, what, unitRatio, paired(above.values, below.values))
	f.Sides = []Side{above.side(), below.side()}
	return f
}

func (f Figure) noting(note string) Figure {
	f.Note = note
	return f
}

func (f Figure) atLeast(goal float64) Figure {
	f.AtLeast = &goal
	return f
}

func (f Figure) atMost(goal float64) Figure {
	f.AtMost = &goal
	return f
}

// missing is a figure that cannot be measured.
func missing(row, library, what, why string) Figure {
	return Figure{Row: row, Library: library, What: what, Interval: Interval{}, Missing: why}
}

// JSON is the report as one indented document.
func (r Report) JSON() ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	if err := e.Encode(r); err != nil {
		return nil, fmt.Errorf("write the result as JSON: %w", err)
	}
	return b.Bytes(), nil
}
