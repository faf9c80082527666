// Command ebb-demo shows ebb at work without a GPU: a small language model is trained on the
// software device, once straight through and once under `ebb run`, where `ebb swap` hands the device
// over to a rollout engine between the phases of training. Both runs must agree to the last bit. README.md of this folder explains the parts.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/term"
)

func main() {
	os.Exit(command(os.Args[1:], os.Stdout, os.Stderr))
}

// command is the program; it returns the exit status: 0, 1 for a demo that failed, 2 for wrong
// usage.
func command(args []string, stdout, stderr io.Writer) int {
	c, asJSON, err := parse(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp): // printed by parse
		return 0
	case err != nil:
		fmt.Fprintln(stderr, "ebb-demo:", err)
		return 2
	}

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	var progress *bar
	if isTerminal(stdout) && isTerminal(stderr) && moves(os.Getenv("TERM")) && !asJSON {
		progress = newBar(stderr, c)
	}
	res, err := run(ctx, c, progress)
	progress.stop()
	if ctx.Err() != nil {
		err, res.Output = errors.New("interrupted"), nil
	}

	if asJSON {
		if e := printJSON(stdout, res, err); e != nil {
			err = errors.Join(err, e)
		}
		fmt.Fprintln(stderr, finalLine(res, err))
	} else {
		if err == nil {
			printReport(stdout, res, isTerminal(stdout) && os.Getenv("NO_COLOR") == "")
		}
		for _, line := range res.Output {
			fmt.Fprintln(stderr, "|", line)
		}
		fmt.Fprintln(stdout, finalLine(res, err))
	}
	if err != nil {
		return 1
	}
	return 0
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

func parse(args []string, stderr io.Writer) (c config, asJSON bool, err error) {
	flags := flag.NewFlagSet("ebb-demo", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // errors are printed once, by the caller
	flags.IntVar(&c.Cycles, "cycles", 4, "pauses, each with a rollout")
	flags.IntVar(&c.Ranks, "ranks", 2, "ranks of the training job")
	flags.IntVar(&c.Steps, "steps", 20, "training steps before each cycle and after the last")
	flags.IntVar(&c.Megabytes, "megabytes", 360, "training state of one rank, in MB, about")
	flags.DurationVar(&c.Timeout, "timeout", 15*time.Minute, "give up after this time")
	device := flags.String("device", "soft", "the software GPU; for a real one run demo_gpu.py")
	flags.BoolVar(&asJSON, "json", false, "print the result as JSON; the final line goes to stderr")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(stderr, "usage: ebb-demo [flags]")
			flags.SetOutput(stderr)
			flags.PrintDefaults()
		}
		return c, asJSON, err
	}
	switch {
	case flags.NArg() > 0:
		return c, asJSON, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	case *device != "soft":
		return c, asJSON, fmt.Errorf("--device %s: this demo runs on the software device only; for a GPU run make demo-gpu", *device)
	case c.Ranks < 1 || c.Ranks > 64:
		return c, asJSON, fmt.Errorf("--ranks %d: must be from 1 to 64", c.Ranks)
	case c.Cycles < 1 || c.Cycles > 1000:
		return c, asJSON, fmt.Errorf("--cycles %d: must be from 1 to 1000", c.Cycles)
	case c.Steps < 1 || c.Steps > 10000:
		return c, asJSON, fmt.Errorf("--steps %d: must be from 1 to 10000", c.Steps)
	case c.Megabytes < 16 || c.Megabytes > 16000:
		return c, asJSON, fmt.Errorf("--megabytes %d: must be from 16 to 16000", c.Megabytes)
	case c.Timeout <= 0:
		return c, asJSON, fmt.Errorf("--timeout %v: must be more than 0", c.Timeout)
	}
	return c, asJSON, locate(&c)
}

// locate finds what was built, beside this program, and a folder on a disk to work in: build/ of
// the repository, or EBB_DEMO_DIR.
func locate(c *config) error {
	program, err := os.Executable()
	if err == nil {
		program, err = filepath.EvalSymlinks(program)
	}
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	c.Dist = filepath.Dir(filepath.Dir(program))
	c.Base = os.Getenv("EBB_DEMO_DIR")
	if c.Base == "" {
		c.Base = filepath.Join(filepath.Dir(c.Dist), "build")
	}
	if c.Base, err = filepath.Abs(c.Base); err != nil {
		return err
	}
	return c.missing()
}

// missing says what is not built.
func (c config) missing() error {
	for _, name := range []string{
		"bin/ebb", "bin/demo-train", "bin/demo-rollout", "lib/libebb.so", "lib/libebb-engine.so",
		"lib/softgpu/libcuda.so.1", "lib/softgpu/libcudart.so.13", "lib/softgpu/demo_kernels.so",
	} {
		if _, err := os.Stat(filepath.Join(c.Dist, name)); err != nil {
			return fmt.Errorf("%s is not built: run make build", filepath.Join(c.Dist, name))
		}
	}
	return nil
}
