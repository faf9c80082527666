package swap

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ebb-offload/ebb/internal/control"
	"github.com/ebb-offload/ebb/internal/node"
	"github.com/ebb-offload/ebb/internal/sizes"
)

// measureEvery is how often the devices are asked for their free memory.
const measureEvery = 100 * time.Millisecond

// device is one device, as the ranks on it see it.
type device struct {
	control.Device
	need uint64
}

// demand is memory that is needed on a set of devices together. Which part of a rank's paused memory was on
// which of its devices is not told; a rank has as a rule only one.
type demand struct {
	devices []string
	bytes   uint64
}

// key tells devices from one another. Ordinals are a process's own; where no UUID is told they must do.
func key(d control.Device) string {
	if d.UUID != "" {
		return d.UUID
	}
	return fmt.Sprintf("device %d", d.Ordinal)
}

// view is what the ranks see: their devices, and what those that are to be resumed need of them.
func view(seen []node.RankDevices, need map[int]uint64) (devices map[string]*device, demands []demand) {
	devices = map[string]*device{}
	for _, r := range seen {
		var on []string
		for _, d := range r.Devices {
			k := key(d)
			on = append(on, k)
			if devices[k] == nil {
				devices[k] = &device{Device: d}
			}
		}
		if bytes := need[r.PID]; bytes > 0 && len(on) > 0 {
			demands = addDemand(demands, on, bytes)
		}
	}
	for _, d := range demands {
		if len(d.devices) == 1 {
			devices[d.devices[0]].need = d.bytes
		}
	}
	return devices, demands
}

func addDemand(demands []demand, on []string, bytes uint64) []demand {
	slices.Sort(on)
	for i := range demands {
		if slices.Equal(demands[i].devices, on) {
			demands[i].bytes += bytes
			return demands
		}
	}
	return append(demands, demand{on, bytes})
}

// short is the first demand that the devices' free memory does not meet.
func short(devices map[string]*device, demands []demand) (demand, uint64, bool) {
	for _, d := range demands {
		var free uint64
		for _, k := range d.devices {
			free += devices[k].Free
		}
		if free < d.bytes {
			return d, free, true
		}
	}
	return demand{}, 0, false
}

// measure waits until the driver shows that what the paused ranks need is free, and records how much is free.
// The ranks' own resume is what decides: it takes all or nothing. This wait tells an engine that has only said
// that it sleeps from one that does.
func (h *handOver) measure(ctx context.Context, paused []node.RankStatus) error {
	begin := time.Now()
	need := map[int]uint64{}
	for _, s := range paused {
		need[s.PID] = h.paused(s.Status)
	}
	for {
		seen := node.Devices(h.caller, h.Ranks, patience) // not cut by the deadline: the last look counts too
		devices, demands := view(seen, need)
		lacking, free, isShort := short(devices, demands)
		told := toldAll(seen)
		if told == nil && !isShort {
			h.devices(devices, begin, true)
			return nil
		}
		if !stopped(ctx) {
			continue
		}
		if told == nil {
			h.devices(devices, begin, false)
			var on []string
			for _, k := range lacking.devices {
				on = append(on, deviceName(devices[k].Device))
			}
			told = fmt.Errorf("%s is free of the %s that the paused ranks need on %s", bytesOf(free), bytesOf(lacking.bytes), strings.Join(on, " and "))
		}
		if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return &Error{Text: "interrupted while memory was waited for: " + told.Error()}
		}
		return &Error{Text: "at the deadline " + told.Error(), Late: true}
	}
}

// toldAll is the error of ranks that did not tell their devices.
func toldAll(seen []node.RankDevices) error {
	for _, r := range seen {
		if r.Err != "" {
			return fmt.Errorf("%s does not tell its devices: %s", node.Name(r.Who), r.Err)
		}
	}
	return nil
}

func (h *handOver) devices(devices map[string]*device, begin time.Time, ok bool) {
	for _, k := range sorted(devices) {
		d := devices[k]
		h.step(Step{Step: StepMemory, What: deviceName(d.Device), State: "free", OK: ok || d.Free >= d.need, Bytes: d.Free, Total: d.Total, Need: d.need,
			Holders: d.Holders, Seconds: time.Since(begin).Seconds()})
	}
}

func sorted(devices map[string]*device) []string {
	var keys []string
	for k := range devices {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// stands says in one line, after a failure, which ranks are where and who holds the devices' memory.
func (h *handOver) stands(ctx context.Context) string {
	var resident, paused, silent int
	for _, s := range node.StatusOf(ctx, h.Ranks, 0) {
		switch {
		case s.Err != "":
			silent++
		case s.Status.Paused > 0:
			paused++
		default:
			resident++
		}
	}
	silent += len(h.Silent)
	var parts []string
	for _, count := range []struct {
		n    int
		what string
	}{{resident, "resident"}, {paused, "paused, memory safe"}, {silent, "without an answer"}} {
		if count.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s %s", count.n, plural(count.n, "rank"), count.what))
		}
	}
	devices, _ := view(node.Devices(ctx, h.Ranks, 0), nil)
	for _, k := range sorted(devices) {
		parts = append(parts, h.heldBy(devices[k].Device))
	}
	return strings.Join(parts, "; ")
}

// heldBy says who holds a device's memory, the largest first.
func (h *handOver) heldBy(d control.Device) string {
	text := fmt.Sprintf("%s has %s free of %s", deviceName(d), sizes.Exact(d.Free), sizes.Exact(d.Total))
	if len(d.Holders) == 0 {
		return text + "; who holds the rest is not told"
	}
	holders := slices.DeleteFunc(slices.Clone(d.Holders), func(o control.Holder) bool { return o.Bytes == 0 })
	slices.SortStableFunc(holders, func(a, b control.Holder) int { return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), a.PID-b.PID) })
	const most = 4
	var held []string
	for i, o := range holders {
		if i == most {
			held = append(held, fmt.Sprintf("%d more", len(holders)-most))
			break
		}
		held = append(held, fmt.Sprintf("%s %s", h.holder(o), sizes.Exact(o.Bytes)))
	}
	if len(held) == 0 {
		return text
	}
	return text + ", held by " + strings.Join(held, ", ")
}

// holder is who holds memory, by the rank's name where it is one.
func (h *handOver) holder(o control.Holder) string {
	for _, r := range h.Ranks {
		if r.PID == o.PID {
			return fmt.Sprintf("%s (pid %d)", node.ShortName(r.Who), o.PID)
		}
	}
	return fmt.Sprintf("process %d (%s)", o.PID, o.Name)
}

// deviceName is a device in words.
func deviceName(d control.Device) string {
	if d.UUID == "" {
		return fmt.Sprintf("%s %d", d.Name, d.Ordinal)
	}
	return fmt.Sprintf("%s %s", d.Name, d.UUID)
}

// bytesOf is a size in both units.
func bytesOf(n uint64) string { return sizes.Both(n) }

func plural(n int, what string) string {
	if n == 1 {
		return what
	}
	return what + "s"
}

// stopped waits for the next measurement, or until the context ends.
func stopped(ctx context.Context) bool {
	select {
	case <-time.After(measureEvery):
		return false
	case <-ctx.Done():
		return true
	}
}
