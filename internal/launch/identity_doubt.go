package launch

import (
	"fmt"
	"strconv"
	"strings"
)

// This file finds what is wrong with the variables of launchers though each is a number: a rank that is
// missing beside the others, and two launchers that cannot be one within the other.

// incomplete refuses variables that tell of other ranks, but not which one this is: every process of the
// job would take itself for rank 0.
func incomplete(getenv func(string) string) error {
	for _, l := range launchers {
		if l.name == "Slurm" || l.name == "Kubernetes" {
			continue // their variables are those of an allocation, in which anything may run
		}
		var told []string
		others := false
		for _, v := range []struct {
			names []string
			alone int // the value that a process of its own has
		}{{l.localRank, 0}, {l.world, 1}} {
			name := firstSet(getenv, v.names)
			if name == "" {
				continue
			}
			told = append(told, name+"="+getenv(name))
			n, err := strconv.Atoi(getenv(name))
			others = others || err != nil || n != v.alone
		}
		if others {
			return Usagef("%s, and no %s: which rank is this? Set %s, or give --rank; for a process of its own unset them",
				strings.Join(told, " and "), l.rank[0], l.rank[0])
		}
	}
	return nil
}

// contradiction is a line about a launcher around the innermost one that tells another place, where the one cannot
// have started the other; empty where all is well. Of the ranks of a node the first says it.
func contradiction(inner Outer, getenv func(string) string) string {
	if inner.Launcher == "" || inner.LocalRank > 0 || Nested(getenv) {
		return ""
	}
	within := launcher{}
	for _, l := range launchers {
		switch outer, err := l.place(getenv); {
		case l.name == inner.Launcher:
			within = l
		case within.name == "" || err != nil || outer.Rank < 0 || around(outer, inner, getenv):
		default:
			name := firstSet(getenv, within.rank)
			return fmt.Sprintf("%s (%s) and %s (%s) contradict each other: the first counts, that of the inner launcher; "+
				"start one launcher on each node, or unset %s if it is a leftover",
				told(name, inner, getenv), inner.Launcher, told(firstSet(getenv, l.rank), outer, getenv), l.name, name)
		}
	}
	return ""
}

// told is a rank as its launcher tells it.
func told(name string, at Outer, getenv func(string) string) string {
	text := name + "=" + getenv(name)
	if at.World >= 0 {
		text += fmt.Sprintf(" of %d", at.World)
	}
	return text
}

// around reports whether the outer place may be that of a process which started the launcher of the inner one: one
// on each node. Or both tell the same.
func around(outer, inner Outer, getenv func(string) string) bool {
	sameWorld := outer.World == inner.World || outer.World < 0 || inner.World < 0
	if outer.Rank == inner.Rank && sameWorld {
		return true
	}
	// How many nodes there are torchrun tells, and DeepSpeed; which is the first is torchrun's own choice.
	nodes, err := number(getenv, []string{"GROUP_WORLD_SIZE", "CROSS_SIZE"})
	switch {
	case inner.Launcher == "torchrun" && err == nil && nodes >= 0:
		return outer.World < 0 || outer.World == nodes
	case inner.LocalWorld <= 0 || inner.World < 0:
		return false
	case outer.World < 0 || outer.World*inner.LocalWorld == inner.World:
		return true
	}
	// mpirun has the scheduler start its daemons, not everywhere, and nodes may have different numbers of ranks.
	return inner.Launcher != "torchrun" && outer.World < inner.World
}
