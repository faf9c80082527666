package launch

import (
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// Signals are the signals that ebb passes on to its ranks, from the moment it was made.
type Signals struct {
	c chan os.Signal
}

// forwarded are the signals that a rank would get if ebb were not there. Left alone are those
// that report on ebb itself (SIGCHLD, SIGURG, SIGABRT, faults), SIGWINCH, and those by which a
// terminal stops a background process.
func forwarded() []os.Signal {
	list := []os.Signal{
		unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGUSR1, unix.SIGUSR2,
		unix.SIGALRM, unix.SIGCONT, unix.SIGTSTP, unix.SIGIO, unix.SIGPWR, unix.SIGXCPU,
	}
	for rt := 35; rt <= 64; rt++ { // real-time signals above the C library's own
		list = append(list, syscall.Signal(rt))
	}
	return list
}

// CatchSignals begins to collect signals. It is called before anything is made that has to be
// removed again. A signal that ebb was started with ignored, as nohup does, stays ignored, in
// the ranks too.
func CatchSignals() *Signals {
	s := &Signals{c: make(chan os.Signal, 2048)}
	for _, sig := range forwarded() {
		if !signal.Ignored(sig) {
			signal.Notify(s.c, sig)
		}
	}
	// Caught, it makes a write to a closed pipe fail instead of ending ebb before it cleaned
	// up; unlike an ignored signal it is back to normal in the ranks. Nobody reads the channel.
	if !signal.Ignored(unix.SIGPIPE) {
		signal.Notify(make(chan os.Signal, 1), unix.SIGPIPE)
	}
	return s
}

// Stop ends the collection.
func (s *Signals) Stop() { signal.Stop(s.c) }

// Interrupted is the error of a run that a signal ended before its ranks were started.
func Interrupted(sig os.Signal) error {
	n, _ := sig.(syscall.Signal)
	return failf(statusSignal+int(n), "stopped by %s before the ranks were started", signalName(n))
}

// Pending returns Interrupted if a signal that ends a run has arrived.
func (s *Signals) Pending() error {
	for {
		select {
		case sig := <-s.c:
			if terminates(sig) {
				return Interrupted(sig)
			}
		default:
			return nil
		}
	}
}

// terminates reports whether a signal asks a run to end.
func terminates(sig os.Signal) bool {
	switch sig {
	case unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM:
		return true
	}
	return false
}

func signalName(sig syscall.Signal) string {
	if name := unix.SignalName(sig); name != "" {
		return name
	}
	return sig.String()
}
