// Package fanout is a cluster on one machine: many nodes, each an `ebb serve` over ranks, and one controller that
// pauses them all. Servers and ranks' sockets are ebb's own code (internal/serve, node, control); what stands behind
// a rank's socket is a script in place of the engine, which takes the time that a safe point and a disk would take.
// Some ranks never come to a safe point, some have a disk that is slow or full, some die or hang; some nodes are not
// there, hang, are killed in the midst of a pause, or have their `ebb serve` started again.
//
//	script.go      who fares how
//	rank.go        a rank
//	nodes.go       a process with many nodes
//	controller.go  the process that asks them all
//	cluster.go     starts both, and compares what they say
//
// The controller keeps to what docs/clusters.md tells writers of controllers.
package fanout

import (
	"encoding/json"
	"fmt"
	"os"
)

// variable says which part of the cluster a process is, if it is one.
const variable = "EBB_TEST_FANOUT"

// Child makes this process a part of a cluster and ends it, if it was started as one. A test binary calls it first.
func Child() {
	var err error
	switch part := os.Getenv(variable); part {
	case "":
		return
	case "nodes":
		err = hostNodes(os.Stdin, os.Stdout)
	case "controller":
		err = control(os.Stdin, os.Stdout)
	default:
		err = fmt.Errorf("no part of a cluster: %q", part)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "fanout:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// say writes one message to the process that started this one.
func say(out *os.File, message any) error { return json.NewEncoder(out).Encode(message) }
