package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/ebb-offload/ebb/internal/alloc"
	"github.com/ebb-offload/ebb/internal/control"
	"github.com/ebb-offload/ebb/internal/control/client"
	"github.com/ebb-offload/ebb/internal/mem"
	"github.com/ebb-offload/ebb/internal/testutil"
)

// These tests command an engine as others do, through its socket. What libebb.so adds between the
// two, its guards, is tested in shim/tests and test/e2e.

// direct are the calls of an engine without libebb.so.
type direct struct{ r atomic.Pointer[rig] }

func (d *direct) Status() ([]byte, *control.Error) { return d.r.Load().Status(nil), nil }

func (d *direct) Pause(tags []string, timeout float64, ask uint64) (control.Done, *control.Error) {
	r := d.r.Load()
	set := r.set
	set.Ask = ask
	wait := time.Duration(noLimit)
	if timeout >= 0 {
		wait = time.Duration(timeout * float64(time.Second))
	}
	return done(r.RequestPause(tags, wait, set))
}

func (d *direct) Resume(tags []string, timeout float64, ask uint64) (control.Done, *control.Error) {
	r := d.r.Load()
	set := r.set
	set.Ask, set.ResumeWait = ask, time.Duration(max(0, timeout)*float64(time.Second))
	return done(r.Resume(tags, set))
}

func (d *direct) Read(addr uint64, p []byte) *control.Error {
	return faultOf(d.r.Load().Read(mem.Addr(addr), p, false))
}

func done(res Result, err error) (control.Done, *control.Error) {
	return control.Done{Allocations: res.Allocations, Bytes: res.Bytes, DeviceBytes: res.DeviceBytes, Freed: res.Freed, Seconds: res.Duration.Seconds()}, faultOf(err)
}

func faultOf(err error) *control.Error {
	if err == nil {
		return nil
	}
	var fault control.Error
	if err := json.Unmarshal(Details(err), &fault); err != nil {
		panic(err)
	}
	return &fault
}

// newRemoteRig is an engine with a control socket.
func newRemoteRig(t *testing.T, c Config) *rig {
	t.Helper()
	dir := testutil.SocketDir(t)
	calls := &direct{}
	c.ChunkBytes, c.RuntimeDir, c.Calls = 4<<20, filepath.Join(dir, "ebb"), calls
	c.Job, c.Identity = "job", "role=actor cell=1 rank=2"
	r := newRigWith(t, c)
	calls.r.Store(r)
	return r
}

func (r *rig) socket() string {
	return filepath.Join(r.config.RuntimeDir, control.SocketName(r.self))
}

func (r *rig) connect() *client.Conn {
	r.t.Helper()
	c, err := client.Dial(context.Background(), r.socket())
	check(r.t, err)
	r.t.Cleanup(c.Close)
	return c
}

// asked is what became of a request.
type asked struct {
	result json.RawMessage
	err    error
}

// do sends a request, whose answer comes when it comes.
func do(c *client.Conn, r control.Request) <-chan asked {
	answer := make(chan asked, 1)
	go func() {
		r.V = control.Version
		result, err := c.Do(context.Background(), r)
		answer <- asked{result, err}
	}()
	return answer
}

// must is the result of a request that succeeds.
func must[T any](t *testing.T, answer <-chan asked) (result T) {
	t.Helper()
	a := <-answer
	check(t, a.err)
	check(t, json.Unmarshal(a.result, &result))
	return result
}

// fault is the error of a request that fails with a code.
func fault(t *testing.T, answer <-chan asked, code int) *control.Error {
	t.Helper()
	a := <-answer
	var fault *control.Error
	if !errors.As(a.err, &fault) || fault.Code != code {
		t.Fatalf("%s, %v; want an error with code %d", a.result, a.err, code)
	}
	return fault
}

// fails checks only that the request fails with a code.
func fails(t *testing.T, answer <-chan asked, code int) {
	t.Helper()
	_ = fault(t, answer, code)
}

// subscribe is what a subscriber hears from now on.
func (r *rig) subscribe() <-chan control.Event {
	r.t.Helper()
	list, err := r.connect().Events(context.Background())
	check(r.t, err)
	return list
}

// until collects the kinds of events up to the first of a kind.
func until(list <-chan control.Event, kind string) (kinds []string, last control.Event) {
	for e := range list {
		kinds = append(kinds, e.Kind)
		if e.Kind == kind {
			return kinds, e
		}
	}
	return kinds, last
}

func (r *rig) waits() { r.eventually(r.gate.waiting) }

func pauseOf(id string, tags ...string) control.Request {
	return control.Request{ID: id, Cmd: control.CmdPause, Tags: tags}
}

func seconds(s float64) *float64 { return &s }

func TestARankTellsWhoItIsAndItsStatus(t *testing.T) {
	r := newRemoteRig(t, Config{})
	r.make(1<<20, 1, disk("x"))
	c := r.connect()
	want := control.Who{Job: "job", Role: "actor", Cell: "1", Rank: "2", PID: os.Getpid()}
	if got := c.Hello(); got.Who != want || got.Started.IsZero() {
		t.Errorf("%+v, want %+v", got, want)
	}
	s := must[Status](t, do(c, control.Request{Cmd: control.CmdStatus}))
	if s.Job != "job" || s.Role != "actor" || s.Cell != "1" || s.Rank != "2" || s.PID != os.Getpid() || s.BytesActive != 1<<20 {
		t.Errorf("%+v", s)
	}
	devices := must[[]control.Device](t, do(c, control.Request{Cmd: control.CmdDevices}))
	if len(devices) != 1 {
		t.Fatalf("%+v, want the one device that memory is managed on", devices)
	}
	d := devices[0]
	if d.Ordinal != 1 || d.Total != 1536<<20 || d.Free != r.free(1) || d.Name == "" || !strings.HasPrefix(d.UUID, "GPU-") {
		t.Errorf("%+v", d)
	}
	if !slices.ContainsFunc(d.Holders, func(h control.Holder) bool { return h.PID == os.Getpid() && h.Bytes >= 1<<20 }) {
		t.Errorf("this process is not among the holders %+v", d.Holders)
	}
}

func TestAPauseFromOutsideWaitsForASafePoint(t *testing.T) {
	r := newRemoteRig(t, Config{})
	a := r.make(1<<20, 0, disk("x"))
	c, list := r.connect(), r.subscribe()
	pause := do(c, pauseOf("p"))
	r.waits()
	r.holds(a)
	safe := make(chan error)
	go func() { safe <- r.SafePoint() }()
	if d := must[control.Done](t, pause); d.Allocations != 1 || d.Bytes != 1<<20 || d.Freed != 1<<20 || d.Waited <= 0 {
		t.Errorf("%+v", d)
	}
	kinds, begin := until(list, control.EventBegin)
	if !slices.Equal(kinds, []string{control.EventAsked, control.EventBegin}) {
		t.Errorf("events %q", kinds)
	}
	if begin.By != "control" || begin.ID != "p" || begin.Operation != "pause" || begin.Total != 1<<20 || begin.Rank != "2" || begin.Host == "" {
		t.Errorf("%+v", begin)
	}
	kinds, end := until(list, control.EventEnd)
	var out outcome
	check(t, json.Unmarshal(end.Outcome, &out))
	if !slices.Contains(kinds, control.EventPhase) || out.Bytes != 1<<20 || out.Phases.Move <= 0 || end.Error != "" {
		t.Errorf("%q, %+v, %+v", kinds, end, out)
	}
	select {
	case err := <-safe:
		t.Fatalf("the actor went on without its memory (%v)", err)
	default:
	}
	if d := must[control.Done](t, do(c, control.Request{ID: "r", Cmd: control.CmdResume})); d.Allocations != 1 {
		t.Errorf("%+v", d)
	}
	check(t, <-safe)
	r.holds(a)
	if _, end := until(list, control.EventEnd); end.Operation != "resume" || end.By != "control" || end.ID != "r" || end.Seq == 0 {
		t.Errorf("%+v", end)
	}
	r.pause()
	if _, begin := until(list, control.EventBegin); begin.By != "program" || begin.ID != "" {
		t.Errorf("%+v", begin)
	}
	r.resume()
}

func TestAPauseFromOutsideEndsAtItsDeadline(t *testing.T) {
	r := newRemoteRig(t, Config{})
	a := r.make(1<<20, 0, disk("x"))
	list := r.subscribe()
	c := r.connect()
	late := pauseOf("p")
	late.Timeout = seconds(0.01)
	if f := fault(t, do(c, late), CodeTimeout); !strings.Contains(f.Message, "safe point") {
		t.Errorf("%+v", f)
	}
	if kinds, e := until(list, control.EventWithdraw); len(kinds) != 2 || !strings.Contains(e.Error, "the deadline passed") {
		t.Errorf("%q, %+v", kinds, e)
	}
	fails(t, do(c, late), CodeTimeout) // as it was
	check(t, r.SafePoint())
	if r.state(a) != alloc.Active {
		t.Error("it was paused all the same")
	}
}

func TestAPauseIsWithdrawnWithWhoAskedForIt(t *testing.T) {
	r := newRemoteRig(t, Config{})
	a := r.make(1<<20, 0, disk("x"))
	list := r.subscribe()
	c := r.connect()
	answer := do(c, pauseOf("p"))
	r.waits()
	c.Close()
	if (<-answer).err == nil {
		t.Error("it was answered")
	}
	if _, e := until(list, control.EventWithdraw); !strings.Contains(e.Error, "withdrawn") {
		t.Errorf("%+v", e)
	}
	check(t, r.SafePoint())
	if r.state(a) != alloc.Active {
		t.Fatal("it was paused all the same")
	}

	again := do(r.connect(), pauseOf("p")) // nothing was done, so it is begun anew
	r.waits()
	check(t, r.Idle(true))
	if d := must[control.Done](t, again); d.Allocations != 1 {
		t.Errorf("%+v", d)
	}
	r.resume()
	check(t, r.Idle(false))
}

// Once it has begun, memory is away, and whoever asked must bring it back: or somebody else.
func TestAPauseThatHasBegunIsNotWithdrawn(t *testing.T) {
	r := newRemoteRig(t, Config{IOTimeout: time.Minute})
	a := r.make(1<<20, 0, disk("x"))
	check(t, r.Idle(true))
	list := r.subscribe()
	r.hang("pwrite:1:hang")
	c := r.connect()
	do(c, pauseOf("p"))
	until(list, control.EventBegin)
	c.Close()
	again := do(r.connect(), pauseOf("p")) // joins, or hears what was done
	r.hang("")
	if d := must[control.Done](t, again); d.Allocations != 1 {
		t.Errorf("%+v", d)
	}
	r.resume()
	check(t, r.Idle(false))
	r.holds(a)
}

func TestWhatNeedsNoSafePointIsAnsweredAtOnce(t *testing.T) {
	r := newRemoteRig(t, Config{})
	a, b := r.make(1<<20, 0, disk("x")), r.make(1<<20, 0, disk("y"))
	c := r.connect()
	r.pause("x")
	if d := must[control.Done](t, do(c, pauseOf("1", "x"))); d.Allocations != 0 {
		t.Errorf("%+v", d)
	}
	if f := fault(t, do(c, pauseOf("2", "x", "nope")), CodeUnknownTag); !strings.Contains(f.Message, `"nope"; known tags: "x", "y"`) {
		t.Errorf("%+v", f)
	}
	rest := do(c, pauseOf("3")) // y is active
	r.waits()
	check(t, r.Idle(true))
	if d := must[control.Done](t, rest); d.Allocations != 1 {
		t.Errorf("%+v", d)
	}
	if d := must[control.Done](t, do(c, pauseOf("4"))); d.Allocations != 0 {
		t.Errorf("%+v", d)
	}
	if r.state(a) != alloc.Paused || r.state(b) != alloc.Paused {
		t.Error("not all is paused")
	}
	r.resume()
	check(t, r.Idle(false))
}

func TestTwoMayAskForTheSame(t *testing.T) {
	r := newRemoteRig(t, Config{})
	r.make(1<<20, 0, disk("x"))
	one, other := r.connect(), r.connect()
	first, same, second := do(one, pauseOf("p")), do(other, pauseOf("p")), do(other, pauseOf("q"))
	r.waits()
	check(t, r.Idle(true))
	if a, b, c := must[control.Done](t, first), must[control.Done](t, same), must[control.Done](t, second); a.Allocations+c.Allocations != 1 || a != b {
		t.Errorf("%+v, %+v, %+v", a, b, c)
	}
	if d := must[control.Done](t, do(other, control.Request{ID: "r", Cmd: control.CmdResume})); d.Allocations != 1 {
		t.Errorf("%+v", d)
	}
	check(t, r.Idle(false))
}

func TestMemoryIsReadFromOutside(t *testing.T) {
	r := newRemoteRig(t, Config{})
	a := r.make(3<<20, 0, disk("x"))
	c := r.connect()
	read := func(at uint64, size uint64) <-chan asked {
		return do(c, control.Request{Cmd: control.CmdRead, Address: fmt.Sprintf("%#x", uint64(a.addr)+at), Size: size})
	}
	for _, paused := range []bool{false, true} {
		if paused {
			r.pause()
		}
		if got := must[control.Bytes](t, read(1000, control.MaxRead)); !bytes.Equal(got.Data, a.want[1000:1000+control.MaxRead]) {
			t.Errorf("paused %t: other bytes", paused)
		}
		fails(t, read(3<<20-10, 100), CodeNotManaged)
		fails(t, do(c, control.Request{Cmd: control.CmdRead, Address: "0x10", Size: 1}), CodeNotManaged)
	}
	r.resume()
}

func TestAResumeFromOutsideSaysWhoHoldsTheMemory(t *testing.T) {
	r := newRemoteRig(t, Config{})
	a := r.make(60<<20, 0, disk("x"))
	r.pause()
	pid, end := startHolder(t, 1500<<20)
	c := r.connect()
	resume := control.Request{ID: "1", Cmd: control.CmdResume, Timeout: seconds(0)}
	f := fault(t, do(c, resume), CodeDeviceMemory)
	if f.Device == nil || *f.Device != 0 || f.Need < 60<<20 || len(f.Holders) != 1 || f.Holders[0].PID != pid {
		t.Errorf("%+v", f)
	}
	if log := r.logged(); !strings.Contains(log, "a resume asked for from outside failed: ") {
		t.Errorf("it is not logged: %s", log)
	}
	resume.ID, resume.Timeout = "2", seconds(3600)
	waiting := do(c, resume)
	end()
	if d := must[control.Done](t, waiting); d.Allocations != 1 {
		t.Errorf("%+v", d)
	}
	r.holds(a)
}

func TestProgressIsToldWhileBytesMove(t *testing.T) {
	r := newRemoteRig(t, Config{IOTimeout: time.Minute})
	r.make(8<<20, 0, disk("x"))
	list := r.subscribe()
	r.hang("pwrite:4:hang")
	paused := make(chan error)
	go func() {
		_, err := r.Pause(nil, r.set)
		paused <- err
	}()
	if _, e := until(list, control.EventProgress); e.Total != 8<<20 || e.Bytes >= e.Total || e.Operation != "pause" {
		t.Errorf("%+v", e)
	}
	r.hang("")
	check(t, <-paused)
	r.resume()
}

func TestTheSocketGoesWithTheProcess(t *testing.T) {
	r := newRemoteRig(t, Config{})
	list := r.subscribe()
	if _, err := os.Lstat(r.socket()); err != nil {
		t.Fatal(err)
	}
	r.Shutdown()
	if kinds, _ := until(list, control.EventExit); !slices.Equal(kinds, []string{control.EventExit}) {
		t.Errorf("%q", kinds)
	}
	if _, more := <-list; more {
		t.Error("the connection goes on")
	}
	if _, err := os.Lstat(r.socket()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it is left: %v", err)
	}
}

func TestOnlyItsOwnSocketIsRemoved(t *testing.T) {
	r := newRemoteRig(t, Config{})
	check(t, os.Remove(r.socket()))
	check(t, os.WriteFile(r.socket(), nil, 0o600)) // somebody else's, by that name
	r.Shutdown()
	if _, err := os.Lstat(r.socket()); err != nil {
		t.Error(err)
	}
}

// A directory in which no socket fits is not used, and that is said: whoever looks there finds no rank.
func TestARuntimeDirectoryThatIsTooLongForASocketIsNamed(t *testing.T) {
	xdg := testutil.SocketDir(t)
	for dir, why := range map[string]string{
		"/run/" + strings.Repeat("d", 100): "bytes too long: the path of a socket in it may have 107",
		"relative":                         "is no absolute path",
	} {
		r := newRigWith(t, Config{ChunkBytes: 4 << 20, RuntimeDir: dir, XDGRuntimeDir: xdg, Calls: &direct{}})
		if said := r.logged(); !strings.Contains(said, "the control socket is in "+xdg+"/ebb: EBB_RUNTIME_DIR="+dir+" ") || !strings.Contains(said, why) {
			t.Errorf("%s: %s", dir, said)
		}
		if _, err := os.Lstat(filepath.Join(xdg, "ebb", control.SocketName(r.self))); err != nil {
			t.Error(err)
		}
		r.Shutdown() // the next engine has its name
	}
	r := newRigWith(t, Config{ChunkBytes: 4 << 20, XDGRuntimeDir: xdg, Calls: &direct{}})
	if said := r.logged(); strings.Contains(said, "control socket") {
		t.Errorf("where no directory was named: %s", said)
	}
}

func TestWithoutARuntimeDirectoryTheEngineWorks(t *testing.T) {
	open := testutil.SocketDir(t)
	check(t, os.Chmod(open, 0o755))
	r := newRigWith(t, Config{ChunkBytes: 4 << 20, RuntimeDir: open, Calls: &direct{}})
	if n := strings.Count(r.logged(), "cannot be commanded from outside: the runtime directory "+open+" is not private"); n != 1 {
		t.Errorf("said %d times: %s", n, r.logged())
	}
	a := r.make(1<<20, 0, disk("x"))
	r.pause()
	r.resume()
	r.holds(a)
}

// ---- the event log and the log ----------------------------------------------------------------

func loggedEvents(t *testing.T, path string) (list []control.Event) {
	t.Helper()
	text, err := os.ReadFile(path)
	check(t, err)
	for line := range strings.Lines(string(text)) {
		var e control.Event
		if err := json.Unmarshal([]byte(line), &e); err != nil || !strings.HasSuffix(line, "\n") {
			t.Fatalf("%q: %v", line, err)
		}
		list = append(list, e)
	}
	return list
}

// recorded waits until all events so far are in the event log, however long its disk takes: an operation, or an exit, waits
// no longer than eventFlush.
func (r *rig) recorded() {
	r.t.Helper()
	written := make(chan struct{})
	r.events.log.queue <- entry{written: written}
	<-written
}

func TestEventsAreAppendedToTheEventLog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "events")
	var kinds []string
	for range 2 { // a process, and the one that takes its place
		r := newRigWith(t, Config{ChunkBytes: 4 << 20, EventLog: path, Job: "j", Identity: "role=ref cell=0 rank=7"})
		a := r.make(1<<20, 0, disk("x"))
		r.pause("x")
		check(t, r.Free(a.addr, false))
		r.Shutdown()
		r.recorded()
		kinds = append(kinds, control.EventStart, control.EventBegin, control.EventEnd, control.EventExit)
	}
	var got []string
	seq := uint64(0)
	for _, e := range loggedEvents(t, path) {
		if e.Kind == control.EventStart {
			seq = 0
		}
		if seq++; e.Seq != seq || e.V != control.Version || e.Job != "j" || e.Role != "ref" || e.Rank != "7" || e.PID != os.Getpid() || e.Host == "" || e.Time.IsZero() {
			t.Errorf("%+v, want number %d", e, seq)
		}
		if e.Kind == control.EventEnd && (e.Bytes != 1<<20 || len(e.Outcome) == 0) {
			t.Errorf("%+v", e)
		}
		if e.Kind != control.EventPhase {
			got = append(got, e.Kind)
		}
	}
	if diff := cmp.Diff(kinds, got); diff != "" {
		t.Errorf("events (-want +got)\n%s", diff)
	}
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil || st.Mode&0o777 != 0o600 {
		t.Errorf("mode %o, %v", st.Mode, err)
	}
}

func TestAnEventLogThatCannotBeWrittenIsNeverInTheWay(t *testing.T) {
	dir := t.TempDir()
	target, link, fifo := filepath.Join(dir, "target"), filepath.Join(dir, "link"), filepath.Join(dir, "fifo")
	check(t, errors.Join(os.WriteFile(target, nil, 0o600), os.Symlink(target, link), unix.Mkfifo(fifo, 0o600)))
	for _, path := range []string{filepath.Join(dir, "nowhere/x"), link, fifo, dir, "/dev/full"} {
		r := newRigWith(t, Config{ChunkBytes: 4 << 20, EventLog: path})
		a := r.make(1<<20, 0, disk("x"))
		for range 3 {
			r.pause()
			r.resume()
		}
		r.holds(a)
		r.recorded()
		if n := strings.Count(r.logged(), "the event log "+path+" misses events: "); n != 1 {
			t.Errorf("%s: said %d times: %s", path, n, r.logged())
		}
	}
	if text, err := os.ReadFile(target); err != nil || len(text) > 0 {
		t.Errorf("a link was followed: %q, %v", text, err)
	}
}

// A line that a full disk tore, here the limit of the size of files, costs only itself.
func TestAfterATornLineTheEventLogGoesOnInALineOfItsOwn(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	var before unix.Rlimit
	check(t, unix.Getrlimit(unix.RLIMIT_FSIZE, &before))
	limit := func(most uint64) {
		check(t, unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: most, Max: before.Max}))
	}
	t.Cleanup(func() { limit(before.Cur) })
	check(t, os.WriteFile(path, []byte(`{"v":1,"ti`), 0o600)) // of a process that was killed
	l := &eventLog{path: path, unsure: true}
	check(t, l.append(control.Event{Seq: 1, Kind: control.EventStart}))
	info, err := os.Stat(path)
	check(t, err)
	limit(uint64(info.Size()) + 20)
	err = l.append(control.Event{Seq: 2, Kind: control.EventAsked})
	limit(before.Cur)
	if err == nil {
		t.Error("a line that was cut short is no error")
	}
	check(t, l.append(control.Event{Seq: 3, Kind: control.EventExit}))
	check(t, l.append(control.Event{Seq: 4, Kind: control.EventExit}))
	text, err := os.ReadFile(path)
	check(t, err)
	var got []uint64
	for line := range strings.Lines(string(text)) {
		var e control.Event
		if json.Unmarshal([]byte(line), &e) != nil {
			e.Seq = 0
		}
		got = append(got, e.Seq)
	}
	if !slices.Equal(got, []uint64{0, 1, 0, 3, 4}) {
		t.Errorf("events %v, 0 for a torn line: %s", got, text)
	}
}

// A disk that gives no answer keeps the writer, and nobody else.
func TestEventsThatFindNoRoomInTheLogAreCounted(t *testing.T) {
	l := &eventLog{path: "/dev/null", queue: make(chan entry, 3)} // nobody writes yet
	for seq := range 10 {
		l.add(control.Event{Seq: uint64(seq + 1)})
	}
	<-l.queue
	<-l.queue
	l.add(control.Event{Seq: 11, Kind: control.EventEnd})
	<-l.queue
	if lost, next := (<-l.queue).event, (<-l.queue).event; lost.Kind != control.EventLost || lost.Lost != 7 || lost.Seq != 10 || next.Seq != 11 {
		t.Errorf("%+v, %+v", lost, next)
	}
	l.queue <- entry{}
	l.queue <- entry{}
	l.queue <- entry{}
	l.flush() // returns all the same,
	if !l.slow.Load() {
		t.Error("it is waited for each time")
	}
	go l.serve()
	for l.slow.Load() { // until it has caught up
		runtime.Gosched()
	}
}

func TestEachPauseAndResumeIsALine(t *testing.T) {
	for _, json := range []bool{false, true} {
		c := Config{ChunkBytes: 4 << 20, Identity: "role=actor cell=0 rank=3", Job: "j", LogJSON: json}
		r := newRigIn(t, c, testutil.InBuild(t, "engine-"))
		r.make(120<<20, 0, disk("x"))
		r.make(1<<20, 0, pinned("y"))
		r.pause()
		r.pause() // nothing to do: no line
		r.resume()
		r.Engine.log.Print("something odd\nin two lines")
		if json {
			jsonLines(t, r.logged())
		} else {
			textLines(t, r.logged())
		}
	}
}

func textLines(t *testing.T, log string) {
	t.Helper()
	lines := strings.Split(strings.TrimSuffix(log, "\n"), "\n")
	if len(lines) != 3 {
		t.Fatalf("%d lines: %s", len(lines), log)
	}
	for i, parts := range [][]string{
		{"paused 121 MiB (126.9 MB) in ", " GB/s; 120 MiB (125.8 MB) to disk; 1.0 MiB to host memory; ", "move "},
		{"resumed 121 MiB (126.9 MB) in ", " GB/s; 120 MiB (125.8 MB) from disk; 1.0 MiB from host memory; ", "move "},
		{"something odd; in two lines"},
	} {
		if !strings.HasPrefix(lines[i], "ebb: role=actor cell=0 rank=3: "+parts[0]) {
			t.Errorf("%q does not begin with the rank and %q", lines[i], parts[0])
		}
		for _, part := range parts {
			if !strings.Contains(lines[i], part) {
				t.Errorf("%q does not say %q", lines[i], part)
			}
		}
	}
}

func jsonLines(t *testing.T, log string) {
	t.Helper()
	lines := strings.Split(strings.TrimSuffix(log, "\n"), "\n")
	if len(lines) != 3 {
		t.Fatalf("%d lines: %s", len(lines), log)
	}
	for i, want := range []record{
		{Level: "info", Operation: "pause", By: "program"}, {Level: "info", Operation: "resume", By: "program"}, {Level: "warn", Msg: "something odd; in two lines"},
	} {
		var got record
		check(t, json.Unmarshal([]byte(lines[i]), &got))
		if got.Level != want.Level || got.Operation != want.Operation || got.By != want.By || got.Role != "actor" || got.Rank != "3" || got.Job != "j" || got.Time.IsZero() || got.Msg == "" {
			t.Errorf("%s", lines[i])
		}
		if want.Msg != "" && got.Msg != want.Msg || want.Operation != "" && (got.Outcome == nil || got.Outcome.Bytes != 121<<20 || got.Outcome.Phases.Move <= 0) {
			t.Errorf("%s", lines[i])
		}
	}
}
