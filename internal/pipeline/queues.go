package pipeline

import (
	"sync"
	"sync/atomic"
)

// The two queues of an operation.
const (
	hostQueue = iota
	diskQueue
)

// queues hand out the moves of one operation, each once, each queue in order.
type queues struct {
	mu   sync.Mutex // held while a worker takes what it moves at a time, so that these are neighbours
	of   [2]Moves
	next [2]int      // guarded by mu
	stop atomic.Bool // a worker failed

	moved *Moved
}

// take is the next move: of the worker's own queue or, when that is empty, of the other one. Called with mu held, over which
// it may wait until it is known whether a move is made: the others would have to wait for the same. Without wait,
// that is as if there were none.
func (q *queues) take(own int, wait bool) *Move {
	for _, k := range [2]int{own, 1 - own} {
		for of := q.of[k]; q.next[k] < of.Len && !q.stop.Load(); {
			i, skip := q.next[k], false
			if of.Skip != nil {
				known := false
				if skip, known = of.Skip(i, wait); !known && !wait {
					return nil
				}
				skip = skip || !known
			}
			if q.stop.Load() { // while it waited
				return nil
			}
			q.next[k]++
			if !skip {
				m := of.At(i)
				m.queue = k
				return &m
			}
		}
	}
	return nil
}

// done counts a block that was copied.
func (q *queues) done(m *Move) { q.moved.queue[m.queue].Add(m.Length) }

// ownQueue says with which queue the i-th of n workers begins: host memory takes few workers to
// be as fast as the link, a disk wants many requests at once.
func ownQueue(i, n int) int {
	if forHost := min(2, n/2); i < forHost {
		return hostQueue
	}
	return diskQueue
}
