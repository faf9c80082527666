package engine

import (
	"errors"
	"testing"
	"time"

	"github.com/ebb-offload/ebb/internal/alloc"
)

const noLimit = -1

func TestARequestedPauseWaitsForASafePointAndTheActorForItsMemory(t *testing.T) {
	r := newRig(t)
	a := r.make(1<<20, 0, disk("x"))
	paused := make(chan error)
	go func() {
		_, err := r.RequestPause(nil, noLimit, r.set)
		paused <- err
	}()
	safe := make(chan error)
	go func() { // the actor: works until the request is there, then comes to its safe point
		for !r.gate.waiting() {
			r.holds(a)
		}
		safe <- r.SafePoint()
	}()
	if err := <-paused; err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-safe:
		t.Fatalf("the actor went on without its memory (%v)", err)
	default:
	}
	r.resume()
	if err := <-safe; err != nil {
		t.Fatal(err)
	}
	r.holds(a)
}

func TestARequestWithoutASafePointEndsAtItsDeadline(t *testing.T) {
	r := newRig(t)
	a := r.make(1000, 0, disk("x"))
	if _, err := r.RequestPause(nil, time.Millisecond, r.set); !errors.Is(err, ErrTimeout) || Code(err) != CodeTimeout {
		t.Fatalf("got %v", err)
	}
	if r.state(a) != alloc.Active {
		t.Fatal("it was paused all the same")
	}
	if err := r.SafePoint(); err != nil { // nothing is waiting any more
		t.Fatal(err)
	}
	if r.state(a) != alloc.Active {
		t.Fatal("a request that was given up was carried out")
	}
}

func TestWithinAnIdleSectionAPauseHappensAtOnce(t *testing.T) {
	r := newRig(t)
	a := r.make(1<<20, 0, disk("x"))
	for _, begin := range []bool{true, true, false} { // sections nest
		if err := r.Idle(begin); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 {
		if _, err := r.RequestPause(nil, 0, r.set); err != nil {
			t.Fatal(err)
		}
		r.resume()
	}
	if err := r.Idle(false); err != nil {
		t.Fatal(err)
	}
	r.holds(a)
	if err := r.Idle(false); !errors.Is(err, ErrState) {
		t.Fatalf("an end without a begin: %v", err)
	}
}

func TestAFailedOrEmptyRequestDoesNotHoldTheActor(t *testing.T) {
	r := newRig(t)
	if err := r.Idle(true); err != nil {
		t.Fatal(err)
	}
	if _, err := r.RequestPause(nil, 0, r.set); err != nil {
		t.Fatal(err)
	}
	if _, err := r.RequestPause([]string{"nope"}, 0, r.set); !errors.Is(err, alloc.ErrUnknownTag) {
		t.Fatalf("got %v", err)
	}
	if err := r.Idle(false); err != nil {
		t.Fatal(err)
	}
}

// Freeing what a request paused leaves nothing to wait for.
func TestFreeingPausedMemoryLetsTheActorGoOn(t *testing.T) {
	r := newRig(t)
	a := r.make(1000, 0, disk("x"))
	if err := r.Idle(true); err != nil {
		t.Fatal(err)
	}
	if _, err := r.RequestPause(nil, 0, r.set); err != nil {
		t.Fatal(err)
	}
	if err := r.Free(a.addr, false); err != nil {
		t.Fatal(err)
	}
	if err := r.Idle(false); err != nil {
		t.Fatal(err)
	}
}

// What the program paused itself is not what the end of an idle section waits for: nobody else would bring it back.
func TestTheActorWaitsForWhatARequestPausedAlone(t *testing.T) {
	r := newRig(t)
	own, asked := r.make(1<<20, 0, disk("own")), r.make(1<<20, 0, disk("asked"))
	r.pause("own")
	if err := r.Idle(true); err != nil {
		t.Fatal(err)
	}
	res, err := r.RequestPause(nil, 0, r.set)
	if err != nil || res.Allocations != 1 {
		t.Fatalf("%+v, %v", res, err)
	}
	ended := make(chan error, 1)
	go func() { ended <- r.Idle(false) }()
	r.resume("asked")
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if r.state(own) != alloc.Paused {
		t.Error("the program's own pause was undone")
	}
	r.holds(asked)
	r.resume()
	r.holds(own)
}

// waiting reports whether a request waits for the actor.
func (g *gate) waiting() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.asked) > 0
}
