// Package sizes says numbers of bytes in words, in the few forms in which ebb tells them. Memory is bought in powers
// of 1024 and disks in powers of 1000, so that where it matters both are told: the one that its reader compares first.
package sizes

import (
	"fmt"
	"strings"
)

var (
	binary  = []string{"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}
	decimal = []string{"kB", "MB", "GB", "TB", "PB", "EB"}
)

// scaled is a number of bytes in the largest unit of which it has one at least, and that unit; empty: it has fewer than
// one of the smallest.
func scaled(n uint64, base float64, units []string) (v float64, unit string) {
	v = float64(n)
	for _, u := range units {
		if v < base {
			break
		}
		v, unit = v/base, u
	}
	return v, unit
}

// bytes is a small number of them.
func bytes(n uint64) string {
	if n == 1 {
		return "1 byte"
	}
	return fmt.Sprintf("%d bytes", n)
}

// Binary is in powers of 1024, with one digit after the point: "37.3 GiB", "512 bytes".
func Binary(n uint64) string {
	v, unit := scaled(n, 1024, binary)
	if unit == "" {
		return bytes(n)
	}
	return fmt.Sprintf("%.1f %s", v, unit)
}

// Decimal is in powers of 1000, with two digits after the point: "40.05 GB", "512 bytes".
func Decimal(n uint64) string {
	v, unit := scaled(n, 1000, decimal)
	if unit == "" {
		return bytes(n)
	}
	return fmt.Sprintf("%.2f %s", v, unit)
}

// Exact is in powers of 1024, with up to two digits after the point and no zeros at the end, as sizes are given: "2 MiB",
// "1.25 GiB".
func Exact(n uint64) string {
	v, unit := scaled(n, 1024, binary)
	if unit == "" {
		return bytes(n)
	}
	return trimmed(v, 2) + " " + unit
}

// trimmed is a number with so many digits after the point at most, and no zeros at the end.
func trimmed(v float64, digits int) string {
	return strings.TrimSuffix(strings.TrimRight(fmt.Sprintf("%.*f", digits, v), "0"), ".")
}

// Both is of memory: "37.3 GiB (40.1 GB)", "64 MiB (67.1 MB)", "512 bytes".
func Both(n uint64) string {
	v, unit := scaled(n, 1024, binary)
	if unit == "" {
		return bytes(n)
	}
	w, other := scaled(n, 1000, decimal)
	return fmt.Sprintf("%s %s (%s %s)", trimmed(v, 1), unit, trimmed(w, 1), other)
}

// DecimalFirst is of what is transferred or stored, whose rates are in powers of 1000: "40.05 GB (37.30 GiB)",
// "33.6 MB (32.0 MiB)", "512 bytes".
func DecimalFirst(n uint64) string {
	switch {
	case n >= 1e9:
		return fmt.Sprintf("%.2f GB (%.2f GiB)", float64(n)/1e9, float64(n)/(1<<30))
	case n >= 1e6:
		return fmt.Sprintf("%.1f MB (%.1f MiB)", float64(n)/1e6, float64(n)/(1<<20))
	}
	return bytes(n)
}

// Unit is the one unit of all sizes of a table.
type Unit struct {
	Name string
	Size float64
}

// UnitFor is the unit in which sizes up to the largest one are easy to read.
func UnitFor(largest uint64) Unit {
	if largest >= 1e9 {
		return Unit{"GB", 1e9}
	}
	return Unit{"MB", 1e6}
}

// Of is a size in at most 6 characters.
func (u Unit) Of(n uint64) string { return Short(float64(n) / u.Size) }

// Short is a number in at most 6 characters, for as long as it is below a million.
func Short(x float64) string {
	switch {
	case x >= 1000:
		return fmt.Sprintf("%.0f", x)
	case x >= 100:
		return fmt.Sprintf("%.1f", x)
	}
	return fmt.Sprintf("%.2f", x)
}
