package rankdir

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// childEnv makes the test binary a child process of a test: its value is what to do.
const childEnv = "RANKDIR_TEST_CHILD"

func TestMain(m *testing.M) {
	if todo := os.Getenv(childEnv); todo != "" {
		if err := beChild(strings.Split(todo, "\n")); err != nil {
			fmt.Println("error:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// beChild does what a test asked for. "ready" on standard output says that it is in place; it
// stays so until standard input ends.
func beChild(args []string) error {
	wait := func() {
		fmt.Println("ready")
		_, _ = io.Copy(io.Discard, os.Stdin)
	}
	switch args[0] {
	case "wait":
		wait()
	case "hold": // a lease, as an engine does
		l, err := HoldLease(args[1])
		if err != nil {
			return err
		}
		if len(args) > 2 { // a child of its own inherits the descriptor and outlives it
			c := exec.Command("cat")
			c.ExtraFiles = []*os.File{os.NewFile(uintptr(l.file.fd), "lease")}
			c.Stdin, c.Stdout = os.Stdin, os.Stdout // ends with the test
			if err := c.Start(); err != nil {
				return err
			}
			defer func() { _ = c.ExtraFiles[0].Sync() }() // keeps it from being closed by a finalizer
		}
		wait()
		return l.Release()
	case "claim", "claim-files": // an identity, as a supervisor does
		c, err := NewClaim(args[1], testIdentity(args[2]), ClaimOptions{})
		if err != nil {
			return err
		}
		if args[0] == "claim-files" {
			if err := writeDataFiles(c.Dir(), 2); err != nil {
				return err
			}
		}
		wait()
		_, err = c.Reclaim()
		return err
	case "change": // an entry, until the process named has opened its lease
		b, err := openBase(args[1], true)
		if err != nil {
			return err
		}
		f, _, err := b.lockEntry(testIdentity(args[2]), true)
		if err != nil {
			return err
		}
		if err := f.takeDead(); err != nil {
			return err
		}
		fmt.Println("ready")
		until(func() bool { return hasOpen(args[3], f.path) })
		f.unlockChange()
		f.put()
	case "files": // of its own in a directory, as a paused process
		if err := writeDataFiles(args[1], 1); err != nil {
			return err
		}
		wait()
	case "hidden-files": // the same, by a process that others of its user may not look into
		if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
			return err
		}
		if err := writeDataFiles(args[1], 1); err != nil {
			return err
		}
		wait()
	case "sweep-bare":
		if _, err := os.Stat("/proc/" + args[2]); !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("process %s is not hidden: %w", args[2], err)
		}
		r, err := SweepBare(args[1], nil, SweepOptions{})
		fmt.Printf("%+v\n", r)
		return err
	case "hide": // processes from those who may not look into them, then sweep
		return beHider(args[1])
	case "race":
		return beRacer(args[1], args[2])
	default:
		return fmt.Errorf("child asked to %q", args)
	}
	return nil
}

// beHider sweeps beside a living process that /proc does not show. It is the first process of
// pid and mount namespaces of its own.
func beHider(dir string) error {
	if err := unix.Mount("proc", "/proc", "proc", 0, "hidepid=2"); err != nil {
		return err
	}
	as := func(todo ...string) *exec.Cmd {
		c := exec.Command("/proc/self/exe")
		c.Env = append(os.Environ(), childEnv+"="+strings.Join(todo, "\n"))
		c.Stderr = os.Stderr
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
		return c
	}
	owner := as("hidden-files", dir)
	in, err := owner.StdinPipe()
	if err != nil {
		return err
	}
	out, err := owner.StdoutPipe()
	if err != nil {
		return err
	}
	if err := owner.Start(); err != nil {
		return err
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		return fmt.Errorf("owner: %q, %w", line, err)
	}
	sweep := as("sweep-bare", dir, strconv.Itoa(owner.Process.Pid))
	sweep.Stdout = os.Stdout
	err = sweep.Run()
	_ = in.Close()
	return errors.Join(err, owner.Wait())
}

// nobody is a user without rights.
const nobody = 65534

// hasOpen reports whether a process has a file open.
func hasOpen(pid, path string) bool {
	list, _ := os.ReadDir("/proc/" + pid + "/fd")
	return slices.ContainsFunc(list, func(e os.DirEntry) bool {
		link, _ := os.Readlink("/proc/" + pid + "/fd/" + e.Name())
		return link == path
	})
}

// testIdentity is an identity named by one word.
func testIdentity(job string) Identity { return Identity{Job: job, Role: "actor", Cell: 0, Rank: 1} }

// writeDataFiles makes n data files of this process.
func writeDataFiles(dir string, n int) error {
	self, err := Self()
	if err != nil {
		return err
	}
	for i := range n {
		if err := os.WriteFile(filepath.Join(dir, self.DataFile(uint64(i))), []byte("bytes of a paused actor"), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// child is a process started by start.
type child struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.Closer
	out *bufio.Reader
}

// start runs this binary as a child and returns when it says ready.
func start(t *testing.T, todo ...string) *child {
	t.Helper()
	return launch(t, todo...).ready()
}

// ready waits for the child to say so.
func (c *child) ready() *child {
	c.t.Helper()
	if line, err := c.out.ReadString('\n'); line != "ready\n" {
		c.t.Fatalf("child: %q (error: %v)", line, err)
	}
	return c
}

func launch(t *testing.T, todo ...string) *child {
	t.Helper()
	return launchBy(t, exec.Command(os.Args[0]), todo...)
}

// launchBy runs this binary as a child by a command that ends in it.
func launchBy(t *testing.T, cmd *exec.Cmd, todo ...string) *child {
	t.Helper()
	c := &child{t: t, cmd: cmd}
	c.cmd.Env = append(os.Environ(), childEnv+"="+strings.Join(todo, "\n"))
	c.cmd.Stderr = os.Stderr
	in, err := c.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	c.in, c.out = in, bufio.NewReader(out)
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if c.cmd.ProcessState == nil {
			_ = c.cmd.Process.Kill()
			_ = c.cmd.Wait()
		}
	})
	return c
}

func (c *child) pid() int { return c.cmd.Process.Pid }

// kill ends the child with SIGKILL and waits for it.
func (c *child) kill() {
	c.t.Helper()
	if err := c.cmd.Process.Kill(); err != nil {
		c.t.Fatal(err)
	}
	_ = c.cmd.Wait()
}

// end lets the child finish in its own way.
func (c *child) end() {
	c.t.Helper()
	_ = c.in.Close()
	rest, _ := io.ReadAll(c.out)
	if err := c.cmd.Wait(); err != nil {
		c.t.Errorf("child: %v: %s", err, rest)
	}
}

// claim makes a claim that is closed with the test.
func claim(t *testing.T, base, job string) *Claim {
	t.Helper()
	c, err := NewClaim(base, testIdentity(job), ClaimOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// deadRank leaves in base what a rank leaves that was killed with its supervisor.
func deadRank(t *testing.T, base, job string) (dir string) {
	t.Helper()
	start(t, "claim-files", base, job).kill()
	return testIdentity(job).Path(base)
}

// tree describes all that is under a directory: names, kinds, modes, owners, inodes, times of
// change and contents.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		text := fmt.Sprintf("mode %o owner %d inode %d links %d", st.Mode, st.Uid, st.Ino, st.Nlink)
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFREG:
			content, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			text += fmt.Sprintf(" changed %v content %q", st.Ctim, content)
		case unix.S_IFLNK:
			target, err := os.Readlink(path)
			if err != nil {
				return err
			}
			text += " to " + target
		case unix.S_IFDIR:
			text = fmt.Sprintf("mode %o owner %d inode %d", st.Mode, st.Uid, st.Ino)
		}
		name, err := filepath.Rel(dir, path)
		all[name] = text
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// paths are the names in a tree, sorted, without the directories that ebb keeps.
func paths(tree map[string]string) (names []string) {
	for name := range tree {
		if name != "." && name != ".ebb" {
			names = append(names, name)
		}
	}
	sort.Strings(names)
	return names
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(content), 0o600)); err != nil {
		t.Fatal(err)
	}
}

// beRacer claims identities, uses and reclaims them in a loop, beside others that do the same.
// With a mode of "die" it kills itself at a random moment.
func beRacer(base, mode string) error {
	if mode == "die" {
		go func() {
			time.Sleep(time.Duration(rand.IntN(20_000)) * time.Microsecond)
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}()
	}
	for i := 0; mode == "die" || i < 60; i++ {
		if err := raceOnce(base, raceIdentity(rand.IntN(4)), uint64(i)); err != nil {
			return err
		}
		if _, err := Sweep(base, SweepOptions{Dry: i%3 == 0}); err != nil {
			return err
		}
	}
	return nil
}

// raceIdentity is one of a few, two of each job.
func raceIdentity(n int) Identity {
	return Identity{Job: "job" + strconv.Itoa(n/2%2), Role: "actor", Rank: n % 2}
}

// raceOnce makes sure that nobody touches a data file while its claim or lease lives.
func raceOnce(base string, id Identity, seq uint64) error {
	c, err := NewClaim(base, id, ClaimOptions{})
	if errors.Is(err, ErrInUse) {
		return nil
	}
	if err != nil {
		return err
	}
	defer c.Close()
	l, err := HoldLease(c.LeasePath())
	if err != nil {
		return fmt.Errorf("lease under a claim: %w", err)
	}
	self, err := Self()
	if err != nil {
		return err
	}
	// Of a process that is no more, so that only the lease protects it.
	self.PID, self.StartTime = 1<<30, seq
	path := filepath.Join(c.Dir(), self.DataFile(seq))
	if err := os.WriteFile(path, []byte(id.String()), 0o600); err != nil {
		return err
	}
	if _, err := Sweep(base, SweepOptions{}); err != nil {
		return err
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != id.String() {
		return fmt.Errorf("a live file: %q, %w", got, err)
	}
	if _, err := c.Reclaim(); !errors.Is(err, ErrInUse) {
		return fmt.Errorf("reclaim under a lease: %w", err)
	}
	if _, err := os.Stat(path); err != nil {
		return fmt.Errorf("a live file after a reclaim that was refused: %w", err)
	}
	if err := l.Release(); err != nil {
		return err
	}
	r, err := c.Reclaim()
	if err != nil || r.State != Reclaimed || len(r.Files) != 1 {
		return fmt.Errorf("reclaim: %+v, %w", r, err)
	}
	return nil
}
