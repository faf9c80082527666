package launch

import (
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// In a container ebb is often the first process. Then processes whose parents have ended become
// its children, and it has to wait for them, or they stay zombies until the container ends.

// orphans waits for children that ebb did not start.
type orphans struct {
	// mu is held over every start of a child until the child is in own.
	mu  sync.Mutex
	own map[int]bool // children that somebody else waits for

	c    chan os.Signal
	done chan struct{}
}

// reapOrphans begins to wait for orphans if this process gets any; nil if not. own are children
// that were started already.
func reapOrphans(own ...int) *orphans {
	if os.Getpid() != 1 {
		return nil
	}
	o := &orphans{own: map[int]bool{}, c: make(chan os.Signal, 1), done: make(chan struct{})}
	for _, pid := range own {
		o.own[pid] = true
	}
	signal.Notify(o.c, unix.SIGCHLD)
	go func() {
		defer close(o.done)
		for range o.c {
			o.reap()
		}
	}()
	return o
}

func (o *orphans) stop() {
	if o == nil {
		return
	}
	signal.Stop(o.c)
	close(o.c)
	<-o.done
}

// start runs a function that starts a child and notes the child as ebb's own.
func (o *orphans) start(f func() (pid int, err error)) (int, error) {
	if o == nil {
		return f()
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	pid, err := f()
	if err == nil {
		o.own[pid] = true
	}
	return pid, err
}

// reap waits for the orphans that have ended. It asks for each by its number: a wait for any
// child would take the exit status of a rank.
func (o *orphans) reap() {
	o.mu.Lock()
	defer o.mu.Unlock()
	lists, _ := filepath.Glob("/proc/self/task/*/children")
	for _, list := range lists {
		text, err := os.ReadFile(list)
		if err != nil {
			continue // that thread has ended
		}
		for _, field := range strings.Fields(string(text)) {
			var pid int
			if _, err := fmt.Sscan(field, &pid); err == nil && !o.own[pid] {
				_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil)
			}
		}
	}
}
