package bench

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/ebb-offload/ebb/internal/launch"
)

const (
	// DefaultGiB is how much is parked where nothing else is said.
	DefaultGiB = 4
	// DefaultSoftGiB is the same on the software device.
	DefaultSoftGiB = 0.25
	// DefaultRounds is the least with which an interval covers 90 %.
	DefaultRounds = 5
	// DefaultRanks is how many processes park at the same time in the row ranks.
	DefaultRanks = 4
)

const (
	mib = 1 << 20
	gib = 1 << 30
	// unit is what sizes are multiples of: the granularity of device memory.
	unit = 2 * mib
)

// Options is what a run is asked for.
type Options struct {
	Libraries launch.Libraries
	Environ   []string

	Device   string   // auto, soft, or the number of a device
	DiskDirs []string // absolute
	GiB      float64  // 0: the default of the device
	Rounds   int
	Rows     []string // names; none: all
	Ranks    int
	ChunkMB  int
	Against  string // another library to run the same script with; empty: none

	Progress func(string) // told what is being done; may be nil
	Warn     func(string) // told what is a poor choice; may be nil
}

// NewOptions returns the defaults.
func NewOptions() Options {
	return Options{
		Device: launch.DeviceAuto, Rounds: DefaultRounds, Ranks: DefaultRanks, ChunkMB: launch.DefaultChunkMB,
	}
}

func (o Options) soft() bool { return o.Device == launch.DeviceSoft }

// bytes is the size of an actor.
func (o Options) bytes() uint64 {
	size := o.GiB
	switch {
	case size == 0 && o.soft():
		size = DefaultSoftGiB
	case size == 0:
		size = DefaultGiB
	}
	return max(uint64(size*gib)/unit*unit, 8*unit)
}

// device is the number of the device.
func (o Options) device() int {
	n, err := strconv.Atoi(o.Device)
	if err != nil {
		return 0
	}
	return n
}

// Draws reports whether rows are asked for that give points for a plot.
func (o Options) Draws() bool {
	return len(o.Rows) == 0 || slices.ContainsFunc(o.Rows, func(row string) bool {
		return row == "pause" || row == "resume" || row == "sizes"
	})
}

// The parsers below give the words after "invalid argument … for … flag:".

// ParseDevice parses --device.
func ParseDevice(s string) (string, error) {
	if s == launch.DeviceAuto || s == launch.DeviceSoft {
		return s, nil
	}
	if n, err := strconv.Atoi(s); err == nil && n >= 0 && n < 1024 {
		return strconv.Itoa(n), nil
	}
	return "", fmt.Errorf("must be auto, soft, or the number of a device")
}

// ParseGiB parses --gib.
func ParseGiB(s string) (float64, error) {
	v, err := strconv.ParseFloat(s, 64)
	if err != nil || math.IsNaN(v) || v < 1.0/64 || v > 1<<20 {
		return 0, fmt.Errorf("must be a number of GiB, at least 0.015625 (16 MiB)")
	}
	return v, nil
}

// ParseRounds parses --rounds.
func ParseRounds(s string) (int, error) { return parseInt(s, 1, 1000, "a number of rounds") }

// ParseRanks parses --ranks.
func ParseRanks(s string) (int, error) { return parseInt(s, 2, 64, "a number of ranks") }

func parseInt(s string, low, high int, what string) (int, error) {
	n, err := strconv.Atoi(s)
	if err != nil || n < low || n > high {
		return 0, fmt.Errorf("must be %s from %d to %d", what, low, high)
	}
	return n, nil
}

// ParseRows parses --rows, but for the word list.
func ParseRows(s string) ([]string, error) {
	if s == "all" { // as the help names the default
		return nil, nil
	}
	var rows []string
	for name := range strings.SplitSeq(s, ",") {
		name = strings.TrimSpace(name)
		if _, ok := rowNamed(name); !ok {
			return nil, fmt.Errorf("there is no row %q: --rows list prints them", name)
		}
		rows = append(rows, name)
	}
	return rows, nil
}
