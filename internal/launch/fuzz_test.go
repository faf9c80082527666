package launch

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/ebb-offload/ebb/internal/rankdir"

	"github.com/ebb-offload/ebb/internal/hostmem"
)

// What a flag's parser accepts is within its bounds.
func FuzzFlags(f *testing.F) {
	for _, s := range []string{"", "1", "0", "-1", "8", "4097", "+5", "0x10", "1e3", "512MiB", "1.5GB", "-1GB", "30s", "-5m", "true", "TRUE", "a,b", ",", "/a\n", " ", "1_000", "999999999999999999999"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		for name, c := range map[string]struct {
			parse     func(string) (int, error)
			low, high int
		}{
			"ranks": {ParseRanks, 1, maxRanks}, "chunk": {ParseChunkMB, 1, 1 << 20},
			"host memory": {ParseHostMB, 1, 1 << 30}, "index": {ParseIndex, 0, 1 << 20},
		} {
			if n, err := c.parse(s); err == nil && (n < c.low || n > c.high) {
				t.Errorf("%s %q is %d", name, s, n)
			}
		}
		if n, err := ParseMargin(s); err == nil && (n < 0 || n > 1<<60) {
			t.Errorf("margin %q is %d", s, n)
		}
		if d, err := ParseTime(s); err == nil && (d < 0 || d > 7*24*time.Hour) {
			t.Errorf("time %q is %v", s, d)
		}
		if on, err := ParseSwitch(s); err != nil && on {
			t.Errorf("switch %q is on beside the error %v", s, err)
		}
		if word, err := ParseChoice(s, "cpu", "disk"); err == nil && word != "cpu" && word != "disk" {
			t.Errorf("choice %q is %q", s, word)
		}
	})
}

// A list of directories is what was between its commas, and each becomes a clean absolute path.
func FuzzDirs(f *testing.F) {
	for _, s := range []string{"/a", "/a,/b", "a,,b", "/a/../b,./c", "a:b,c", "a\nb", "\x00", ",", " , "} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		dirs, err := ParseDirs(s)
		if err != nil {
			return
		}
		if strings.Join(dirs, ",") != s {
			t.Errorf("%q is %q", s, dirs)
		}
		bases, err := Options{DiskDirs: dirs}.DiskBases(func(string) string { return "" }, 0)
		if err != nil {
			if StatusOf(err) != StatusUsage {
				t.Errorf("%q: %v", s, err)
			}
			return
		}
		for _, base := range bases {
			if !filepath.IsAbs(base) || filepath.Clean(base) != base || strings.ContainsAny(base, "\n\x00") {
				t.Errorf("%q becomes %q", s, base)
			}
		}
		// The variable of a rank gives the list back.
		for rank := range len(bases) {
			order := BasesOf(bases, Rank{LocalRank: rank})
			if list := several(order); len(order) != len(bases) || first(order) != bases[rank] || list != "" && !slices.Equal(strings.Split(list, ":"), order) {
				t.Errorf("rank %d of %q has %q", rank, bases, order)
			}
		}
	})
}

// Whatever the environment of a launcher says, a place in its world is one, or a usage error.
func FuzzOuterLauncher(f *testing.F) {
	f.Add("torchrun", "3", "1", "8", "2", "", "job")
	f.Add("Open MPI", "3", "-1", "8", "x", "", "")
	f.Add("Slurm", "5", "1", "8", "2", "2(x2),1", "77")
	f.Add("Slurm", "0", "", "1", "0", "99999999999(x99999999999)", "")
	f.Add("Slurm", "0", "", "1", "0", "(x,)x2(", "")
	f.Add("Kubernetes", "2", "", "", "", "", "train-2")
	f.Fuzz(func(t *testing.T, kind, rank, localRank, world, node, tasks, job string) {
		environment := map[string]string{"SLURM_STEP_ID": "0", "SLURM_NODEID": node, "SLURM_TASKS_PER_NODE": tasks, "SLURM_JOB_ID": job, "TORCHELASTIC_RUN_ID": job, "HOSTNAME": job}
		for _, l := range launchers {
			if l.name != kind {
				continue
			}
			for _, v := range []struct {
				names []string
				value string
			}{{l.rank, rank}, {l.localRank, localRank}, {l.world, world}} {
				if len(v.names) > 0 {
					environment[v.names[0]] = v.value
				}
			}
		}
		getenv := func(name string) string { return environment[name] }
		outer, err := Detect(getenv)
		if err != nil {
			if StatusOf(err) != StatusUsage {
				t.Errorf("%v: %v", environment, err)
			}
			return
		}
		if outer.Rank < -1 || outer.LocalRank < -1 || outer.World < -1 || outer.World >= 0 && outer.Rank >= outer.World {
			t.Errorf("%v: %+v", environment, outer)
		}
		name, err := DefaultJob(outer, getenv)
		if err != nil {
			t.Fatal(err)
		}
		if err := (rankdir.Identity{Job: name, Role: "actor"}).Validate(); err != nil {
			t.Errorf("%+v: the job is called %q: %v", outer, name, err)
		}
	})
}

// Every job of a launcher makes a name for a directory, and two jobs never the same one.
func FuzzJobName(f *testing.F) {
	f.Add("slurm-77.0", "slurm-77-0", "")
	f.Add("-", ".", "1-2-abcd")
	f.Add("a/b", "a b", "x")
	f.Add(strings.Repeat("a", 200), strings.Repeat("a", 201), "1-2-abcd")
	f.Add("", "-", "")
	f.Fuzz(func(t *testing.T, a, b, unique string) {
		if len(unique) > 40 || unique != "" && (rankdir.Identity{Job: "x" + unique, Role: "actor"}).Validate() != nil {
			return // as uniqueName makes none
		}
		for _, job := range []string{a, b} {
			if job == "" {
				return // a launcher without a job
			}
			if err := (rankdir.Identity{Job: jobName(job, unique), Role: "actor"}).Validate(); err != nil {
				t.Errorf("%q becomes %q: %v", job, jobName(job, unique), err)
			}
		}
		if a != b && jobName(a, unique) == jobName(b, unique) {
			t.Errorf("%q and %q both become %q", a, b, jobName(a, unique))
		}
	})
}

// The preload list keeps what was there and has ebb's library once.
func FuzzPreloadList(f *testing.F) {
	const library = "/opt/ebb/libebb.so"
	for _, s := range []string{"", "/a.so", "/a.so:/b.so", "/a.so /b.so", ":::", library, library + ":" + library, "torch_memory_saver.so", "\t\n"} {
		f.Add(s)
	}
	split := func(list string) []string {
		return strings.FieldsFunc(list, func(r rune) bool { return strings.ContainsRune(": \t\n", r) })
	}
	f.Fuzz(func(t *testing.T, list string) {
		got, err := preloadList(library, list)
		if err != nil {
			if StatusOf(err) != StatusUsage {
				t.Errorf("%q: %v", list, err)
			}
			return
		}
		want := split(list)
		if !slices.Contains(want, library) {
			want = append([]string{library}, want...)
		}
		if !slices.Equal(split(got), want) {
			t.Errorf("%q becomes %q", list, got)
		}
		if again, err := preloadList(library, got); err != nil || again != got {
			t.Errorf("%q becomes %q, %v", got, again, err)
		}
	})
}

// Settings reach the rank as they are, once, and nothing else changes.
func FuzzApply(f *testing.F) {
	f.Add("A=1\x00B=2\x00A=3", "A", "9", false)
	f.Add("=x\x00B\x00\x00", "B", "", true)
	f.Add("A=1=2", "A", "=", false)
	f.Fuzz(func(t *testing.T, environ, name, value string, unset bool) {
		if name == "" || strings.ContainsAny(name, "=\x00") {
			return
		}
		before := strings.Split(environ, "\x00")
		after := Apply(before, []Setting{{Name: name, Value: value, Unset: unset}})
		others := func(list []string) []string {
			return slices.DeleteFunc(slices.Clone(list), func(e string) bool { return strings.HasPrefix(e, name+"=") })
		}
		if !slices.Equal(others(before), others(after)) {
			t.Errorf("others changed: %q, %q", before, after)
		}
		want := value
		if unset {
			want = ""
		}
		if got := Lookup(after)(name); got != want || len(after)-len(others(after)) > 1 {
			t.Errorf("%s=%q is %q in %q", name, value, got, after)
		}
	})
}

// A shell, and a reader of JSON, read back what ebb env prints.
func FuzzWriteSettings(f *testing.F) {
	for _, s := range []string{"", "plain", "a b", "it's", "$(touch x)", "`x`", "\\", "\"", "line\nbreak", "!", "~", "é", "\x1b[2J"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, value string) {
		settings := []Setting{{Name: "A", Value: value}, {Name: "B", Unset: true}}
		var text bytes.Buffer
		if err := WriteSettings(&text, FormatJSON, settings); err != nil {
			t.Fatal(err)
		}
		read := map[string]string{}
		if err := json.Unmarshal(text.Bytes(), &read); err != nil || read["A"] != strings.ToValidUTF8(value, "\ufffd") && utf8.ValidString(value) || read["B"] != "" {
			t.Errorf("%q: %s is %q, %v", value, &text, read, err)
		}
		if strings.Contains(value, "\x00") {
			return // no variable holds one
		}
		text.Reset()
		if err := WriteSettings(&text, FormatShell, settings); err != nil {
			t.Fatal(err)
		}
		text.WriteString(`printf %s "$A"`)
		cmd := exec.Command("/bin/sh")
		cmd.Stdin = &text
		cmd.Env = []string{"LC_ALL=C"}
		if got, err := cmd.Output(); err != nil || string(got) != value {
			t.Errorf("%q: a shell reads %q, %v", value, got, err)
		}
		text.Reset()
		if err := WriteSettings(&text, FormatDotenv, settings); err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(text.String(), "\n"); n != 2 {
			t.Errorf("%q: %d lines for two variables: %q", value, n, &text)
		}
	})
}

// No table of mounts breaks the reader, and every mount is one of its lines.
func FuzzMountinfo(f *testing.F) {
	f.Add("36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw\n")
	f.Add("36 35 98:0 / /a\\040b rw - fuse.x y z\n37 36 0:1 / / rw - tmpfs none rw\n")
	f.Add(" - \n1 - \n\\777\\04\\\n36 35 98:0 / \\ rw - x\n")
	f.Add("mnt_id:\t36\n")
	f.Fuzz(func(t *testing.T, table string) {
		mounts := parseMountinfo(table)
		if len(mounts) > strings.Count(table, "\n")+1 {
			t.Errorf("%d mounts in %q", len(mounts), table)
		}
		for _, m := range mounts {
			if m.fsType == "" || strings.ContainsAny(m.fsType, " \n") || m.inMemory() && m.network() {
				t.Errorf("%+v in %q", m, table)
			}
		}
		if id, err := parseMountID(table); err != nil && id != 0 {
			t.Errorf("%d beside the error %v", id, err)
		}
		if len(hostmem.Unescape(table)) > len(table) {
			t.Errorf("%q grew to %q", table, hostmem.Unescape(table))
		}
	})
}

// Whatever a process calls itself, its group and session are the kernel's.
func FuzzStat(f *testing.F) {
	f.Add("sleep", 42, 41)
	f.Add("a) Z 1 1 (b", 1, 1)
	f.Add(") ) )", math.MaxInt32, 0)
	f.Add("new\nline", 7, 7)
	f.Fuzz(func(t *testing.T, name string, group, session int) {
		text := statLine(name, group, session)
		if s, err := parseStat([]byte(text)); err != nil || s != (procStat{state: 'S', pgrp: group, session: session}) {
			t.Errorf("%q: %+v, %v", text, s, err)
		}
		for cut := range len(text) {
			_, _ = parseStat([]byte(text[:cut]))
		}
	})
}

// statLine is /proc/<pid>/stat of a process.
func statLine(name string, group, session int) string {
	return fmt.Sprintf("42 (%s) S 1 %d %d 0 -1 4194560 100 0\n", name, group, session)
}

// The guard kills only what can be a process group: never itself, its parents or everything.
func FuzzGuard(f *testing.F) {
	f.Add("+100\n+200\n-100\n")
	f.Add("+1\n+0\n+-1\n-5\n")
	f.Add("+4294967298\n+99999999999999999999\n")
	f.Add("+5\ndone\n")
	f.Fuzz(func(t *testing.T, told string) {
		groups, done := readGroups(strings.NewReader(told))
		if done && groups != nil {
			t.Errorf("%q: %v although all is done", told, groups)
		}
		for pgid := range groups {
			if pgid <= 1 || pgid > math.MaxInt32 {
				t.Errorf("%q: group %d", told, pgid)
			}
		}
	})
}

// A command is found or not, and the error carries a shell's status.
func FuzzFindCommand(f *testing.F) {
	f.Add("sh", "/bin:/usr/bin")
	f.Add("", ":")
	f.Add("./x", "")
	f.Add("a\x00b", "\x00")
	f.Fuzz(func(t *testing.T, name, path string) {
		file, err := FindCommand(name, path)
		var e *Error
		switch {
		case err == nil && !strings.Contains(file, "/"):
			t.Errorf("%q in %q is %q", name, path, file)
		case err != nil && (!errors.As(err, &e) || StatusOf(err) != StatusNotFound && StatusOf(err) != StatusNotExecutable):
			t.Errorf("%q in %q: %v", name, path, err)
		}
	})
}
