package pipeline

import "github.com/ebb-offload/ebb/internal/filesys"

// A read or write that has no answer in time is left to itself, with the thread that makes it. Its
// worker goes on, but not with the memory that the call was given, which is put in quarantine until
// the call returns: a late read must not land in the bytes of another block. Meanwhile the slot has
// memory of its own. How much that becomes is bounded by how many calls may hang (filesys.MaxHung).
// The slot's stream is not concerned: its work on the block was over before a write, and is not
// begun before a read.

// stage is staging memory.
type stage struct {
	memory []byte       // nil: none
	free   func() error // nil: a block of the staging buffer, which is not the worker's to free
}

// lent is staging memory that a call which hangs may use until busy is closed.
type lent struct {
	stage
	busy <-chan struct{}
}

// quarantine puts a slot's memory in quarantine if the call that ended with err still uses it.
func (w *worker) quarantine(slot int, err error) {
	if busy := filesys.InUse(err); busy != nil {
		w.lent = append(w.lent, lent{w.staging[slot], busy})
		w.staging[slot] = stage{}
	}
}

// memory is the staging memory of a slot. The current device must be that of the slot's move.
func (w *worker) memory(slot int) ([]byte, error) {
	s := &w.staging[slot]
	if s.memory == nil {
		var err error
		if s.memory, s.free, err = w.options.Spare(); err != nil {
			return nil, err
		}
	}
	return s.memory, nil
}

// takeBack ends the quarantine of memory whose calls have returned: the blocks of the staging buffer
// are used again, and what was made in their place is freed. No block is under way.
func (w *worker) takeBack() {
	if len(w.lent) == 0 {
		return
	}
	kept := w.lent[:0]
	for _, l := range w.lent {
		select {
		case <-l.busy:
			w.useAgain(l.stage)
		default:
			kept = append(kept, l)
		}
	}
	clear(w.lent[len(kept):])
	w.lent = kept
}

// useAgain gives memory to a slot that has none or, if it is of the staging buffer, to one that has
// other memory.
func (w *worker) useAgain(s stage) {
	for i := range w.staging {
		if w.staging[i].memory == nil || s.free == nil && w.staging[i].free != nil {
			s, w.staging[i] = w.staging[i], s
			break
		}
	}
	s.giveUp()
}

// giveUp frees memory that is not of the staging buffer. What the driver does not give back is gone
// with the process.
func (s stage) giveUp() {
	if s.free != nil {
		_ = s.free()
	}
}

// giveUpStaging frees what the worker has made. What calls that hang still use stays.
func (w *worker) giveUpStaging() {
	w.takeBack()
	for i := range w.staging {
		w.staging[i].giveUp()
		w.staging[i] = stage{}
	}
}
