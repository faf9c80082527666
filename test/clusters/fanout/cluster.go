package fanout

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/ebb-offload/ebb/internal/testutil"
)

// Run pauses a whole cluster, kills some of it meanwhile, and resumes what is left. It compares what the controller
// says of every node with what the script has for it, and with what the ranks did.
func Run(t testing.TB, s Scale) {
	t.Helper()
	dir := testutil.SocketDir(t)

	began := time.Now()
	var hosts []*hostProcess
	var nodes []address
	for i := range s.Hosts {
		var mine []int
		for n := i; n < s.Nodes-s.Doomed; n += s.Hosts {
			mine = append(mine, n)
		}
		hosts = append(hosts, startHost(t, hostTask{s, mine, dir}))
	}
	var last []int
	for n := s.Nodes - s.Doomed; n < s.Nodes; n++ {
		last = append(last, n)
	}
	doomed := startHost(t, hostTask{s, last, dir})
	for _, h := range append(slices.Clone(hosts), doomed) {
		nodes = append(nodes, h.hear(t).Ready...)
	}
	if len(nodes) != s.Nodes {
		t.Fatalf("%d nodes, want %d", len(nodes), s.Nodes)
	}
	slices.SortFunc(nodes, func(a, b address) int { return a.Node - b.Node })
	t.Logf("%d nodes in %d processes, started in %.1f s", s.Nodes, s.Hosts+1, time.Since(began).Seconds())

	// Where everything takes long, because the machine has other things to do, the ranks have more time for it too.
	// What is compared below does not depend on it: the controller gives up nobody before the others are done.
	busy := min(time.Since(began), 6*time.Second)
	s.Timeout, s.Patience = max(s.Timeout, 3*busy), max(s.Patience, busy/10)
	task := controllerTask{Verb: "pause", Key: "step-41-pause", Nodes: nodes, Timeout: s.Timeout, AtOnce: s.AtOnce, Patience: s.Patience}
	pause := startController(t, task)
	if !doomed.hear(t).Asked {
		t.Fatal("the nodes that are to be killed were not asked")
	}
	doomed.kill(t)
	var settled, heard []int // nodes of which all is known in the end, and those that reply
	for n := range s.Nodes {
		outcome, _ := s.want(n)
		if outcome == Done || outcome == Failed {
			settled = append(settled, n)
		}
		if outcome != Lost {
			heard = append(heard, n)
		}
	}
	pause.until(t, settled, heard)
	for _, h := range hosts {
		h.until(t, func(word hostWord) bool { return word.Paused })
	}
	paused := pause.giveUp(t)
	s.checkPause(t, paused)

	// The job is not paused as a whole, so the controller brings the others back.
	task.Verb, task.Key = "resume", "step-41-resume"
	task.Nodes = slices.DeleteFunc(nodes, func(a address) bool { return paused.Nodes[a.Node].Outcome == Lost })
	resume := startController(t, task)
	settled, heard = nil, nil
	for _, a := range task.Nodes {
		if !s.hasStopped(a.Node) {
			settled = append(settled, a.Node)
		}
		heard = append(heard, a.Node)
	}
	resume.until(t, settled, heard)
	for _, h := range hosts {
		h.until(t, func(word hostWord) bool { return word.Again })
	}
	resumed := resume.giveUp(t)

	record := map[int]nodeDid{}
	var used []Used
	for _, h := range hosts {
		word := h.end(t)
		used = append(used, word.Used)
		for n, did := range word.Record {
			record[n] = did
		}
	}
	lastPaused := s.checkRanks(t, record)
	s.checkResume(t, resumed)
	s.report(t, paused, resumed, lastPaused.Sub(paused.Began), used)
}

// checkPause compares what the controller says of each node with the script.
func (s Scale) checkPause(t testing.TB, told Told) {
	t.Helper()
	if len(told.Nodes) != s.Nodes {
		t.Fatalf("the controller says something of %d nodes, want %d", len(told.Nodes), s.Nodes)
	}
	largest, final := 0, 0 // of all replies, and of those at the end of nodes of the usual size
	for n, got := range told.Nodes {
		outcome, names := s.want(n)
		if got.Node != n || got.Outcome != outcome || !slices.Equal(got.Named, names) {
			t.Errorf("node %d: %+v, want %s, naming %q", n, got, outcome, names)
		}
		if outcome == Done && (got.Ranks.Total != s.ranks(n) || got.Ranks.Done != s.ranks(n)) {
			t.Errorf("node %d: %d of %d ranks are done, want %d", n, got.Ranks.Done, got.Ranks.Total, s.ranks(n))
		}
		largest = max(largest, got.Largest)
		if n > 0 {
			final = max(final, got.Final)
		}
	}
	// Eight ranks are named in full at most; the numbers of a larger node have more digits.
	if fat := told.Nodes[0].Final; fat > final+512 || largest > maxReply {
		t.Errorf("the reply of a node with %d ranks has %d bytes, that of one with %d at most %d, and no reply more than %d", s.Fat, fat, s.Ranks, final, largest)
	}
	// A request has one; one that waits for the next request, and one that is being closed.
	if most := 3*s.AtOnce + 2; told.Open > most {
		t.Errorf("the controller had %d connections at once, more than %d", told.Open, most)
	}
	// Beside connections: the standard streams, Go's poller, and what is being dialled.
	if most := 4*s.AtOnce + 32; told.Used.Descriptors > most {
		t.Errorf("the controller had %d descriptors at once, more than %d", told.Used.Descriptors, most)
	}
}

// maxReply is more than any reply to a pause has, in bytes.
const maxReply = 8 << 10

// checkRanks compares what the ranks did with the script: each was paused once, whatever was repeated.
func (s Scale) checkRanks(t testing.TB, record map[int]nodeDid) (last time.Time) {
	t.Helper()
	for n := range s.Nodes - s.Doomed {
		did := record[n]
		if len(did.Ranks) != s.ranks(n) {
			t.Errorf("node %d: %d ranks, want %d", n, len(did.Ranks), s.ranks(n))
		}
		if again := s.node(n) == restarts; again && did.Served != 2 {
			t.Errorf("node %d: ebb serve was started %d times, want 2", n, did.Served)
		}
		for r, rank := range did.Ranks {
			times := 0
			if s.pauses(n, r) {
				times = 1
			}
			if rank.Paused != times || rank.Resumed != times {
				t.Errorf("node %d, rank %d: paused %d times and resumed %d times, want %d", n, r, rank.Paused, rank.Resumed, times)
			}
			if rank.Last.After(last) {
				last = rank.Last
			}
		}
	}
	return last
}

func (s Scale) checkResume(t testing.TB, told Told) {
	t.Helper()
	for _, got := range told.Nodes {
		outcome, named := Done, []string(nil)
		if s.hasStopped(got.Node) {
			outcome, named = Late, []string{s.name(got.Node, victim)}
		}
		if got.Outcome != outcome || !slices.Equal(got.Named, named) {
			t.Errorf("resume of node %d: %+v, want %s, naming %q", got.Node, got, outcome, named)
		}
	}
}

// report prints the figures.
func (s Scale) report(t testing.TB, paused, resumed Told, last time.Duration, hosts []Used) {
	t.Helper()
	ranks, outcomes, largest := 0, map[string]int{}, 0
	for n := range s.Nodes {
		ranks += s.ranks(n)
		outcomes[paused.Nodes[n].Outcome]++
		largest = max(largest, paused.Nodes[n].Largest)
	}
	t.Logf("%d nodes, %d ranks; nodes done %d, late %d, failed %d, lost %d", s.Nodes, ranks, outcomes[Done], outcomes[Late], outcomes[Failed], outcomes[Lost])
	t.Logf("last rank paused after %.1f s; last node known to be done after %.1f s; all known after %.1f s; resumed after %.1f s",
		last.Seconds(), paused.DoneBy, paused.Seconds, resumed.DoneBy)
	t.Logf("pause: %d requests, %d of them repeats; replies %v, the largest %d bytes; %d bytes received, %d sent",
		paused.Requests, paused.Repeats, paused.Statuses, largest, paused.Received, paused.Sent)
	t.Logf("controller: %d connections and %d descriptors at most, %.1f MiB, %d threads", paused.Open, paused.Used.Descriptors, float64(paused.Used.RSS)/1024, paused.Used.Threads)
	most := Used{}
	for _, u := range hosts {
		most.Descriptors, most.RSS, most.Threads = max(most.Descriptors, u.Descriptors), max(most.RSS, u.RSS), max(most.Threads, u.Threads)
	}
	per := (s.Nodes - s.Doomed + s.Hosts - 1) / s.Hosts
	t.Logf("a process with %d nodes, ebb serve and ranks: %d descriptors, %.1f MiB, %d threads at most", per, most.Descriptors, float64(most.RSS)/1024, most.Threads)
}

// process is a part of the cluster.
type process struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	out   *json.Decoder
	ended bool
}

// start starts this program again as a part, which gets its task and has until the end of its input.
func start(t testing.TB, part string, task any) *process {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &process{cmd: exec.Command(self)}
	p.cmd.Env = append(os.Environ(), variable+"="+part)
	p.cmd.Stderr = os.Stderr
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.out = json.NewDecoder(out)
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if !p.ended {
			_ = p.cmd.Process.Kill()
			_ = p.cmd.Wait()
		}
	})
	if err := json.NewEncoder(p.in).Encode(task); err != nil {
		t.Fatal(err)
	}
	return p
}

// wait waits for a part that ends well.
func (p *process) wait(t testing.TB) {
	t.Helper()
	p.ended = true
	_ = p.in.Close()
	if err := p.cmd.Wait(); err != nil {
		t.Errorf("a part of the cluster: %v", err)
	}
}

type hostProcess struct{ *process }

func startHost(t testing.TB, task hostTask) *hostProcess {
	t.Helper()
	return &hostProcess{start(t, "nodes", task)}
}

// hear waits for the next word of a host.
func (h *hostProcess) hear(t testing.TB) (word hostWord) {
	t.Helper()
	if err := h.out.Decode(&word); err != nil {
		t.Fatalf("a process with nodes: %v", err)
	}
	return word
}

// until waits for a word of a host.
func (h *hostProcess) until(t testing.TB, said func(hostWord) bool) {
	t.Helper()
	for !said(h.hear(t)) {
	}
}

// end ends a host and returns what its nodes did.
func (h *hostProcess) end(t testing.TB) hostWord {
	t.Helper()
	_ = h.in.Close()
	for {
		if word := h.hear(t); word.Record != nil {
			h.wait(t)
			return word
		}
	}
}

func (h *hostProcess) kill(t testing.TB) {
	t.Helper()
	h.ended = true
	if err := h.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := h.cmd.Wait(); err == nil {
		t.Error(fmt.Errorf("a process that was killed ended well"))
	}
}

// controllerProcess is a controller, and what it has said.
type controllerProcess struct {
	*process
	known, heard map[int]bool
	told         *Told
}

func startController(t testing.TB, task controllerTask) *controllerProcess {
	t.Helper()
	return &controllerProcess{process: start(t, "controller", task), known: map[int]bool{}, heard: map[int]bool{}}
}

// next takes in what the controller says next.
func (c *controllerProcess) next(t testing.TB) {
	t.Helper()
	var word controllerWord
	if err := c.out.Decode(&word); err != nil {
		t.Fatalf("the controller: %v", err)
	}
	switch {
	case word.Heard != nil:
		c.heard[*word.Heard] = true
	case word.Known != nil:
		c.known[*word.Known] = true
	case word.Told != nil:
		c.told = word.Told
	}
}

// until waits until the controller knows all of some nodes, and has heard some. If it never does, it says at the end
// of the test's time what it waits for.
func (c *controllerProcess) until(t testing.TB, known, heard []int) {
	t.Helper()
	missing := func() (count int, first []int) {
		for _, nodes := range []struct {
			want []int
			have map[int]bool
		}{{known, c.known}, {heard, c.heard}} {
			for _, n := range nodes.want {
				if !nodes.have[n] {
					count, first = count+1, append(first, n)
				}
			}
		}
		return count, first[:min(len(first), 8)]
	}
	for c.told == nil {
		count, first := missing()
		if count == 0 {
			return
		}
		stuck := time.AfterFunc(enough, func() {
			fmt.Fprintf(os.Stderr, "the controller has said nothing for %v; it does not know of %d nodes, as %v\n", enough, count, first)
			_ = c.cmd.Process.Kill()
		})
		c.next(t)
		stuck.Stop()
	}
}

// enough is after how long a controller that says nothing is ended. Something is known every moment.
const enough = 5 * time.Minute

// giveUp lets the controller believe that what it does not know by now is late or lost.
func (c *controllerProcess) giveUp(t testing.TB) Told {
	t.Helper()
	if c.told == nil {
		if err := json.NewEncoder(c.in).Encode(mayGiveUp{}); err != nil {
			t.Logf("the controller takes no word: %v", err) // it says next why
		}
	}
	for c.told == nil {
		c.next(t)
	}
	c.wait(t)
	return *c.told
}
