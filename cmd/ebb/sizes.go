package main

import "fmt"

// unit is the unit of the sizes of a table.
type unit struct {
	name string
	size float64
}

// unitFor is the unit in which sizes up to the largest one are easy to read.
func unitFor(largest uint64) unit {
	if largest >= 1e9 {
		return unit{"GB", 1e9}
	}
	return unit{"MB", 1e6}
}

// of is a size in at most 6 characters.
func (u unit) of(bytes uint64) string { return short(float64(bytes) / u.size) }

// short is a number in at most 6 characters, for as long as it is below a million.
func short(x float64) string {
	switch {
	case x >= 1000:
		return fmt.Sprintf("%.0f", x)
	case x >= 100:
		return fmt.Sprintf("%.1f", x)
	}
	return fmt.Sprintf("%.2f", x)
}

// both is a size in powers of ten and of two: "40.05 GB (37.30 GiB)".
func both(bytes uint64) string {
	switch {
	case bytes >= 1e9:
		return fmt.Sprintf("%.2f GB (%.2f GiB)", float64(bytes)/1e9, float64(bytes)/(1<<30))
	case bytes >= 1e6:
		return fmt.Sprintf("%.1f MB (%.1f MiB)", float64(bytes)/1e6, float64(bytes)/(1<<20))
	}
	return fmt.Sprintf("%d bytes", bytes)
}
