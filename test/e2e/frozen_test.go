package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ebb-offload/ebb/internal/testutil"
)

// mount is a file system that can be frozen and thawed.
type mount struct {
	dir          string
	freeze, thaw func() error
	reads        bool // when frozen, reads hang too
	server       int  // process that serves it; 0: none
}

// needs skips a test for which a program or the right to use it is missing.
func needs(t *testing.T, programs ...string) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("only root can mount and freeze a file system")
	}
	for _, program := range programs {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip(err)
		}
	}
}

// roomInMemory is an empty directory in memory, where that has room for so many bytes: calls have a second or two
// before they count as hanging, and those to a busy disk may take longer.
func roomInMemory(t *testing.T, bytes uint64) string {
	t.Helper()
	dir := testutil.InMemory(t)
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil || st.Bavail*uint64(st.Bsize) < bytes {
		return t.TempDir()
	}
	return dir
}

// An ext4 of its own on a loop device. fsfreeze(8) lets writers wait, in uninterruptible sleep.
func frozenExt4(t *testing.T) mount {
	needs(t, "mkfs.ext4", "fsfreeze", "mount", "umount", "losetup")
	if err := exec.Command("losetup", "-f").Run(); err != nil {
		t.Skipf("no loop device: %v", err)
	}
	const size = 400 << 20
	base := roomInMemory(t, size)
	image, dir := filepath.Join(base, "image"), filepath.Join(base, "mnt")
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(image, size); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	command(t, "mkfs.ext4", "-q", image)
	command(t, "mount", "-o", "loop", image, dir)
	fsfreeze := func(flag string) func() error {
		return func() error { return exec.Command("fsfreeze", flag, dir).Run() }
	}
	t.Cleanup(func() {
		_ = fsfreeze("-u")()
		unmount(t, dir)
	})
	return mount{dir: dir, freeze: fsfreeze("-f"), thaw: fsfreeze("-u")}
}

// A FUSE file system whose server is stopped: no call there has an answer.
func stoppedServer(t *testing.T) mount {
	needs(t, "bindfs", "fusermount3")
	base := t.TempDir()
	source, dir := filepath.Join(base, "source"), filepath.Join(base, "mnt")
	for _, d := range []string{source, dir} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	server := exec.Command("bindfs", "-f", source, dir)
	if err := server.Start(); err != nil {
		t.Skip(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Wait() }()
	signal := func(s syscall.Signal) func() error { return func() error { return server.Process.Signal(s) } }
	t.Cleanup(func() {
		_ = server.Process.Signal(syscall.SIGCONT)
		if out, err := exec.Command("fusermount3", "-u", dir).CombinedOutput(); err != nil {
			t.Errorf("unmount: %v: %s", err, out)
			_ = server.Process.Kill()
		}
		if err := <-ended; err != nil {
			t.Logf("bindfs: %v", err)
		}
	})
	device := func(path string) uint64 {
		var st syscall.Stat_t
		if err := syscall.Stat(path, &st); err != nil {
			t.Fatal(err)
		}
		return st.Dev
	}
	for deadline := time.Now().Add(hangs); device(dir) == device(base); {
		select {
		case err := <-ended:
			ended <- err
			t.Skipf("bindfs has ended: %v", err)
		default:
		}
		if time.Now().After(deadline) {
			t.Skip("bindfs does not mount")
		}
	}
	return mount{dir: dir, freeze: signal(syscall.SIGSTOP), thaw: signal(syscall.SIGCONT), reads: true, server: server.Process.Pid}
}

// obey does what is asked for by files in a directory until the process has ended. The last time it
// is the process's exit that hangs: it thaws the disk when what is left has been said.
func (m mount) obey(t *testing.T, control string, said func() string, ended <-chan outcome) outcome {
	done := map[string]bool{}
	for exiting := false; ; {
		select {
		case o := <-ended:
			return o
		case <-time.After(5 * time.Millisecond):
		}
		if !exiting && strings.Contains(said(), "left behind") {
			exiting = true
			if err := m.thaw(); err != nil {
				t.Error(err)
			}
		}
		asked, err := filepath.Glob(filepath.Join(control, "*[ew]"))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range asked {
			if done[path] || strings.HasSuffix(path, ".done") {
				continue
			}
			done[path] = true
			act := m.thaw
			if strings.HasSuffix(path, "freeze") {
				act = m.freeze
			}
			if err := act(); err != nil {
				t.Errorf("%s: %v", filepath.Base(path), err)
			}
			if err := os.WriteFile(path+".done", nil, 0o600); err != nil {
				t.Error(err)
			}
		}
	}
}

// A real file system that freezes: the rank's pause and resume fail with the path and lose nothing, a
// retry works when the disk answers again, and its exit says what it leaves, for the launcher to
// remove.
func TestADiskThatFreezesUnderARank(t *testing.T) {
	if !long() {
		t.Skip("takes seconds of waiting: make test-long")
	}
	for _, c := range []struct {
		name string
		make func(t *testing.T) mount
	}{{"frozen ext4", frozenExt4}, {"stopped FUSE server", stoppedServer}} {
		t.Run(c.name, func(t *testing.T) {
			n := newNode(t, 256)
			m := c.make(t)
			control, stderr := t.TempDir(), filepath.Join(t.TempDir(), "stderr")
			n.env = append(n.env, "EBB_IO_TIMEOUT=2")
			disk := filepath.Join(m.dir, "disk")
			flags := []string{"--offload-train", "--offload-train-target", "disk", "--offload-train-disk-chunk-mb", "16", "--offload-train-disk-dir", disk}
			cmd := n.ebbRun(t, flags, "frozen.py", disk, control, strconv.FormatBool(m.reads))
			log, err := os.Create(stderr)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = log.Close() }()
			cmd.Stderr = log
			said := func() string {
				text, err := os.ReadFile(stderr)
				if err != nil {
					t.Fatal(err)
				}
				return string(text)
			}
			ended := make(chan outcome, 1)
			go func() { ended <- run(t, cmd) }()
			o := m.obey(t, control, said, ended)
			t.Log(strings.TrimSpace(o.stdout))
			left := lines(said(), "exit: 1 backup file ")
			if o.status != 0 || len(left) != 1 || !strings.Contains(left[0], disk) {
				t.Errorf("%q: %v%s", left, o, said())
			}
			t.Log(strings.Join(left, ""))
			wantNoFiles(t, m.dir)
		})
	}
}
