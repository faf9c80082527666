package node

import (
	"context"
	"sync"

	"github.com/ebb-offload/ebb/internal/control"
	"github.com/ebb-offload/ebb/internal/control/client"
)

// Watch calls tell with what the ranks do, never twice at a time, until the context ends or all ranks have. A
// rank that could not be listened to, or whose connection ends without a word, ends with an EventExit that has
// an Error.
func Watch(ctx context.Context, ranks []Rank, tell func(control.Event)) {
	var one sync.Mutex // held while tell is called
	said := func(e control.Event) {
		one.Lock()
		defer one.Unlock()
		tell(e)
	}
	var all sync.WaitGroup
	for _, rank := range ranks {
		all.Go(func() { watch(ctx, rank, said) })
	}
	all.Wait()
}

func watch(ctx context.Context, rank Rank, tell func(control.Event)) {
	end := func(err error) {
		if ctx.Err() == nil {
			tell(control.Event{V: control.Version, Who: rank.Who, Kind: control.EventExit, Error: reason(err, rank.PID)})
		}
	}
	hello, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	c, err := client.Dial(hello, rank.Socket)
	if err != nil {
		end(err)
		return
	}
	defer c.Close()
	events, err := c.Events(hello)
	if err != nil {
		end(err)
		return
	}
	exited := false
	for {
		select {
		case <-ctx.Done():
			return
		case event, more := <-events:
			if !more {
				if !exited {
					end(client.ErrEnded)
				}
				return
			}
			exited = exited || event.Kind == control.EventExit
			tell(event)
		}
	}
}
