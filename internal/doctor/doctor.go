// Package doctor looks at everything on a node that a run with ebb needs, before the run does: disk
// directories, limits, host memory, driver and device, ebb's own files, Python, variables, and a process
// that runs already. Each check is one question with one answer: a row with a verdict, the reason and what
// to do.
//
//	doctor.go       what is looked at, and in which order
//	finding.go      one row
//	part.go         checks that belong together, and how they are run beside one another
//	child.go        parts that may hang are looked at by a child process
//	system.go       the kernel's files, below a root that tests replace
//	disk.go         a disk directory; mounts.go what it lies on, block.go its device, rate.go how fast it is
//	limits.go, memory.go, numa.go, namespaces.go   what the kernel allows and has
//	driver.go       the GPU driver and its devices
//	install.go      ebb's files and the C library; python.go what Python has
//	environment.go  variables
//	process.go      a process that is given by its number; started.go what it has of the node
//	facts.go        what goes into a bug report; text.go the page for people
//
// Nothing is changed anywhere, but for the nameless file whose writing is measured. A check that fails, is not
// allowed or hangs costs its own row, not the others.
package doctor

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/ebb-offload/ebb/internal/launch"
)

// Options say what to look at.
type Options struct {
	DiskDirs []string // absolute
	// Given: DiskDirs were named. That the default one is missing is no failure.
	Given  bool
	PID    int    // a process to look at; 0: none
	Device string // auto, cuda or soft, as of ebb run
	Quick  bool   // without what takes seconds: the disk's rates, contexts on devices

	Libraries launch.Libraries
	Environ   []string
	// Self makes the command that looks at a part: ebb itself with these arguments, which calls Look.
	Self func(args ...string) *exec.Cmd
	// Progress is told what is waited for.
	Progress func(string)
}

// Result is what was found.
type Result struct {
	Findings []Finding
	Facts    []Fact // for a bug report
	Seconds  float64
}

// OK reports whether no check failed.
func (r Result) OK() bool { return r.Count(Fail) == 0 }

// Count is how many rows have a verdict.
func (r Result) Count(s Status) (n int) {
	for _, f := range r.Findings {
		if f.Status == s {
			n++
		}
	}
	return n
}

// examination is one run of the doctor.
type examination struct {
	o      Options
	system system
	getenv func(string) string
}

// Run looks at everything. What can be looked at beside one another is; the rates of disks are measured when all
// else is over, one after the other.
func Run(ctx context.Context, o Options) Result {
	begun := time.Now()
	x := examination{o: o, system: system{root: "/"}, getenv: launch.Lookup(o.Environ)}
	if o.PID != 0 {
		x = x.startedAs()
	}
	stages := x.stages()
	found := make([][]Finding, len(stages))
	o.Progress("looking at the node")
	var together sync.WaitGroup
	for i, s := range stages {
		if !s.alone {
			together.Go(func() { found[i] = s.run(ctx) })
		}
	}
	together.Wait()
	for i, s := range stages {
		if s.alone && s.wanted(found) {
			o.Progress("measuring " + s.subject)
			found[i] = s.run(ctx)
		}
	}
	r := Result{Findings: slices.Concat(found...)}
	r.Findings = append(r.Findings, overall(r.Findings)...)
	r.Facts = x.facts(r.Findings)
	r.Seconds = time.Since(begun).Seconds()
	return r
}

// stage is a part and how it is run.
type stage struct {
	subject string
	run     func(context.Context) []Finding
	alone   bool
	wanted  func([][]Finding) bool // of one that is alone, after the others
}

// stages are in the order in which the rows are shown.
func (x examination) stages() []stage {
	here := func(p part) stage {
		return stage{run: func(ctx context.Context) []Finding { return p.run(ctx, hereLimit) }}
	}
	stages := []stage{
		here(x.installation()),
		{run: func(ctx context.Context) []Finding {
			return x.inChild(ctx, x.preload(), childLimit, x.preloadEnviron(), partPreload, x.o.Libraries.Preload)
		}},
		here(x.python()),
	}
	device := x.driver(x.o.Device, x.o.Quick)
	stages = append(stages, stage{run: func(ctx context.Context) []Finding {
		return x.inChild(ctx, device, deviceLimit, x.deviceEnviron(), partDevice, x.o.Device, strconv.FormatBool(x.o.Quick))
	}})
	for _, dir := range x.o.DiskDirs {
		place := len(stages)
		stages = append(stages, stage{run: func(ctx context.Context) []Finding {
			return x.inChild(ctx, x.disk(dir, x.o.Given), childLimit, x.o.Environ, partDisk, dir, strconv.FormatBool(x.o.Given))
		}})
		if x.o.Quick {
			continue
		}
		stages = append(stages, stage{subject: dir, alone: true,
			wanted: func(found [][]Finding) bool { return measurable(found[place]) },
			run: func(ctx context.Context) []Finding {
				return x.inChild(ctx, x.rate(dir), rateLimit, x.o.Environ, partRate, dir)
			}})
	}
	if dir := launch.BareDir(x.getenv); !slices.Contains(x.o.DiskDirs, dir) {
		stages = append(stages, stage{run: func(ctx context.Context) []Finding {
			return x.inChild(ctx, x.bare(dir), childLimit, x.o.Environ, partBare, dir)
		}})
	}
	stages = append(stages, here(x.host()))
	if x.o.PID != 0 {
		pid := fmt.Sprint(x.o.PID)
		stages = append(stages, stage{run: func(ctx context.Context) []Finding {
			return x.inChild(ctx, x.process(x.o.PID), childLimit, x.o.Environ, partProcess, pid, x.o.Libraries.Preload)
		}})
	} else {
		stages = append(stages, here(x.environment()))
	}
	return stages
}

// overall are the rows that need what several parts found.
func overall(found []Finding) []Finding {
	device, disks := 0.0, map[float64]float64{}
	for _, f := range found {
		device += f.Values["device_bytes"]
		if free, known := f.Values["free_bytes"]; known {
			disks[f.Values["disk_id"]] = free
		}
	}
	if device == 0 || len(disks) == 0 {
		return nil
	}
	free := 0.0
	for _, f := range disks {
		free += f
	}
	row := Finding{Theme: "disk and device", Check: "room-for-devices"}
	text := fmt.Sprintf("all devices together hold %s, and the disk directories have %s free", size(uint64(device)), size(uint64(free)))
	if free < device {
		return []Finding{row.with(warn("make room or name further directories, where ranks fill their devices", "%s", text))}
	}
	return []Finding{row.with(ok("%s", text))}
}
