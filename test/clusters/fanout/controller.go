package fanout

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// controllerTask says whom the controller asks for what.
type controllerTask struct {
	Verb     string // pause, resume
	Key      string // begins the keys of all requests
	Nodes    []address
	Timeout  time.Duration
	AtOnce   int
	Patience time.Duration
}

// mayGiveUp tells the controller that it may believe by now that nodes are lost and ranks are late. Who knows the script
// says it when the others are done: on a machine with much else to do these look lost or late for a while too.
type mayGiveUp struct{}

// controllerWord is what the controller says: each node when it first replied, and when all is known of it; in the end
// everything.
type controllerWord struct {
	Heard *int  `json:",omitempty"`
	Known *int  `json:",omitempty"`
	Told  *Told `json:",omitempty"`
}

// Told is what the controller found out.
type Told struct {
	Nodes    []NodeTold
	Began    time.Time
	Seconds  float64 // until it knew of every node
	DoneBy   float64 // seconds until it knew of the last node that is done
	Requests int
	Repeats  int // of them, with a key that was used before
	Statuses map[int]int
	Sent     int64 // bytes
	Received int64
	Open     int // connections at once, at most
	Used     Used
}

// NodeTold is what it found out about one node.
type NodeTold struct {
	Node    int
	Outcome string
	Ranks   struct{ Total, Done int }
	Named   []string // ranks that are late or failed
	Keys    int      // attempts
	Asked   int      // requests
	Largest int      // reply, in bytes
	Final   int      // the last reply, in bytes
	Why     string   // of one that is not done
}

// control is the controller's process.
func control(in io.Reader, out *os.File) error {
	c := controller{out: json.NewEncoder(out)}
	lines := json.NewDecoder(in)
	if err := lines.Decode(&c.task); err != nil {
		return err
	}
	var over atomic.Bool
	go func() {
		if err := lines.Decode(&mayGiveUp{}); err != nil {
			if !over.Load() {
				os.Exit(1) // who started it is not there any more
			}
			return
		}
		now := time.Now()
		c.mayGiveUp.Store(&now)
	}()
	used, stop := watchUsed()
	told := c.run()
	stop()
	over.Store(true)
	told.Used = *used
	c.say(controllerWord{Told: &told})
	return nil
}

func (c *controller) say(word controllerWord) {
	c.saying.Lock()
	defer c.saying.Unlock()
	if err := c.out.Encode(word); err != nil {
		os.Exit(1) // nobody hears it
	}
}

// controller asks nodes. It keeps a bounded number of requests under way, and none for long: every node is asked within
// moments, and one that takes its time is asked again later, with the same key.
type controller struct {
	task   controllerTask
	client *http.Client

	saying sync.Mutex
	out    *json.Encoder

	mayGiveUp      atomic.Pointer[time.Time] // since when
	sent, received atomic.Int64
	open           atomic.Int32

	mu       sync.Mutex
	mostOpen int
	requests int
	repeats  int
	statuses map[int]int
}

// asking is the state of one node.
type asking struct {
	address
	told  NodeTold
	began time.Time // of the attempt
	asked int       // requests of the attempt
	heard bool      // it has replied, in any attempt

	failed []string // ranks, in any attempt
	late   []string // in the latest attempt
	times  int      // so often in a row the same were late
}

func (c *controller) run() Told {
	c.statuses = map[int]int{}
	dialer := &net.Dialer{}
	c.client = &http.Client{Transport: &http.Transport{
		MaxConnsPerHost: 1, MaxIdleConns: c.task.AtOnce, IdleConnTimeout: time.Second,
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := dialer.DialContext(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			c.opened(int(c.open.Add(1)))
			return &countedConn{Conn: conn, of: c}, nil
		},
	}}
	begin := time.Now()
	queue := make(chan *asking, len(c.task.Nodes)) // each node is in it once at most
	ended := make(chan *asking, len(c.task.Nodes))
	var workers sync.WaitGroup
	for range c.task.AtOnce {
		workers.Go(func() {
			for a := range queue {
				if c.ask(a) {
					ended <- a
					continue
				}
				time.AfterFunc(c.task.Patience, func() { queue <- a })
			}
		})
	}
	for _, node := range c.task.Nodes {
		queue <- &asking{address: node, told: NodeTold{Node: node.Node}}
	}
	told := Told{Began: begin}
	for range c.task.Nodes {
		a := <-ended
		c.say(controllerWord{Known: &a.told.Node})
		told.Nodes = append(told.Nodes, a.told)
		if a.told.Outcome == Done {
			told.DoneBy = time.Since(begin).Seconds()
		}
	}
	told.Seconds = time.Since(begin).Seconds()
	close(queue)
	workers.Wait()
	c.client.CloseIdleConnections()
	slices.SortFunc(told.Nodes, func(a, b NodeTold) int { return a.Node - b.Node })
	c.mu.Lock()
	defer c.mu.Unlock()
	told.Requests, told.Repeats, told.Statuses, told.Open = c.requests, c.repeats, c.statuses, c.mostOpen
	told.Sent, told.Received = c.sent.Load(), c.received.Load()
	return told
}

// reply is what a controller reads of an answer.
type reply struct {
	commandReport
	Error *struct {
		Code   string
		Report *commandReport
	}
}

type commandReport struct {
	OK, Over bool
	Ranks    struct{ Total, Done, Failed, Gone, Late, Withdrawn int }
	Failed   []named
	Late     []named
}

type named struct{ Rank string }

// tries is how often in a row the same ranks must be late before the controller believes it, and for how many
// deadlines a node may say nothing.
const tries = 3

// often is for how many deadlines a node may say nothing that has replied before.
const often = 20

// ask asks a node once; true: all is known that there is to know.
func (c *controller) ask(a *asking) bool {
	if a.asked == 0 {
		a.began = time.Now()
		a.told.Keys++
	}
	a.asked++
	a.told.Asked++
	status, text, err := c.post(a)
	if err != nil {
		// It is under way, or nobody is there: a node replies by the deadline that it was given. One that did before is
		// believed to be lost much later.
		silent := tries * c.task.Timeout
		if a.heard {
			silent = often * c.task.Timeout
		}
		if c.mayGiveUp.Load() == nil || time.Since(a.began) < silent {
			return false
		}
		a.told.Outcome, a.told.Why = Lost, err.Error()
		return true
	}
	if !a.heard {
		a.heard = true
		c.say(controllerWord{Heard: &a.told.Node})
	}
	a.told.Largest, a.told.Final = max(a.told.Largest, len(text)), len(text)
	var r reply
	if err := json.Unmarshal(text, &r); err != nil {
		a.told.Outcome, a.told.Why = Failed, fmt.Sprintf("status %d, and no JSON: %v", status, err)
		return true
	}
	report := &r.commandReport
	if r.Error != nil {
		a.told.Why, report = r.Error.Code, r.Error.Report
	}
	switch {
	case report != nil && report.Over:
		return a.over(report, c.mayGiveUp.Load())
	case report != nil, status == http.StatusServiceUnavailable, status == http.StatusGatewayTimeout, status == http.StatusRequestTimeout:
		return false // the same key again: it goes on, or has not begun
	}
	a.told.Outcome = Failed
	return true
}

// over takes in a report after which nothing goes on. Ranks that are late are asked anew, with a new key, which leaves
// the others as they are. That they are late is believed in an attempt that began when the controller might give up.
func (a *asking) over(r *commandReport, mayGiveUp *time.Time) bool {
	var late []string
	for _, n := range r.Late {
		late = append(late, n.Rank)
	}
	for _, n := range r.Failed {
		if !slices.Contains(a.failed, n.Rank) {
			a.failed = append(a.failed, n.Rank)
		}
	}
	slices.Sort(late)
	if !slices.Equal(late, a.late) {
		a.late, a.times = late, 0
	}
	a.times++
	if believed := a.times >= tries && mayGiveUp != nil && a.began.After(*mayGiveUp); len(late) > 0 && !believed {
		a.asked = 0
		return false
	}
	a.told.Ranks.Total, a.told.Ranks.Done = r.Ranks.Total, r.Ranks.Done
	a.told.Named = append(a.told.Named, append(a.failed, late...)...)
	slices.Sort(a.told.Named)
	switch {
	case len(a.failed) > 0:
		a.told.Outcome = Failed
	case len(late) > 0:
		a.told.Outcome = Late
	default:
		a.told.Outcome, a.told.Why = Done, ""
	}
	return true
}

// post sends the request and takes the reply, if it comes within the controller's patience.
func (c *controller) post(a *asking) (status int, text []byte, err error) {
	c.mu.Lock()
	c.requests++
	if a.asked > 1 {
		c.repeats++
	}
	c.mu.Unlock()
	// Little at first, so that all are asked soon; more for those that take long, and for a machine that does.
	patience := c.task.Patience << min(a.asked-1, 3)
	patience += min(patience*time.Duration(max(a.asked-16, 0)/4), 10*time.Second)
	ctx, stop := context.WithTimeout(context.Background(), patience)
	defer stop()
	body := fmt.Sprintf(`{"roles":["actor"],"timeout_s":%g}`, c.task.Timeout.Seconds())
	if c.task.Verb == "resume" {
		body = fmt.Sprintf(`{"timeout_s":%g}`, c.task.Timeout.Seconds())
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+a.Addr+"/v1/"+c.task.Verb, bytes.NewReader([]byte(body)))
	if err != nil {
		return 0, nil, err
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Idempotency-Key", fmt.Sprintf("%s-%d", c.task.Key, a.told.Keys))
	answer, err := c.client.Do(r)
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = answer.Body.Close() }()
	if text, err = io.ReadAll(io.LimitReader(answer.Body, 1<<20)); err != nil {
		return 0, nil, err
	}
	c.mu.Lock()
	c.statuses[answer.StatusCode]++
	c.mu.Unlock()
	return answer.StatusCode, text, nil
}

func (c *controller) opened(now int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mostOpen = max(c.mostOpen, now)
}

// countedConn counts what goes through a connection.
type countedConn struct {
	net.Conn
	of   *controller
	once sync.Once
}

func (c *countedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.of.received.Add(int64(n))
	return n, err
}

func (c *countedConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.of.sent.Add(int64(n))
	return n, err
}

func (c *countedConn) Close() error {
	err := c.Conn.Close()
	c.once.Do(func() { c.of.open.Add(-1) })
	return err
}
