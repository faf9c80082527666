package slurm

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// fakeSrun puts a program in PATH that stands for srun: a shell script, which has the nodes that it is asked for in
// $nodes, the round in $round, and functions to speak as tasks do. The real one is in test/clusters.
func fakeSrun(t *testing.T, script string) (calls func() []string) {
	t.Helper()
	dir := t.TempDir()
	text := `#!/bin/bash
echo "$*" >>` + dir + `/calls
round=$(wc -l <` + dir + `/calls)
for a; do case $a in --nodelist=*) nodes=${a#--nodelist=} nodes=${nodes//,/ };; esac; done
alive() { echo "ebb1 $1 . "; }
answer() { alive $1; echo "ebb1 $1 + of $1"; echo "ebb1 $1 = $((3 + ${#1}))"; }
has() { [[ " $nodes " == *" $1 "* ]]; }
` + script + "\n"
	if err := os.WriteFile(filepath.Join(dir, "srun"), []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	return func() []string {
		all, _ := os.ReadFile(filepath.Join(dir, "calls"))
		var nodes []string
		for line := range strings.Lines(string(all)) {
			_, rest, _ := strings.Cut(line, "--nodelist=")
			list, _, _ := strings.Cut(rest, " ")
			nodes = append(nodes, list)
		}
		return nodes
	}
}

var three = []string{"n1", "n2", "n3"}

func step(patience time.Duration) Step {
	return Step{Part: Part{Number: "77", Name: "77"}, Nodes: three, Command: []string{"ebb", "it"}, Patience: patience}
}

// whole checks who has answered, and who is lost why.
func whole(t *testing.T, s Step, answered []string, lost map[string]string) {
	t.Helper()
	found, missing, err := s.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got := slices.Sorted(maps.Keys(found)); !slices.Equal(got, answered) {
		t.Errorf("%q have answered, want %q (lost: %q)", got, answered, missing)
	}
	for node, text := range found {
		if string(text) != "of "+node {
			t.Errorf("%s answered %q", node, text)
		}
	}
	if len(missing) != len(lost) {
		t.Errorf("lost are %q, want %q", missing, lost)
	}
	for node, why := range lost {
		if !strings.Contains(missing[node], why) {
			t.Errorf("%s is lost: %q, want %q", node, missing[node], why)
		}
	}
}

func TestAllNodesAnswer(t *testing.T) {
	calls := fakeSrun(t, `echo a banner of the site; for n in $nodes; do answer $n; done`)
	whole(t, step(time.Minute), three, nil)
	if got := calls(); !slices.Equal(got, []string{"n1,n2,n3"}) {
		t.Errorf("srun was called for %q", got)
	}
}

func TestTheCommandOfSrun(t *testing.T) {
	s := step(time.Minute)
	got := strings.Join(s.args([]string{"n1", "n3"}), " ")
	for _, word := range []string{"--overlap", "--jobid=77", "--nodes=2", "--ntasks=2", "--ntasks-per-node=1", "--nodelist=n1,n3", "--input=none"} {
		if !strings.Contains(got, word) {
			t.Errorf("no %s in %s", word, got)
		}
	}
	if strings.Contains(got, "het-group") || !strings.HasSuffix(got, " ebb it") {
		t.Errorf("%s", got)
	}
	s.Part = Part{Number: "81", Name: "80+1"}
	if got := strings.Join(s.args(three), " "); !strings.Contains(got, "--jobid=80") || !strings.Contains(got, "--het-group=1") {
		t.Errorf("a component of a heterogeneous job: %s", got)
	}
}

// As Slurm does: a task that cannot be started ends all others.
func TestTasksThatEndBecauseAnotherNodeIsLostAreAskedAgain(t *testing.T) {
	calls := fakeSrun(t, `
answer n1
if has n2; then
	alive n3
	echo "srun: error: Task launch for StepId=77.4 failed on node n2: Communication connection failure" >&2
	exit 233
fi
answer n3`)
	whole(t, step(time.Minute), []string{"n1", "n3"}, map[string]string{"n2": "failed on node n2: Communication connection failure"})
	if got := calls(); !slices.Equal(got, []string{"n1,n2,n3", "n3"}) {
		t.Errorf("srun was called for %q", got)
	}
}

func TestANodeThatOnlyDidNotStartIsAskedAgain(t *testing.T) {
	calls := fakeSrun(t, `
answer n1
[[ $round -gt 1 ]] || { echo "srun: error: Task launch failed on node n2: Communication connection failure" >&2; exit 1; }
for n in $nodes; do answer $n; done`)
	whole(t, step(time.Minute), []string{"n1", "n3"}, map[string]string{"n2": "n2: Communication"})
	if got := calls(); !slices.Equal(got, []string{"n1,n2,n3", "n3"}) {
		t.Errorf("srun was called for %q", got)
	}
}

func TestWhereNobodyAnswersNobodyIsAskedAgain(t *testing.T) {
	calls := fakeSrun(t, `echo "srun: error: Unable to create step for job 77: Access/permission denied" >&2; exit 1`)
	whole(t, step(time.Minute), nil, map[string]string{"n1": "permission denied", "n2": "permission denied", "n3": "permission denied"})
	if len(calls()) != 1 {
		t.Errorf("srun was called for %q", calls())
	}
}

func TestANodeThatFallsSilentHoldsUpNobody(t *testing.T) {
	fakeSrun(t, `answer n1; alive n2; answer n3; exec sleep 1000`)
	whole(t, step(3*time.Second), []string{"n1", "n3"}, map[string]string{"n2": "has said nothing for 3s"})
}

func TestANodeThatKeepsSayingThatItIsThereIsWaitedFor(t *testing.T) {
	fakeSrun(t, `answer n1; answer n2; for i in {1..20}; do alive n3; sleep 0.2; done; answer n3`) // for longer than a node may be silent
	whole(t, step(3*time.Second), three, nil)
}

func TestAnAnswerThatIsBrokenIsNone(t *testing.T) {
	fakeSrun(t, `answer n1; echo "ebb1 n2 + half"; echo "ebb1 n2 = 40"; answer n3`)
	whole(t, step(time.Minute), []string{"n1", "n3"}, map[string]string{"n2": "came in part"})
}

func TestStepsDoNotGoOnForEver(t *testing.T) {
	calls := fakeSrun(t, `answer n1; alive n2; alive n3; echo "srun: error: no" >&2; exit 1`)
	whole(t, step(time.Minute), []string{"n1"}, map[string]string{"n2": "no", "n3": "no"})
	if len(calls()) != maxRounds {
		t.Errorf("srun was called %d times", len(calls()))
	}
}

func TestWhoGivesUpHasTheTasksWithdraw(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	there := filepath.Join(t.TempDir(), "there")
	calls := fakeSrun(t, `
trap 'for n in $nodes; do answer $n; done; exit' USR1
touch `+there+`
for n in $nodes; do alive $n; done
while :; do sleep 0.05; done`)
	go func() {
		for {
			if _, err := os.Stat(there); err == nil {
				cancel()
				return
			}
			time.Sleep(5 * time.Millisecond)
		}
	}()
	found, lost, err := step(time.Minute).Run(ctx)
	if err != nil || len(found) != 3 || len(lost) != 0 || len(calls()) != 1 {
		t.Errorf("%q, %q, %v, asked %q", found, lost, err, calls())
	}
	if _, _, err := step(time.Minute).Run(ctx); !errors.Is(err, context.Canceled) || len(calls()) != 1 {
		t.Errorf("begun after the end: %v", err)
	}
}

func TestWithoutSlurm(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	var e *Error
	if _, _, err := step(time.Minute).Run(t.Context()); !errors.As(err, &e) || e.Kind != Wrong || !strings.Contains(e.Text, "srun is not in PATH") {
		t.Errorf("%v", err)
	}
	if _, err := Find(t.Context(), "77"); !errors.As(err, &e) || e.Kind != Wrong || !strings.Contains(e.Text, "squeue is not in PATH") {
		t.Errorf("%v", err)
	}
}

func TestSlurmThatGivesNoAnswer(t *testing.T) {
	defer func(was time.Duration) { answerTime = was }(answerTime)
	dir := t.TempDir()
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	put := func(script string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, "squeue"), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	put("exec sleep 1000")
	answerTime = 100 * time.Millisecond
	var e *Error
	if _, err := Find(t.Context(), "77"); !errors.As(err, &e) || e.Kind != Unknown || !strings.Contains(e.Text, "no answer in 100ms; is slurmctld up") {
		t.Errorf("a controller that hangs: %v", err)
	}
	answerTime = time.Minute
	for script, want := range map[string]struct {
		kind Kind
		text string
	}{
		`echo "slurm_load_jobs error: Unable to contact slurm controller (connect failure)" >&2; exit 1`: {Unknown, "scontrol ping"},
		`echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1`:                             {Wrong, "squeue --me"},
		`echo nonsense`:                         {Unknown, "not understood"},
		`head -c 5000000 /dev/zero | tr '\0' 1`: {Unknown, "more than 4194304 bytes"},
		``:                                      {Wrong, "no job 77"},
	} {
		put(script)
		var e *Error
		if _, err := Find(t.Context(), "77"); !errors.As(err, &e) || e.Kind != want.kind || !strings.Contains(e.Text, want.text) {
			t.Errorf("%s: %v", script, err)
		}
	}
}
