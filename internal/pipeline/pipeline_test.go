package pipeline

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestQueuesHandOutEveryMoveOnceTheOwnOnesFirst(t *testing.T) {
	moves := func(base uint64, n int) Moves {
		return Moves{Len: n, At: func(i int) Move { return Move{Offset: base + uint64(i)} }}
	}
	q := &queues{of: [2]Moves{hostQueue: moves(100, 2), diskQueue: moves(200, 3)}}
	var got []uint64
	for _, own := range []int{diskQueue, hostQueue, diskQueue, diskQueue, diskQueue, hostQueue, diskQueue} {
		m := q.take(own)
		if m == nil {
			got = append(got, 0)
			continue
		}
		got = append(got, m.Offset)
	}
	if d := cmp.Diff([]uint64{200, 100, 201, 202, 101, 0, 0}, got); d != "" {
		t.Error(d)
	}
	q = &queues{of: [2]Moves{diskQueue: moves(200, 3)}}
	q.stop.Store(true)
	if m := q.take(diskQueue); m != nil {
		t.Errorf("move %+v after a worker failed", m)
	}
}

func TestFewWorkersBeginWithHostMemory(t *testing.T) {
	for n, want := range map[int]int{1: 0, 2: 1, 3: 1, 4: 2, 8: 2, 16: 2} {
		host := 0
		for i := range n {
			if ownQueue(i, n) == hostQueue {
				host++
			}
		}
		if host != want {
			t.Errorf("of %d workers %d begin with host memory, want %d", n, host, want)
		}
	}
}

func TestAPartOfMoves(t *testing.T) {
	all := Moves{Len: 10, At: func(i int) Move { return Move{Offset: uint64(i), Length: 3} }}
	part := all.part(4, 7)
	if part.Len != 3 || part.At(0).Offset != 4 || part.At(2).Offset != 6 || length(part) != 9 {
		t.Errorf("part of %d moves from %+v, %d bytes", part.Len, part.At(0), length(part))
	}
}

func TestWhichNumbersOfWorkersAreTried(t *testing.T) {
	for most, want := range map[int][]int{1: {1}, 4: {4}, 5: {4, 5}, 8: {4, 8}, 12: {4, 8, 12}, 16: {4, 8, 16}} {
		var got []int
		for _, w := range diskWays(most) {
			got = append(got, w.Workers)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("up to %d: %s", most, d)
		}
	}
}

func TestFewWorkersThatAreNearlyAsFastAreChosen(t *testing.T) {
	for _, c := range []struct {
		rates []float64 // of 4, 8 and 16 workers
		want  int
	}{
		{[]float64{2.00, 2.01, 2.02}, 4},
		{[]float64{1.80, 2.00, 2.02}, 8},
		{[]float64{1.00, 1.00, 1.50}, 16},
		{[]float64{2.00, 1.00, 1.00}, 4},
	} {
		var trials []Trial
		for i, r := range c.rates {
			trials = append(trials, Trial{Workers: 4 << i, GBPerS: r})
		}
		if got := choose(trials).Workers; got != c.want {
			t.Errorf("%v: %d workers, want %d", c.rates, got, c.want)
		}
	}
}
