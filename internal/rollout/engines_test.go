package rollout

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

func TestVLLMIsAskedUntilItSleeps(t *testing.T) {
	var asked atomic.Int64 // since it was put to sleep
	asleep := func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"is_sleeping":%t}`, asked.Add(1) > 3)
	}
	s := serve(t, routes{"GET /is_sleeping": asleep, "POST /sleep": says(200, "")})
	e := open(t, s.URL, KindVLLM, Settings{Level: 2, Pause: "wait"})
	if err := e.Sleep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := s.posts(); got != "/sleep?level=2&mode=wait" || asked.Load() != 4 {
		t.Errorf("%s, then asked %d times", got, asked.Load())
	}
}

func TestVLLMThatNeverSleepsIsLate(t *testing.T) {
	s := serve(t, routes{"GET /is_sleeping": says(200, `{"is_sleeping":false}`), "POST /sleep": says(200, "")})
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	err := open(t, s.URL, KindVLLM, Settings{}).Sleep(ctx)
	if !errors.Is(err, ErrLate) || !strings.Contains(err.Error(), s.URL) {
		t.Error(err)
	}
}

func TestVLLMWakesItsTags(t *testing.T) {
	s := serve(t, routes{"GET /is_sleeping": says(200, `{"is_sleeping":true}`), "POST /wake_up": says(200, "")})
	if err := open(t, s.URL, KindVLLM, Settings{Tags: []string{"weights", "kv_cache"}}).Wake(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := s.posts(); got != "/wake_up?tags=weights&tags=kv_cache" {
		t.Error(got)
	}
}

// scheduler is SGLang's: what it does not survive is an error of the test.
type scheduler struct {
	t        *testing.T
	released map[string]bool
	seed     int
	fail     http.HandlerFunc // instead of the work, if not nil
}

var allTags = []string{"cuda_graph", "kv_cache", "weights"}

func (s *scheduler) routes() routes {
	change := func(release bool) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if s.fail != nil {
				s.fail(w, r)
				return
			}
			var body struct{ Tags []string }
			decode(s.t, r, &body)
			if len(body.Tags) == 0 {
				body.Tags = allTags
			}
			for _, tag := range body.Tags {
				if s.released[tag] == release {
					s.t.Errorf("release %t of %q, which ends SGLang's scheduler", release, tag)
				}
				s.released[tag] = release
			}
		}
	}
	ok := says(200, `{"status":"ok"}`)
	return routes{
		"GET /get_model_info":             says(200, `{"model_path":"m"}`),
		"GET /get_server_info":            func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintf(w, `{"random_seed":%d}`, s.seed) },
		"POST /release_memory_occupation": change(true),
		"POST /resume_memory_occupation":  change(false),
		"POST /pause_generation":          ok,
		"POST /continue_generation":       ok,
	}
}

// bring is what a hand-over does: it asks, and then does what is needed.
func bring(t *testing.T, e Engine, want State) error {
	t.Helper()
	got, err := e.State(t.Context())
	if err != nil || got == want {
		return err
	}
	if want == Asleep {
		return e.Sleep(t.Context())
	}
	return e.Wake(t.Context())
}

func TestSGLangIsReleasedAndResumedOnceEach(t *testing.T) {
	g := &scheduler{t: t, released: map[string]bool{}}
	s := serve(t, g.routes())
	set := Settings{Notes: t.TempDir(), Pause: "abort"}
	for range 2 {
		for _, want := range []State{Asleep, Asleep, Awake, Awake} { // each by another ebb
			if err := bring(t, open(t, s.URL, KindAuto, set), want); err != nil {
				t.Fatal(err)
			}
			if g.released["weights"] != (want == Asleep) || g.released["cuda_graph"] != (want == Asleep) {
				t.Fatalf("%v: released are %v", want, g.released)
			}
		}
	}
	once := "/pause_generation /release_memory_occupation /resume_memory_occupation /continue_generation"
	if got := s.posts(); got != once+" "+once {
		t.Error(got)
	}
}

// Two hand-overs at once, as by a controller that lost its temper: the scheduler sees one.
func TestTwoAtOnceAreOne(t *testing.T) {
	g := &scheduler{t: t, released: map[string]bool{}}
	s := serve(t, g.routes())
	set := Settings{Notes: t.TempDir()}
	for _, want := range []State{Asleep, Awake} {
		engines := []Engine{open(t, s.URL, KindSGLang, set), open(t, s.URL, KindSGLang, set)}
		errs := make(chan error, len(engines))
		for _, e := range engines { // both have looked before either does anything
			go func() {
				if want == Asleep {
					errs <- e.Sleep(t.Context())
				} else {
					errs <- e.Wake(t.Context())
				}
			}()
		}
		for range engines {
			if err := <-errs; err != nil {
				t.Error(err)
			}
		}
	}
	if got := s.posts(); got != "/release_memory_occupation /resume_memory_occupation" {
		t.Error(got)
	}
}

func TestSGLangsTagsComeBackOneByOne(t *testing.T) {
	g := &scheduler{t: t, released: map[string]bool{}}
	s := serve(t, g.routes())
	notes := t.TempDir()
	with := func(tags ...string) Engine {
		return open(t, s.URL, KindSGLang, Settings{Notes: notes, Tags: tags, Pause: "abort"})
	}
	for i, step := range []struct {
		engine Engine
		want   State
		posts  string
	}{
		{with(), Asleep, "/pause_generation /release_memory_occupation"},
		{with("weights"), Awake, " /resume_memory_occupation"},
		{with("weights"), Awake, ""},
		{with("kv_cache"), Awake, " /resume_memory_occupation"},
		{with(), Awake, " /resume_memory_occupation /continue_generation"}, // the rest
		{with("kv_cache"), Asleep, " /pause_generation /release_memory_occupation"},
		{with(), Asleep, " /release_memory_occupation"}, // the rest
		{with(), Awake, " /resume_memory_occupation /continue_generation"},
	} {
		before := s.posts()
		if err := bring(t, step.engine, step.want); err != nil {
			t.Fatal(i, err)
		}
		if got := strings.TrimPrefix(s.posts(), before); got != step.posts {
			t.Errorf("step %d: %q, want %q", i, got, step.posts)
		}
	}
	for tag, released := range g.released {
		if released {
			t.Errorf("%s is still released", tag)
		}
	}
}

func TestSGLangThatWasStartedAgainIsNotTakenForTheOldOne(t *testing.T) {
	g := &scheduler{t: t, released: map[string]bool{}, seed: 1}
	s := serve(t, g.routes())
	set := Settings{Notes: t.TempDir()}
	if err := bring(t, open(t, s.URL, KindSGLang, set), Asleep); err != nil {
		t.Fatal(err)
	}
	g.seed, g.released = 2, map[string]bool{}
	if got, err := open(t, s.URL, KindSGLang, set).State(t.Context()); got != Unknown || err != nil {
		t.Errorf("the state of a new server is %v (%v)", got, err)
	}
	if err := bring(t, open(t, s.URL, KindSGLang, set), Asleep); err != nil {
		t.Fatal(err)
	}
}

func TestWhatTheUserSaysCountsWhereNothingIsKnown(t *testing.T) {
	g := &scheduler{t: t, released: map[string]bool{"weights": true, "kv_cache": true, "cuda_graph": true}}
	s := serve(t, g.routes())
	set := Settings{Notes: t.TempDir(), State: Asleep}
	for range 2 { // the second time it is awake, and ebb knows
		if err := bring(t, open(t, s.URL, KindSGLang, set), Awake); err != nil {
			t.Fatal(err)
		}
	}
	if got := s.posts(); got != "/resume_memory_occupation" {
		t.Error(got)
	}
}

func TestSGLangWhoseAnswerDidNotComeIsInDoubt(t *testing.T) {
	g := &scheduler{t: t, released: map[string]bool{}}
	s := serve(t, g.routes())
	set := Settings{Notes: t.TempDir()}
	breaks := func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }

	g.fail = breaks
	if err := open(t, s.URL, KindSGLang, set).Sleep(t.Context()); !errors.Is(err, ErrBroken) {
		t.Fatal(err)
	}
	if got, err := open(t, s.URL, KindSGLang, set).State(t.Context()); got != Asleep || err != nil {
		t.Errorf("after a release without an answer it counts as %v (%v): the memory will show", got, err)
	}
	if err := open(t, s.URL, KindSGLang, set).Wake(t.Context()); !errors.Is(err, ErrDoubt) || !strings.Contains(err.Error(), "--engine-state") {
		t.Errorf("a resume after it: %v", err)
	}

	g.fail, set.State = nil, Awake // it was not carried out
	if err := bring(t, open(t, s.URL, KindSGLang, set), Asleep); err != nil {
		t.Fatal(err)
	}
	g.fail, set.State = breaks, Unknown
	if err := open(t, s.URL, KindSGLang, set).Wake(t.Context()); !errors.Is(err, ErrBroken) {
		t.Fatal(err)
	}
	if _, err := open(t, s.URL, KindSGLang, set).State(t.Context()); !errors.Is(err, ErrDoubt) {
		t.Errorf("after a resume without an answer: %v", err)
	}
	g.fail, set.State = nil, Asleep // it was not carried out either
	if err := bring(t, open(t, s.URL, KindSGLang, set), Awake); err != nil {
		t.Fatal(err)
	}
}

func TestSGLangThatRefusesIsAsItWas(t *testing.T) {
	g := &scheduler{t: t, released: map[string]bool{}, fail: says(400, `{"error":{"message":"no"}}`)}
	s := serve(t, g.routes())
	set := Settings{Notes: t.TempDir()}
	if err := open(t, s.URL, KindSGLang, set).Sleep(t.Context()); !errors.Is(err, ErrRefused) {
		t.Fatal(err)
	}
	if got, err := open(t, s.URL, KindSGLang, set).State(t.Context()); got != Unknown || err != nil {
		t.Errorf("%v, %v", got, err)
	}
	g.fail = nil
	if err := open(t, s.URL, KindSGLang, set).Sleep(t.Context()); err != nil {
		t.Fatal(err)
	}
	g.fail = says(400, `{"error":{"message":"no"}}`)
	if err := open(t, s.URL, KindSGLang, set).Wake(t.Context()); !errors.Is(err, ErrRefused) {
		t.Fatal(err)
	}
	if got, err := open(t, s.URL, KindSGLang, set).State(t.Context()); got != Asleep || err != nil {
		t.Errorf("%v, %v", got, err)
	}
}

func TestSGLangWithoutAMemorySaverIsRefused(t *testing.T) {
	s := serve(t, routes{"GET /get_server_info": says(200, `{"enable_memory_saver":false}`)})
	_, err := open(t, s.URL, KindSGLang, Settings{}).State(t.Context())
	if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "--enable-memory-saver") {
		t.Error(err)
	}
}

func TestNotesAreKeptInADirectoryOfOnesOwn(t *testing.T) {
	g := &scheduler{t: t, released: map[string]bool{}}
	s := serve(t, g.routes())
	open0 := filepath.Join(t.TempDir(), "open")
	if err := os.Mkdir(open0, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(open0, 0o777); err != nil {
		t.Fatal(err)
	}
	if state, err := open(t, s.URL, KindSGLang, Settings{Notes: open0}).State(t.Context()); !errors.Is(err, ErrDoubt) {
		t.Errorf("a note that others may have put there was read: %v, %v", state, err)
	}
	err := open(t, s.URL, KindSGLang, Settings{Notes: open0}).Sleep(t.Context())
	if err == nil || !strings.Contains(err.Error(), "EBB_RUNTIME_DIR") || s.posts() != "" {
		t.Errorf("%v, after %q", err, s.posts())
	}
	kept := t.TempDir()
	set := Settings{Notes: kept}
	e := open(t, s.URL, KindSGLang, set)
	if err := e.Sleep(t.Context()); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(kept, "*.json"))
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	if err := os.WriteFile(files[0], []byte("nonsense"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := e.State(t.Context()); !errors.Is(err, ErrDoubt) || !strings.Contains(err.Error(), files[0]) {
		t.Error(err)
	}
}

func TestACommandIsAnEngine(t *testing.T) {
	said := filepath.Join(t.TempDir(), "said")
	for _, tt := range []struct {
		name, text string
		call       func(Engine) error
		why        error
		want       string
	}{
		{"the words are given", `f() { echo "$1 $EBB_ENGINE_TAG $EBB_ENGINE_LEVEL" >` + said + `; }; f`, func(e Engine) error { return e.Sleep(t.Context()) }, nil, ""},
		{"it fails", `f() { echo out; echo "no engine" >&2; exit 3; }; f`, func(e Engine) error { return e.Wake(t.Context()) }, ErrFailed, "wake: exit status 3: no engine"},
		{"it does not exist", "/nonexistent/engine", func(e Engine) error { return e.Wake(t.Context()) }, ErrFailed, "/nonexistent/engine"},
		{"awake", "echo awake; :", expect(Awake), nil, ""},
		{"asleep", "printf ' asleep\nmore' && :", expect(Asleep), nil, ""},
		{"unknown", "echo unknown; :", expect(Unknown), nil, ""},
		{"no word", "echo yes; :", expect(Unknown), ErrAnswer, "must be awake, asleep or unknown"},
		{"status that is not known", "exit 2;", expect(Unknown), ErrFailed, "prints unknown"},
	} {
		err := tt.call(Command(tt.text, Settings{Tags: []string{"a", "b"}, Level: 2}))
		if !errors.Is(err, tt.why) || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
	if text, err := os.ReadFile(said); string(text) != "sleep a,b 2\n" {
		t.Errorf("the command got %q (%v)", text, err)
	}
}

func expect(want State) func(Engine) error {
	return func(e Engine) error {
		got, err := e.State(context.Background())
		if err == nil && got != want {
			return fmt.Errorf("%v instead of %v", got, want)
		}
		return err
	}
}

// A command may leave a process behind, as one that starts an engine does. One that hangs is ended, with
// what it started.
func TestACommandLeavesAProcessBehindOrIsEnded(t *testing.T) {
	pid := filepath.Join(t.TempDir(), "pid")
	script := "f() { sleep 1000 & echo $! >" + pid + "; echo started; }; f"
	if err := Command(script, Settings{}).Wake(t.Context()); err != nil {
		t.Fatal(err)
	}
	process := processIn(t, pid)
	if err := process.Kill(); err != nil {
		t.Errorf("what the command started has ended: %v", err)
	}

	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := Command("sleep 1000; :", Settings{}).Wake(ctx); !errors.Is(err, ErrLate) {
		t.Errorf("a command that hangs: %v", err)
	}
}
