package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/ebb-offload/ebb/internal/control"
	"github.com/ebb-offload/ebb/internal/launch"
	"github.com/ebb-offload/ebb/internal/node"
	"github.com/ebb-offload/ebb/internal/slurm"
)

// jobResult is what ebb pause --slurm JOB --json and ebb resume --slurm JOB --json print: as without --slurm, with the
// nodes.
type jobResult struct {
	MessageType string        `json:"message_type"`
	OK          bool          `json:"ok"`
	Job         string        `json:"slurm_job"`
	Operation   string        `json:"operation"`
	Nodes       []*jobNode    `json:"nodes"`
	Ranks       []nodeOutcome `json:"ranks"`
	Missing     []slurm.Place `json:"missing,omitempty"` // ranks of the job's worlds that no node has: of a pause of all
	Seconds     float64       `json:"seconds"`
	GoBack      string        `json:"go_back,omitempty"`
}

// nodeOutcome is how an operation went on a rank of a node.
type nodeOutcome struct {
	Node string `json:"node"`
	node.Outcome
}

// newJobResult puts the answers of the nodes together. had are the ranks that each node had before it was asked; those
// of a node that gave no answer are failed.
func newJobResult(cmd string, j *job, had map[*jobNode][]node.Outcome) jobResult {
	r := jobResult{MessageType: cmd, Job: string(j.ID), Operation: cmd, Nodes: j.nodes, Ranks: []nodeOutcome{}, OK: len(j.lost()) == 0 && !j.unsure()}
	var places []slurm.Place
	for _, n := range j.nodes {
		outcomes := had[n]
		if n.answer.Report != nil {
			outcomes = n.answer.Report.Outcomes
		} else {
			for i := range outcomes {
				outcomes[i].State = node.Failed
				outcomes[i].Err = &control.Error{Code: 1, Message: fmt.Sprintf("node %s does not answer: %s", n.Name, n.Lost)}
			}
		}
		for _, o := range outcomes {
			r.Ranks = append(r.Ranks, nodeOutcome{n.Name, o})
			r.OK = r.OK && o.State == node.Done
		}
		places = append(places, n.answer.Places...)
		for _, before := range had[n] {
			if !contains(outcomes, before.Rank) { // it was there, and has ended meanwhile
				before.State, before.Err = node.Gone, &control.Error{Code: 1, Message: "its process has ended meanwhile"}
				r.Ranks = append(r.Ranks, nodeOutcome{n.Name, before})
				r.OK = false
			}
		}
	}
	// What a lost node has is not known; and of a part of the job, or of a choice, the world does not tell how many it has.
	if cmd == control.CmdPause && len(j.lost()) == 0 && j.meant.All() && !strings.Contains(string(j.ID), "+") {
		r.Missing = slices.DeleteFunc(slurm.Absent(places), func(p slurm.Place) bool {
			return slices.ContainsFunc(r.Ranks, func(o nodeOutcome) bool { return o.State == node.Gone && o.Who.Rank == strconv.Itoa(p.Rank) })
		})
		r.OK = r.OK && len(r.Missing) == 0
	}
	return r
}

// missing is a line for ranks that no node has; empty where there are none.
func (r jobResult) missing() string {
	if len(r.Missing) == 0 {
		return ""
	}
	var numbers []string
	for _, p := range r.Missing[:min(len(r.Missing), 10)] {
		numbers = append(numbers, strconv.Itoa(p.Rank))
	}
	text := "rank " + numbers[0] + " is"
	switch more := len(r.Missing) - len(numbers); {
	case more > 0:
		text = fmt.Sprintf("ranks %s and %d more are", strings.Join(numbers, ", "), more)
	case len(numbers) > 1:
		text = "ranks " + strings.Join(numbers, ", ") + " are"
	}
	return fmt.Sprintf("%s not there, of the %d ranks of a world of job %s: no GPU memory under ebb yet, or ended; where they are not meant to be under ebb, choose the others with --role, --rank or --cell",
		text, r.Missing[0].Size, r.Job)
}

func contains(outcomes []node.Outcome, rank node.Rank) bool {
	for _, o := range outcomes {
		if o.Socket == rank.Socket {
			return true
		}
	}
	return false
}

// report is the result as one of a single node.
func (r jobResult) report() node.Report {
	report := node.Report{Operation: r.Operation, Seconds: r.Seconds}
	for _, o := range r.Ranks {
		report.Outcomes = append(report.Outcomes, o.Outcome)
	}
	return report
}

// tellJob prints the result and turns it into ebb's own status.
func (o *operationFlags) tellJob(ctx context.Context, r jobResult) error {
	report := r.report()
	n, lost := moved(report), 0
	for _, node := range r.Nodes {
		if node.Lost != "" {
			lost++
		}
	}
	if !r.OK && (n > 0 || lost > 0) {
		r.GoBack = o.goBack()
	}
	if o.ranks.asJSON {
		if err := printJSON(r); err != nil {
			return err
		}
	} else {
		r.print(stdout)
	}
	for _, out := range r.Ranks {
		name := fmt.Sprintf("%s on %s", node.FullName(out.Who), out.Node)
		if out.Note != "" {
			say(fmt.Sprintf("%s is paused: %s", name, out.Note))
		}
		if out.State != node.Done && out.Err != nil {
			say(fmt.Sprintf("%s %s: %s", name, inWords(out.Outcome), out.Err.Message))
		}
	}
	if line := r.missing(); line != "" {
		say(line)
	}
	for _, line := range (&job{ID: o.ranks.slurm, nodes: r.Nodes}).complaints() {
		say(line)
	}
	switch {
	case r.OK:
		return nil
	case r.GoBack == "":
		say("no rank was paused: those that still run go on as before")
	case o.cmd == control.CmdPause:
		say(fmt.Sprintf("%s; to bring them back: %s", r.share("paused", n, lost), r.GoBack))
	default:
		say(fmt.Sprintf("%s; what is not stays paused, with all its bytes. Once that is mended, again: %s", r.share("resumed", n, lost), r.GoBack))
	}
	var signal signalError
	switch {
	case errors.As(context.Cause(ctx), &signal):
		return statusError(128 + int(signal))
	case lost > 0 || len(report.Failed()) > 0 || len(r.Missing) > 0 || (&job{nodes: r.Nodes}).unsure():
		return statusError(statusFailed)
	}
	return statusError(statusLate)
}

// share says how many ranks are done: "5 of 6 ranks paused", or "4 ranks paused on 2 of 3 nodes", where others may have
// had ranks that are not known.
func (r jobResult) share(done string, n, lost int) string {
	if lost == 0 {
		return fmt.Sprintf("%d of %s %s", n, launch.Count(len(r.Ranks)+len(r.Missing), "rank"), done)
	}
	return fmt.Sprintf("%s %s on %d of %s", launch.Count(n, "rank"), done, len(r.Nodes)-lost, launch.Count(len(r.Nodes), "node"))
}

// complaints are lines for the nodes that are lost and what others remark.
func (j *job) complaints() (lines []string) {
	for _, n := range j.nodes {
		if n.Lost != "" {
			lines = append(lines, fmt.Sprintf("node %s of job %s does not answer: %s", n.Name, j.ID, n.Lost))
		}
		for _, remark := range n.Remarks {
			lines = append(lines, fmt.Sprintf("node %s: %s", n.Name, remark))
		}
	}
	return lines
}

// print has a row for each node, and a line for all.
func (r jobResult) print(w io.Writer) {
	of := map[string][]node.Outcome{}
	for _, o := range r.Ranks {
		of[o.Node] = append(of[o.Node], o.Outcome)
	}
	sums := make([]nodeSum, len(r.Nodes))
	largest := uint64(0)
	var all nodeSum
	known := true
	for i, n := range r.Nodes {
		for _, o := range of[n.Name] {
			sums[i].add(o)
			all.add(o)
			known = known && o.Note == ""
		}
		largest = max(largest, sums[i].Bytes)
	}
	unit := unitFor(largest)
	t := &table{left: []bool{true, false, true}}
	t.row("NODE", "ranks", "RESULT", unit.name, "host", "disk", "skip", "s", "GB/s", "waited s")
	for i, n := range r.Nodes {
		row := []string{n.Name, strconv.Itoa(len(of[n.Name])), result(n, of[n.Name])}
		if d := sums[i]; d.some {
			row = append(row, unit.of(d.Bytes), unit.of(d.HostBytes), unit.of(d.DiskBytes), unit.of(d.SkippedZero+d.SkippedSame), short(d.Seconds), d.rate(), short(d.Waited))
		}
		t.row(row...)
	}
	for _, line := range t.lines() {
		fmt.Fprintln(w, line)
	}
	if !r.OK {
		return
	}
	text := fmt.Sprintf("%s done on %s of job %s, on %s, in %s s", r.Operation, launch.Count(len(r.Ranks), "rank"), r.Job, launch.Count(len(r.Nodes), "node"), short(r.Seconds))
	if all.Seconds > 0 {
		text += fmt.Sprintf(", %s GB/s", all.rate())
	}
	text += whatMoved(r.Operation, all.Bytes, known, "the GPUs")
	for _, line := range wrap(text, "    ") {
		fmt.Fprintln(w, line)
	}
}

// nodeSum is what ranks did together: all bytes, in the time of the slowest.
type nodeSum struct {
	control.Done
	some bool
}

func (s *nodeSum) add(o node.Outcome) {
	d := o.Done
	if d == nil {
		return
	}
	s.some = true
	s.Bytes += d.Bytes
	s.HostBytes += d.HostBytes
	s.DiskBytes += d.DiskBytes
	s.SkippedZero += d.SkippedZero
	s.SkippedSame += d.SkippedSame
	s.Seconds, s.Waited = max(s.Seconds, d.Seconds), max(s.Waited, d.Waited)
}

func (s *nodeSum) rate() string {
	if s.Seconds == 0 {
		return "-"
	}
	return short(float64(s.Bytes) / 1e9 / s.Seconds)
}

// result is in a few words how it went on a node.
func result(n *jobNode, outcomes []node.Outcome) string {
	report := node.Report{Outcomes: outcomes}
	done := len(report.In(node.Done))
	switch {
	case n.Lost != "":
		return "lost"
	case len(outcomes) == 0:
		return "no rank"
	case done == len(outcomes):
		return "done"
	case done == 0 && len(report.Late()) == len(outcomes):
		return "late"
	case done == 0:
		return "failed"
	}
	return fmt.Sprintf("%d of %d done", done, len(outcomes))
}

// jobStatus is what ebb status --slurm JOB --json prints.
type jobStatus struct {
	MessageType string       `json:"message_type"`
	Job         string       `json:"slurm_job"`
	Nodes       []*jobNode   `json:"nodes"`
	Ranks       []nodeRank   `json:"ranks"`
	Silent      []nodeSilent `json:"silent"`
	Disks       []nodeDisk   `json:"disks"`
}

type (
	nodeRank struct {
		Node string `json:"node"`
		node.RankStatus
	}
	nodeSilent struct {
		Node string `json:"node"`
		node.Silent
	}
	nodeDisk struct {
		Node string `json:"node"`
		node.Disk
	}
)

func newJobStatus(j *job, s node.Selection) jobStatus {
	r := jobStatus{MessageType: statusOperation, Job: string(j.ID), Nodes: j.nodes, Ranks: []nodeRank{}, Silent: []nodeSilent{}, Disks: []nodeDisk{}}
	for _, n := range j.nodes {
		for _, rank := range n.answer.Ranks {
			if s.Means(rank.Who) {
				r.Ranks = append(r.Ranks, nodeRank{n.Name, rank})
			}
		}
		_, silent := s.Of(nil, n.answer.Silent)
		for _, q := range silent {
			r.Silent = append(r.Silent, nodeSilent{n.Name, q})
		}
		for _, d := range n.answer.Disks {
			r.Disks = append(r.Disks, nodeDisk{n.Name, d})
		}
	}
	return r
}

// on is the status of one node.
func (r jobStatus) on(name string) (s statusResult) {
	for _, rank := range r.Ranks {
		if rank.Node == name {
			s.Ranks = append(s.Ranks, rank.RankStatus)
		}
	}
	for _, q := range r.Silent {
		if q.Node == name {
			s.Silent = append(s.Silent, q.Silent)
		}
	}
	for _, d := range r.Disks {
		if d.Node == name {
			s.Disks = append(s.Disks, d.Disk)
		}
	}
	return s
}

// all is the status as one of a single node.
func (r jobStatus) all() (s statusResult) {
	for _, rank := range r.Ranks {
		s.Ranks = append(s.Ranks, rank.RankStatus)
	}
	for _, q := range r.Silent {
		s.Silent = append(s.Silent, q.Silent)
	}
	return s
}

func (r jobStatus) unanswered() int { return r.all().unanswered() }

// print has a row for each node, one for all, and lines for what is wrong.
func (r jobStatus) print(w io.Writer) {
	unit := r.all().unit()
	t := &table{left: []bool{true, false, true}}
	t.row("NODE", "ranks", "STATE", "on GPU", "host", "disk", "skip", unit.name, "s", "GB/s", unit.name, "s", "GB/s")
	var all node.Where
	pauses, resumes := &together{}, &together{}
	for _, n := range r.Nodes {
		s := r.on(n.Name)
		row := []string{n.Name, strconv.Itoa(len(s.Ranks) + len(s.Silent)), s.state(n)}
		if slices.ContainsFunc(s.Ranks, func(r node.RankStatus) bool { return r.Err == "" }) {
			var where node.Where
			pause, resume := &together{}, &together{}
			for _, rank := range s.Ranks {
				where.Add(rank.Status.Where())
				for _, to := range []*together{pause, pauses} {
					to.add(rank.Status.LastPause)
				}
				for _, to := range []*together{resume, resumes} {
					to.add(rank.Status.LastResume)
				}
			}
			all.Add(where)
			row = append(append(append(row, places(unit, where)...), pause.figures(unit)...), resume.figures(unit)...)
		}
		t.row(row...)
	}
	if len(r.Nodes) > 1 {
		row := append([]string{"all", strconv.Itoa(len(r.Ranks) + len(r.Silent)), ""}, places(unit, all)...)
		t.row(append(append(row, pauses.figures(unit)...), resumes.figures(unit)...)...)
	}
	fmt.Fprintln(w, t.heading(map[int]string{3: "memory, " + unit.name, 7: "last pause", 10: "last resume"}))
	for _, line := range t.lines() {
		fmt.Fprintln(w, line)
	}
	fmt.Fprintln(w)
	for _, line := range r.remarks() {
		for _, part := range wrap(line, "    ") {
			fmt.Fprintln(w, part)
		}
	}
}

// remarks are lines for what the table does not say: the sum, and per node what is wrong, but not its disks.
func (r jobStatus) remarks() []string {
	if len(r.Ranks) == 0 {
		return nil
	}
	lines := r.all().remarks()[:1]
	for _, n := range r.Nodes {
		s := r.on(n.Name)
		s.Disks = nil
		if more := s.remarks(); len(s.Ranks)+len(s.Silent) > 0 {
			for _, line := range more[1:] {
				lines = append(lines, n.Name+": "+line)
			}
		}
	}
	return lines
}

// state is in one word where the memory of a node's ranks is.
func (r statusResult) state(n *jobNode) string {
	switch {
	case n.Lost != "":
		return "lost"
	case len(r.Ranks)+len(r.Silent) == 0:
		return "no rank"
	case len(r.Silent) > 0 || r.unanswered() > 0:
		return "silent"
	}
	first := stateOf(r.Ranks[0].Status)
	for _, rank := range r.Ranks {
		if stateOf(rank.Status) != first {
			return "partly"
		}
	}
	return first
}
