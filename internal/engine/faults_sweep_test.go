package engine

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"github.com/ebb-offload/ebb/internal/alloc"
	"github.com/ebb-offload/ebb/internal/device/cuda"
	"github.com/ebb-offload/ebb/internal/rankdir"
)

// The sweep: every single operation of a pause and of a resume (file calls, driver calls, and the
// work that the device does when its turn comes) fails once, alone, and after each failure the
// rules must hold.
//
//   - A pause that failed has left all memory mapped and unchanged, and the next one succeeds. One
//     that failed after its commit is paused in part, and a resume repairs it.
//   - A resume that failed has left everything paused, readable, with no more device memory in use
//     than before, and the next one succeeds.
//   - What succeeded although an operation failed has done its work.
//   - Bytes that an operation changed silently are never handed out: the resume says so.
//   - At the end no descriptor, file, device memory or host memory is left.
//
// Work of the device that fails breaks its context for good. Such a trial has a process of its own:
// paused memory stays readable, active memory as it is, and both states last.

// target is a way to park an actor.
type sweepTarget struct {
	name   string
	dirs   int // disk directories
	config Config
	region func(tag string) Region
	faults string // file faults of every trial, before the one that is tried
	cpu    bool   // the driver refuses ebb's kernel
	short  bool   // more of its operations fail in the short form of the test

	base   string // of the disk directories
	claims []*rankdir.Claim
}

var sweepTargets = []sweepTarget{
	{name: "disk", dirs: 1, region: disk},
	{name: "disk, two directories", dirs: 2, region: disk},
	{name: "auto", dirs: 1, region: disk, config: Config{HostBytes: 192 << 10, HostArena: true}},
	{name: "auto, two directories", short: true, dirs: 2, region: disk, config: Config{DiskQuota: 1 << 40, HostBytes: 192 << 10, HostArena: true}},
	{name: "cpu, pinned", region: pinned},
	{name: "cpu, mmap", region: mmap},
	{name: "cpu, arena", region: pinned, config: Config{HostArena: true}},
	{name: "disk, page cache", dirs: 1, region: disk, faults: "open:*:nodirect"},
	{name: "disk, CPU hash", dirs: 1, region: disk, cpu: true},
}

// scope is a test whose clean-up comes before its end: there are thousands of trials.
type scope struct {
	testing.TB
	cleanups []func()
}

func (s *scope) Cleanup(f func()) { s.cleanups = append(s.cleanups, f) }

func (s *scope) TempDir() string {
	dir, err := os.MkdirTemp("", "sweep")
	check(s.TB, err)
	s.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func (s *scope) end() {
	for _, f := range slices.Backward(s.cleanups) {
		f()
	}
}

// trial is one actor that is paused and resumed, with a fault in one of its operations.
type trial struct {
	*rig
	scope  *scope
	target sweepTarget
	arrays []*array
	before world
}

// world is what a trial must not change for good.
type world struct {
	descriptors []string  // of files under the disk directories
	entries     []string  // there
	free        [2]uint64 // of the devices
}

// claim makes the rank directories of a target, as a launcher does.
func (target *sweepTarget) claim(t *testing.T) {
	t.Helper()
	target.base = t.TempDir()
	for i := range target.dirs {
		claim, err := rankdir.NewClaim(filepath.Join(target.base, fmt.Sprint("disk", i)), rankdir.Identity{Job: "sweep", Role: "actor"}, rankdir.ClaimOptions{})
		check(t, err)
		target.claims = append(target.claims, claim)
	}
}

// reclaim removes them.
func (target *sweepTarget) reclaim(t *testing.T) {
	t.Helper()
	for _, claim := range target.claims {
		report, err := claim.Reclaim()
		if err != nil || len(report.Files) > 0 || report.State != rankdir.Reclaimed {
			t.Errorf("what is left on disk: %+v, %v", report, err)
		}
	}
}

// newTrial makes the actor: three allocations on two devices, with blocks of zeros and a short last
// block. cycles is how often it was paused and resumed, with new bytes each time.
func newTrial(t *testing.T, target sweepTarget, cycles int) *trial {
	t.Helper()
	s := &scope{TB: t}
	tr := &trial{target: target, scope: s}
	config := target.config
	config.ChunkBytes = 256 << 10
	var dirs, leases []string
	for _, claim := range target.claims {
		dirs, leases = append(dirs, claim.Dir()), append(leases, claim.LeasePath())
	}
	if target.dirs > 0 {
		config.DiskDirs, config.Lease, config.MoreLeases = dirs, leases[0], leases[1:]
	}
	tr.rig = newRigWith(s, config)
	if target.dirs > 0 {
		tr.dir, tr.set.DiskDir = dirs[0], dirs[0]
	}
	tr.fail("", "")
	for dev := range 2 {
		tr.before.free[dev] = tr.free(dev)
	}
	tr.before.descriptors = descriptors(t, target.base)
	tr.before.entries = entries(t, target.base)
	tr.arrays = []*array{
		tr.make(192<<10+17, 0, target.region("x")),
		tr.make(150<<10, 1, target.region("y")),
		tr.make(1000, 0, target.region("x")),
	}
	tr.write(tr.arrays[0], 64<<10, make([]byte, 64<<10))
	for range cycles {
		tr.pause()
		tr.resume()
		for _, a := range tr.arrays[:2] {
			tr.write(a, 0, randomBytes(64<<10))
		}
	}
	return tr
}

// fail sets the faults of the driver and of files, besides those of the target.
func (tr *trial) fail(driver, files string) {
	tr.t.Helper()
	if tr.target.cpu {
		driver = join(driver, "cuModuleLoadData:*:209")
	}
	tr.fault(driver)
	check(tr.t, tr.sys.Set(join(files, tr.target.faults)))
}

func join(a, b string) string { return strings.Trim(a+","+b, ",") }

// descriptors lists what this process has open under a directory.
func descriptors(t testing.TB, base string) (open []string) {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	check(t, err)
	for _, e := range entries {
		if link, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && base != "" && strings.HasPrefix(link, base) {
			open = append(open, link)
		}
	}
	slices.Sort(open)
	return open
}

// entries lists what is under a directory, but for the count of who holds what, which the launcher
// removes.
func entries(t testing.TB, base string) (list []string) {
	t.Helper()
	if base == "" {
		return nil
	}
	check(t, filepath.WalkDir(base, func(path string, _ fs.DirEntry, err error) error {
		if filepath.Base(path) != "usage" {
			list = append(list, path)
		}
		return err
	}))
	return list
}

// end frees everything and looks for what is left.
func (tr *trial) end(after operation) {
	tr.t.Helper()
	leaks := after.leaks()
	tr.fail("", "")
	for _, a := range tr.arrays {
		if err := tr.Free(a.addr, false); err != nil {
			tr.t.Fatalf("%v: free: %v", after, err)
		}
	}
	for dev, want := range tr.before.free {
		if got := tr.free(dev); got != want && !leaks {
			tr.t.Fatalf("%v: device %d has %d bytes less free than before", after, dev, want-got)
		}
	}
	for _, s := range tr.backings.stores() {
		if u := s.Usage(); u.HostBytes+u.DiskBytes != 0 || u.Files != 0 {
			tr.t.Fatalf("%v: backings that are gone take %+v", after, u)
		}
	}
	tr.Shutdown()
	if now := descriptors(tr.t, tr.target.base); len(now) > len(tr.before.descriptors) {
		tr.t.Fatalf("%v: open now: %q\nbefore: %q", after, now, tr.before.descriptors)
	}
	if now := entries(tr.t, tr.target.base); !slices.Equal(now, tr.before.entries) {
		tr.t.Fatalf("%v: on disk now: %q\nbefore: %q", after, now, tr.before.entries)
	}
	tr.scope.end()
}

// breaks says whether the context is broken after the operation has failed.
func (o operation) breaks() bool { return o.call == "copy" || o.call == "memset" || o.call == "kernel" }

// leaks says whether memory may be lost: the driver was asked to give it back and said no.
func (o operation) leaks() bool { return o.call == "cuMemRelease" }

// operation is one that is made to fail: the n-th call of a name from the begin of a pause or resume.
type operation struct {
	driver bool // or of files
	call   string
	n      int
}

func (o operation) String() string { return fmt.Sprintf("%s number %d", o.call, o.n) }

// fails is how an operation fails.
func (o operation) fails(tr *trial, what string) {
	tr.t.Helper()
	spec := fmt.Sprintf("%s:%d:%s", o.call, o.n, what)
	if o.driver {
		tr.fail(spec, "")
	} else {
		tr.fail("", spec)
	}
}

// kinds are the ways in which an operation can fail.
func (o operation) kinds() []string {
	if o.driver {
		return []string{"999"}
	}
	kinds := []string{"EIO"}
	switch o.call {
	case "mkdir", "open", "fallocate", "rename", "ftruncate":
		kinds = append(kinds, "ENOSPC")
	case "pwrite":
		kinds = append(kinds, "ENOSPC", "EINTR", "short", "flip", "torn")
	case "pread":
		kinds = append(kinds, "EINTR", "short=0", "flip", "torn")
	case "opendir":
		kinds = append(kinds, "EMFILE")
	}
	if !long {
		return kinds[:1]
	}
	return kinds
}

// silent says whether bytes may have changed without a word.
func silent(what string) bool { return what == "flip" || what == "torn" }

// runs are the operations of several runs, and in how many of these each occurred. Calls of one name
// are made by several threads, in some runs one more of them.
type runs map[operation]int

func (r *runs) add(list []operation) {
	if *r == nil {
		*r = runs{}
	}
	for _, o := range list {
		(*r)[o]++
	}
}

const (
	dryRuns  = 5
	attempts = 50 // to come to an operation that occurred in all of them
	rare     = 5  // to come to one that did not
)

// count runs something and lists the operations that it was made of.
func (tr *trial) count(run func()) (list []operation) {
	tr.t.Helper()
	tr.fail("", "")
	before := cuda.SoftwareCalls(tr.drv)
	run()
	after := cuda.SoftwareCalls(tr.drv)
	add := func(driver bool, calls map[string]int) {
		for _, call := range slices.Sorted(maps.Keys(calls)) {
			for n := range calls[call] {
				list = append(list, operation{driver: driver, call: call, n: n + 1})
			}
		}
	}
	add(false, tr.sys.Calls())
	for call := range after {
		after[call] -= before[call]
	}
	add(true, after)
	return list
}

// reached reports whether a run came to the operation that was to fail.
func (o operation) reached(tr *trial, before map[string]int) bool {
	if o.driver {
		return cuda.SoftwareCalls(tr.drv)[o.call]-before[o.call] >= o.n
	}
	return tr.sys.Calls()[o.call] >= o.n
}

func TestEveryOperationOfAPauseAndAResumeFailsOnce(t *testing.T) {
	failed := map[string]int{}
	for _, target := range sweepTargets {
		t.Run(target.name, func(t *testing.T) {
			target.claim(t)
			for cycles := range 2 { // the first pause makes what later ones find
				every := 1 // of the operations, drawn by lot
				switch {
				case long:
				case target.short && cycles == 0:
					every = 4
				default:
					every = 16
				}
				pause, resume := dry(t, target, cycles)
				for o, seen := range pause {
					if rand.IntN(every) > 0 {
						continue
					}
					failed["pause"] += sweepOne(t, target, cycles, "pause", o, seen == dryRuns)
				}
				for o, seen := range resume {
					if rand.IntN(every) > 0 {
						continue
					}
					failed["resume"] += sweepOne(t, target, cycles, "resume", o, seen == dryRuns)
				}
			}
			target.reclaim(t)
		})
	}
	t.Logf("%d operations of pauses and %d of resumes failed", failed["pause"], failed["resume"])
}

// dry lists the operations of pauses and resumes in which nothing fails.
func dry(t *testing.T, target sweepTarget, cycles int) (pause, resume runs) {
	t.Helper()
	for range dryRuns {
		tr := newTrial(t, target, cycles)
		pause.add(tr.count(func() { tr.pause() }))
		resume.add(tr.count(func() { tr.resume() }))
		tr.end(operation{})
	}
	return pause, resume
}

// still reports whether all runs have the operation, as all of an earlier time had: how often threads change
// devices, for one, differs on a machine that has become more or less busy.
func (o operation) still(t *testing.T, target sweepTarget, cycles int, in string) bool {
	t.Helper()
	pause, resume := dry(t, target, cycles)
	return map[string]runs{"pause": pause, "resume": resume}[in][o] == dryRuns
}

// sweepOne has one operation fail in each of its ways, and returns how many those were.
func sweepOne(t *testing.T, target sweepTarget, cycles int, in string, o operation, sure bool) (failed int) {
	t.Helper()
	limit := map[bool]int{true: attempts, false: rare}[sure]
	for _, what := range o.kinds() {
		try := sweepPause
		switch {
		case o.breaks():
			try = inChild
		case in == "resume":
			try = sweepResume
		}
		reached := false
		for n := 0; n < limit && !reached; n++ {
			var err, problem error
			if reached, err, problem = try(t, target, cycles, in, o, what); problem != nil {
				t.Fatalf("%s, cycle %d: %v of a %s fails with %s (result: %v): %v", target.name, cycles, o, in, what, err, problem)
			}
		}
		switch {
		case reached:
			failed++
		case sure && o.still(t, target, cycles, in):
			t.Fatalf("%s, cycle %d: %v of a %s, to fail with %s, was not reached in %d attempts", target.name, cycles, o, in, what, attempts)
		}
	}
	return failed
}

// sweepPause has one operation of a pause fail.
func sweepPause(t *testing.T, target sweepTarget, cycles int, _ string, o operation, what string) (reached bool, err, problem error) {
	t.Helper()
	tr := newTrial(t, target, cycles)
	calls := cuda.SoftwareCalls(tr.drv)
	o.fails(tr, what)
	_, err = tr.Pause(nil, tr.set)
	reached = o.reached(tr, calls)
	tr.fail("", "")
	if problem = tr.afterPause(err, silent(what)); problem == nil {
		tr.end(o)
	}
	return reached, err, problem
}

// sweepResume has one operation of a resume fail.
func sweepResume(t *testing.T, target sweepTarget, cycles int, _ string, o operation, what string) (reached bool, err, problem error) {
	t.Helper()
	tr := newTrial(t, target, cycles)
	tr.pause()
	free := [2]uint64{tr.free(0), tr.free(1)}
	calls := cuda.SoftwareCalls(tr.drv)
	o.fails(tr, what)
	_, err = tr.Resume(nil, tr.set)
	reached = o.reached(tr, calls)
	tr.fail("", "")
	if problem = tr.afterResume(err, free, o.leaks()); problem == nil {
		tr.end(o)
	}
	return reached, err, problem
}

// afterPause checks the rule for pauses.
func (tr *trial) afterPause(err error, silent bool) error {
	switch {
	case err == nil:
		if e := tr.all(alloc.Paused); e != nil {
			return e
		}
		_, err := tr.Resume(nil, tr.set)
		switch {
		case err == nil:
			return tr.content()
		case silent && Code(err) == CodeCorrupt:
			return tr.all(alloc.Paused)
		}
		return fmt.Errorf("the resume after it: %w", err)
	case Code(err) == CodePartial:
		if _, err := tr.Resume(nil, tr.set); err != nil {
			return fmt.Errorf("the resume after a partial pause: %w", err)
		}
	}
	return errors.Join(tr.content(), tr.cycle())
}

// cycle is a pause and a resume that succeed.
func (tr *trial) cycle() error {
	if _, err := tr.Pause(nil, tr.set); err != nil {
		return fmt.Errorf("the next pause: %w", err)
	}
	if _, err := tr.Resume(nil, tr.set); err != nil {
		return fmt.Errorf("the next resume: %w", err)
	}
	return tr.content()
}

// afterResume checks the rule for resumes. free is what the devices had before.
func (tr *trial) afterResume(err error, free [2]uint64, leaks bool) error {
	if err == nil {
		return errors.Join(tr.content(), tr.cycle())
	}
	if e := tr.all(alloc.Paused); e != nil {
		return e
	}
	for dev, want := range free {
		if got := tr.free(dev); got != want && !leaks {
			return fmt.Errorf("device %d has %d bytes free, before %d", dev, got, want)
		}
	}
	if e := tr.readable(); e != nil {
		return e
	}
	if _, err := tr.Resume(nil, tr.set); err != nil {
		return fmt.Errorf("the next resume: %w", err)
	}
	return errors.Join(tr.content(), tr.cycle())
}

// readable checks that paused memory can be read.
func (tr *trial) readable() error {
	for _, a := range tr.arrays {
		p := make([]byte, len(a.want))
		if err := tr.Read(a.addr, p, false); err != nil {
			return fmt.Errorf("read of paused memory: %w", err)
		}
		if string(p) != string(a.want) {
			return fmt.Errorf("a read of the %d bytes at %v gives others", len(p), a.addr)
		}
	}
	return nil
}

// all checks that all memory is in one state.
func (tr *trial) all(want alloc.State) error {
	for _, a := range tr.arrays {
		if got := tr.state(a); got != want {
			return fmt.Errorf("the %d bytes at %v are %v, not %v", len(a.want), a.addr, got, want)
		}
	}
	return nil
}

// content checks that all memory is active and holds its bytes.
func (tr *trial) content() error {
	if err := tr.all(alloc.Active); err != nil {
		return err
	}
	for _, a := range tr.arrays {
		if string(tr.rig.content(a)) != string(a.want) {
			return fmt.Errorf("the %d bytes at %v are others", len(a.want), a.addr)
		}
	}
	return nil
}

// sweepEnv tells a child which trial it is.
const sweepEnv = "EBB_TEST_SWEEP"

// inChild makes a trial in a process of its own.
func inChild(t *testing.T, target sweepTarget, cycles int, in string, o operation, what string) (reached bool, err, problem error) {
	t.Helper()
	dir, err := os.MkdirTemp("", "sweep") // it cannot free what it made with the device that it broke
	check(t, err)
	defer func() { check(t, os.RemoveAll(dir)) }()
	child := exec.Command(os.Args[0], "-test.run=^TestWorkOfTheDeviceThatFails$", "-test.v")
	child.Env = append(os.Environ(), "TMPDIR="+dir, fmt.Sprintf("%s=%s;%d;%s;%s;%d;%s", sweepEnv, target.name, cycles, in, o.call, o.n, what))
	out, err := child.CombinedOutput()
	if err != nil {
		return false, err, fmt.Errorf("%s", out)
	}
	return !strings.Contains(string(out), "not reached"), nil, nil
}

// TestWorkOfTheDeviceThatFails is what the child runs, and by itself one trial of each kind.
func TestWorkOfTheDeviceThatFails(t *testing.T) {
	args := strings.Split(os.Getenv(sweepEnv), ";")
	if len(args) != 6 {
		for _, in := range []string{"pause", "resume"} {
			for _, call := range []string{"copy", "kernel"} {
				o := operation{driver: true, call: call, n: 1}
				if _, err, problem := inChild(t, sweepTargets[0], 0, in, o, "999"); problem != nil {
					t.Errorf("%v of a %s: %v: %v", o, in, err, problem)
				}
			}
		}
		return
	}
	target := sweepTargets[slices.IndexFunc(sweepTargets, func(s sweepTarget) bool { return s.name == args[0] })]
	cycles, err := strconv.Atoi(args[1])
	check(t, err)
	n, err := strconv.Atoi(args[4])
	check(t, err)
	o := operation{driver: true, call: args[3], n: n}

	target.claim(t)
	tr := newTrial(t, target, cycles)
	var operate func([]string, Settings) (Result, error)
	state := alloc.Active
	if operate = tr.Pause; args[2] == "resume" {
		tr.pause()
		operate, state = tr.Resume, alloc.Paused
	}
	calls := cuda.SoftwareCalls(tr.drv)
	o.fails(tr, args[5])
	_, err = operate(nil, tr.set)
	if !o.reached(tr, calls) {
		check(t, err)
		tr.end(operation{})
		target.reclaim(t)
		t.Log("not reached")
		return
	}
	tr.fail("", "")
	for range 2 {
		if err == nil {
			t.Fatal("it succeeded with a broken context")
		}
		check(t, tr.all(state))
		if state == alloc.Paused {
			check(t, tr.readable())
		}
		for _, a := range tr.arrays {
			if state == alloc.Active && string(unsafe.Slice(byteAt(a.addr), len(a.want))) != string(a.want) {
				t.Fatalf("the %d bytes at %v are others", len(a.want), a.addr)
			}
		}
		_, err = operate(nil, tr.set) // and again
	}
	tr.Shutdown()
	target.reclaim(t)
}
