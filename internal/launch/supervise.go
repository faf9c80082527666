package launch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Process is one rank to start.
type Process struct {
	Name  string // in messages: "rank 3"
	Who   []any  // attributes of messages about it
	Path  string // the program
	Args  []string
	Env   []string
	Label string // put in front of its output lines, with Group.Labelled
}

// Group is what Supervise runs.
type Group struct {
	Processes []Process
	Run       string   // the run's name, which is in the processes' environment (envRun)
	Environ   []string // ebb's own environment
	// Labelled sends the output through ebb, line by line. Otherwise the processes have ebb's
	// own streams.
	Labelled bool
	// Grace is how long the others have to end, after SIGTERM, when one has failed.
	Grace   time.Duration
	Signals *Signals
	Log     *slog.Logger
	// Status is asked for one line about the processes, with attributes, at SIGUSR1. It may take seconds.
	Status func(context.Context) (string, []any)
}

// Outcome is how a group ended.
type Outcome struct {
	Status int // exit status of the first process that failed, or 128 + its signal; 0 when none did
	First  int // that process, or -1
}

// Supervise starts all processes and returns when all have ended and their output is written.
// It never returns with one of them running.
//
// Each process leads a process group. The kernel kills it (PR_SET_PDEATHSIG) when the thread
// that started it ends, so one thread starts all and stays until the last has ended. The guard
// does the same for the rest of the group.
//
// Signals go to all groups. When one process fails the others get SIGTERM, and SIGKILL after
// the grace period. A second SIGINT kills all at once; a third gives up waiting for somebody to
// read the output.
func Supervise(g Group) (Outcome, error) {
	running, over := context.WithCancel(context.Background())
	defer over()
	s := &supervisor{Group: g, first: -1, watch: newExitWatch(), running: running}
	if err := s.streams(); err != nil {
		return Outcome{}, err
	}
	defer s.closeStreams()
	var err error
	if s.guard, err = startGuard(s.Run, s.Environ); err != nil {
		return Outcome{}, err
	}
	defer s.guard.close()
	s.orphans = reapOrphans(s.guard.cmd.Process.Pid)
	defer s.orphans.stop()

	started := make(chan error)
	ended := make(chan struct{})
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with this function
		started <- s.start()
		<-ended
	}()
	startErr := <-started
	if startErr != nil {
		s.Log = slog.New(slog.DiscardHandler) // the error says it all
		s.kill()
	}
	s.loop()
	close(ended)
	over()
	s.asked.Wait()
	s.finishOutput()
	if startErr != nil {
		return Outcome{}, startErr
	}
	return Outcome{Status: s.status, First: s.first}, nil
}

type supervisor struct {
	Group
	children []*child
	watch    *exitWatch
	guard    *guard
	orphans  *orphans

	stdin    *os.File
	out, err *sink
	terminal *terminal // nil: not handed to a rank

	status, first int
	interrupts    int
	passedOn      syscall.Signal   // the last one that asks a run to end; 0: none
	deadline      <-chan time.Time // when the rest is killed

	running context.Context // until the last process has ended
	asking  atomic.Bool     // Status runs
	asked   sync.WaitGroup  // for its end
}

type child struct {
	Process
	pid    int
	reaped bool
	pumps  []*pump
}

// to is a log for lines about the process.
func (c *child) to(log *slog.Logger) *slog.Logger { return log.With(c.Who...).With("pid", c.pid) }

// streams prepares what the processes read and where their output goes. Several cannot share an
// input: they get an empty one.
func (s *supervisor) streams() error {
	s.out, s.err = newSinks(os.Stdout, os.Stderr)
	if len(s.Processes) == 1 {
		s.stdin = os.Stdin
		s.terminal = ownTerminal(os.Stdin)
		return nil
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return failf(StatusInternal, "opening the ranks' input: %w", err)
	}
	s.stdin = null
	return nil
}

func (s *supervisor) closeStreams() {
	if s.stdin != os.Stdin {
		s.stdin.Close()
	}
}

// start starts all processes, or reports the first that could not be started. It runs on the
// thread whose end kills them.
func (s *supervisor) start() error {
	for _, p := range s.Processes {
		c := &child{Process: p}
		if err := s.startOne(c); err != nil {
			return err
		}
		s.children = append(s.children, c)
		s.watch.add(c.pid)
	}
	return nil
}

func (s *supervisor) startOne(c *child) error {
	stdout, stderr := os.Stdout, os.Stderr
	if s.Labelled {
		for _, to := range []struct {
			file **os.File
			sink *sink
		}{{&stdout, s.out}, {&stderr, s.err}} {
			r, w, err := os.Pipe()
			if err != nil {
				for _, p := range c.pumps {
					p.stop()
				}
				return failf(StatusInternal, "%s: making a pipe for its output: %w; raise the limit of open files (ulimit -n)", c.Name, err)
			}
			defer w.Close() // the rank has its own
			_, _ = unix.FcntlInt(w.Fd(), unix.F_SETPIPE_SZ, pipeSize)
			*to.file = w
			c.pumps = append(c.pumps, startPump(r, c.Label, to.sink))
		}
	}
	attr := &syscall.ProcAttr{
		Env:   c.Env,
		Files: []uintptr{s.stdin.Fd(), stdout.Fd(), stderr.Fd()},
		Sys:   &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL},
	}
	if s.terminal != nil {
		attr.Sys.Foreground, attr.Sys.Ctty = true, s.terminal.fd
		s.terminal.starts()
	}
	pid, err := s.orphans.start(func() (int, error) { return syscall.ForkExec(c.Path, c.Args, attr) })
	if err != nil {
		for _, p := range c.pumps {
			p.stop()
		}
		return startError(c, err)
	}
	c.pid = pid
	s.guard.add(pid)
	c.to(s.Log).Debug(c.Name+" starts", "command", c.Args[0])
	if s.terminal != nil {
		s.terminal.started()
	}
	return nil
}

func startError(c *child, err error) error {
	switch {
	case errors.Is(err, unix.ENOENT):
		// The file was there a moment ago: more often its interpreter is missing.
		return failf(StatusNotFound, "%s: cannot start %s: %w; check the program and the interpreter that it names", c.Name, c.Path, err)
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.ENOEXEC), errors.Is(err, unix.ELIBBAD):
		return failf(StatusNotExecutable, "%s: cannot start %s: %w; check that it is a program, or a script with a #! line", c.Name, c.Path, err)
	case errors.Is(err, unix.E2BIG):
		return failf(StatusNotExecutable, "%s: cannot start %s: %w; shorten its arguments or the environment", c.Name, c.Path, err)
	case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.ENOMEM):
		return failf(StatusInternal, "%s: cannot start %s: %w; raise the limit of processes (ulimit -u), or free memory", c.Name, c.Path, err)
	default:
		return failf(StatusInternal, "%s: cannot start %s: %w", c.Name, c.Path, err)
	}
}

// loop runs until every process that was started has ended.
func (s *supervisor) loop() {
	exits := s.watch.exits()
	groups := make(chan *child)
	for running := len(s.children); running > 0; {
		select {
		case i := <-exits:
			c := s.children[i]
			s.ended(i, c)
			go func() {
				if !awaitGroup(c.pid, s.Grace) {
					c.to(s.Log).Warn(c.Name + ": processes that it started do not end (stuck in the kernel); not waiting for them")
				}
				groups <- c
			}()
		case c := <-groups:
			s.guard.remove(c.pid)
			for _, p := range c.pumps {
				p.stop()
			}
			running--
		case sig := <-s.Signals.c:
			s.handle(sig)
		case <-s.terminal.changes():
			if c := s.children[0]; !c.reaped {
				s.terminal.look(c.pid)
			}
		case <-s.deadline:
			s.deadline = nil
			s.Log.Warn(fmt.Sprintf("%s did not end within %v of SIGTERM: killed", s.runningNames(), s.Grace))
			s.kill()
		}
	}
}

// ended takes the exit status of a process and, if it is the first failure, ends the others.
func (s *supervisor) ended(i int, c *child) {
	s.terminal.back(c.pid)
	wait, err := endGroup(c.pid)
	c.reaped = true
	status, how := exitStatus(wait)
	if err != nil {
		status, how = StatusInternal, fmt.Sprintf("was lost: %v", err)
	}
	log := c.to(s.Log).With("status", status)
	if status == 0 || s.first >= 0 {
		log.Debug(c.Name + " " + how)
		return
	}
	s.first, s.status = i, status
	if s.passedOn != 0 {
		s.endedAsAsked(log, c, status, how)
	}
	others := s.runningNames()
	if others == "" {
		if s.passedOn == 0 {
			log.Error(c.Name + " " + how)
		}
		return
	}
	if s.passedOn == 0 {
		log.Error(fmt.Sprintf("%s %s: ending %s", c.Name, how, others))
		s.signal(unix.SIGTERM)
		s.signal(unix.SIGCONT) // a stopped process takes no signal until it goes on
	}
	s.deadline = time.After(s.Grace)
}

// endedAsAsked says how the run ends after a signal that was to end it. That is no failure of the
// rank which happens to end first: it is named only when it ended in another way.
func (s *supervisor) endedAsAsked(log *slog.Logger, c *child, status int, how string) {
	if name := signalName(s.passedOn); status == statusSignal+int(s.passedOn) {
		log.Debug(c.Name + " " + how)
		s.Log.Info(fmt.Sprintf("ended by %s (status %d)", name, status), "status", status)
	} else {
		log.Error(fmt.Sprintf("%s %s, after %s", c.Name, how, name))
	}
}

func exitStatus(w unix.WaitStatus) (status int, how string) {
	switch {
	case w.Signaled():
		how = fmt.Sprintf("was ended by %s (status %d)", signalName(w.Signal()), statusSignal+int(w.Signal()))
		return statusSignal + int(w.Signal()), how
	case w.ExitStatus() == 0:
		return 0, "ended"
	default:
		return w.ExitStatus(), fmt.Sprintf("failed with status %d", w.ExitStatus())
	}
}

// handle passes a signal on.
func (s *supervisor) handle(sig os.Signal) {
	n, ok := sig.(syscall.Signal)
	if !ok {
		return
	}
	switch {
	case n == unix.SIGTSTP:
		s.signal(unix.SIGTSTP)
		_ = unix.Kill(os.Getpid(), unix.SIGSTOP)
		return
	case n == unix.SIGUSR1:
		s.tell() // and passed on: it may be the scheduler's word to the ranks
	case n == unix.SIGINT:
		s.interrupts++
		if s.interrupts == 2 {
			s.Log.Warn("second SIGINT: killing " + s.runningNames())
			s.kill()
		}
		if s.interrupts >= 2 {
			return
		}
		s.Log.Info("got SIGINT, passed on to the ranks; once more kills them")
	case terminates(n) && n != s.passedOn:
		s.Log.Info(fmt.Sprintf("got %s, passed on to the ranks", signalName(n)))
	}
	s.signal(n)
	if terminates(n) {
		s.passedOn = n
		s.signal(unix.SIGCONT)
	}
}

// tell says in one line how the processes are, as soon as they have said it. One line at a time: who asks
// again meanwhile gets the same.
func (s *supervisor) tell() {
	if s.Status == nil || !s.asking.CompareAndSwap(false, true) {
		return
	}
	s.asked.Go(func() {
		defer s.asking.Store(false)
		ctx, cancel := context.WithTimeout(s.running, statusLimit)
		defer cancel()
		line, attrs := s.Status(ctx)
		if s.running.Err() == nil {
			s.Log.Info(line, attrs...)
		}
	})
}

// statusLimit is when a status is told without those who have not answered.
const statusLimit = 3 * time.Second

// signal sends a signal to the group of every process that has not ended.
func (s *supervisor) signal(sig syscall.Signal) {
	for _, c := range s.children {
		if !c.reaped {
			_ = unix.Kill(-c.pid, sig)
		}
	}
}

func (s *supervisor) kill() { s.signal(unix.SIGKILL) }

// runningNames names the processes that have not ended, for a message.
func (s *supervisor) runningNames() string {
	var names []string
	for _, c := range s.children {
		if !c.reaped {
			names = append(names, c.Name)
		}
	}
	if len(names) > 4 {
		return Count(len(names), "rank")
	}
	return strings.Join(names, ", ")
}

// finishOutput waits until the output is written, or until SIGINT when the user has asked twice
// already: somebody has stopped reading it.
func (s *supervisor) finishOutput() {
	for _, c := range s.children {
		for _, p := range c.pumps {
			for waiting := true; waiting; {
				select {
				case <-p.done:
					waiting = false
				case sig := <-s.Signals.c:
					if sig == unix.SIGINT {
						s.interrupts++
					}
					if s.interrupts > 2 {
						return
					}
				}
			}
		}
	}
}
