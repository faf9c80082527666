package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/ebb-offload/ebb/internal/launch"
	"github.com/ebb-offload/ebb/internal/sizing"
)

// eachPlan plans 1e9 parameters, 18 GB of state, for every kind of GPU, host memory, disk, streaming and target.
func eachPlan(t *testing.T, check func(name string, o planOptions, r planResult)) {
	t.Helper()
	for _, gpu := range []uint64{0, 4e9, 10e9, 16e9, 40e9} { // not said; nothing fits; weights and gradients; and buckets; all
		for _, host := range []uint64{300 << 20, 8 << 30, 64 << 30} { // the staging buffer; a part; all
			for _, disk := range []uint64{0, 5e9, 15e9, 100e9} { // not said; nothing; one of parked and streamed state; both
				for _, streaming := range []bool{false, true} {
					for _, target := range []string{"", launch.TargetCPU, launch.TargetAuto, launch.TargetDisk} {
						o := newPlanOptions()
						o.params, o.gpu, o.hostMemory, o.hostReserve, o.hostReserveSet = 1e9, gpu, host, 0, true
						o.diskSpace, o.streaming.toDisk, o.target = disk, streaming, target
						r, err := o.plan(context.Background())
						if err != nil {
							t.Fatal(err)
						}
						check(fmt.Sprintf("gpu %d, host %d, disk %d, streaming %v, target %q", gpu, host, disk, streaming, target), o, r)
					}
				}
			}
		}
	}
}

// room reports whether what a target needs is there, by the figures of the answer alone.
func room(r planResult, t sizing.Target) bool {
	streamed := uint64(0)
	if r.Streaming != nil {
		streamed = r.Streaming.DiskBytes
	}
	gpu := r.Largest.GPU == 0 || r.Largest.InStep()+launch.DefaultMargin <= r.Largest.GPU
	return gpu && t.HostBytes <= r.Node.HostLeft && (!r.Node.DiskKnown || t.DiskBytes+streamed <= r.Node.DiskFree)
}

// Whatever is too small, the column, the reason, what is chosen and how it ends say the same.
func TestATargetFitsOnlyWhereEverythingDoes(t *testing.T) {
	outcomes := map[string]int{}
	eachPlan(t, func(name string, o planOptions, r planResult) {
		var fit []string
		for _, target := range r.Targets {
			if target.Fits != (target.Why == "") {
				t.Errorf("%s: %s fits %v, because %q", name, target.Name, target.Fits, target.Why)
			}
			has := room(r, target)
			if target.Name == launch.TargetAuto && strings.Contains(target.Why, "host memory is left") { // it would be the disk target
				has = false
			}
			if target.Fits != has {
				t.Errorf("%s: %s fits %v: %+v", name, target.Name, target.Fits, target)
			}
			if gpu := slices.Contains(target.Unchecked, sizing.UncheckedGPU); gpu != (o.gpu == 0) {
				t.Errorf("%s: %s: %v not checked", name, target.Name, target.Unchecked)
			}
			if disk := slices.Contains(target.Unchecked, sizing.UncheckedDisk); target.Fits && disk != (o.diskSpace == 0 && (target.DiskBytes > 0 || o.streaming.toDisk)) {
				t.Errorf("%s: %s: %v not checked", name, target.Name, target.Unchecked)
			}
			if target.Fits && (o.target == "" || o.target == target.Name) {
				fit = append(fit, target.Name)
			}
		}
		if (r.Chosen == "") != (len(fit) == 0) || r.Chosen != "" && r.Chosen != fit[0] || (r.Chosen == "") != (len(r.Command) == 0) {
			t.Errorf("%s: of %q that fit %q is chosen: %q", name, fit, r.Chosen, r.Command)
		}
		outcomes[r.Chosen]++
	})
	for _, chosen := range []string{"", launch.TargetCPU, launch.TargetAuto, launch.TargetDisk} {
		if outcomes[chosen] == 0 {
			t.Errorf("%q was never chosen: %v", chosen, outcomes)
		}
	}
}

// What people read is what programs read.
func TestTheTableOfTargetsSaysWhatTheJSONDoes(t *testing.T) {
	eachPlan(t, func(name string, o planOptions, r planResult) {
		var text bytes.Buffer
		r.print(&text, o)
		for line := range strings.Lines(text.String()) {
			if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > textWidth {
				t.Errorf("%s: %d columns: %s", name, n, line)
			}
		}
		printed, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		var read struct {
			Targets []sizing.Target `json:"targets"`
		}
		if err := json.Unmarshal(printed, &read); err != nil {
			t.Fatal(err)
		}
		said := strings.Join(strings.Fields(text.String()), " ")
		starred := false
		for _, target := range read.Targets {
			fits := "no"
			switch {
			case target.Fits && len(target.Unchecked) > 0:
				fits, starred = "yes*", true
			case target.Fits:
				fits = "yes"
			}
			if !slices.ContainsFunc(strings.Split(text.String(), "\n"), func(line string) bool {
				cells := strings.Fields(line)
				return len(cells) > 2 && cells[0] == target.Name && cells[1] == fits
			}) {
				t.Errorf("%s: no row %s %s:\n%s", name, target.Name, fits, &text)
			}
			for why := range strings.SplitSeq(target.Why, "; ") {
				if why = strings.Join(strings.Fields(why), " "); !strings.Contains(said, why) {
					t.Errorf("%s: %q is not said:\n%s", name, why, &text)
				}
			}
		}
		if starred != strings.Contains(said, "* as far as is known") {
			t.Errorf("%s: of what was not checked:\n%s", name, &text)
		}
	})
}

// The last line of what does not fit says what helps, and that this does.
func TestWhatHelpsAgainstAGPUThatIsTooSmallHelps(t *testing.T) {
	o := newPlanOptions()
	o.params, o.hostMemory, o.diskSpace = 1e9, 64<<30, 100e9
	plan := func() planResult {
		t.Helper()
		r, err := o.plan(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	const stream, buckets, divide = "add --stream-optimizer-state-to-disk", "smaller buckets", "divide the model"
	for _, tt := range []struct {
		gpu       uint64
		optimizer string
		streaming bool
		helps     []string
	}{
		{16e9, "adamw", false, []string{stream, divide}},
		{8e9, "adamw", true, []string{buckets, divide}},
		{4e9, "adamw", true, []string{divide}},
		{4e9, "adamw", false, []string{divide}},
		{8e9, "sgd", false, []string{divide}}, // without moments nothing can be streamed
	} {
		o.gpu, o.state.Optimizer, o.streaming.toDisk = tt.gpu, tt.optimizer, tt.streaming
		r := plan()
		if r.Chosen != "" {
			t.Errorf("%+v: %s fits", tt, r.Chosen)
		}
		for _, remedy := range []string{stream, buckets, divide} {
			if text := r.unfit(""); strings.Contains(text, remedy) != slices.Contains(tt.helps, remedy) {
				t.Errorf("%+v: %s", tt, text)
			}
		}
	}
	o.gpu, o.state.Optimizer, o.streaming.toDisk = 16e9, "adamw", true
	if r := plan(); r.Chosen == "" {
		t.Errorf("with streamed state: %s", r.unfit(""))
	}
}

// However large the job and however slow its disk, a row fits.
func TestARowOfTargetsFitsWhateverTheJob(t *testing.T) {
	for _, rate := range []string{"0.001-0.003", "0.05", "1", "100"} {
		for _, params := range []string{"1M", "7B", "405B", "2T"} {
			o := newPlanOptions()
			for _, err := range []error{
				into(&o.params, sizing.ParseCount)(params), into(&o.write, sizing.ParseRate)(rate), into(&o.read, sizing.ParseRate)(rate),
			} {
				if err != nil {
					t.Fatal(err)
				}
			}
			o.parallel.TP, o.hostMemory, o.diskSpace = 8, 4<<40, 900e12
			r, err := o.plan(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			var text bytes.Buffer
			r.print(&text, o)
			for line := range strings.Lines(text.String()) {
				if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > textWidth {
					t.Errorf("%s at %s GB/s: %d columns: %s", params, rate, n, line)
				}
			}
		}
	}
}
