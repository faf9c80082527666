package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// How long ranks have to end by themselves once they are asked to, and how long ebb run has,
// which waits for its ranks first and then removes their files.
const (
	rankGrace = 10 * time.Second
	stopGrace = 30 * time.Second
)

// process is a program to run: its arguments and what its environment has beside ours.
type process struct {
	name string // for messages
	args []string
	env  []string
}

// task is a part of a job: a process, or what the driver itself does.
type task func(context.Context) error

// runJob runs tasks side by side until all have ended, and helpers for as long as that takes. When one fails
// or ctx ends, all others are asked to stop (SIGTERM) and killed after stopGrace. The error is that of the first one to
// fail, or the cause of ctx.
func runJob(ctx context.Context, tasks, helpers []task) error {
	job, stop := context.WithCancel(ctx)
	defer stop()
	ended, helped := make(chan error, len(tasks)), make(chan error, len(helpers))
	for _, t := range tasks {
		go func() { ended <- t(job) }()
	}
	var helping sync.WaitGroup
	for _, t := range helpers {
		helping.Go(func() { helped <- t(job) })
	}
	var first error
	fail := func(err error) {
		if err != nil && first == nil {
			first = err
			stop()
		}
	}
	for running := len(tasks); running > 0; {
		select {
		case err := <-ended:
			running--
			fail(err)
		case err := <-helped:
			fail(err)
		}
	}
	stop()
	helping.Wait() // how they end now is no matter: they were asked to
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return first
}

var errEndedEarly = errors.New("the rollout engine ended before the job")

// helper makes a task of one that is to go on until it is stopped.
func helper(t task) task {
	return func(ctx context.Context) error {
		if err := t(ctx); err != nil || ctx.Err() != nil {
			return err
		}
		return errEndedEarly
	}
}

// because makes a task whose error has the cause that was in the output by the time it failed. What others say
// later, when they are stopped for it, is not the cause.
func (t task) because(output *tail) task {
	return func(ctx context.Context) error {
		err := t(ctx)
		if err == nil || ctx.Err() != nil {
			return err
		}
		if cause := output.Cause(); cause != "" {
			err = fmt.Errorf("%w: %s", err, cause)
		}
		return err
	}
}

// in makes a task of the process.
func (p process) in(output *tail) task {
	return func(ctx context.Context) error { return p.run(ctx, output) }
}

func (p process) run(ctx context.Context, output *tail) error {
	// The parent-death signal is sent when the thread that started the process ends, so
	// this thread stays with the process, and is not used for anything else.
	runtime.LockOSThread()
	cmd := exec.CommandContext(ctx, p.args[0], p.args[1:]...)
	cmd.Env = append(os.Environ(), p.env...)
	cmd.Stdout, cmd.Stderr = output, output
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = stopGrace
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w", p.name, err)
	}
	return nil
}

// tail keeps the last lines of what several processes print. It is safe for concurrent use.
type tail struct {
	mu      sync.Mutex
	lines   []string
	partial []byte
}

const (
	tailLines = 25
	lineBytes = 4096 // longer lines are cut into pieces
)

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.partial = append(t.partial, p...)
	for {
		i := bytes.IndexByte(t.partial, '\n')
		rest := i + 1
		if i < 0 && len(t.partial) > lineBytes {
			i, rest = lineBytes, lineBytes
		}
		if i < 0 {
			return len(p), nil
		}
		t.lines = append(t.lines, string(t.partial[:i]))
		t.partial = t.partial[rest:]
		if n := len(t.lines); n > tailLines {
			t.lines = t.lines[n-tailLines:]
		}
	}
}

// Lines are the last complete lines and what was printed after them.
func (t *tail) Lines() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	lines := append([]string(nil), t.lines...)
	if len(t.partial) > 0 {
		lines = append(lines, string(t.partial))
	}
	return lines
}

// Cause is a line in which one of our programs says why it ends, or "": the earliest of the rollout engine, or
// of the training, else of ebb, which tells what it has from them. What the engine only notes on its way begins with
// who the rank is.
func (t *tail) Cause() string {
	for _, program := range []string{"demo-rollout: ", "demo-train: ", "ebb: "} {
		for _, line := range t.Lines() {
			if _, of, ranked := strings.Cut(line, "] "); ranked && strings.HasPrefix(line, "[rank ") {
				line = of
			}
			if strings.HasPrefix(line, program) && !strings.HasPrefix(line, "ebb: role=") {
				return line
			}
		}
	}
	return ""
}

// trainCommand is the training program with its arguments: the same in both runs.
func (d *demo) trainCommand() []string {
	return []string{
		filepath.Join(d.Dist, "bin/demo-train"),
		"--corpus", filepath.Join(d.dir, "corpus.txt"),
		"--kernels", filepath.Join(d.Dist, "lib/softgpu/demo_kernels.so"),
		"--weights", filepath.Join(d.dir, "weights"),
		"--rollouts", d.rolloutsPath(),
		"--cycles", strconv.Itoa(d.Cycles),
		"--steps", strconv.Itoa(d.Steps),
		"--megabytes", strconv.Itoa(d.Megabytes),
	}
}

// device is the environment that names the software device and its capacity, and where its libraries are.
func (d *demo) device() []string {
	libraries := filepath.Join(d.Dist, "lib/softgpu")
	if old := os.Getenv("LD_LIBRARY_PATH"); old != "" {
		libraries += ":" + old
	}
	return []string{
		"LD_LIBRARY_PATH=" + libraries,
		"SOFTGPU_NODE=" + d.node,
		"SOFTGPU_DEVICES=1",
		"SOFTGPU_MEM_MB=" + strconv.Itoa(d.deviceMiB()),
		"EBB_RUNTIME_DIR=" + d.runtimeDir(),
		"DEMO_EVENTS=" + filepath.Join(d.dir, "events"),
	}
}

// plainJob is the job without ebb: the ranks, started as any launcher would.
func (d *demo) plainJob() ([]process, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	var ranks []process
	for rank := range d.Ranks {
		n, world := strconv.Itoa(rank), strconv.Itoa(d.Ranks)
		ranks = append(ranks, process{
			name: "rank " + n,
			args: d.trainCommand(),
			env: append(d.device(),
				"RANK="+n, "LOCAL_RANK="+n, "WORLD_SIZE="+world, "LOCAL_WORLD_SIZE="+world,
				"MASTER_ADDR=127.0.0.1", "MASTER_PORT="+strconv.Itoa(port)),
		})
	}
	return ranks, nil
}

// parkedJob is the same job under ebb.
func (d *demo) parkedJob() process {
	return process{
		name: "ebb run",
		args: append([]string{
			filepath.Join(d.Dist, "bin/ebb"), "run", "--device", "soft", "--nproc-per-node", strconv.Itoa(d.Ranks), "--job", d.node,
			"--offload-train", "--offload-train-target", "disk", "--offload-train-disk-dir", d.diskDir(),
			"--offload-train-disk-chunk-mb", strconv.Itoa(chunkMB), "--event-log", d.logDir(), "--grace", rankGrace.String(), "--",
		}, d.trainCommand()...),
		env: d.device(),
	}
}

// engine is the rollout engine.
func (d *demo) engine() process {
	return process{
		name: "demo-rollout",
		args: []string{filepath.Join(d.Dist, "bin/demo-rollout"), "serve", d.dir, filepath.Join(d.Dist, "lib/softgpu/demo_kernels.so")},
		env:  d.device(),
	}
}

// freePort is a port of the loopback interface that nobody listens on now.
func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("find a free port: %w", err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	return port, l.Close()
}

// runPlain runs the job without ebb to its end and returns what it reported, also when it failed.
func (d *demo) runPlain(ctx context.Context) (*record, error) {
	ranks, err := d.plainJob()
	if err != nil {
		return newRecord(d.Ranks), err
	}
	d.output = &tail{}
	var tasks []task
	for _, p := range ranks {
		tasks = append(tasks, p.in(d.output))
	}
	return d.record(ctx, func(*eventPipe) ([]task, []task) { return tasks, nil }, nil)
}

// runParked is the same for the job under ebb, with the engine and a conductor.
func (d *demo) runParked(ctx context.Context) (*record, *conductor, error) {
	d.output = &tail{}
	if err := unix.Mkfifo(d.rolloutsPath(), 0o600); err != nil {
		return newRecord(d.Ranks), nil, fmt.Errorf("make FIFO %s: %w", d.rolloutsPath(), err)
	}
	// Open for reading too: it can be written to whether or not a rank reads.
	tell, err := os.OpenFile(d.rolloutsPath(), os.O_RDWR, 0)
	if err != nil {
		return newRecord(d.Ranks), nil, fmt.Errorf("open the FIFO of rollouts: %w", err)
	}
	defer func() { _ = tell.Close() }()
	c := &conductor{demo: d, came: make(chan event, d.Ranks+1), ended: make(chan struct{}), tell: tell}
	r, err := d.record(ctx, func(events *eventPipe) ([]task, []task) {
		c.events = events
		return []task{c.ranks, c.conduct}, []task{d.engine().in(d.output)}
	}, c.came)
	return r, c, err
}

// record runs a job and keeps what it reports. Some of the events also go to a channel, if there is one.
func (d *demo) record(ctx context.Context, job func(*eventPipe) (tasks, helpers []task), came chan<- event) (*record, error) {
	r := newRecord(d.Ranks)
	events, err := openEvents(filepath.Join(d.dir, "events"), func(e event) {
		if concerns(e) {
			select {
			case came <- e:
			default: // nobody waits for so many
			}
			return
		}
		r.add(e)
		d.bar.event(e)
	})
	if err != nil {
		return r, err
	}
	tasks, helpers := job(events)
	for i, t := range tasks {
		tasks[i] = t.because(d.output)
	}
	for i, t := range helpers {
		helpers[i] = helper(t).because(d.output)
	}
	return r, errors.Join(runJob(ctx, tasks, helpers), events.Close())
}

// oneLine is an error as one line of text.
func oneLine(err error) string {
	return strings.Join(strings.Fields(err.Error()), " ")
}
