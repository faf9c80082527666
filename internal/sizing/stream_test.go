package sizing

import (
	"strings"
	"testing"
)

// A rank of 1e9 bf16 parameters: 4 bytes of master and 8 of moments each.
func streamedRank(t *testing.T, moment Dtype) Kinds {
	t.Helper()
	stages, err := Stages(FromCount(1e9), Parallel{TP: 1, PP: 1, CP: 1, DP: 1, EP: 1, ETP: 1},
		State{Optimizer: "adamw", Weights: BF16, Gradients: FP32, Master: FP32, Moment: moment, Stream: true}, 0)
	if err != nil {
		t.Fatal(err)
	}
	return stages[0]
}

func TestStreamedStateIsOnDiskAndInNoPause(t *testing.T) {
	for moment, want := range map[Dtype]struct{ streamed, slots uint64 }{
		FP32: {12e9, (3*12 + 4) * 200e6},
		BF16: {8e9, (3*8 + 4 + 8) * 200e6}, // moments are fp32 while they are updated
	} {
		k := streamedRank(t, moment)
		if k.Streamed != want.streamed || k.Slots != want.slots || k.Master != 0 || k.Moments != 0 {
			t.Errorf("%s: %+v", moment.Name, k)
		}
		if k.Total() != 6e9 || All(k) != 6e9 || k.InStep() != 6e9+want.slots {
			t.Errorf("%s: a pause takes %d bytes, the step %d", moment.Name, k.Total(), k.InStep())
		}
	}
}

func TestASmallRankHasOneSmallBucket(t *testing.T) {
	stages, err := Stages(FromCount(1e6), Parallel{TP: 1, PP: 1, CP: 1, DP: 2, EP: 1, ETP: 1},
		State{Optimizer: "adam", Weights: FP32, Gradients: FP32, Moment: FP32, Shard: ShardOptimizer, Stream: true}, 0)
	if err != nil {
		t.Fatal(err)
	}
	if k := stages[0]; k.Streamed != 8*5e5 || k.Slots != (3*8+4)*5e5 {
		t.Errorf("%+v", k)
	}
}

func TestTheStepOfAStreamedOptimizer(t *testing.T) {
	k := streamedRank(t, FP32)
	for room, want := range map[uint64]Fit{0: FitUnknown, 14e9: FitYes, 14e9 - 1: FitNo} {
		if got := (Node{GPU: room}).StepFits(k); got != want {
			t.Errorf("%d bytes: %s", room, got)
		}
	}
}

func TestWhatStreamingTakesOfTheDisk(t *testing.T) {
	load := Load{{Ranks: 2, Kinds: streamedRank(t, FP32)}}
	n := Node{Host: 1e12, HostKnown: true, DiskKnown: true, Link: TypicalLink, Read: Range{1e9, 2e9, 4e9}, Write: Range{1e9, 1e9, 2e9}}
	s := n.Stream(load, 24e9, true)
	if !s.Fits || s.DiskBytes != 24e9 || s.Step != (Range{12, 12 + 24, 48}) {
		t.Errorf("%+v", s)
	}
	if s := n.Stream(load, 24e9-1, true); s.Fits || !strings.Contains(s.Why, "24.0 GB") {
		t.Errorf("%+v", s)
	}
	if s := (Node{}).Stream(load, 0, false); !s.Fits || s.Step.Known() {
		t.Errorf("of a disk of which nothing is known: %+v", s)
	}
	// What is parked lies beside it: 12e9 bytes.
	n.DiskTaken = 24e9
	for free, fits := range map[uint64]bool{36e9: true, 36e9 - 1: false} {
		n.DiskFree = free
		disk := n.Targets(load, All)[2]
		if disk.Fits != fits || !fits && !strings.Contains(disk.Why, "beside streamed state, which takes 22.4 GiB (24.0 GB), ") {
			t.Errorf("%d bytes free: %+v", free, disk)
		}
	}
}
