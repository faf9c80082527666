package sizing

import "fmt"

// Dtype is a type of numbers.
type Dtype struct {
	Name  string
	Bytes uint64 // 0: there are none
}

// Types of numbers.
var (
	None = Dtype{"none", 0}
	FP8  = Dtype{"fp8", 1}
	BF16 = Dtype{"bf16", 2}
	FP16 = Dtype{"fp16", 2}
	FP32 = Dtype{"fp32", 4}
)

// ParseDtype parses one of the words.
func ParseDtype(allowed ...Dtype) func(string) (Dtype, error) {
	return func(s string) (Dtype, error) {
		words := ""
		for _, d := range allowed {
			if d.Name == s {
				return d, nil
			}
			words += ", " + d.Name
		}
		return Dtype{}, fmt.Errorf("must be one of %s", words[2:])
	}
}

// Shard is what data-parallel ranks have only a part of, each including what is before it.
type Shard int

// Ways to share states among data-parallel ranks.
const (
	ShardNone       Shard = iota
	ShardOptimizer        // master weights and moments: Megatron's distributed optimizer, ZeRO 1
	ShardGradients        // ZeRO 2
	ShardParameters       // ZeRO 3, FSDP
)

// Shards are the words for them.
var Shards = []string{"none", "optimizer", "gradients", "parameters"}

func (s Shard) String() string { return Shards[s] }

// ParseShard parses one of the words.
func ParseShard(s string) (Shard, error) {
	for i, word := range Shards {
		if s == word {
			return Shard(i), nil
		}
	}
	return 0, fmt.Errorf("must be one of none, optimizer, gradients, parameters")
}

// Optimizers are the known ones, with the moments that each keeps of a parameter.
var Optimizers = []struct {
	Name    string
	Moments uint64
}{{"adamw", 2}, {"adam", 2}, {"sgd", 0}, {"sgd-momentum", 1}, {"none", 0}}

// ParseOptimizer parses the name of an optimizer.
func ParseOptimizer(s string) (string, error) {
	for _, o := range Optimizers {
		if o.Name == s {
			return s, nil
		}
	}
	return "", fmt.Errorf("must be one of adamw, adam, sgd, sgd-momentum, none")
}

// State is what is kept of each parameter.
type State struct {
	Optimizer string // of Optimizers; "none": the actor is not trained, and has weights alone
	Weights   Dtype
	Gradients Dtype
	Master    Dtype
	Moment    Dtype
	Shard     Shard
	Stream    bool // master weights and moments lie on disk, and pass through the GPU in each step
}

// Moments is how many the optimizer keeps.
func (s State) Moments() uint64 {
	for _, o := range Optimizers {
		if o.Name == s.Optimizer {
			return o.Moments
		}
	}
	return 0
}

// Kinds are the bytes of a rank.
type Kinds struct {
	Weights   uint64 `json:"weights"`
	Gradients uint64 `json:"gradients"`
	Master    uint64 `json:"master"`
	Moments   uint64 `json:"moments"`
	Other     uint64 `json:"other"` // whatever else is managed: caches, dead blocks, activations that stay

	Streamed uint64 `json:"streamed"` // of the optimizer, on disk; master and moments are 0 then
	Slots    uint64 `json:"slots"`    // GPU memory that it passes through, which a pause frees and does not save
}

// Total is all of them that a pause has to do with.
func (k Kinds) Total() uint64 { return add(k.Weights, k.Gradients, k.Master, k.Moments, k.Other) }

// Optimizer is what a streamed optimizer would keep off the GPU.
func (k Kinds) Optimizer() uint64 { return add(k.Master, k.Moments) }

// Stages are the bytes of a rank of each pipeline stage. other is what each has beside. The error is
// a *ParallelError.
func Stages(m Model, p Parallel, s State, other uint64) ([]Kinds, error) {
	if err := p.Check(m); err != nil {
		return nil, err
	}
	shares := p.stages(m)
	all := make([]Kinds, len(shares))
	for i, share := range shares {
		numbers := func(from Shard) uint64 {
			if s.Shard < from {
				return add(share.dense, share.experts)
			}
			return add(ceilDiv(share.dense, p.replicas()), ceilDiv(share.experts, p.expertReplicas()))
		}
		all[i] = Kinds{Weights: mul(numbers(ShardParameters), s.Weights.Bytes), Other: other}
		if s.Optimizer != "none" {
			all[i].Gradients = mul(numbers(ShardGradients), s.Gradients.Bytes)
			all[i].Master = mul(numbers(ShardOptimizer), s.Master.Bytes)
			all[i].Moments = mul(numbers(ShardOptimizer), s.Moments(), s.Moment.Bytes)
			if s.Stream {
				all[i].stream(s, numbers(ShardOptimizer))
			}
		}
	}
	return all, nil
}
