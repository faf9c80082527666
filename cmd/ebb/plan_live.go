package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"strings"

	"github.com/ebb-offload/ebb/internal/node"
	"github.com/ebb-offload/ebb/internal/sizing"
)

// planLiveResult is what ebb plan --live --json prints. Sizes are bytes, times seconds.
type planLiveResult struct {
	MessageType string                `json:"message_type"`
	Live        bool                  `json:"live"`
	RatesFrom   string                `json:"rates_from"` // given, or latest: of the ranks' latest pause and resume
	Ranks       []sizing.LiveForecast `json:"ranks"`
	Written     uint64                `json:"disk_written_bytes"` // by a pause of all
	Wear        []planWear            `json:"wear,omitempty"`
	Silent      []string              `json:"silent"` // ranks that did not answer, and why
	Notes       []string              `json:"notes"`
}

// planLive predicts from what the running ranks say of themselves.
func (o planOptions) planLive(ctx context.Context) error {
	if err := o.check(); err != nil {
		return err
	}
	found, err := o.ranks.find(ctx)
	if err != nil {
		return err
	}
	result := o.forecast(found, node.StatusOf(ctx, found.ranks, 0))
	if o.ranks.asJSON {
		err = printJSON(result)
	} else {
		result.print(stdout, o)
	}
	for _, line := range result.Silent {
		say(line)
	}
	if err == nil && len(result.Silent) > 0 {
		err = statusError(statusLate)
	}
	return err
}

func (o planOptions) forecast(found found, statuses []node.RankStatus) planLiveResult {
	r := planLiveResult{MessageType: "plan", Live: true, RatesFrom: "latest", Silent: []string{}, Notes: []string{}}
	for _, s := range found.silent {
		r.Silent = append(r.Silent, fmt.Sprintf("%s (pid %d) does not answer: %s", node.Name(s.Who), s.PID, s.Why))
	}
	var ranks []sizing.LiveRank
	var waiting, first, same, unresumed []string
	for _, s := range statuses {
		if s.Err != "" {
			r.Silent = append(r.Silent, fmt.Sprintf("%s (pid %d) does not answer: %s", node.Name(s.Who), s.PID, s.Err))
			continue
		}
		rank := sizing.LiveRank{
			Name: node.ShortName(s.Who), Bytes: s.Status.Active + s.Status.Paused,
			Pause: operation(s.Status.LastPause), Resume: operation(s.Status.LastResume),
		}
		if rank.Pause == nil {
			waiting = append(waiting, rank.Name)
		} else {
			if rank.Pause.Bytes > 0 && rank.Pause.Host+rank.Pause.Disk == 0 {
				same = append(same, rank.Name)
			}
			if s.Status.Pauses == 1 && rank.Pause.Host+rank.Pause.Disk > 0 {
				first = append(first, rank.Name)
			}
			r.Written += uint64(float64(rank.Pause.Disk) * float64(rank.Bytes) / float64(max(rank.Pause.Bytes, 1)))
		}
		ranks = append(ranks, rank)
	}
	given := sizing.LiveRates{Write: o.write, Read: o.read}
	if o.linkGiven {
		given.Link = o.link
	}
	if o.write.Known() || o.linkGiven {
		r.RatesFrom = "given"
	}
	r.Ranks = sizing.Live(ranks, given)
	for i, f := range r.Ranks {
		if ranks[i].Pause != nil && ranks[i].Resume == nil && !f.Resume.Seconds.Known() {
			unresumed = append(unresumed, f.Name)
		}
	}
	r.Wear = o.wearOf("disk", r.Written)
	if len(waiting) > 0 {
		r.Notes = append(r.Notes, "Nothing is predicted where no pause was done yet, or the latest one failed: "+strings.Join(waiting, ", "))
	}
	if len(unresumed) > 0 {
		r.Notes = append(r.Notes, "A resume is not predicted where none was done yet, or the latest one failed, unless --disk-write and --disk-read say how fast the disk is (--link for host memory): "+strings.Join(unresumed, ", "))
	}
	if len(same) > 0 {
		r.Notes = append(r.Notes, "The latest pause had nothing to move, all of it being zero or in the backup already, and tells nothing of one after a step: "+strings.Join(same, ", "))
	}
	if r.RatesFrom == "latest" && len(first) > 0 {
		r.Notes = append(r.Notes, "The first pause of a process also makes the files or the memory, so that the next one may take less than is said: "+strings.Join(first, ", "))
	}
	if r.RatesFrom == "latest" {
		r.Notes = append(r.Notes, "The rates are those of the latest pause and resume themselves, so the error only says how far ranks differ. With --disk-write and --disk-read (ebb bench measures them) it says how good the prediction is.")
	}
	return r
}

// operation is nil for one that failed: its time says nothing.
func operation(o *node.LastOperation) *sizing.Operation {
	if o == nil || o.Error != "" {
		return nil
	}
	return &sizing.Operation{Bytes: o.Bytes, Host: o.HostBytes, Disk: o.DiskBytes, Seconds: o.Seconds}
}

func (r planLiveResult) print(w io.Writer, o planOptions) {
	r.printForecasts(w, "PAUSE", func(f sizing.LiveForecast) sizing.Forecast { return f.Pause })
	fmt.Fprintln(w)
	r.printForecasts(w, "RESUME", func(f sizing.LiveForecast) sizing.Forecast { return f.Resume })
	printWear(w, r.Wear, o)
	printNotes(w, r.Notes)
}

func (r planLiveResult) printForecasts(w io.Writer, title string, of func(sizing.LiveForecast) sizing.Forecast) {
	t := &table{left: []bool{true}}
	t.row(title, "MANAGED GiB (GB)", "MOVES GiB (GB)", "NEXT s", "LAST s", "ERROR")
	for _, rank := range r.Ranks {
		f := of(rank)
		moves, last, off := twoUnits(f.Moved), "—", "—"
		if f.Moved == 0 && f.Last == 0 && !f.Seconds.Known() {
			moves = "—" // nothing is known of it
		}
		if f.Last > 0 {
			last = fmt.Sprintf("%.2f", f.Last)
		}
		if f.Error != nil {
			off = fmt.Sprintf("%+.0f %%", math.Round(*f.Error)+0) // + 0: no "-0"
		}
		t.row(rank.Name, twoUnits(rank.Bytes), moves, secondsText(f.Seconds), last, off)
	}
	t.shortenNames()
	t.print(w)
}
