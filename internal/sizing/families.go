package sizing

import "slices"

// Bounds of single fields: above those of every model, and low enough that a layer can be made for
// each.
const (
	maxWidth   = 1 << 24
	maxLayers  = 1 << 13
	maxVocab   = 1 << 28
	maxExperts = 1 << 16
)

// decoder is what the transformers here have in common.
type decoder struct {
	hidden, layers, vocab uint64
	positions             uint64 // learned ones; 0: none
	tied                  bool   // the head uses the embedding

	heads, kvHeads, headDim uint64
	qkvBias, outBias        bool
	qkNorms                 bool // of queries and keys, a head wide
	sinks                   bool // one parameter a head
	mla                     *mla // instead of plain keys and values

	intermediate uint64
	gated        bool // three matrices instead of two
	mlpBias      bool
	norms        uint64 // parameters of a layer's norms, in units of hidden
	finalNorm    uint64 // likewise, of the last one

	moe *moe
}

// mla is attention with latent keys and values. Ranks of 0: projected directly.
type mla struct {
	qRank, kvRank, nope, rope, value uint64
	bias                             bool
}

// moe is a mixture of experts.
type moe struct {
	experts, intermediate uint64
	shared                uint64 // intermediate size of the experts that see every token
	sharedGate            bool
	bias                  bool                // of experts and router
	sparse                func(i uint64) bool // whether layer i has experts
}

// families reads the fields of each known architecture. Defaults are those of transformers; where a
// default of a family is easily taken for another, the field must be there.
var families = map[string]func(*fields) decoder{
	"LlamaForCausalLM":      llama,
	"MistralForCausalLM":    mistral,
	"Phi3ForCausalLM":       mistral,
	"Qwen2ForCausalLM":      qwen2,
	"Qwen2MoeForCausalLM":   qwen2Moe,
	"Qwen3ForCausalLM":      qwen3,
	"Qwen3MoeForCausalLM":   qwen3Moe,
	"MixtralForCausalLM":    mixtral,
	"DeepseekV2ForCausalLM": deepseek,
	"DeepseekV3ForCausalLM": deepseek,
	"Glm4MoeForCausalLM":    glm4Moe,
	"GptOssForCausalLM":     gptOss,
	"GemmaForCausalLM":      func(f *fields) decoder { return gemma(f, 2, false) },
	"Gemma2ForCausalLM":     func(f *fields) decoder { return gemma(f, 4, false) },
	"Gemma3ForCausalLM":     func(f *fields) decoder { return gemma(f, 4, true) },
	"GPT2LMHeadModel":       gpt2,
	"GPTNeoXForCausalLM":    gptNeoX,
}

// plain is a decoder with RMS norms and gated layers, without biases.
func plain(f *fields) decoder {
	d := decoder{
		hidden: f.integer("hidden_size", maxWidth), layers: f.integer("num_hidden_layers", maxLayers),
		vocab: f.integer("vocab_size", maxVocab), heads: f.integer("num_attention_heads", maxWidth),
		intermediate: f.integer("intermediate_size", maxWidth), gated: true, norms: 2, finalNorm: 1,
		tied: f.boolOr("tie_word_embeddings", false),
	}
	d.kvHeads = f.integerOr("num_key_value_heads", d.heads, maxWidth)
	if d.kvHeads == 0 {
		f.fail("num_key_value_heads must be at least 1")
	}
	return d
}

// headDim is given, or the width shared among the heads.
func (d *decoder) readHeadDim(f *fields) {
	switch {
	case f.has("head_dim"):
		d.headDim = f.integer("head_dim", maxWidth)
	case f.err == nil && d.hidden%d.heads != 0:
		f.fail("hidden_size %d is no multiple of num_attention_heads %d, and there is no head_dim", d.hidden, d.heads)
	case f.err == nil:
		d.headDim = d.hidden / d.heads
	}
}

func llama(f *fields) decoder {
	d := plain(f)
	d.readHeadDim(f)
	d.qkvBias = f.boolOr("attention_bias", false)
	d.outBias, d.mlpBias = d.qkvBias, f.boolOr("mlp_bias", false)
	return d
}

func mistral(f *fields) decoder {
	d := plain(f)
	f.integer("num_key_value_heads", maxWidth)
	d.readHeadDim(f)
	return d
}

func qwen2(f *fields) decoder {
	d := mistral(f)
	d.qkvBias = true
	return d
}

func qwen2Moe(f *fields) decoder {
	d := mistral(f)
	d.qkvBias = f.boolOr("qkv_bias", true)
	d.moe = &moe{
		experts: f.integer("num_experts", maxExperts), intermediate: f.integer("moe_intermediate_size", maxWidth),
		shared: f.integer("shared_expert_intermediate_size", maxWidth), sharedGate: true, sparse: qwenSparse(f),
	}
	return d
}

func qwen3(f *fields) decoder {
	d := plain(f)
	f.integer("num_key_value_heads", maxWidth)
	d.headDim = f.integer("head_dim", maxWidth)
	d.qkNorms, d.qkvBias = true, f.boolOr("attention_bias", false)
	d.outBias = d.qkvBias
	return d
}

func qwen3Moe(f *fields) decoder {
	d := qwen3(f)
	d.moe = &moe{
		experts: f.integer("num_experts", maxExperts), intermediate: f.integer("moe_intermediate_size", maxWidth), sparse: qwenSparse(f),
	}
	return d
}

// qwenSparse: every decoder_sparse_step-th layer has experts, but those that are named as dense.
func qwenSparse(f *fields) func(uint64) bool {
	step, dense := f.integerOr("decoder_sparse_step", 1, maxLayers), f.integers("mlp_only_layers")
	if step == 0 {
		f.fail("decoder_sparse_step must be at least 1")
		step = 1
	}
	return func(i uint64) bool { return (i+1)%step == 0 && !slices.Contains(dense, i) }
}

func mixtral(f *fields) decoder {
	d := mistral(f)
	d.moe = &moe{experts: f.integer("num_local_experts", maxExperts), intermediate: d.intermediate, sparse: func(uint64) bool { return true }}
	return d
}

// denseFirst reads the experts as DeepSeek's models and those made after them name them.
func denseFirst(f *fields) *moe {
	first, step := f.integerOr("first_k_dense_replace", 0, maxLayers), f.integerOr("moe_layer_freq", 1, maxLayers)
	if step == 0 {
		f.fail("moe_layer_freq must be at least 1")
		step = 1
	}
	width := f.integer("moe_intermediate_size", maxWidth)
	return &moe{
		experts: f.integer("n_routed_experts", maxExperts), intermediate: width,
		shared: mul(width, f.integerOr("n_shared_experts", 0, maxExperts)),
		sparse: func(i uint64) bool { return i >= first && i%step == 0 },
	}
}

func deepseek(f *fields) decoder {
	d := plain(f)
	d.mla = &mla{
		qRank: f.integerOr("q_lora_rank", 0, maxWidth), kvRank: f.integer("kv_lora_rank", maxWidth),
		nope: f.integer("qk_nope_head_dim", maxWidth), rope: f.integer("qk_rope_head_dim", maxWidth),
		value: f.integer("v_head_dim", maxWidth), bias: f.boolOr("attention_bias", false),
	}
	if f.has("n_routed_experts") {
		d.moe = denseFirst(f)
	}
	return d
}

func glm4Moe(f *fields) decoder {
	d := plain(f)
	f.integer("num_key_value_heads", maxWidth)
	d.headDim = f.integer("head_dim", maxWidth)
	d.qkvBias, d.qkNorms = f.boolOr("attention_bias", false), f.boolOr("use_qk_norm", false)
	d.moe = denseFirst(f)
	return d
}

func gptOss(f *fields) decoder {
	d := plain(f)
	f.integer("num_key_value_heads", maxWidth)
	d.headDim = f.integer("head_dim", maxWidth)
	d.qkvBias, d.sinks = f.boolOr("attention_bias", true), true
	d.outBias = d.qkvBias
	d.moe = &moe{
		experts: f.integer("num_local_experts", maxExperts), intermediate: d.intermediate, bias: true,
		sparse: func(uint64) bool { return true },
	}
	return d
}

func gemma(f *fields, norms uint64, qkNorms bool) decoder {
	d := plain(f)
	f.integer("num_key_value_heads", maxWidth)
	d.headDim, d.norms, d.qkNorms = f.integer("head_dim", maxWidth), norms, qkNorms
	d.tied = f.boolOr("tie_word_embeddings", true)
	d.qkvBias = f.boolOr("attention_bias", false)
	d.outBias = d.qkvBias
	return d
}

// gpt2 has names of its own.
func gpt2(f *fields) decoder {
	d := decoder{
		hidden: f.integer("n_embd", maxWidth), layers: f.integer("n_layer", maxLayers), vocab: f.integer("vocab_size", maxVocab),
		heads: f.integer("n_head", maxWidth), positions: f.integer("n_positions", maxVocab),
		qkvBias: true, outBias: true, mlpBias: true, norms: 4, finalNorm: 2, tied: f.boolOr("tie_word_embeddings", true),
	}
	d.kvHeads, d.intermediate = d.heads, f.integerOr("n_inner", mul(4, d.hidden), maxWidth)
	if d.intermediate == 0 {
		f.fail("n_inner must be at least 1")
	}
	d.readHeadDim(f)
	return d
}

func gptNeoX(f *fields) decoder {
	d := plain(f)
	d.kvHeads = d.heads
	d.readHeadDim(f)
	d.qkvBias = f.boolOr("attention_bias", true)
	d.outBias, d.mlpBias = d.qkvBias, true
	d.gated, d.norms, d.finalNorm = false, 4, 2
	return d
}

// model adds up the parts. Sizes that are 0 because a field was wrong make no part.
func (d decoder) model() Model {
	var m Model
	m.Embed = []Part{{"embedding", mul(d.vocab, d.hidden), d.vocab, Tensor}}
	if d.positions > 0 {
		m.Embed = append(m.Embed, Part{"positions", mul(d.positions, d.hidden), 1, Whole})
	}
	m.Head = []Part{{"norm", mul(d.finalNorm, d.hidden), 1, Whole}}
	if d.tied {
		m.Tied = mul(d.vocab, d.hidden)
	} else {
		m.Head = append(m.Head, Part{"head", mul(d.vocab, d.hidden), d.vocab, Tensor})
	}
	attention := d.attention()
	dense := slices.Concat(attention, mlp("mlp", d.hidden, d.intermediate, d.gated, d.mlpBias))
	var sparse Layer
	if d.moe != nil {
		sparse = slices.Concat(attention, d.moe.parts(d.hidden))
	}
	for i := range d.layers {
		if d.moe != nil && d.moe.sparse(i) {
			m.Layers = append(m.Layers, sparse)
		} else {
			m.Layers = append(m.Layers, dense)
		}
	}
	return m
}

// attention is that of one layer, with the layer's norms.
func (d decoder) attention() []Part {
	norms := []Part{{"norms", mul(d.norms, d.hidden), 1, Whole}}
	if d.mla != nil {
		return append(d.mla.parts(d.hidden, d.heads), norms...)
	}
	in := d.hidden
	if d.qkvBias {
		in++
	}
	parts := append(norms,
		Part{"queries", mul(d.heads, d.headDim, in), d.heads, Tensor},
		Part{"keys and values", mul(2, d.kvHeads, d.headDim, in), d.kvHeads, Tensor},
		Part{"output", mul(d.heads, d.headDim, d.hidden), d.heads, Tensor},
	)
	if d.outBias {
		parts = append(parts, Part{"output bias", d.hidden, 1, Whole})
	}
	if d.qkNorms {
		parts = append(parts, Part{"norms of queries and keys", mul(2, d.headDim), 1, Whole})
	}
	if d.sinks {
		parts = append(parts, Part{"sinks", d.heads, d.heads, Tensor})
	}
	return parts
}

func (a mla) parts(hidden, heads uint64) []Part {
	var parts []Part
	query, in := add(a.nope, a.rope), hidden
	if a.qRank > 0 {
		parts = append(parts, Part{"queries, down", add(mul(hidden, a.qRank), a.qRank), 1, Whole}) // with its norm
		in = a.qRank
	}
	kv := add(a.kvRank, a.rope)
	parts = append(parts,
		Part{"queries", mul(heads, query, in), heads, Tensor},
		Part{"keys and values, down", add(mul(hidden, kv), a.kvRank), 1, Whole}, // with its norm
		Part{"keys and values", mul(heads, add(a.nope, a.value), a.kvRank), heads, Tensor},
		Part{"output", mul(heads, a.value, hidden), heads, Tensor},
	)
	if a.bias {
		parts = append(parts, Part{"biases", add(a.qRank, kv, hidden), 1, Whole})
	}
	return parts
}

// mlp is the dense part of a layer.
func mlp(name string, hidden, intermediate uint64, gated, bias bool) []Part {
	if intermediate == 0 {
		return nil
	}
	up := uint64(1)
	if gated {
		up = 2
	}
	parts := []Part{{name, mul(up+1, hidden, intermediate), intermediate, Tensor}}
	if bias {
		parts = append(parts, Part{name + ", biases up", mul(up, intermediate), intermediate, Tensor}, Part{name + ", bias down", hidden, 1, Whole})
	}
	return parts
}

// parts are the router, the routed experts and the shared ones.
func (e moe) parts(hidden uint64) []Part {
	router, each := mul(e.experts, hidden), mul(3, hidden, e.intermediate)
	if e.bias {
		router, each = add(router, e.experts), add(each, mul(2, e.intermediate), hidden)
	}
	parts := []Part{{"router", router, 1, Whole}, {"experts", mul(e.experts, each), e.experts, Experts}}
	parts = append(parts, mlp("shared experts", hidden, e.shared, true, false)...)
	if e.sharedGate {
		parts = append(parts, Part{"gate of the shared experts", hidden, 1, Whole})
	}
	return parts
}
