package sizing

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/dustin/go-humanize"
)

// leastBare is the least number of parameters that is taken without a unit: below it, the unit was forgotten.
const leastBare = 1e6

// ParseCount parses a number of parameters: 7B, 0.6B, 124M, 7000000000.
func ParseCount(s string) (uint64, error) {
	unit, text := 1.0, strings.TrimSpace(s)
	for letter, size := range map[string]float64{"k": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12} {
		if rest, ok := strings.CutSuffix(strings.ToUpper(text), strings.ToUpper(letter)); ok {
			unit, text = size, rest
			break
		}
	}
	n, err := strconv.ParseFloat(text, 64)
	if n *= unit; err != nil || !(n >= 1 && n <= MaxParameters) {
		return 0, fmt.Errorf("must be a number of parameters, as 7B, 0.6B or 124M")
	}
	if unit == 1 && n < leastBare {
		return 0, fmt.Errorf("is no model: give the unit, as %sB or %sM", text, text)
	}
	return uint64(n + 0.5), nil
}

// ParseSize parses a size such as 80GiB or 512GB, or bytes. A number of bytes that is less than 1 GiB is taken for a
// size whose unit was forgotten: all of these are of memory and disks of whole machines.
func ParseSize(s string) (uint64, error) {
	n, err := humanize.ParseBytes(s)
	if err != nil || strings.HasPrefix(strings.TrimSpace(s), "-") || n > 1<<60 {
		return 0, fmt.Errorf("must be a number of bytes, or a size such as 512GiB or 2TB")
	}
	if text := strings.TrimSpace(s); text != "0" && n < 1<<30 && !strings.ContainsAny(text, "bBkKmMgGtTpPeE") {
		return 0, fmt.Errorf("is a number of bytes without a unit: give one, as %sGiB", text)
	}
	return n, nil
}

// ParseWays parses a degree of parallelism or a number of ranks.
func ParseWays(s string) (uint64, error) {
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil || n < 1 || n > maxRanks {
		return 0, fmt.Errorf("must be a whole number from 1 to %d", maxRanks)
	}
	return n, nil
}

// ParsePositive makes a parser of a number above 0 of something, as of days, seconds and drive writes.
func ParsePositive(of string) func(string) (float64, error) {
	return func(s string) (float64, error) {
		n, err := strconv.ParseFloat(s, 64)
		if err != nil || !(n > 0 && n <= 1e12) {
			return 0, fmt.Errorf("must be a number of %s above 0, without a unit", of)
		}
		return n, nil
	}
}

// Both is a number of bytes for people, in both kinds of units: "45.2 GiB (48.5 GB)".
func Both(n uint64) string {
	two, ten := "GiB", "GB"
	a, b := float64(n)/(1<<30), float64(n)/1e9
	switch {
	case n < 1<<30:
		two, ten, a, b = "MiB", "MB", float64(n)/(1<<20), float64(n)/1e6
	case n >= 10<<40:
		two, ten, a, b = "TiB", "TB", float64(n)/(1<<40), float64(n)/1e12
	}
	return fmt.Sprintf("%.1f %s (%.1f %s)", a, two, b, ten)
}
