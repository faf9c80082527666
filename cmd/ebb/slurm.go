package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/ebb-offload/ebb/internal/control"
	"github.com/ebb-offload/ebb/internal/launch"
	"github.com/ebb-offload/ebb/internal/node"
	"github.com/ebb-offload/ebb/internal/slurm"
)

// --slurm JOB of status, pause and resume: the verb is done on every node of a Slurm job, by a hidden verb of this
// very program in one task a node, and what the nodes answer becomes one report.
//
// First all nodes are asked what is there. So what is asked for is known to be there before anything is
// paused, and of a node that is lost later it is known which ranks it had.

// addSlurm adds the flag.
func (r *rankFlags) addSlurm(f *pflag.FlagSet) {
	f.Var(&value{kind: "JOB", parse: into(&r.slurm, slurm.ParseID)}, "slurm",
		"the ranks on all nodes of this Slurm job of yours, reached through srun; only those of the job are meant")
}

// statusOperation is what nodes are asked for beside control.CmdPause and control.CmdResume.
const statusOperation = "status"

// nodeAnswer is what the task on a node answers.
type nodeAnswer struct {
	Ranks   []node.RankStatus `json:"ranks,omitempty"`
	Silent  []node.Silent     `json:"silent,omitempty"`
	Disks   []node.Disk       `json:"disks,omitempty"`
	Report  *node.Report      `json:"report,omitempty"`  // of a pause or resume
	Places  []slurm.Place     `json:"places,omitempty"`  // of those ranks in their worlds, with a report
	Strange []node.Silent     `json:"strange,omitempty"` // may be ranks of the job, and were left alone
	Remarks []string          `json:"remarks,omitempty"` // why there may be further ranks of the job
}

// nodeVerb is the name of the hidden verb.
const nodeVerb = "__slurm-node"

// newSlurmNode is the verb of the task on a node of a job.
func newSlurmNode() *cobra.Command {
	var (
		o    operationFlags
		jobs []string
		full bool
	)
	cmd := &cobra.Command{
		Use:    nodeVerb + " OPERATION [flags]",
		Short:  "Do it on this node of a Slurm job, and answer in lines for ebb",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.cmd = args[0]
			return o.answer(cmd.Context(), jobs, full)
		},
	}
	o.flags(cmd.Flags(), "", "how long to wait")
	o.timeout = -1
	cmd.Flags().StringSliceVar(&jobs, "of", nil, "numbers of the job and its parts")
	cmd.Flags().BoolVar(&full, "full", false, "statuses with all their fields")
	return cmd
}

// answer does what is asked for and answers.
func (o *operationFlags) answer(ctx context.Context, jobs []string, full bool) error {
	outliveReaders()
	ctx, stop := untilWithdrawn(ctx)
	defer stop()
	w, err := slurm.NewWriter(stdout, os.Getenv("SLURMD_NODENAME"))
	if err != nil {
		return launch.Usagef("%w: this verb is for tasks of Slurm", err)
	}
	quiet := w.StayAlive(slurm.Heartbeat)
	answer := o.onNode(ctx, jobs, full)
	quiet()
	text, err := json.Marshal(answer)
	if err == nil {
		err = w.Answer(text)
	}
	if err != nil {
		return &launch.Error{Status: launch.StatusInternal, Text: "answering: " + oneLine(err), Err: err}
	}
	return nil
}

// untilWithdrawn is a context that slurm.Withdraw ends.
func untilWithdrawn(ctx context.Context) (context.Context, func()) {
	return signal.NotifyContext(ctx, slurm.Withdraw)
}

// onNode does what is asked for on the ranks of this node that are of a job.
func (o *operationFlags) onNode(ctx context.Context, jobs []string, full bool) (a nodeAnswer) {
	places := o.ranks.places()
	if len(o.ranks.runtimeDirs) == 0 {
		places.RuntimeDirs = append(places.RuntimeDirs, jobDirs(jobs, &a)...)
	}
	ranks, silent, err := node.Discover(ctx, places)
	for range 4 { // a rank of a busy node that is late for once would be missed in the pause of the whole job
		if ctx.Err() != nil || !slices.ContainsFunc(silent, func(s node.Silent) bool { return s.Late }) {
			break
		}
		ranks, silent, err = node.Discover(ctx, places)
	}
	if err != nil {
		for line := range strings.Lines(err.Error()) {
			a.Remarks = append(a.Remarks, strings.TrimSpace(line))
		}
	}
	of := func(socket string, who control.Who) bool {
		is := slurm.MemberOf(jobs, socket, who)
		if is == slurm.NotKnown {
			a.Strange = append(a.Strange, node.Silent{Who: who, Socket: socket, Why: "left alone: of which Slurm job it is is not known, since its process is in another pid namespace, and was given a name with --job"})
		}
		return is == slurm.Member
	}
	ranks = slices.DeleteFunc(ranks, func(r node.Rank) bool { return !of(r.Socket, r.Who) })
	silent = slices.DeleteFunc(silent, func(s node.Silent) bool { return s.Dead || !of(s.Socket, s.Who) })
	ranks, silent = o.ranks.selection.Of(ranks, silent)
	_, a.Strange = o.ranks.selection.Of(nil, a.Strange)
	if o.cmd == statusOperation {
		r := lookAt(ctx, found{ranks: ranks, silent: silent})
		a.Ranks, a.Silent, a.Disks = r.Ranks, r.Silent, r.Disks
		for i := range a.Ranks {
			if rank := &a.Ranks[i]; rank.Err == "" && !full {
				rank.Raw, err = json.Marshal(rank.Status)
				if err != nil { // numbers and texts always can be
					rank.Err = oneLine(err)
				}
			}
		}
		return a
	}
	at := placesOf(ranks, silent)
	report := node.Operation{Cmd: o.cmd, Tags: o.tags, Timeout: o.timeout}.Run(ctx, ranks)
	for _, s := range silent {
		report.Outcomes = append(report.Outcomes, unanswered(s))
	}
	a.Report, a.Places = &report, at
	return a
}

// jobDirs are slurm.RuntimeDirs, as far as they can be had at once: the kernel lets nobody read the environment of a
// process while it is stuck in some calls.
func jobDirs(jobs []string, a *nodeAnswer) []string {
	found := make(chan []string, 1)
	go func() { found <- slurm.RuntimeDirs(jobs) }()
	select {
	case dirs := <-found:
		return dirs
	case <-time.After(10 * time.Second):
		a.Remarks = append(a.Remarks, "where its processes have their control sockets is not known: the environment of one cannot be read (ps shows it in state D)")
		return nil
	}
}

// placesOf are the places of ranks in their worlds, as far as those are known.
func placesOf(ranks []node.Rank, silent []node.Silent) (places []slurm.Place) {
	sockets := make([]string, 0, len(ranks)+len(silent))
	for _, r := range ranks {
		sockets = append(sockets, r.Socket)
	}
	for _, s := range silent {
		sockets = append(sockets, s.Socket)
	}
	for _, socket := range sockets {
		if p, ok := slurm.PlaceOf(socket); ok {
			places = append(places, p)
		}
	}
	return places
}

// job is a Slurm job and what its nodes have answered last.
type job struct {
	ID    slurm.ID
	meant node.Selection
	parts []slurm.Part
	nodes []*jobNode
}

// jobNode is a node of a job.
type jobNode struct {
	Name    string   `json:"node"`
	Lost    string   `json:"lost,omitempty"`    // why there is no answer
	Remarks []string `json:"remarks,omitempty"` // why it may have ranks of the job that are not among the ranks

	part   int
	answer nodeAnswer
}

// findJob asks Slurm for the nodes of a job.
func findJob(ctx context.Context, id slurm.ID, meant node.Selection) (*job, error) {
	parts, err := slurm.Find(ctx, id)
	if err != nil {
		return nil, slurmError(err)
	}
	j := &job{ID: id, meant: meant, parts: parts}
	seen := map[string]bool{}
	for i, part := range parts {
		for _, name := range part.Nodes {
			if seen[name] { // components of a job may share a node: all its ranks are found through one
				continue
			}
			seen[name] = true
			j.nodes = append(j.nodes, &jobNode{Name: name, part: i})
		}
	}
	return j, nil
}

// slurmError gives an error of Slurm's its status.
func slurmError(err error) error {
	var e *slurm.Error
	if !errors.As(err, &e) {
		return err
	}
	status := map[slurm.Kind]int{slurm.Wrong: launch.StatusUsage, slurm.NotRunning: statusNothing, slurm.Unknown: launch.StatusInternal}[e.Kind]
	return &launch.Error{Status: status, Text: "--slurm: " + e.Text, Err: err}
}

// ask has the verb done on some nodes, on all at once, and notes their answers.
func (j *job) ask(ctx context.Context, nodes []*jobNode, words []string) error {
	self, err := os.Executable()
	if err != nil {
		return &launch.Error{Status: launch.StatusInternal, Text: "finding ebb's own path, to run it on the nodes: " + oneLine(err), Err: err}
	}
	command := slices.Concat([]string{self, nodeVerb}, words, []string{"--of", strings.Join(slurm.Numbers(j.parts), ",")})
	errs := make([]error, len(j.parts))
	var all sync.WaitGroup
	for i, part := range j.parts {
		var mine []*jobNode
		step := slurm.Step{Part: part, Command: command, Patience: slurm.Patience}
		for _, n := range nodes {
			if n.part == i {
				mine, step.Nodes = append(mine, n), append(step.Nodes, n.Name)
			}
		}
		if len(mine) == 0 {
			continue
		}
		all.Go(func() {
			answers, lost, err := step.Run(ctx)
			errs[i] = err
			for _, n := range mine {
				n.take(answers[n.Name], lost[n.Name], j.meant)
			}
		})
	}
	all.Wait()
	return slurmError(errors.Join(errs...))
}

// take notes the answer of a node.
func (n *jobNode) take(text []byte, lost string, meant node.Selection) {
	n.answer, n.Lost = nodeAnswer{}, lost
	if lost != "" {
		return
	}
	if err := json.Unmarshal(text, &n.answer); err != nil {
		n.Lost = "its answer is not understood (is it the same ebb there?): " + oneLine(err)
		return
	}
	for i := range n.answer.Ranks {
		r := &n.answer.Ranks[i]
		if r.Err != "" {
			continue
		}
		if err := json.Unmarshal(r.Raw, &r.Status); err != nil {
			r.Err = "its status is not understood: " + oneLine(err)
		}
	}
	remarks := n.answer.Remarks
	_, strange := meant.Of(nil, n.answer.Strange)
	for _, s := range strange {
		remarks = append(remarks, fmt.Sprintf("%s is %s", node.FullName(s.Who), s.Why))
	}
	for _, remark := range remarks {
		if !slices.Contains(n.Remarks, remark) {
			n.Remarks = append(n.Remarks, remark)
		}
	}
}

// lost are the nodes without an answer.
func (j *job) lost() (nodes []*jobNode) {
	for _, n := range j.nodes {
		if n.Lost != "" {
			nodes = append(nodes, n)
		}
	}
	return nodes
}

// unsure reports whether there may be ranks that are meant and are not known.
func (j *job) unsure() bool {
	return slices.ContainsFunc(j.nodes, func(n *jobNode) bool { return len(n.Remarks) > 0 })
}

// look asks all nodes what is there, and checks that what is meant is there.
func (j *job) look(ctx context.Context, ranks *rankFlags, tags []string, full bool) error {
	words := ranks.nodeWords(false)
	if full {
		words = append(words, "--full")
	}
	if err := j.ask(ctx, j.nodes, append([]string{statusOperation}, words...)); err != nil {
		return err
	}
	var there []node.Rank
	var silent []node.Silent
	var statuses []node.RankStatus
	for _, n := range j.nodes {
		for _, r := range n.answer.Ranks {
			there = append(there, r.Rank)
		}
		statuses = append(statuses, n.answer.Ranks...)
		silent = append(silent, n.answer.Silent...)
	}
	lost := j.lost()
	if len(lost) == len(j.nodes) {
		return &launch.Error{Status: launch.StatusInternal, Text: fmt.Sprintf("none of the %s of job %s answers, so whether a rank is running is not known: %s: %s",
			launch.Count(len(lost), "node"), j.ID, lost[0].Name, lost[0].Lost)}
	}
	if len(lost) > 0 || j.unsure() && len(there)+len(silent) > 0 { // what is meant may be there
		return nil
	}
	if len(there)+len(silent) == 0 && j.unsure() {
		return &launch.Error{Status: statusFailed, Text: fmt.Sprintf("whether a rank of job %s is running is not known: %s", j.ID, strings.Join(j.complaints(), "; "))}
	}
	if len(there)+len(silent) == 0 {
		return &launch.Error{Status: statusNothing, Text: fmt.Sprintf("no rank is running: none of job %s on its %s; a rank is there from its first managed allocation on, and %s",
			j.ID, launch.Count(len(j.nodes), "node"), "where it has its control socket somewhere else than by default, name that directory with --runtime-dir")}
	}
	if _, _, err := node.SelectBoth(there, silent, ranks.selection); err != nil {
		return launch.Usagef("%w: give one that is there, or none for all", err)
	}
	if len(tags) > 0 && len(silent) == 0 {
		if err := node.KnowTags(statuses, tags); err != nil {
			return launch.Usagef("%w: give one that is there, or none for everything", err)
		}
	}
	return nil
}

// nodeWords are the flags for the nodes: where sockets are, and which ranks are meant if those are to be chosen there.
func (r *rankFlags) nodeWords(choose bool) (words []string) {
	for _, dirs := range []struct {
		flag string
		dirs []string
	}{{"--runtime-dir", r.runtimeDirs}, {"--disk-dir", r.diskDirs}} {
		for _, dir := range dirs.dirs {
			if abs, err := filepath.Abs(dir); err == nil && !strings.Contains(abs, ",") {
				words = append(words, dirs.flag, abs)
			}
		}
	}
	if !choose {
		return words
	}
	for _, list := range []struct {
		flag   string
		values []string
	}{{"--role", r.selection.Roles}, {"--rank", r.selection.Ranks}, {"--cell", r.selection.Cells}, {"--job", r.selection.Jobs}} {
		if len(list.values) > 0 {
			words = append(words, list.flag, strings.Join(list.values, ","))
		}
	}
	return words
}

// onlyJobs refuses what has no meaning on several nodes.
func (r *rankFlags) onlyJobs() error {
	if len(r.selection.PIDs) > 0 {
		return launch.Usagef("--pid names a process of one node: with --slurm choose ranks with --rank, --role or --cell")
	}
	return nil
}

// onJob does a pause or resume on the nodes of a job.
func (o *operationFlags) onJob(ctx context.Context) error {
	if err := o.ranks.onlyJobs(); err != nil {
		return err
	}
	begin := time.Now()
	j, err := findJob(ctx, o.ranks.slurm, o.ranks.selection)
	if err == nil {
		err = j.look(ctx, &o.ranks, o.tags, false)
	}
	if err != nil {
		return ended(ctx, err)
	}
	var nodes []*jobNode
	had := map[*jobNode][]node.Outcome{} // the ranks that are meant, as if none of them answered any more
	for _, n := range j.nodes {
		var there []node.Rank
		for _, r := range n.answer.Ranks {
			there = append(there, r.Rank)
		}
		ranks, silent := o.ranks.selection.Of(there, n.answer.Silent)
		for _, r := range ranks {
			had[n] = append(had[n], node.Outcome{Rank: r})
		}
		for _, s := range silent {
			had[n] = append(had[n], unanswered(s))
		}
		if len(had[n]) > 0 {
			nodes = append(nodes, n)
		}
	}
	words := append([]string{o.cmd}, o.ranks.nodeWords(true)...)
	if len(o.tags) > 0 {
		words = append(words, "--tag", strings.Join(o.tags, ","))
	}
	if o.timeout >= 0 {
		words = append(words, "--timeout", o.timeout.String())
	}
	if err := j.ask(ctx, nodes, words); err != nil {
		return ended(ctx, err)
	}
	result := newJobResult(o.cmd, j, had)
	result.Seconds = time.Since(begin).Seconds()
	return o.tellJob(ctx, result)
}

// statusOfJob shows the ranks on all nodes of a job.
func (r *rankFlags) statusOfJob(ctx context.Context, tags bool) error {
	if err := r.onlyJobs(); err != nil {
		return err
	}
	if tags {
		return launch.Usagef("--tags has no effect with --slurm, which shows a row for each node: take --json, which has the tags of all ranks")
	}
	j, err := findJob(ctx, r.slurm, r.selection)
	if err == nil {
		err = j.look(ctx, r, nil, r.asJSON)
	}
	if err != nil {
		return err
	}
	s := newJobStatus(j, r.selection)
	if r.asJSON {
		err = printJSON(s)
	} else {
		s.print(stdout)
	}
	for _, line := range j.complaints() {
		say(line)
	}
	if err == nil && (len(j.lost()) > 0 || j.unsure() || s.unanswered() > 0) {
		err = statusError(statusLate)
	}
	return err
}
