package fanout

import (
	"os"
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	Child()
	os.Exit(m.Run())
}

// The thousand nodes are in test/clusters; this is the same, small enough for every day.
func TestOneControllerPausesManyNodes(t *testing.T) {
	Run(t, Scale{
		Nodes: 44, Ranks: 4, Fat: 24, Doomed: 3, Hosts: 2,
		Unit: 200 * time.Millisecond, Timeout: 2 * time.Second, AtOnce: 8, Patience: 250 * time.Millisecond,
	})
}
