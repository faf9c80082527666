package sizing

// Node is a machine on which ranks share host memory and disks.
type Node struct {
	GPU    uint64 // memory of one, in bytes; 0: not known
	Margin uint64 // of it, that allocations leave free

	Host      uint64 // bytes of host memory that the ranks may take together
	HostKnown bool
	Chunk     uint64 // staging buffer of a rank, at most

	DiskFree  uint64 // bytes
	DiskKnown bool
	DiskTaken uint64 // of them, by streamed state

	Link  Range // of each GPU
	Write Range // of the disks, for all ranks together, over blocks that were written before
	Read  Range
	Fresh Range // likewise, of blocks that were not
}

// HostReserve is what is left free of host memory unless another number is given: as much as ebb leaves
// when it chooses a budget by itself (package hostmem).
func HostReserve(total uint64) uint64 { return min(max(total/20, 2<<30), total/8) }

// Group is ranks that have the same.
type Group struct {
	Ranks uint64 `json:"ranks"`
	Stage uint64 `json:"stage"` // of the pipeline
	Kinds
}

// Load is the ranks of one node.
type Load []Group

// FullestNode is the node whose ranks have the most together. Ranks are put on nodes in their order,
// with the pipeline stage as the slowest index, as Megatron numbers them.
func FullestNode(stages []Kinds, p Parallel, perNode uint64) Load {
	var fullest Load
	perStage, world := p.World()/p.PP, p.World()
	for first := uint64(0); first < world; first += perNode {
		last := min(first+perNode, world) - 1
		var load Load
		for stage := first / perStage; stage <= last/perStage; stage++ {
			from, to := max(first, stage*perStage), min(last, (stage+1)*perStage-1)
			load = append(load, Group{Ranks: to - from + 1, Stage: stage, Kinds: stages[stage]})
		}
		if fullest == nil || load.Sum(Kinds.Total) > fullest.Sum(Kinds.Total) {
			fullest = load
		}
	}
	return fullest
}

// Ranks is their number.
func (l Load) Ranks() uint64 {
	var n uint64
	for _, g := range l {
		n += g.Ranks
	}
	return n
}

// Sum adds something up over all ranks.
func (l Load) Sum(of func(Kinds) uint64) uint64 {
	var n uint64
	for _, g := range l {
		n = add(n, mul(g.Ranks, of(g.Kinds)))
	}
	return n
}

// Most is that of the rank with the most.
func (l Load) Most(of func(Kinds) uint64) uint64 {
	var n uint64
	for _, g := range l {
		n = max(n, of(g.Kinds))
	}
	return n
}

// Fit is whether the step fits the GPU.
type Fit string

// What is known of it.
const (
	FitUnknown Fit = "unknown"  // the GPU's memory is not known
	FitYes     Fit = "yes"      // what is left is for activations
	FitStream  Fit = "streamed" // only without the optimizer's state
	FitNo      Fit = "no"
)

// StepFits says whether the bytes of a rank fit a GPU.
func (n Node) StepFits(k Kinds) Fit {
	switch room := n.GPU - min(n.Margin, n.GPU); {
	case n.GPU == 0:
		return FitUnknown
	case k.InStep() <= room:
		return FitYes
	case k.Streamed > 0:
		return FitNo
	case k.Moments > 0 && k.Total()-k.Optimizer() <= room: // an optimizer without moments has none to stream
		return FitStream
	default:
		return FitNo
	}
}
