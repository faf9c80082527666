package sizing

import (
	"encoding/json"
	"testing"
)

// Whatever the file holds: a model of a size that can be planned with, or an error in one piece.
func FuzzConfig(f *testing.F) {
	for name := range allConfigs(f) {
		f.Add(configText(f, name))
	}
	for _, text := range []string{
		`{"architectures":["LlamaForCausalLM"],"hidden_size":1e308,"vocab_size":-0}`, `{"architectures":[null]}`, `{"a":{"b":[[[[]]]]}}`, `NaN`,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		m, err := FromConfig(text)
		if err != nil {
			if err.Error() == "" {
				t.Error("an error that says nothing")
			}
			return
		}
		n := m.Parameters()
		if n == 0 || n > MaxParameters {
			t.Fatalf("%d parameters", n)
		}
		stages, err := Stages(m, alone(Parallel{}), mixed(ShardNone), 0)
		if err != nil {
			t.Fatalf("a single rank: %v", err)
		}
		if got := stages[0].Total(); got != 18*n {
			t.Fatalf("%d bytes for %d parameters", got, n)
		}
		for _, layer := range m.Layers {
			for _, part := range layer {
				if part.Units == 0 || part.Params%part.Units != 0 {
					t.Fatalf("part %+v cannot be divided", part)
				}
			}
		}
	})
}

// What is typed at flags is a value or an error.
func FuzzFlags(f *testing.F) {
	for _, text := range []string{"7B", "2.3-2.9", "80GiB", "8", "-", "1e309", "0x1p4", "NaN"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if n, err := ParseCount(text); err == nil && (n == 0 || n > MaxParameters) {
			t.Errorf("ParseCount(%q) = %d", text, n)
		}
		if r, err := ParseRate(text); err == nil && !(0 < r.Low && r.Low <= r.Typical*(1+1e-9) && r.Typical <= r.High*(1+1e-9)) {
			t.Errorf("ParseRate(%q) = %+v", text, r)
		}
		if n, err := ParseWays(text); err == nil && (n == 0 || n > maxRanks) {
			t.Errorf("ParseWays(%q) = %d", text, n)
		}
		if n, err := ParseSize(text); err == nil && n > 1<<60 {
			t.Errorf("ParseSize(%q) = %d", text, n)
		}
	})
}

func allConfigs(t testing.TB) map[string]json.RawMessage {
	configText(t, "gpt2")
	return configs
}
