// Package serve is the node's ranks over HTTP: an interface for controllers with the verbs of the command,
// a page that shows the node live, and metrics for Prometheus. It runs outside the training processes and
// speaks to them through package node.
//
//	serve.go      the server: its start, its end, one request through its guards
//	listen.go     where it listens: loopback, TLS, or a socket; connections.go: how many it holds
//	guard.go      which requests are refused before they are looked at
//	token.go      the token
//	decode.go     what a request may hold
//	node.go       looking at the ranks, for all who ask
//	summary.go    /v1/node and /v1/ranks
//	commands.go   /v1/pause and /v1/resume; run.go: one of them under way; keys.go: repeated ones
//	handover.go   /v1/swap
//	events.go     /v1/events
//	metrics.go    /metrics
//	page.go       the page
//
// One controller may ask a thousand of these servers. Therefore replies do not grow with the number of
// ranks, each comes by the deadline that its request sets, and a repeated request is harmless.
//
// Locks: view.mu, hub.mu, run.mu, keys.mu, metrics.mu and limited.mu. hub.mu is held while metrics.mu is taken; no
// other two are held together.
package serve

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"
)

// Options say how to serve.
type Options struct {
	Node    Node
	Listen  string // HOST:PORT, unix:PATH or an absolute path
	Token   string // file; empty: none is demanded, which is refused off loopback
	TLSCert string // files; both or neither
	TLSKey  string
	Version string
	Swap    HandOver      // nil: /v1/swap refuses
	Grace   time.Duration // that commands under way have at the end
	Log     *slog.Logger
}

// Times and limits of connections.
const (
	headerTimeout = 5 * time.Second
	bodyTimeout   = 10 * time.Second
	replyTimeout  = 30 * time.Second // of requests that set no deadline
	idleTimeout   = 2 * time.Minute
	maxHeader     = 16 << 10
	maxStreams    = 64  // of one HTTP/2 connection
	maxRequests   = 256 // at the same time
	lastWords     = 5 * time.Second
)

// Server serves one node.
type Server struct {
	node     Node
	handOver HandOver
	version  string
	host     string
	began    time.Time
	grace    time.Duration
	log      *slog.Logger
	place    place
	listener *limited
	token    *token       // nil: none is demanded
	tls      *certificate // nil: without TLS
	foreign  *http.CrossOriginProtection

	view     *view
	hub      *hub
	metrics  *metrics
	keys     keys
	findings once
	routes   map[string]map[string]route // path → method
	requests chan struct{}               // one for each request under way
	runs     chan struct{}               // one for each command under way
	swapping chan struct{}               // one for the hand-over under way

	commands context.Context // ends when commands that have not begun are withdrawn
	withdraw context.CancelFunc

	mu      sync.Mutex
	ending  bool           // no new commands
	running sync.WaitGroup // commands; none is added once ending is set
}

// route is what answers one method of one path. handle has replied unless it returns a refusal.
type route struct {
	handle func(http.ResponseWriter, *http.Request) *refusal
	open   bool // without the token: it tells nothing about the node
	page   bool // links of other sites may lead here
	action bool
	stream bool
}

// OptionError is an option that cannot be used. Its text says what to do.
type OptionError struct{ Text string }

func (e *OptionError) Error() string { return e.Text }

// New checks the options and begins to listen.
func New(o Options) (*Server, error) {
	at, err := parsePlace(o.Listen)
	if err != nil {
		return nil, &OptionError{Text: err.Error()}
	}
	if (o.TLSCert == "") != (o.TLSKey == "") {
		return nil, &OptionError{Text: "--tls-cert and --tls-key belong together: give both, or neither"}
	}
	if !at.loop && (o.Token == "" || o.TLSCert == "") {
		return nil, &OptionError{Text: fmt.Sprintf("--listen %s can be reached from other machines: give --token-file, --tls-cert and --tls-key; "+
			"or listen on 127.0.0.1 and reach it with ssh -L", o.Listen)}
	}
	if at.unix != "" && o.TLSCert != "" {
		return nil, &OptionError{Text: "--tls-cert: a socket needs no TLS, nobody but its owner can connect to it"}
	}
	s := &Server{
		node: o.Node, handOver: o.Swap, version: o.Version, began: time.Now(), grace: o.Grace, log: o.Log, place: at,
		foreign:  http.NewCrossOriginProtection(),
		view:     &view{node: o.Node},
		requests: make(chan struct{}, maxRequests), runs: make(chan struct{}, maxRuns), swapping: make(chan struct{}, 1),
	}
	s.findings.log = o.Log
	s.metrics = newMetrics(o.Version)
	s.hub = newHub(s.metrics.heard)
	s.view.looked = s.metrics.saw
	s.commands, s.withdraw = context.WithCancel(context.Background())
	s.routes = s.table()
	if s.host, err = os.Hostname(); err != nil {
		s.host = "unknown"
	}
	if o.Token != "" {
		if s.token, err = newToken(o.Token); err != nil {
			return nil, &OptionError{Text: err.Error()}
		}
	}
	if o.TLSCert != "" {
		if s.tls, err = newCertificate(o.TLSCert, o.TLSKey); err != nil {
			return nil, &OptionError{Text: err.Error()}
		}
	}
	l, err := at.open()
	if err != nil {
		return nil, err
	}
	s.listener = limit(l, maxConnections)
	return s, nil
}

// table are the routes. docs/serve.openapi.json describes each; a test compares them.
func (s *Server) table() map[string]map[string]route {
	get := func(r route) map[string]route { return map[string]route{http.MethodGet: r} }
	post := func(r route) map[string]route { return map[string]route{http.MethodPost: r} }
	return map[string]map[string]route{
		"/":          get(route{handle: s.page, open: true, page: true}),
		"/healthz":   get(route{handle: s.healthz, open: true}),
		"/metrics":   get(route{handle: s.scrape}),
		"/v1/node":   get(route{handle: s.summary}),
		"/v1/ranks":  get(route{handle: s.details}),
		"/v1/events": get(route{handle: s.events, stream: true}),
		"/v1/pause":  post(route{handle: s.act("pause", s.node.Pause), action: true}),
		"/v1/resume": post(route{handle: s.act("resume", s.node.Resume), action: true}),
		"/v1/swap":   post(route{handle: s.swap, action: true}),
	}
}

// URL is where the server answers.
func (s *Server) URL() string {
	if s.place.unix != "" {
		return "unix:" + s.place.unix
	}
	scheme := "http"
	if s.tls != nil {
		scheme = "https"
	}
	return scheme + "://" + s.listener.Addr().String()
}

// Guarded reports whether a client must show a token, or be the user.
func (s *Server) Guarded() bool { return s.token != nil || s.place.unix != "" }

// Reload reads the token and the certificate anew. What cannot be read stays as it was.
func (s *Server) Reload() error {
	var errs []error
	if s.token != nil {
		errs = append(errs, s.token.read())
	}
	if s.tls != nil {
		errs = append(errs, s.tls.read())
	}
	return errors.Join(errs...)
}

// Serve answers until the context ends, then ends in order: commands under way have the grace to come to
// their end, those that have not begun are withdrawn after it, and readers of events are let go at once.
func (s *Server) Serve(ctx context.Context) error {
	server := &http.Server{
		Handler: s, ReadHeaderTimeout: headerTimeout, ReadTimeout: bodyTimeout, WriteTimeout: replyTimeout,
		IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader,
		HTTP2:     &http.HTTP2Config{MaxConcurrentStreams: maxStreams},
		ErrorLog:  slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
		ConnState: s.listener.state,
	}
	following, unfollow := context.WithCancel(context.Background())
	var followers sync.WaitGroup
	followers.Go(func() { s.follow(following) })
	ended := make(chan error, 1)
	go func() {
		if s.tls != nil {
			server.TLSConfig = s.tls.config()
			ended <- server.ServeTLS(s.listener, "", "")
			return
		}
		ended <- server.Serve(s.listener)
	}()
	var err error
	select {
	case err = <-ended: // it could not go on
	case <-ctx.Done():
		err = s.end(server)
		if serving := <-ended; err == nil {
			err = serving
		}
	}
	s.withdraw()
	unfollow()
	followers.Wait()
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// end lets commands come to their end, within the grace, and closes all connections.
func (s *Server) end(server *http.Server) error {
	s.mu.Lock()
	s.ending = true
	s.mu.Unlock()
	s.hub.close()
	closed := make(chan error, 1)
	all, stop := context.WithTimeout(context.Background(), s.grace+lastWords)
	defer stop()
	go func() { closed <- server.Shutdown(all) }()
	over := make(chan struct{})
	go func() { s.running.Wait(); close(over) }()
	select {
	case <-over:
	case <-time.After(s.grace):
		s.log.Warn("the grace is over: commands that have not begun are withdrawn")
		s.withdraw()
	}
	err := <-closed
	if errors.Is(err, context.DeadlineExceeded) {
		s.log.Warn("a command has begun in a rank and goes on there; nobody waits for it any longer")
		err = server.Close()
	}
	return err
}

// enter counts a command, unless the server ends.
func (s *Server) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ending {
		return false
	}
	s.running.Add(1)
	return true
}

func stopping() *refusal {
	return refuse(http.StatusServiceUnavailable, codeStopping, "", "the server ends")
}

// ServeHTTP takes one request through the guards to its route.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	recorded := &recorder{ResponseWriter: w}
	headers(w.Header())
	path := r.URL.Path
	if refused := s.serve(recorded, r); refused != nil {
		writeRefusal(recorded, refused)
	}
	if s.routes[path] == nil {
		path = "other"
	}
	s.metrics.replied(path, recorded.status)
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) *refusal {
	if refused := s.hostAllowed(r); refused != nil {
		return refused
	}
	methods := s.routes[r.URL.Path]
	method := r.Method
	if method == http.MethodHead {
		method = http.MethodGet
	}
	to, found := methods[method]
	if refused := s.siteAllowed(r, method != http.MethodGet, to.page); refused != nil {
		return refused
	}
	if s.token != nil && !to.open {
		if refused := s.token.shown(r); refused != nil {
			return refused
		}
	}
	switch {
	case methods == nil:
		return refuse(http.StatusNotFound, codeNoRoute, "docs/serve.md lists what there is", "nothing is at %s", short(r.URL.Path))
	case !found || (to.stream && r.Method == http.MethodHead):
		allowed := http.MethodGet
		if _, post := methods[http.MethodPost]; post {
			allowed = http.MethodPost
		}
		w.Header().Set("Allow", allowed)
		return refuse(http.StatusMethodNotAllowed, codeMethod, "", "%s takes %s", r.URL.Path, allowed)
	}
	select {
	case s.requests <- struct{}{}:
		defer func() { <-s.requests }()
	default:
		return refuse(http.StatusServiceUnavailable, codeBusy, "try again", "%d requests are under way already", maxRequests)
	}
	if to.action {
		if refused := jsonOnly(r); refused != nil {
			return refused
		}
	} else if err := unread(w, r); err != nil {
		return invalid("%s takes no body", r.URL.Path)
	}
	return to.handle(w, r)
}

// body reads the body of an action.
func (s *Server) body(w http.ResponseWriter, r *http.Request, into any) *refusal {
	r.Body = http.MaxBytesReader(w, r.Body, maxBody)
	if refused := decode(r.Body, into); refused != nil {
		return refused
	}
	return patient(w)
}

// unread is for requests without a body.
func unread(w http.ResponseWriter, r *http.Request) error {
	if r.ContentLength != 0 {
		return errors.New("a body")
	}
	if refused := patient(w); refused != nil {
		return refused
	}
	return nil
}

// patient ends the time in which a request must have come: it is here, and its reply may take longer. Else
// the server would take the connection for broken then.
func patient(w http.ResponseWriter) *refusal {
	if err := http.NewResponseController(w).SetReadDeadline(time.Time{}); err != nil {
		return refuse(http.StatusInternalServerError, codeInternal, "", "%s", oneLine(err))
	}
	return nil
}

func (s *Server) healthz(w http.ResponseWriter, _ *http.Request) *refusal {
	s.mu.Lock()
	ending := s.ending
	s.mu.Unlock()
	if ending {
		return stopping()
	}
	writeJSON(w, http.StatusOK, map[string]string{"message_type": "health", "status": "ok"})
	return nil
}

// recorder notes the status of a reply.
type recorder struct {
	http.ResponseWriter
	status int
}

func (r *recorder) WriteHeader(status int) {
	if r.status == 0 {
		r.status = status
	}
	r.ResponseWriter.WriteHeader(status)
}

func (r *recorder) Write(b []byte) (int, error) {
	if r.status == 0 {
		r.status = http.StatusOK
	}
	return r.ResponseWriter.Write(b)
}

// Unwrap is for http.ResponseController.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

func writeRefusal(w http.ResponseWriter, r *refusal) {
	switch r.status {
	case http.StatusUnauthorized:
		w.Header().Set("WWW-Authenticate", `Bearer realm="ebb"`)
	case http.StatusServiceUnavailable:
		w.Header().Set("Retry-After", "1")
		w.Header().Set("Connection", "close") // those who wait for a connection need this one more
	}
	writeJSON(w, r.status, map[string]*refusal{"error": r})
}

func writeJSON(w http.ResponseWriter, status int, value any) {
	text, err := json.Marshal(value)
	if err != nil {
		status, text = http.StatusInternalServerError, []byte(`{"error":{"code":"internal","message":"the reply cannot be written"}}`)
	}
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(status)
	// A client that has gone hears nothing, and nothing can be done about it.
	_, _ = w.Write(append(text, '\n'))
}

// once says a finding in the log when it is new, not at every look.
type once struct {
	log  *slog.Logger
	mu   sync.Mutex
	last string
}

func (o *once) say(err error) {
	text := ""
	if err != nil && !errors.Is(err, context.Canceled) {
		text = strings.Join(strings.Fields(err.Error()), " ")
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if text != "" && text != o.last {
		o.log.Warn("not looked at: " + text)
	}
	o.last = text
}
