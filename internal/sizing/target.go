package sizing

import (
	"fmt"
	"slices"
)

// Target is one place where ranks can be parked.
type Target struct {
	Name string `json:"target"`
	Fits bool   `json:"fits"`
	Why  string `json:"why,omitempty"` // it does not

	Unchecked []string `json:"unchecked,omitempty"` // what it needs of which nobody knows how much there is

	HostBytes  uint64 `json:"host_bytes"`         // host memory of the node, staging included
	HostMB     uint64 `json:"host_mb,omitempty"`  // auto: MiB of each rank
	DiskBytes  uint64 `json:"disk_bytes"`         // room that files take on the node
	Written    uint64 `json:"disk_written_bytes"` // by each pause
	FirstPause Range  `json:"first_pause_s"`      // makes files or host memory
	Pause      Range  `json:"pause_s"`            // later ones
	Resume     Range  `json:"resume_s"`
}

// Moved says how much of the bytes of a rank a pause has to move: all, or all but what is known to be
// zero then.
type Moved func(Kinds) uint64

// All moves everything.
func All(k Kinds) uint64 { return k.Total() }

// ButZeroGradients leaves out gradients, which were zeroed before the pause.
func ButZeroGradients(k Kinds) uint64 { return k.Total() - k.Gradients }

// What a target may need without anybody knowing how much there is.
const (
	UncheckedGPU  = "gpu"
	UncheckedHost = "host"
	UncheckedDisk = "disk"
)

// refuse says that the target does not fit, and why, beside what it said before.
func (t *Target) refuse(why string) {
	if t.Why != "" {
		why = t.Why + "; " + why
	}
	t.Fits, t.Why = false, why
}

// notChecked says that so much is not known.
func (t *Target) notChecked(what string) {
	if !slices.Contains(t.Unchecked, what) {
		t.Unchecked = append(t.Unchecked, what)
	}
}

// Refuse says that no target fits, for a reason that has nothing to do with where bytes are parked.
func Refuse(targets []Target, why string) {
	for i := range targets {
		targets[i].refuse(why)
	}
}

// NotChecked says that all targets need something of which it is not known how much there is.
func NotChecked(targets []Target, what string) {
	for i := range targets {
		targets[i].notChecked(what)
	}
}

// Targets are cpu, auto and disk for the ranks of a node. Whether the step fits the GPU, and streamed state its disk, is
// not in them: Refuse and NotChecked are for that.
//
// All ranks park at the same time. Each has a link of its own; the disks are shared. Copies and
// transfers overlap, so the seconds are those of the slower of the two, for the rank with the most and
// for all bytes of the node. Where a rate is not known, neither are the seconds.
func (n Node) Targets(load Load, moved Moved) []Target {
	return []Target{n.cpu(load, moved), n.auto(load, moved), n.disk(load, moved)}
}

func (n Node) cpu(load Load, moved Moved) Target {
	t := Target{Name: "cpu", Fits: true, HostBytes: load.Sum(Kinds.Total)}
	n.hostFits(&t)
	most := load.Most(moved)
	t.Pause, t.Resume = n.Link.times(pauseOfLink).seconds(most), n.Link.times(resumeOfLink).seconds(most)
	t.FirstPause = firstOfArena.seconds(most).later(t.Pause)
	return t
}

func (n Node) disk(load Load, moved Moved) Target {
	t := Target{Name: "disk", Fits: true, HostBytes: mul(load.Ranks(), n.Chunk), DiskBytes: load.Sum(Kinds.Total), Written: load.Sum(moved)}
	n.hostFits(&t)
	n.diskFits(&t)
	n.overlapped(&t, load.Most(moved))
	return t
}

// worthIt: with less than this part of the bytes in host memory, auto is not worth it.
const worthIt = 20

// auto takes the host memory that there is, the same for each rank, and the disk for the rest.
func (n Node) auto(load Load, moved Moved) Target {
	t := Target{Name: "auto", Fits: true}
	ranks := load.Ranks()
	staging := mul(ranks, n.Chunk)
	t.HostMB = (n.Host - min(staging, n.Host)) / ranks >> 20
	budget := t.HostMB << 20
	inHost := func(k Kinds) uint64 { return min(budget, k.Total()) }
	t.HostBytes = add(load.Sum(inHost), staging)
	t.DiskBytes = load.Sum(Kinds.Total) - load.Sum(inHost)
	// Zero bytes are anywhere in a rank's memory.
	t.Written = load.Sum(func(k Kinds) uint64 {
		if k.Total() == 0 {
			return 0
		}
		return uint64(float64(k.Total()-inHost(k)) * (float64(moved(k)) / float64(k.Total())))
	})
	switch {
	case !n.HostKnown:
		t.Fits, t.Why = false, "how much host memory there is, is not known"
	case budget == 0:
		t.Fits, t.Why = false, fmt.Sprintf("no host memory is left beside the staging buffers: %s for %s", Both(n.Host), Both(staging))
	case load.Sum(inHost) < load.Sum(Kinds.Total)/worthIt:
		t.Fits, t.Why = false, fmt.Sprintf("host memory is left for %s of %s only: the disk target does as well", Both(load.Sum(inHost)), Both(load.Sum(Kinds.Total)))
	default:
		n.diskFits(&t)
	}
	n.overlapped(&t, load.Most(moved))
	return t
}

// overlapped predicts what moves over links and to the disk at the same time.
func (n Node) overlapped(t *Target, most uint64) {
	if t.Written > 0 && !(n.Write.Known() && n.Read.Known()) {
		return
	}
	t.Pause = n.Link.times(pauseOfLink).seconds(most)
	t.Resume = n.Link.times(resumeOfLink).seconds(most)
	t.FirstPause = t.Pause
	if t.HostMB > 0 {
		t.FirstPause = firstOfArena.seconds(min(most, t.HostMB<<20)).later(t.Pause)
	}
	if t.Written > 0 {
		if n.Fresh.Known() {
			t.FirstPause = t.FirstPause.later(n.Fresh.times(pauseOfDisk).seconds(t.Written))
		} else {
			t.FirstPause = Range{}
		}
		t.Pause = t.Pause.later(n.Write.times(pauseOfDisk).seconds(t.Written))
		t.Resume = t.Resume.later(n.Read.times(resumeOfDisk).seconds(t.Written))
	}
}

func (n Node) hostFits(t *Target) {
	switch {
	case !n.HostKnown && t.Name == "cpu":
		t.Fits, t.Why = false, "how much host memory there is, is not known"
	case !n.HostKnown:
		t.notChecked(UncheckedHost)
	case t.HostBytes > n.Host:
		t.Fits, t.Why = false, fmt.Sprintf("host memory: %s needed, %s there", Both(t.HostBytes), Both(n.Host))
	}
}

// diskFits does not refuse a disk of which nothing is known.
func (n Node) diskFits(t *Target) {
	switch {
	case t.DiskBytes == 0:
	case !n.DiskKnown:
		t.notChecked(UncheckedDisk)
	case add(t.DiskBytes, n.DiskTaken) > n.DiskFree:
		needed := Both(t.DiskBytes) + " needed on disk"
		if n.DiskTaken > 0 {
			needed += fmt.Sprintf(" beside streamed state, which takes %s", Both(n.DiskTaken))
		}
		t.refuse(fmt.Sprintf("%s, %s free", needed, Both(n.DiskFree)))
	}
}

// Best is the first that fits: the order is that of their speed.
func Best(targets []Target) (Target, bool) {
	for _, t := range targets {
		if t.Fits {
			return t, true
		}
	}
	return Target{}, false
}
