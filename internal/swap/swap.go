// Package swap hands the memory of the GPUs over between the training ranks of this node and its rollout
// engines. It orders what packages node (the ranks) and rollout (the engines) do:
//
//	to rollout: engines asked, ranks paused, memory measured, engines woken
//	to train:   engines put to sleep, memory measured, ranks resumed
//
// It can be repeated at any point: what is in its place already is left there, and nothing is moved where
// nobody needs the memory (docs/swap.md has the table). The one that gives goes first, and nothing is given to the
// other before the driver shows that the memory is free, as far as that is told. Whatever fails, the ranks' bytes are safe: a rank is
// either resident or paused.
package swap

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/ebb-offload/ebb/internal/control"
	"github.com/ebb-offload/ebb/internal/node"
	"github.com/ebb-offload/ebb/internal/rollout"
)

// Whom the memory goes to.
const (
	ToRollout = "rollout"
	ToTrain   = "train"
)

// EngineSpec names an engine: by its URL, or by its command.
type EngineSpec struct {
	URL, Command string
}

func (s EngineSpec) name() string {
	if s.Command != "" {
		return s.Command
	}
	return s.URL
}

// Options say what is handed over.
type Options struct {
	To       string
	Ranks    []node.Rank
	Silent   []node.Silent // ranks that are meant and do not answer
	Engines  []EngineSpec
	Kind     string // of the engines with URLs
	Settings rollout.Settings
	Tags     []string // of the ranks' memory; none: everything
	Timeout  time.Duration
	Tell     func(Step) // hears of each step as it ends; may be nil
	Log      *Log       // nil: none

	By      string       // the command, for those who wait for the end of this hand-over
	NoWait  bool         // another hand-over of the same ranks or engines is an error at once
	Waiting func(Holder) // hears once of each that is waited for; may be nil
	// Again looks for the ranks anew after such a wait; nil: they are those given.
	Again func(context.Context) ([]node.Rank, []node.Silent, error)
}

// Kinds of steps.
const (
	StepEngine = "engine" // an engine was looked at, put to sleep or woken
	StepRank   = "rank"   // a rank was looked at, paused or resumed
	StepMemory = "memory" // a device's memory was measured
)

// Step is one thing that was done, or found done. Sizes are bytes.
type Step struct {
	Step    string  `json:"step"`
	What    string  `json:"what"`              // the engine, the rank or the device
	Kind    string  `json:"kind,omitempty"`    // of an engine
	State   string  `json:"state"`             // that it is in now
	Already bool    `json:"already,omitempty"` // it was so before
	OK      bool    `json:"ok"`
	Bytes   uint64  `json:"bytes,omitempty"`       // of a rank: moved; of a device: free
	Total   uint64  `json:"total_bytes,omitempty"` // of a device
	Need    uint64  `json:"need_bytes,omitempty"`  // of a device: what is waited for
	Seconds float64 `json:"seconds"`
	Error   string  `json:"error,omitempty"` // where it is OK: what is not known

	Who     *control.Who     `json:"who,omitempty"`     // a rank
	Holders []control.Holder `json:"holders,omitempty"` // of a device
}

// rankStep is a step of a rank.
func rankStep(w control.Who, s Step) Step {
	s.Step, s.What, s.Who = StepRank, node.ShortName(w), &w
	return s
}

// Report is how it went.
type Report struct {
	To      string  `json:"to"`
	OK      bool    `json:"ok"`
	Moved   bool    `json:"moved"`                    // something changed its place
	Late    bool    `json:"late"`                     // a deadline passed
	Begun   bool    `json:"-"`                        // ranks and engines were asked; else nothing can have moved
	Waited  float64 `json:"waited_seconds,omitempty"` // for the end of another hand-over, before
	Seconds float64 `json:"seconds"`                  // without that
	Steps   []Step  `json:"steps"`
	Error   string  `json:"error,omitempty"`   // the first thing that went wrong
	Stands  string  `json:"stands,omitempty"`  // after an error: who holds the memory now
	HeldBy  *Holder `json:"held_by,omitempty"` // nothing was done, since this other hand-over is under way
}

// Error is the failure of a hand-over.
type Error struct {
	Text string
	Late bool
}

func (e *Error) Error() string { return e.Text }

// handOver is one run.
type handOver struct {
	Options
	begin  time.Time
	caller context.Context // ends when the caller gives up, and has no deadline: ranks keep theirs themselves

	mu     sync.Mutex // guards what follows
	report Report
}

// Run hands the memory over. The report is complete also where the error is not nil.
func Run(ctx context.Context, o Options) (Report, error) {
	h := &handOver{Options: o, begin: time.Now(), caller: ctx, report: Report{To: o.To, Steps: []Step{}}}
	ctx, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()
	locks, err := h.take(ctx)
	if err != nil {
		return h.barred(ctx, err)
	}
	defer locks.release()
	h.begin = time.Now()
	h.report.Begun = true
	o.Log.begin(o)
	run := h.toRollout
	if o.To == ToTrain {
		run = h.toTrain
	}
	err = run(ctx)
	h.report.Seconds = time.Since(h.begin).Seconds()
	h.report.OK = err == nil
	if err != nil {
		h.report.Error, h.report.Late = strings.ReplaceAll(err.Error(), "\n", "; "), late(err)
		look, cancel := context.WithTimeout(context.Background(), lookAfter)
		h.report.Stands = h.stands(look)
		cancel()
	}
	o.Log.end(h.report)
	return h.report, err
}

// barred is the report of a hand-over that did not come to its begin.
func (h *handOver) barred(ctx context.Context, err error) (Report, error) {
	h.report.Error = strings.ReplaceAll(err.Error(), "\n", "; ")
	h.report.Late = errors.Is(ctx.Err(), context.DeadlineExceeded)
	var other *HeldError
	if errors.As(err, &other) {
		h.report.HeldBy = &other.Holder
	}
	return h.report, err
}

// lookAfter bounds the look at who holds the memory after a failure.
const lookAfter = 3 * time.Second

func late(err error) bool {
	var own *Error
	return errors.As(err, &own) && own.Late || errors.Is(err, rollout.ErrLate)
}

// step records one step and tells of it.
func (h *handOver) step(s Step) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.report.Steps = append(h.report.Steps, s)
	h.report.Moved = h.report.Moved || s.OK && !s.Already && s.Step != StepMemory
	if h.Tell != nil {
		h.Tell(s)
	}
	h.Log.step(s)
}

// left is the time until the deadline.
func left(ctx context.Context) time.Duration {
	deadline, ok := ctx.Deadline()
	if !ok {
		return -1
	}
	return max(time.Until(deadline), 0)
}

func (h *handOver) toRollout(ctx context.Context) error {
	if err := h.silentRanks("nothing was moved"); err != nil { // they may hold memory, and cannot be paused
		return err
	}
	engines, err := h.look(ctx)
	if err != nil {
		return err
	}
	if all(engines, rollout.Awake) { // it has its memory: nobody needs that of the ranks
		for _, e := range engines {
			h.step(e.step(rollout.Awake, true, nil))
		}
		return nil
	}
	if err := h.pause(ctx); err != nil {
		return err
	}
	if err := h.measure(ctx, nil); err != nil {
		return err
	}
	return h.each(engines, rollout.Awake, func(e *engine) error { return e.Wake(ctx) })
}

func (h *handOver) toTrain(ctx context.Context) error {
	states, err := h.status(ctx)
	if err != nil {
		return err
	}
	var paused []node.RankStatus
	for _, s := range states {
		if s.Status.Paused > 0 && h.concerns(s) {
			paused = append(paused, s)
			continue
		}
		h.step(rankStep(s.Who, Step{State: "resident", Already: true, OK: true, Bytes: s.Status.Active}))
	}
	if len(paused) == 0 { // nobody needs the engines' memory
		h.lookOnly(ctx)
		return h.silentRanks(othersResident)
	}
	engines, err := h.look(ctx)
	if errors.Is(err, rollout.ErrUnreachable) {
		return fmt.Errorf("%w; where it has ended, ebb resume brings the ranks back without it", err)
	}
	if err != nil {
		return err
	}
	if err := h.each(engines, rollout.Asleep, func(e *engine) error { return e.Sleep(ctx) }); err != nil {
		return err
	}
	if err := h.measure(ctx, paused); err != nil {
		return h.hinted(err, engines)
	}
	if err := h.resume(ctx, paused); err != nil {
		return err
	}
	return h.silentRanks(othersResident)
}

const othersResident = "the other ranks are resident"

// silentRanks records the ranks that did not answer. The error names them, and says what became of the others.
func (h *handOver) silentRanks(others string) error {
	var whys []string
	for _, s := range h.Silent {
		h.step(rankStep(s.Who, Step{State: "silent", Error: s.Why}))
		whys = append(whys, fmt.Sprintf("%s does not answer: %s", node.Name(s.Who), s.Why))
	}
	return lateRanks(whys, others)
}

// told is how many ranks an error names in full: each has a step of its own too.
const told = 8

// lateRanks is the error of ranks of which each is late for a reason; none where there are none.
func lateRanks(whys []string, others string) error {
	if len(whys) == 0 {
		return nil
	}
	text := strings.Join(whys[:min(len(whys), told)], "; ")
	if more := len(whys) - told; more > 0 {
		text += fmt.Sprintf("; and %d more", more)
	}
	return &Error{Text: text + "; " + others, Late: true}
}

// concerns reports whether a rank has paused memory of the tags that are meant.
func (h *handOver) concerns(s node.RankStatus) bool {
	if len(h.Tags) == 0 {
		return true
	}
	return h.paused(s.Status) > 0
}

// paused are the paused bytes of the tags that are meant.
func (h *handOver) paused(s node.Status) uint64 {
	return h.sum(s, s.Paused, func(t node.TagStatus) uint64 { return t.Host + t.Disk + t.Discarded })
}

// active are the bytes on the device of the tags that are meant.
func (h *handOver) active(s node.Status) uint64 {
	return h.sum(s, s.Active, func(t node.TagStatus) uint64 { return t.Active })
}

func (h *handOver) sum(s node.Status, whole uint64, of func(node.TagStatus) uint64) uint64 {
	if len(h.Tags) == 0 {
		return whole
	}
	var n uint64
	for _, t := range s.Tags {
		for _, meant := range h.Tags {
			if t.Tag == meant {
				n += of(t)
			}
		}
	}
	return n
}

// patience is how long a rank has to say what it has where, and on which devices.
const patience = 5 * time.Second

// status asks the ranks what they have where.
func (h *handOver) status(ctx context.Context) ([]node.RankStatus, error) {
	states := node.StatusOf(ctx, h.Ranks, patience)
	var whys []string
	for _, s := range states {
		if s.Err != "" {
			h.step(rankStep(s.Who, Step{State: "silent", Error: s.Err}))
			whys = append(whys, fmt.Sprintf("%s does not say what it has where: %s", node.Name(s.Who), s.Err))
		}
	}
	return states, lateRanks(whys, "nothing was moved")
}

// pause pauses the ranks that have memory on their devices.
func (h *handOver) pause(ctx context.Context) error {
	states, err := h.status(ctx)
	if err != nil {
		return err
	}
	var active []node.Rank
	var first error
	for _, s := range states {
		if h.active(s.Status) > 0 {
			active = append(active, s.Rank)
			continue
		}
		step := rankStep(s.Who, Step{State: "paused", Already: true, OK: true, Bytes: s.Status.Paused})
		if last := s.Status.LastPause; s.Status.Paused > 0 && last != nil && last.Missing > 0 {
			step.OK, step.Error = false, fmt.Sprintf("%s that it released did not become free", bytesOf(last.Missing))
			first = &Error{Text: fmt.Sprintf("%s: %s: give up what was registered with others (RDMA, cuFile, NCCL user buffers) before the pause", node.Name(s.Who), step.Error)}
		}
		h.step(step)
	}
	report := node.Pause(h.caller, active, h.Tags, left(ctx), "")
	return errors.Join(first, h.outcomes(report, "paused", "resident"))
}

// resume brings the paused ranks back.
func (h *handOver) resume(ctx context.Context, paused []node.RankStatus) error {
	ranks := make([]node.Rank, len(paused))
	for i, s := range paused {
		ranks[i] = s.Rank
	}
	return h.outcomes(node.Resume(h.caller, ranks, h.Tags, left(ctx), ""), "resident", "paused")
}

// outcomes records how an operation went and returns what went wrong, all ranks in one line.
func (h *handOver) outcomes(r node.Report, done, otherwise string) error {
	var wrong []string
	late := true
	for _, o := range r.Outcomes {
		s := rankStep(o.Who, Step{State: done, OK: o.State == node.Done, Seconds: o.Seconds})
		if o.Done != nil {
			s.Bytes = o.Done.Bytes
			if o.Done.Seconds > 0 {
				s.Seconds = o.Done.Seconds // without the wait for the safe point
			}
		}
		s.Error = o.Note
		if !s.OK {
			s.State, s.Error = otherwise, string(o.State)
			if o.State == node.Gone {
				s.State = "gone"
			}
			if o.Err != nil {
				s.Error += ": " + o.Err.Message
			}
			wrong = append(wrong, node.Name(o.Who)+": "+s.Error)
			late = late && o.State == node.Late
		}
		h.step(s)
	}
	if len(wrong) == 0 {
		return nil
	}
	return &Error{Text: r.Operation + " of " + strings.Join(wrong, "; "), Late: late}
}
