package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ebb-offload/ebb/internal/control"
	"github.com/ebb-offload/ebb/internal/control/server"
	"github.com/ebb-offload/ebb/internal/rankdir"
	"github.com/ebb-offload/ebb/internal/testutil"
)

// fake is a rank without an engine: the real server on a real socket, which answers as the test says.
type fake struct {
	rank   Rank
	server *server.Server
	ready  chan struct{} // closed when server is set

	mu    sync.Mutex
	asked []control.Request
}

var names struct {
	sync.Mutex
	last uint64
}

// socketPath is a path in dir of the form that ranks give their sockets. Its process is no more, or lives.
func socketPath(t testing.TB, dir string, alive bool) string {
	t.Helper()
	owner, err := rankdir.Self()
	if err != nil {
		t.Fatal(err)
	}
	if !alive {
		names.Lock()
		names.last++
		owner.StartTime += names.last
		names.Unlock()
	}
	return filepath.Join(dir, control.SocketName(owner))
}

// start starts a rank. answer may be nil, and is not asked for a status while status is not empty.
func start(t testing.TB, dir string, who control.Who, status string, answer func(*fake, *server.Ask) server.Answer) *fake {
	t.Helper()
	who.PID = os.Getpid()
	f := &fake{ready: make(chan struct{}), rank: Rank{Who: who, Socket: socketPath(t, dir, false), Version: "0.1.0", Started: time.Unix(1000, 0).UTC()}}
	var err error
	f.server, err = server.Start(server.Options{
		Socket: f.rank.Socket,
		Hello:  control.Hello{V: control.Version, EBB: f.rank.Version, Who: who, Started: f.rank.Started},
		Handle: func(a *server.Ask) server.Answer {
			f.mu.Lock()
			f.asked = append(f.asked, a.Request)
			f.mu.Unlock()
			if a.Cmd == control.CmdStatus && status != "" {
				return server.Answer{Result: json.RawMessage(status)}
			}
			return answer(f, a)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	close(f.ready)
	t.Cleanup(f.server.Close)
	return f
}

// publish tells an event of the rank's.
func (f *fake) publish(e control.Event) {
	<-f.ready
	e.V, e.Who = control.Version, f.rank.Who
	f.server.Publish(e)
}

// commands are the pauses and resumes that a rank was asked for.
func (f *fake) commands() (list []control.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range f.asked {
		if r.Cmd == control.CmdPause || r.Cmd == control.CmdResume {
			list = append(list, r)
		}
	}
	return list
}

func actor(n int) control.Who {
	return control.Who{Job: "j", Role: "actor", Cell: "0", Rank: fmt.Sprint(n)}
}

// mute makes a socket that takes callers and says nothing.
func mute(t testing.TB, path string) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
}

// orphan leaves a socket of nobody.
func orphan(t testing.TB, path string) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func ranksOf(fakes ...*fake) (ranks []Rank) {
	for _, f := range fakes {
		ranks = append(ranks, f.rank)
	}
	return ranks
}

// ---- finding ---------------------------------------------------------------------------------

func TestRanksAreFoundInOrderAndOnce(t *testing.T) {
	one, other, named, disk := testutil.SocketDir(t), testutil.SocketDir(t), testutil.SocketDir(t), testutil.SocketDir(t)
	var all []*fake
	for i, dir := range []string{one, other, one, other} {
		all = append(all, start(t, dir, actor(10-i), "{}", nil))
	}
	critic := start(t, named, control.Who{Job: "j", Role: "critic", Cell: "0", Rank: "0"}, "{}", nil)
	if err := os.Mkdir(filepath.Join(disk, ".ebb"), 0o700); err != nil {
		t.Fatal(err)
	}
	for i, socket := range []string{critic.rank.Socket, all[0].rank.Socket} {
		if err := control.WritePointer(filepath.Join(disk, ".ebb", fmt.Sprintf("p%d.control", i)), socket); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"engine", "x.sock"} { // what is no rank's
		if err := os.WriteFile(filepath.Join(one, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ranks, silent, err := Discover(t.Context(), Places{RuntimeDirs: []string{one, other, one, filepath.Join(one, "missing")}, DiskDirs: []string{disk}})
	if err != nil || len(silent) > 0 {
		t.Fatal(silent, err)
	}
	if diff := cmp.Diff(ranksOf(all[3], all[2], all[1], all[0], critic), ranks); diff != "" {
		t.Error(diff)
	}
}

func TestWhoDoesNotAnswerIsNamedWithTheReason(t *testing.T) {
	dir := testutil.SocketDir(t)
	rank := start(t, dir, actor(0), "{}", nil)
	hangs := socketPath(t, dir, true)
	mute(t, hangs)
	foreign := socketPath(t, dir, false)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: foreign, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			fmt.Fprintln(conn, `{"v":7,"ebb":"3.2.1","pid":1}`)
			_ = conn.Close()
		}
	}()
	ranks, silent, err := Discover(t.Context(), Places{RuntimeDirs: []string{dir}})
	if err != nil || len(ranks) != 1 || ranks[0] != rank.rank || len(silent) != 2 {
		t.Fatal(ranks, silent, err)
	}
	for _, s := range silent {
		switch s.Socket {
		case hangs:
			if !s.Late || s.Dead || s.PID != os.Getpid() || !strings.HasPrefix(s.Why, "no answer in time: ") {
				t.Errorf("%+v", s)
			}
		case foreign:
			if s.Late || s.Dead || !strings.Contains(s.Why, "version 7") || !strings.Contains(s.Why, "version 1") || !strings.Contains(s.Why, "3.2.1") {
				t.Errorf("%+v", s)
			}
		default:
			t.Errorf("%+v", s)
		}
	}
}

func TestOnlySocketsOfTheDeadAreRemoved(t *testing.T) {
	dir := testutil.SocketDir(t)
	self, err := rankdir.Self()
	if err != nil {
		t.Fatal(err)
	}
	elsewhere := self
	elsewhere.BootID = "0123abcd-"
	if strings.HasPrefix(self.BootID, elsewhere.BootID[:8]) {
		elsewhere.BootID = "0123abce-"
	}
	dead, alive, other := socketPath(t, dir, false), socketPath(t, dir, true), filepath.Join(dir, control.SocketName(elsewhere))
	for _, path := range []string{dead, alive, other} {
		orphan(t, path)
	}
	busy := start(t, dir, actor(0), "{}", nil) // its name says dead, and it answers
	ranks, silent, err := Discover(t.Context(), Places{RuntimeDirs: []string{dir}})
	if err != nil || len(ranks) != 1 || len(silent) != 3 {
		t.Fatal(ranks, silent, err)
	}
	for _, s := range silent {
		if want := s.Socket == dead; s.Dead != want || exists(s.Socket) == want {
			t.Errorf("%+v, there: %v", s, exists(s.Socket))
		}
	}
	if !exists(busy.rank.Socket) {
		t.Error("the socket of a rank that answers is gone")
	}
}

func TestADirectoryThatOthersMayWriteToIsNotLookedInto(t *testing.T) {
	open, private := testutil.SocketDir(t), testutil.SocketDir(t)
	start(t, open, actor(0), "{}", nil)
	start(t, private, actor(1), "{}", nil)
	if err := os.Chmod(open, 0o777); err != nil {
		t.Fatal(err)
	}
	ranks, silent, err := Discover(t.Context(), Places{RuntimeDirs: []string{open, private}})
	var place *PlaceError
	if !errors.As(err, &place) || place.Place != open || len(ranks) != 1 || ranks[0].Rank != "1" || len(silent) > 0 {
		t.Error(ranks, silent, err)
	}
}

// The environment of a process says where its socket is.
func TestARankIsFoundByItsProcess(t *testing.T) {
	dir := testutil.SocketDir(t)
	rank := start(t, dir, actor(0), "{}", nil)
	child := sleeper(t, "EBB_RUNTIME_DIR="+dir, "EBB_ROLE=critic", "EBB_RANK=4")
	ranks, _, err := Discover(t.Context(), Places{PIDs: []int{child}})
	if err != nil || !slices.Contains(ranks, rank.rank) {
		t.Error(ranks, err)
	}
	if who := whoIs(child); who.Role != "critic" || who.Rank != "4" || who.PID != child {
		t.Error(who)
	}
	if _, _, err := Discover(t.Context(), Places{PIDs: []int{1 << 30}}); err != nil { // nobody
		t.Error(err)
	}
}

// What was found by the time at which whoever asks goes away is told, and who had not answered by then.
func TestDiscoverTellsWhatItFoundWhenItsContextEnds(t *testing.T) {
	dir := testutil.SocketDir(t)
	answers, hangs := socketPath(t, dir, false), socketPath(t, dir, true)
	mute(t, hangs)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	l, err := net.Listen("unix", answers)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		fmt.Fprintf(conn, `{"v":1,"ebb":"3.2.1","rank":"5","pid":%d}`+"\n", os.Getpid())
		_, _ = conn.Read(make([]byte, 1)) // until the greeting is over
		cancel()
	}()
	ranks, silent, err := Discover(ctx, Places{RuntimeDirs: []string{dir}})
	if !errors.Is(err, context.Canceled) || len(ranks) != 1 || ranks[0].Rank != "5" {
		t.Errorf("found %+v, %v", ranks, err)
	}
	if len(silent) != 1 || silent[0].Socket != hangs || silent[0].Dead || silent[0].Why == "" {
		t.Errorf("silent %+v", silent)
	}
}

// ---- choosing --------------------------------------------------------------------------------

func TestSelection(t *testing.T) {
	who := func(job, role, cell, rank string, pid int) control.Who {
		return control.Who{Job: job, Role: role, Cell: cell, Rank: rank, PID: pid}
	}
	var ranks []Rank
	for _, w := range []control.Who{
		who("a", "actor", "0", "0", 10), who("a", "actor", "0", "1", 11), who("a", "actor", "1", "0", 12),
		who("a", "critic", "0", "0", 13), who("b", "actor", "0", "0", 14), who("", "", "", "", 15),
	} {
		ranks = append(ranks, Rank{Who: w})
	}
	silent := []Silent{{Who: who("a", "actor", "0", "2", 20)}, {Who: control.Who{PID: 21}}}
	for _, test := range []struct {
		s         Selection
		pids, mum []int
		err       string
	}{
		{s: Selection{}, pids: []int{10, 11, 12, 13, 14, 15}, mum: []int{20, 21}},
		{s: Selection{Roles: []string{"actor"}}, pids: []int{10, 11, 12, 14}, mum: []int{20, 21}},
		{s: Selection{Roles: []string{"actor"}, Cells: []string{"0"}, Jobs: []string{"a"}}, pids: []int{10, 11}, mum: []int{20, 21}},
		{s: Selection{Ranks: []string{"1", "2"}}, pids: []int{11}, mum: []int{20, 21}},
		{s: Selection{Ranks: []string{"2"}}, mum: []int{20, 21}},
		{s: Selection{PIDs: []int{15, 20}}, pids: []int{15}, mum: []int{20}},
		{s: Selection{Roles: []string{"ref"}}, err: `no role "ref"; there are: actor, critic`},
		{s: Selection{Ranks: []string{"0", "7"}}, err: `no rank "7"; there are: 0, 1, 2`},
		{s: Selection{Cells: []string{"2"}}, err: `no cell "2"; there are: 0, 1`},
		{s: Selection{Jobs: []string{"c"}}, err: `no job "c"; there are: a, b`},
		{s: Selection{PIDs: []int{9}}, err: `no pid "9"; there are: 10, 11, 12, 13, 14, 15, 20, 21`},
	} {
		selected, unanswered, err := SelectBoth(ranks, silent, test.s)
		if fmt.Sprint(err) != test.err && (err != nil || test.err != "") {
			t.Errorf("%+v: %v, want %s", test.s, err, test.err)
		}
		var pids, mum []int
		for _, r := range selected {
			pids = append(pids, r.PID)
		}
		for _, q := range unanswered {
			mum = append(mum, q.PID)
		}
		if !slices.Equal(pids, test.pids) || !slices.Equal(mum, test.mum) {
			t.Errorf("%+v: %v and %v, want %v and %v", test.s, pids, mum, test.pids, test.mum)
		}
	}
	if _, err := Select(ranks, Selection{Roles: []string{"critic"}, Ranks: []string{"1"}}); err == nil ||
		!strings.HasPrefix(err.Error(), "no rank is all of that at once; there are: actor cell 0 rank 0, ") {
		t.Error(err)
	}
	if list, err := Select(nil, Selection{}); err != nil || len(list) > 0 {
		t.Error(list, err)
	}
}

func TestNames(t *testing.T) {
	for _, test := range []struct {
		w           control.Who
		long, short string
	}{
		{control.Who{Role: "actor", Cell: "0", Rank: "3", PID: 7}, "actor cell 0 rank 3", "actor/0/3"},
		{control.Who{PID: 7}, "pid 7", "pid 7"},
		{control.Who{Rank: "3", PID: 7}, "cell - rank 3", "-/-/3"},
	} {
		if Name(test.w) != test.long || ShortName(test.w) != test.short {
			t.Errorf("%+v: %q, %q", test.w, Name(test.w), ShortName(test.w))
		}
	}
}

func TestATagThatNoRankHasIsRefusedWithThoseThatThereAre(t *testing.T) {
	has := func(tags ...string) (r RankStatus) {
		for _, tag := range tags {
			r.Status.Tags = append(r.Status.Tags, TagStatus{Tag: tag})
		}
		return r
	}
	all := []RankStatus{has("weights", "default"), has("kv")}
	if err := KnowTags(all, []string{"kv", "weights"}); err != nil {
		t.Error(err)
	}
	if err := KnowTags(all, []string{"kv", "wieghts"}); fmt.Sprint(err) != `no tag "wieghts"; there are: default, kv, weights` {
		t.Error(err)
	}
	if err := KnowTags(append(all, RankStatus{Err: "late"}), []string{"other"}); err != nil {
		t.Errorf("a rank that did not say may have it: %v", err)
	}
}
