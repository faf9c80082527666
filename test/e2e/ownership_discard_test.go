package e2e

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// On a file system that is mounted with -o discard, what was parked is gone from the raw drive, whoever
// removed it: the rank at its end, ebb run after a killed one, and ebb gc. A forgotten descriptor would
// keep it there otherwise.
func TestDiscardedBytesAreGoneFromTheDrive(t *testing.T) {
	for _, end := range []string{"exits", "is killed", "and ebb are killed"} {
		for _, discard := range []bool{true, false} {
			t.Run(end+map[bool]string{true: "", false: " without discard"}[discard], func(t *testing.T) {
				backups := mountExt4(t, "64M")
				mount := filepath.Dir(backups)
				image := strings.TrimSuffix(mount, ".d")
				command(t, "mount", "-o", "remount,discard", mount)
				n := newNode(t, 64)
				disk := filepath.Join(backups, "disk")
				forgotten := filepath.Join(work, n.name+"-parked")
				flags := append(diskFlags(disk), "--job", "discarded")
				if discard {
					flags = append(flags, "--discard")
				}
				cmd := n.ebbRun(t, flags, "discarded.py", forgotten, end)
				var out bytes.Buffer
				cmd.Stdout, cmd.Stderr = &out, &out
				holding := holdOpen(t, cmd, forgotten, func() []string { return leftovers(t, backups) })
				if end == "and ebb are killed" {
					args := []string{"gc", "--disk-dir", disk}
					if discard {
						args = append(args, "--discard")
					}
					deadline := time.Now().Add(hangs) // the rank ends by itself
					for len(leftovers(t, backups)) > 0 && time.Now().Before(deadline) {
						command(t, filepath.Join(root, "dist/bin/ebb"), args...)
					}
				}
				wantNoFiles(t, backups)
				if strings.Contains(out.String(), "not given back") {
					t.Skip(&out)
				}
				command(t, "sync", "-f", backups)
				found := func() bool { return bytes.Contains(readFile(t, image), bytes.Repeat([]byte("parked bytes!"), 3)) }
				if discard { // a worker of the kernel discards after the sync
					for deadline := time.Now().Add(hangs); found() && time.Now().Before(deadline); {
						time.Sleep(20 * time.Millisecond)
					}
				}
				if found() == discard {
					t.Errorf("the drive still holds parked bytes: %v\n%s", discard, &out)
				}
				for _, f := range holding {
					f.Close()
				}
			})
		}
	}
}

// holdOpen runs a command to its end, and opens what is parked when the file parked is there, as somebody
// would who forgets to close it. Then it removes that file, for the command to go on.
func holdOpen(t *testing.T, cmd *exec.Cmd, parked string, files func() []string) (open []*os.File) {
	t.Helper()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for {
		if _, err := os.Stat(parked); err == nil {
			break
		}
		select {
		case err := <-ended:
			t.Fatalf("it ended before it had parked: %v\n%s", err, cmd.Stdout)
		default:
		}
	}
	for _, file := range files() {
		f, err := os.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		open = append(open, f)
	}
	if len(open) == 0 {
		t.Error("nothing is parked")
	}
	if err := os.Remove(parked); err != nil {
		t.Fatal(err)
	}
	<-ended //nolint:errcheck // how it ends is the test's choice
	return open
}

// command runs a program that must succeed.
func command(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %q: %v\n%s", name, args, err, out)
	}
}
