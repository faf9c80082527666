// Package node is the ranks of this node as those see them who stand outside: where their control sockets
// are, who answers, and what can be said to all of them at once. The verbs of cmd/ebb and `ebb serve` are
// built on it.
//
//	places.go     where sockets are found
//	discover.go   who answers, and why who does not
//	selection.go  which ranks are meant
//	status.go     what they have where; disks.go and gpus.go, of the node
//	operate.go    pause and resume, and how it went on each rank
//	watch.go      what they do
//
// Everything is done on all ranks at the same time, each with its own deadline: a rank that hangs is named
// and holds up nobody. The package prints nothing.
package node

import (
	"fmt"
	"strings"
	"time"

	"github.com/ebb-offload/ebb/internal/control"
)

// Rank is a process with managed memory that answered on its control socket.
type Rank struct {
	control.Who
	Socket  string    `json:"socket"`
	Version string    `json:"ebb"` // of its library
	Started time.Time `json:"started"`
}

// Silent is a control socket on which nobody answered as a rank does. Who it was is known as far as the
// socket's name and the process tell.
type Silent struct {
	control.Who
	Socket string `json:"socket"`
	Why    string `json:"why"`
	Late   bool   `json:"late"` // it took the caller and said nothing in time: it hangs, or is stopped
	Dead   bool   `json:"dead"` // the process has ended for certain; its socket was removed
}

// Name is what a rank is called: "actor cell 0 rank 3", or "pid 4711" where no launcher told.
func Name(w control.Who) string {
	if w.Rank == "" {
		return fmt.Sprintf("pid %d", w.PID)
	}
	return strings.TrimSpace(fmt.Sprintf("%s cell %s rank %s", w.Role, orDash(w.Cell), w.Rank))
}

// FullName is Name with the process.
func FullName(w control.Who) string {
	if w.Rank == "" {
		return Name(w)
	}
	return fmt.Sprintf("%s (pid %d)", Name(w), w.PID)
}

// ShortName is Name for tables: "actor/0/3".
func ShortName(w control.Who) string {
	if w.Rank == "" {
		return fmt.Sprintf("pid %d", w.PID)
	}
	return fmt.Sprintf("%s/%s/%s", orDash(w.Role), orDash(w.Cell), w.Rank)
}

func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}
