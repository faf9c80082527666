package rankdir

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func self(t *testing.T) Owner {
	t.Helper()
	o, err := Self()
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// ownerOf is the owner with which a process of this user names its files.
func ownerOf(t *testing.T, pid int) Owner {
	t.Helper()
	o := self(t)
	p, err := readProcess("/proc/" + strconv.Itoa(pid))
	if err != nil {
		t.Fatal(err)
	}
	o.PID, o.StartTime = pid, p.start
	return o
}

func TestDataFileNamesRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := Owner{
			BootID:       rapid.StringMatching(`[0-9a-f]{8}`).Draw(t, "boot"),
			PIDNamespace: rapid.Uint64().Draw(t, "namespace"),
			PID:          rapid.IntRange(1, 1<<31-1).Draw(t, "pid"),
			StartTime:    rapid.Uint64().Draw(t, "start"),
			UID:          -1,
		}
		seq := rapid.Uint64().Draw(t, "seq")
		name := o.DataFile(seq)
		got, gotSeq, ok := ParseDataFile(name)
		if !ok || got != o || gotSeq != seq {
			t.Fatalf("%s: %+v %d %v, want %+v %d", name, got, gotSeq, ok, o, seq)
		}
	})
}

func TestThisProcessNamesItsFiles(t *testing.T) {
	o := self(t)
	name := o.DataFile(12)
	if !strings.HasPrefix(name, o.FilePrefix()) || !strings.HasPrefix(name, "ebb-"+o.BootID[:8]+"-") || !IsDataFile(name) {
		t.Errorf("data file %s, prefix %s, boot id %s", name, o.FilePrefix(), o.BootID)
	}
	if got, _, _ := ParseDataFile(name); !Alive(got) || Dead(got, true) {
		t.Error("the owner of this process's files does not live")
	}
}

func TestOnlyExactDataFileNamesCount(t *testing.T) {
	good := "ebb-0123abcd-f0000001-42-1000-7.bak"
	if !IsDataFile(good) {
		t.Fatalf("%s is not taken for a data file", good)
	}
	for _, bad := range []string{
		"", "ebb", ".bak", "ebb-.bak", good + " ", " " + good, good + "\n", good + "~", good + ".bak", "x" + good, strings.ToUpper(good),
		"ebb-0123abc-f0000001-42-1000-7.bak", "ebb-0123abcde-f0000001-42-1000-7.bak", "ebb-0123abcg-f0000001-42-1000-7.bak",
		"ebb-0123abcd--42-1000-7.bak", "ebb-0123abcd-f0000001--1000-7.bak", "ebb-0123abcd-f0000001-42-1000-.bak",
		"ebb-0123abcd-f0000001-42-1000.bak", "ebb-0123abcd-f0000001-42-1000-7-8.bak", "ebb-0123abcd-f0000001-42-1000-7.bat",
		"ebb-0123abcd-0f0000001-42-1000-7.bak", "ebb-0123abcd-f0000001-042-1000-7.bak", "ebb-0123abcd-f0000001-42-01000-7.bak",
		"ebb-0123abcd-f0000001-42-1000-07.bak", "ebb-0123abcd-f0000001-0-1000-7.bak", "ebb-0123abcd-f0000001--42-1000-7.bak",
		"ebb-0123abcd-f0000001-42-1000-99999999999999999999.bak", "ebb-0123abcd-f0000001-9999999999-1000-7.bak",
		"ebb-0123abcd-F0000001-42-1000-7.bak", "ebb-0123abcd-f0000001-42-1000-+7.bak", "ebb_0123abcd_f0000001_42_1000_7.bak",
	} {
		if IsDataFile(bad) {
			t.Errorf("%q is taken for a data file", bad)
		}
	}
}

func TestAliveUntilDead(t *testing.T) {
	c := start(t, "wait")
	o := ownerOf(t, c.pid())
	if !Alive(o) || Dead(o, true) {
		t.Error("a running process does not live")
	}
	c.kill()
	if Alive(o) || !Dead(o, true) || !Dead(o, false) {
		t.Error("a killed process is not dead")
	}
}

// TestZombieIsDead: a killed process that nobody has waited for holds nothing any more.
func TestZombieIsDead(t *testing.T) {
	c := start(t, "wait")
	o := ownerOf(t, c.pid())
	if err := c.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	until(func() bool { return Dead(o, true) }) // its threads go one by one
	if p, err := readProcess("/proc/" + strconv.Itoa(c.pid())); err != nil || p.state != 'Z' || Alive(o) {
		t.Errorf("state %c, alive: %v (error: %v)", p.state, Alive(o), err)
	}
	_ = c.cmd.Wait()
}

// TestOnlyTheFirstThreadEnded: the process shows as a zombie and lives.
func TestOnlyTheFirstThreadEnded(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("needs python3, for a process whose first thread ends")
	}
	c := exec.Command(python, "-c", `
import ctypes, threading
libc = ctypes.CDLL(None)
threading.Thread(target=libc.pause).start()
print("ready", flush=True)
libc.pthread_exit(None)
`)
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	o := ownerOf(t, c.Process.Pid)
	until(func() bool {
		p, err := readProcess("/proc/" + strconv.Itoa(c.Process.Pid))
		return err == nil && p.state == 'Z'
	})
	if !Alive(o) || Dead(o, true) {
		t.Error("a process with a running thread is not alive")
	}
}

// until waits for something that is bound to happen.
func until(happened func() bool) {
	for !happened() {
		time.Sleep(time.Millisecond)
	}
}

// unshared is a command that runs this binary in new namespaces.
func unshared(t *testing.T, options ...string) *exec.Cmd {
	t.Helper()
	if err := exec.Command("unshare", append(options, "true")...).Run(); err != nil {
		t.Skipf("needs root and unshare %v: %v", options, err)
	}
	return exec.Command("unshare", append(options, os.Args[0])...)
}

// TestAnotherTimeNamespace: others do not read the start time there that a process reads of
// itself. So it is not mistaken for a later process with its pid.
func TestAnotherTimeNamespace(t *testing.T) {
	dir := t.TempDir()
	c := launchBy(t, unshared(t, "--time", "--boottime", "100000", "--fork"), "files", dir).ready()
	list, err := os.ReadDir(dir)
	if err != nil || len(list) != 1 {
		t.Fatal(list, err)
	}
	o, _, _ := ParseDataFile(list[0].Name())
	if p, err := readProcess("/proc/" + strconv.Itoa(o.PID)); err != nil || p.start == o.StartTime {
		t.Fatalf("start time %d, in its namespace %d (error: %v)", p.start, o.StartTime, err)
	}
	if Dead(o, true) || !running(o) {
		t.Error("a process in another time namespace is taken for dead")
	}
	if r, err := SweepBare(dir, nil, SweepOptions{}); err != nil || len(r) != 1 || r[0].State != KeptForeign || len(r[0].Files) > 0 {
		t.Errorf("sweep while it lives: %+v, %v", r, err)
	}
	c.end()
	if r, err := SweepBare(dir, nil, SweepOptions{}); err != nil || len(r) != 1 || r[0].State != Reclaimed || len(r[0].Files) != 1 {
		t.Errorf("sweep after its end: %+v, %v", r, err)
	}
}

// TestHiddenProcess: /proc says of a living process that it does not exist.
func TestHiddenProcess(t *testing.T) {
	cmd := unshared(t, "--mount", "--pid", "--fork")
	dir, err := os.MkdirTemp("", "rankdir")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chown(dir, nobody, nobody); err != nil {
		t.Fatal(err)
	}
	c := launchBy(t, cmd, "hide", dir)
	said, _ := io.ReadAll(c.out)
	if err := c.cmd.Wait(); err != nil || !strings.Contains(string(said), "State:"+string(KeptForeign)) {
		t.Errorf("sweep: %s, %v", said, err)
	}
	if list, err := os.ReadDir(dir); err != nil || len(list) != 1 {
		t.Errorf("files: %v, %v; want the one of the living process", list, err)
	}
}

func TestOthersCannotBeJudged(t *testing.T) {
	o := self(t)
	reused := o
	reused.StartTime++
	if Alive(reused) || !Dead(reused, true) {
		t.Error("a process that had this pid earlier is not dead")
	}
	elsewhere := o
	elsewhere.PIDNamespace++
	if Alive(elsewhere) || Dead(elsewhere, true) {
		t.Error("a process of another pid namespace is judged")
	}
	otherBoot := o
	otherBoot.BootID = "00000000-0000-0000-0000-000000000000"
	if Alive(otherBoot) || !Dead(otherBoot, true) || Dead(otherBoot, false) {
		t.Error("a process of another boot is dead on a local file system, and cannot be judged on a shared one")
	}
	if Dead(Owner{}, true) || Alive(Owner{}) {
		t.Error("an owner without a boot id is judged")
	}
}
