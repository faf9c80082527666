package doctor

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// node is a root that is checked in: files of the kernel as they look on such a machine.
func node(name string) system { return system{root: filepath.Join("testdata/roots", name)} }

// changed is a copy of one with other files; an empty text removes one.
func changed(t *testing.T, name string, files map[string]string) system {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "root")
	if name == "" {
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	} else if err := os.CopyFS(dir, os.DirFS(node(name).root)); err != nil {
		t.Fatal(err)
	}
	for path, text := range files {
		full := filepath.Join(dir, path)
		if text == "" {
			if err := os.Remove(full); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if err := os.MkdirAll(filepath.Dir(full), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(full, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return system{root: dir}
}

// expect checks a verdict and that its words say so. What is not OK has a remedy, unless it was not looked at.
func expect(t *testing.T, f Finding, status Status, words ...string) {
	t.Helper()
	if f.Status != status {
		t.Errorf("%s %q, want %s", f.Status, f.Text, status)
	}
	for _, w := range words {
		if !strings.Contains(f.Text, w) && !strings.Contains(f.Remedy, w) {
			t.Errorf("%q (%s) does not say %q", f.Text, f.Remedy, w)
		}
	}
	if (f.Status == Warn || f.Status == Fail) && f.Remedy == "" {
		t.Errorf("%q has no remedy", f.Text)
	}
	if (f.Status == OK || f.Status == Skip) && f.Remedy != "" {
		t.Errorf("%q needs no remedy: %s", f.Text, f.Remedy)
	}
}

func TestPathsAreResolvedBelowTheRoot(t *testing.T) {
	s := node("two-sockets")
	if got := s.resolve("/sys/class/block/nvme0n1p1"); got != "/sys/devices/pci0000:17/0000:17:00.0/nvme/nvme0/nvme0n1/nvme0n1p1" {
		t.Errorf("resolved to %q", got)
	}
	if got := s.resolve("/sys/dev/block/1:1"); got != "" {
		t.Errorf("what is not there leads to %q", got)
	}
	if got := s.field("/proc/self/status", "NSpid"); got != "4711" {
		t.Errorf("NSpid is %q", got)
	}
	if got := s.chosen("/sys/kernel/mm/transparent_hugepage/enabled"); got != "madvise" {
		t.Errorf("chosen is %q", got)
	}
}
