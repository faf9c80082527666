package launch

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"
)

// A rank leads a process group of its own. When the rank has ended, the rest of its group is
// killed: what a rank starts and leaves running would hold its GPU memory and its files. A
// process that made itself a daemon (setsid) has left the group and is not touched.

// endGroup kills what is left of the group of a rank that has ended and is still a zombie: as
// long as it is one, its number cannot name another group. It reaps the rank.
func endGroup(leader int) (unix.WaitStatus, error) {
	_ = unix.Kill(-leader, unix.SIGKILL)
	var status unix.WaitStatus
	for {
		_, err := unix.Wait4(leader, &status, 0, nil)
		if !errors.Is(err, unix.EINTR) {
			return status, err
		}
	}
}

// awaitGroup waits until no process of a killed group runs. It gives up after the deadline: a
// process stuck in the kernel ends when the kernel lets it.
func awaitGroup(pgid int, limit time.Duration) (ended bool) {
	if errors.Is(unix.Kill(-pgid, 0), unix.ESRCH) {
		return true // the common case, without a look at every process
	}
	deadline := time.Now().Add(limit)
	for {
		members := groupMembers(pgid)
		if len(members) == 0 {
			return true
		}
		left := time.Until(deadline)
		if left <= 0 {
			return false
		}
		awaitExit(members[0], left)
	}
}

// groupMembers lists the processes of a group that run. Zombies do not count: they hold
// nothing, and their parent may never look at them.
func groupMembers(pgid int) []int {
	all, err := processes()
	if err != nil {
		return nil
	}
	var members []int
	for _, s := range all {
		if s.pgrp == pgid && s.alive() {
			members = append(members, s.pid)
		}
	}
	return members
}

// awaitExit waits until a process, which need not be a child, has ended, or for the time given.
func awaitExit(pid int, limit time.Duration) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		// Gone, or a kernel before 5.3: the caller looks again.
		time.Sleep(min(limit, 2*time.Millisecond))
		return
	}
	defer func() { _ = unix.Close(fd) }()
	timeout := unix.NsecToTimespec(limit.Nanoseconds())
	_, _ = unix.Ppoll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, &timeout, nil)
}

// exitWatch reports children as they end. They stay zombies until somebody reaps them.
type exitWatch struct {
	pids  []int
	epoll int   // -1: a kernel before 5.3, which has no pidfds
	fds   []int // pidfds
}

func newExitWatch() *exitWatch {
	w := &exitWatch{epoll: -1}
	if epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC); err == nil {
		w.epoll = epoll
	}
	return w
}

// add watches one more child.
func (w *exitWatch) add(pid int) {
	w.pids = append(w.pids, pid)
	if w.epoll < 0 {
		return
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err == nil {
		w.fds = append(w.fds, fd)
		event := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(len(w.pids) - 1)}
		err = unix.EpollCtl(w.epoll, unix.EPOLL_CTL_ADD, fd, &event)
	}
	if err != nil {
		w.release()
	}
}

// exits reports the children, by the order of their adding, as they end: in the order in which
// they do, with pidfds, which the kernel lists in the order they become ready. Threads that
// wait, in their place, report in nearly that order.
func (w *exitWatch) exits() <-chan int {
	ended := make(chan int, len(w.pids))
	if w.epoll >= 0 {
		go func() {
			defer w.release()
			w.report(ended)
		}()
		return ended
	}
	for i, pid := range w.pids {
		go func() {
			for errors.Is(unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil), unix.EINTR) {
			}
			ended <- i
		}()
	}
	return ended
}

func (w *exitWatch) report(ended chan<- int) {
	events := make([]unix.EpollEvent, len(w.fds))
	for left := len(w.fds); left > 0; {
		n, err := unix.EpollWait(w.epoll, events, -1)
		if err != nil {
			continue // EINTR; nothing else can befall an epoll descriptor of our own
		}
		for _, e := range events[:n] {
			// An exit is reported once; the descriptor would stay ready.
			_ = unix.EpollCtl(w.epoll, unix.EPOLL_CTL_DEL, w.fds[e.Fd], nil)
			ended <- int(e.Fd)
			left--
		}
	}
}

// release closes the descriptors; exits then uses threads.
func (w *exitWatch) release() {
	for _, fd := range w.fds {
		_ = unix.Close(fd)
	}
	_ = unix.Close(w.epoll)
	w.fds, w.epoll = nil, -1
}
