package e2e

import "testing"

func TestAResumeSaysWhoHoldsTheMemoryAndTakesNone(t *testing.T) {
	for _, holders := range []string{"1", "3"} {
		if holders == "1" && !long() {
			continue
		}
		t.Run(holders, func(t *testing.T) {
			n := newNode(t, 64)
			n.env = []string{"SOFTGPU_GRANULARITY_KB=64", "TMS_DISK_BACKUP_CHUNK_MB=2"}
			succeed(t, n.victim(t, "holders.py", holders))
			wantNoFiles(t, n.disk)
		})
	}
}
