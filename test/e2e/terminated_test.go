package e2e

import (
	"syscall"
	"testing"
)

// A process that waits in cudaFree for as long as a device works or a disk does not answer can be
// ended as ever.
func TestAProcessThatWaitsInTheEngineIsTerminated(t *testing.T) {
	for what, env := range map[string][]string{
		"device": nil,
		"pause":  {"EBB_FAULT_FILES=pwrite:*:hang", "EBB_IO_TIMEOUT=0"},
	} {
		t.Run(what, func(t *testing.T) {
			n := newNode(t, 64)
			n.env = env
			o := run(t, n.victim(t, "terminated.py", what))
			if o.status != 128+int(syscall.SIGTERM) || o.stdout != "frees\n" {
				t.Errorf("want it to be terminated while it waits, got %v", o)
			}
		})
	}
}
