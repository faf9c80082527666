// Package sizing says beforehand how much memory the ranks of a training job hold, where it can be
// parked, and how long that takes. It is arithmetic on what it is given: a Model (from the
// config.json of Hugging Face or a number of parameters), how it is divided (Parallel), what is kept
// for each parameter (State), and a Node. It looks at no machine and reads no file.
//
// The order is that of the data: config.go and families.go make a Model; parallel.go says which parts
// of it a rank has; state.go makes bytes of them; node.go adds up the ranks of a node; target.go says
// which target they fit and, with rate.go, in how many seconds; wear.go what that does to a drive.
//
// Sizes are bytes, rates are bytes a second, times are seconds.
package sizing
