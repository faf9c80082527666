package fanout

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	protocol "github.com/ebb-offload/ebb/internal/control"
	"github.com/ebb-offload/ebb/internal/control/server"
	"github.com/ebb-offload/ebb/internal/rankdir"
)

// bytes that a rank has on its device.
const held = 10 << 30

// rank is a rank's socket with a script behind it.
type rank struct {
	script Scale
	node   *hosted
	number int // on its node
	who    protocol.Who
	server *server.Server
	stop   func() // of one that has no server

	operating sync.Mutex // held while it pauses or resumes

	mu     sync.Mutex
	seq    uint64
	paused bool
	did    RankRecord
}

// RankRecord is what a rank did.
type RankRecord struct {
	Asked   int // pauses that reached it
	Paused  int // those that it carried out
	Resumed int
	Last    time.Time // end of the last pause
}

func startRank(s Scale, n *hosted, number int, dir string, self rankdir.Owner) (*rank, error) {
	self.PID = pid(n.number, number)
	path := filepath.Join(dir, protocol.SocketName(self))
	r := &rank{
		script: s, node: n, number: number,
		who: protocol.Who{Job: "fanout", Role: "actor", Cell: "0", Rank: fmt.Sprint(n.number*s.Ranks + number), PID: self.PID},
	}
	if s.rank(n.number, number) == stopped {
		stop, err := deaf(path)
		r.stop = stop
		return r, err
	}
	var err error
	r.server, err = server.Start(server.Options{
		Socket: path,
		Hello:  protocol.Hello{V: protocol.Version, EBB: "fanout", Who: r.who, Started: time.Now()},
		Handle: r.handle,
	})
	return r, err
}

// deaf is a socket whose process is stopped: the kernel takes callers, and nobody speaks to them.
func deaf(path string) (stop func(), err error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		return nil, err
	}
	return func() { _ = unix.Close(fd); _ = os.Remove(path) }, unix.Listen(fd, 32)
}

func (r *rank) close() {
	if r.server != nil {
		r.server.Close()
	}
	if r.stop != nil {
		r.stop()
	}
}

func (r *rank) handle(a *server.Ask) server.Answer {
	switch a.Cmd {
	case protocol.CmdPause:
		return r.pause(a)
	case protocol.CmdResume:
		return r.resume()
	case protocol.CmdStatus:
		r.mu.Lock()
		defer r.mu.Unlock()
		tag := map[string]any{"tag": "default", "allocations": 20, "active": held}
		if r.paused {
			tag = map[string]any{"tag": "default", "allocations": 20, "disk": held, "in_files": held}
		}
		return server.Answer{Result: map[string]any{"device": "script", "tags": []any{tag}}}
	}
	return server.Answer{Err: protocol.Invalid("%s: not in the script", a.Cmd)}
}

func (r *rank) tell(kind, operation string, bytes uint64) {
	r.mu.Lock()
	r.seq++
	seq := r.seq
	r.mu.Unlock()
	e := protocol.Event{V: protocol.Version, Time: time.Now(), Seq: seq, Who: r.who, Kind: kind, Operation: operation, By: "control", Bytes: bytes}
	if kind == protocol.EventBegin || kind == protocol.EventProgress {
		e.Total = held
	}
	if kind == protocol.EventEnd {
		e.Outcome = json.RawMessage(`{}`)
	}
	r.server.Publish(e)
}

// Codes of abi/ebb.h.
const (
	codeDiskFull = 11
	codeTimeout  = 18
)

// pause waits for the safe point of the script, then for its disk.
func (r *rank) pause(a *server.Ask) server.Answer {
	r.mu.Lock()
	r.did.Asked++
	r.mu.Unlock()
	r.node.asked()
	r.operating.Lock()
	defer r.operating.Unlock()
	if r.isPaused() {
		return server.Answer{Result: protocol.Done{}}
	}
	s, n := r.script, r.node.number
	fate := s.rank(n, r.number)
	safe := time.After(s.safePoint(n, r.number))
	if fate == stuck || s.node(n) == dies {
		safe = nil
	}
	var late <-chan time.Time
	if a.Timeout != nil {
		late = time.After(time.Duration(*a.Timeout * float64(time.Second)))
	}
	r.tell(protocol.EventAsked, protocol.CmdPause, 0)
	select {
	case <-safe:
	case <-a.Gone:
		r.tell(protocol.EventWithdraw, protocol.CmdPause, 0)
		return server.Answer{Withdrawn: true}
	case <-late:
		r.tell(protocol.EventWithdraw, protocol.CmdPause, 0)
		return server.Answer{Err: &protocol.Error{Code: codeTimeout, Message: "no safe point by the deadline"}}
	}
	r.tell(protocol.EventBegin, protocol.CmdPause, 0)
	r.node.begun()
	takes := s.moving(n, r.number)
	time.Sleep(takes / 2)
	switch fate {
	case full:
		r.tell(protocol.EventEnd, protocol.CmdPause, 0)
		return server.Answer{Err: &protocol.Error{Code: codeDiskFull, Message: "no space left on the disk: nothing was paused"}}
	case killed:
		go r.server.Close()
		return server.Answer{Withdrawn: true} // nobody is there to hear it
	}
	r.tell(protocol.EventProgress, protocol.CmdPause, held/2)
	time.Sleep(takes / 2)
	r.mu.Lock()
	r.paused = true
	r.did.Paused++
	r.did.Last = time.Now()
	r.mu.Unlock()
	r.tell(protocol.EventEnd, protocol.CmdPause, held)
	settled(&r.node.host.toPause, r.node.host.paused)
	return server.Answer{Result: protocol.Done{Allocations: 20, Bytes: held, DeviceBytes: held, DiskBytes: held, Freed: held, Seconds: takes.Seconds()}}
}

func (r *rank) resume() server.Answer {
	r.operating.Lock()
	defer r.operating.Unlock()
	if !r.isPaused() {
		return server.Answer{Result: protocol.Done{}}
	}
	r.tell(protocol.EventBegin, protocol.CmdResume, 0)
	time.Sleep(r.script.Unit / 2)
	r.mu.Lock()
	r.paused = false
	r.did.Resumed++
	r.mu.Unlock()
	r.tell(protocol.EventEnd, protocol.CmdResume, held)
	settled(&r.node.host.toResume, r.node.host.resumed)
	return server.Answer{Result: protocol.Done{Allocations: 20, Bytes: held, DeviceBytes: held, DiskBytes: held}}
}

func (r *rank) isPaused() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.paused
}

func (r *rank) record() RankRecord {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.did
}
