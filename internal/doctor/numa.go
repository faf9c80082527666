package doctor

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// gpu is a PCI device of NVIDIA that computes or draws.
type gpu struct {
	address string
	node    int // -1: not told
}

// gpus are those that the PCI bus shows, whether a driver has them or not.
func gpus(s system) (found []gpu) {
	for _, address := range s.names("/sys/bus/pci/devices") {
		dir := "/sys/bus/pci/devices/" + address
		if s.line(dir+"/vendor") != "0x10de" || !strings.HasPrefix(s.line(dir+"/class"), "0x03") {
			continue
		}
		node, known := s.number(dir + "/numa_node")
		if !known {
			node = -1
		}
		found = append(found, gpu{address, node})
	}
	return found
}

// numaNodes are the numbers of the node's NUMA nodes, and distance how far two are apart.
func numaNodes(s system) (nodes []int) {
	for _, name := range s.names("/sys/devices/system/node") {
		if digits, isNode := strings.CutPrefix(name, "node"); isNode {
			if n, err := strconv.Atoi(digits); err == nil {
				nodes = append(nodes, n)
			}
		}
	}
	slices.Sort(nodes)
	return nodes
}

func distance(s system, from, to int) (int, bool) {
	i := slices.Index(numaNodes(s), to)
	fields := strings.Fields(s.line(fmt.Sprintf("/sys/devices/system/node/node%d/distance", from)))
	if i < 0 || i >= len(fields) {
		return 0, false
	}
	d, err := strconv.Atoi(fields[i])
	return d, err == nil
}

// judgeNUMA says on which NUMA nodes GPUs and disks are, and whether this process may run near them.
func judgeNUMA(s system, drives []drive) Finding {
	nodes, devices := numaNodes(s), gpus(s)
	if len(nodes) < 2 {
		return ok("one NUMA node: everything is as near as it can be")
	}
	var has, where []string
	near := map[int]bool{}
	for _, g := range devices {
		if g.node >= 0 {
			near[g.node] = true
		}
	}
	if len(near) == 0 {
		return ok("%d NUMA nodes; which of them GPUs are on is not told", len(nodes))
	}
	for _, n := range nodes {
		if near[n] {
			has = append(has, fmt.Sprint(n))
		}
	}
	far := false
	for _, d := range drives {
		if d.node < 0 {
			continue
		}
		text := fmt.Sprintf("%s on node %d", d.name, d.node)
		if !near[d.node] {
			far = true
			for _, n := range nodes {
				if apart, known := distance(s, d.node, n); near[n] && known {
					text += fmt.Sprintf(" (distance %d to node %d, 10 is the same one)", apart, n)
				}
			}
		}
		where = append(where, text)
	}
	text := fmt.Sprintf("GPUs on NUMA node %s", list(has))
	if len(where) > 0 {
		text += "; " + list(where)
	}
	for n := range near {
		if !mayRunOn(s, n) {
			return warn("let ranks run on all CPUs, or bind each to those of its GPU (numactl --cpunodebind, Slurm --gpu-bind=closest)",
				"%s; this process may not run on the CPUs of node %d: staging memory would be far from its GPU", text, n)
		}
	}
	if far {
		return warn("where there is one, name a directory on a drive of the GPUs' node", "%s: each transfer crosses the link between the sockets, which many ranks share", text)
	}
	return ok("%s", text)
}

// mayRunOn reports whether this process may use a CPU of a node.
func mayRunOn(s system, node int) bool {
	cpus := cpuSet(s.line(fmt.Sprintf("/sys/devices/system/node/node%d/cpulist", node)))
	allowed := cpuSet(s.field("/proc/self/status", "Cpus_allowed_list"))
	if len(cpus) == 0 || len(allowed) == 0 {
		return true // not told
	}
	return slices.ContainsFunc(cpus, func(c [2]int) bool {
		return slices.ContainsFunc(allowed, func(a [2]int) bool { return c[0] <= a[1] && a[0] <= c[1] })
	})
}

// cpuSet reads the kernel's form of a set, "0-3,8", as ranges.
func cpuSet(text string) (ranges [][2]int) {
	for part := range strings.SplitSeq(text, ",") {
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		lo, err1 := strconv.Atoi(first)
		hi, err2 := strconv.Atoi(last)
		if err1 == nil && err2 == nil {
			ranges = append(ranges, [2]int{lo, hi})
		}
	}
	return ranges
}
