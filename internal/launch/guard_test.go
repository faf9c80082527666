package launch

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ebb-offload/ebb/internal/testutil"
)

// sleeper is a process that only a signal ends, started with an environment.
func sleeper(t *testing.T, attr *syscall.SysProcAttr, environ ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("sleep", "1000")
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH")}, environ...)
	cmd.SysProcAttr = attr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	testutil.Started(t, cmd.Process.Pid)
	return cmd
}

// wasKilled waits for the end of a process that must have been killed.
func wasKilled(t *testing.T, cmd *exec.Cmd) bool {
	t.Helper()
	if !awaitGroup(cmd.Process.Pid, time.Minute) {
		return false
	}
	_ = cmd.Wait()
	status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == unix.SIGKILL
}

// unharmed reports whether a process runs and no SIGKILL is on its way.
func unharmed(t *testing.T, cmd *exec.Cmd) bool {
	t.Helper()
	stat, err := readStat(cmd.Process.Pid)
	if err != nil || !stat.alive() {
		return false
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		var mask uint64
		if n, _ := fmt.Sscanf(line, "ShdPnd: %x", &mask); n == 1 && mask&(1<<(unix.SIGKILL-1)) != 0 {
			return false
		}
	}
	return true
}

func session(t *testing.T) int {
	t.Helper()
	sid, err := unix.Getsid(0)
	if err != nil {
		t.Fatal(err)
	}
	return sid
}

func TestTheGuardKillsWhatEbbToldAndWhatItCouldNotTell(t *testing.T) {
	group := &syscall.SysProcAttr{Setpgid: true}
	told := sleeper(t, group)
	ended := sleeper(t, group)
	untold := sleeper(t, group, "EBB_RUN=7-7")
	other := sleeper(t, group, "EBB_RUN=7-77")
	daemon := sleeper(t, &syscall.SysProcAttr{Setsid: true}, "EBB_RUN=7-7")

	pipe := fmt.Sprintf("+%d\n+%d\n-%d\nnonsense\n+1\n+0\n+-5\n", told.Process.Pid, ended.Process.Pid, ended.Process.Pid)
	Guard(strings.NewReader(pipe), "7-7", session(t))

	for name, cmd := range map[string]*exec.Cmd{"a group that has ended": ended, "a rank of another run": other, "a daemon": daemon} {
		if !unharmed(t, cmd) {
			t.Errorf("%s was killed", name)
		}
	}
	for name, cmd := range map[string]*exec.Cmd{"a group that ebb told": told, "a rank that ebb could not tell": untold} {
		if !wasKilled(t, cmd) {
			t.Errorf("%s was not killed", name)
		}
	}
}

func TestTheGuardDoesNothingAtARegularEnd(t *testing.T) {
	told := sleeper(t, &syscall.SysProcAttr{Setpgid: true}, "EBB_RUN=7-7")
	Guard(strings.NewReader(fmt.Sprintf("+%d\ndone\n", told.Process.Pid)), "7-7", session(t))
	if !unharmed(t, told) {
		t.Error("killed")
	}
}
