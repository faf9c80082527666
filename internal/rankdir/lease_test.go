package rankdir

import (
	"errors"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestLeaseKeepsTheDirectoryFromReclaim(t *testing.T) {
	base := t.TempDir()
	c := claim(t, base, "job")
	engine := start(t, "hold", c.LeasePath())
	r, err := c.Reclaim()
	var busy *InUseError
	if !errors.As(err, &busy) || busy.PID != engine.pid() || r.HeldBy != engine.pid() || r.State != Live {
		t.Errorf("reclaim under a lease: %+v, %v; want ErrInUse by pid %d", r, err, engine.pid())
	}
	if _, err := os.Stat(c.Dir()); err != nil {
		t.Error(err)
	}
	engine.end()
	if r, err := c.Reclaim(); err != nil || r.State != Reclaimed {
		t.Errorf("reclaim after the lease: %+v, %v", r, err)
	}
}

// TestLeaseEndsWithTheProcess, whatever ends it, and although its child lives on with the
// descriptor.
func TestLeaseEndsWithTheProcess(t *testing.T) {
	for what, todo := range map[string][]string{"alone": {}, "with a child that inherits the descriptor": {"child"}} {
		t.Run(what, func(t *testing.T) {
			c := claim(t, t.TempDir(), "job")
			engine := start(t, append([]string{"hold", c.LeasePath()}, todo...)...)
			if _, err := c.Reclaim(); !errors.Is(err, ErrInUse) {
				t.Fatalf("reclaim under a lease: %v", err)
			}
			if err := engine.cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			if _, err := engine.cmd.Process.Wait(); err != nil {
				t.Fatal(err)
			}
			if r, err := c.Reclaim(); err != nil || r.State != Reclaimed {
				t.Errorf("reclaim after SIGKILL: %+v, %v", r, err)
			}
			_ = engine.in.Close()
		})
	}
}

// TestLeaseIsShared by the processes of a rank: it lasts until the last one.
func TestLeaseIsShared(t *testing.T) {
	c := claim(t, t.TempDir(), "job")
	one, two := start(t, "hold", c.LeasePath()), start(t, "hold", c.LeasePath())
	one.kill()
	if r, err := c.Reclaim(); !errors.Is(err, ErrInUse) || r.HeldBy != two.pid() {
		t.Errorf("reclaim with one of two gone: %+v, %v", r, err)
	}
	two.kill()
	if _, err := c.Reclaim(); err != nil {
		t.Error(err)
	}
}

// TestClosingOneUseKeepsTheOthers: a process loses its locks on a file when it closes any
// descriptor of it, so claims, leases and sweeps of one process share one.
func TestClosingOneUseKeepsTheOthers(t *testing.T) {
	base := t.TempDir()
	c := claim(t, base, "job")
	one, err := HoldLease(c.LeasePath())
	if err != nil {
		t.Fatal(err)
	}
	two, err := HoldLease(c.LeasePath())
	if err != nil {
		t.Fatal(err)
	}
	if err := one.Release(); err != nil {
		t.Fatal(err)
	}
	for _, dry := range []bool{true, false} {
		if r, err := Sweep(base, SweepOptions{Dry: dry}); err != nil || len(r) != 1 || r[0].State != Live {
			t.Errorf("sweep by the process itself: %+v, %v", r, err)
		}
	}
	if _, err := NewClaim(base, testIdentity("job"), ClaimOptions{}); !errors.Is(err, ErrInUse) {
		t.Errorf("a second claim in the process: %v", err)
	}
	// Seen from another process, both locks are there.
	other := launch(t, "claim", base, "job")
	if line, _ := other.out.ReadString('\n'); !strings.Contains(line, "in use by a live supervisor") {
		t.Errorf("a claim by another process: %q", line)
	}
	c.Close()
	other = launch(t, "claim", base, "job")
	if line, _ := other.out.ReadString('\n'); !strings.Contains(line, "in use by a live rank process") {
		t.Errorf("a claim by another process when only the lease is held: %q", line)
	}
	for range 2 {
		if err := two.Release(); err != nil {
			t.Fatal(err)
		}
	}
	start(t, "claim", base, "job").end()
}

func TestLeaseOfAnEndedRun(t *testing.T) {
	base := t.TempDir()
	c := claim(t, base, "job")
	if _, err := c.Reclaim(); err != nil {
		t.Fatal(err)
	}
	if _, err := HoldLease(c.LeasePath()); !errors.Is(err, unix.ENOENT) || !strings.Contains(err.Error(), c.LeasePath()) {
		t.Errorf("a lease that is gone: %v, want ENOENT that names it", err)
	}
	if _, err := os.Stat(c.LeasePath()); err == nil {
		t.Error("it was made again")
	}
}

func TestLeaseThatIsNoLease(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/file", "theirs")
	if err := errors.Join(os.Symlink(dir+"/file", dir+"/link"), os.Mkdir(dir+"/dir", 0o700), unix.Mkfifo(dir+"/fifo", 0o600)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"link", "dir", "fifo"} {
		if l, err := HoldLease(dir + "/" + name); err == nil {
			t.Errorf("%s was taken for a lease", name)
			_ = l.Release()
		}
	}
}

// TestReleaseLeavesAFileThatTookTheDescriptor: a program that closes descriptors it does not know
// may have opened a file of its own under the lease's number.
func TestReleaseLeavesAFileThatTookTheDescriptor(t *testing.T) {
	dir := t.TempDir()
	path := dir + "/x.lease"
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := HoldLease(path)
	if err != nil {
		t.Fatal(err)
	}
	other, err := os.Create(dir + "/other")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Close() }()
	number := l.file.fd
	if err := unix.Dup2(int(other.Fd()), number); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(number) }()
	if err := l.Release(); err != nil {
		t.Errorf("release: %v", err)
	}
	if _, err := unix.Write(number, []byte("still open")); err != nil {
		t.Errorf("the program's own file was closed: %v", err)
	}
}
