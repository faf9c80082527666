package launch

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// The kernel kills a rank when ebb is killed, but not what the rank has started: with
// "bash -c 'python train.py; …'" the trainer would go on, and keep the GPU. So a second process
// of ebb, the guard, kills the ranks' process groups when ebb is gone. It learns that from the
// end of a pipe that only ebb has open. It is in a session of its own, where neither the
// terminal nor a kill of ebb's process group reaches it.

// GuardVerb is the hidden verb of the guard.
const GuardVerb = "guard"

type guard struct {
	cmd  *exec.Cmd
	pipe io.WriteCloser
}

// startGuard starts the guard of a run, which has a name in its ranks' environment (envRun).
func startGuard(run string, environ []string) (*guard, error) {
	session, err := unix.Getsid(0)
	if err != nil {
		return nil, failf(StatusInternal, "starting the guard of the ranks: %w", err)
	}
	cmd := exec.Command("/proc/self/exe", GuardVerb, run, strconv.Itoa(session))
	cmd.Args[0] = "ebb"
	cmd.Env = Apply(environ, []Setting{{Name: "LD_PRELOAD", Unset: true}})
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	pipe, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, failf(StatusInternal, "starting the guard of the ranks: %w", err)
	}
	return &guard{cmd: cmd, pipe: pipe}, nil
}

// A guard that was killed cannot be told anything; the ranks run all the same.

func (g *guard) add(pgid int)    { _, _ = fmt.Fprintf(g.pipe, "+%d\n", pgid) }
func (g *guard) remove(pgid int) { _, _ = fmt.Fprintf(g.pipe, "-%d\n", pgid) }

// close ends the guard, when all ranks have ended.
func (g *guard) close() {
	_, _ = fmt.Fprintln(g.pipe, guardDone)
	_ = g.pipe.Close()
	_ = g.cmd.Wait()
}

const guardDone = "done"

// Guard is the hidden verb's work: it reads process groups from in until that ends, and, unless
// told that all is done, kills those that have not ended by then. The kernel gives the number
// of a group to no other one while a process is in it, and ebb takes groups out that have
// ended.
//
// ebb may be killed when it has just started a rank and not told so yet. Therefore the guard
// also kills what bears the run's name in its environment and is still in ebb's session. That
// alone would not do: a program may write over its environment, as those do that set their
// title.
func Guard(in io.Reader, run string, session int) {
	groups, done := readGroups(in)
	if done {
		return
	}
	for pgid := range groups {
		_ = unix.Kill(-pgid, unix.SIGKILL)
	}
	killed := map[int]bool{}
	for killNamed(run, session, killed) {
		// Once more, for what one of them started before it was killed.
	}
}

// readGroups reads what ebb tells the guard, to its end: the process groups that have not ended, or
// that all is done.
func readGroups(in io.Reader) (groups map[int]bool, done bool) {
	groups = map[int]bool{}
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		line := lines.Text()
		if line == guardDone {
			return nil, true
		}
		if len(line) < 2 {
			continue
		}
		n, err := strconv.ParseInt(line[1:], 10, 32) // as the kernel counts
		if pgid := int(n); err != nil || pgid <= 1 {
			continue
		} else if line[0] == '+' {
			groups[pgid] = true
		} else {
			delete(groups, pgid)
		}
	}
	return groups, false
}

// killNamed kills the processes of a session that bear a run's name and are not in killed, adds
// them there, and reports whether there were any.
func killNamed(run string, session int, killed map[int]bool) (any bool) {
	all, err := processes()
	if err != nil {
		return false
	}
	for _, s := range all {
		if s.session == session && !killed[s.pid] && s.alive() && killIfNamed(s.pid, run) {
			killed[s.pid] = true
			any = true
		}
	}
	return any
}

// killIfNamed kills a process if it bears a run's name. The descriptor keeps the number from
// naming another process in between.
func killIfNamed(pid int, run string) bool {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return false
	}
	defer func() { _ = unix.Close(fd) }()
	environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil || !bytes.Contains(append([]byte{0}, environ...), []byte("\x00"+envRun+"="+run+"\x00")) {
		return false
	}
	return unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) == nil
}
