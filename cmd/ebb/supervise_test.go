package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// command is ebb, or rank, with arguments, in a directory of its own. It is killed when the test
// ends.
func command(t *testing.T, dir, name string, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	// Scripts of the tests call ebb and rank by their names.
	bin := filepath.Join(dir, "bin")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, link := range []string{"ebb", "rank"} {
		if err := os.Symlink(self, filepath.Join(bin, link)); err != nil && !os.IsExist(err) {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(filepath.Join(bin, name), args...)
	cmd.Dir = dir
	cmd.Env = append(environment(t, filepath.Base(dir)), "PATH="+bin+":"+os.Getenv("PATH"), "HOME="+dir, "DISK="+filepath.Join(dir, "disk"))
	t.Cleanup(func() {
		if cmd.Process != nil && cmd.ProcessState == nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	})
	return cmd
}

// withDisk makes ebb park on disk.
func withDisk(cmd *exec.Cmd) *exec.Cmd {
	cmd.Env = append(cmd.Env, "EBB_DEVICE=soft", "EBB_OFFLOAD_TRAIN=1", "EBB_OFFLOAD_TRAIN_TARGET=disk",
		"EBB_OFFLOAD_TRAIN_DISK_DIR="+filepath.Join(cmd.Dir, "disk"))
	return cmd
}

// output runs a command that must end with a status, and returns what it wrote.
func output(t *testing.T, cmd *exec.Cmd, status int) (stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if got := statusOf(cmd.Run()); got != status {
		t.Fatalf("%q: status %d, want %d\n%s%s", cmd.Args, got, status, &out, &errs)
	}
	return out.String(), errs.String()
}

func wantClean(t *testing.T, disk string) {
	t.Helper()
	if left := leftovers(disk); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

func TestEveryLineOfALongFloodComesThrough(t *testing.T) {
	lines := 400_000
	if long {
		lines *= 20
	}
	const text = "0123456789abcdefghijklmnopqrstuvwxyz0123456789abcdefghijklmnopqrstuvwxyz"
	cmd := command(t, workRoot(t), "ebb", "run", "--nproc-per-node", "2", "--", "sh", "-c",
		fmt.Sprintf("yes $RANK:%s | head -n %d", text, lines))
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var seen [2]int
	scanner := bufio.NewScanner(out)
	for scanner.Scan() {
		rank := -1
		for r := range seen {
			if line := scanner.Bytes(); len(line) == len("[rank 0] 0:")+len(text) && string(line[:len("[rank 0] 0:")]) == fmt.Sprintf("[rank %d] %d:", r, r) {
				rank = r
			}
		}
		if rank < 0 || !bytes.HasSuffix(scanner.Bytes(), []byte(text)) {
			t.Fatalf("after %v lines: %q", seen, scanner.Text())
		}
		seen[rank]++
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	if seen != [2]int{lines, lines} {
		t.Errorf("%v lines came through, want %d of each rank", seen, lines)
	}
}

func TestSixtyFourRanksOnOneDisk(t *testing.T) {
	dir := workRoot(t)
	cmd := withDisk(command(t, dir, "ebb", "run", "--nproc-per-node", "64", "--offload-train-disk-chunk-mb", "1", "--",
		"sh", "-c", "rank hold 2 touch ready-$RANK await all check"))
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if err := eventually("64 ranks", func() bool {
		ready, _ := filepath.Glob(filepath.Join(dir, "ready-*"))
		return len(ready) == 64
	}); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "all"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	wantClean(t, filepath.Join(dir, "disk"))
}

// ebb and its ranks are killed at random moments: the next gc leaves nothing, and a run beside
// them keeps what it has.
func TestKillAtRandomMomentsLeavesNothing(t *testing.T) {
	rounds := 6
	if long {
		rounds = 150
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))

	dir := workRoot(t)
	disk := filepath.Join(dir, "disk")
	live := withDisk(command(t, dir, "ebb", "run", "--job", "live", "--", "rank", "hold", "2", "touch", filepath.Join(dir, "live"), "await", filepath.Join(dir, "stop"), "check"))
	if err := live.Start(); err != nil {
		t.Fatal(err)
	}
	if err := eventually("the live run", func() bool { _, err := os.Stat(filepath.Join(dir, "live")); return err == nil }); err != nil {
		t.Fatal(err)
	}

	for round := range rounds {
		// A number of an earlier round may be another process's by now.
		old, _ := filepath.Glob(filepath.Join(dir, "pid-?"))
		for _, file := range old {
			if err := os.Remove(file); err != nil {
				t.Fatal(err)
			}
		}
		cmd := withDisk(command(t, dir, "ebb", "run", "--nproc-per-node", "3", "--", "sh", "-c", "rank hold 2 pid pid-$RANK wait; true"))
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		// The moments matter, not their number: none is one that the test waits for.
		time.Sleep(time.Duration(rng.IntN(150)) * time.Millisecond)
		if rng.IntN(3) == 0 {
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		} else {
			_ = cmd.Process.Kill()
		}
		_ = cmd.Wait()
		if err := eventually(fmt.Sprintf("round %d: the end of all ranks", round), func() bool {
			pids, _ := filepath.Glob(filepath.Join(dir, "pid-?"))
			for _, file := range pids {
				pid, _ := os.ReadFile(file)
				if runs(strings.TrimSpace(string(pid))) {
					return false
				}
			}
			return true
		}); err != nil {
			t.Fatal(err)
		}
		// Ranks that had not come to write their numbers end by themselves; what they hold is theirs
		// until then.
		if err := eventually(fmt.Sprintf("round %d: an empty disk", round), func() bool {
			output(t, command(t, dir, "ebb", "gc", "--disk-dir", disk), 0)
			for _, left := range leftovers(disk) {
				if !strings.Contains(left, "live") {
					return false
				}
			}
			return true
		}); err != nil {
			t.Fatalf("%v: %q", err, leftovers(disk))
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "stop"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := live.Wait(); err != nil {
		t.Errorf("the live run lost something: %v", err)
	}
	wantClean(t, disk)
}

// What needs a user without root's rights.
func TestDirectoriesThatTheUserMayNotWrite(t *testing.T) {
	dir := workRoot(t)
	locked := filepath.Join(dir, "locked")
	if err := os.Mkdir(locked, 0o500); err != nil {
		t.Fatal(err)
	}
	as := func(cmd *exec.Cmd) *exec.Cmd { return cmd }
	if os.Geteuid() == 0 {
		// Root without the right to pass over permissions.
		const less = "--bounding-set=-dac_override,-dac_read_search"
		if out, err := exec.Command("setpriv", less, "true").CombinedOutput(); err != nil {
			t.Skipf("root cannot give up rights here: %v: %s", err, out)
		}
		as = func(cmd *exec.Cmd) *exec.Cmd {
			less := exec.Command("setpriv", append([]string{less}, cmd.Args...)...)
			less.Dir, less.Env = cmd.Dir, cmd.Env
			return less
		}
	}
	for disk, word := range map[string]string{
		locked:                       "is not writable: ",
		filepath.Join(locked, "new"): "does not exist and cannot be made: ",
	} {
		cmd := command(t, dir, "ebb", "run", "--device", "soft", "--offload-train", "--offload-train-target", "disk", "--offload-train-disk-dir", disk, "--", "true")
		_, stderr := output(t, as(cmd), 2)
		if !strings.Contains(stderr, "ebb: disk directory "+disk+" "+word) || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%s: %q does not say %q in one line", disk, stderr, word)
		}
	}
}

// In a container ebb is the first process, to which all orphans come.
func TestAsFirstProcessItLeavesNoZombies(t *testing.T) {
	dir := workRoot(t)
	ebb := command(t, dir, "ebb", "run", "--nproc-per-node", "2", "--", "sh", "-c", `
		for i in 1 2 3 4 5 6 7 8 9 10; do (setsid true &); done
		# Zombies of the first process. ebb waits for them as it hears of them.
		zombies() { cat /proc/[0-9]*/stat 2>/dev/null | grep -c ') Z 1 '; }
		tries=0
		until [ $(zombies) = 0 ]; do
			tries=$((tries + 1))
			if [ $tries = 5000 ]; then exit 1; fi
		done
		echo none`)
	args := []string{"--pid", "--fork", "--mount-proc"}
	if os.Geteuid() != 0 {
		args = append(args, "--map-root-user")
	}
	if out, err := exec.Command("unshare", append(args, "true")...).CombinedOutput(); err != nil {
		t.Skipf("this machine allows no pid namespaces: %v: %s", err, out)
	}
	cmd := exec.Command("unshare", append(append(args, "--kill-child"), ebb.Args...)...)
	cmd.Dir, cmd.Env = ebb.Dir, ebb.Env
	stdout, _ := output(t, cmd, 0)
	if strings.Count(stdout, "none\n") != 2 {
		t.Errorf("output %q", stdout)
	}
}

// terminal is a new terminal, of which cmd becomes the first process.
func terminal(t *testing.T, cmd *exec.Cmd) (keyboard io.Writer, screen *screen) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { master.Close() })
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	tty, err := os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer tty.Close()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = tty, tty, tty
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	screen = newScreen(master)
	return master, screen
}

// screen collects what appears on a terminal.
type screen struct {
	lines chan string
	text  strings.Builder
}

func newScreen(r io.Reader) *screen {
	s := &screen{lines: make(chan string, 1000)}
	go func() {
		defer close(s.lines)
		b := bufio.NewReader(r)
		for {
			line, err := b.ReadString('\n')
			s.lines <- line
			if err != nil {
				return
			}
		}
	}()
	return s
}

// await reads the screen up to a line that holds text.
func (s *screen) await(t *testing.T, text string) {
	t.Helper()
	giveUp := time.After(hang)
	for {
		select {
		case line, more := <-s.lines:
			s.text.WriteString(line)
			if strings.Contains(line, text) {
				return
			}
			if !more {
				t.Fatalf("%q never appeared: %q", text, s.text.String())
			}
		case <-giveUp:
			t.Fatalf("%q never appeared: %q", text, s.text.String())
		}
	}
}

func press(t *testing.T, keyboard io.Writer, keys string) {
	t.Helper()
	if _, err := io.WriteString(keyboard, keys); err != nil {
		t.Fatal(err)
	}
}

func TestASingleRankHasTheTerminal(t *testing.T) {
	cmd := command(t, workRoot(t), "ebb", "exec", "--", "sh", "-c", "echo ready; read x; echo got $x; exit 5")
	keyboard, screen := terminal(t, cmd)
	screen.await(t, "ready")
	press(t, keyboard, "words\n")
	screen.await(t, "got words")
	if got := ends(cmd); got != 5 {
		t.Errorf("status %d, want 5", got)
	}
}

func TestCtrlCReachesTheRankOnce(t *testing.T) {
	cmd := command(t, workRoot(t), "ebb", "exec", "--", "sh", "-c", `trap 'echo interrupted' INT; echo ready; read x; echo then $x`)
	keyboard, screen := terminal(t, cmd)
	screen.await(t, "ready")
	press(t, keyboard, "\x03")
	screen.await(t, "interrupted")
	press(t, keyboard, "on\n")
	if got := ends(cmd); got != 0 && got != 130 {
		t.Errorf("status %d", got)
	}
	if strings.Count(screen.text.String(), "interrupted") != 1 {
		t.Errorf("%q", screen.text.String())
	}
}

func TestCtrlZStopsEbbToo(t *testing.T) {
	cmd := command(t, workRoot(t), "ebb", "exec", "--", "sh", "-c", "echo ready $$ now; read x; echo got $x")
	keyboard, screen := terminal(t, cmd)
	screen.await(t, "ready")
	press(t, keyboard, "\x1a")
	stopped := func(pid string) bool {
		stat, _ := os.ReadFile("/proc/" + pid + "/stat")
		return strings.Contains(string(stat), ") T ")
	}
	if err := eventually("ebb stops", func() bool { return stopped(strconv.Itoa(cmd.Process.Pid)) }); err != nil {
		t.Fatal(err)
	}
	_, rank, _ := strings.Cut(screen.text.String(), "ready ")
	rank, _, _ = strings.Cut(rank, " now")
	for range 50 {
		if !stopped(rank) {
			t.Fatal("the rank runs on while ebb is stopped")
		}
		time.Sleep(2 * time.Millisecond)
	}
	if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	press(t, keyboard, "words\n")
	screen.await(t, "got words")
	if got := ends(cmd); got != 0 {
		t.Errorf("status %d, want 0", got)
	}
}
