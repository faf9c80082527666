package rollout

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

// routes are what a server answers to "METHOD /path"; the rest is 404, as FastAPI says it.
type routes map[string]http.HandlerFunc

// says answers with a status and a body.
func says(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		fmt.Fprint(w, body)
	}
}

// server is a server, and the requests that came.
type server struct {
	*httptest.Server
	mu    sync.Mutex
	calls []string
}

func serve(t *testing.T, r routes) *server {
	t.Helper()
	s := &server{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		s.mu.Lock()
		s.calls = append(s.calls, request.Method+" "+request.URL.RequestURI())
		s.mu.Unlock()
		handler, ok := r[request.Method+" "+request.URL.Path]
		if !ok {
			handler = says(404, `{"detail":"Not Found"}`)
		}
		handler(w, request)
	}))
	t.Cleanup(s.Close)
	return s
}

// posts are the requests that changed something.
func (s *server) posts() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var posts []string
	for _, c := range s.calls {
		if rest, ok := strings.CutPrefix(c, "POST "); ok {
			posts = append(posts, rest)
		}
	}
	return strings.Join(posts, " ")
}

func open(t *testing.T, address, kind string, set Settings) Engine {
	t.Helper()
	if set.Level == 0 {
		set.Level = 1
	}
	if set.Notes == "" {
		set.Notes = t.TempDir()
	}
	e, err := Open(t.Context(), address, kind, set)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func TestAddressesThatAreNone(t *testing.T) {
	for text, want := range map[string]string{
		"":                             "is no http or https URL",
		"localhost:8000":               "is no http or https URL",
		"ftp://host":                   "is no http or https URL",
		"http://":                      "is no http or https URL",
		"http://:8000":                 "is no http or https URL",
		"http://host:port":             "is no URL",
		"http://user:secret@host:8000": "--engine-token-file",
		"http://host/?a=b":             "query",
		"http://host/#x":               "query",
	} {
		_, err := ParseURL(text)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: a secret is repeated: %v", text, err)
		}
	}
	for _, text := range []string{"http://127.0.0.1:8000", "https://host/", "http://[::1]:80/engine/"} {
		if u, err := ParseURL(text); err != nil || strings.HasSuffix(u.Path, "/") {
			t.Errorf("%q: %v, %v", text, u, err)
		}
	}
}

// What a server may do instead of what is asked of it, and how that is told.
func TestEveryRefusalIsTold(t *testing.T) {
	for _, tt := range []struct {
		name    string
		handler http.HandlerFunc
		why     error
		want    string
	}{
		{"no endpoint", says(404, `{"detail":"Not Found"}`), ErrNoEndpoint, "status 404: Not Found; start vLLM with VLLM_SERVER_DEV_MODE=1 in its environment and with --enable-sleep-mode"},
		{"another method", says(405, ""), ErrNoEndpoint, "status 405"},
		{"no token", says(401, `{"error":"Unauthorized"}`), ErrRefused, "status 401: Unauthorized; give the engine's token by --engine-token-file"},
		{"forbidden", says(403, ""), ErrRefused, "--engine-token-file"},
		{"refused", says(400, `{"error":{"message":"level must be 1 or 2"}}`), ErrRefused, "status 400: level must be 1 or 2"},
		{"refused in other words", says(422, "a\nb\x1b[31m c"), ErrRefused, "status 422: a b [31m c"},
		{"failed", says(500, "Internal Server Error"), ErrFailed, "status 500: Internal Server Error; look at the engine's log"},
		{"failed at length", says(500, strings.Repeat("x", 1<<20)), ErrFailed, "status 500: " + strings.Repeat("x", mostShown) + "…"},
		{"redirected", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "http://elsewhere.invalid/sleep")
			w.WriteHeader(307)
		}, ErrRefused, `status 307, to "http://elsewhere.invalid/sleep", which is not followed`},
		{"broken off", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, ErrBroken, "the connection ended before its answer"},
	} {
		s := serve(t, routes{"GET /is_sleeping": says(200, `{"is_sleeping":false}`), "POST /sleep": tt.handler})
		err := open(t, s.URL, KindAuto, Settings{}).Sleep(t.Context())
		if !errors.Is(err, tt.why) || !strings.Contains(fmt.Sprint(err), tt.want) || !strings.Contains(fmt.Sprint(err), s.URL) {
			t.Errorf("%s: %v", tt.name, err)
		}
		if strings.ContainsAny(fmt.Sprint(err), "\n\x1b") {
			t.Errorf("%s: not one plain line: %q", tt.name, err)
		}
	}
}

func TestAnswersThatMakeNoSense(t *testing.T) {
	for name, tt := range map[string]struct{ body, want string }{
		"no JSON":   {"<html>hello</html>", "not the JSON that is expected"},
		"no value":  {`{"sleeping":true}`, "no is_sleeping"},
		"no object": {`[1]`, "not the JSON that is expected"},
		"too much":  {`{"is_sleeping":true,"x":"` + strings.Repeat("x", mostAnswer) + `"}`, "more than"},
	} {
		s := serve(t, routes{"GET /is_sleeping": says(200, tt.body)})
		_, err := open(t, s.URL, KindVLLM, Settings{}).State(t.Context())
		if !errors.Is(err, ErrAnswer) || !strings.Contains(fmt.Sprint(err), tt.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAServerThatIsNotThere(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := "http://" + listener.Addr().String()
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{KindVLLM, KindSGLang} {
		_, err = open(t, address, kind, Settings{}).State(t.Context())
		if !errors.Is(err, ErrUnreachable) || !strings.Contains(err.Error(), "connection refused; start the engine") {
			t.Errorf("%s: %v", kind, err)
		}
	}
	if _, err = Open(t.Context(), address, KindAuto, Settings{}); !errors.Is(err, ErrUnreachable) {
		t.Errorf("auto: %v", err)
	}
}

func TestAServerThatHangsIsLate(t *testing.T) {
	gone := make(chan struct{})
	s := serve(t, routes{
		"GET /is_sleeping": says(200, `{"is_sleeping":false}`),
		"POST /sleep":      func(_ http.ResponseWriter, r *http.Request) { <-gone },
	})
	defer close(gone)
	e := open(t, s.URL, KindAuto, Settings{})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := e.Sleep(ctx); !errors.Is(err, ErrLate) || !strings.Contains(err.Error(), "POST /sleep?level=1: no answer by the deadline") {
		t.Error(err)
	}
	ctx, cancel = context.WithCancel(t.Context())
	cancel()
	if err := e.Sleep(ctx); !errors.Is(err, ErrInterrupted) {
		t.Error(err)
	}
}

func TestTheTokenGoesToTheServerAndNowhereElse(t *testing.T) {
	const token = "s3cr3t-t0ken"
	got := ""
	s := serve(t, routes{
		"GET /is_sleeping": func(w http.ResponseWriter, r *http.Request) {
			got = r.Header.Get("Authorization")
			fmt.Fprint(w, `{"is_sleeping":false}`)
		},
		"POST /sleep": func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(500)
			fmt.Fprint(w, "bad header: ", r.Header.Get("Authorization"))
		},
	})
	e := open(t, s.URL, KindAuto, Settings{Token: token})
	err := e.Sleep(t.Context())
	if got != "Bearer "+token {
		t.Errorf("the server got %q", got)
	}
	if err == nil || strings.Contains(err.Error(), token) {
		t.Errorf("the token is told: %v", err)
	}
}

func TestServersAreFoundOutByAsking(t *testing.T) {
	for _, tt := range []struct {
		name   string
		routes routes
		want   string
	}{
		{"vllm", routes{"GET /is_sleeping": says(200, `{"is_sleeping":true}`)}, KindVLLM},
		{"sglang", routes{"GET /get_model_info": says(200, `{"model_path":"m"}`)}, KindSGLang},
		{"sglang, newer", routes{"GET /model_info": says(200, `{"model_path":"m"}`)}, KindSGLang},
		{"vllm without its endpoints", routes{"GET /version": says(200, `{"version":"0.14.0"}`)}, "vLLM 0.14.0; start vLLM with VLLM_SERVER_DEV_MODE=1"},
		{"something else", routes{"GET /is_sleeping": says(200, `hello`), "GET /version": says(200, `hello`)}, "--engine-command"},
		{"nothing", routes{}, "--engine-kind sglang"},
		{"one that fails", routes{"GET /is_sleeping": says(503, "starting")}, "status 503: starting"},
	} {
		s := serve(t, tt.routes)
		e, err := Open(t.Context(), s.URL+"/", KindAuto, Settings{})
		switch {
		case err != nil && !strings.Contains(err.Error(), tt.want):
			t.Errorf("%s: %v", tt.name, err)
		case err == nil && e.Kind() != tt.want:
			t.Errorf("%s: taken for %s", tt.name, e.Kind())
		}
	}
}
