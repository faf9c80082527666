package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/ebb-offload/ebb/internal/control"
	"github.com/ebb-offload/ebb/internal/node"
)

// lookAgain is the time between two looks for ranks and what they have.
const lookAgain = 2 * time.Second

func newWatch() *cobra.Command {
	var ranks rankFlags
	cmd := &cobra.Command{
		Use:   "watch",
		Short: "Show what the ranks of this node do, as they do it",
		Long: `Shows what running ranks have where, and their pauses and resumes while they run: bytes, rate and a
bar for each rank. Ranks that start later appear by themselves. Where the output is no terminal each
event is one line; with --json, one JSON document a line.

Ends when all ranks have ended, or with Ctrl-C; with 3 when no rank is running.`,
		Example: `  ebb watch
  ebb watch --role actor | tee watch.log`,
		Args:    noArgs,
		PreRunE: func(cmd *cobra.Command, _ []string) error { return fromEnvironment(cmd) },
		RunE:    func(cmd *cobra.Command, _ []string) error { return watchVerb(cmd.Context(), &ranks) },
	}
	ranks.add(cmd.Flags())
	return cmd
}

func watchVerb(ctx context.Context, flags *rankFlags) error {
	ctx, stop := untilSignal(ctx)
	defer stop()
	found, err := flags.find(ctx)
	if err != nil {
		return ended(ctx, err)
	}
	found.saySilent()
	w := &watching{flags: flags}
	screen := newBoard(os.Stdout)
	switch {
	case flags.asJSON:
		w.tell = func(e control.Event) { printEvent(stdout, e) }
	case screen.shown():
		now := newLive(found.ranks)
		w.tell, w.seen = now.event, now.statuses
		over := now.show(screen)
		defer func() { // what it was at the end stays
			over()
			screen.draw(now.lines(textWidth, len(found.ranks), time.Now()))
		}()
	default:
		w.tell = func(e control.Event) { fmt.Fprintln(stdout, eventLine(e)) }
	}
	w.run(ctx, found.ranks)
	return nil
}

// watching is one run of ebb watch.
type watching struct {
	flags *rankFlags
	tell  func(control.Event)
	seen  func([]node.RankStatus) // nil: not wanted

	one sync.Mutex // held while tell is called
}

// look is what one look at the node found.
type look struct {
	ranks    []node.Rank
	statuses []node.RankStatus
}

// run watches ranks, and those that come later, until all have ended or the context has.
func (w *watching) run(ctx context.Context, ranks []node.Rank) {
	watched := map[string]bool{} // by socket
	ends, looks := make(chan string), make(chan look)
	start := func(ranks []node.Rank) {
		for _, r := range ranks {
			if watched[r.Socket] {
				continue
			}
			watched[r.Socket] = true
			go func() {
				node.Watch(ctx, []node.Rank{r}, func(e control.Event) {
					w.one.Lock()
					defer w.one.Unlock()
					w.tell(e)
				})
				ends <- r.Socket
			}()
		}
	}
	again := func() { looks <- w.look(ctx) }
	start(ranks)
	go again()
	looking := true
	tick := time.NewTicker(lookAgain)
	defer tick.Stop()
	for len(watched) > 0 || looking {
		select {
		case socket := <-ends:
			delete(watched, socket)
		case l := <-looks:
			looking = false
			if ctx.Err() == nil {
				start(l.ranks)
			}
			if w.seen != nil {
				w.seen(l.statuses)
			}
		case <-tick.C:
			if !looking && ctx.Err() == nil {
				looking = true
				go again()
			}
		}
	}
}

// look finds the ranks that are meant now, and what they have where if that is wanted.
func (w *watching) look(ctx context.Context) look {
	all, _, _ := node.Discover(ctx, w.flags.places()) // what cannot be looked at was said
	ranks, err := node.Select(all, w.flags.selection)
	if err != nil { // none that is meant is there now
		return look{}
	}
	l := look{ranks: ranks}
	if w.seen != nil {
		l.statuses = node.StatusOf(ctx, ranks, node.Patience)
	}
	return l
}

// printEvent writes an event as a JSON document on a line.
func printEvent(w io.Writer, e control.Event) {
	line, err := json.Marshal(struct {
		MessageType string `json:"message_type"`
		control.Event
	}{"event", e})
	if err == nil { // no field can fail to
		fmt.Fprintln(w, string(line))
	}
}
