package swap

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/ebb-offload/ebb/internal/rollout"
)

// engine is an engine and the state that it was found in.
type engine struct {
	rollout.Engine
	state   rollout.State
	seconds float64
}

func (e *engine) step(now rollout.State, already bool, err error) Step {
	s := Step{Step: StepEngine, What: e.Name(), Kind: e.Kind(), State: now.String(), Already: already, OK: err == nil, Seconds: e.seconds}
	if err != nil {
		s.State, s.Error = e.state.String(), brief(err)
	}
	return s
}

// brief is an engine's error where its name is told beside it.
func brief(err error) string {
	var own *rollout.Error
	if errors.As(err, &own) {
		return own.Did + ": " + own.Text
	}
	return err.Error()
}

// look opens all engines and asks for their states, at the same time. The first error is returned: nothing
// has been moved then.
func (h *handOver) look(ctx context.Context) ([]*engine, error) {
	engines := make([]*engine, len(h.Engines))
	errs := make([]error, len(h.Engines))
	var each sync.WaitGroup
	for i, spec := range h.Engines {
		each.Go(func() { engines[i], errs[i] = h.open(ctx, spec) })
	}
	each.Wait()
	for i, err := range errs {
		if err != nil {
			h.step(Step{Step: StepEngine, What: h.Engines[i].name(), State: rollout.Unknown.String(), Error: brief(err)})
		}
	}
	return engines, errors.Join(errs...)
}

func (h *handOver) open(ctx context.Context, spec EngineSpec) (*engine, error) {
	begin := time.Now()
	e := &engine{}
	if spec.Command != "" {
		e.Engine = rollout.Command(spec.Command, h.Settings)
	} else {
		var err error
		if e.Engine, err = rollout.Open(ctx, spec.URL, h.Kind, h.Settings); err != nil {
			return nil, err
		}
	}
	var err error
	e.state, err = e.State(ctx)
	e.seconds = time.Since(begin).Seconds()
	if err == nil && h.To == ToRollout && e.state == rollout.Unknown && e.Kind() == rollout.KindSGLang {
		err = &rollout.Error{Engine: e.Name(), Did: "look at ebb's note", Why: rollout.ErrDoubt,
			Text:   "SGLang does not say whether its memory is released, and ebb has not released it; a resume of what is not released would end it",
			Remedy: "say which: --engine-state asleep or awake"}
	}
	return e, err
}

// lookOnly says what the engines are, and is no failure if they do not say it.
func (h *handOver) lookOnly(ctx context.Context) {
	for _, spec := range h.Engines {
		e, err := h.open(ctx, spec)
		if err != nil {
			h.step(Step{Step: StepEngine, What: spec.name(), State: rollout.Unknown.String(), Already: true, OK: true, Error: brief(err)})
			continue
		}
		h.step(e.step(e.state, true, nil))
	}
}

func all(engines []*engine, state rollout.State) bool {
	for _, e := range engines {
		if e.state != state {
			return false
		}
	}
	return true
}

// each brings the engines to a state, at the same time: those that are not in it.
func (h *handOver) each(engines []*engine, want rollout.State, bring func(*engine) error) error {
	errs := make([]error, len(engines))
	var each sync.WaitGroup
	for i, e := range engines {
		if e.state == want {
			h.step(e.step(want, true, nil))
			continue
		}
		each.Go(func() {
			begin := time.Now()
			errs[i] = bring(e)
			e.seconds = time.Since(begin).Seconds()
			h.step(e.step(want, false, errs[i]))
		})
	}
	each.Wait()
	return errors.Join(errs...)
}

// hinted adds to an error of memory that is not free what to look at in the engines.
func (h *handOver) hinted(err error, engines []*engine) error {
	var own *Error
	if !errors.As(err, &own) {
		return err
	}
	changed := *own
	for _, e := range engines {
		changed.Text += "; engine " + e.Name() + " says that it sleeps: " + e.Hint()
	}
	return &changed
}
