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

// runJob runs processes side by side until all have ended. When one fails, or ctx ends, the
// others are asked to stop (SIGTERM) and killed after stopGrace. The error is that of the first
// one to fail, or the cause of ctx.
func runJob(ctx context.Context, processes []process, output *tail) error {
	job, stop := context.WithCancel(ctx)
	defer stop()
	failed := make(chan error, len(processes))
	for _, p := range processes {
		go func() { failed <- p.run(job, output) }()
	}
	var first error
	for range processes {
		if err := <-failed; err != nil && first == nil {
			first = err
			stop()
		}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return first
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

// Cause is the earliest of those lines in which one of our programs says why it ends, or "". What
// the engine only notes on its way begins with who the rank is.
func (t *tail) Cause() string {
	for _, line := range t.Lines() {
		for _, program := range []string{"demo-rollout: ", "demo-train: ", "ebb: "} {
			if _, said, found := strings.Cut(line, program); found && !strings.HasPrefix(said, "role=") {
				return program + said
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
		"--rollout", filepath.Join(d.Dist, "bin/demo-rollout"),
		"--cycles", strconv.Itoa(d.Cycles),
		"--steps", strconv.Itoa(d.Steps),
		"--megabytes", strconv.Itoa(d.Megabytes),
	}
}

// device is the environment that names the software device and its capacity.
func (d *demo) device() []string {
	return []string{
		"SOFTGPU_NODE=" + d.node,
		"SOFTGPU_DEVICES=1",
		"SOFTGPU_MEM_MB=" + strconv.Itoa(d.deviceMiB()),
		"DEMO_EVENTS=" + filepath.Join(d.dir, "events"),
	}
}

// plainJob is the job without ebb: the ranks, started as any launcher would.
func (d *demo) plainJob() ([]process, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	libraries := filepath.Join(d.Dist, "lib/softgpu")
	if old := os.Getenv("LD_LIBRARY_PATH"); old != "" {
		libraries += ":" + old
	}
	var ranks []process
	for rank := range d.Ranks {
		n, world := strconv.Itoa(rank), strconv.Itoa(d.Ranks)
		ranks = append(ranks, process{
			name: "rank " + n,
			args: d.trainCommand(),
			env: append(d.device(), "LD_LIBRARY_PATH="+libraries,
				"RANK="+n, "LOCAL_RANK="+n, "WORLD_SIZE="+world, "LOCAL_WORLD_SIZE="+world,
				"MASTER_ADDR=127.0.0.1", "MASTER_PORT="+strconv.Itoa(port)),
		})
	}
	return ranks, nil
}

// parkedJob is the same job under ebb.
func (d *demo) parkedJob() []process {
	return []process{{
		name: "ebb run",
		args: append([]string{
			filepath.Join(d.Dist, "bin/ebb"), "run", "--device", "soft", "--nproc-per-node", strconv.Itoa(d.Ranks),
			"--offload-train", "--offload-train-target", "disk", "--offload-train-disk-dir", d.diskDir(),
			"--offload-train-disk-chunk-mb", strconv.Itoa(chunkMB), "--grace", rankGrace.String(), "--",
		}, d.trainCommand()...),
		env: d.device(),
	}}
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

// run runs one job to its end and returns what it reported, also when it failed.
func (d *demo) run(ctx context.Context, processes []process) (*record, error) {
	r := newRecord(d.Ranks)
	events, err := openEvents(filepath.Join(d.dir, "events"), func(e event) {
		r.add(e)
		d.bar.event(e)
	})
	if err != nil {
		return r, err
	}
	d.output = &tail{}
	err = runJob(ctx, processes, d.output)
	if cause := d.output.Cause(); err != nil && ctx.Err() == nil && cause != "" {
		err = fmt.Errorf("%w: %s", err, cause)
	}
	return r, errors.Join(err, events.Close())
}

// oneLine is an error as one line of text.
func oneLine(err error) string {
	return strings.Join(strings.Fields(err.Error()), " ")
}
