package main

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
)

// point is a place in the history of a job.
type point struct{ rank, step int }

// record is what one job reported.
type record struct {
	ranks   int
	losses  map[point]string
	digests map[point]string
	cycles  map[int]*cycle
	parking map[int]bool // ranks that started, and whether they found a library to park with
	ended   map[int]bool

	allocations, allocated uint64 // of rank 0
}

// cycle is one pause of all ranks, the rollout that ran meanwhile, and the resume.
type cycle struct {
	pause, resume        map[int]event // by rank
	before, while, after uint64        // bytes used on the device, seen by rank 0
	total                uint64        // bytes of the device
	rollout              *event
}

func newRecord(ranks int) *record {
	return &record{
		ranks: ranks, losses: map[point]string{}, digests: map[point]string{}, cycles: map[int]*cycle{},
		parking: map[int]bool{}, ended: map[int]bool{},
	}
}

func (r *record) cycle(n int) *cycle {
	c := r.cycles[n]
	if c == nil {
		c = &cycle{pause: map[int]event{}, resume: map[int]event{}}
		r.cycles[n] = c
	}
	return c
}

// add takes one event.
func (r *record) add(e event) {
	switch e.Event {
	case "start":
		r.parking[e.Rank] = e.Parking
		if e.Rank == 0 {
			r.allocations, r.allocated = e.Allocations, e.Allocated
		}
	case "loss":
		r.losses[point{e.Rank, e.Step}] = e.Loss
	case "digest":
		r.digests[point{e.Rank, e.Step}] = e.Digest
	case "memory":
		c := r.cycle(e.Cycle)
		c.total = e.Total
		switch e.When {
		case "before":
			c.before = e.Used
		case "while":
			c.while = e.Used
		case "after":
			c.after = e.Used
		}
	case "pause":
		r.cycle(e.Cycle).pause[e.Rank] = e
	case "resume":
		r.cycle(e.Cycle).resume[e.Rank] = e
	case "rollout":
		r.cycle(e.Cycle).rollout = &e
	case "end":
		r.ended[e.Rank] = true
	}
}

// steps are all steps of which rank 0 reported a loss, in order.
func (r *record) steps() []int {
	var steps []int
	for p := range r.losses {
		if p.rank == 0 {
			steps = append(steps, p.step)
		}
	}
	slices.Sort(steps)
	return steps
}

// loss is a loss of rank 0 as a number, for people.
func (r *record) loss(step int) float64 {
	f, _ := strconv.ParseFloat(r.losses[point{0, step}], 64)
	return f
}

// complete checks that every rank went through every step to the end, parking or not.
func (r *record) complete(steps, digests int, parking bool) error {
	for rank := range r.ranks {
		found, started := r.parking[rank]
		switch {
		case !started:
			return fmt.Errorf("rank %d never started", rank)
		case found != parking && parking:
			return fmt.Errorf("rank %d did not find ebb_idle_begin: no library was preloaded", rank)
		case found != parking:
			return fmt.Errorf("rank %d found ebb_idle_begin in the run that is to do without: is LD_PRELOAD set?", rank)
		case !r.ended[rank]:
			return fmt.Errorf("rank %d did not report its end", rank)
		}
		for step := range steps {
			if r.losses[point{rank, step}] == "" {
				return fmt.Errorf("rank %d reported no loss for step %d", rank, step)
			}
		}
	}
	if len(r.losses) != steps*r.ranks {
		return fmt.Errorf("%d losses instead of %d", len(r.losses), steps*r.ranks)
	}
	if len(r.digests) != digests*r.ranks {
		return fmt.Errorf("%d digests of the training state instead of %d", len(r.digests), digests*r.ranks)
	}
	return nil
}

// compareRuns returns nil if both jobs had the same losses and training states, to the last bit.
// Otherwise it names the first difference.
func compareRuns(plain, parked *record) error {
	if len(plain.losses) == 0 || len(plain.digests) == 0 {
		return fmt.Errorf("nothing to compare: the run without parking reported no losses or no digests")
	}
	if err := comparePoints("training state", plain.digests, parked.digests); err != nil {
		return err
	}
	return comparePoints("loss", plain.losses, parked.losses)
}

func comparePoints(what string, plain, parked map[point]string) error {
	all := map[point]bool{}
	for p := range plain {
		all[p] = true
	}
	for p := range parked {
		all[p] = true
	}
	order := slices.SortedFunc(maps.Keys(all), func(a, b point) int {
		if a.step != b.step {
			return a.step - b.step
		}
		return a.rank - b.rank
	})
	for _, p := range order {
		if a, b := plain[p], parked[p]; a != b {
			return fmt.Errorf("%s of rank %d at step %d differs: %s without parking, %s with",
				what, p.rank, p.step, orNone(a), orNone(b))
		}
	}
	return nil
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

// compareRanks returns nil if all ranks had the same training state at the same steps, as
// replicas must.
func compareRanks(r *record) error {
	for p, digest := range r.digests {
		if first := r.digests[point{0, p.step}]; digest != first {
			return fmt.Errorf("training state at step %d differs between ranks: %s on rank 0, %s on rank %d",
				p.step, orNone(first), digest, p.rank)
		}
	}
	return nil
}
