package launch

import "github.com/ebb-offload/ebb/internal/hostmem"

// Memory is the memory that this process may use at most, of the machine or of the memory cgroup, in
// bytes; 0 when unknown.
func Memory() uint64 {
	limits, err := hostmem.Look()
	if err != nil {
		return 0
	}
	total := limits.Total
	for _, g := range limits.Groups {
		total = min(total, g.Limit)
	}
	return total
}

// capHost is CapHost for ranks of this machine. Where its memory is unknown nothing is capped: the rank
// asks for itself.
func (o Options) capHost(ranks int) (mb int, warning string) {
	capacity, err := hostmem.Capacity(ranks)
	if err != nil {
		return o.HostMB, ""
	}
	return o.CapHost(capacity)
}
