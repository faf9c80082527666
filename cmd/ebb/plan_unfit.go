package main

import (
	"fmt"
	"strings"

	"github.com/ebb-offload/ebb/internal/launch"
	"github.com/ebb-offload/ebb/internal/sizing"
)

// divideMore is what helps where a rank's state is larger than its GPU. Data-parallel ranks alone do not: each has
// all weights, unless they share them.
const divideMore = "divide the model over more GPUs (--tp, --pp), or have more data-parallel ranks share it (--shard parameters)"

// smallerBuckets is what helps where only the GPU memory that streamed state passes through is too much.
const smallerBuckets = "give the optimizer of ebb.optim smaller buckets (bucket_elements, buckets_in_flight), of which ebb plan knows the defaults only"

// tooSmall reports whether the GPU does not hold what a rank has in a step.
func (l planLargest) tooSmall() bool {
	return l.StepFits == sizing.FitNo || l.StepFits == sizing.FitStream
}

// bucketsTooLarge reports whether all would fit but for the buckets of streamed state.
func (l planLargest) bucketsTooLarge() bool {
	return l.StepFits == sizing.FitNo && l.Streamed > 0 && l.Total < l.room()
}

// shortOf says by how much the GPU is too small.
func (l planLargest) shortOf() string {
	return fmt.Sprintf("a rank holds %s in a step, and its GPU has room for %s (--gpu-memory %s, of which ebb leaves %s free)",
		sizing.Both(l.InStep()), sizing.Both(l.room()), sizing.Both(l.GPU), sizing.Both(min(l.GPU, launch.DefaultMargin)))
}

// refuse lets no target fit where the ranks that would be parked cannot run at all.
func (r *planResult) refuse() {
	var all []string
	if r.Largest.tooSmall() {
		all = append(all, r.Largest.shortOf())
	}
	if s := r.Streaming; s != nil && !s.Fits {
		all = append(all, s.unfit())
	}
	for _, why := range all {
		r.unfits = append(r.unfits, "every target: "+why)
	}
	for _, t := range r.Targets {
		if !t.Fits {
			r.unfits = append(r.unfits, t.Name+": "+t.Why)
		}
	}
	for _, why := range all {
		sizing.Refuse(r.Targets, why)
	}
	if r.Largest.StepFits == sizing.FitUnknown {
		sizing.NotChecked(r.Targets, sizing.UncheckedGPU)
	}
	if s := r.Streaming; s != nil && !s.DiskKnown {
		sizing.NotChecked(r.Targets, sizing.UncheckedDisk)
	}
}

// needs says how much a GPU must have.
func (l planLargest) needs() string {
	return fmt.Sprintf("one must hold %s in a step, beside activations and the %s that ebb leaves free", sizing.Both(l.InStep()), sizing.Both(launch.DefaultMargin))
}

// unfit says why nothing was chosen, and what helps. target is the one that was asked for, or empty.
func (r planResult) unfit(target string) string {
	l := r.Largest
	if l.tooSmall() {
		text := l.shortOf() + ": "
		switch {
		case l.StepFits == sizing.FitStream:
			text += "add --stream-optimizer-state-to-disk (with an optimizer of ebb.optim), or "
		case l.bucketsTooLarge():
			text += smallerBuckets + ", or "
		}
		return text + divideMore
	}
	if s := r.Streaming; s != nil && !s.Fits {
		return s.unfit() + "; use more nodes, or a larger disk"
	}
	return r.noTarget(target) + "; use more nodes, or ones with more room" + r.otherTarget(target)
}

// unfit says why streamed state does not fit.
func (s planStreamed) unfit() string {
	text := "streamed state does not fit its " + s.Why
	if len(s.Dirs) > 0 {
		text += " in " + strings.Join(s.Dirs, ", ")
	}
	return text
}

// noTarget says what is wrong with the targets that may be used.
func (r planResult) noTarget(target string) string {
	var whys []string
	for _, t := range r.Targets {
		if !t.Fits && (target == "" || target == t.Name) {
			whys = append(whys, t.Name+": "+t.Why)
		}
	}
	return strings.Join(whys, "; ")
}

// otherTarget names one that fits, where another was asked for.
func (r planResult) otherTarget(target string) string {
	if other, fits := sizing.Best(r.Targets); fits && target != "" {
		return ", or use --target " + other.Name
	}
	return ""
}

// room is what the step may take of the GPU.
func (l planLargest) room() uint64 { return l.GPU - min(l.GPU, launch.DefaultMargin) }
