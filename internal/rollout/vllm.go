package rollout

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strconv"
)

// vLLM serves these only when its development mode is on.
const vllmRemedy = "start vLLM with VLLM_SERVER_DEV_MODE=1 in its environment and with --enable-sleep-mode"

// vllm is a vLLM server: POST /sleep and /wake_up, GET /is_sleeping.
type vllm struct {
	*client
	set Settings
}

func (e *vllm) Name() string { return e.name() }
func (e *vllm) Kind() string { return KindVLLM }

func (e *vllm) Hint() string {
	return "was vLLM started with --enable-sleep-mode? if only some of its tags were awake, POST /wake_up wakes the rest, after which it can sleep"
}

func (e *vllm) State(ctx context.Context) (State, error) {
	ctx, cancel := context.WithTimeout(ctx, lookLimit)
	defer cancel()
	var answer struct {
		Sleeping *bool `json:"is_sleeping"`
	}
	look := call{method: http.MethodGet, path: "/is_sleeping", answer: &answer}
	switch err := e.do(ctx, look); {
	case err != nil:
		return Unknown, withRemedy(err, ErrNoEndpoint, vllmRemedy)
	case answer.Sleeping == nil:
		return Unknown, &Error{Engine: e.name(), Did: look.did(), Why: ErrAnswer, Text: "its answer has no is_sleeping", Remedy: "is this a vLLM server?"}
	case *answer.Sleeping:
		return Asleep, nil
	}
	return Awake, nil
}

func (e *vllm) Sleep(ctx context.Context) error {
	query := url.Values{"level": {strconv.Itoa(e.set.Level)}}
	if e.set.Pause != "" {
		query.Set("mode", e.set.Pause)
	}
	if err := e.do(ctx, call{method: http.MethodPost, path: "/sleep", query: query}); err != nil {
		return withRemedy(err, ErrNoEndpoint, vllmRemedy)
	}
	return e.until(ctx, Asleep)
}

// Wake wakes the tags. While others sleep the server says that it sleeps: then its reply is all there is.
func (e *vllm) Wake(ctx context.Context) error {
	var query url.Values
	if len(e.set.Tags) > 0 {
		query = url.Values{"tags": e.set.Tags}
	}
	if err := e.do(ctx, call{method: http.MethodPost, path: "/wake_up", query: query}); err != nil {
		return withRemedy(err, ErrNoEndpoint, vllmRemedy)
	}
	if len(e.set.Tags) > 0 {
		return nil
	}
	return e.until(ctx, Awake)
}

// until asks until the server is in a state: its replies may come before the work is done.
func (e *vllm) until(ctx context.Context, want State) error {
	said := Unknown
	for {
		got, err := e.State(ctx)
		switch {
		case err == nil && got == want:
			return nil
		case err == nil:
			said = got
		case !errors.Is(err, ErrLate) || ctx.Err() != nil && said == Unknown:
			return err
		}
		if !stopped(ctx, pollEvery) {
			continue
		}
		why, text := ErrLate, "it says that it is "+said.String()+", at the deadline"
		if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
			why, text = ErrInterrupted, "interrupted"
		}
		return &Error{Engine: e.name(), Did: "GET /is_sleeping", Why: why, Text: text, Remedy: "look at the engine's log"}
	}
}

// withRemedy gives an error of one kind another remedy.
func withRemedy(err error, why error, remedy string) error {
	var own *Error
	if errors.As(err, &own) && errors.Is(own.Why, why) {
		changed := *own
		changed.Remedy = remedy
		return &changed
	}
	return err
}
