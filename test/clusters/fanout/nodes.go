package fanout

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ebb-offload/ebb/internal/node"
	"github.com/ebb-offload/ebb/internal/rankdir"
	"github.com/ebb-offload/ebb/internal/serve"
)

// hostTask says which nodes a process has.
type hostTask struct {
	Scale Scale
	Nodes []int
	Dir   string
}

// hostWord is what a process with nodes says: where they are; that all were asked; that each rank which comes to it in
// the script is paused, and resumed; and at the end what they did.
type hostWord struct {
	Ready  []address       `json:",omitempty"`
	Asked  bool            `json:",omitempty"`
	Paused bool            `json:",omitempty"`
	Again  bool            `json:",omitempty"` // resumed
	Record map[int]nodeDid `json:",omitempty"`
	Used   Used
}

// address is where a node answers.
type address struct {
	Node int
	Addr string
}

// nodeDid is what happened on a node.
type nodeDid struct {
	Ranks  []RankRecord
	Served int // how often its ebb serve was started
}

// Used is what a process had at most.
type Used struct {
	Descriptors int
	Threads     int
	RSS         int // KiB
}

// host is a process with nodes.
type host struct {
	task    hostTask
	nodes   []*hosted
	waiting atomic.Int32 // nodes that were not asked yet
	all     chan struct{}

	toPause, toResume atomic.Int32 // ranks that will be, in the script, and were not yet
	paused, resumed   chan struct{}
}

// hosted is one node.
type hosted struct {
	host   *host
	number int
	ranks  []*rank
	addr   string
	place  serve.Node
	close  func() // of one that serves nobody

	first   sync.Once
	left    atomic.Int32 // ranks that have not begun
	restart chan struct{}
	hold    func() // gives up an address that is to be served again

	mu     sync.Mutex
	ended  chan error // of the server that runs
	end    context.CancelFunc
	served int
}

// hostNodes is the process: it reads its task, says where its nodes are, and at the end of its input what they did.
func hostNodes(in io.Reader, out *os.File) error {
	lines := json.NewDecoder(in)
	h := &host{all: make(chan struct{}), paused: make(chan struct{}), resumed: make(chan struct{})}
	if err := lines.Decode(&h.task); err != nil {
		return err
	}
	h.waiting.Store(int32(len(h.task.Nodes)))
	for _, n := range h.task.Nodes {
		h.toPause.Add(int32(h.task.Scale.pausing(n)))
	}
	h.toResume.Store(h.toPause.Load())
	self, err := rankdir.Self()
	if err != nil {
		return err
	}
	word := hostWord{}
	for _, number := range h.task.Nodes {
		n, err := h.start(number, self)
		if err != nil {
			return fmt.Errorf("node %d: %w", number, err)
		}
		h.nodes = append(h.nodes, n)
		word.Ready = append(word.Ready, address{number, n.addr})
	}
	used, stop := watchUsed()
	if err := say(out, word); err != nil {
		return err
	}
	ended := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, in)
		close(ended)
	}()
	all, paused, resumed := h.all, h.paused, h.resumed
	for going := true; going; {
		var word hostWord
		select {
		case <-all:
			all, word.Asked = nil, true
		case <-paused:
			paused, word.Paused = nil, true
		case <-resumed:
			resumed, word.Again = nil, true
		case <-ended:
			going = false
			continue
		}
		if err := say(out, word); err != nil {
			return err
		}
	}
	word = hostWord{Record: map[int]nodeDid{}}
	for _, n := range h.nodes {
		did := nodeDid{Served: n.stop()}
		for _, r := range n.ranks {
			did.Ranks = append(did.Ranks, r.record())
			r.close()
		}
		word.Record[n.number] = did
	}
	stop()
	word.Used = *used
	return say(out, word)
}

func (h *host) start(number int, self rankdir.Owner) (*hosted, error) {
	n := &hosted{host: h, number: number, restart: make(chan struct{})}
	switch h.task.Scale.node(number) {
	case refuses:
		var err error
		n.addr, n.close, err = bound(false, false)
		n.asked() // it will not be
		return n, err
	case hangs:
		var err error
		n.addr, n.close, err = bound(true, false)
		n.asked()
		return n, err
	}
	dir := filepath.Join(h.task.Dir, fmt.Sprint(number))
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	n.left.Store(int32(h.task.Scale.ranks(number)))
	for i := range h.task.Scale.ranks(number) {
		r, err := startRank(h.task.Scale, n, i, dir, self)
		if err != nil {
			return nil, err
		}
		n.ranks = append(n.ranks, r)
	}
	n.place = serve.RanksOf(node.Places{RuntimeDirs: []string{dir}}, node.Selection{})
	listen, again := "127.0.0.1:0", h.task.Scale.node(number) == restarts
	if again {
		// Nobody else is given the address while no ebb serve listens there.
		var err error
		if listen, n.hold, err = bound(false, true); err != nil {
			return nil, err
		}
	}
	if err := n.serve(listen); err != nil {
		return nil, err
	}
	if again {
		go n.serveAgain()
	}
	return n, nil
}

// bound is an address at which nobody listens, or one where nobody accepts. A shared one may be listened at by others
// who ask for it.
func bound(listen, shared bool) (addr string, closed func(), err error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return "", nil, err
	}
	if shared {
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
			return "", nil, err
		}
	}
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return "", nil, err
	}
	if listen {
		if err := unix.Listen(fd, 16); err != nil {
			return "", nil, err
		}
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		return "", nil, err
	}
	at, ok := name.(*unix.SockaddrInet4)
	if !ok {
		return "", nil, fmt.Errorf("a socket with the address %v", name)
	}
	return net.JoinHostPort("127.0.0.1", fmt.Sprint(at.Port)), func() { _ = unix.Close(fd) }, nil
}

// serve begins an ebb serve at an address.
func (n *hosted) serve(listen string) error {
	s, err := serve.New(serve.Options{Node: n.place, Listen: listen, Version: "fanout", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	ctx, end := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx) }()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.addr = strings.TrimPrefix(s.URL(), "http://")
	n.end, n.ended = end, ended
	n.served++
	return nil
}

// serveAgain ends the ebb serve once every rank moves its memory, and begins another one.
func (n *hosted) serveAgain() {
	<-n.restart
	n.mu.Lock()
	addr := n.addr
	n.mu.Unlock()
	n.endServe()
	if err := n.serve(addr); err != nil {
		panic(fmt.Sprintf("node %d: %v", n.number, err))
	}
}

func (n *hosted) endServe() {
	n.mu.Lock()
	end, ended := n.end, n.ended
	n.mu.Unlock()
	end()
	if err := <-ended; err != nil {
		panic(fmt.Sprintf("node %d: %v", n.number, err))
	}
}

// stop ends what the node serves, and returns how often it began to.
func (n *hosted) stop() int {
	if n.close != nil {
		n.close()
		return 0
	}
	n.endServe()
	if n.hold != nil {
		n.hold()
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.served
}

// settled takes one off the ranks that are to do something, and says so when that was the last.
func settled(left *atomic.Int32, all chan struct{}) {
	if left.Add(-1) == 0 {
		close(all)
	}
}

// asked is told of each pause that reaches a rank.
func (n *hosted) asked() {
	n.first.Do(func() {
		if n.host.waiting.Add(-1) == 0 {
			close(n.host.all)
		}
	})
}

// begun is told of each rank that begins to move its memory.
func (n *hosted) begun() {
	if n.left.Add(-1) == 0 {
		close(n.restart)
	}
}

// watchUsed notes what this process uses at most, until it is stopped.
func watchUsed() (*Used, func()) {
	used := &Used{}
	done, over := make(chan struct{}), make(chan struct{})
	look := func() {
		if entries, err := os.ReadDir("/proc/self/fd"); err == nil {
			used.Descriptors = max(used.Descriptors, len(entries))
		}
		status, err := os.ReadFile("/proc/self/status")
		if err != nil {
			return
		}
		for line := range strings.Lines(string(status)) {
			name, value, _ := strings.Cut(line, ":")
			var n int
			if _, err := fmt.Sscan(value, &n); err != nil {
				continue
			}
			switch name {
			case "VmHWM":
				used.RSS = max(used.RSS, n)
			case "Threads":
				used.Threads = max(used.Threads, n)
			}
		}
	}
	go func() {
		defer close(over)
		every := time.NewTicker(250 * time.Millisecond)
		defer every.Stop()
		for {
			look()
			select {
			case <-every.C:
			case <-done:
				look()
				return
			}
		}
	}()
	return used, func() { close(done); <-over }
}
