package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// nobody is a user without rights.
const nobody = 65534

// sharedFolder is a folder that every user may enter, outside of this run's own; as nobody runs a program.
// Skips where this user is not root, or where nobody cannot run ebb from here.
func sharedFolder(t *testing.T) (folder string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("becoming another user needs root")
	}
	folder, err := os.MkdirTemp(filepath.Join(root, "build"), "e2e-users-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(folder); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chmod(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	if out, err := asNobody(exec.Command(filepath.Join(root, "dist/bin/ebb"), "version")).CombinedOutput(); err != nil {
		t.Skipf("another user cannot run ebb from here: %v: %s", err, out)
	}
	return folder
}

func asNobody(cmd *exec.Cmd) *exec.Cmd {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Credential = &syscall.Credential{Uid: nobody, Gid: nobody}
	cmd.Dir = "/"
	return cmd
}

// tryIt is a run that parks in a directory, if it is allowed to.
func tryIt(t *testing.T, n *node, disk string) *exec.Cmd {
	t.Helper()
	cmd := n.process(t, filepath.Join(root, "dist/bin/ebb"), append(append([]string{"run", "--device", "soft", "--job", "bystander"}, diskFlags(disk)...), "--", "true")...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C.UTF-8", "SOFTGPU_NODE=" + n.name + "-other", "SOFTGPU_MEM_MB=64"}
	return cmd
}

func collectIn(t *testing.T, n *node, disk string) *exec.Cmd {
	t.Helper()
	return n.process(t, filepath.Join(root, "dist/bin/ebb"), "gc", "--disk-dir", disk)
}

// refused runs a command that must refuse a directory, in one line that names it.
func refused(t *testing.T, what string, cmd *exec.Cmd, disk string) {
	t.Helper()
	o := run(t, cmd)
	if o.status != 2 && o.status != 73 || strings.Count(o.stderr, "\n") != 1 || !strings.Contains(o.stderr, disk) {
		t.Errorf("%s: want a refusal in one line, got %v", what, o)
	}
}

// What one user has parked is refused to all others, and theirs to this one, root or not.
func TestAnotherUsersDirectoryIsRefused(t *testing.T) {
	folder := sharedFolder(t)
	n := newNode(t, 128)
	disk := filepath.Join(folder, "disk")
	live := parkedBystander(t, n, disk)

	for _, mode := range []os.FileMode{0o700, 0o755} {
		if err := os.Chmod(disk, mode); err != nil {
			t.Fatal(err)
		}
		refused(t, "another user's run", asNobody(tryIt(t, n, disk)), disk)
		refused(t, "another user's gc", asNobody(collectIn(t, n, disk)), disk)
	}
	live.resumes(t)

	theirs := filepath.Join(folder, "theirs")
	if err := os.Mkdir(theirs, 0o700); err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(theirs, "theirs"), []byte("theirs"))
	if err := os.Chown(theirs, nobody, nobody); err != nil {
		t.Fatal(err)
	}
	refused(t, "root's run in another user's directory", tryIt(t, n, theirs), theirs)
	refused(t, "root's gc in another user's directory", collectIn(t, n, theirs), theirs)
	if list, err := os.ReadDir(theirs); err != nil || len(list) != 1 {
		t.Errorf("in another user's directory there is %v, %v", list, err)
	}
	// The other user's own works, beside all that.
	if o := run(t, asNobody(tryIt(t, n, theirs))); o.status != 0 {
		t.Errorf("another user in a directory of their own: %v", o)
	}
	if left := below(t, theirs, "theirs"); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

// In a folder where all may write, another user can be there first: with a directory, with a symbolic
// link to one of this user's, or with a link that leads nowhere.
func TestWhatAnotherUserPlantedIsNotFollowed(t *testing.T) {
	folder := sharedFolder(t)
	n := newNode(t, 128)
	scratch := filepath.Join(folder, "scratch")
	precious := filepath.Join(folder, "precious")
	for dir, mode := range map[string]os.FileMode{scratch: 0o777 | os.ModeSticky, precious: 0o700} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(dir, mode); err != nil {
			t.Fatal(err)
		}
	}
	writeFile(t, filepath.Join(precious, "ebb-0123abcd-f0000001-42-1000-7.bak"), []byte("a look-alike of a dead process's file"))
	for what, plant := range map[string][]string{
		"a directory":        {"mkdir", filepath.Join(scratch, "a")},
		"a link to ours":     {"ln", "-s", precious, filepath.Join(scratch, "b")},
		"a link to nowhere":  {"ln", "-s", filepath.Join(folder, "nowhere"), filepath.Join(scratch, "c")},
		"a file":             {"touch", filepath.Join(scratch, "d")},
		"a fifo":             {"mkfifo", filepath.Join(scratch, "e")},
		"a writable-for-all": {"mkdir", "-m", "777", filepath.Join(scratch, "f")},
	} {
		if out, err := asNobody(exec.Command(plant[0], plant[1:]...)).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v: %s", plant, err, out)
		}
		disk := plant[len(plant)-1]
		refused(t, "run in "+what, tryIt(t, n, disk), disk)
		refused(t, "gc in "+what, collectIn(t, n, disk), disk)
	}
	if _, err := os.Lstat(filepath.Join(folder, "nowhere")); !os.IsNotExist(err) {
		t.Errorf("something was made where the link led to: %v", err)
	}
	if list, err := os.ReadDir(precious); err != nil || len(list) != 1 {
		t.Errorf("where the link led to there is %v, %v", list, err)
	}
}
