package launch

import (
	"os"
	"os/signal"

	"golang.org/x/sys/unix"
)

// A single rank may use the terminal, for a debugger say. Only the foreground process group may
// read it, and the rank leads a group of its own: so ebb hands the terminal over and takes it
// back, as a shell does. Keys such as Ctrl-C then reach the rank alone.

// terminal is the terminal on ebb's standard input, held by ebb's process group.
type terminal struct {
	fd   int
	self int            // ebb's process group
	c    chan os.Signal // SIGCHLD
}

// ownTerminal returns the terminal if ebb is in its foreground, else nil.
func ownTerminal(f *os.File) *terminal {
	fd := int(f.Fd())
	group, err := unix.IoctlGetInt(fd, unix.TIOCGPGRP)
	if err != nil || group != unix.Getpgrp() {
		return nil
	}
	return &terminal{fd: fd, self: group, c: make(chan os.Signal, 1)}
}

// starts is called before the child is started: it may be stopped as soon as it runs.
func (t *terminal) starts() { signal.Notify(t.c, unix.SIGCHLD) }

// started is called when the child, which was started in the foreground, runs.
func (t *terminal) started() {
	// The kernel stops a background process that hands the terminal over, unless it ignores
	// this signal. Children would inherit that: there are none to come.
	signal.Ignore(unix.SIGTTOU)
}

// changes tells when to call look. Nil without a terminal.
func (t *terminal) changes() <-chan os.Signal {
	if t == nil {
		return nil
	}
	return t.c
}

// look stops ebb too when the child was stopped from the keyboard, so that the shell comes
// forward, and lets the child go on when ebb does.
func (t *terminal) look(child int) {
	var info unix.Siginfo
	err := unix.Waitid(unix.P_PID, child, &info, unix.WSTOPPED|unix.WNOHANG, nil)
	if err != nil || info.Signo != int32(unix.SIGCHLD) {
		return
	}
	if os.Getpid() == 1 {
		// The first process of a container takes no SIGSTOP: nobody could let it go on.
		_ = unix.Kill(-child, unix.SIGCONT)
		return
	}
	on := make(chan os.Signal, 1)
	signal.Notify(on, unix.SIGCONT)
	defer signal.Stop(on)
	_ = unix.Kill(0, unix.SIGSTOP)
	<-on // threads run on for a moment after the call: the child would too, while ebb is stopped
	// Here ebb goes on: in the foreground, or in the background as the shell said.
	if group, err := unix.IoctlGetInt(t.fd, unix.TIOCGPGRP); err == nil && group == t.self {
		t.give(child)
	}
	_ = unix.Kill(-child, unix.SIGCONT)
}

// back takes the terminal back from a child that has ended.
func (t *terminal) back(child int) {
	if t == nil {
		return
	}
	signal.Stop(t.c)
	if group, err := unix.IoctlGetInt(t.fd, unix.TIOCGPGRP); err == nil && group == child {
		t.give(t.self)
	}
}

// give puts a process group in the foreground. The terminal may be gone: nothing is lost then.
func (t *terminal) give(group int) { _ = unix.IoctlSetPointerInt(t.fd, unix.TIOCSPGRP, group) }
