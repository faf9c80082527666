package sizing

import "fmt"

// Parallel is how a model is divided among ranks, in Megatron's words. All are at least 1.
type Parallel struct {
	TP  uint64 `json:"tp"`  // tensor
	PP  uint64 `json:"pp"`  // pipeline
	CP  uint64 `json:"cp"`  // context
	DP  uint64 `json:"dp"`  // data
	EP  uint64 `json:"ep"`  // expert
	ETP uint64 `json:"etp"` // tensor, within an expert
}

// maxRanks is more than any job has.
const maxRanks = 1 << 20

// World is the number of ranks.
func (p Parallel) World() uint64 { return mul(p.TP, p.PP, p.CP, p.DP) }

// replicas are the ranks that have the same parameters but for the experts, and over which optimizer
// state is divided.
func (p Parallel) replicas() uint64 { return p.CP * p.DP }

// expertReplicas are those that have the same experts.
func (p Parallel) expertReplicas() uint64 { return p.TP * p.CP * p.DP / (p.EP * p.ETP) }

// ParallelError says which numbers do not go together.
type ParallelError struct{ Text string }

func (e *ParallelError) Error() string { return e.Text }

func parallelErrorf(format string, args ...any) error {
	return &ParallelError{Text: fmt.Sprintf(format, args...)}
}

// Check reports whether a model can be divided so. The error is a *ParallelError.
func (p Parallel) Check(m Model) error {
	experts := m.Experts()
	switch {
	case min(p.TP, p.PP, p.CP, p.DP, p.EP, p.ETP) == 0:
		return parallelErrorf("--tp, --pp, --cp, --dp, --ep and --etp are at least 1")
	case p.World() > maxRanks:
		return parallelErrorf("tp %d × pp %d × cp %d × dp %d are more than %d ranks", p.TP, p.PP, p.CP, p.DP, maxRanks)
	case p.EP > 1 && m.Even > 0:
		return parallelErrorf("--ep %d: how many of the parameters are experts only a config.json says: give --from-config, or leave --ep out", p.EP)
	case p.EP > 1 && experts == 0:
		return parallelErrorf("--ep %d: %s has no experts: leave it out", p.EP, m.Name)
	case p.EP > max(experts, 1):
		return parallelErrorf("--ep %d is more than the %d experts of a layer of %s", p.EP, experts, m.Name)
	case experts > 0 && p.TP*p.CP*p.DP%mul(p.EP, p.ETP) != 0:
		return parallelErrorf("--ep %d × --etp %d does not divide the %d ranks of a pipeline stage (tp %d × cp %d × dp %d): change one of them (--etp is --tp by default)",
			p.EP, p.ETP, p.TP*p.CP*p.DP, p.TP, p.CP, p.DP)
	case m.Even == 0 && p.PP > uint64(len(m.Layers)):
		return parallelErrorf("--pp %d is more than the %d layers of %s", p.PP, len(m.Layers), m.Name)
	}
	return nil
}

// share is the parameters that a rank has, before those that data-parallel ranks share are divided.
type share struct{ dense, experts uint64 }

// stages are the shares of the ranks of each pipeline stage. Layers are dealt out in their order, as
// evenly as possible, the first stages taking one more. Where the head is the embedding, the last of
// several stages has a copy of it. Nothing that cannot be cut is: the share is that of the rank with
// the most.
func (p Parallel) stages(m Model) []share {
	all := make([]share, p.PP)
	if m.Even > 0 {
		for i := range all {
			all[i].dense = ceilDiv(m.Even, p.TP*p.PP)
		}
		return all
	}
	for _, part := range m.Embed {
		all[0].take(part, p)
	}
	layers := uint64(len(m.Layers))
	next := uint64(0)
	for i := range p.PP {
		n := layers / p.PP
		if i < layers%p.PP {
			n++
		}
		for _, layer := range m.Layers[next : next+n] {
			for _, part := range layer {
				all[i].take(part, p)
			}
		}
		next += n
	}
	last := &all[p.PP-1]
	for _, part := range m.Head {
		last.take(part, p)
	}
	if m.Tied > 0 && p.PP > 1 {
		last.take(m.Embed[0], p)
	}
	return all
}

// take adds what a rank has of a part.
func (s *share) take(part Part, p Parallel) {
	switch part.Split {
	case Whole:
		s.dense = add(s.dense, part.Params)
	case Tensor:
		s.dense = add(s.dense, mul(ceilDiv(part.Units, p.TP), part.Params/part.Units))
	case Experts:
		s.experts = add(s.experts, mul(ceilDiv(part.Units, p.EP), ceilDiv(part.Params/part.Units, p.ETP)))
	}
}
