package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/ebb-offload/ebb/internal/control"
	"github.com/ebb-offload/ebb/internal/node"
	"github.com/ebb-offload/ebb/internal/slurm"
)

func rankOf(number string) node.Rank {
	return node.Rank{Who: control.Who{Job: "slurm-77.0", Role: "actor", Cell: "0", Rank: number, PID: 100}, Socket: "/tmp/ebb-0/" + number}
}

func answered(name string, outcomes ...node.Outcome) *jobNode {
	return &jobNode{Name: name, answer: nodeAnswer{Report: &node.Report{Operation: control.CmdPause, Outcomes: outcomes}}}
}

func done(number string, bytes uint64) node.Outcome {
	return node.Outcome{Rank: rankOf(number), State: node.Done, Done: &control.Done{Allocations: 1, Bytes: bytes, DiskBytes: bytes, Seconds: 2}}
}

// A pause is done when it is on every rank that any node had.
func TestAPauseOfAJobIsDoneWhenEveryRankIs(t *testing.T) {
	had := func(numbers ...string) (list []node.Outcome) {
		for _, n := range numbers {
			list = append(list, node.Outcome{Rank: rankOf(n)})
		}
		return list
	}
	late := node.Outcome{Rank: rankOf("1"), State: node.Late, Err: &control.Error{Code: 18, Message: "no safe point"}}
	n1 := answered("n1", done("0", 1e9), done("1", 1e9))
	lost := &jobNode{Name: "n2", Lost: "it has said nothing for 30s"}
	for name, c := range map[string]struct {
		nodes []*jobNode
		had   map[*jobNode][]node.Outcome
		ok    bool
		state string // of the rank that is not done
		word  string // of its error
	}{
		"all":                                 {[]*jobNode{n1, answered("n2", done("2", 5))}, map[*jobNode][]node.Outcome{n1: had("0", "1")}, true, "", ""},
		"a node without ranks":                {[]*jobNode{n1, answered("n2")}, map[*jobNode][]node.Outcome{n1: had("0", "1")}, true, "", ""},
		"a late rank":                         {[]*jobNode{answered("n1", done("0", 5), late)}, nil, false, "late", "no safe point"},
		"a node that was lost from the first": {[]*jobNode{n1, lost}, nil, false, "", ""},
		"a node that was lost in the midst":   {[]*jobNode{n1, lost}, map[*jobNode][]node.Outcome{lost: had("2")}, false, "failed", "node n2 does not answer: it has said nothing"},
	} {
		r := newJobResult(control.CmdPause, &job{ID: "77", nodes: c.nodes}, c.had)
		if r.OK != c.ok {
			t.Errorf("%s: ok is %v", name, r.OK)
		}
		state, word := "", ""
		for _, o := range r.Ranks {
			if o.State != node.Done {
				state, word = string(o.State), o.Err.Message
			}
		}
		if state != c.state || !strings.Contains(word, c.word) {
			t.Errorf("%s: a rank is %q: %q; want %q: %q", name, state, word, c.state, c.word)
		}
	}

	ended := answered("n1", done("0", 5))
	r := newJobResult(control.CmdPause, &job{ID: "77", nodes: []*jobNode{ended}}, map[*jobNode][]node.Outcome{ended: had("0", "1")})
	if r.OK || len(r.Ranks) != 2 || r.Ranks[1].State != node.Gone {
		t.Errorf("a rank that ended between the look and the pause: %+v", r)
	}
	again := done("1", 5) // its launcher has started it again
	again.Socket += "-again"
	restarted := answered("n1", done("0", 5), again)
	r = newJobResult(control.CmdPause, &job{ID: "77", nodes: []*jobNode{restarted}}, map[*jobNode][]node.Outcome{restarted: had("0", "1")})
	if r.OK || len(r.Ranks) != 3 || r.Ranks[2].State != node.Gone || r.Ranks[2].Socket != rankOf("1").Socket {
		t.Errorf("a rank that ended and was started again meanwhile: %+v", r)
	}
}

// worldOf are the places of ranks in a world of so many.
func worldOf(size int, ranks ...int) (list []slurm.Place) {
	for _, rank := range ranks {
		list = append(list, slurm.Place{World: "77 n1:29500", Size: size, Rank: rank})
	}
	return list
}

// A rank that has ended, or has no memory yet, is on no node; the others' world tells that it should be.
func TestAPauseOfAJobIsNotDoneWithoutRanksOfItsWorld(t *testing.T) {
	nodes := func() []*jobNode {
		n1, n2 := answered("n1", done("0", 5), done("1", 5)), answered("n2", done("2", 5))
		n1.answer.Places, n2.answer.Places = worldOf(4, 0, 1), worldOf(4, 2)
		return []*jobNode{n1, n2}
	}
	r := newJobResult(control.CmdPause, &job{ID: "77", nodes: nodes()}, nil)
	if r.OK || len(r.Missing) != 1 || r.Missing[0].Rank != 3 || !strings.Contains(r.missing(), "rank 3 is not there, of the 4 ranks of a world of job 77") || r.share("paused", 3, 0) != "3 of 4 ranks paused" {
		t.Errorf("rank 3 is nowhere: %+v: %s", r, r.missing())
	}
	whole := nodes()
	whole[1].answer.Places = worldOf(4, 2, 3)
	if r := newJobResult(control.CmdPause, &job{ID: "77", nodes: whole}, nil); !r.OK || r.missing() != "" {
		t.Errorf("all are there: %+v", r)
	}
	few := []*jobNode{answered("n1", done("0", 5))}
	few[0].answer.Places = worldOf(20, 0)
	if got := newJobResult(control.CmdPause, &job{ID: "77", nodes: few}, nil).missing(); !strings.Contains(got, "ranks 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 and 9 more are not there") {
		t.Errorf("%s", got)
	}
	for name, c := range map[string]struct {
		cmd   string
		j     *job
		had   map[*jobNode][]node.Outcome
		worst node.State
	}{
		"ranks that were chosen":     {control.CmdPause, &job{ID: "77", meant: node.Selection{Roles: []string{"actor"}}, nodes: nodes()}, nil, node.Done},
		"a component of the job":     {control.CmdPause, &job{ID: "77+1", nodes: nodes()}, nil, node.Done},
		"a resume of all that there": {control.CmdResume, &job{ID: "77", nodes: nodes()}, nil, node.Done},
	} {
		if r := newJobResult(c.cmd, c.j, c.had); !r.OK || len(r.Missing) > 0 {
			t.Errorf("%s: %+v", name, r)
		}
	}
	ended := nodes()
	r = newJobResult(control.CmdPause, &job{ID: "77", nodes: ended}, map[*jobNode][]node.Outcome{ended[1]: {{Rank: rankOf("2")}, {Rank: rankOf("3")}}})
	if r.OK || len(r.Missing) > 0 || r.Ranks[3].State != node.Gone {
		t.Errorf("who is named as ended is not named as missing too: %+v", r)
	}
}

// Where there may be further ranks a pause is not known to be done.
func TestAPauseOfAJobIsNotDoneWhereRanksAreNotKnown(t *testing.T) {
	strange := node.Silent{Who: control.Who{Job: "mine", Role: "actor", Cell: "0", Rank: "3", PID: 9}, Why: "left alone: it is not known"}
	for name, c := range map[string]struct {
		answer nodeAnswer
		meant  node.Selection
		remark string
	}{
		"a rank of no known job":                     {nodeAnswer{Strange: []node.Silent{strange}}, node.Selection{}, "actor cell 0 rank 3 (pid 9) is left alone"},
		"one that is not meant":                      {nodeAnswer{Strange: []node.Silent{strange}}, node.Selection{Ranks: []string{"0"}}, ""},
		"a directory of sockets that cannot be read": {nodeAnswer{Remarks: []string{"/tmp/ebb-7: belongs to user 8: not looked into"}}, node.Selection{}, "not looked into"},
	} {
		c.answer.Report = &node.Report{Outcomes: []node.Outcome{done("0", 5)}}
		text, err := json.Marshal(c.answer)
		if err != nil {
			t.Fatal(err)
		}
		n := &jobNode{Name: "n1"}
		n.take(text, "", c.meant)
		for _, cmd := range []string{control.CmdPause, control.CmdResume} {
			j := &job{ID: "77", meant: c.meant, nodes: []*jobNode{n}}
			r := newJobResult(cmd, j, nil)
			if r.OK != (c.remark == "") || !strings.Contains(strings.Join(j.complaints(), "\n"), c.remark) {
				t.Errorf("%s: %s: ok is %v, %q", name, cmd, r.OK, j.complaints())
			}
			o := operationFlags{cmd: cmd}
			f := pflag.NewFlagSet(cmd, pflag.ContinueOnError)
			o.ranks.add(f)
			o.ranks.slurm = "77"
			var told statusError
			if err := quietly(t, func() error { return o.tellJob(t.Context(), r) }); c.remark != "" && (!errors.As(err, &told) || int(told) != statusFailed) || c.remark == "" && err != nil {
				t.Errorf("%s: %s ends with %v", name, cmd, err)
			}
		}
	}
}

// quietly does something without what it prints.
func quietly(t *testing.T, do func() error) error {
	t.Helper()
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	was := stdout
	stdout = &outFile{file: null}
	defer func() {
		stdout = was
		_ = null.Close()
	}()
	return do()
}

func TestARowForEachNode(t *testing.T) {
	half := answered("n3", done("4", 1e9), node.Outcome{Rank: rankOf("5"), State: node.Failed, Err: &control.Error{Message: "no room"}})
	j := &job{ID: "77", nodes: []*jobNode{answered("n1", done("0", 1e9), done("1", 3e9)), {Name: "n2", Lost: "why"}, half, answered("n4")}}
	var out bytes.Buffer
	r := newJobResult(control.CmdPause, j, nil)
	r.print(&out)
	for _, want := range []string{"n1 2 done 4.00 0.00 4.00 0.00 2.00 2.00", "n2 0 lost", "n3 2 1 of 2 done 1.00", "n4 0 no rank"} {
		if !strings.Contains(strings.Join(strings.Fields(out.String()), " "), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
	if strings.Contains(out.String(), "pause done") {
		t.Errorf("a pause in part is called done:\n%s", out.String())
	}
	if lines := j.complaints(); len(lines) != 1 || lines[0] != "node n2 of job 77 does not answer: why" {
		t.Errorf("%q", lines)
	}
	for lost, want := range map[int]string{0: "3 of 4 ranks paused", 1: "3 ranks paused on 3 of 4 nodes"} {
		if got := r.share("paused", 3, lost); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// What a node answers is what comes out of it again, with the node's name.
func TestStatusesOfNodesComeThrough(t *testing.T) {
	status := node.Status{Device: "GPU", Paused: 7, Tags: []node.TagStatus{{Tag: "a", Disk: 7, InFiles: 7}}}
	raw, err := json.Marshal(status)
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(nodeAnswer{
		Ranks:   []node.RankStatus{{Rank: rankOf("0"), Raw: raw}},
		Silent:  []node.Silent{{Who: control.Who{PID: 9}, Why: "stopped", Late: true}},
		Remarks: []string{"a remark"},
	})
	if err != nil {
		t.Fatal(err)
	}
	n := &jobNode{Name: "n1"}
	n.take(text, "", node.Selection{})
	n.take(text, "", node.Selection{}) // asked twice, a remark is one
	broken := &jobNode{Name: "n2"}
	broken.take([]byte(`{"ranks": 7}`), "", node.Selection{})
	j := &job{ID: slurm.ID("77"), nodes: []*jobNode{n, broken}}
	s := newJobStatus(j, node.Selection{})
	if len(s.Ranks) != 1 || s.Ranks[0].Node != "n1" || s.Ranks[0].Status.Paused != 7 || s.Ranks[0].Status.Where().Disk != 7 || len(s.Silent) != 1 || s.unanswered() != 1 {
		t.Errorf("%+v", s)
	}
	if !strings.Contains(broken.Lost, "is it the same ebb there?") || len(n.Remarks) != 1 {
		t.Errorf("%q, %q", broken.Lost, n.Remarks)
	}
	if other := newJobStatus(j, node.Selection{Ranks: []string{"1"}}); len(other.Ranks) != 0 {
		t.Errorf("a rank that was not meant: %+v", other.Ranks)
	}
	var out bytes.Buffer
	s.print(&out)
	for _, want := range []string{"n1 2 silent 0.00 0.00 0.00", "n2 0 lost", "n1: pid 9 does not answer: stopped"} {
		if !strings.Contains(strings.Join(strings.Fields(out.String()), " "), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
	text, err = json.Marshal(s)
	if err != nil || !strings.Contains(string(text), `"ranks":[{"node":"n1","job":"slurm-77.0"`) || !strings.Contains(string(text), `"status":{"device":"GPU"`) {
		t.Errorf("%s, %v", text, err)
	}
}

// What chooses ranks goes to the nodes as it was given, directories by their whole paths.
func TestWordsForTheNodes(t *testing.T) {
	r := rankFlags{
		selection:   node.Selection{Roles: []string{"actor", "critic"}, Ranks: []string{"3"}, Cells: []string{"0"}, Jobs: []string{"slurm-77.1"}},
		runtimeDirs: []string{"/run/a", "sockets"}, diskDirs: []string{"/nvme"},
	}
	where := strings.Join(r.nodeWords(false), " ")
	if !strings.HasPrefix(where, "--runtime-dir /run/a --runtime-dir /") || !strings.HasSuffix(where, "/sockets --disk-dir /nvme") {
		t.Errorf("%s", where)
	}
	if got := strings.Join(r.nodeWords(true), " "); got != where+" --role actor,critic --rank 3 --cell 0 --job slurm-77.1" {
		t.Errorf("%s", got)
	}
}

func TestTheCommandThatBringsAJobBack(t *testing.T) {
	o := operationFlags{cmd: control.CmdPause, given: []string{"--tag", "a b"}}
	f := pflag.NewFlagSet("pause", pflag.ContinueOnError)
	o.ranks.add(f)
	o.ranks.addSlurm(f)
	if err := f.Parse([]string{"--slurm", "77_1", "--role", "actor"}); err != nil {
		t.Fatal(err)
	}
	if got := o.goBack(); got != "ebb resume --slurm 77_1 --tag 'a b' --role actor" {
		t.Errorf("%s", got)
	}
}
