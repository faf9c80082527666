package engine

import (
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/ebb-offload/ebb/internal/alloc"
	"github.com/ebb-offload/ebb/internal/mem"
)

// unwritten is a state whose write from managed memory without backup failed, and other managed memory.
func unwritten(t *testing.T) (s *streamed, slot, other *array) {
	t.Helper()
	r := newStateRig(t)
	s = r.newState("adam", 300<<10, 64<<10)
	slot, other = r.make(1<<20, 0, none("slots")), r.make(1<<20, 0, disk("actor"))
	stream := r.stream(0)
	s.mustUpdate(slot.addr, stream, 0, 1)
	check(t, r.sys.Set("pwrite:2:ENOSPC"))
	ticket, err := s.update(slot.addr, stream, 0, 1)
	check(t, err)
	if _, err := s.WaitState(s.id, ticket); Code(err) != CodeNoSpace {
		t.Fatalf("%v (code %d)", err, Code(err))
	}
	check(t, r.sys.Set(""))
	return s, slot, other
}

// keeps says whether a pause leaves memory on the device for such a write, which others than it never concerns.
func (s *streamed) keeps(want bool, other *array) {
	s.t.Helper()
	var all Status
	before := s.Status(nil)
	res := s.pause()
	check(s.t, json.Unmarshal(s.Status(nil), &all))
	if kept := res.Kept > 0 && len(all.Kept) == 1 && all.Kept[0] == (alloc.Kept{Reason: "unwritten", Count: 1, Bytes: 1 << 20}); kept != want {
		s.t.Errorf("kept: %v, the pause %+v, %+v", kept, res, all.Kept)
	}
	var former Status
	check(s.t, json.Unmarshal(before, &former))
	if all.Pauses != former.Pauses+1 {
		s.t.Errorf("%d pauses after %d", all.Pauses, former.Pauses)
	}
	s.resume()
	s.holds(other)
}

func TestAPauseLeavesBytesWhoseWriteFailedOnTheDevice(t *testing.T) {
	s, slot, other := unwritten(t)
	s.keeps(true, other)
	// A write of some of it is not enough.
	stream := s.stream(0)
	ticket, err := s.WriteState(s.id, s.whole(slot.addr, 0, 1)[:1], stream)
	check(t, err)
	s.wait(ticket)
	s.keeps(true, other)
	ticket, err = s.WriteState(s.id, s.whole(slot.addr, 0, 1), stream)
	check(t, err)
	s.wait(ticket)
	s.keeps(false, other)
	s.intact(slot.addr)
}

func TestBytesThatNobodyWantsAnyMoreAreNotKept(t *testing.T) {
	t.Run("others are read to their place", func(t *testing.T) {
		s, slot, other := unwritten(t)
		for n, want := range s.want { // by another way
			check(t, s.WriteStateHost(s.id, uint32(n), 0, want))
		}
		s.intact(slot.addr)
		s.keeps(false, other)
	})
	t.Run("the state is closed", func(t *testing.T) {
		s, _, other := unwritten(t)
		check(t, s.CloseState(s.id))
		s.keeps(false, other)
	})
}

// A pause that waits for a write learns only then that it fails. It leaves what it would have left had it begun a moment
// later, and takes the rest.
func TestAPauseLeavesBytesWhoseWriteFailsMeanwhileAndTakesTheRest(t *testing.T) {
	for _, others := range []bool{true, false} {
		t.Run(fmt.Sprintf("other memory: %v", others), func(t *testing.T) {
			r := newStateRig(t)
			s := r.newState("adam", 300<<10)
			slot, stream := r.make(1<<20, 0, none("slots")), r.stream(0)
			var scratch, actor *array
			var freed uint64
			if others {
				scratch, actor = r.make(1<<20, 0, none("slots")), r.make(2<<20, 0, disk("actor"))
				freed = 3 << 20
			}
			check(t, r.sys.Set("pwrite:1:hang"))
			ticket, err := s.update(slot.addr, stream, 0)
			check(t, err)
			r.sys.AwaitHang()
			a, _, err := r.table.Find(slot.addr, 1)
			check(t, err)
			type ended struct {
				res Result
				err error
			}
			end := make(chan ended, 1)
			go func() {
				res, err := r.Pause(nil, r.set)
				end <- ended{res, err}
			}()
			for r.table.State(a) != alloc.Pausing {
				runtime.Gosched()
			}
			check(t, r.sys.Set("pwrite:1:EIO"))
			e := <-end
			check(t, e.err)
			if e.res.Kept != 1<<20 || e.res.Bytes != freed || e.res.DeviceBytes != freed {
				t.Errorf("paused %d bytes (%d of the device), kept %d", e.res.Bytes, e.res.DeviceBytes, e.res.Kept)
			}
			if state := r.state(slot); state != alloc.Active {
				t.Errorf("the memory of the write is %v", state)
			}
			if others && (r.state(actor) != alloc.Paused || r.state(scratch) != alloc.Paused) {
				t.Errorf("other memory is %v and %v", r.state(actor), r.state(scratch))
			}
			if all := r.logged(); !strings.Contains(all, a.String()) || !strings.Contains(all, `segment 0 of the state "adam"`) {
				t.Errorf("the log does not name memory and state: %s", all)
			}
			if _, err := s.WaitState(s.id, ticket); Code(err) != CodeIO {
				t.Errorf("%v", err)
			}
			check(t, r.sys.Set(""))
			// The write can be repeated at once: what is paused is none of it.
			ticket, err = r.WriteState(s.id, s.whole(slot.addr, 0), stream)
			check(t, err)
			s.wait(ticket)
			if res := r.pause(); res.Kept != 0 || res.Bytes != 1<<20 {
				t.Errorf("the next pause took %d bytes and kept %d", res.Bytes, res.Kept)
			}
			r.resume()
			if others {
				r.holds(actor)
			}
			s.intact(slot.addr)
		})
	}
}

// A write that gets no answer by its deadline has failed, too.
func TestAPauseLeavesBytesWhoseWriteGotNoAnswer(t *testing.T) {
	r := newHangRigWith(t, Config{ChunkBytes: 4 << 20, StateChunk: stateChunk})
	s := r.newState("adam", 64<<10)
	slot, actor, stream := r.make(1<<20, 0, none("slots")), r.make(2<<20, 0, pinned("actor")), r.stream(0)
	check(t, r.sys.Set("pwrite:1:hang"))
	ticket, err := s.update(slot.addr, stream, 0)
	check(t, err)
	res, err := r.Pause(nil, r.set)
	check(t, err)
	if res.Kept != 1<<20 || res.Bytes != 2<<20 || r.state(slot) != alloc.Active || r.state(actor) != alloc.Paused {
		t.Errorf("kept %d, paused %d bytes; the memory of the write is %v, the other %v", res.Kept, res.Bytes, r.state(slot), r.state(actor))
	}
	if _, err := s.WaitState(s.id, ticket); Code(err) != CodeTimeout {
		t.Errorf("%v", err)
	}
	check(t, r.sys.Set(""))
	for len(r.states.store.Deadline().Hung()) > 0 {
		runtime.Gosched()
	}
	r.resume()
	r.holds(actor)
	ticket, err = r.WriteState(s.id, s.whole(slot.addr, 0), stream)
	check(t, err)
	s.wait(ticket)
	s.intact(slot.addr)
}

// The memory may be of an allocator of the program's own, which maps it piece by piece.
func TestAPauseLeavesUnwrittenBytesInPiecesThatTheirOwnerMapped(t *testing.T) {
	r := newStateRig(t)
	o := owner{r, t}
	s := r.newState("adam", 256<<10)
	addr := o.reserve(4 * grain)
	var pieces []*array
	for i := range mem.Addr(4) {
		pieces = append(pieces, o.mapped(addr+i*grain, grain, 0, none("slots")))
	}
	stream := r.stream(0)
	check(t, r.sys.Set("pwrite:*:EIO"))
	ticket, err := s.update(addr, stream, 0)
	check(t, err)
	if _, err := s.WaitState(s.id, ticket); Code(err) != CodeIO {
		t.Fatalf("%v (code %d)", err, Code(err))
	}
	check(t, r.sys.Set(""))
	if res := r.pause(); res.Kept != 4*grain {
		t.Errorf("kept %d bytes of %d", res.Kept, 4*grain)
	}
	r.resume()
	ticket, err = r.WriteState(s.id, s.whole(addr, 0), stream)
	check(t, err)
	s.wait(ticket)
	if res := r.pause(); res.Kept != 0 {
		t.Errorf("kept %d bytes that are written", res.Kept)
	}
	r.resume()
	s.intact(addr)
	for _, p := range pieces {
		if state := r.state(p); state != alloc.Active {
			t.Errorf("memory at %v is %v", p.addr, state)
		}
	}
}
