package e2e

import "testing"

func TestAPauseGivesBackTheIdleMemoryOfPoolsThatTheProgramMade(t *testing.T) {
	succeed(t, newNode(t, 256).victim(t, "pools.py"))
}
