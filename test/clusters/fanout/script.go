package fanout

import (
	"fmt"
	"time"
)

// Scale is how large a cluster is, and how long things take there.
type Scale struct {
	Nodes  int
	Ranks  int // of a node
	Fat    int // of node 0, whose replies must be no larger
	Doomed int // the last nodes: their process is killed in the midst of the pause
	Hosts  int // processes that the others are in

	Unit     time.Duration // what the times below are multiples of
	Timeout  time.Duration // that the controller gives a node
	AtOnce   int           // requests that the controller has under way
	Patience time.Duration // of the controller at first, before it asks another node and comes back to this one
}

// What becomes of a node.
type nodeFate int

const (
	serves   nodeFate = iota
	refuses           // nobody listens: the node is gone
	hangs             // it takes connections and says nothing
	restarts          // its ebb serve ends in the midst of the pause, and another one begins
	dies              // it is killed in the midst of the pause
)

// What becomes of a rank.
type rankFate int

const (
	fares   rankFate = iota
	stuck            // it never comes to a safe point
	slow             // its disk takes longer than the controller waits
	full             // its disk is full
	killed           // its process ends in the midst of the pause
	stopped          // it answers nothing, as under SIGSTOP
)

// each is of how many nodes one has each fate.
const each = 40

func (s Scale) node(n int) nodeFate {
	switch {
	case n >= s.Nodes-s.Doomed:
		return dies
	case n%each == 7:
		return refuses
	case n%each == 23:
		return hangs
	case n%each == 31:
		return restarts
	}
	return serves
}

// victim is the rank of a node that something happens to.
const victim = 2

func (s Scale) rank(n, r int) rankFate {
	if s.node(n) != serves || r != victim {
		return fares
	}
	switch n % each {
	case 3:
		return stuck
	case 9:
		return slow
	case 11:
		return full
	case 17:
		return killed
	case 29:
		return stopped
	}
	return fares
}

func (s Scale) ranks(n int) int {
	switch fate := s.node(n); {
	case fate == refuses || fate == hangs:
		return 0
	case n == 0:
		return s.Fat
	}
	return s.Ranks
}

// pauses reports whether a rank is paused in the end, whatever happens beside it.
func (s Scale) pauses(n, r int) bool {
	switch s.rank(n, r) {
	case stuck, full, killed, stopped:
		return false
	}
	return s.node(n) != dies
}

// pausing is how many ranks of a node are paused in the end.
func (s Scale) pausing(n int) (count int) {
	for r := range s.ranks(n) {
		if s.pauses(n, r) {
			count++
		}
	}
	return count
}

// safePoint is how long a rank takes to its next safe point: mostly little, some take longer.
func (s Scale) safePoint(n, r int) time.Duration {
	if s.rank(n, r) == killed {
		return 0 // so that no deadline passes first
	}
	k := n*31 + r*17
	if k%61 == 0 {
		return 4 * s.Unit
	}
	return time.Duration(k%10) * s.Unit * 15 / 100
}

// moving is how long the disk takes.
func (s Scale) moving(n, r int) time.Duration {
	switch {
	case s.rank(n, r) == slow:
		return s.Timeout * 3 / 2
	case s.node(n) == restarts:
		return 7 * s.Unit
	}
	return s.Unit*3/10 + time.Duration((n*13+r*7)%10)*s.Unit/10
}

// pid is that of a rank, which is no process: beyond what the kernel gives.
func pid(n, r int) int { return 5_000_000 + n*1000 + r }

// name is what a reply calls a rank. One that never said who it is has its process alone.
func (s Scale) name(n, r int) string {
	if s.rank(n, r) == stopped {
		return fmt.Sprintf("pid %d", pid(n, r))
	}
	return fmt.Sprintf("actor cell 0 rank %d", n*s.Ranks+r)
}

// Outcomes of a node, as the controller tells them.
const (
	Done   = "done"   // every rank is paused
	Late   = "late"   // some rank came to no safe point, or does not answer, however often it is asked
	Failed = "failed" // some rank failed, or ended
	Lost   = "lost"   // no answer
)

// want is what the controller is to find out about a node's pause, and the ranks that it is to name.
func (s Scale) want(n int) (outcome string, named []string) {
	switch s.node(n) {
	case refuses, hangs, dies:
		return Lost, nil
	case restarts:
		return Done, nil
	}
	outcome = Done
	for r := range s.ranks(n) {
		switch s.rank(n, r) {
		case stuck, stopped:
			outcome, named = Late, append(named, s.name(n, r))
		case full, killed:
			outcome, named = Failed, append(named, s.name(n, r))
		}
	}
	return outcome, named
}

// hasStopped reports whether some rank of a node answers nothing.
func (s Scale) hasStopped(n int) bool {
	return s.ranks(n) > victim && s.rank(n, victim) == stopped
}
