package fingerprint

// Sum is the fingerprint of one block.
type Sum [2]uint64
