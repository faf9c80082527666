package sizing

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func mixed(shard Shard) State {
	return State{Optimizer: "adamw", Weights: BF16, Gradients: FP32, Master: FP32, Moment: FP32, Shard: shard}
}

func alone(p Parallel) Parallel {
	for _, n := range []*uint64{&p.TP, &p.PP, &p.CP, &p.DP, &p.EP} {
		*n = max(*n, 1)
	}
	if p.ETP == 0 {
		p.ETP = p.TP
	}
	return p
}

func mustStages(t *testing.T, m Model, p Parallel, s State) []Kinds {
	t.Helper()
	stages, err := Stages(m, alone(p), s, 0)
	if err != nil {
		t.Fatal(err)
	}
	return stages
}

func TestARankAloneHasEighteenBytesAParameter(t *testing.T) {
	const n = 7_615_616_512
	got := mustStages(t, config(t, "qwen2.5-7b"), Parallel{}, mixed(ShardOptimizer))
	want := []Kinds{{Weights: 2 * n, Gradients: 4 * n, Master: 4 * n, Moments: 8 * n}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestWhatDataParallelRanksShareIsDivided(t *testing.T) {
	const n = 8 << 20
	for shard, want := range map[Shard]Kinds{
		ShardNone:       {Weights: 2 * n, Gradients: 4 * n, Master: 4 * n, Moments: 8 * n},
		ShardOptimizer:  {Weights: 2 * n, Gradients: 4 * n, Master: n, Moments: 2 * n},
		ShardGradients:  {Weights: 2 * n, Gradients: n, Master: n, Moments: 2 * n},
		ShardParameters: {Weights: n / 2, Gradients: n, Master: n, Moments: 2 * n},
	} {
		// Context-parallel ranks have the same parameters too.
		for _, p := range []Parallel{{DP: 4}, {DP: 2, CP: 2}} {
			if diff := cmp.Diff([]Kinds{want}, mustStages(t, FromCount(n), p, mixed(shard))); diff != "" {
				t.Errorf("%v, %+v: %s", shard, p, diff)
			}
		}
	}
}

func TestOptimizersKeepTheirMoments(t *testing.T) {
	const n = 1000
	for optimizer, want := range map[string]Kinds{
		"adamw":        {Weights: 2 * n, Gradients: 4 * n, Master: 4 * n, Moments: 8 * n},
		"adam":         {Weights: 2 * n, Gradients: 4 * n, Master: 4 * n, Moments: 8 * n},
		"sgd":          {Weights: 2 * n, Gradients: 4 * n, Master: 4 * n},
		"sgd-momentum": {Weights: 2 * n, Gradients: 4 * n, Master: 4 * n, Moments: 4 * n},
		"none":         {Weights: 2 * n},
	} {
		s := mixed(ShardNone)
		s.Optimizer = optimizer
		if diff := cmp.Diff([]Kinds{want}, mustStages(t, FromCount(n), Parallel{}, s)); diff != "" {
			t.Errorf("%s: %s", optimizer, diff)
		}
	}
}

// Llama-3-8B, by hand: a layer has 4096·(4096 + 2·1024 + 4096) + 3·4096·14336 = 218,103,808 parameters
// that tensor-parallel ranks share, and norms of 8,192 that they do not. Embedding and head have
// 128256·4096 = 525,336,576 each; the last norm has 4,096.
func TestPipelineStagesAndTensorParallelRanks(t *testing.T) {
	m := config(t, "llama-3-8b")
	weights := State{Optimizer: "none", Weights: FP8}
	for _, c := range []struct {
		p    Parallel
		want []uint64
	}{
		{Parallel{PP: 2}, []uint64{16*218_112_000 + 525_336_576, 16*218_112_000 + 525_336_576 + 4096}},
		{Parallel{TP: 8}, []uint64{32*(218_103_808/8+8192) + 2*525_336_576/8 + 4096}},
		{Parallel{PP: 3}, []uint64{11*218_112_000 + 525_336_576, 11 * 218_112_000, 10*218_112_000 + 525_336_576 + 4096}},
		// 16 ranks share 8 heads of keys and values: each has one. 4096·1024/8 = 524,288 parameters twice.
		{Parallel{TP: 16}, []uint64{32*((218_103_808-2*4_194_304)/16+2*524_288+8192) + 2*525_336_576/16 + 4096}},
	} {
		var got []uint64
		for _, k := range mustStages(t, m, c.p, weights) {
			got = append(got, k.Weights)
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%+v: %s", c.p, diff)
		}
	}
}

// A tied head is the embedding: one stage has it once, the last of several stages has a copy.
func TestATiedHeadIsCopiedToTheLastStage(t *testing.T) {
	m := config(t, "qwen2.5-0.5b") // 151936·896 = 136,134,656
	weights := State{Optimizer: "none", Weights: FP8}
	if got := mustStages(t, m, Parallel{}, weights)[0].Weights; got != 494_032_768 {
		t.Errorf("one stage has %d parameters", got)
	}
	two := mustStages(t, m, Parallel{PP: 2}, weights)
	if got := two[0].Weights + two[1].Weights; got != 494_032_768+136_134_656 {
		t.Errorf("two stages have %d parameters", got)
	}
}

// Qwen3-30B-A3B has 48 layers of 128 experts of 3·2048·768 = 4,718,592 parameters.
func TestExpertsAreDividedOverExpertParallelRanks(t *testing.T) {
	const experts, all = 48 * 128 * 4_718_592, 30_532_122_624
	m := config(t, "qwen3-30b-a3b")
	got := mustStages(t, m, Parallel{DP: 8, EP: 8}, mixed(ShardOptimizer))[0]
	// Eight ranks share what is no expert; each expert is on one rank alone.
	if want := uint64(2 * (all - experts + experts/8)); got.Weights != want {
		t.Errorf("weights %d, want %d", got.Weights, want)
	}
	if want := uint64(4 * ((all-experts)/8 + experts/8)); got.Master != want {
		t.Errorf("master weights %d, want %d", got.Master, want)
	}
	// Of 16 ranks two have the same experts.
	got = mustStages(t, m, Parallel{DP: 16, EP: 8}, mixed(ShardOptimizer))[0]
	if want := uint64(4 * ((all-experts)/16 + experts/16)); got.Master != want {
		t.Errorf("master weights %d, want %d", got.Master, want)
	}
}

func TestDenseLayersBeforeExperts(t *testing.T) {
	m := config(t, "deepseek-v3")
	for i, layer := range m.Layers {
		sparse := false
		for _, part := range layer {
			sparse = sparse || part.Split == Experts
		}
		if sparse != (i >= 3) {
			t.Errorf("layer %d has experts: %v", i, sparse)
		}
	}
}

// Summed over the ranks, what nobody has twice is the model.
func TestNothingIsLostByDividing(t *testing.T) {
	for _, name := range []string{"llama-3-8b", "qwen3-30b-a3b", "mixtral-8x7b", "deepseek-v3", "gpt-oss-20b"} {
		m := config(t, name)
		p := alone(Parallel{DP: 4, PP: 2})
		if m.Experts() > 0 {
			p.EP = 4
		}
		stages, err := Stages(m, p, State{Optimizer: "sgd", Master: FP8, Shard: ShardOptimizer}, 0)
		if err != nil {
			t.Fatal(err)
		}
		var got uint64
		for _, k := range stages {
			got += 4 * k.Master
		}
		if over := got - m.Parameters(); got < m.Parameters() || over > 16 { // of rounding up
			t.Errorf("%s: the ranks have %d parameters together, the model %d", name, got, m.Parameters())
		}
	}
}

func TestWaysThatDoNotGoTogetherAreRefused(t *testing.T) {
	for _, c := range []struct {
		model string
		p     Parallel
		says  string
	}{
		{"llama-3-8b", Parallel{EP: 2}, "has no experts"},
		{"qwen3-30b-a3b", Parallel{EP: 256, DP: 256}, "more than the 128 experts"},
		{"qwen3-30b-a3b", Parallel{EP: 8, DP: 4}, "does not divide the 4 ranks"},
		{"llama-3-8b", Parallel{PP: 33}, "more than the 32 layers"},
		{"llama-3-8b", Parallel{DP: 1 << 20, TP: 8}, "more than 1048576 ranks"},
		{"", Parallel{EP: 2, DP: 2}, "give --from-config"},
	} {
		m := FromCount(7e9)
		if c.model != "" {
			m = config(t, c.model)
		}
		_, err := Stages(m, alone(c.p), mixed(ShardNone), 0)
		var refused *ParallelError
		if !errors.As(err, &refused) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s %+v: %v, want %q", c.model, c.p, err, c.says)
		}
	}
	var zero Parallel
	if zero.Check(FromCount(1)) == nil {
		t.Error("no ranks at all are accepted")
	}
}

// Two stages of four ranks on nodes of 3: the second node has one rank of the first stage and two of
// the second.
func TestTheFullestNodeCountsTheRanksThatAreOnIt(t *testing.T) {
	p := alone(Parallel{TP: 4, PP: 2})
	stages := []Kinds{{Weights: 10}, {Weights: 20}}
	want := Load{{Ranks: 1, Stage: 0, Kinds: stages[0]}, {Ranks: 2, Stage: 1, Kinds: stages[1]}}
	if diff := cmp.Diff(want, FullestNode(stages, p, 3)); diff != "" {
		t.Error(diff)
	}
	if got := FullestNode(stages, p, 8).Sum(Kinds.Total); got != 120 {
		t.Errorf("one node of 8 has %d bytes", got)
	}
	if got := FullestNode(stages, p, 4); got.Ranks() != 4 || got[0].Stage != 1 {
		t.Errorf("the fullest of two nodes is %+v", got)
	}
}
