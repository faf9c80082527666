package sizing

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// MaxConfig is the largest config.json that is read, in bytes.
const MaxConfig = 4 << 20

// ConfigError says why a config.json cannot be planned with, and what to do.
type ConfigError struct {
	Text string
}

func (e *ConfigError) Error() string { return e.Text }

func configErrorf(format string, args ...any) *ConfigError {
	return &ConfigError{Text: fmt.Sprintf(format, args...)}
}

// FromConfig makes a Model of the config.json of a Hugging Face model. The error is a *ConfigError.
func FromConfig(text []byte) (Model, error) {
	if len(text) > MaxConfig {
		return Model{}, configErrorf("it has %d bytes, which no config.json has: name the model's config.json", len(text))
	}
	f := &fields{}
	d := json.NewDecoder(bytes.NewReader(text))
	if err := d.Decode(&f.values); err != nil {
		return Model{}, configErrorf("it is not a JSON object: %s; name the model's config.json", strings.Join(strings.Fields(err.Error()), " "))
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return Model{}, configErrorf("something follows the JSON object; name the model's config.json")
	}
	name := f.architecture()
	if f.err != nil {
		return Model{}, f.err
	}
	read := families[name]
	if read == nil {
		return Model{}, unknownArchitecture(name, f)
	}
	m := read(f).model()
	m.Name = name
	if f.err != nil {
		f.err.Text += " (" + name + "); correct it, or give the number of parameters (--params)"
		return Model{}, f.err
	}
	if n := m.Parameters(); n > MaxParameters || n == 0 {
		return Model{}, configErrorf("its sizes make %.3g parameters, which is no model (%s); correct it, or give the number of parameters (--params)", float64(n), name)
	}
	if f.has("quantization_config") {
		m.Notes = append(m.Notes, "quantization_config is not looked at: --weights-dtype says what the actor holds")
	}
	if n := f.integerOr("num_nextn_predict_layers", 0, maxLayers); n > 0 {
		m.Notes = append(m.Notes, fmt.Sprintf("num_nextn_predict_layers %d: the layers that predict further tokens are not counted", n))
	}
	return m, nil
}

// neededFields are what the families have in common.
const neededFields = "hidden_size, num_hidden_layers, num_attention_heads, intermediate_size, vocab_size"

func unknownArchitecture(name string, f *fields) *ConfigError {
	var known []string
	for n := range families {
		known = append(known, n)
	}
	slices.Sort(known)
	if name == "" {
		return configErrorf(`it names no model: "architectures" must be a list of one of %s, with %s; or give the number of parameters (--params)`,
			strings.Join(known, ", "), neededFields)
	}
	more := ""
	if f.has("text_config") || f.has("vision_config") || f.has("audio_config") {
		more = " (it has parts for other things than text)"
	}
	return configErrorf("architecture %q is not known%s: give the number of parameters (--params); known are %s, each with %s",
		printable(name), more, strings.Join(known, ", "), neededFields)
}

// printable is a text of a file that is shown to a person.
func printable(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return '?'
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
	if len(s) > 64 {
		s = strings.ToValidUTF8(s[:64], "") + "…"
	}
	return s
}

// fields are the members of a config.json. The first one that is wrong is kept; what is read after
// it is 0.
type fields struct {
	values map[string]json.RawMessage
	err    *ConfigError
}

func (f *fields) fail(format string, args ...any) {
	if f.err == nil {
		f.err = configErrorf(format, args...)
	}
}

// has reports whether a field is there; null counts as not there, as in transformers.
func (f *fields) has(name string) bool {
	v, ok := f.values[name]
	return ok && string(v) != "null"
}

// architecture is the first of "architectures".
func (f *fields) architecture() string {
	if !f.has("architectures") {
		return ""
	}
	var list []string
	if json.Unmarshal(f.values["architectures"], &list) != nil {
		f.fail(`"architectures" must be a list of names`)
		return ""
	}
	if len(list) == 0 {
		return ""
	}
	return list[0]
}

// integer is a field that must be there, from 1 to high.
func (f *fields) integer(name string, high uint64) uint64 {
	if !f.has(name) {
		f.fail("%s is missing", name)
		return 0
	}
	n := f.integerOr(name, 0, high)
	if n == 0 {
		f.fail("%s must be a whole number from 1 to %d", name, high)
	}
	return n
}

// integerOr is a field from 0 to high, or what stands for it where it is missing.
func (f *fields) integerOr(name string, missing, high uint64) uint64 {
	if !f.has(name) {
		return missing
	}
	var n uint64
	if json.Unmarshal(f.values[name], &n) != nil || n > high {
		f.fail("%s must be a whole number of at most %d, and is %s", name, high, printable(string(f.values[name])))
		return 0
	}
	return n
}

func (f *fields) boolOr(name string, missing bool) bool {
	if !f.has(name) {
		return missing
	}
	var b bool
	if json.Unmarshal(f.values[name], &b) != nil {
		f.fail("%s must be true or false, and is %s", name, printable(string(f.values[name])))
	}
	return b
}

func (f *fields) integers(name string) []uint64 {
	var list []uint64
	if f.has(name) && json.Unmarshal(f.values[name], &list) != nil {
		f.fail("%s must be a list of whole numbers", name)
	}
	return list
}
