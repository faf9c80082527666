package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/ebb-offload/ebb/internal/launch"
	"github.com/ebb-offload/ebb/internal/testutil"
)

// diskDir is a directory on the disk that holds the repository.
func diskDir(t *testing.T) string {
	t.Helper()
	return testutil.InBuild(t, "bench-")
}

// onSoft are options of a short run on a software device of the test's own.
func onSoft(t *testing.T, rows ...string) Options {
	t.Helper()
	lib := filepath.Join(testutil.Root(t), "dist", "lib")
	libraries, err := launch.FindLibraries("", func(string) string { return lib })
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{libraries.Preload, libraries.Engine, filepath.Join(libraries.Soft, "libcudart.so.13"), filepath.Join(lib, "../libexec/ebb/ebb-bench-rank")} {
		if _, err := os.Stat(file); err != nil {
			t.Fatalf("%v (run make build)", err)
		}
	}
	o := NewOptions()
	o.Libraries, o.Device, o.DiskDirs = libraries, launch.DeviceSoft, []string{diskDir(t)}
	o.GiB, o.Rounds, o.Ranks, o.ChunkMB, o.Rows = 1.0/64, 2, 2, 16, rows
	o.Environ = []string{
		"PATH=" + os.Getenv("PATH"), "SOFTGPU_MEM_MB=512", "XDG_RUNTIME_DIR=" + t.TempDir(), "SOFTGPU_NODE=bench",
	}
	o.Warn = func(line string) { t.Log(line) }
	return o
}

// nothingLeft checks that a run left no file and no process.
func nothingLeft(t *testing.T, o Options) {
	t.Helper()
	for _, dir := range o.DiskDirs {
		entries, err := os.ReadDir(dir)
		if err != nil || len(entries) > 0 {
			t.Errorf("left in %s: %v, %v", dir, entries, err)
		}
	}
	if left := processes(t, o); len(left) > 0 {
		t.Errorf("processes left: %v", left)
	}
}

// processes are the ranks of a run that are alive, by what is preloaded into them.
func processes(t *testing.T, o Options) map[int]string {
	t.Helper()
	found := map[int]string{}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		arguments, err := os.ReadFile(filepath.Join("/proc", entry.Name(), "cmdline"))
		if err != nil || !strings.Contains(string(arguments), o.DiskDirs[0]) {
			continue
		}
		environ, err := os.ReadFile(filepath.Join("/proc", entry.Name(), "environ"))
		if err != nil {
			continue
		}
		found[pid] = launch.Lookup(strings.Split(string(environ), "\x00"))("LD_PRELOAD")
	}
	return found
}

// compiled is a preloadable library of testdata.
func compiled(t *testing.T, name string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "lib"+name+".so")
	source := filepath.Join("testdata", name+".c")
	cmd := exec.Command("cc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", path, source, "-ldl")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", cmd.Args, err, out)
	}
	return path
}

// A pause is told which bytes are dead, and leaves them behind.
func TestDeadBytesStayBehind(t *testing.T) {
	o := onSoft(t, "dead")
	report, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range report.Figures {
		if f.Row != "dead" || f.Note == "" {
			continue
		}
		var dead, left float64
		if n, err := fmt.Sscanf(f.Note, "dead: %f %% of the bytes, %f %% left behind", &dead, &left); n < 2 || dead != left || dead == 0 {
			t.Errorf("%q: %v", f.Note, err)
		}
		return
	}
	t.Errorf("no figure says what was left behind: %+v", report.Figures)
}

// A library of an older ebb, that cannot be told which bytes are dead, is measured but for that row.
func TestALibraryThatCannotLeaveDeadBytesBehind(t *testing.T) {
	o := onSoft(t, "dead", "pause")
	older := t.TempDir()
	text, err := os.ReadFile(o.Libraries.Preload)
	if err != nil {
		t.Fatal(err)
	}
	const function = "\x00ebb_pause_except\x00"
	text = bytes.ReplaceAll(text, []byte(function), []byte("\x00ebb_pause_exceqt\x00"))
	o.Libraries.Preload = filepath.Join(older, "torch_memory_saver/libebb.so")
	err = errors.Join(
		os.WriteFile(filepath.Join(older, "libebb.so"), text, 0o700), //nolint:gosec // a library, of this test alone
		os.Symlink(o.Libraries.Engine, filepath.Join(older, "libebb-engine.so")),
		os.Mkdir(filepath.Dir(o.Libraries.Preload), 0o700), os.Symlink("../libebb.so", o.Libraries.Preload),
	)
	if err != nil {
		t.Fatal(err)
	}
	report, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	absent, measured := 0, 0
	for _, f := range report.Figures {
		switch {
		case f.Row == "dead" && strings.Contains(f.Missing, "no ebb_pause_except"):
			absent++
		case f.Row == "dead":
			t.Errorf("measured: %+v", f)
		case f.Row == "pause" && f.Missing == "":
			measured++
		}
	}
	if absent != 2 || measured == 0 {
		t.Errorf("%d figures are not available, %d of pauses measured", absent, measured)
	}
	nothingLeft(t, o)
}

// Every row gives numbers, or says why it has none.
func TestEveryRowIsMeasured(t *testing.T) {
	o := onSoft(t)
	report, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	nothingLeft(t, o)
	seen := map[string]bool{}
	for _, f := range report.Figures {
		seen[f.Row] = true
		if f.Missing != "" {
			if len(f.Values) > 0 {
				t.Errorf("%s: %s has values and none: %+v", f.Row, f.What, f)
			}
			continue
		}
		if f.AtLeast != nil || f.AtMost != nil {
			t.Errorf("%s: %s has a goal, which is for a GPU", f.Row, f.What)
		}
		if len(f.Values) != o.Rounds && f.Row != "pinned" {
			t.Errorf("%s: %s has %d values in %d rounds", f.Row, f.What, len(f.Values), o.Rounds)
		}
		for _, v := range f.Values {
			if math.IsNaN(v) || math.IsInf(v, 0) || v < 0 && f.Row != "pinned" || v == 0 && f.Unit == unitRate {
				t.Errorf("%s: %s measured %v", f.Row, f.What, f.Values)
			}
		}
	}
	for _, row := range Rows {
		if !seen[row.Name] {
			t.Errorf("row %s has no figure", row.Name)
		}
	}
	if report.Setup.Writers == 0 || report.Setup.Readers == 0 || report.Setup.Block == 0 || !strings.HasPrefix(report.Machine.Device, "softgpu") {
		t.Errorf("setup %+v, machine %+v", report.Setup, report.Machine)
	}
	for _, operation := range []string{"pause", "resume", "write", "read"} {
		if !slices.ContainsFunc(report.Points, func(p Point) bool { return p.Operation == operation && p.Seconds > 0 }) {
			t.Errorf("no point of a %s", operation)
		}
	}
}

// The files of several directories: ebb and the raw arms use all of them.
func TestSeveralDirectories(t *testing.T) {
	o := onSoft(t, "pause")
	o.DiskDirs = append(o.DiskDirs, diskDir(t))
	warned := ""
	o.Warn = func(line string) { warned += line }
	report, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	nothingLeft(t, o)
	if len(report.Figures) == 0 || len(report.Machine.Disks) != 2 {
		t.Errorf("figures %v, disks %v", report.Figures, report.Machine.Disks)
	}
	if !strings.Contains(warned, "are on one device: naming both gains nothing") {
		t.Errorf("two directories of one disk: warned %q", warned)
	}
}

// Another library runs the same script; here it is ebb's own under another name.
func TestAgainstALibrary(t *testing.T) {
	o := onSoft(t, "pause", "resume", "cpu")
	o.Against = filepath.Join(o.Libraries.Dir, "libebb.so")
	report, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	nothingLeft(t, o)
	var got []string
	for _, f := range report.Figures {
		got = append(got, fmt.Sprintf("%s %s: %s", f.Row, f.Library, f.What))
	}
	for _, want := range []string{
		"pause ebb: pause / raw write in place", "pause other: pause / raw write in place", "pause ebb: pause, ebb / other",
		"resume ebb: resume, ebb / other", "cpu other: host memory, later pause / pinned copy", "cpu ebb: host memory, later resume, ebb / other",
	} {
		if !slices.Contains(got, want) {
			t.Errorf("no figure %q in %q", want, got)
		}
	}
}

// rankError runs and returns the error of the rank that the run must fail with.
func rankError(t *testing.T, o Options) *RankError {
	t.Helper()
	report, err := Run(t.Context(), o)
	nothingLeft(t, o)
	var r *RankError
	if !errors.As(err, &r) {
		t.Fatalf("error %v, figures %v", err, report.Figures)
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("not one line: %q", err)
	}
	return r
}

func TestALibraryThatPausesNothingIsFoundOut(t *testing.T) {
	o := onSoft(t, "pause")
	o.Against = compiled(t, "nothing")
	r := rankError(t, o)
	if !strings.Contains(r.Who, "nothing") || r.Command != "pause" || !strings.Contains(r.Text, "nothing was moved, or another process") {
		t.Errorf("error %v", r)
	}
}

func TestALibraryThatLosesBytesIsFoundOut(t *testing.T) {
	o := onSoft(t, "pause")
	o.Against = compiled(t, "forgetful")
	r := rankError(t, o)
	if !strings.Contains(r.Who, "forgetful") || !strings.Contains(r.Text, "BYTES DIFFER") {
		t.Errorf("error %v", r)
	}
}

func TestARankThatIsKilledIsNamed(t *testing.T) {
	o := onSoft(t, "pause")
	o.Rounds = 5
	killed := 0
	o.Progress = func(what string) {
		if !strings.HasSuffix(what, "round 3 of 5") {
			return
		}
		for pid, preloaded := range processes(t, o) {
			if preloaded == o.Libraries.Preload {
				killed = pid
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
	}
	r := rankError(t, o)
	if killed == 0 {
		t.Fatal("no rank was found")
	}
	if want := fmt.Sprintf("the process of ebb (pid %d)", killed); r.Who != want {
		t.Errorf("the error names %q, want %q", r.Who, want)
	}
	if !strings.Contains(r.Text, "it ended: signal: killed") {
		t.Errorf("error %v", r)
	}
}

// What the library says about a pause that fails is said.
func TestAPauseThatFailsIsSaid(t *testing.T) {
	o := onSoft(t, "pause")
	o.Environ = append(o.Environ, "SOFTGPU_FAULT=cuMemUnmap:*:999")
	r := rankError(t, o)
	if r.Command != "pause" || !strings.Contains(r.Text, "tms_pause: ") {
		t.Errorf("error %v", r)
	}
}

// The rounds that were finished count, and so do the rows.
func TestARunCanBeInterrupted(t *testing.T) {
	o := onSoft(t, "pause", "chunk", "cpu")
	o.Rounds = 1000
	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	o.Progress = func(what string) {
		if strings.Contains(what, "round 3 ") {
			cancel(cause)
		}
	}
	report, err := Run(ctx, o)
	if !errors.Is(err, cause) || report.Ended != "enough" {
		t.Errorf("error %v, ended by %q", err, report.Ended)
	}
	nothingLeft(t, o)
	rows := map[string]bool{}
	for _, f := range report.Figures {
		rows[f.Row] = true
		if n := len(f.Values); n < 2 || n > 3 || math.IsNaN(f.Median) {
			t.Errorf("%s: %s has the values %v", f.Row, f.What, f.Values)
		}
	}
	if !rows["pause"] || !rows["chunk"] || rows["cpu"] {
		t.Errorf("rows %v", rows)
	}
	if _, err := report.JSON(); err != nil {
		t.Error(err)
	}
}

// Actors for several rows are there at the same time, each with its own settings, and the raw arms
// are theirs together.
func TestRowsShareTheirRounds(t *testing.T) {
	o := onSoft(t, "pause", "chunk", "unchanged")
	o.ChunkMB = 32
	most := 0
	o.Progress = func(what string) {
		if strings.HasPrefix(what, "cycles to disk: round") {
			most = max(most, len(processes(t, o)))
		}
	}
	report, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	nothingLeft(t, o)
	if most != 4 { // the raw one, the main one, and those with 64 and 256 MiB
		t.Errorf("%d processes", most)
	}
	i := slices.IndexFunc(report.Figures, func(f Figure) bool { return f.Row == "chunk" })
	if i < 0 || !strings.HasPrefix(report.Figures[i].Note, "pinned: 64 MiB, ") || strings.HasSuffix(report.Figures[i].Note, ", 64 MiB") {
		t.Errorf("the chunks are not as asked for: %+v", report.Figures)
	}
	var took []string
	for _, one := range report.Took {
		took = append(took, one.What)
		if one.Seconds <= 0 || one.Seconds > report.Seconds {
			t.Errorf("%s took %v s of %v s", one.What, one.Seconds, report.Seconds)
		}
	}
	if !slices.Equal(took, []string{mainRows, "chunk", "unchanged"}) {
		t.Errorf("the time went to %q", took)
	}
}

// Ranks of ebb have the settings that ebb run gives them.
func TestHostMemoryIsKeptAsUnderRun(t *testing.T) {
	o := onSoft(t, "pause")
	var arena []string
	o.Progress = func(string) {
		for pid, preloaded := range processes(t, o) {
			if preloaded != o.Libraries.Preload {
				continue
			}
			environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
			if err != nil {
				t.Error(err)
			}
			arena = append(arena, launch.Lookup(strings.Split(string(environ), "\x00"))("EBB_HOST_ARENA"))
		}
	}
	if _, err := Run(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	if arena = slices.Compact(arena); !slices.Equal(arena, []string{"1"}) {
		t.Errorf("EBB_HOST_ARENA is %q", arena)
	}
}

// What somebody puts into the run's folder stays, and is spoken of.
func TestARunLeavesWhatIsNotItsOwn(t *testing.T) {
	o := onSoft(t, "pause")
	var warned, foreign string
	o.Warn = func(line string) { warned += line + "\n" }
	o.Progress = func(string) {
		folders, err := filepath.Glob(filepath.Join(o.DiskDirs[0], "ebb-bench-*"))
		if err != nil || len(folders) != 1 {
			t.Errorf("folders %v, %v", folders, err)
			return
		}
		foreign = filepath.Join(folders[0], "notes")
		put(t, foreign)
	}
	if _, err := Run(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	if want := filepath.Dir(foreign) + ` stays: "notes" in it is not of a run; remove it yourself if nobody needs it` + "\n"; warned != want {
		t.Errorf("warned %q, want %q", warned, want)
	}
	if _, err := os.Stat(foreign); err != nil {
		t.Error(err)
	}
}

func TestADeviceWithoutRoom(t *testing.T) {
	o := onSoft(t, "pause")
	o.GiB = 1
	_, err := Run(t.Context(), o)
	if launch.StatusOf(err) != launch.StatusUsage || !strings.Contains(err.Error(), "of device memory at a time and 512 MiB are free") {
		t.Errorf("error %v", err)
	}
	nothingLeft(t, o)
}
