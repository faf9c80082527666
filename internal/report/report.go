package report

import (
	"cmp"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ebb-offload/ebb/internal/control"
)

// Options is what is wanted of a report.
type Options struct {
	Job     string // empty: the one with the latest event
	Raw     *Raw   // nil: not known
	Version string // of ebb, for the page
}

// Report is a job as its logs tell it. Its exported fields are the JSON.
type Report struct {
	MessageType string     `json:"message_type"`
	Version     string     `json:"version"`
	Job         string     `json:"job"` // empty: no launcher told
	OtherJobs   []string   `json:"other_jobs"`
	Begin       time.Time  `json:"begin"`
	End         time.Time  `json:"end"`
	Hosts       []string   `json:"hosts"`
	Cycles      Spread     `json:"cycles"` // pauses that were done, of a rank
	Pause       Direction  `json:"pause"`
	Resume      Direction  `json:"resume"`
	Seconds     Times      `json:"seconds"` // of all ranks, in each state
	PauseHost   Together   `json:"pause_together"`
	ResumeHost  Together   `json:"resume_together"`
	Raw         *Raw       `json:"raw_disk,omitempty"`
	Ranks       []Rank     `json:"ranks"`
	HandOvers   []HandOver `json:"hand_overs"`
	Failed      int        `json:"failed"`   // how many there are
	Failures    []Failure  `json:"failures"` // the first of each rank
	Left        Left       `json:"left_out"`
	Notes       []string   `json:"notes"`

	hosts map[string]*host
}

// Times is the time in each state, in seconds.
type Times struct {
	Train   float64 `json:"train"`
	Pause   float64 `json:"pause"`
	Rollout float64 `json:"rollout"`
	Resume  float64 `json:"resume"`
}

func (t Times) all() float64 { return t.Train + t.Pause + t.Rollout + t.Resume }

// Together is what the ranks of a host do at the same time, as its disk sees it: pauses, or resumes, that
// overlap count as one.
type Together struct {
	Seconds  Spread   `json:"seconds"`
	Bytes    Spread   `json:"bytes"`
	Rate     Spread   `json:"gb_per_s"`              // logical bytes
	DiskRate Spread   `json:"disk_gb_per_s"`         // bytes to or from files
	OfRaw    *float64 `json:"of_raw_disk,omitempty"` // the median of DiskRate by the raw disk's rate
}

// Rank is one rank of the job, with all of its processes.
type Rank struct {
	Name      string    `json:"rank"` // actor/0/3
	Role      string    `json:"role,omitempty"`
	Cell      string    `json:"cell,omitempty"`
	Number    string    `json:"number,omitempty"`
	Hosts     []string  `json:"hosts"`
	Processes int       `json:"processes"`
	Exited    bool      `json:"exited"` // the latest one said that it ends
	Pause     Direction `json:"pause"`
	Resume    Direction `json:"resume"`
	Seconds   Times     `json:"seconds"`
	Failed    int       `json:"failed"`

	timeline timeline
	failures []mark
	last     int64 // when its latest process ended
}

// mark is a failure in the timeline.
type mark struct{ at int64 }

// Failure is something that went wrong.
type Failure struct {
	Time      time.Time `json:"time"`
	Rank      string    `json:"rank"`
	Host      string    `json:"host,omitempty"`
	PID       int       `json:"pid"`
	Operation string    `json:"operation"` // pause, resume, process
	Text      string    `json:"error"`
}

// Left is what the logs have and the report has not.
type Left struct {
	Lines     int    `json:"unreadable_lines"`
	Cut       int    `json:"cut_last_lines"`
	Long      int    `json:"too_long_lines"`
	Lost      uint64 `json:"missing_events"` // by their numbers
	Failures  int    `json:"failures"`       // counted, not listed
	Withdrawn int    `json:"withdrawn_pauses"`
}

// host is one machine: what its ranks did together, and how its clock behaves.
type host struct {
	pauses, resumes waves
	back            int64 // the longest step back of its clock, in nanoseconds
}

// maxFailures is how many failures of one rank are listed.
const maxFailures = 50

// EmptyError says that there is nothing to report.
type EmptyError struct {
	Files int
	Bad   int // lines that are no events
}

func (e *EmptyError) Error() string {
	switch {
	case e.Files == 0:
		return "no event logs (*.jsonl) there; ranks write them with ebb run --event-log DIR"
	case e.Bad > 0:
		return fmt.Sprintf("no events in %s, but %s: is it an event log?", count(e.Files, "file"), count(e.Bad, "line")+one(e.Bad, " that is none", " that are none"))
	}
	return fmt.Sprintf("no events in %s: no rank has managed memory yet, or none was started with --event-log", count(e.Files, "file"))
}

// JobError says that the logs have no such job.
type JobError struct {
	Job   string
	Known []string
}

func (e *JobError) Error() string {
	return fmt.Sprintf("no job %q in the logs; there are: %s", e.Job, list(e.Known, 10))
}

// Make reads logs and puts the report of one job together.
func Make(files []string, o Options) (*Report, error) {
	var logs, swaps []log
	for _, file := range files {
		l, err := look(file)
		switch {
		case err != nil:
			return nil, err
		case l.swap:
			swaps = append(swaps, l)
		default:
			logs = append(logs, l)
		}
	}
	job, others, err := choose(logs, o.Job)
	if err != nil {
		return nil, err
	}
	r := &Report{
		MessageType: "report", Version: o.Version, Job: job, OtherJobs: others, Raw: o.Raw,
		Hosts: []string{}, Ranks: []Rank{}, HandOvers: []HandOver{}, Failures: []Failure{}, Notes: []string{},
		hosts: map[string]*host{},
	}
	// Files of one rank are read together, and their events forgotten before the next ones are read. Others may
	// hold anybody's: those are read at once.
	groups := map[string][]log{}
	for _, l := range logs {
		groups[l.rank] = append(groups[l.rank], l)
	}
	var inOrder [][]log
	for _, k := range slices.Sorted(maps.Keys(groups)) {
		inOrder = append(inOrder, groups[k])
	}
	if err := r.read(inOrder); err != nil {
		return nil, err
	}
	if len(r.Ranks) == 0 {
		return nil, &EmptyError{Files: len(files), Bad: r.Left.Lines + r.Left.Cut + r.Left.Long}
	}
	r.finish()
	for _, l := range swaps {
		if err := r.readSwap(l.path); err != nil {
			return nil, err
		}
	}
	slices.SortStableFunc(r.HandOvers, func(a, b HandOver) int { return a.Begin.Compare(b.Begin) })
	r.note()
	return r, nil
}

// choose finds the job that is meant.
func choose(logs []log, wanted string) (job string, others []string, err error) {
	last := map[string]int64{}
	for _, l := range logs {
		for job, at := range l.jobs {
			last[job] = max(last[job], at)
		}
	}
	known := slices.SortedFunc(maps.Keys(last), func(a, b string) int {
		return cmp.Or(cmp.Compare(last[b], last[a]), cmp.Compare(a, b))
	})
	switch {
	case wanted != "" && !slices.Contains(known, wanted) && len(known) > 0:
		return "", nil, &JobError{wanted, known}
	case wanted != "":
		job = wanted
	case len(known) > 0:
		job = known[0]
	}
	others = []string{}
	for _, k := range known {
		if k != job {
			others = append(others, k)
		}
	}
	return job, others, nil
}

// read takes in groups of files that are one rank's each, or anybody's. Two of them, or as many as there are
// processors, are read at a time; they are taken in in their order, so that the report is the same each time.
func (r *Report) read(groups [][]log) error {
	type result struct {
		g   *gatherer
		err error
	}
	results := make([]chan result, len(groups))
	for i := range results {
		results[i] = make(chan result, 1)
	}
	room := make(chan struct{}, max(2, runtime.GOMAXPROCS(0)))
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		for i, group := range groups {
			select {
			case room <- struct{}{}:
			case <-stop:
				return
			}
			go func() {
				g, err := gather(r.Job, group)
				results[i] <- result{g, err}
			}()
		}
	}()
	for i := range groups {
		got := <-results[i]
		if got.err != nil {
			return got.err
		}
		bad := got.g.bad
		r.Left.Lines, r.Left.Cut, r.Left.Long = r.Left.Lines+bad.Lines, r.Left.Cut+bad.Cut, r.Left.Long+bad.Long
		for _, rank := range got.g.order() {
			r.take(rank)
		}
		<-room
	}
	return nil
}

// take takes the events of one rank in.
func (r *Report) take(of *gathered) {
	who := of.who
	list := processes(of.streams)
	rank := Rank{
		Name: shortName(who), Role: who.Role, Cell: who.Cell, Number: who.Rank, Hosts: []string{}, Processes: len(list),
	}
	numbers, seen := uint64(0), of.progress
	for i, p := range list {
		rank.Exited, rank.last = p.exited, max(rank.last, p.end)
		rank.Hosts = append(rank.Hosts, p.host)
		numbers, seen = plus(numbers, p.numbers), seen+p.seen
		r.Left.Withdrawn += p.withdrawn
		if r.hosts[p.host] == nil {
			r.hosts[p.host] = &host{}
		}
		h := r.hosts[p.host]
		h.back = max(h.back, p.back)
		for _, o := range p.operations {
			direction, together := &rank.Resume, &h.resumes
			if o.pause {
				direction, together = &rank.Pause, &h.pauses
			}
			direction.take(o)
			if !o.failed && !o.cut {
				together.add(o)
			}
			r.failure(&rank, p, o)
		}
		if !p.exited && i+1 < len(list) {
			r.fail(&rank, Failure{
				Time: at(p.end), Host: p.host, PID: p.pid, Operation: "process",
				Text: fmt.Sprintf("it ended without a word, as one that is killed does; process %d took its place", list[i+1].pid),
			})
		}
	}
	r.Left.Lost = plus(r.Left.Lost, numbers-min(numbers, seen))
	slices.Sort(rank.Hosts)
	rank.Hosts = slices.Compact(rank.Hosts)
	var totals [states]float64
	rank.timeline, totals = timelineOf(list)
	rank.Seconds = Times{Train: totals[train] / 1e9, Pause: totals[pausing] / 1e9, Rollout: totals[away] / 1e9, Resume: totals[resuming] / 1e9}

	same := func(o Rank) bool {
		return o.Name == rank.Name && o.Role == rank.Role && o.Cell == rank.Cell && o.Number == rank.Number &&
			(rank.Number != "" || slices.Equal(o.Hosts, rank.Hosts))
	}
	if i := slices.IndexFunc(r.Ranks, same); i >= 0 { // its events lie in files with those of others
		r.Ranks[i].join(rank)
		return
	}
	r.Ranks = append(r.Ranks, rank)
}

// join adds what other files tell of the same rank.
func (r *Rank) join(o Rank) {
	r.Hosts = append(r.Hosts, o.Hosts...)
	slices.Sort(r.Hosts)
	r.Hosts = slices.Compact(r.Hosts)
	if o.last > r.last {
		r.Exited, r.last = o.Exited, o.last
	}
	r.Processes, r.Failed = r.Processes+o.Processes, r.Failed+o.Failed
	r.Pause.add(o.Pause)
	r.Resume.add(o.Resume)
	r.Seconds.Train, r.Seconds.Pause = r.Seconds.Train+o.Seconds.Train, r.Seconds.Pause+o.Seconds.Pause
	r.Seconds.Rollout, r.Seconds.Resume = r.Seconds.Rollout+o.Seconds.Rollout, r.Seconds.Resume+o.Seconds.Resume
	r.timeline.join(o.timeline)
	r.failures = append(r.failures, o.failures...)
}

// failure notes what went wrong with an operation, if anything did.
func (r *Report) failure(rank *Rank, p process, o operation) {
	f := Failure{Time: at(o.end), Host: p.host, PID: p.pid, Operation: "resume", Text: o.text}
	if o.pause {
		f.Operation = "pause"
	}
	switch {
	case o.failed:
	case o.cut:
		f.Text = "the log ends before it does: the process was killed, or is at it still"
		if p.lastPhase != "" {
			f.Text += " (after the phase " + p.lastPhase + ")"
		}
	case o.pause && o.done.Missing > 0:
		f.Text = fmt.Sprintf("%s that were released are not free: something else refers to them", size(o.done.Missing))
	default:
		return
	}
	r.fail(rank, f)
}

func (r *Report) fail(rank *Rank, f Failure) {
	rank.Failed++
	r.Failed++
	if rank.Failed > maxFailures {
		r.Left.Failures++
		return
	}
	f.Rank = rank.Name
	r.Failures = append(r.Failures, f)
	rank.failures = append(rank.failures, mark{f.Time.UnixNano()})
}

// finish works out what is told of all ranks.
func (r *Report) finish() {
	slices.SortFunc(r.Ranks, func(a, b Rank) int {
		return cmp.Or(natural(a.Role, b.Role), natural(a.Cell, b.Cell), natural(a.Number, b.Number), natural(a.Name, b.Name))
	})
	slices.SortStableFunc(r.Failures, func(a, b Failure) int { return a.Time.Compare(b.Time) })
	var cycles []float32
	var from, to int64
	for i := range r.Ranks {
		rank := &r.Ranks[i]
		low, high, any := rank.timeline.span()
		if !any { // one event
			low, high = rank.last, rank.last
		}
		if from == 0 || low < from {
			from = low
		}
		to = max(to, high)
		cycles = append(cycles, float32(rank.Pause.Done))
		r.Pause.add(rank.Pause)
		r.Resume.add(rank.Resume)
		rank.Pause.sum()
		rank.Resume.sum()
		r.Seconds.Train, r.Seconds.Pause = r.Seconds.Train+rank.Seconds.Train, r.Seconds.Pause+rank.Seconds.Pause
		r.Seconds.Rollout, r.Seconds.Resume = r.Seconds.Rollout+rank.Seconds.Rollout, r.Seconds.Resume+rank.Seconds.Resume
	}
	r.Begin, r.End, r.Cycles = at(from), at(to), spread(cycles)
	r.Pause.sum()
	r.Resume.sum()
	r.Hosts = slices.Sorted(maps.Keys(r.hosts))
	var write, read float64
	if r.Raw != nil {
		write, read = r.Raw.Write, r.Raw.Read
	}
	r.PauseHost = r.together(func(h *host) waves { return h.pauses }, write)
	r.ResumeHost = r.together(func(h *host) waves { return h.resumes }, read)
}

// together is how what hosts' ranks did together is distributed; raw is the rate to compare with.
func (r *Report) together(of func(*host) waves, raw float64) (t Together) {
	var seconds, bytes, rate, disk []float32
	for _, name := range r.Hosts {
		for _, w := range of(r.hosts[name]) {
			seconds, bytes = append(seconds, float32(w.seconds())), append(bytes, float32(w.bytes))
			if w.seconds() > 0 && w.bytes > 0 {
				rate = append(rate, float32(float64(w.bytes)/w.seconds()/1e9))
			}
			if w.seconds() > 0 && w.disk > 0 {
				disk = append(disk, float32(float64(w.disk)/w.seconds()/1e9))
			}
		}
	}
	t = Together{Seconds: spread(seconds), Bytes: spread(bytes), Rate: spread(rate), DiskRate: spread(disk)}
	if raw > 0 && len(disk) > 0 {
		ratio := t.DiskRate.Median / raw
		t.OfRaw = &ratio
	}
	return t
}

// readSwap takes in the hand-overs of this job. Those of a log that names no job are taken by their time.
func (r *Report) readSwap(path string) error {
	f, err := open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	var events []control.Event
	begun := true // the hand-over that is read is one of this job
	bad, err := readLines(f, func(line []byte) bool {
		e, ok := decode(line)
		if !ok {
			return false
		}
		if e.Kind == control.EventBegin {
			begun = e.Job == r.Job || e.Job == "" && !e.Time.Before(r.Begin.Add(-time.Minute)) && !e.Time.After(r.End.Add(time.Minute))
		}
		if begun {
			events = append(events, e)
		}
		return true
	})
	if err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	r.Left.Lines, r.Left.Cut, r.Left.Long = r.Left.Lines+bad.Lines, r.Left.Cut+bad.Cut, r.Left.Long+bad.Long
	r.HandOvers = append(r.HandOvers, handOvers(events)...)
	return nil
}

// note says what a reader has to know of the logs.
func (r *Report) note() {
	say := func(format string, args ...any) { r.Notes = append(r.Notes, fmt.Sprintf(format, args...)) }
	if n := len(r.Hosts); n > 1 {
		text := fmt.Sprintf("Times are those of the clocks of %d hosts, which may differ", n)
		if apart, ok := r.apart(); ok {
			text += fmt.Sprintf("; by them, the same pause begins up to %s apart", duration(apart))
		}
		say("%s.", text)
	}
	for _, name := range r.Hosts {
		if back := r.hosts[name].back; back > int64(time.Second) {
			say("The clock of %s was set back by %s; times there go on from where they were.", cmp.Or(name, "a host"), duration(float64(back)/1e9))
		}
	}
	running := 0
	for _, rank := range r.Ranks {
		if !rank.Exited {
			running++
		}
	}
	if running > 0 {
		say("The logs of %s end without an exit: they still run, or were killed.", count(running, "rank"))
	}
	bad := []string{}
	for _, b := range []struct {
		n    int
		text string
	}{
		{r.Left.Lines, count(r.Left.Lines, "line") + one(r.Left.Lines, " that is no event", " that are no events")},
		{r.Left.Cut, count(r.Left.Cut, "last line") + " without an end"},
		{r.Left.Long, count(r.Left.Long, "line") + one(r.Left.Long, " that is too long", " that are too long")},
		{int(min(r.Left.Lost, 1<<53)), fmt.Sprintf("%d events that the logs lack, by their numbers", r.Left.Lost)},
		{r.Left.Failures, count(r.Left.Failures, "failure") + fmt.Sprintf(" of ranks with more than %d", maxFailures)},
	} {
		if b.n > 0 {
			bad = append(bad, b.text)
		}
	}
	if len(bad) > 0 {
		say("Left out: %s.", strings.Join(bad, ", "))
	}
	if r.Left.Withdrawn > 0 {
		say("%s asked for from outside came to nothing: no safe point came in time, or the asker gave up.", count(r.Left.Withdrawn, "pause"))
	}
	if len(r.OtherJobs) > 0 {
		say("The logs have %s more: %s.", count(len(r.OtherJobs), "job"), list(r.OtherJobs, 5))
	}
}

// apart is how far apart, in seconds, hosts begin the same pause by their clocks; false: they are not to be
// compared.
func (r *Report) apart() (float64, bool) {
	var longest int64
	pauses := -1
	for _, name := range r.Hosts {
		n := len(r.hosts[name].pauses)
		if pauses >= 0 && n != pauses {
			return 0, false
		}
		pauses = n
	}
	for k := range max(pauses, 0) {
		low, high := int64(0), int64(0)
		for i, name := range r.Hosts {
			begin := r.hosts[name].pauses[k].begin
			if i == 0 {
				low, high = begin, begin
			}
			low, high = min(low, begin), max(high, begin)
		}
		longest = max(longest, high-low)
	}
	return float64(longest) / 1e9, pauses > 0
}

// shortName is what a rank is called in tables.
func shortName(w control.Who) string {
	switch {
	case w.Rank == "":
		return fmt.Sprintf("pid %d", w.PID)
	case w.Cell == "":
		return strings.TrimPrefix(w.Role+" "+w.Rank, " ")
	}
	return fmt.Sprintf("%s/%s/%s", cmp.Or(w.Role, "-"), w.Cell, w.Rank)
}

// natural compares texts, numbers by their value.
func natural(a, b string) int {
	n, errA := strconv.Atoi(a)
	m, errB := strconv.Atoi(b)
	if errA == nil && errB == nil {
		return cmp.Compare(n, m)
	}
	return cmp.Compare(a, b)
}

// list names the first of a list, and how many more there are.
func list(names []string, most int) string {
	named := make([]string, 0, most)
	for _, name := range names[:min(len(names), most)] {
		named = append(named, cmp.Or(name, "one without a name"))
	}
	text := strings.Join(named, ", ")
	if more := len(names) - most; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

func one(n int, text, otherwise string) string {
	if n == 1 {
		return text
	}
	return otherwise
}

func count(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprintf("%d %s", n, what)
}
