package doctor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/ebb-offload/ebb/internal/launch"
)

// The test binary is also the child that looks.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == Verb {
		if err := Look(context.Background(), os.Stdout, os.Environ(), os.Args[2:]); err != nil {
			os.Exit(2)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func self(args ...string) *exec.Cmd { return exec.Command("/proc/self/exe", args...) }

// three is a part of three checks, in the theme of a disk.
var three = part{theme: "disk /d", hangs: "the file system hangs", remedy: "mend it", checks: []check{{name: "a"}, {name: "b"}, {name: "c"}}}

// line is what a child writes about a check.
func line(t *testing.T, f Finding) string {
	t.Helper()
	text, err := json.Marshal(step{[]Finding{f}})
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// saidBy is what becomes of a child that is a shell with this script.
func saidBy(t *testing.T, limit time.Duration, script string) []Finding {
	t.Helper()
	x := examination{o: Options{Self: func(...string) *exec.Cmd { return exec.Command("/bin/sh", "-c", script) }}}
	return x.inChild(t.Context(), three, limit, os.Environ())
}

func statuses(found []Finding) (list []Status) {
	for _, f := range found {
		list = append(list, f.Status)
	}
	return list
}

func TestAChildThatHangsCostsOneRow(t *testing.T) {
	first := line(t, Finding{Theme: "disk /d", Check: "a", Status: OK, Text: "good"})
	found := saidBy(t, 3*time.Second, "echo '"+first+"'; exec sleep 1000")
	if !slices.Equal(statuses(found), []Status{OK, Fail, Skip}) {
		t.Fatalf("%+v", found)
	}
	expect(t, found[1], Fail, "no answer in 3s: the file system hangs", "mend it")
	if found[1].Check != "b" || found[2].Check != "c" || found[2].Theme != "disk /d" {
		t.Errorf("%+v", found)
	}
}

func TestAChildThatDiesCostsOneRow(t *testing.T) {
	first := line(t, Finding{Check: "a", Status: OK, Text: "good"})
	found := saidBy(t, hangs, "echo '"+first+"'; echo noise; echo 'a fault' >&2; kill -SEGV $$")
	if !slices.Equal(statuses(found), []Status{OK, Fail, Skip}) {
		t.Fatalf("%+v", found)
	}
	expect(t, found[1], Fail, "segmentation fault", "a fault")
	if found := saidBy(t, hangs, "exit 0"); len(found) != 0 {
		t.Errorf("nothing to say, and nothing wrong: %+v", found)
	}
}

const hangs = 2 * time.Minute

func TestAnExaminationThatIsGivenUp(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("ended by SIGINT"))
	x := examination{o: Options{Self: func(...string) *exec.Cmd { return exec.Command("sleep", "1000") }}}
	found := x.inChild(ctx, three, hangs, os.Environ())
	expect(t, found[0], Fail, "ended by SIGINT")
}

// A check that panics or does not heed its deadline costs its own row too.
func TestChecksOfThisProcess(t *testing.T) {
	stuck := make(chan struct{})
	defer close(stuck)
	p := part{theme: "host", checks: []check{
		one("panics", func(context.Context) Finding { panic("a defect") }),
		one("hangs", func(context.Context) Finding { <-stuck; return ok("") }),
		one("works", func(context.Context) Finding { return ok("good") }),
	}}
	found := p.run(t.Context(), 10*time.Millisecond)
	if !slices.Equal(statuses(found), []Status{Fail, Fail, OK}) {
		t.Fatalf("%+v", found)
	}
	expect(t, found[0], Fail, "a defect", "report")
	expect(t, found[1], Fail, "no answer")
}

func TestAPartInAChildIsAsInThisProcess(t *testing.T) {
	dir := onDisk(t)
	x := here()
	x.o.Self = self
	names := func(found []Finding) (list []string) {
		for _, f := range found {
			list = append(list, f.Theme+" "+f.Check+" "+string(f.Status))
		}
		return list
	}
	p := x.disk(dir, true)
	in, out := names(x.inChild(t.Context(), p, hangs, os.Environ(), partDisk, dir, "true")), names(p.run(t.Context(), hangs))
	if !slices.Equal(in, out) || len(in) != 6 {
		t.Errorf("in a child %v, here %v", in, out)
	}
	for _, args := range [][]string{nil, {"disk"}, {"nonsense", "x"}, {"process", "no number", "x"}} {
		if err := Look(t.Context(), &bytes.Buffer{}, nil, args); !errors.Is(err, ErrPart) {
			t.Errorf("%v: %v, want ErrPart", args, err)
		}
	}
}

// All of it, on this machine: what is found depends on it, but each row says what and why.
func TestAWholeExamination(t *testing.T) {
	x, libs := installed(t)
	var waited []string
	r := Run(t.Context(), Options{DiskDirs: []string{onDisk(t)}, Given: true, PID: os.Getpid(), Device: launch.DeviceAuto, Quick: true,
		Libraries: libs, Environ: x.o.Environ, Self: self, Progress: func(s string) { waited = append(waited, s) }})
	seen := map[string]bool{}
	for _, f := range r.Findings {
		seen[f.Check] = true
		if f.Theme == "" || f.Check == "" || f.Text == "" || !slices.Contains([]Status{OK, Warn, Fail, Skip}, f.Status) {
			t.Errorf("a row that says nothing: %+v", f)
		}
		if (f.Status == Warn || f.Status == Fail) && f.Remedy == "" {
			t.Errorf("no remedy: %+v", f)
		}
	}
	for _, name := range []string{"libraries", "glibc", "preload", "python", "driver", "disk-dir", "direct-io", "memlock", "cgroup", "numa", "process", "process-library"} {
		if !seen[name] {
			t.Errorf("no row %s", name)
		}
	}
	if seen["disk-rate"] {
		t.Error("a quick look measured the disk")
	}
	if len(waited) == 0 || len(r.Facts) < 4 {
		t.Errorf("told %v, facts %v", waited, r.Facts)
	}
}

func TestRoomForAllDevices(t *testing.T) {
	device := Finding{Values: map[string]float64{"device_bytes": 80 << 30}}
	disk := func(id, free float64) Finding {
		return Finding{Values: map[string]float64{"disk_id": id, "free_bytes": free}}
	}
	if got := overall([]Finding{device}); len(got) != 0 {
		t.Errorf("without a disk: %+v", got)
	}
	expect(t, overall([]Finding{device, device, disk(1, 100<<30), disk(2, 100<<30)})[0], OK, "160 GiB", "200 GiB")
	// Two directories on one disk have its room once.
	expect(t, overall([]Finding{device, device, disk(1, 100<<30), disk(1, 100<<30)})[0], Warn, "100 GiB", "make room")
}
