// Package version has the version of this tree, for its Go programs; the C ones have it from
// abi/ebb_engine.h, with which a test compares it.
package version

// Version of ebb.
const Version = "0.1.0"
