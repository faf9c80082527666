package server

import (
	"slices"

	"github.com/ebb-offload/ebb/internal/control"
)

// remembered is how many pauses and resumes are remembered by their ids.
const remembered = 64

// Ask is a request as the handler gets it.
type Ask struct {
	control.Request
	// Gone is closed when every connection that asked has ended.
	Gone <-chan struct{}
}

// Answer is what the handler makes of a request: a result, or an error. Withdrawn: nothing was begun, since
// all who asked were gone.
type Answer struct {
	Result    any
	Err       *control.Error
	Withdrawn bool
}

// call is a request that is carried out, or was. Its fields are guarded by Server.mu.
type call struct {
	request control.Request
	asking  []*conn // the connections that wait for the answer; one may be here several times
	leaving []*conn // those that withdrew it as the last who asked, and wait to hear whether it had begun
	gone    chan struct{}
	left    bool   // gone is closed
	reply   []byte // once it is done
}

// same reports whether a request with the same id is the same request.
func (c *call) same(r control.Request) bool {
	return c.request.Cmd == r.Cmd && slices.Equal(c.request.Tags, r.Tags)
}

// calls are the requests under way, and the pauses and resumes that are remembered.
type calls struct {
	under map[*call]bool
	byID  map[string]*call
	order []string // ids, the oldest first
}

// moves reports whether a command is one whose id is remembered.
func moves(cmd string) bool { return cmd == control.CmdPause || cmd == control.CmdResume }

func (c *calls) find(r control.Request) *call {
	if r.ID == "" || !moves(r.Cmd) {
		return nil
	}
	return c.byID[r.ID]
}

// add enters a new call. The oldest that are done are forgotten.
func (c *calls) add(n *call) {
	c.under[n] = true
	if n.request.ID == "" || !moves(n.request.Cmd) {
		return
	}
	c.byID[n.request.ID] = n
	c.order = append(c.order, n.request.ID)
	for i := 0; i < len(c.order) && len(c.order) > remembered; {
		if id := c.order[i]; c.byID[id].reply != nil {
			delete(c.byID, id)
			c.order = slices.Delete(c.order, i, i+1)
		} else {
			i++
		}
	}
}

// forget forgets a call that did nothing.
func (c *calls) forget(n *call) {
	delete(c.under, n)
	if id := n.request.ID; c.byID[id] == n {
		delete(c.byID, id)
		c.order = slices.DeleteFunc(c.order, func(other string) bool { return other == id })
	}
}

// moving is how many pauses and resumes are under way.
func (c *calls) moving() (n int) {
	for u := range c.under {
		if moves(u.request.Cmd) {
			n++
		}
	}
	return n
}
