package pipeline

import "sync/atomic"

// The two queues of an operation.
const (
	hostQueue = iota
	diskQueue
)

// queues hand out the moves of one operation, each once, each queue in order.
type queues struct {
	of   [2]Moves
	next [2]atomic.Int64
	stop atomic.Bool // a worker failed

	moved *Moved
}

// take is the next move: of the worker's own queue or, when that is empty, of the other one.
func (q *queues) take(own int) *Move {
	if q.stop.Load() {
		return nil
	}
	for _, k := range [2]int{own, 1 - own} {
		if i := q.next[k].Add(1) - 1; i < int64(q.of[k].Len) {
			m := q.of[k].At(int(i))
			m.queue = k
			return &m
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
