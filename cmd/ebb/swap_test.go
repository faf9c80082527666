package main

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/spf13/pflag"

	"github.com/ebb-offload/ebb/internal/swap"
)

// What a step says is never cut: what has no room in its line stands below it.
func TestStepsFitTheScreenAndAreToldInFull(t *testing.T) {
	long := strings.Repeat("actor-with-a-name/", 9)
	short := "http://rollout-engine.example.org:30000/v1"
	for _, s := range []swap.Step{
		{Step: swap.StepRank, What: "actor/0/0", State: "resident", OK: true, Bytes: 999_999_999_999, Seconds: 99999},
		{Step: swap.StepRank, What: long, State: "resident", OK: true, Bytes: 999_999_999_999, Seconds: 99999},
		{Step: swap.StepRank, What: long, State: "resident", Error: strings.Repeat("no safe point ", 20)},
		{Step: swap.StepEngine, What: short, Kind: "sglang", State: "partly asleep", Error: "POST /sleep: connection refused"},
		{Step: swap.StepEngine, What: short, Kind: "command", State: "unknown", OK: true, Error: strings.Repeat("exit status 1: ", 9)},
		{Step: swap.StepEngine, What: long, Kind: "command", State: "awake", OK: true, Already: true},
		{Step: swap.StepMemory, What: long, State: "free", Bytes: 1e15, Total: 1e15, Need: 1e15},
	} {
		lines := stepLines(s)
		for _, line := range lines {
			if n := utf8.RuneCountInString(line); n > textWidth || strings.Contains(line, "\n") {
				t.Errorf("%d columns: %s", n, line)
			}
		}
		said := strings.Join(strings.Fields(strings.Join(lines, " ")), " ")
		if failed := strings.Contains(said, " FAILED: "); failed == s.OK {
			t.Errorf("a failure is marked: %v: %s", failed, said)
		}
		if !strings.HasSuffix(said, strings.Join(strings.Fields(detail(s)), " ")) {
			t.Errorf("%q is not told in full: %s", detail(s), said)
		}
		if s.What == short && !strings.Contains(said, short) {
			t.Errorf("an address with room for it is cut: %s", said)
		}
	}
}

func TestADeviceIsNamedByTheBeginningOfItsUUID(t *testing.T) {
	lines := stepLines(swap.Step{Step: swap.StepMemory, What: "NVIDIA H200 GPU-736f6674-6770-7500-fec5-208616a5adeb", State: "free", OK: true, Bytes: 1e9, Total: 2e9})
	if len(lines) != 1 || !strings.HasPrefix(lines[0], "memory  NVIDIA H200 GPU-736f6674  ") {
		t.Error(lines)
	}
}

func TestTheCommandThatGoesBackIsTheOtherDirection(t *testing.T) {
	s := swapFlags{options: swap.Options{To: swap.ToRollout}}
	s.given = []string{"--engine", "http://127.0.0.1:8000", "--engine-command", "it's ./engine.sh"}
	s.ranks.add(pflag.NewFlagSet("", pflag.ContinueOnError))
	if err := s.ranks.flags.Set("role", "actor"); err != nil {
		t.Fatal(err)
	}
	want := `ebb swap --to train --engine http://127.0.0.1:8000 --engine-command 'it'\''s ./engine.sh' --role actor`
	if got := s.goBack(); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	s.options.To = swap.ToTrain
	if got := s.goBack(); !strings.HasPrefix(got, "ebb swap --to rollout --engine ") {
		t.Error(got)
	}
}

func TestTimeoutsAreSecondsOrTimes(t *testing.T) {
	for text, want := range map[string]time.Duration{"90": 90 * time.Second, "0.5": 500 * time.Millisecond, "2m": 2 * time.Minute} {
		if got, err := parseSwapTimeout(text); got != want || err != nil {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "0", "-1", "-1s", "soon", "1e30", "NaN", "inf", "200h"} {
		if got, err := parseSwapTimeout(text); err == nil {
			t.Errorf("%q is %v", text, got)
		}
	}
}
