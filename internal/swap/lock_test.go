package swap

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ebb-offload/ebb/internal/control"
	"github.com/ebb-offload/ebb/internal/node"
	"github.com/ebb-offload/ebb/internal/rollout"
)

// of is a hand-over of one rank of a job, whose socket is in dir.
func of(dir, job, to string) *handOver {
	return &handOver{Options: Options{To: to, By: "test", Ranks: []node.Rank{{Who: control.Who{Job: job, PID: 7}, Socket: filepath.Join(dir, "rank.sock")}}}}
}

// wantNoLocks checks that nothing stays behind.
func wantNoLocks(t *testing.T, dir string) {
	t.Helper()
	if left, err := filepath.Glob(filepath.Join(dir, "*.lock")); err != nil || len(left) > 0 {
		t.Errorf("locks stay behind: %v, %v", left, err)
	}
}

// taken are the locks of a hand-over, until the test ends or they are released.
func taken(t *testing.T, h *handOver) held {
	t.Helper()
	locks, err := h.take(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return locks
}

func TestASecondHandOverIsToldWhoHoldsTheFirst(t *testing.T) {
	dir := t.TempDir()
	first := taken(t, of(dir, "j", ToRollout))
	second := of(dir, "j", ToTrain)
	second.NoWait = true
	_, err := second.take(t.Context())
	var other *HeldError
	if !errors.As(err, &other) || other.Holder.PID != os.Getpid() || other.Holder.To != ToRollout || other.Holder.By != "test" || time.Since(other.Holder.Since) < 0 {
		t.Fatalf("%v: %+v", err, other)
	}
	for _, text := range []string{"the ranks of job j", "test, process ", "hands over to rollout since ", "kill ", "moved nothing"} {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("%q is not told: %v", text, err)
		}
	}
	if path := first[0].path; here(path, os.Getpid()+1) || here(path, 0) {
		t.Error("another process is taken for the holder")
	}
	for _, e := range []HeldError{{Holder: other.Holder}, {Holder: Holder{PID: os.Getpid(), By: ByServe}, Here: true}} {
		if text := e.Error(); strings.Contains(text, "kill") {
			t.Errorf("of a process that is none here, or of a server: %s", text)
		}
	}
	first.release()
	taken(t, second).release()
	wantNoLocks(t, dir)
}

func TestHandOversOfDifferentJobsAndEnginesDoNotWait(t *testing.T) {
	dir, notes := t.TempDir(), t.TempDir()
	with := func(job, engine string) *handOver {
		h := of(dir, job, ToTrain)
		h.NoWait, h.Settings, h.Engines = true, rollout.Settings{Notes: notes}, []EngineSpec{{URL: engine}}
		return h
	}
	a := taken(t, with("a", "http://a"))
	b := taken(t, with("b", "http://b"))
	for _, tt := range []struct{ job, engine, what string }{
		{"c", "http://a", "engine http://a"},
		{"b", "http://c", "the ranks of job b"},
	} {
		var other *HeldError
		if _, err := with(tt.job, tt.engine).take(t.Context()); !errors.As(err, &other) || other.What != tt.what {
			t.Errorf("job %s, %s: %v", tt.job, tt.engine, err)
		}
	}
	a.release()
	b.release()
	wantNoLocks(t, dir)
	wantNoLocks(t, notes)
}

// Ranks that do not answer are meant too: what another hand-over does to them counts.
func TestTheLockIsThatOfSilentRanksToo(t *testing.T) {
	dir := t.TempDir()
	first := taken(t, of(dir, "j", ToTrain))
	defer first.release()
	second := &handOver{Options: Options{NoWait: true, Silent: []node.Silent{{Who: control.Who{Job: "j"}, Socket: filepath.Join(dir, "other.sock")}}}}
	var other *HeldError
	if _, err := second.take(t.Context()); !errors.As(err, &other) {
		t.Error(err)
	}
}

func TestAHandOverWaitsForTheEndOfAnotherAndThenLooksAnew(t *testing.T) {
	dir := t.TempDir()
	first := taken(t, of(dir, "j", ToRollout))
	second := of(dir, "j", ToTrain)
	var waitedFor Holder
	second.Waiting = func(h Holder) {
		waitedFor = h
		first.release()
	}
	looks := 0
	second.Again = func(context.Context) ([]node.Rank, []node.Silent, error) { // another job's ranks are there by then
		looks++
		return of(dir, "k", "").Ranks, nil, nil
	}
	locks := taken(t, second)
	if waitedFor.To != ToRollout || second.report.Waited <= 0 || looks == 0 || second.Ranks[0].Job != "k" {
		t.Errorf("waited for %+v, %v s, looked %d times: %+v", waitedFor, second.report.Waited, looks, second.Ranks)
	}
	third := of(dir, "k", ToRollout)
	third.NoWait = true
	if _, err := third.take(t.Context()); err == nil {
		t.Error("the ranks that were found anew are not locked")
	}
	taken(t, of(dir, "j", ToRollout)).release() // what was locked in vain is free
	locks.release()
	wantNoLocks(t, dir)
}

func TestNothingIsMovedWhereTheOtherDoesNotEndInTime(t *testing.T) {
	dir := t.TempDir()
	first := taken(t, of(dir, "j", ToRollout))
	defer first.release()
	o := of(dir, "j", ToTrain).Options
	o.Timeout = time.Millisecond
	report, err := Run(t.Context(), o)
	if err == nil || report.OK || report.Moved || !report.Late || len(report.Steps) != 0 || report.HeldBy == nil || report.HeldBy.PID != os.Getpid() || report.Error == "" {
		t.Errorf("%v: %+v", err, report)
	}
}

// What a process leaves that was killed while it held the lock is in nobody's way, whatever it is.
func TestTheLockOfADeadProcessHoldsNobody(t *testing.T) {
	for _, left := range []string{"", `{"pid":1,"by":"ebb swap","to":"train"}`, "\x00\xff{", strings.Repeat("x", 1<<16)} {
		dir := t.TempDir()
		h := of(dir, "j", ToRollout)
		if err := os.WriteFile(lockPath(dir, "job", "j"), []byte(left), 0o600); err != nil {
			t.Fatal(err)
		}
		h.NoWait = true
		locks := taken(t, h)
		if got := holder(locks[0].path); got.PID != os.Getpid() || got.To != ToRollout {
			t.Errorf("after %.20q: held by %+v", left, got)
		}
		locks.release()
		wantNoLocks(t, dir)
	}
}

func TestRanksWhoseDirectoryIsGoneAreNoError(t *testing.T) {
	taken(t, of(filepath.Join(t.TempDir(), "gone"), "j", ToTrain)).release()
}

// However many want it, one has it at a time, each gets it in the end, and nothing stays behind.
func TestOneOfManyHoldsTheLock(t *testing.T) {
	dir := t.TempDir()
	var inside, most int
	var mu sync.Mutex
	count := func(by int) {
		mu.Lock()
		defer mu.Unlock()
		inside += by
		most = max(most, inside)
	}
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 3 {
				locks, err := of(dir, "j", ToTrain).take(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				count(1)
				count(-1)
				locks.release()
			}
		})
	}
	all.Wait()
	if most != 1 {
		t.Errorf("%d held it at once", most)
	}
	wantNoLocks(t, dir)
}

// An engine may be handed over before anything has made this user's directory.
func TestTheLockOfAnEngineMakesItsDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "not", "there")
	of := func() *handOver {
		return &handOver{Options: Options{To: ToTrain, By: "test", NoWait: true, Settings: rollout.Settings{Notes: dir}, Engines: []EngineSpec{{URL: "http://a"}}}}
	}
	first := taken(t, of())
	var other *HeldError
	if _, err := of().take(t.Context()); !errors.As(err, &other) {
		t.Errorf("a second one: %v", err)
	}
	first.release()
	wantNoLocks(t, dir)
}

// The deadline may pass while the ranks are looked for anew: then nothing was moved, and nothing is to go back from.
func TestADeadlineWhileTheRanksAreLookedForAnewIsLateAndMovedNothing(t *testing.T) {
	dir := t.TempDir()
	first := taken(t, of(dir, "j", ToRollout))
	o := of(dir, "j", ToTrain).Options
	o.Timeout = 2 * time.Second
	o.Waiting = func(Holder) { first.release() }
	o.Again = func(ctx context.Context) ([]node.Rank, []node.Silent, error) {
		<-ctx.Done()
		return nil, nil, ctx.Err()
	}
	report, err := Run(t.Context(), o)
	if err == nil || !report.Late || report.Begun || report.Moved {
		t.Errorf("%v: %+v", err, report)
	}
	wantNoLocks(t, dir)
}
