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

// The thousand nodes are in test/clusters; this is the same, small enough for the race detector.
func TestOneControllerPausesManyNodes(t *testing.T) {
	if os.Getenv("EBB_TEST_LONG") == "" {
		t.Skip("runs with EBB_TEST_LONG=1 only; TestTheControllerOfTheDocs is its everyday form")
	}
	t.Parallel()
	Run(t, Scale{
		Nodes: 44, Ranks: 4, Fat: 24, Doomed: 3, Hosts: 2,
		Unit: 200 * time.Millisecond, Timeout: 2 * time.Second, AtOnce: 8, Patience: 250 * time.Millisecond,
	})
}
