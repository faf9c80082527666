package report

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
)

// Raw is what the disk does without ebb, in GB/s (10⁹ bytes a second); 0 where it is not known.
type Raw struct {
	Write float64 `json:"write_gb_per_s,omitempty"`
	Read  float64 `json:"read_gb_per_s,omitempty"`
	From  string  `json:"from"`
}

// maxBench is the longest result of `ebb bench` that is read, in bytes.
const maxBench = 64 << 20

// ReadBench takes the rates of the raw disk from the JSON of `ebb bench`.
func ReadBench(path string) (Raw, error) {
	f, err := open(path)
	if err != nil {
		return Raw{}, err
	}
	defer f.Close()
	var result struct {
		MessageType string `json:"message_type"`
		Points      []struct {
			Operation, Library string
			Bytes, Seconds     float64
		}
		Figures []struct {
			What, Library, Unit string
			Median              float64
		}
	}
	if err := json.NewDecoder(io.LimitReader(f, maxBench)).Decode(&result); err != nil {
		return Raw{}, fmt.Errorf("read %s: %w: it is not what ebb bench --json writes", path, err)
	}
	if result.MessageType != "bench" {
		return Raw{}, fmt.Errorf("read %s: it is not what ebb bench --json writes", path)
	}
	rates := map[string][]float64{}
	for _, p := range result.Points {
		if p.Library == "raw" && p.Seconds > 0 && p.Bytes > 0 {
			rates[p.Operation] = append(rates[p.Operation], p.Bytes/p.Seconds/1e9)
		}
	}
	raw := Raw{Write: median(rates["write"]), Read: median(rates["read"]), From: path}
	for _, f := range result.Figures { // of a run of the row raw alone
		if f.Library != "raw" || f.Unit != "GB/s" {
			continue
		}
		switch {
		case f.What == "raw write in place" && raw.Write == 0:
			raw.Write = f.Median
		case f.What == "raw read" && raw.Read == 0:
			raw.Read = f.Median
		}
	}
	if raw.Write <= 0 && raw.Read <= 0 {
		return Raw{}, fmt.Errorf("read %s: it has no rate of the raw disk: measure with the rows pause, resume or raw", path)
	}
	return raw, nil
}

func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	slices.Sort(values)
	return values[len(values)/2]
}
