package server

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ebb-offload/ebb/internal/control"
	"github.com/ebb-offload/ebb/internal/testutil"
)

// otherUserEnv makes this binary a client that prints the first line that it gets from a socket.
const otherUserEnv = "EBB_TEST_SOCKET"

func TestMain(m *testing.M) {
	if path := os.Getenv(otherUserEnv); path != "" {
		c, err := net.Dial("unix", path)
		if err == nil {
			_, err = io.Copy(os.Stdout, c)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// rig is a server whose requests wait until the test answers them.
type rig struct {
	*Server
	t    *testing.T
	path string
	asks chan *held
}

// held is a request that waits for its answer.
type held struct {
	*Ask
	answer chan Answer
}

func newRig(t *testing.T, change ...func(*Options)) *rig {
	t.Helper()
	dir := testutil.SocketDir(t)
	r := &rig{t: t, path: filepath.Join(dir, "ebb", "rank.sock"), asks: make(chan *held, 100)}
	if err := os.Mkdir(filepath.Dir(r.path), 0o700); err != nil {
		t.Fatal(err)
	}
	o := Options{
		Socket: r.path,
		Hello:  control.Hello{V: control.Version, EBB: "1.2.3", Who: control.Who{Role: "actor", PID: os.Getpid()}},
		Handle: func(a *Ask) Answer {
			if a.Cmd == control.CmdStatus {
				return Answer{Result: "fine"}
			}
			h := &held{Ask: a, answer: make(chan Answer)}
			r.asks <- h
			return <-h.answer
		},
	}
	for _, c := range change {
		c(&o)
	}
	var err error
	if r.Server, err = Start(o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		r.Close()
		if _, err := os.Lstat(r.path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the socket is left: %v", err)
		}
	})
	return r
}

// client is a connection as another program has it.
type client struct {
	net.Conn
	t     *testing.T
	lines *bufio.Reader
}

// dial connects, and does not look at what the rank says first.
func (r *rig) dial() *client {
	r.t.Helper()
	c, err := net.Dial("unix", r.path)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = c.Close() })
	return &client{Conn: c, t: r.t, lines: bufio.NewReader(c)}
}

func (r *rig) connect() *client {
	r.t.Helper()
	c := r.dial()
	var hello control.Hello
	c.next(&hello)
	if hello.V != control.Version || hello.EBB != "1.2.3" || hello.Role != "actor" || hello.PID != os.Getpid() {
		r.t.Fatalf("the rank says %+v", hello)
	}
	return c
}

func (c *client) say(text string) {
	c.t.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		c.t.Fatal(err)
	}
}

func (c *client) next(into any) {
	c.t.Helper()
	line, err := c.lines.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, into)
	}
	if err != nil {
		c.t.Fatalf("%q: %v", line, err)
	}
}

func (c *client) reply() (r control.Reply) {
	c.t.Helper()
	c.next(&r)
	if r.V != control.Version || r.OK != (r.Error == nil) {
		c.t.Fatalf("reply %+v", r)
	}
	return r
}

// refused is the text of a reply that is an error.
func (c *client) refused() string {
	c.t.Helper()
	r := c.reply()
	if r.Error == nil {
		c.t.Fatalf("not refused: %+v", r)
	}
	return r.Error.Message
}

// fine checks that the connection still works.
func (c *client) fine() {
	c.t.Helper()
	c.say(`{"v":1,"id":"fine","cmd":"status"}` + "\n")
	if r := c.reply(); !r.OK || r.ID != "fine" || string(r.Result) != `"fine"` {
		c.t.Errorf("status: %+v", r)
	}
}

// ended checks that the rank has closed the connection.
func (c *client) ended() {
	c.t.Helper()
	if _, err := c.lines.ReadByte(); err == nil {
		c.t.Error("the connection goes on")
	}
}

func want(t *testing.T, text, part string) {
	t.Helper()
	if !strings.Contains(text, part) {
		t.Errorf("%q does not say %q", text, part)
	}
}

const (
	pauseA = `{"v":1,"id":"a","cmd":"pause"}` + "\n"
	readX  = `{"v":1,"id":"x","cmd":"read","address":"0x10","size":1}` + "\n"
)

func TestASocketIsPrivate(t *testing.T) {
	r := newRig(t)
	var st unix.Stat_t
	if err := unix.Lstat(r.path, &st); err != nil || st.Mode != unix.S_IFSOCK|0o600 {
		t.Errorf("mode %o, %v", st.Mode, err)
	}
	r.connect().fine()
}

func TestRequestsAreAnsweredInAnyOrder(t *testing.T) {
	r := newRig(t)
	c := r.connect()
	c.say(pauseA)
	a := <-r.asks
	c.fine() // while the pause waits
	a.answer <- Answer{Result: 7}
	if got := c.reply(); got.ID != "a" || string(got.Result) != "7" {
		t.Errorf("%+v", got)
	}
	c.say(readX)
	(<-r.asks).answer <- Answer{Err: &control.Error{Code: 2, Message: "not managed"}}
	if got := c.reply(); got.ID != "x" || got.Error == nil || got.Error.Code != 2 {
		t.Errorf("%+v", got)
	}
}

func TestRequestsMayComeInAnyPieces(t *testing.T) {
	r := newRig(t)
	c, other := r.connect(), r.connect()
	c.say(`{"v":1,"id":"1","cmd":"st`)
	other.say(`{"v":1,"id":"2",`)
	other.fine2(`"cmd":"status"}`+"\n", "2")
	c.say(`atus"}` + "\n" + `{"v":1,"id":"3","cmd":"status"}` + "\n" + `{"v":1,`)
	for _, id := range []string{"1", "3"} {
		if got := c.reply(); !got.OK || (got.ID != "1" && got.ID != "3") {
			t.Errorf("%+v, want that of %s", got, id)
		}
	}
	c.fine2(`"id":"4","cmd":"status"}`+"\n", "4")
}

// fine2 says the rest of a request and checks its answer.
func (c *client) fine2(rest, id string) {
	c.t.Helper()
	c.say(rest)
	if got := c.reply(); !got.OK || got.ID != id {
		c.t.Errorf("%+v, want that of %s", got, id)
	}
}

func TestWhatMakesNoSenseIsRefusedAndDisturbsNobody(t *testing.T) {
	r := newRig(t)
	c, other := r.connect(), r.connect()
	for line, says := range map[string]string{
		"":                                    "an empty line",
		"GET / HTTP/1.1":                      "not a request",
		`{"v":9,"id":"q","cmd":"status"}`:     "version 9 of the protocol, this rank version 1",
		`{"v":1,"id":"q","cmd":"fly"}`:        "unknown command",
		"\x00\xff\x7f":                        "not a request",
		`{"v":1,"cmd":"pause","timeout":"1"}`: "no field",
	} {
		c.say(line + "\n")
		want(t, c.refused(), says)
		c.fine()
		other.fine()
	}
}

func TestALineWithoutAnEndIsCutOff(t *testing.T) {
	r := newRig(t)
	c, other := r.connect(), r.connect()
	go func() { _, _ = io.Copy(c, zeros{}) }() // until the rank hangs up
	want(t, c.refused(), "longer than 65536 bytes")
	c.ended()
	other.fine()
}

// zeros is a file of digits without an end.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = '0'
	}
	return len(p), nil
}

func TestAConnectionThatEndsWithinARequestIsTold(t *testing.T) {
	r := newRig(t)
	c := r.connect()
	c.say(`{"v":1,`)
	c.closeWrite()
	want(t, c.refused(), "ended in the middle of a request")
	c.ended()
}

func (c *client) closeWrite() {
	c.t.Helper()
	if err := c.Conn.(*net.UnixConn).CloseWrite(); err != nil {
		c.t.Fatal(err)
	}
}

func TestWhoSaysNothingMoreStillGetsItsAnswers(t *testing.T) {
	r := newRig(t)
	c := r.connect()
	c.say(pauseA)
	a := <-r.asks
	c.closeWrite()
	r.connect().fine() // the loop has seen it
	select {
	case <-a.Gone:
		t.Error("it counts as gone")
	default:
	}
	a.answer <- Answer{Result: 1}
	if got := c.reply(); !got.OK || got.ID != "a" {
		t.Errorf("%+v", got)
	}
	c.ended()
}

func TestTooManyConnectionsAreRefused(t *testing.T) {
	r := newRig(t)
	var open []*client
	for range maxConns {
		open = append(open, r.connect())
	}
	more := r.dial()
	want(t, more.refused(), "32 connections are open already")
	more.ended()
	_ = open[7].Close()
	for { // until the rank has seen that it is closed
		c := r.dial()
		if line, err := c.lines.ReadString('\n'); err == nil && strings.Contains(line, "1.2.3") {
			c.fine()
			break
		}
	}
	open[0].fine()
}

func TestTooManyRequestsAreRefused(t *testing.T) {
	r := newRig(t)
	c := r.connect()
	for i := range maxUnder {
		c.say(fmt.Sprintf(`{"v":1,"id":"%d","cmd":"read","address":"0x10","size":1}`+"\n", i))
	}
	c.say(`{"v":1,"id":"more","cmd":"status"}` + "\n")
	want(t, c.refused(), "16 requests of this connection are under way")
	other := r.connect()
	other.fine() // reads that wait keep no status
	for range maxUnder {
		(<-r.asks).answer <- Answer{}
		c.reply()
	}
	c.fine()

	for i := range maxMoves {
		c.say(fmt.Sprintf(`{"v":1,"id":"p%d","cmd":"pause"}`+"\n", i))
	}
	other.say(`{"v":1,"id":"p0","cmd":"pause"}` + "\n") // no further one
	other.say(`{"v":1,"id":"more","cmd":"resume"}` + "\n")
	want(t, other.refused(), "8 pauses and resumes are under way")
	for range maxMoves {
		(<-r.asks).answer <- Answer{}
		c.reply()
	}
	if got := other.reply(); got.ID != "p0" {
		t.Errorf("%+v", got)
	}
}

func TestTheSameIDIsTheSameRequest(t *testing.T) {
	r := newRig(t)
	c, other := r.connect(), r.connect()
	c.say(pauseA)
	a := <-r.asks
	other.say(pauseA) // joins
	other.say(`{"v":1,"id":"a","cmd":"resume"}` + "\n")
	want(t, other.refused(), `the id "a" is that of another request, a pause of everything`)
	other.say(`{"v":1,"id":"a","cmd":"pause","tags":["x"]}` + "\n")
	want(t, other.refused(), "another request")
	a.answer <- Answer{Result: 5}
	for _, asker := range []*client{c, other} {
		if got := asker.reply(); got.ID != "a" || string(got.Result) != "5" {
			t.Errorf("%+v", got)
		}
	}
	third := r.connect()
	for range 3 { // answered as it was, without another pause
		third.say(pauseA)
		if got := third.reply(); got.ID != "a" || string(got.Result) != "5" {
			t.Errorf("%+v", got)
		}
	}
	if len(r.asks) > 0 {
		t.Error("it was carried out again")
	}
}

func TestAFailureIsRememberedToo(t *testing.T) {
	r := newRig(t)
	c := r.connect()
	c.say(pauseA)
	(<-r.asks).answer <- Answer{Err: &control.Error{Code: 18, Message: "late"}}
	want(t, c.refused(), "late")
	c.say(pauseA)
	want(t, c.refused(), "late")
}

func TestOnlyTheLatestIDsAreRemembered(t *testing.T) {
	r := newRig(t)
	c := r.connect()
	pause := func(id string, fresh bool) {
		t.Helper()
		c.say(fmt.Sprintf(`{"v":1,"id":%q,"cmd":"pause"}`+"\n", id))
		if fresh {
			(<-r.asks).answer <- Answer{}
		}
		if got := c.reply(); got.ID != id {
			t.Fatalf("%+v, want that of %s", got, id)
		}
	}
	for i := range remembered {
		pause(fmt.Sprint(i), true)
	}
	pause("0", false)
	pause("new", true)
	pause("1", false)
	pause("0", true) // forgotten
	for range 2 {
		c.say(`{"v":1,"cmd":"pause"}` + "\n") // an empty id is nobody's
		(<-r.asks).answer <- Answer{}
		c.reply()
	}
}

func TestARequestIsGoneWithTheLastWhoAsked(t *testing.T) {
	r := newRig(t)
	c, other := r.connect(), r.connect()
	c.say(pauseA)
	a := <-r.asks
	other.say(pauseA)
	other.fine() // it has joined
	_ = c.Close()
	other.fine()
	select {
	case <-a.Gone:
		t.Fatal("one still waits")
	default:
	}
	_ = other.Close()
	<-a.Gone
	a.answer <- Answer{Withdrawn: true}
	again := r.connect()
	again.say(pauseA) // is a new one, or the old one begun anew
	(<-r.asks).answer <- Answer{Result: 3}
	if got := again.reply(); string(got.Result) != "3" {
		t.Errorf("%+v", got)
	}
}

// Who withdraws a request hears for certain whether it had begun: from the request's own reply.
func TestWhoWithdrawsARequestHearsWhetherItHadBegun(t *testing.T) {
	r := newRig(t)
	c := r.connect()
	withdraw := func() {
		t.Helper()
		c.say(`{"v":1,"id":"w","cmd":"withdraw","of":"a"}` + "\n")
		if got := c.reply(); got.ID != "w" || !got.OK {
			t.Fatalf("%+v", got)
		}
	}
	withdraw() // of what was never asked for
	c.say(pauseA)
	a := <-r.asks
	withdraw()
	withdraw()
	<-a.Gone
	a.answer <- Answer{Withdrawn: true}
	if got := c.reply(); got.ID != "a" || got.OK || got.Error.Code != codeTimeout {
		t.Errorf("%+v", got)
	}

	c.say(pauseA) // is a new one
	a = <-r.asks
	withdraw()
	<-a.Gone
	a.answer <- Answer{Result: "done"} // it was at its begin
	if got := c.reply(); got.ID != "a" || string(got.Result) != `"done"` {
		t.Errorf("%+v", got)
	}
	withdraw() // of what is done
	if n := r.underWay(); n != 0 {
		t.Errorf("%d requests are under way", n)
	}
}

func TestWhatOneWithdrawsGoesOnForOthers(t *testing.T) {
	r := newRig(t)
	c, other := r.connect(), r.connect()
	c.say(pauseA)
	a := <-r.asks
	other.say(pauseA)
	other.fine() // it has joined
	c.say(`{"v":1,"id":"w","cmd":"withdraw","of":"a"}` + "\n")
	if got := c.reply(); got.ID != "a" || got.OK || got.Error.Code != codeTimeout {
		t.Errorf("%+v", got)
	}
	c.reply()
	select {
	case <-a.Gone:
		t.Error("one still waits")
	default:
	}
	a.answer <- Answer{Result: 5}
	if got := other.reply(); string(got.Result) != "5" {
		t.Errorf("%+v", got)
	}
}

func TestWhoAsksForAWithdrawnRequestBeginsItAnew(t *testing.T) {
	r := newRig(t)
	c := r.connect()
	c.say(pauseA)
	a := <-r.asks
	_ = c.Close()
	<-a.Gone
	late := r.connect()
	late.say(pauseA) // joins what has not ended
	late.fine()
	a.answer <- Answer{Withdrawn: true}
	b := <-r.asks
	select {
	case <-b.Gone:
		t.Error("nobody waits for it")
	default:
	}
	b.answer <- Answer{Result: 4}
	if got := late.reply(); string(got.Result) != "4" {
		t.Errorf("%+v", got)
	}
}

func TestEventsReachThoseWhoSubscribed(t *testing.T) {
	r := newRig(t)
	c, other := r.connect(), r.connect()
	r.Publish(control.Event{Seq: 1}) // nobody listens
	if r.Subscribed() {
		t.Error("somebody listens")
	}
	for range 2 { // twice is once
		c.say(`{"v":1,"id":"s","cmd":"subscribe"}` + "\n")
		if got := c.reply(); !got.OK || got.ID != "s" || string(got.Result) != "null" {
			t.Fatalf("%+v", got)
		}
	}
	r.Publish(control.Event{Seq: 2, Kind: control.EventBegin})
	var e control.Event
	if c.next(&e); e.Seq != 2 || e.Kind != control.EventBegin {
		t.Errorf("%+v", e)
	}
	c.fine()
	other.fine()
	_ = c.Close()
	for r.Subscribed() { // until the rank has seen it
		other.fine()
	}
}

func TestWhoDoesNotReadLosesEventsAndIsTold(t *testing.T) {
	r := newRig(t)
	c, other := r.connect(), r.connect()
	for _, s := range []*client{c, other} {
		s.say(`{"v":1,"id":"s","cmd":"subscribe"}` + "\n")
		s.reply()
	}
	const events = 20000
	received := make(chan int)
	go func() { // the other one reads; what it loses it is told too
		seen, e := uint64(0), control.Event{}
		for seen < events {
			other.next(&e)
			if e.Kind == control.EventLost {
				seen += e.Lost
			} else {
				seen++
			}
		}
		received <- int(seen)
	}()
	long := strings.Repeat("x", 200)
	for i := range events {
		r.Publish(control.Event{Seq: uint64(i + 1), Kind: control.EventProgress, Error: long})
	}
	if n := <-received; n != events {
		t.Errorf("%d events accounted for, want %d", n, events)
	}
	var seen, lost uint64
	last := uint64(0)
	for seen+lost < events {
		var e control.Event
		c.next(&e)
		if e.Kind == control.EventLost {
			lost += e.Lost
		} else {
			seen++
		}
		if e.Seq <= last {
			t.Fatalf("event %d after %d", e.Seq, last)
		}
		last = e.Seq
		if seen+lost != e.Seq {
			t.Fatalf("%d came and %d were lost, at event %d", seen, lost, e.Seq)
		}
	}
	if lost == 0 {
		t.Error("nothing was lost: the queue is not bounded")
	}
}

func TestWhoDoesNotReadItsAnswersIsHungUpOn(t *testing.T) {
	big := strings.Repeat("x", 1<<20)
	var carried atomic.Int64
	r := newRig(t, func(o *Options) {
		o.Handle = func(a *Ask) Answer {
			carried.Add(1)
			return Answer{Result: big}
		}
	})
	c, other := r.dial(), r.connect()
	answers := 2 * maxQueue / len(big)
	for i := range answers {
		_, err := io.WriteString(c, `{"v":1,"cmd":"devices"}`+"\n")
		for err == nil && carried.Load() <= int64(i) && r.open() == 2 {
			other.say("\n") // makes the loop go round
			other.refused()
		}
	}
	for r.open() == 2 {
		other.say("\n")
		other.refused()
	}
	n, _ := io.Copy(io.Discard, c.lines) // what was sent before
	if n >= int64(answers*len(big)) {
		t.Errorf("%d bytes were kept for it", n)
	}
}

// open is how many connections there are.
func (s *Server) open() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.conns {
		if c != nil {
			n++
		}
	}
	return n
}

func TestAnAnswerThatIsTooLongIsAnError(t *testing.T) {
	r := newRig(t)
	c := r.connect()
	c.say(readX)
	(<-r.asks).answer <- Answer{Result: strings.Repeat("x", control.MaxReply)}
	want(t, c.refused(), "more than 4194304")
	c.say(readX)
	(<-r.asks).answer <- Answer{Result: func() {}}
	want(t, c.refused(), "json")
	c.fine()
}

func TestAPanicOfTheHandlerIsAnError(t *testing.T) {
	r := newRig(t, func(o *Options) {
		handle := o.Handle
		o.Handle = func(a *Ask) Answer {
			if a.Cmd == control.CmdDevices {
				panic("oops")
			}
			return handle(a)
		}
	})
	c := r.connect()
	c.say(`{"v":1,"id":"d","cmd":"devices"}` + "\n")
	want(t, c.refused(), "defect in ebb: oops")
	c.fine()
}

func TestADefectEndsTheServerAndIsTold(t *testing.T) {
	told := make(chan any, 1)
	r := newRig(t, func(o *Options) {
		o.Broken = func(defect any) { told <- defect }
		o.Note = func(slot, fd int, _, _ uint64) {
			if slot == 4 && fd >= 0 {
				panic("oops")
			}
		}
	})
	c := r.connect()
	second := r.dial()
	if defect := <-told; defect != "oops" {
		t.Errorf("%v", defect)
	}
	c.ended()
	second.ended()
	r.Publish(control.Event{}) // goes on
}

// Who asks, gives up and comes back leaves nothing behind, although what hangs keeps its turn.
func TestWhoIsGoneBeforeItsTurnIsNotWaitedFor(t *testing.T) {
	r := newRig(t)
	busy := r.connect()
	var turns []*held
	for range atOnce[control.CmdDevices] {
		busy.say(devices)
		turns = append(turns, <-r.asks)
	}
	for range 3 {
		c := r.connect()
		c.say(devices)
		c.fine() // it was read
		_ = c.Close()
	}
	for r.underWay() > len(turns) {
		busy.fine()
	}
	for _, h := range turns {
		h.answer <- Answer{Result: 1}
		busy.reply()
	}
	busy.say(devices)
	(<-r.asks).answer <- Answer{Result: "mine"}
	if got := busy.reply(); string(got.Result) != `"mine"` {
		t.Errorf("%+v", got)
	}
}

const devices = `{"v":1,"cmd":"devices"}` + "\n"

// underWay is how many requests are carried out, or wait for their turn.
func (s *Server) underWay() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.calls.under)
}

func TestCloseEndsEveryConnection(t *testing.T) {
	r := newRig(t)
	c, idle := r.connect(), r.connect()
	c.say(pauseA)
	a := <-r.asks
	idle.say(`{"v":1,"id":"s","cmd":"subscribe"}` + "\n")
	idle.reply()
	r.Publish(control.Event{Seq: 9, Kind: control.EventExit})
	r.Close()
	var e control.Event
	if idle.next(&e); e.Kind != control.EventExit {
		t.Errorf("%+v", e)
	}
	idle.ended()
	c.ended()
	<-a.Gone
	a.answer <- Answer{}
	if _, err := net.Dial("unix", r.path); err == nil {
		t.Error("it still listens")
	}
}

func TestADirectoryThatIsNotPrivateIsRefused(t *testing.T) {
	r := newRig(t)
	for name, c := range map[string]struct {
		make func(path string) error
		says string
	}{
		"open":      {func(p string) error { return errors.Join(os.Mkdir(p, 0o700), os.Chmod(p, 0o755)) }, "is not private (mode 0755, must be 0700)"},
		"link":      {func(p string) error { return os.Symlink(filepath.Dir(r.path), p) }, "is a symbolic link"},
		"file":      {func(p string) error { return os.WriteFile(p, nil, 0o700) }, "is not a directory"},
		"nowhere/x": {func(string) error { return nil }, "make the runtime directory"},
	} {
		dir := filepath.Join(filepath.Dir(filepath.Dir(r.path)), name)
		if err := c.make(dir); err != nil {
			t.Fatal(err)
		}
		_, err := Start(Options{Socket: filepath.Join(dir, "rank.sock")})
		if err == nil || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), dir) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if os.Geteuid() != 0 {
		return
	}
	dir := filepath.Join(filepath.Dir(filepath.Dir(r.path)), "theirs")
	if err := errors.Join(os.Mkdir(dir, 0o700), os.Chown(dir, 65534, 65534)); err != nil {
		t.Fatal(err)
	}
	if _, err := Start(Options{Socket: filepath.Join(dir, "rank.sock")}); err == nil || !strings.Contains(err.Error(), "belongs to user 65534, not to user 0") {
		t.Error(err)
	}
}

func TestAnotherUserIsRefused(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can become another user")
	}
	r := newRig(t)
	// What keeps others out first, the modes, is taken away.
	for _, path := range []string{filepath.Dir(filepath.Dir(r.path)), filepath.Dir(r.path), r.path} {
		if err := os.Chmod(path, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	binary := filepath.Join(filepath.Dir(r.path), "client")
	program, err := os.ReadFile(os.Args[0])
	if err == nil {
		err = os.WriteFile(binary, program, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(binary)
	cmd.Env = append(os.Environ(), otherUserEnv+"="+r.path)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	want(t, string(out), "user 65534 may not command this rank: it belongs to user 0")
	if strings.Contains(string(out), "1.2.3") || strings.Count(string(out), "\n") != 1 {
		t.Errorf("it is told more: %s", out)
	}
	r.connect().fine()
}

// A host closes descriptors that it does not know, and opens files that get their numbers.
func TestDescriptorsThatAreOtherFilesByNowAreLeftAlone(t *testing.T) {
	for slot, name := range map[int]string{0: "the loop's end of the pipe", 1: "the other end", 2: "the listening socket", 3: "a connection"} {
		t.Run(name, func(t *testing.T) {
			var mu sync.Mutex
			noted := map[int]int{}
			r := newRig(t, func(o *Options) {
				o.Note = func(slot, fd int, dev, ino uint64) {
					mu.Lock()
					defer mu.Unlock()
					if d, err := describe(fd); fd >= 0 && (err != nil || d.dev != dev || d.ino != ino) {
						t.Errorf("slot %d: descriptor %d is not that file: %v", slot, fd, err)
					}
					noted[slot] = fd
				}
			})
			c := r.connect()
			c.fine()
			file, err := os.CreateTemp(t.TempDir(), "")
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = file.Close() }()
			mu.Lock()
			fd := noted[slot]
			mu.Unlock()
			if err := unix.Dup3(int(file.Fd()), fd, unix.O_CLOEXEC); err != nil {
				t.Fatal(err)
			}
			defer func() { _ = unix.Close(fd) }()
			other, err := net.Dial("unix", r.path)
			if slot == 3 {
				if err != nil {
					t.Fatal(err)
				}
				(&client{Conn: other, t: t, lines: bufio.NewReader(other)}).hears("1.2.3")
				c.ended()
			} else if err == nil { // whatever wakes the loop ends the server
				_, _ = io.Copy(io.Discard, other)
				c.ended()
			}
			r.Publish(control.Event{})
			r.Close()
			same, err := describe(fd)
			if mine, e := describe(int(file.Fd())); err != nil || e != nil || same.ino != mine.ino {
				t.Errorf("the host's file was closed: %v, %v", err, e)
			}
			if text, err := os.ReadFile(file.Name()); err != nil || len(text) > 0 {
				t.Errorf("the host's file was written to: %q, %v", text, err)
			}
		})
	}
}

func (c *client) hears(part string) {
	c.t.Helper()
	line, err := c.lines.ReadString('\n')
	if err != nil {
		c.t.Fatal(err)
	}
	want(c.t, line, part)
}

func TestThereIsASlotForEveryDescriptor(t *testing.T) {
	var mu sync.Mutex
	noted := map[int]bool{}
	r := newRig(t, func(o *Options) {
		o.Note = func(slot, fd int, _, _ uint64) {
			mu.Lock()
			defer mu.Unlock()
			if slot < 0 || slot >= Slots || noted[slot] == (fd >= 0) {
				t.Errorf("slot %d: %d", slot, fd)
			}
			noted[slot] = fd >= 0
		}
	})
	for range maxConns {
		r.connect()
	}
	r.Close()
	mu.Lock()
	defer mu.Unlock()
	for slot := range Slots {
		if open, known := noted[slot]; !known || open {
			t.Errorf("slot %d: known %t, open %t", slot, known, open)
		}
	}
}

// However a stream of bytes is cut, the same lines come of it.
func FuzzLines(f *testing.F) {
	f.Add([]byte("a\nbc\n\nd"), []byte{1, 2})
	f.Add([]byte("\n\n"), []byte{0, 9})
	f.Add([]byte(strings.Repeat("x", 70000)+"\n"), []byte{255})
	f.Fuzz(func(t *testing.T, stream, cuts []byte) {
		var whole, got []string
		var all splitter
		errWhole := all.feed(stream, func(line []byte) { whole = append(whole, string(line)) })
		var s splitter
		var err error
		for rest := stream; len(rest) > 0 && err == nil; {
			n := len(rest)
			if len(cuts) > 0 {
				n = min(n, int(cuts[0])+1)
				cuts = cuts[1:]
			}
			err = s.feed(rest[:n], func(line []byte) { got = append(got, string(line)) })
			rest = rest[n:]
		}
		if !slices.Equal(got, whole) || (err == nil) != (errWhole == nil) {
			t.Fatalf("%q in pieces: %v, as a whole: %q, %v", got, err, whole, errWhole)
		}
		if text := strings.Join(append(got, string(s.part)), "\n"); err == nil && text != string(stream) {
			t.Fatalf("%q became %q", stream, text)
		}
		for _, line := range got {
			if len(line) >= control.MaxRequest {
				t.Fatalf("a line of %d bytes", len(line))
			}
		}
	})
}
