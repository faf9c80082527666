package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestContentOfEverySizeAndBackupComesBack(t *testing.T) {
	n := newNode(t, 512)
	succeed(t, n.victim(t, "roundtrip.py"))
	wantNoFiles(t, n.disk)
}

func TestAnyOrderOfCallsIsSafe(t *testing.T) {
	n := newNode(t, 256)
	succeed(t, n.victim(t, "order.py"))
	wantNoFiles(t, n.disk)
}

func TestPausedMemoryIsFreeForOthers(t *testing.T) {
	for _, mode := range []string{"disk", "cpu", "none"} {
		t.Run(mode, func(t *testing.T) {
			n := newNode(t, 128)
			succeed(t, n.victim(t, "tenants.py", mode))
			wantNoFiles(t, n.disk)
		})
	}
}

// Callers of tms_resume ignore its result, and would fault at their next use of the memory.
func TestReferenceResumeWithoutMemoryEndsTheProcessWithOneLine(t *testing.T) {
	n := newNode(t, 128)
	o := run(t, n.victim(t, "tenants.py", "tms"))
	if o.status != 71 || o.stdout != "" || len(remarks(o.stderr)) != 1 {
		t.Errorf("want status 71 and one line of ebb's, got %v", o)
	}
}

func TestPauseErrorEndsTheProcessWhereThatIsAskedFor(t *testing.T) {
	n := newNode(t, 128)
	n.env = []string{"EBB_ON_PAUSE_ERROR=exit"}
	o := run(t, n.victim(t, "streams.py", filepath.Join(n.disk, "report")))
	if o.status != 70 || len(lines(o.stderr, "ebb: pause FAILED")) != 1 {
		t.Errorf("want status 70 and one line of ebb's, got %v", o)
	}
}

func TestFullDiskFailsThePauseAndNothingElse(t *testing.T) {
	n := newNode(t, 512)
	n.env = []string{"TMS_DISK_BACKUP_DIR=" + mountExt4(t, "64M")}
	o := run(t, n.victim(t, "diskfull.py"))
	if o.status != 0 {
		t.Fatal(o)
	}
	if said := lines(o.stderr, "pause FAILED"); len(said) != 1 {
		t.Errorf("one tms_pause failed; lines: %q", said)
	}
}

func TestWhatWorksDuringAStreamCapture(t *testing.T) {
	for _, api := range []string{"runtime", "driver"} {
		t.Run(api, func(t *testing.T) {
			n := newNode(t, 64)
			o := run(t, n.victim(t, "capture.py", api))
			if o.status != 0 {
				t.Fatal(o)
			}
			if said := remarks(o.stderr); len(said) != 1 || !strings.HasPrefix(said[0], "ebb: pause FAILED, memory not freed: a CUDA stream capture") {
				t.Errorf("one tms_pause was refused; lines: %q", said)
			}
			wantNoFiles(t, n.disk)
		})
	}
}

// The program resets its device, through either API, while its memory is active and while it is parked.
func TestMemoryOutlivesAResetOfItsDevice(t *testing.T) {
	for name, env := range map[string][]string{"plain": nil, "arena": {"EBB_HOST_ARENA=1", "EBB_HOST_MB=2"}} {
		for _, api := range []string{"runtime", "driver"} {
			t.Run(name+"/"+api, func(t *testing.T) {
				n := newNode(t, 64)
				n.env = env
				if o := run(t, n.victim(t, "reset.py", api)); o.status != 0 || len(remarks(o.stderr)) > 0 {
					t.Error(o)
				}
				wantNoFiles(t, n.disk)
			})
		}
	}
}

func TestResumeThatWaitsForMemoryStandsInNobodysWay(t *testing.T) {
	n := newNode(t, 128)
	succeed(t, n.victim(t, "waiting.py"))
	wantNoFiles(t, n.disk)
}

// mountExt4 returns an empty directory on a small file system of its own.
func mountExt4(t *testing.T, size string) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	image := filepath.Join(work, strings.ReplaceAll(t.Name(), "/", "_")+".img")
	dir := image + ".d"
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"truncate", "-s", size, image},
		{"mkfs.ext4", "-q", "-m", "0", image},
		{"mount", "-o", "loop", image, dir},
	} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Skipf("no loop mounts here: %v: %v: %s", args, err, out)
		}
	}
	t.Cleanup(func() { unmount(t, dir) })
	backups := filepath.Join(dir, "backups")
	if err := os.Mkdir(backups, 0o700); err != nil {
		t.Fatal(err)
	}
	return backups
}

// unmount unmounts a file system. One that was just killed may have a file there for some moments more.
func unmount(t *testing.T, dir string) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		out, err := exec.Command("umount", dir).CombinedOutput()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Errorf("umount: %v: %s", err, out)
			return
		}
	}
}

// remarks are ebb's lines but for those of each pause and resume that did its work.
func remarks(text string) []string {
	return slices.DeleteFunc(lines(text, "ebb:"), didItsWork.MatchString)
}

var didItsWork = regexp.MustCompile(`^.*ebb: ([^:]*: )?(paused|resumed) [0-9.]+ [KMG]?i?[bB]`)

// lines returns the lines of text that contain what.
func lines(text, what string) []string {
	var found []string
	for line := range strings.Lines(text) {
		if strings.Contains(line, what) {
			found = append(found, strings.TrimSuffix(line, "\n"))
		}
	}
	return found
}
