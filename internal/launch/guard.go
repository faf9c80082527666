package launch

import (
	"bufio"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// The kernel kills a rank when ebb is killed, but not what the rank has started: with
// "bash -c 'python train.py; …'" the trainer would go on, and keep the GPU. So a second process
// of ebb, the guard, knows the ranks' process groups and kills them when ebb is gone. It learns
// that from the end of a pipe that only ebb has open. It is in a session of its own, where
// neither the terminal nor a kill of ebb's process group reaches it.

// GuardVerb is the hidden verb of the guard.
const GuardVerb = "guard"

type guard struct {
	cmd  *exec.Cmd
	pipe io.WriteCloser
}

func startGuard(environ []string) (*guard, error) {
	cmd := exec.Command("/proc/self/exe", GuardVerb)
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

// close ends the guard.
func (g *guard) close() {
	_ = g.pipe.Close()
	_ = g.cmd.Wait()
}

// Guard is the hidden verb's work: it reads process groups from in until that ends, and kills
// those that have not ended by then. The kernel gives the number of a group to no other one
// while a process is in it, and ebb takes groups out that have ended.
func Guard(in io.Reader) {
	groups := map[int]bool{}
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		line := lines.Text()
		if len(line) < 2 {
			continue
		}
		pgid, err := strconv.Atoi(line[1:])
		if err != nil || pgid <= 1 {
			continue
		}
		if line[0] == '+' {
			groups[pgid] = true
		} else {
			delete(groups, pgid)
		}
	}
	for pgid := range groups {
		_ = unix.Kill(-pgid, unix.SIGKILL)
	}
}
