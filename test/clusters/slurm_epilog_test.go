package clusters

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// An epilog that fails takes the node out of service, so this one never does; whatever is wrong is one line.
func TestTheEpilogOfSlurmNeverFails(t *testing.T) {
	if os.Geteuid() != 0 {
		missing(t, "run an epilog", errors.New("it takes root"))
	}
	dir := t.TempDir()
	script := filepath.Join(dir, "ebb-epilog.sh")
	text, err := os.ReadFile(filepath.Join(root, "deploy/slurm/ebb-epilog.sh"))
	if err == nil {
		err = os.WriteFile(script, text, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	program := func(name, text string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, d := range []string{filepath.Dir(dir), dir} { // the user reads there
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	disk := filepath.Join(dir, "disk_65534_77")
	if err := os.Mkdir(disk, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(disk, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	// It says as whom and on what it was run.
	witness := program("witness", `echo "I am $(id -u):$(id -g) $# $*, $(env | grep -c .) variables"`)
	good := "ebb=" + witness + "\ndisk_dirs='" + dir + "/missing " + dir + "/disk_%U_%j'\n"
	const job = "SLURM_JOB_ID=77 SLURM_JOB_UID=65534 SLURM_JOB_USER=nobody SLURMD_NODENAME=n1"
	for name, c := range map[string]struct{ env, conf, line string }{ // line: "-" where the settings do not say which file it is for
		"as the user, nothing but what it must have": {job, good, "job 77: I am 65534:65534 3 gc --disk-dir " + disk + ", 4 variables"},
		"no disk directory":                          {job, "ebb=" + witness + "\ndisk_dirs='" + dir + "/missing'\n", ""},
		"a symbolic link in its place":               {job, "ebb=" + witness + "\ndisk_dirs='" + dir + "/link'\n", ""},
		"nothing was there":                          {job, good + "ebb=" + program("idle", `echo "removed 0 files, 0 B, in $3"`) + "\n", ""},
		"no user":                                    {"SLURM_JOB_ID=77", good, "SLURM_JOB_UID='' is no number"},
		"a user that is none":                        {"SLURM_JOB_ID=77 SLURM_JOB_UID=0;id", good, "SLURM_JOB_UID='0;id' is no number"},
		"a job that is none":                         {"SLURM_JOB_ID=7/../7 SLURM_JOB_UID=65534", good, "SLURM_JOB_ID='7/../7' is no number"},
		"a user without a group":                     {"SLURM_JOB_ID=77 SLURM_JOB_UID=12345678", good, "user 12345678 has no group"},
		"no ebb":                                     {job, good + "ebb=" + dir + "/none\n", "none is not there"},
		"ebb fails":                                  {job, good + "ebb=" + program("fails", "echo it is broken >&2; exit 73") + "\n", "status 73: it is broken"},
		"ebb hangs":                                  {job, good + "seconds=1\nebb=" + program("hangs", "exec sleep 1000") + "\n", "no end after 1 s"},
		"ebb removes nothing and fails":              {job, good + "ebb=" + program("half", `echo "removed 0 files, 0 B, in $3"; echo "sweep B: permission denied" >&2; exit 73`) + "\n", "status 73: removed 0 files, 0 B, in " + disk + ";sweep B: permission denied"},
		"a disk that hangs":                          {job, good + "seconds=1\nPATH=" + filepath.Dir(program("slow/sh", "exec sleep 1000")) + ":$PATH\n", "no end after 1 s: does a disk hang? looked for " + dir},
		"a directory of users that hangs":            {job, good + "seconds=1\nid() { sleep 1000; }\n", "no end after 11 s"},
		"settings that are no script":                {job, "disk_dirs='\n", "-"},
		"settings that end it":                       {job, good + "exit 3\n", "-"},
		"a time that is none":                        {job, good + "seconds=x\n", "seconds='x'"},
		"a directory with a comma":                   {job, good + "disk_dirs=/a,b\n", "is no absolute path without commas"},
	} {
		t.Run(name, func(t *testing.T) {
			log := filepath.Join(t.TempDir(), "log")
			if err := os.WriteFile(filepath.Join(dir, "ebb-epilog.conf"), []byte("log="+log+"\n"+c.conf), 0o644); err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command(script)
			cmd.Env = append(strings.Fields(c.env), "A_SECRET=of-slurmd") // and no PATH
			out, err := cmd.CombinedOutput()
			if err != nil || len(out) > 0 {
				t.Errorf("%v, printed %q", err, out)
			}
			said, _ := os.ReadFile(log)
			switch {
			case c.line == "-":
			case c.line == "" && len(said) > 0, c.line != "" && strings.Count(string(said), "\n") != 1, !strings.Contains(string(said), c.line):
				t.Errorf("said %q, want one line with %q", said, c.line)
			}
		})
	}
}
