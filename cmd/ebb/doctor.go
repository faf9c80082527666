package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/ebb-offload/ebb/internal/doctor"
	"github.com/ebb-offload/ebb/internal/launch"
)

// statusUnfit is what ebb doctor ends with when a check failed.
const statusUnfit = 1

// diagnosis is what ebb doctor --json prints.
type diagnosis struct {
	MessageType string           `json:"message_type"`
	OK          bool             `json:"ok"` // no check failed
	Checks      []doctor.Finding `json:"checks"`
	Facts       []doctor.Fact    `json:"facts"`
	Seconds     float64          `json:"seconds"`
}

func newDoctor() *cobra.Command {
	o := doctor.Options{Device: launch.DeviceAuto}
	var (
		dirs   []string
		asJSON bool
	)
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Look at everything that a run needs, and say what is wrong",
		Long: `Looks at ebb's own files, Python, driver and device, the disk directories, limits, host memory and
variables, and with --pid at a process that runs: a row for each question, with what to do. It ends
with a block to paste into a bug report. Nothing is changed; how fast the disks are is measured
with a nameless file of 512 MiB, for some seconds each (--quick leaves that out).

Ends with 0 when nothing failed, with 1 when a check did. What a check cannot look at is said and
is no failure. docs/doctor.md explains each row.`,
		Example: `  ebb doctor --disk-dir /scratch/$USER/ebb
  ebb doctor --quick --device soft
  ebb doctor --pid 4711`,
		Args:    noArgs,
		PreRunE: func(cmd *cobra.Command, _ []string) error { return fromEnvironment(cmd) },
		RunE: func(cmd *cobra.Command, _ []string) error {
			sayUnknown(cmd)
			o.Given = len(dirs) > 0 || os.Getenv("EBB_OFFLOAD_TRAIN_DISK_DIR") != ""
			if len(dirs) == 0 {
				var err error
				if dirs, err = defaultDirs(); err != nil {
					return err
				}
			}
			return doctorVerb(cmd.Context(), o, dirs, asJSON)
		},
	}
	f := cmd.Flags()
	f.Var(&value{kind: "DIR", parse: func(s string) error {
		more, err := launch.ParseDirs(s)
		dirs = append(dirs, more...)
		return err
	}}, "disk-dir", "disk directory to look at, or several with commas or given repeatedly (default EBB_OFFLOAD_TRAIN_DISK_DIR, else that of ebb run)")
	f.Var(&value{kind: "PID", parse: into(&o.PID, parsePID)}, "pid", "look at this process too: is ebb at work in it, and what is in its way")
	annotate(f, "pid", notInside)
	f.Var(&value{text: o.Device, kind: "auto|cuda|soft", parse: into(&o.Device, word(launch.DeviceAuto, launch.DeviceCUDA, launch.DeviceSoft))},
		"device", "auto and cuda: the CUDA driver; soft: the software device")
	onOffTo(f, &o.Quick, "quick", "leave out what takes seconds: the rates of the disks, and what needs a context on a device")
	onOffTo(f, &asJSON, "json", "print JSON")
	return cmd
}

func parsePID(s string) (int, error) {
	pid, err := strconv.Atoi(s)
	if err != nil || pid < 1 {
		return 0, fmt.Errorf("must be the number of a process")
	}
	return pid, nil
}

func doctorVerb(ctx context.Context, o doctor.Options, dirs []string, asJSON bool) error {
	for _, dir := range dirs {
		abs, err := filepath.Abs(dir)
		if err != nil {
			return launch.Usagef("--disk-dir %s: %w; name an absolute path", dir, err)
		}
		o.DiskDirs = append(o.DiskDirs, abs)
	}
	executable, err := os.Executable()
	if err != nil {
		return fmt.Errorf("finding the path of ebb: %w", err)
	}
	if o.Libraries, err = launch.FindLibraries(executable, os.Getenv); err != nil {
		return err
	}
	o.Environ = os.Environ()
	o.Self = func(args ...string) *exec.Cmd {
		cmd := exec.Command("/proc/self/exe", args...)
		cmd.Args[0] = os.Args[0]
		return cmd
	}
	showing := newProgress(os.Stderr)
	o.Progress = showing.say
	ctx, stop := untilSignal(ctx)
	result := doctor.Run(ctx, o)
	showing.end()
	cause := context.Cause(ctx)
	stop()
	var ended signalError
	if errors.As(cause, &ended) {
		return benchFailed(ended)
	}
	if asJSON {
		if err := printJSON(diagnosis{"doctor", result.OK(), result.Findings, result.Facts, result.Seconds}); err != nil {
			return err
		}
	} else {
		result.WriteText(stdout, coloured(os.Stdout))
	}
	if !result.OK() {
		return statusError(statusUnfit)
	}
	return nil
}

// newDoctorLook is the verb of the child that looks at what may hang; see internal/doctor/child.go.
func newDoctorLook() *cobra.Command {
	return &cobra.Command{
		Use:    doctor.Verb + " PART …",
		Short:  "Look at a part of what ebb doctor looks at",
		Hidden: true,
		Args:   cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return doctor.Look(cmd.Context(), os.Stdout, os.Environ(), args)
		},
	}
}
