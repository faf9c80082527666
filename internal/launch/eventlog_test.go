package launch

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestTheDirectoryOfEventLogsIsMadeForThisUserAlone(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "logs")
	for range 2 { // the second time it is there
		if err := CheckEventLog(dir); err != nil {
			t.Fatal(err)
		}
		if err := MakeEventLog(dir); err != nil {
			t.Fatal(err)
		}
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	for _, do := range []func(string) error{CheckEventLog, MakeEventLog} {
		if err := do(""); err != nil {
			t.Errorf("no directory is wanted: %v", err)
		}
	}
}

func TestADirectoryOfEventLogsThatCannotBeUsedIsRefused(t *testing.T) {
	dir := t.TempDir()
	file, link := filepath.Join(dir, "file"), filepath.Join(dir, "link")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("nowhere", link); err != nil {
		t.Fatal(err)
	}
	refusal(t, CheckEventLog(file), file, "not a directory", "--event-log")
	refusal(t, CheckEventLog(filepath.Join(dir, "no", "logs")), filepath.Join(dir, "no"), "does not exist", "--event-log")
	refusal(t, CheckEventLog(filepath.Join(file, "logs")), file, "--event-log")
	refusal(t, CheckEventLog(link), link, "symbolic link to nowhere", "--event-log")
	refusal(t, MakeEventLog(filepath.Join(dir, "no", "logs")), "--event-log")
	if os.Getuid() != 0 { // who may write everywhere
		if err := os.Chmod(dir, 0o500); err != nil {
			t.Fatal(err)
		}
		refusal(t, CheckEventLog(dir), dir, "permission denied", "--event-log")
		refusal(t, CheckEventLog(filepath.Join(dir, "logs")), dir, "permission denied", "--event-log")
	}
}

func TestTheDirectoryOfEventLogsIsOneAbsolutePath(t *testing.T) {
	if got, err := ParseEventLog("a/../logs"); err != nil || !filepath.IsAbs(got) || filepath.Base(got) != "logs" || strings.Contains(got, "..") {
		t.Errorf("%q, %v", got, err)
	}
	for _, bad := range []string{"", " ", "a,b", "a\nb", "a\x00"} {
		if got, err := ParseEventLog(bad); err == nil {
			t.Errorf("%q is taken for %q", bad, got)
		}
	}
}

func TestAnEventLogNeedsTheLibrary(t *testing.T) {
	o := NewOptions()
	o.EventLog = "/logs"
	refusal(t, o.Validate(1, 1<<30), "--event-log", "--offload-train")
	o.Offload = true
	if err := o.Validate(1, 1<<30); err != nil {
		t.Error(err)
	}
}
