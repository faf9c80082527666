package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

//go:embed corpus.txt
var corpus []byte

// chunkMB is the staging buffer of one rank, far smaller than what it parks.
const chunkMB = 16

// config is what the demo is to do.
type config struct {
	Dist      string // folder with bin/ and lib/
	Base      string // folder on a disk, in which the demo makes one of its own; made if missing
	Ranks     int
	Cycles    int
	Steps     int // in each of Cycles+1 phases
	Megabytes int // training state of one rank, about
	Timeout   time.Duration
}

// result is what the demo found.
type result struct {
	config
	DeviceMiB       int
	Allocations     uint64 // of one rank
	Allocated       uint64
	PlainSeconds    float64
	ParkedSeconds   float64
	FirstLoss       float64
	LastLoss        float64
	Cycles          []summary
	LossesIdentical bool
	FilesLeft       int
	ReportPage      string   // path of the page that ebb report made
	Output          []string // last lines of the processes, when something failed
}

// demo is one run of it.
type demo struct {
	config
	dir    string // everything the run leaves on disk, removed at the end
	node   string // SOFTGPU_NODE
	bar    *bar
	output *tail
}

func (d *demo) diskDir() string      { return filepath.Join(d.dir, "disk") }
func (d *demo) logDir() string       { return filepath.Join(d.dir, "logs") }
func (d *demo) runtimeDir() string   { return filepath.Join(d.dir, "run") } // of control sockets
func (d *demo) rolloutsPath() string { return filepath.Join(d.dir, "rollouts") }

// deviceMiB is the capacity of the software device: a little more than what the ranks take.
// Allocations are rounded up to 2 MiB each, and a rank has about twenty.
func (d *demo) deviceMiB() int {
	state := d.Megabytes*1000*1000>>20 + 1
	return d.Ranks * (state + 40)
}

// phases of training: one before each cycle, and one after the last.
func (c config) phases() int { return c.Cycles + 1 }

// run does the whole demo. The result holds what is known by the time of an error.
func run(ctx context.Context, c config, progress *bar) (res result, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, c.Timeout, fmt.Errorf("not finished after %v", c.Timeout))
	defer cancel()

	if err := os.MkdirAll(c.Base, 0o755); err != nil {
		return res, fmt.Errorf("make the demo's folder: %w", err)
	}
	dir, err := os.MkdirTemp(c.Base, "demo-")
	if err != nil {
		return res, fmt.Errorf("make the demo's folder: %w", err)
	}
	d := &demo{config: c, dir: dir, node: filepath.Base(dir), bar: progress, output: &tail{}}
	res.config, res.DeviceMiB = c, d.deviceMiB()
	defer func() {
		if err != nil {
			res.Output = d.output.Lines()
		}
		err = errors.Join(err, d.cleanUp())
	}()
	for _, dir := range []string{d.diskDir(), d.logDir(), d.runtimeDir()} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			return res, err
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "corpus.txt"), corpus, 0o600); err != nil {
		return res, err
	}

	progress.say("without parking")
	plain, err := d.plainRun(ctx, &res)
	if err != nil {
		return res, fmt.Errorf("the run without parking: %w", err)
	}
	progress.say("under ebb")
	parked, err := d.parkedRun(ctx, &res)
	if err != nil {
		return res, fmt.Errorf("the run under ebb: %w", err)
	}
	if err := compareRuns(plain, parked); err != nil {
		return res, err
	}
	res.LossesIdentical = true
	if res.FilesLeft > 0 {
		return res, fmt.Errorf("%d files or directories are left in the disk directory", res.FilesLeft)
	}
	return res, nil
}

func (d *demo) plainRun(ctx context.Context, res *result) (*record, error) {
	start := time.Now()
	r, err := d.runPlain(ctx)
	res.PlainSeconds = time.Since(start).Seconds()
	if err != nil {
		return r, err
	}
	if err := errors.Join(r.complete(d.phases()*d.Steps, d.phases()+1, false), compareRanks(r)); err != nil {
		return r, err
	}
	steps := r.steps()
	res.FirstLoss, res.LastLoss = r.loss(steps[0]), r.loss(steps[len(steps)-1])
	res.Allocations, res.Allocated = r.allocations, r.allocated
	return r, nil
}

func (d *demo) parkedRun(ctx context.Context, res *result) (*record, error) {
	start := time.Now()
	r, conductor, err := d.runParked(ctx)
	res.ParkedSeconds = time.Since(start).Seconds()
	// ebb's own folder for leases stays in a disk directory; it is empty when nobody runs.
	left, walkErr := countEntries(d.diskDir(), ".ebb")
	res.FilesLeft = left
	if err == nil {
		err = walkErr
	}
	if err != nil {
		return r, err
	}
	if err := r.complete(d.phases()*d.Steps, d.phases()+1, true); err != nil {
		return r, err
	}
	if res.Cycles, err = summariseAll(r, d.config.Cycles); err != nil {
		return r, err
	}
	res.ReportPage, err = conductor.writeReport(ctx)
	return r, err
}

// countEntries counts everything below a directory: files, directories, anything. Not counted is
// one directory right below it, if it is there; what is in that one is.
func countEntries(dir, except string) (int, error) {
	n := 0
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && path != dir && (path != filepath.Join(dir, except) || !entry.IsDir()) {
			n++
		}
		return err
	})
	return n, err
}

// cleanUp removes the run's folder and the file by which softgpu shared the device's capacity.
func (d *demo) cleanUp() error {
	name := fmt.Sprintf("softgpu-%d-%s", os.Geteuid(), d.node)
	err := os.RemoveAll(d.dir)
	for _, dir := range []string{os.Getenv("XDG_RUNTIME_DIR"), "/dev/shm"} {
		if dir == "" {
			continue
		}
		if e := os.Remove(filepath.Join(dir, name)); e != nil && !errors.Is(e, fs.ErrNotExist) {
			err = errors.Join(err, e)
		}
	}
	return err
}
