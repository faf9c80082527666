package rollout

import (
	"context"
	"errors"
	"net/http"
)

// Command is an engine behind a command (see the type command for what it must do).
func Command(text string, set Settings) Engine { return &command{text: text, set: set} }

// Open is the engine at a URL. With KindAuto the server is asked what it is.
func Open(ctx context.Context, address, kind string, set Settings) (Engine, error) {
	base, err := ParseURL(address)
	if err != nil {
		return nil, err
	}
	c := newClient(base, set.Token)
	if kind == KindAuto {
		if kind, err = detect(ctx, c); err != nil {
			return nil, err
		}
	}
	if kind == KindVLLM {
		return &vllm{client: c, set: set}, nil
	}
	return &sglang{client: c, set: set, notes: notes{dir: set.Notes, engine: c.name()}}, nil
}

// detect asks a server for endpoints that only one kind has.
func detect(ctx context.Context, c *client) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, lookLimit)
	defer cancel()
	var sleeping struct {
		Value *bool `json:"is_sleeping"`
	}
	err := c.do(ctx, call{method: http.MethodGet, path: "/is_sleeping", answer: &sleeping})
	if err == nil && sleeping.Value != nil {
		return KindVLLM, nil
	}
	if err != nil && !errors.Is(err, ErrNoEndpoint) && !errors.Is(err, ErrAnswer) {
		return "", err
	}
	for _, path := range []string{"/get_model_info", "/model_info"} { // the older name, the newer
		var model struct {
			Path *string `json:"model_path"`
		}
		err := c.do(ctx, call{method: http.MethodGet, path: path, answer: &model})
		if err == nil && model.Path != nil {
			return KindSGLang, nil
		}
		if err != nil && !errors.Is(err, ErrNoEndpoint) && !errors.Is(err, ErrAnswer) {
			return "", err
		}
	}
	var version struct {
		Value *string `json:"version"`
	}
	err = c.do(ctx, call{method: http.MethodGet, path: "/version", answer: &version})
	if err == nil && version.Value != nil {
		return "", &Error{Engine: c.name(), Did: "GET /is_sleeping", Why: ErrNoEndpoint, Text: "no such endpoint on what seems to be vLLM " + oneLine(*version.Value, 40), Remedy: vllmRemedy}
	}
	return "", &Error{Engine: c.name(), Did: "find out what it is", Why: ErrNoEndpoint,
		Text:   "neither vLLM's /is_sleeping nor SGLang's /get_model_info is there",
		Remedy: vllmRemedy + "; for SGLang say --engine-kind sglang; for another engine use --engine-command"}
}
