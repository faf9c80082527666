package e2e

import (
	"strings"
	"testing"
)

func TestHandlersRunWhileAFreeWaitsForTheDevice(t *testing.T) {
	if out := succeed(t, newNode(t, 64).victim(t, "handlers.py")); !strings.Contains(out, "freed") {
		t.Error(out)
	}
}
