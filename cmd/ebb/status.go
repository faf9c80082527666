package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"github.com/ebb-offload/ebb/internal/control"
	"github.com/ebb-offload/ebb/internal/launch"
	"github.com/ebb-offload/ebb/internal/node"
)

// statusResult is what ebb status --json prints.
type statusResult struct {
	MessageType string            `json:"message_type"`
	Ranks       []node.RankStatus `json:"ranks"`
	Silent      []node.Silent     `json:"silent"`
	Disks       []node.Disk       `json:"disks"`
}

// fewRanks is how many ranks are shown with their tags unasked.
const fewRanks = 4

func newStatus() *cobra.Command {
	var (
		ranks rankFlags
		tags  bool
	)
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show what the ranks of this node have where",
		Long: `Asks all ranks of the node, at the same time, what GPU memory they have and where: on the GPU, in
host memory, in files, or skipped (all zero, or bytes that nobody needs). Each has a second for its
answer; one that gives none is named with the reason, and holds up nobody. Ranks are those of the
calling user; root names another user's with --runtime-dir, --disk-dir or --pid.

Ends with 0 when all answered, with 3 when no rank is running, and with 4 when one did not answer.`,
		Example: `  ebb status
  ebb status --role actor --tags
  ebb status --json
  ebb status --slurm 1234`,
		Args:    noArgs,
		PreRunE: func(cmd *cobra.Command, _ []string) error { return fromEnvironment(cmd) },
		RunE: func(cmd *cobra.Command, _ []string) error {
			if ranks.slurm != "" {
				return ranks.statusOfJob(cmd.Context(), tags)
			}
			found, err := ranks.find(cmd.Context())
			if err != nil {
				return err
			}
			result := lookAt(cmd.Context(), found)
			if ranks.asJSON {
				err = printJSON(result)
			} else {
				result.print(stdout, tags || len(found.ranks) <= fewRanks)
			}
			if err == nil && result.unanswered() > 0 {
				err = statusError(statusLate)
			}
			return err
		},
	}
	ranks.add(cmd.Flags())
	ranks.addSlurm(cmd.Flags())
	onOffTo(cmd.Flags(), &tags, "tags", fmt.Sprintf("also tag by tag, as is done for up to %d ranks", fewRanks))
	return cmd
}

// lookAt asks ranks for all that is shown of them.
func lookAt(ctx context.Context, f found) statusResult {
	result := statusResult{MessageType: "status", Silent: f.silent, Disks: []node.Disk{}}
	if result.Silent == nil {
		result.Silent = []node.Silent{}
	}
	var devices []node.RankDevices
	var both sync.WaitGroup
	both.Go(func() { result.Ranks = node.StatusOf(ctx, f.ranks, node.Patience) })
	both.Go(func() { devices = node.Devices(ctx, f.ranks, node.Patience) })
	both.Wait()
	for i := range result.Ranks {
		result.Ranks[i].Devices = devices[i].Devices
	}
	result.Disks = append(result.Disks, node.Disks(ctx, result.Ranks, node.Patience)...)
	return result
}

// unanswered counts the ranks of which nothing is known.
func (r statusResult) unanswered() int {
	n := len(r.Silent)
	for _, rank := range r.Ranks {
		if rank.Err != "" {
			n++
		}
	}
	return n
}

// print tells a person.
func (r statusResult) print(w io.Writer, tags bool) {
	unit := r.unit()
	ranks := r.rankTable(unit)
	heading := ranks.heading(map[int]string{4: "memory, " + unit.name, 8: "last pause", 11: "last resume"})
	for _, line := range append([]string{heading}, ranks.lines()...) {
		fmt.Fprintln(w, line)
	}
	if tags {
		if table := r.tagTable(unit); len(table.rows) > 1 {
			fmt.Fprintln(w)
			for _, line := range table.lines() {
				fmt.Fprintln(w, line)
			}
		}
	}
	fmt.Fprintln(w)
	for _, line := range slices.Concat(r.streamed(), r.remarks(), r.unmanaged(tags)) {
		for _, part := range wrap(line, "    ") {
			fmt.Fprintln(w, part)
		}
	}
}

// unit is the one unit of all sizes.
func (r statusResult) unit() unit {
	largest := uint64(0)
	for _, rank := range r.Ranks {
		largest = max(largest, rank.Status.Active+rank.Status.Paused)
	}
	return unitFor(largest)
}

// rankTable has a row for each rank, and one for all.
func (r statusResult) rankTable(unit unit) *table {
	t := &table{left: []bool{true, false, false, true}}
	t.row("RANK", "PID", "GPU", "STATE", "on GPU", "host", "disk", "skip", unit.name, "s", "GB/s", unit.name, "s", "GB/s")
	devices := make([][]control.Device, len(r.Ranks))
	for i, rank := range r.Ranks {
		devices[i] = rank.Devices
	}
	gpu := node.GPUNames(devices, node.GPUs())
	var all node.Where
	pauses, resumes := &together{}, &together{}
	for _, rank := range r.Ranks {
		who, pid := node.ShortName(rank.Who), strconv.Itoa(rank.PID)
		if rank.Err != "" {
			t.row(who, pid, "", "silent")
			continue
		}
		var on []string
		for _, d := range rank.Devices {
			on = append(on, gpu(d))
		}
		where := rank.Status.Where()
		all.Add(where)
		pauses.add(rank.Status.LastPause)
		resumes.add(rank.Status.LastResume)
		row := []string{who, pid, strings.Join(on, ","), stateOf(rank.Status)}
		row = append(row, places(unit, where)...)
		row = append(row, figures(unit, rank.Status.LastPause)...)
		t.row(append(row, figures(unit, rank.Status.LastResume)...)...)
	}
	for _, s := range r.Silent {
		t.row(node.ShortName(s.Who), strconv.Itoa(s.PID), "", "silent")
	}
	if len(r.Ranks) > 1 {
		row := append([]string{"all", "", "", ""}, places(unit, all)...)
		row = append(row, pauses.figures(unit)...)
		t.row(append(row, resumes.figures(unit)...)...)
	}
	fit(t)
	return t
}

// fit makes a table of ranks as narrow as the screen: it leaves out the process numbers, and then shortens
// the names.
func fit(t *table) {
	if t.width() <= textWidth {
		return
	}
	for i := range t.rows {
		t.rows[i][1] = ""
	}
	t.shortenNames()
}

// stateOf is in one word where the memory of a rank is.
func stateOf(s node.Status) string {
	switch {
	case s.Allocations == 0:
		return "empty"
	case s.Paused == 0:
		return "active"
	case s.Active == 0:
		return "paused"
	}
	return "partly"
}

func places(unit unit, w node.Where) []string {
	return []string{unit.of(w.Device), unit.of(w.Host), unit.of(w.Disk), unit.of(w.Skipped)}
}

// figures are bytes, seconds and rate of an operation.
func figures(unit unit, o *node.LastOperation) []string {
	switch {
	case o == nil:
		return []string{"-", "-", "-"}
	case o.Error != "":
		return []string{"failed", "", ""}
	}
	return []string{unit.of(o.Bytes), short(o.Seconds), short(o.GBPerS)}
}

// together is what all ranks did in their latest operations, which are taken to have run at the same time.
type together struct {
	bytes   uint64
	seconds float64
}

func (t *together) add(o *node.LastOperation) {
	if o != nil && o.Error == "" {
		t.bytes += o.Bytes
		t.seconds = max(t.seconds, o.Seconds)
	}
}

func (t *together) figures(unit unit) []string {
	if t.seconds == 0 {
		return []string{"", "", ""}
	}
	return []string{unit.of(t.bytes), short(t.seconds), short(float64(t.bytes) / 1e9 / t.seconds)}
}

// tagTable has a row for each tag of each rank.
func (r statusResult) tagTable(unit unit) *table {
	t := &table{left: []bool{true, true}}
	t.row("RANK", "TAG", "allocations", "on GPU", "host", "disk", "skip", "given up")
	for _, rank := range r.Ranks {
		for _, tag := range rank.Status.Tags {
			row := append([]string{cut(node.ShortName(rank.Who), 24), cut(tag.Tag, 24), strconv.Itoa(tag.Allocations)}, places(unit, tag.Where())...)
			t.row(append(row, unit.of(tag.Discarded))...)
		}
	}
	return t
}

// remarks are lines for what the tables do not say: sums, disks, and what is wrong.
func (r statusResult) remarks() []string {
	var lines []string
	var all node.Where
	var versions, gpus []string
	answered := 0
	for _, rank := range r.Ranks {
		if rank.Err == "" {
			answered++
		}
		all.Add(rank.Status.Where())
		if !slices.Contains(versions, rank.Version) {
			versions = append(versions, rank.Version)
		}
		if d := rank.Status.Device; d != "" && !slices.Contains(gpus, d) {
			gpus = append(gpus, d)
		}
	}
	which := launch.Count(len(r.Ranks), "rank")
	if answered != len(r.Ranks)+len(r.Silent) { // what the others have is in no sum
		which = fmt.Sprintf("%d of %d ranks", answered, len(r.Ranks)+len(r.Silent))
	}
	if answered > 0 {
		lines = append(lines, fmt.Sprintf("%s on %s, ebb %s: %s on the GPU, parked: %s", which,
			strings.Join(gpus, ", "), strings.Join(versions, ", "), both(all.Device), both(all.Host+all.Disk+all.Skipped)))
	} else {
		lines = append(lines, "no rank answers")
	}
	for _, d := range r.Disks {
		if d.Err != "" {
			lines = append(lines, fmt.Sprintf("%s: %s", d.Dir, d.Err))
			continue
		}
		lines = append(lines, fmt.Sprintf("%s: %s free, files of the ranks: %s", d.Dir, both(d.Free), both(d.Files)))
	}
	for _, rank := range r.Ranks {
		name, s := node.FullName(rank.Who), rank.Status
		if rank.Err != "" {
			lines = append(lines, fmt.Sprintf("%s does not answer: %s", name, rank.Err))
		}
		for _, last := range []struct {
			what string
			o    *node.LastOperation
		}{{control.CmdPause, s.LastPause}, {control.CmdResume, s.LastResume}} {
			switch {
			case last.o == nil:
			case last.o.Error != "":
				lines = append(lines, fmt.Sprintf("%s: its last %s failed: %s", name, last.what, last.o.Error))
			case last.o.Missing > 0:
				lines = append(lines, fmt.Sprintf("%s: its last %s released %s, of which %s did not become free (docs/failures.md)",
					name, last.what, both(last.o.DeviceBytes), both(last.o.Missing)))
			case last.what == control.CmdPause:
				if note := node.Unclear(last.o.DeviceBytes, last.o.Freed, last.o.Missing); note != "" {
					lines = append(lines, fmt.Sprintf("%s: its last pause: %s", name, note))
				}
			}
		}
		if s.Quarantined.Threads > 0 {
			lines = append(lines, fmt.Sprintf("%s: %s of a disk have had no answer: %s",
				name, launch.Count(s.Quarantined.Threads, "call"), strings.Join(s.Quarantined.Paths, ", ")))
		}
		for _, k := range s.Kept {
			lines = append(lines, fmt.Sprintf("%s: a pause leaves %s on the GPU that others use too (%s)", name, both(k.Bytes), k.Reason))
		}
	}
	for _, s := range r.Silent {
		lines = append(lines, fmt.Sprintf("%s does not answer: %s", node.FullName(s.Who), s.Why))
	}
	return lines
}

// unmanaged says which device memory ebb does not manage, so that it stays on the GPU during a pause: of each
// rank, or of all together.
func (r statusResult) unmanaged(each bool) []string {
	var lines []string
	all := node.Unmanaged{Measured: true}
	for _, rank := range r.Ranks {
		u := rank.Status.Unmanaged
		if u.Total == 0 {
			continue
		}
		all.Add(u)
		lines = append(lines, fmt.Sprintf("%s: %s", node.FullName(rank.Who), unmanagedText(u)))
	}
	if len(lines) == 0 || each {
		return lines
	}
	return []string{"all ranks: " + unmanagedText(all)}
}

func unmanagedText(u node.Unmanaged) string {
	text := both(u.Total) + " on the GPU not managed"
	if !u.Measured {
		text += " (NVML says nothing: there may be more)"
	}
	unit := unitFor(u.Total)
	var classes []string
	for _, c := range u.Classes {
		classes = append(classes, c.Name+" "+unit.of(c.Bytes))
	}
	if len(classes) > 0 {
		text += fmt.Sprintf("; in %s: %s", unit.name, strings.Join(classes, ", "))
	}
	return text
}
