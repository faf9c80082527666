package sizing

import (
	"fmt"
	"math/bits"
)

// MaxParameters is more than any model has. Beyond it a config.json is not taken for one.
const MaxParameters = 1e16

// Model is where the parameters of a model are.
type Model struct {
	Name   string // architecture, or "7B parameters"
	Layers []Layer
	Embed  []Part // before the first layer
	Head   []Part // behind the last one
	Tied   uint64 // parameters of the embedding that the head uses too, and that the last pipeline stage has a copy of
	Even   uint64 // parameters of which nothing else is known: divided evenly. With it all of the above is empty
	Notes  []string
}

// Layer is one block of the model.
type Layer []Part

// Part is parameters that are divided in the same way.
type Part struct {
	Name   string
	Params uint64
	Units  uint64 // of which none is cut: heads, rows, experts. Params is a multiple of it
	Split  Split
}

// Split is what a part is divided over.
type Split int

// Ways to divide a part.
const (
	Whole   Split = iota // every rank of a stage has it: norms, routers
	Tensor               // over tensor-parallel ranks
	Experts              // over expert-parallel ranks, and each expert over expert-tensor-parallel ones
)

// FromCount is a model of which only the number of parameters is known.
func FromCount(n uint64) Model {
	return Model{Name: Count(n) + " parameters", Even: n}
}

// Parameters is the number of parameters, each counted once.
func (m Model) Parameters() uint64 {
	total := add(m.Even, sum(m.Embed), sum(m.Head))
	for _, l := range m.Layers {
		total = add(total, sum(l))
	}
	return total
}

// Experts is the largest number of routed experts of a layer; 0: none.
func (m Model) Experts() uint64 {
	var n uint64
	for _, l := range m.Layers {
		for _, p := range l {
			if p.Split == Experts {
				n = max(n, p.Units)
			}
		}
	}
	return n
}

func sum(parts []Part) uint64 {
	var n uint64
	for _, p := range parts {
		n = add(n, p.Params)
	}
	return n
}

// saturated stands for every number that is too large. Sums and products of it stay there, and far
// from overflow.
const saturated = 1 << 62

// add is a sum that does not overflow.
func add(list ...uint64) uint64 {
	var total uint64
	for _, n := range list {
		total = min(total+min(n, saturated), saturated)
	}
	return total
}

// mul is a product that does not overflow.
func mul(list ...uint64) uint64 {
	total := uint64(1)
	for _, n := range list {
		high, low := bits.Mul64(total, n)
		if high > 0 || low > saturated {
			low = saturated
		}
		total = low
	}
	return total
}

// ceilDiv divides and rounds up. by is at least 1.
func ceilDiv(n, by uint64) uint64 {
	if n == 0 {
		return 0
	}
	return (n-1)/by + 1
}

// Count is a number of parameters for people: 7B, 30.5B, 124M.
func Count(n uint64) string {
	for _, unit := range []struct {
		size   uint64
		letter string
	}{{1e12, "T"}, {1e9, "B"}, {1e6, "M"}, {1e3, "k"}} {
		if n >= unit.size {
			text := fmt.Sprintf("%.1f", float64(n)/float64(unit.size))
			if text[len(text)-2:] == ".0" {
				text = text[:len(text)-2]
			}
			return text + unit.letter
		}
	}
	return fmt.Sprint(n)
}
