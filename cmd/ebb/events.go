package main

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/ebb-offload/ebb/internal/control"
	"github.com/ebb-offload/ebb/internal/node"
)

// eventLine is an event as a line for people.
func eventLine(e control.Event) string {
	return fmt.Sprintf("%s %s: %s", e.Time.Local().Format("15:04:05.000"), node.ShortName(e.Who), eventText(e))
}

// eventText is what an event says, without when and who.
func eventText(e control.Event) string {
	what := "everything"
	if len(e.Tags) > 0 {
		what = "tags " + strings.Join(e.Tags, ", ")
	}
	switch e.Kind {
	case control.EventStart:
		return "begins to manage GPU memory"
	case control.EventAsked:
		return fmt.Sprintf("a pause of %s is asked for and waits for a safe point", what)
	case control.EventWithdraw:
		return fmt.Sprintf("the pause of %s was withdrawn before it began", what)
	case control.EventBegin:
		return fmt.Sprintf("%s of %s begins: %s, asked for %s", e.Operation, what, both(e.Total), asker(e.By))
	case control.EventPhase:
		return fmt.Sprintf("%s: %s took %.3f s, %s moved so far", e.Operation, e.Phase, e.Seconds, both(e.Bytes))
	case control.EventProgress:
		return fmt.Sprintf("%s: %s of %s moved", e.Operation, both(e.Bytes), both(e.Total))
	case control.EventEnd:
		return outcomeText(e)
	case control.EventLost:
		return fmt.Sprintf("%d events were lost: they were not read in time", e.Lost)
	case control.EventExit:
		if e.Error != "" {
			return "is no longer heard: " + e.Error
		}
		return "exits"
	}
	return e.Kind
}

func asker(by string) string {
	if by == "control" {
		return "from outside"
	}
	return "by the " + by
}

// outcomeText says how an operation went.
func outcomeText(e control.Event) string {
	verb := map[string]string{control.CmdPause: "paused", control.CmdResume: "resumed"}[e.Operation]
	var o node.LastOperation
	if json.Unmarshal(e.Outcome, &o) != nil || o.Allocations == 0 && e.Error != "" {
		return fmt.Sprintf("%s failed: %s", e.Operation, e.Error)
	}
	return outcome(verb, both(o.Bytes), o, e.Error)
}

// briefOutcome is outcomeText where there is little room: beside what the rank has where.
func briefOutcome(e control.Event) string {
	var o node.LastOperation
	if json.Unmarshal(e.Outcome, &o) != nil || o.Allocations == 0 {
		return outcomeText(e)
	}
	u := unitFor(o.Bytes)
	return outcome("last "+e.Operation, u.of(o.Bytes)+" "+u.name, o, e.Error)
}

func outcome(what, bytes string, o node.LastOperation, wrong string) string {
	text := fmt.Sprintf("%s %s in %.3f s, %s GB/s", what, bytes, o.Seconds, short(o.GBPerS))
	if wrong != "" {
		text += "; in part: " + wrong
	}
	return text
}
