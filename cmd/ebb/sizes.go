package main

import "github.com/ebb-offload/ebb/internal/sizes"

// unit is the unit of the sizes of a table.
type unit struct {
	name string
	sizes.Unit
}

// unitFor is the unit in which sizes up to the largest one are easy to read.
func unitFor(largest uint64) unit {
	u := sizes.UnitFor(largest)
	return unit{u.Name, u}
}

// of is a size in at most 6 characters.
func (u unit) of(bytes uint64) string { return u.Of(bytes) }

// short is a number in at most 6 characters, for as long as it is below a million.
func short(x float64) string { return sizes.Short(x) }

// both is a size in powers of ten and of two: "40.05 GB (37.30 GiB)".
func both(bytes uint64) string { return sizes.DecimalFirst(bytes) }
