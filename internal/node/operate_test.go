package node

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ebb-offload/ebb/internal/control"
	"github.com/ebb-offload/ebb/internal/control/server"
	"github.com/ebb-offload/ebb/internal/testutil"
)

// hang is when waiting counts as waiting for ever.
const hang = 2 * time.Minute

func done(d control.Done) func(*fake, *server.Ask) server.Answer {
	return func(*fake, *server.Ask) server.Answer { return server.Answer{Result: d} }
}

func refuses(e control.Error) func(*fake, *server.Ask) server.Answer {
	return func(*fake, *server.Ask) server.Answer { return server.Answer{Err: &e} }
}

const tagged = `{"tags":[{"tag":"default","active":5},{"tag":"weights","active":7}]}`

func TestAPauseIsDoneWhenTheDriverShowsTheMemoryFreeOnEveryRank(t *testing.T) {
	dir := testutil.SocketDir(t)
	good := control.Done{Allocations: 2, Bytes: 10, DeviceBytes: 20, Freed: 20}
	a, b := start(t, dir, actor(0), tagged, done(good)), start(t, dir, actor(1), tagged, done(good))
	r := Pause(t.Context(), ranksOf(a, b), nil, 90*time.Second, "mine")
	if !r.OK() || r.Operation != "pause" || len(r.In(Done)) != 2 || *r.Outcomes[1].Done != good || r.Outcomes[1].Who != b.rank.Who {
		t.Errorf("%+v", r)
	}
	for _, f := range []*fake{a, b} {
		if asked := f.commands(); len(asked) != 1 || asked[0].ID != "mine" || asked[0].Tags != nil || *asked[0].Timeout != 90 {
			t.Errorf("%+v", asked)
		}
	}

	kept := good
	kept.Missing = 5 << 20
	c := start(t, dir, actor(2), tagged, done(kept))
	r = Pause(t.Context(), ranksOf(a, c), nil, hang, "")
	bad := r.Failed()
	if r.OK() || len(bad) != 1 || bad[0].PID != c.rank.PID || *bad[0].Done != kept || !strings.Contains(bad[0].Err.Message, "5.0 MiB (5242880 bytes) did not become free") {
		t.Errorf("%+v", r)
	}

	// Where nobody tells what other processes took meanwhile it has not failed, and that is said.
	unclear := good
	unclear.DeviceBytes, unclear.Freed = 64<<20, 40<<20
	d := start(t, dir, actor(3), tagged, done(unclear))
	r = Pause(t.Context(), ranksOf(a, d), nil, hang, "")
	if !r.OK() || r.Outcomes[0].Note != "" || !strings.HasPrefix(r.Outcomes[1].Note, "of 64 MiB of device memory that it released, 24 MiB (25165824 bytes) did not show as free") {
		t.Errorf("%+v", r)
	}

	if r := Resume(t.Context(), ranksOf(c), nil, -1, ""); !r.OK() { // of a resume nothing is missing
		t.Errorf("%+v", r)
	}
	if asked := c.commands(); asked[1].Timeout != nil {
		t.Errorf("%+v", asked)
	}
}

func TestEachRankThatDoesNotPauseIsNamedWithItsReason(t *testing.T) {
	dir := testutil.SocketDir(t)
	part := control.Done{Allocations: 1, Bytes: 5}
	good := start(t, dir, actor(0), tagged, done(control.Done{}))
	full := start(t, dir, actor(1), tagged, refuses(control.Error{Code: 11, Message: "no space left in /nvme"}))
	partial := start(t, dir, actor(2), tagged, refuses(control.Error{Code: 14, Message: "paused in part", Done: &part}))
	busy := start(t, dir, actor(3), tagged, refuses(control.Error{Code: 18, Message: "no safe point in 1 s"}))
	odd := start(t, dir, actor(4), tagged, func(*fake, *server.Ask) server.Answer { return server.Answer{Result: "what?"} })
	dead := rankOf(t, dir)
	ranks := append(ranksOf(good, full, partial, busy, odd), dead)
	r := Pause(t.Context(), ranks, nil, hang, "")
	for i, want := range []struct {
		state State
		why   string
	}{
		{Done, ""}, {Failed, "no space left in /nvme"}, {Failed, "paused in part"}, {Late, "no safe point in 1 s"},
		{Failed, "its answer is not understood: "}, {Gone, "nobody listens: "},
	} {
		got := r.Outcomes[i]
		if got.State != want.state || got.Err != nil && !strings.HasPrefix(got.Err.Message, want.why) || (got.Err == nil) != (want.state == Done) {
			t.Errorf("rank %d: %+v, want %+v", i, got, want)
		}
	}
	if *r.Outcomes[2].Done != part {
		t.Errorf("%+v", r.Outcomes[2])
	}
	if len(r.Late()) != 1 || len(r.Failed()) != 4 {
		t.Errorf("late %v, failed %v", r.Late(), r.Failed())
	}
}

// rankOf is a rank that has ended since it was found.
func rankOf(t *testing.T, dir string) Rank {
	t.Helper()
	path := socketPath(t, dir, false)
	orphan(t, path)
	return Rank{Who: control.Who{PID: os.Getpid()}, Socket: path}
}

func TestARankIsAskedForThoseOfTheTagsThatItHas(t *testing.T) {
	dir := testutil.SocketDir(t)
	both := start(t, dir, actor(0), tagged, done(control.Done{}))
	one := start(t, dir, actor(1), `{"tags":[{"tag":"weights"}]}`, done(control.Done{}))
	none := start(t, dir, actor(2), `{"tags":[]}`, refuses(control.Error{Code: 4, Message: "unknown tag"}))
	if r := Pause(t.Context(), ranksOf(both, one, none), []string{"default", "weights"}, hang, ""); !r.OK() {
		t.Errorf("%+v", r)
	}
	for f, want := range map[*fake][]string{both: {"default", "weights"}, one: {"weights"}} {
		if asked := f.commands(); len(asked) != 1 || !slices.Equal(asked[0].Tags, want) {
			t.Errorf("%+v, want %v", asked, want)
		}
	}
	if asked := none.commands(); len(asked) > 0 {
		t.Errorf("a rank without such memory was asked: %+v", asked)
	}
}

// A rank that says nothing of its safe point is late a moment after the deadline, and its pause withdrawn.
func TestARankThatSaysNothingIsLateAndItsPauseWithdrawn(t *testing.T) {
	dir := testutil.SocketDir(t)
	gone := make(chan struct{})
	stuck := start(t, dir, actor(0), tagged, func(_ *fake, a *server.Ask) server.Answer {
		<-a.Gone
		close(gone)
		return server.Answer{Withdrawn: true}
	})
	good := start(t, dir, actor(1), tagged, done(control.Done{}))
	r := Pause(t.Context(), ranksOf(stuck, good), nil, 0, "")
	if len(r.Late()) != 1 || r.Outcomes[1].State != Done || r.Outcomes[0].Err.Code != 18 {
		t.Errorf("%+v", r)
	}
	if len(stuck.commands()) > 0 {
		await(t, gone, "the withdrawal")
	}
}

func await(t *testing.T, c <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(hang):
		t.Fatalf("%s: not seen in %v", what, hang)
	}
}

func TestACallerWhoGivesUpWithdrawsWhatHasNotBegunAndWaitsForWhatHas(t *testing.T) {
	dir := testutil.SocketDir(t)
	gone, waiting, asked, finish := make(chan struct{}), make(chan struct{}), make(chan struct{}), make(chan struct{})
	waits := start(t, dir, actor(0), tagged, func(_ *fake, a *server.Ask) server.Answer {
		close(waiting)
		<-a.Gone
		close(gone)
		return server.Answer{Withdrawn: true}
	})
	runs := start(t, dir, actor(1), tagged, func(f *fake, _ *server.Ask) server.Answer {
		close(asked)
		f.publish(control.Event{Kind: control.EventBegin, Operation: "pause", By: "program"}) // another's
		f.publish(control.Event{Kind: control.EventBegin, Operation: "pause", By: "control", Total: 9})
		<-finish
		return server.Answer{Result: control.Done{Bytes: 9}}
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var total uint64
	report := make(chan Report, 1)
	begun := make(chan struct{})
	op := Operation{Cmd: control.CmdPause, Timeout: hang, Event: func(e control.Event) {
		if total += e.Total; e.By == "control" {
			close(begun)
		}
	}}
	go func() { report <- op.Run(ctx, ranksOf(waits, runs)) }()
	await(t, waiting, "the pause that waits")
	await(t, asked, "the pause that runs")
	await(t, begun, "its begin")
	cancel()
	await(t, gone, "the withdrawal")
	close(finish)
	r := <-report
	if r.Outcomes[0].State != Withdrawn || r.Outcomes[1].State != Done || total != 9 {
		t.Errorf("%+v, %d", r, total)
	}
}

// Several may ask a rank for pauses at the same time; its events say whose has begun.
func TestAnotherCallersOperationIsNotTakenForOnesOwn(t *testing.T) {
	op := Operation{Cmd: control.CmdPause, ID: "mine"}
	for want, events := range map[bool][]control.Event{
		true: {
			{Kind: control.EventBegin, Operation: "pause", By: "control", ID: "mine"},
			{Kind: control.EventProgress, Operation: "pause", By: "control", ID: "mine"},
			{Kind: control.EventBegin, Operation: "pause", By: "control"}, // of an older library, which tells no ids
		},
		false: {
			{Kind: control.EventBegin, Operation: "pause", By: "control", ID: "another's"},
			{Kind: control.EventPhase, Operation: "pause", By: "control", ID: "another's"},
			{Kind: control.EventBegin, Operation: "pause", By: "program"},
			{Kind: control.EventBegin, Operation: "resume", By: "control", ID: "mine"},
			{Kind: control.EventAsked, Operation: "pause", By: "control", ID: "mine"},
		},
	} {
		for _, e := range events {
			if got := op.hasBegun(e); got != want {
				t.Errorf("%+v: begun %v", e, got)
			}
		}
	}
}

// A pause may begin at the moment at which it is withdrawn: then it is told as what it is.
func TestAPauseThatBeganAtTheMomentOfItsWithdrawalIsTold(t *testing.T) {
	dir := testutil.SocketDir(t)
	waiting := make(chan struct{})
	f := start(t, dir, actor(0), tagged, func(_ *fake, a *server.Ask) server.Answer {
		close(waiting)
		<-a.Gone
		return server.Answer{Result: control.Done{Allocations: 1, Bytes: 9}}
	})
	ctx, cancel := context.WithCancel(t.Context())
	report := make(chan Report, 1)
	go func() { report <- Pause(ctx, ranksOf(f), nil, hang, "") }()
	await(t, waiting, "the pause that waits")
	cancel()
	if r := <-report; r.Outcomes[0].State != Done || r.Outcomes[0].Done.Bytes != 9 {
		t.Errorf("%+v", r)
	}
}

func TestARankWhoseProcessEndsMeanwhileIsGone(t *testing.T) {
	dir := testutil.SocketDir(t)
	asked := make(chan struct{})
	rank := start(t, dir, actor(0), tagged, func(_ *fake, a *server.Ask) server.Answer {
		close(asked)
		<-a.Gone
		return server.Answer{Withdrawn: true}
	})
	go func() {
		<-asked
		rank.server.Close()
	}()
	if r := Pause(t.Context(), ranksOf(rank), nil, hang, ""); r.Outcomes[0].State != Gone {
		t.Errorf("%+v", r)
	}
}

// A rank that has begun and then says nothing any more, not even to the question whether it is there.
func TestARankThatStopsInTheMidstIsLate(t *testing.T) {
	if os.Getenv("EBB_TEST_LONG") != "1" {
		t.Skip("takes as long as a rank may say nothing: EBB_TEST_LONG=1")
	}
	dir := testutil.SocketDir(t)
	rank := start(t, dir, actor(0), "", func(f *fake, a *server.Ask) server.Answer {
		if a.Cmd == control.CmdPause {
			f.publish(control.Event{Kind: control.EventBegin, Operation: "pause", By: "control"})
		}
		<-a.Gone
		return server.Answer{Withdrawn: true}
	})
	hung := Rank{Who: control.Who{PID: os.Getpid()}, Socket: socketPath(t, dir, true)}
	mute(t, hung.Socket)
	r := Pause(t.Context(), append(ranksOf(rank), hung), nil, 0, "")
	if len(r.Late()) != 2 || !strings.HasPrefix(r.Outcomes[0].Err.Message, "it has said nothing for 10s: ") ||
		!strings.HasPrefix(r.Outcomes[1].Err.Message, "no answer in time: ") {
		t.Errorf("%+v", r)
	}
}

// ---- status ------------------------------------------------------------------------------------

func TestAStatusComesFromAllWhoAnswerWhileOneHangs(t *testing.T) {
	dir := testutil.SocketDir(t)
	full := `{"version":"0.1.0","device":"H200","bytes_active":1,"bytes_paused":9,"news":true,
		"tags":[{"tag":"a","active":1,"host":4,"in_host":3,"in_files":2,"skipped":4}],
		"last_pause":{"bytes":9,"seconds":2,"gb_per_s":4.5,"skipped_zero_bytes":1,"skipped_same_bytes":2,"skipped_unused_bytes":3,"phases":{"move":1.5}}}`
	good := start(t, dir, actor(0), full, nil)
	hung := start(t, dir, actor(1), "", func(_ *fake, a *server.Ask) server.Answer {
		<-a.Gone
		return server.Answer{Withdrawn: true}
	})
	odd := start(t, dir, actor(2), `["what"]`, nil)
	failing := start(t, dir, actor(3), "", refuses(control.Error{Code: 16, Message: "defect in ebb"}))
	all := StatusOf(t.Context(), ranksOf(good, hung, odd, failing), 3*time.Second)
	s := all[0]
	if s.Err != "" || s.Who != good.rank.Who || s.Status.Where() != (Where{Device: 1, Host: 3, Disk: 2, Skipped: 4}) ||
		s.Status.LastPause.Skipped() != 6 || s.Status.LastPause.Phases["move"] != 1.5 || s.Status.LastResume != nil {
		t.Errorf("%+v", s)
	}
	var raw map[string]any
	if err := json.Unmarshal(s.Raw, &raw); err != nil || raw["news"] != true {
		t.Errorf("%s: %v", s.Raw, err)
	}
	for i, want := range []string{"", "no answer in time: ", "its status is not understood: ", "defect in ebb"} {
		if all[i].Rank.Rank != fmt.Sprint(i) || !strings.HasPrefix(all[i].Err, want) || (all[i].Err == "") != (want == "") {
			t.Errorf("rank %d: %q, want %q", i, all[i].Err, want)
		}
	}
}

func TestDevices(t *testing.T) {
	dir := testutil.SocketDir(t)
	one := control.Device{Ordinal: 0, Name: "H200", UUID: "GPU-1", Total: 100, Free: 40, Holders: []control.Holder{{PID: 7, Bytes: 60, Name: "python"}}}
	a := start(t, dir, actor(0), "{}", func(*fake, *server.Ask) server.Answer { return server.Answer{Result: []control.Device{one}} })
	b := start(t, dir, actor(1), "{}", refuses(control.Error{Code: 7, Message: "the driver refused"}))
	all := Devices(t.Context(), ranksOf(a, b), 0)
	if len(all[0].Devices) != 1 || all[0].Devices[0].Holders[0].Name != "python" || all[0].Err != "" || all[1].Err != "the driver refused" {
		t.Errorf("%+v", all)
	}
}

func TestWhatADeviceIsCalled(t *testing.T) {
	device := func(ordinal int, uuid string) control.Device { return control.Device{Ordinal: ordinal, UUID: uuid} }
	own := [][]control.Device{{device(0, "GPU-aaaaaaaa-1")}, {device(0, "GPU-bbbbbbbb-2")}}
	all := [][]control.Device{{device(0, "GPU-aaaaaaaa-1")}, {device(1, "GPU-bbbbbbbb-2")}}
	for _, test := range []struct {
		ranks   [][]control.Device
		numbers map[string]string
		want    string
	}{
		{own, map[string]string{"GPU-bbbbbbbb-2": "5"}, "5"}, // of the node
		{own, nil, "bbbbbbbb"},                               // each rank sees one, as number 0
		{all, nil, "1"},
	} {
		if got := GPUNames(test.ranks, test.numbers)(test.ranks[1][0]); got != test.want {
			t.Errorf("%v %v: %q, want %q", test.ranks, test.numbers, got, test.want)
		}
	}
	dir := t.TempDir()
	if err := os.MkdirAll(dir+"/0000:18:00.0", 0o755); err != nil {
		t.Fatal(err)
	}
	text := "Model: \t\t NVIDIA H200\nGPU UUID: \t GPU-bbbbbbbb-2\nDevice Minor: \t 5\n"
	if err := os.WriteFile(dir+"/0000:18:00.0/information", []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if got := gpusIn(dir); len(got) != 1 || got["GPU-bbbbbbbb-2"] != "5" {
		t.Error(got)
	}
}

func TestDisksAreCountedOnceAndTheirRoomIsTold(t *testing.T) {
	dir := t.TempDir()
	rank := func(bytes uint64, dirs ...string) (r RankStatus) {
		r.Status.Disk.Bytes = bytes
		r.Status.Disk.Dir = dirs[0]
		for _, d := range dirs {
			r.Status.Disk.Dirs = append(r.Status.Disk.Dirs, DirStatus{Dir: d})
		}
		return r
	}
	disks := Disks(t.Context(), []RankStatus{
		rank(5, dir+"/job/actor_cell0_rank0", dir+"/missing/job/actor_cell0_rank0"), rank(7, dir+"/job/actor_cell0_rank1"), rank(1, dir), rank(0, ""),
	}, Patience)
	if len(disks) != 2 || disks[0].Dir != dir || disks[0].Files != 13 || disks[0].Total < disks[0].Free || disks[0].Total == 0 || disks[0].Err != "" ||
		disks[1].Dir != dir+"/missing" || !strings.Contains(disks[1].Err, "no such file") {
		t.Errorf("%+v", disks)
	}
}

// ---- events --------------------------------------------------------------------------------------

func TestWatchHearsAllRanksUntilTheyEnd(t *testing.T) {
	dir := testutil.SocketDir(t)
	says, leaves := start(t, dir, actor(0), "{}", nil), start(t, dir, actor(1), "{}", nil)
	var mu sync.Mutex
	heard := map[string][]string{}
	over := make(chan struct{})
	go func() {
		defer close(over)
		Watch(t.Context(), append(ranksOf(says, leaves), rankOf(t, dir)), func(e control.Event) {
			mu.Lock()
			defer mu.Unlock()
			heard[e.Rank] = append(heard[e.Rank], e.Kind+" "+e.Error)
		})
	}()
	for deadline := time.Now().Add(hang); !says.server.Subscribed() || !leaves.server.Subscribed(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("nobody subscribes")
		}
	}
	says.publish(control.Event{Kind: control.EventExit})
	says.server.Close()
	leaves.server.Close()
	await(t, over, "the end")
	mu.Lock()
	defer mu.Unlock()
	if fmt.Sprint(heard["0"]) != "[exit ]" {
		t.Errorf("%q", heard["0"])
	}
	for _, rank := range []string{"1", ""} { // left without a word, or was not there
		if got := heard[rank]; len(got) != 1 || !strings.HasPrefix(got[0], "exit ") || len(got[0]) < 10 {
			t.Errorf("rank %q: %q", rank, got)
		}
	}
}

func TestWatchEndsWithItsContext(t *testing.T) {
	dir := testutil.SocketDir(t)
	rank := start(t, dir, actor(0), "{}", nil)
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan struct{})
	go func() {
		defer close(over)
		Watch(ctx, ranksOf(rank), func(e control.Event) { t.Errorf("%+v", e) })
	}()
	cancel()
	await(t, over, "the end")
}
