package sizing

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The sizes of published models as their configurations state them, and the numbers of parameters
// that were published for them.
func TestPublishedModelsHaveTheirPublishedParameters(t *testing.T) {
	for name, want := range map[string]uint64{
		"llama-3-8b":       8_030_261_248,
		"llama-3-70b":      70_553_706_496,
		"llama-3.2-1b":     1_235_814_400,
		"mistral-7b":       7_241_732_096,
		"phi-3-mini":       3_821_079_552,
		"qwen2.5-7b":       7_615_616_512,
		"qwen2.5-0.5b":     494_032_768,
		"qwen1.5-moe":      14_315_784_192,
		"qwen3-0.6b":       596_049_920,
		"qwen3-8b":         8_190_735_360,
		"qwen3-30b-a3b":    30_532_122_624,
		"qwen3-235b-a22b":  235_093_634_560,
		"mixtral-8x7b":     46_702_792_704,
		"deepseek-v2-lite": 15_706_484_224,
		"deepseek-v2":      235_741_434_880,
		"deepseek-v3":      671_026_404_352, // and 14,848 biases of the router, which are no parameters in transformers
		"gpt-oss-20b":      20_914_757_184,
		"gpt-oss-120b":     116_829_156_672,
		"gemma-2b":         2_506_172_416,
		"gemma-7b":         8_537_680_896,
		"gemma-2-9b":       9_241_705_984,
		"gemma-3-1b":       999_885_952,
		"gpt2":             124_439_808,
		"gpt-neox-20b":     20_554_567_680,
		"pythia-70m":       70_426_624,
	} {
		t.Run(name, func(t *testing.T) {
			if got := config(t, name).Parameters(); got != want {
				t.Errorf("%d parameters, published are %d (%+d)", got, want, int64(got-want))
			}
		})
	}
}

// Published in whole billions: 106 B.
func TestAModelPublishedInBillions(t *testing.T) {
	if got := Count(config(t, "glm-4.5-air").Parameters() / 1e9 * 1e9); got != "106B" {
		t.Errorf("GLM-4.5-Air has %s parameters", got)
	}
}

var configs map[string]json.RawMessage

// config is a model of testdata/configs.json.
func config(t testing.TB, name string) Model {
	t.Helper()
	m, err := FromConfig(configText(t, name))
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return m
}

func configText(t testing.TB, name string) []byte {
	t.Helper()
	if configs == nil {
		text, err := os.ReadFile(filepath.Join("testdata", "configs.json"))
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(text, &configs); err != nil {
			t.Fatal(err)
		}
	}
	if configs[name] == nil {
		t.Fatalf("testdata/configs.json has no %s", name)
	}
	return configs[name]
}

// Each says what is wrong, and with what to plan instead.
func TestConfigurationsThatCannotBePlannedWith(t *testing.T) {
	llama := `"architectures":["LlamaForCausalLM"],"hidden_size":64,"num_hidden_layers":2,"num_attention_heads":4,"intermediate_size":128,"vocab_size":100`
	with := func(more string) string { return "{" + llama + "," + more + "}" }
	if _, err := FromConfig([]byte("{" + llama + "}")); err != nil {
		t.Fatalf("the one that is right: %v", err)
	}
	for text, says := range map[string]string{
		``:                                       "not a JSON object",
		`[]`:                                     "not a JSON object",
		`null`:                                   "names no model",
		`{}`:                                     "names no model",
		`{"architectures":[]}`:                   "names no model",
		`{"architectures":"Llama"}`:              `"architectures" must be a list`,
		`{"architectures":["LlamaForCausalLM"]}`: "hidden_size is missing",
		`{"architectures":["Mamba2ForCausalLM"]}`:      `"Mamba2ForCausalLM" is not known`,
		`{"architectures":["X"],"text_config":{}}`:     "parts for other things than text",
		`{"architectures":["\u001b[31mX\n"]}`:          `"?[31mX?"`,
		"{" + llama + `} x`:                            "something follows",
		with(`"vocab_size":0`):                         "vocab_size must be a whole number from 1",
		with(`"vocab_size":null`):                      "vocab_size is missing",
		with(`"vocab_size":-1`):                        "vocab_size must be a whole number",
		with(`"vocab_size":1e30`):                      "vocab_size must be a whole number",
		with(`"vocab_size":1.5`):                       "vocab_size must be a whole number",
		with(`"vocab_size":"100"`):                     "vocab_size must be a whole number",
		with(`"vocab_size":{"a":[1]}`):                 "vocab_size must be a whole number",
		with(`"vocab_size":NaN`):                       "not a JSON object",
		with(`"num_hidden_layers":99999999`):           "num_hidden_layers must be a whole number",
		with(`"num_attention_heads":3`):                "no multiple of num_attention_heads",
		with(`"num_key_value_heads":0`):                "num_key_value_heads must be at least 1",
		with(`"tie_word_embeddings":"yes"`):            "tie_word_embeddings must be true or false",
		with(`"architectures":["Qwen3ForCausalLM"]`):   "num_key_value_heads is missing",
		with(`"architectures":["MixtralForCausalLM"]`): "num_key_value_heads is missing",
		with(`"hidden_size":16777216,"intermediate_size":16777216,"num_hidden_layers":8192`): "which is no model",
		strings.Repeat(`{"a":`, 20000) + "1" + strings.Repeat("}", 20000):                    "not a JSON object",
		strings.Repeat(" ", MaxConfig+1):                                                     "which no config.json has",
	} {
		_, err := FromConfig([]byte(text))
		var refused *ConfigError
		if !errors.As(err, &refused) || !strings.Contains(err.Error(), says) {
			t.Errorf("%.120s: %v, want %q", text, err, says)
		}
		if err != nil && !strings.Contains(err.Error(), "--params") && !strings.Contains(err.Error(), "name the model's config.json") && !strings.Contains(err.Error(), `"architectures" must be a list`) {
			t.Errorf("%.120s: %v says nothing about what to do", text, err)
		}
	}
}

func TestWhatIsNotCountedIsSaid(t *testing.T) {
	if notes := config(t, "deepseek-v3").Notes; len(notes) != 1 || !strings.Contains(notes[0], "num_nextn_predict_layers") {
		t.Errorf("%q", notes)
	}
}
