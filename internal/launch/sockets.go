package launch

import (
	"fmt"
	"os"

	"github.com/ebb-offload/ebb/internal/control"
)

// sweepSockets removes the control sockets that ended processes left, those of this run's ranks among them.
func sweepSockets(getenv func(string) string, say func(string)) {
	if _, err := control.RemoveDead(control.Dirs(getenv, os.Geteuid()), false); err != nil {
		say(fmt.Sprintf("cannot remove all that dead processes left: %s", oneLine(err)))
	}
}
