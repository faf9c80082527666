package main

import (
	"fmt"

	"github.com/ebb-offload/ebb/internal/launch"
	"github.com/ebb-offload/ebb/internal/node"
)

// streamed is a line for each streamed state, over all ranks that have one of its name.
func (r statusResult) streamed() (lines []string) {
	var order []string
	all, ranks := map[string]*node.Streamed{}, map[string]int{}
	for _, rank := range r.Ranks {
		for _, s := range rank.Status.States {
			if all[s.Name] == nil {
				all[s.Name] = &node.Streamed{Name: s.Name}
				order = append(order, s.Name)
			}
			all[s.Name].Add(s)
			ranks[s.Name]++
		}
	}
	for _, name := range order {
		s := all[name]
		line := fmt.Sprintf("streamed state %q of %s: %s in files; %s read and %s written so far", name, launch.Count(ranks[name], "rank"), both(s.Bytes), both(s.Read), both(s.Written))
		if s.InFlight > 0 {
			line += "; " + launch.Count(s.InFlight, "request") + " in flight"
		}
		if s.Errors > 0 {
			line += "; " + launch.Count(int(s.Errors), "request") + " failed"
		}
		lines = append(lines, line)
	}
	return lines
}
