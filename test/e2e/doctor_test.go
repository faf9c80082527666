package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// diagnosis is what ebb doctor --json says.
type diagnosis struct {
	OK     bool `json:"ok"`
	Checks []struct {
		Theme, Check, Status, Text, Remedy string
	} `json:"checks"`
}

// row is the verdict and the words of a check of a theme, such as "disk /d".
func (d diagnosis) row(t *testing.T, theme, check string) (status, words string) {
	t.Helper()
	for _, c := range d.Checks {
		if c.Theme == theme && c.Check == check {
			return c.Status, c.Text + " -> " + c.Remedy
		}
	}
	t.Fatalf("no row %s of %s in %+v", check, theme, d)
	return "", ""
}

// failed is the one check of a theme that failed.
func (d diagnosis) failed(t *testing.T, theme string) string {
	t.Helper()
	var found []string
	for _, c := range d.Checks {
		if c.Theme == theme && c.Status == "FAIL" {
			found = append(found, c.Check)
		}
	}
	if len(found) != 1 {
		t.Fatalf("%s: %q failed, want one check: %+v", theme, found, d)
	}
	return found[0]
}

// expect checks a verdict and its words.
func (d diagnosis) expect(t *testing.T, theme, check, status string, words ...string) {
	t.Helper()
	got, said := d.row(t, theme, check)
	if got != status {
		t.Errorf("%s of %s: %s (%s), want %s", check, theme, got, said, status)
	}
	for _, w := range words {
		if !strings.Contains(said, w) {
			t.Errorf("%s of %s: %q does not say %q", check, theme, said, w)
		}
	}
}

// doctor is ebb doctor on the node, with the software device. under is a program that runs it.
func (n *node) doctor(t *testing.T, under []string, flags ...string) diagnosis {
	t.Helper()
	args := append(under, filepath.Join(root, "dist/bin/ebb"), "doctor", "--json", "--quick", "--device", "soft")
	cmd := n.process(t, args[0], append(args[1:], flags...)...)
	o := run(t, cmd)
	var d diagnosis
	if err := json.Unmarshal([]byte(o.stdout), &d); err != nil {
		t.Fatalf("%v: %v", err, o)
	}
	if want := map[bool]int{true: 0, false: 1}[d.OK]; o.status != want {
		t.Errorf("status %d, ok %v", o.status, d.OK)
	}
	return d
}

// gone waits until the children that looked at a directory have ended: one that hangs is killed and left to
// the kernel, which lets it go when the disk answers.
func gone(t *testing.T, dir string) {
	t.Helper()
	for deadline := time.Now().Add(hangs); ; time.Sleep(5 * time.Millisecond) {
		processes, err := filepath.Glob("/proc/[0-9]*/cmdline")
		if err != nil {
			t.Fatal(err)
		}
		there := false
		for _, file := range processes {
			text, _ := os.ReadFile(file)
			there = there || strings.Contains(string(text), "doctor-look\x00disk\x00"+dir)
		}
		if !there {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("a child of ebb doctor stays")
		}
	}
}

// A disk that gives no answer costs its own rows: ebb doctor ends, although the child that looked cannot.
func TestADoctorOfAFrozenDiskGoesOn(t *testing.T) {
	for _, c := range []struct {
		name  string
		make  func(t *testing.T) mount
		words string
	}{
		{"stopped FUSE server", stoppedServer, "(fuse, from "},
		{"frozen ext4", frozenExt4, "(ext4, from /dev/loop"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel() // it waits, most of the time
			n := newNode(t, 64)
			m := c.make(t)
			if err := os.Chmod(m.dir, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := m.freeze(); err != nil {
				t.Fatal(err)
			}
			d := n.doctor(t, nil, "--disk-dir", m.dir+","+n.disk)
			hanging := d.failed(t, "disk "+m.dir)
			d.expect(t, "disk "+m.dir, hanging, "FAIL", "no answer in 6s", "the file system at "+m.dir+" "+c.words, "name another directory")
			d.expect(t, "disk "+m.dir, "disk-stale", "SKIP")
			d.expect(t, "disk "+n.disk, "direct-io", "OK")
			d.expect(t, "host", "numa", "OK")
			if err := m.thaw(); err != nil {
				t.Fatal(err)
			}
			gone(t, m.dir)
			n.doctor(t, nil, "--disk-dir", m.dir).expect(t, "disk "+m.dir, hanging, "OK")
		})
	}
}

func TestADoctorOfAFullAndOfAReadOnlyDisk(t *testing.T) {
	n := newNode(t, 64)
	dir := mountExt4(t, "24M")
	filler := exec.Command("dd", "if=/dev/zero", "of="+filepath.Join(dir, "filler"), "bs=64K")
	if out, err := filler.CombinedOutput(); err == nil {
		t.Fatalf("it is not full: %s", out)
	}
	d := n.doctor(t, nil, "--disk-dir", dir)
	d.expect(t, "disk "+dir, "disk-dir", "OK")
	d.expect(t, "disk "+dir, "disk-room", "FAIL", "full", "make room")

	command(t, "mount", "-o", "remount,ro", filepath.Dir(dir))
	d = n.doctor(t, nil, "--disk-dir", dir)
	d.expect(t, "disk "+dir, "disk-dir", "FAIL", "read-only file system", "mount it for writing")
	d.expect(t, "disk "+dir, "disk-filesystem", "FAIL", "mounted read-only")
	d.expect(t, "disk "+dir, "direct-io", "SKIP")
}

func TestADoctorOfADirectoryInMemory(t *testing.T) {
	needs(t, "mount", "umount")
	n := newNode(t, 64)
	dir := filepath.Join(t.TempDir(), "memory")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	command(t, "mount", "-t", "tmpfs", "-o", "size=8m,mode=0700", "tmpfs", dir)
	t.Cleanup(func() { command(t, "umount", dir) })
	n.doctor(t, nil, "--disk-dir", dir).expect(t, "disk "+dir, "disk-filesystem", "FAIL", "is memory", "--allow-ram-backed-dir")
}

func TestADoctorUnderLimits(t *testing.T) {
	n := newNode(t, 64)
	d := n.doctor(t, []string{"sh", "-c", `ulimit -f 8192 && ulimit -l 64 && exec "$@"`, "sh"}, "--disk-dir", n.disk)
	d.expect(t, "host", "limits", "FAIL", "(RLIMIT_FSIZE)", "ulimit -f unlimited")
	if _, said := d.row(t, "host", "memlock"); !strings.Contains(said, "64 KiB") {
		t.Errorf("memlock: %s", said)
	}
}

func TestADoctorInASmallCgroup(t *testing.T) {
	dir, name := memoryGroup(t, 1<<30)
	n := newNode(t, 64)
	d := n.doctor(t, []string{"sh", "-c", `echo $$ >"$0/cgroup.procs" && exec "$@"`, dir}, "--disk-dir", n.disk)
	d.expect(t, "host", "cgroup", "WARN", "cgroup v1 "+name+" allows 1 GiB", "raise the limit")
}

// A rank at work, and the same program with torch_memory_saver's own library in ebb's way.
func TestADoctorOfAProcess(t *testing.T) {
	n := newNode(t, 64)
	saver := filepath.Join(t.TempDir(), "torch_memory_saver_hook_mode_preload.abi3.so")
	source := filepath.Join(t.TempDir(), "saver.c")
	if err := os.WriteFile(source, []byte("int ebb_test_saver(void);\nint ebb_test_saver(void) { return 0; }\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	command(t, "gcc", "-shared", "-fPIC", "-o", saver, source)
	for _, c := range []struct {
		name, preload string
		savers        string
		environment   string
	}{
		{"at work", lib("torch_memory_saver/libebb.so"), "OK", "OK"},
		{"with another saver", lib("torch_memory_saver/libebb.so") + ":" + saver, "FAIL", "FAIL"},
	} {
		t.Run(c.name, func(t *testing.T) {
			sockets := filepath.Join(t.TempDir(), "sockets")
			if err := os.Mkdir(sockets, 0o700); err != nil {
				t.Fatal(err)
			}
			pid := n.waiting(t, "LD_PRELOAD="+c.preload, "EBB_RUNTIME_DIR="+sockets)
			d := n.doctor(t, nil, "--disk-dir", n.disk, "--pid", fmt.Sprint(pid))
			theme := fmt.Sprintf("process %d", pid)
			d.expect(t, theme, "process", "OK", "python3")
			d.expect(t, theme, "process-library", "OK", "libebb.so, with its engine")
			d.expect(t, theme, "process-savers", c.savers)
			d.expect(t, theme, "process-environment", c.environment)
			d.expect(t, theme, "process-runtimes", "OK")
			d.expect(t, theme, "process-control", "OK", "it answers on")
			if d.OK != (c.savers == "OK") {
				t.Errorf("ok %v", d.OK)
			}
			if c.savers != "OK" {
				return
			}

			// Stopped, it answers nobody, and can be looked at all the same.
			stopAll(t, pid)
			d = n.doctor(t, nil, "--disk-dir", n.disk, "--pid", fmt.Sprint(pid))
			if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
				t.Fatal(err)
			}
			d.expect(t, theme, "process", "WARN", "stopped", fmt.Sprintf("kill -CONT %d", pid))
			d.expect(t, theme, "process-library", "OK")
			d.expect(t, theme, "process-control", "FAIL", "no answer on")
		})
	}
}

// waiting starts a rank with managed memory that waits until the test ends.
func (n *node) waiting(t *testing.T, env ...string) (pid int) {
	t.Helper()
	cmd := n.victim(t, "doctor.py")
	cmd.Env = append(cmd.Env, env...)
	said, _ := untilItSays(t, cmd, func(err error) {
		if err != nil {
			t.Error(err)
		}
	})
	if said != "up" {
		t.Fatalf("the rank says %q", said)
	}
	return cmd.Process.Pid
}
