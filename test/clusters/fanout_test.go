package clusters

import (
	"testing"
	"time"

	"github.com/ebb-offload/ebb/test/clusters/fanout"
)

func init() { fanout.Child() } // the parts of the cluster are this program, started again

// One controller pauses a thousand nodes of eight ranks, of which some are late, failing or gone, and brings the
// others back (docs/clusters.md). What holds of each node and rank is in package fanout. The figures that it prints
// are those of docs/benchmarks.md.
func TestOneControllerPausesAThousandNodes(t *testing.T) {
	fanout.Run(t, fanout.Scale{
		Nodes: 1000, Ranks: 8, Fat: 128, Doomed: 20, Hosts: 10,
		Unit: time.Second, Timeout: 8 * time.Second, AtOnce: 128, Patience: 250 * time.Millisecond,
	})
}
