package launch

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/ebb-offload/ebb/internal/control"
	"github.com/ebb-offload/ebb/internal/node"
)

// SIGUSR1 asks for one line about the ranks: what they have on the devices and what is parked, what they do
// now and how fast the latest pause and resume were. The ranks are asked on their control sockets, each with
// a deadline, while the supervisor goes on.

// listens is how long the ranks are listened to, to hear what those that pause or resume are at. They tell
// that several times a second.
const listens = 400 * time.Millisecond

// asker asks the ranks of a run how they are.
type asker struct {
	ranks  []Rank
	places node.Places
}

func newAsker(ranks []Rank, getenv func(string) string) *asker {
	return &asker{ranks: ranks, places: node.Default(getenv, os.Getuid())}
}

// rankState is what one rank said.
type rankState struct {
	node.RankStatus
	doing string // "pause, move 43 %"; empty: it neither pauses nor resumes
}

// line asks all ranks and returns what to say, with attributes for machines.
func (a *asker) line(ctx context.Context) (string, []any) {
	all, silent, _ := node.Discover(ctx, a.places) // what cannot be looked at has no rank of ours
	found := a.ours(all)
	var doing sync.Map // pid to what it does
	var listening sync.WaitGroup
	listening.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, listens)
		defer cancel()
		node.Watch(ctx, found, func(e control.Event) { note(&doing, e) })
	})
	answers := node.StatusOf(ctx, found, node.Patience)
	listening.Wait()
	states := make([]rankState, len(answers))
	for i, answer := range answers {
		states[i] = rankState{RankStatus: answer}
		if text, ok := doing.Load(answer.PID); ok {
			states[i].doing, _ = text.(string)
		}
	}
	var mute []string
	for _, s := range silent {
		if !s.Dead && a.has(s.Who) {
			mute = append(mute, fmt.Sprintf("rank %s: %s", s.Rank, s.Why))
		}
	}
	return statusLine(len(a.ranks), states, mute)
}

// has reports whether a rank is one of this run.
func (a *asker) has(w control.Who) bool {
	for _, r := range a.ranks {
		if w.Job == r.Job && w.Role == r.Role && w.Cell == strconv.Itoa(r.Cell) && w.Rank == strconv.Itoa(max(r.Rank, 0)) {
			return true
		}
	}
	return false
}

func (a *asker) ours(all []node.Rank) (ours []node.Rank) {
	for _, r := range all {
		if a.has(r.Who) {
			ours = append(ours, r)
		}
	}
	return ours
}

// note keeps what an event says about an operation under way.
func note(doing *sync.Map, e control.Event) {
	switch e.Kind {
	case control.EventEnd:
		doing.Delete(e.PID)
	case control.EventBegin, control.EventPhase, control.EventProgress:
		text := e.Operation
		if e.Phase != "" {
			text += ", " + e.Phase
		}
		if e.Total > 0 && e.Kind == control.EventProgress {
			text += fmt.Sprintf(" %d %%", min(100, e.Bytes*100/e.Total))
		}
		doing.Store(e.PID, text)
	}
}

// statusLine puts what the ranks said into one line.
func statusLine(ranks int, states []rankState, silent []string) (string, []any) {
	var active, paused, files, host uint64
	var training, parked, partly, operating int
	var at string
	var pause, resume together
	heard, mute := map[string]bool{}, len(silent)
	for _, s := range states {
		if s.Err != "" {
			silent = append(silent, fmt.Sprintf("rank %s: %s", s.Rank.Rank, s.Err))
			heard[s.Rank.Rank] = true
			continue
		}
		heard[s.Rank.Rank] = true
		where := s.Status.Where()
		active, paused = active+s.Status.Active, paused+s.Status.Paused
		files, host = files+where.Disk, host+where.Host
		pause.add(s.Status.LastPause)
		resume.add(s.Status.LastResume)
		switch {
		case s.doing != "":
			operating++
			at = s.doing
		case s.Status.Paused == 0:
			training++
		case s.Status.Active == 0:
			parked++
		default:
			partly++
		}
	}
	attrs := []any{
		"ranks", ranks, "answered", len(heard), "active_bytes", active, "paused_bytes", paused, "disk_bytes", files, "host_bytes", host,
		"resident", training, "parked", parked, "in_part", partly, "operating", operating,
		"last_pause_gb_per_s", pause.rate(), "last_resume_gb_per_s", resume.rate(), "silent", silent,
	}
	text := Count(ranks, "rank") + ": "
	if len(states) == 0 && len(silent) == 0 {
		return text + "none has GPU memory that ebb manages, or none has a control socket", attrs
	}
	text += fmt.Sprintf("%s on the devices, %s parked", humanize.Bytes(active), humanize.Bytes(paused))
	if paused > 0 {
		text += fmt.Sprintf(" (%s in files, %s in host memory)", humanize.Bytes(files), humanize.Bytes(host))
	}
	var what []string
	for _, n := range []struct {
		n    int
		text string
	}{
		{training, "resident"}, {parked, "parked"}, {partly, "parked in part"}, {operating, "at it (" + at + ")"},
		{ranks - len(heard) - mute, "without GPU memory"},
	} {
		if n.n > 0 {
			what = append(what, fmt.Sprintf("%d %s", n.n, n.text))
		}
	}
	if len(what) > 0 {
		text += "; " + strings.Join(what, ", ")
	}
	if pause.bytes > 0 {
		text += "; last pause " + pause.String()
	}
	if resume.bytes > 0 {
		text += "; last resume " + resume.String()
	}
	if len(silent) > 0 {
		text += "; no answer from " + strings.Join(silent, ", ")
	}
	return text, attrs
}

// together are the latest operations of ranks, which work side by side: their bytes, and the longest time.
type together struct {
	bytes   uint64
	seconds float64
}

func (t *together) add(o *node.LastOperation) {
	if o != nil && o.Error == "" {
		t.bytes, t.seconds = t.bytes+o.Bytes, max(t.seconds, o.Seconds)
	}
}

func (t together) rate() float64 {
	if t.seconds <= 0 {
		return 0
	}
	return float64(t.bytes) / t.seconds / 1e9
}

func (t together) String() string {
	return fmt.Sprintf("%s in %.2f s (%.2f GB/s)", humanize.Bytes(t.bytes), t.seconds, t.rate())
}
