package e2e

import (
	"fmt"
	"strings"
	"testing"
)

var backupModes = []string{"disk", "pinned", "mmap", "none"}

func TestTwoHundredCyclesLeakNothing(t *testing.T) {
	for _, retain := range []string{"retain", "release"} {
		t.Run(retain, func(t *testing.T) {
			n := newNode(t, 256)
			t.Log("\n" + succeed(t, n.victim(t, "endurance_cycles.py", retain)))
			wantNoFiles(t, n.disk)
		})
	}
}

func TestHostMemoryComesBackAfterACycleUnlessItIsRetained(t *testing.T) {
	for _, backend := range []string{"pinned", "mmap"} {
		for _, retain := range []string{"release", "retain"} {
			t.Run(backend+" "+retain, func(t *testing.T) {
				n := newNode(t, 600)
				t.Log("\n" + succeed(t, n.victim(t, "endurance_resident.py", backend, retain)))
			})
		}
	}
}

func TestWorkOnNonBlockingStreamsIsInTheBackup(t *testing.T) {
	for _, latency := range []string{"50", "hold"} {
		for _, backup := range []string{"disk", "pinned", "mmap"} {
			t.Run(fmt.Sprintf("%s latency %s", backup, latency), func(t *testing.T) {
				n := newNode(t, 64)
				n.env = []string{"SOFTGPU_LATENCY_US=" + latency, "SOFTGPU_GRANULARITY_KB=64"}
				t.Log(strings.TrimSpace(succeed(t, n.victim(t, "endurance_streams.py", backup))))
				wantNoFiles(t, n.disk)
			})
		}
	}
}

func TestAGibibyteComesBack(t *testing.T) {
	if !long() {
		t.Skip("only in the long form")
	}
	for _, mode := range backupModes {
		t.Run(mode, func(t *testing.T) {
			n := newNode(t, 1100)
			succeed(t, n.victim(t, "endurance_large.py", mode))
			wantNoFiles(t, n.disk)
		})
	}
}
