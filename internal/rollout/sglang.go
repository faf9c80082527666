package rollout

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
)

const sglangRemedy = "is this an SGLang server of 0.4.5 or later?"

// sglang is an SGLang server: POST /release_memory_occupation and /resume_memory_occupation, and, where
// asked for, /pause_generation and /continue_generation around them.
//
// It does not say what it has released, and a second release or a resume of what is not released ends
// its scheduler. So what was done is noted, and no call is made twice.
type sglang struct {
	*client
	set   Settings
	notes notes
}

func (e *sglang) Name() string { return e.name() }
func (e *sglang) Kind() string { return KindSGLang }

func (e *sglang) Hint() string {
	return "was SGLang started with --enable-memory-saver? if an earlier release had no answer, and was not carried out, say --engine-state awake"
}

// serverInfo is the part of GET /get_server_info that is looked at.
type serverInfo struct {
	MemorySaver *bool `json:"enable_memory_saver"`

	// What tells one start of a server from another: the seed is drawn at its start.
	RandomSeed     any `json:"random_seed"`
	MaxTotalTokens any `json:"max_total_num_tokens"`
	ModelPath      any `json:"model_path"`
	Version        any `json:"version"`
}

// look reads the note about this start of the server. A server that does not tell about itself has one
// note for all its starts.
func (e *sglang) look(ctx context.Context) (note, error) {
	ctx, cancel := context.WithTimeout(ctx, lookLimit)
	defer cancel()
	var info serverInfo
	var err error
	for _, path := range []string{"/get_server_info", "/server_info"} { // the older name, the newer
		if err = e.do(ctx, call{method: http.MethodGet, path: path, answer: &info}); !errors.Is(err, ErrNoEndpoint) {
			break
		}
	}
	if err != nil && !errors.Is(err, ErrNoEndpoint) {
		return note{}, err
	}
	if info.MemorySaver != nil && !*info.MemorySaver {
		return note{}, e.fault("GET /get_server_info", ErrRefused, "it cannot release its memory", "start SGLang with --enable-memory-saver")
	}
	sum := sha256.Sum256([]byte(fmt.Sprint(info.RandomSeed, info.MaxTotalTokens, info.ModelPath, info.Version)))
	kept, err := e.notes.read(hex.EncodeToString(sum[:8]))
	if err != nil {
		return kept, e.fault("read its note", ErrDoubt, err.Error(), "")
	}
	if kept.Known && kept.Asked == "" {
		return kept, nil
	}
	switch e.set.State { // what the user says, where the note does not
	case Asleep:
		kept.add(e.set.Tags)
	case Awake:
		kept.remove(e.set.Tags)
	case Unknown, Partly:
		return kept, nil
	}
	kept.Asked = ""
	return kept, e.keep(kept)
}

// State is what the note says. Where there is none, ebb has not released anything: Unknown, since
// another may have.
func (e *sglang) State(ctx context.Context) (State, error) {
	kept, err := e.look(ctx)
	if err != nil {
		return Unknown, err
	}
	return e.state(kept)
}

func (e *sglang) state(kept note) (State, error) {
	switch {
	case kept.Asked == "resume":
		return Unknown, e.doubt(kept.Asked)
	case kept.Asked == "release": // if it was not carried out, the memory will not be free
		return Asleep, nil
	}
	asleep, awake := kept.sleeping(e.set.Tags), kept.awake(e.set.Tags)
	switch {
	case !kept.Known:
		return Unknown, nil
	case len(asleep) == 0:
		return Awake, nil
	case len(awake) == 0:
		return Asleep, nil
	}
	return Partly, nil
}

type tagList struct {
	Tags []string `json:"tags,omitempty"`
}

// Sleep releases what is not released yet.
func (e *sglang) Sleep(ctx context.Context) error {
	unlock, err := e.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	kept, err := e.look(ctx)
	if err != nil {
		return err
	}
	todo := kept.awake(e.set.Tags)
	if len(todo) == 0 { // another ebb was first
		return nil
	}
	if len(e.set.Tags) == 0 && len(kept.Released) == 0 {
		todo = nil // also such as this list does not know
	}
	if e.set.Pause != "" && !kept.Paused {
		body := map[string]string{"mode": e.set.Pause}
		if err := e.do(ctx, call{method: http.MethodPost, path: "/pause_generation", body: body}); err != nil {
			return withRemedy(err, ErrNoEndpoint, sglangRemedy)
		}
		kept.Paused = true
	}
	return e.noted(ctx, &kept, "release", todo, (*note).add)
}

// Wake takes back what is released.
func (e *sglang) Wake(ctx context.Context) error {
	unlock, err := e.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	kept, err := e.look(ctx)
	if err != nil {
		return err
	}
	if kept.Asked != "" {
		return e.doubt(kept.Asked)
	}
	if tags := kept.sleeping(e.set.Tags); len(tags) > 0 {
		if kept.All && len(e.set.Tags) == 0 {
			tags = nil
		}
		if err := e.noted(ctx, &kept, "resume", tags, (*note).remove); err != nil {
			return err
		}
	}
	if !kept.Paused || kept.All || len(kept.Released) > 0 {
		return nil
	}
	if err := e.do(ctx, call{method: http.MethodPost, path: "/continue_generation", body: struct{}{}}); err != nil {
		return withRemedy(err, ErrNoEndpoint, sglangRemedy)
	}
	kept.Paused = false
	return e.keep(kept)
}

// noted makes a call and notes, before, that it is made and, after, what it did.
func (e *sglang) noted(ctx context.Context, kept *note, what string, tags []string, did func(*note, []string)) error {
	before := *kept
	kept.Asked = what
	if what == "release" { // should no answer come, the memory shows whether it was carried out
		did(kept, tags)
	}
	if err := e.keep(*kept); err != nil {
		return err
	}
	err := e.do(ctx, call{method: http.MethodPost, path: "/" + what + "_memory_occupation", body: tagList{tags}})
	switch {
	case err == nil:
		did(kept, tags)
		kept.Asked = ""
		return e.keep(*kept)
	case errors.Is(err, ErrLate) || errors.Is(err, ErrBroken) || errors.Is(err, ErrInterrupted):
		return err // it may have been carried out
	}
	return errors.Join(withRemedy(err, ErrNoEndpoint, sglangRemedy), e.keep(before))
}

// doubt is the error of a call that may or may not have been carried out.
func (e *sglang) doubt(asked string) error {
	return e.fault("look at ebb's note", ErrDoubt, "an earlier call to "+asked+" its memory had no answer, and SGLang does not say whether it was carried out",
		"look at its log, and say which: --engine-state asleep or awake")
}

// lock keeps other ebbs from doing something to the server meanwhile.
func (e *sglang) lock(ctx context.Context) (unlock func(), err error) {
	unlock, err = e.notes.lock(ctx)
	switch {
	case err == nil:
		return unlock, nil
	case errors.Is(err, context.DeadlineExceeded):
		return nil, e.fault("wait for another ebb that commands it", ErrLate, "it was not done by the deadline", "")
	case ctx.Err() != nil:
		return nil, e.fault("wait for another ebb that commands it", ErrInterrupted, "interrupted", "")
	}
	return nil, e.fault("note what is done to it", ErrFailed, err.Error(), "")
}

func (e *sglang) keep(n note) error {
	if err := e.notes.write(n); err != nil {
		return e.fault("note what is done to it", ErrFailed, err.Error(), "")
	}
	return nil
}

func (e *sglang) fault(did string, why error, text, remedy string) error {
	return &Error{Engine: e.name(), Did: did, Why: why, Text: text, Remedy: remedy}
}
