package pipeline

import (
	"errors"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"

	"github.com/ebb-offload/ebb/internal/mem"
)

func TestQueuesHandOutEveryMoveOnceTheOwnOnesFirst(t *testing.T) {
	moves := func(base uint64, n int) Moves {
		return Moves{Len: n, At: func(i int) Move { return Move{Offset: base + uint64(i)} }}
	}
	q := &queues{of: [2]Moves{hostQueue: moves(100, 2), diskQueue: moves(200, 3)}}
	var got []uint64
	for _, own := range []int{diskQueue, hostQueue, diskQueue, diskQueue, diskQueue, hostQueue, diskQueue} {
		m := q.take(own, true)
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
	if m := q.take(diskQueue, true); m != nil {
		t.Errorf("move %+v after a worker failed", m)
	}
	w := &worker{ahead: []*Move{{Zero: true}}} // a batch that is done one by one
	if moves := w.batch(job{queues: q}); len(moves) > 0 {
		t.Errorf("move %+v of those taken before, after a worker failed", moves[0])
	}
}

func TestMovesThatAreSkippedAreNotHandedOut(t *testing.T) {
	odd := Moves{Len: 7, At: func(i int) Move { return Move{Offset: uint64(i)} }, Skip: func(i int, _ bool) (skip, known bool) { return i%2 == 0, true }}
	taken := func(of Moves) (got []uint64) {
		q := &queues{of: [2]Moves{hostQueue: of, diskQueue: odd.part(2, 5)}}
		for m := q.take(hostQueue, true); m != nil; m = q.take(hostQueue, true) {
			got = append(got, m.Offset)
		}
		return got
	}
	if d := cmp.Diff([]uint64{1, 3, 5, 3}, taken(odd)); d != "" {
		t.Error(d)
	}
	odd.Skip = func(_ int, wait bool) (skip, known bool) { return false, false } // and never will be
	if got := taken(odd); got != nil {
		t.Errorf("%v", got)
	}
}

// Who does not wait is told of what is known, and takes the rest later.
func TestWhatIsNotKnownIsLeftForLater(t *testing.T) {
	known := 2
	q := &queues{of: [2]Moves{hostQueue: {
		Len: 3, At: func(i int) Move { return Move{Offset: uint64(i)} },
		Skip: func(i int, _ bool) (bool, bool) { return i == 0, i < known },
	}}}
	if m := q.take(hostQueue, false); m == nil || m.Offset != 1 {
		t.Errorf("%+v", m)
	}
	if m := q.take(hostQueue, false); m != nil {
		t.Errorf("%+v", m)
	}
	known = 3
	if m := q.take(hostQueue, false); m == nil || m.Offset != 2 {
		t.Errorf("%+v", m)
	}
}

// A worker that fails while another waits to know whether a move is to be made ends that one too.
func TestNoMoveIsBegunAfterAWaitForOne(t *testing.T) {
	q := &queues{}
	q.of[hostQueue] = Moves{Len: 1, At: func(int) Move { return Move{} }, Skip: func(int, bool) (skip, known bool) {
		q.stop.Store(true)
		return false, true
	}}
	if m := q.take(hostQueue, true); m != nil {
		t.Errorf("%+v", m)
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

func TestADefectInWhatAClerkDoesIsAnError(t *testing.T) {
	w := &worker{errands: make(chan func() error), done: make(chan error)}
	go w.clerk()
	defer close(w.errands)
	failed := errors.New("no answer")
	for range 2 { // the clerk lives on
		if err := w.onDisk(func() error { panic("a defect") }); !errors.Is(err, ErrPanic) {
			t.Errorf("got %v", err)
		}
		if err := w.onDisk(func() error { return failed }); !errors.Is(err, failed) {
			t.Errorf("got %v", err)
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
		if got := choose(trials, 1<<30).Workers; got != c.want {
			t.Errorf("%v: %d workers, want %d", c.rates, got, c.want)
		}
	}
}

func TestAWayIsChosenByTheTimeOfTheWholeOperation(t *testing.T) {
	trials := []Trial{{Workers: 4, GBPerS: 50}, {Workers: 2, Snapshot: true, GBPerS: 55, Setup: 0.002}}
	for bytes, want := range map[uint64]bool{100e6: false, 4e9: true} {
		if got := choose(trials, bytes); got.Snapshot != want {
			t.Errorf("%d bytes: %+v, want a snapshot: %v", bytes, got, want)
		}
	}
}

func TestNeighboursAreCopiedTogetherAsFarAsTheirMemoryReaches(t *testing.T) {
	memory := make([]byte, 100)
	// Host memory from, to and up to where one copy may reach; where it is on the device.
	type piece struct{ from, to, reach, at int }
	for name, c := range map[string]struct {
		pieces []piece
		want   []int // bytes of the copies
	}{
		"neighbours":                      {[]piece{{0, 10, 100, 500}, {10, 20, 100, 510}, {20, 25, 100, 520}}, []int{25}},
		"another registration":            {[]piece{{0, 10, 20, 500}, {10, 20, 20, 510}, {20, 30, 100, 520}, {30, 40, 100, 530}}, []int{20, 20}},
		"memory that is no further known": {[]piece{{0, 10, 10, 500}, {10, 20, 20, 510}}, []int{10, 10}},
		"a gap on the device":             {[]piece{{0, 10, 100, 500}, {10, 20, 100, 512}}, []int{10, 10}},
		"a gap on the host":               {[]piece{{0, 10, 100, 500}, {12, 22, 100, 510}}, []int{10, 10}},
		"the other order":                 {[]piece{{10, 20, 100, 510}, {0, 10, 100, 500}}, []int{10, 10}},
		"alone":                           {[]piece{{0, 10, 100, 500}}, []int{10}},
	} {
		t.Run(name, func(t *testing.T) {
			f := &inflight{}
			for _, p := range c.pieces {
				f.blocks = append(f.blocks, block{move: &Move{Length: uint64(p.to - p.from)}, host: memory[p.from:p.to:p.reach]})
			}
			var got []int
			list := f.copies(func(i int) mem.Addr { return mem.Addr(c.pieces[i].at) })
			for _, one := range list {
				got = append(got, int(one.bytes))
			}
			if d := cmp.Diff(c.want, got); d != "" {
				t.Fatal(d)
			}
			if list[0].at != mem.Addr(c.pieces[0].at) || list[0].host != unsafe.Pointer(&memory[c.pieces[0].from]) {
				t.Errorf("the first copy is of %v and %p", list[0].at, list[0].host)
			}
		})
	}
}

func TestOfSmallBlocksMoreAreUnderWay(t *testing.T) {
	p := New(nil, Options{Workers: 16})
	for block, want := range map[uint64]int{0: 16, 64 << 10: 16, 2 << 20: 16, 4 << 20: 8, 16 << 20: 8} {
		if got := p.Default(block); got != (Way{Workers: want}) {
			t.Errorf("blocks of %d bytes: %+v, want %d workers", block, got, want)
		}
	}
	if got := New(nil, Options{Workers: 3}).Default(1 << 20); got.Workers != 3 {
		t.Errorf("of 3 workers %d", got.Workers)
	}
}

func TestTheClassOfBlocks(t *testing.T) {
	for _, c := range []struct {
		bytes  uint64
		blocks int
		want   uint64
	}{{0, 0, 0}, {1, 1, 1}, {100, 1, 128}, {128, 1, 128}, {129, 1, 256}, {300, 3, 128}, {10 * 3 << 20, 10, 4 << 20}} {
		if got := SizeClass(c.bytes, c.blocks); got != c.want {
			t.Errorf("%d bytes in %d blocks: %d, want %d", c.bytes, c.blocks, got, c.want)
		}
	}
}
