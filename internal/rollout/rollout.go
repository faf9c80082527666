// Package rollout speaks to rollout engines: it puts them to sleep, wakes them, and asks what they are.
// vLLM and SGLang are spoken to over HTTP, anything else through a command of the user's.
//
// An engine's word is only that: a reply may come before its memory is free. Who hands memory over
// measures it as well (package swap).
package rollout

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"
)

// State is what is known of an engine.
type State int

const (
	Unknown State = iota // it does not say
	Awake
	Asleep
	Partly // some of its tags sleep
)

func (s State) String() string {
	return [...]string{"unknown", "awake", "asleep", "partly asleep"}[s]
}

// Engine is one rollout engine. Its methods return an *Error; nothing is tried twice.
type Engine interface {
	Name() string // its URL, or its command
	Kind() string
	// State asks. Of engines that do not tell it is what this user's ebb did to them.
	State(ctx context.Context) (State, error)
	// Sleep returns when the engine says that it sleeps. Must not be called on one that sleeps.
	Sleep(ctx context.Context) error
	// Wake returns when the engine says that it is awake. Must not be called on one that is.
	Wake(ctx context.Context) error
	// Hint is what to look at when its memory does not become free although it says that it sleeps.
	Hint() string
}

// Kinds of engines.
const (
	KindAuto    = "auto" // found out by asking
	KindVLLM    = "vllm"
	KindSGLang  = "sglang"
	KindCommand = "command"
)

// Settings are what engines are asked for.
type Settings struct {
	Tags  []string // parts of its memory; none: all
	Level int      // of vLLM's sleep: 1 keeps the weights in host memory, 2 keeps nothing
	Pause string   // what becomes of running requests: a mode of the engine; empty: its default
	Token string   // bearer token; empty: none
	State State    // what the user says of an engine that does not tell; counts where ebb has no note, or is in doubt
	Notes string   // directory, of this user alone, for notes about engines that do not tell; made if missing
}

// Why something failed, for errors.Is.
var (
	ErrUnreachable = errors.New("not reachable") // nothing was sent
	ErrBroken      = errors.New("broken off")    // it may have been carried out
	ErrInterrupted = errors.New("interrupted")   // likewise
	ErrNoEndpoint  = errors.New("no such endpoint")
	ErrRefused     = errors.New("refused")
	ErrFailed      = errors.New("failed")
	ErrAnswer      = errors.New("an answer that makes no sense")
	ErrLate        = errors.New("late") // likewise
	ErrDoubt       = errors.New("state not known")
)

// Error is why an engine could not do something.
type Error struct {
	Engine string // its name
	Did    string // what was done, as in "POST /sleep"
	Why    error  // one of the above
	Text   string
	Remedy string // may be empty
}

func (e *Error) Error() string {
	text := fmt.Sprintf("engine %s: %s: %s", e.Engine, e.Did, e.Text)
	if e.Remedy != "" {
		text += "; " + e.Remedy
	}
	return text
}

func (e *Error) Unwrap() error { return e.Why }

// lookLimit bounds one question to an engine: one that is busy with a sleep may answer only after it.
const lookLimit = 30 * time.Second

// pollEvery is how often an engine is asked whether it has come to a state.
const pollEvery = 100 * time.Millisecond

// oneLine is text without line breaks and control characters, of at most so many bytes.
func oneLine(text string, most int) string {
	text = strings.Join(strings.FieldsFunc(text, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }), " ")
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "…"
	}
	return text
}

// stopped is a pause that a context ends.
func stopped(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return false
	case <-ctx.Done():
		return true
	}
}
