package hostmem

import (
	"errors"
	"fmt"
	"sync"

	"github.com/ebb-offload/ebb/internal/sizes"
)

// maker makes the pieces of the queue until it is empty. One runs at a time, while making is set.
func (a *Arena) maker() {
	for a.makeQueued() {
	}
}

// makeQueued brings in the pieces of the queue, one after the other and each by several threads, and
// registers each when it is there, which goes on while the next are brought in. more: others were
// queued meanwhile; else the maker has ended.
func (a *Arena) makeQueued() (more bool) {
	touch := newTouchers(a.options.NUMANode, a.options.PieceBytes)
	present := make(chan *piece, maxTouchThreads)
	registered := make(chan struct{})
	go func() {
		defer close(registered)
		for p := range present {
			a.finish(p, safely(func() error { return a.register(p) }))
		}
	}()
	for p := a.next(); p != nil; p = a.next() {
		if err := safely(func() error { return a.begin(p) }); err != nil {
			a.broughtIn(p)
			a.finish(p, err)
			continue
		}
		all := &tally{left: sliceCount(uint64(len(p.memory)))}
		touch.touch(p.memory, func(err error) {
			last, err := all.add(err)
			switch {
			case !last:
			case err != nil:
				a.broughtIn(p)
				a.finish(p, &PageError{Doing: "touching", Bytes: uint64(len(p.memory)), Err: err})
			default:
				a.broughtIn(p)
				present <- p
			}
		})
	}
	touch.close()
	close(present)
	<-registered

	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.queue) > 0 {
		return true
	}
	a.making = false
	a.settled.Broadcast()
	return false
}

// safely turns a panic into an error: on a goroutine of the arena's it would end the actor.
func safely(f func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("internal error while host memory is made: %v", r)
		}
	}()
	return f()
}

// next takes the next piece from the queue; nil when there is none.
func (a *Arena) next() *piece {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.queue) == 0 {
		return nil
	}
	p := a.queue[0]
	a.queue = a.queue[1:]
	return p
}

// begin asks for leave to bring a piece in, and makes its addresses accessible.
func (a *Arena) begin(p *piece) error {
	a.mu.Lock()
	closed := a.closed
	a.mu.Unlock()
	if closed {
		return ErrClosed
	}
	if err := a.options.Allow(uint64(len(p.memory))); err != nil {
		return err
	}
	return open(p.memory)
}

// broughtIn notes that a piece is in the numbers of the system now, or never will be.
func (a *Arena) broughtIn(p *piece) {
	a.mu.Lock()
	a.pending -= uint64(len(p.memory))
	a.mu.Unlock()
}

func (a *Arena) register(p *piece) error {
	if a.options.Register == nil {
		return nil
	}
	if err := a.options.Register(address(p.memory), uint64(len(p.memory))); err != nil {
		return fmt.Errorf("register %s of host memory: %w", sizes.Binary(uint64(len(p.memory))), err)
	}
	return nil
}

// finish tells those who wait for a piece. One that failed leaves no memory, and its place can be
// tried again.
func (a *Arena) finish(p *piece, err error) {
	if err != nil {
		a.mu.Lock()
		err = errors.Join(err, shut(p.memory))
		a.pieces[p.index] = nil
		a.mu.Unlock()
	}
	p.err = err
	close(p.done)
}

// tally counts the slices of a piece that are done.
type tally struct {
	mu     sync.Mutex // guards the fields below
	left   int
	failed error
}

// add counts one slice; last says that it was the last, err what went wrong with any.
func (t *tally) add(e error) (last bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.left--
	t.failed = errors.Join(t.failed, e)
	return t.left == 0, t.failed
}
