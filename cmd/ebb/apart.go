package main

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"syscall"

	"github.com/ebb-offload/ebb/internal/launch"
)

// A thread in uninterruptible sleep keeps its process from ending. So verbs that look at disks and start
// nothing run in a process of their own: when a disk gives no answer, that one says so at its deadline,
// tells its status, and stays for as long as the kernel keeps it; the one that was called ends.

// apartVariable is set in that process, which has the pipe for its status as descriptor 3.
const apartVariable = "_EBB_APART"

// verbsApart are those verbs.
var verbsApart = []string{"gc", "verify"}

// run runs the command line, here or in a process of its own, and returns the exit status.
func run(args []string) int {
	if os.Getenv(apartVariable) != "" {
		return tell(ebb(args))
	}
	if verb, _, err := newRoot().Find(args); err != nil || !slices.Contains(verbsApart, verb.Name()) {
		return ebb(args)
	}
	status, err := runApart(args)
	if err != nil {
		log.Error("starting the process that looks at disks: " + oneLine(err))
		return launch.StatusInternal
	}
	return status
}

// runApart runs the command line in another process, and returns the status that it tells, or else ends with.
func runApart(args []string) (int, error) {
	read, write, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	defer func() { _ = read.Close() }()
	runtime.LockOSThread() // its end would be taken for this process's
	child := exec.Command("/proc/self/exe", args...)
	child.Args[0] = "ebb"
	child.Env = append(os.Environ(), apartVariable+"=1")
	child.Stdin, child.Stdout, child.Stderr = os.Stdin, os.Stdout, os.Stderr
	child.ExtraFiles = []*os.File{write}
	child.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	err = child.Start()
	_ = write.Close()
	if err != nil {
		return 0, err
	}
	var told [1]byte
	if _, err := io.ReadFull(read, told[:]); err == nil {
		return int(told[0]), nil
	}
	var exit *exec.ExitError
	if err := child.Wait(); err != nil && !errors.As(err, &exit) {
		return 0, err
	}
	state := child.ProcessState
	if ended, ok := state.Sys().(syscall.WaitStatus); ok && ended.Signaled() {
		return statusSignal + int(ended.Signal()), nil
	}
	return state.ExitCode(), nil
}

// statusSignal plus the number of a signal is the status of what that signal ended.
const statusSignal = 128

// tell tells the status to the process that was called. Whoever reads what was printed does not wait for the
// end of this one.
func tell(status int) int {
	_ = os.Stdout.Close()
	_ = os.Stderr.Close()
	pipe := os.NewFile(3, "status")
	_, _ = pipe.Write([]byte{byte(status)}) // if it cannot be told, it is this process's own
	_ = pipe.Close()
	return status
}
