package rollout

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// command is an engine behind a command of the user's: /bin/sh runs it with a word after it.
//
//	sleep   returns with status 0 once the engine sleeps
//	wake    returns with status 0 once it is awake
//	status  prints awake, asleep or unknown, with status 0
type command struct {
	text string
	set  Settings
}

func (e *command) Name() string { return oneLine(e.text, 60) }
func (e *command) Kind() string { return KindCommand }
func (e *command) Hint() string { return "does the command return only when the engine sleeps?" }

func (e *command) State(ctx context.Context) (State, error) {
	ctx, cancel := context.WithTimeout(ctx, lookLimit)
	defer cancel()
	said, err := e.run(ctx, "status")
	if err != nil {
		return Unknown, err
	}
	word, _, _ := strings.Cut(strings.TrimSpace(said), "\n")
	for _, state := range []State{Unknown, Awake, Asleep} {
		if strings.TrimSpace(word) == state.String() {
			return state, nil
		}
	}
	return Unknown, &Error{Engine: e.Name(), Did: "status", Why: ErrAnswer, Text: fmt.Sprintf("it printed %q", oneLine(word, mostShown)),
		Remedy: "its first line must be awake, asleep or unknown"}
}

func (e *command) Sleep(ctx context.Context) error {
	_, err := e.run(ctx, "sleep")
	return err
}

func (e *command) Wake(ctx context.Context) error {
	_, err := e.run(ctx, "wake")
	return err
}

// run runs the command to its end and returns the end of what it printed on standard output.
func (e *command) run(ctx context.Context, word string) (string, error) {
	fail := func(why error, text, remedy string) error {
		return &Error{Engine: e.Name(), Did: word, Why: why, Text: text, Remedy: remedy}
	}
	// Files, not pipes: a process that the command leaves behind would keep those open.
	stdout, err := newOutput("stdout")
	if err != nil {
		return "", fail(ErrFailed, err.Error(), "")
	}
	defer stdout.Close()
	stderr, err := newOutput("stderr")
	if err != nil {
		return "", fail(ErrFailed, err.Error(), "")
	}
	defer stderr.Close()

	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", e.text+" "+word)
	cmd.Env = append(cmd.Environ(), "EBB_ENGINE_TAG="+strings.Join(e.set.Tags, ","), "EBB_ENGINE_LEVEL="+strconv.Itoa(e.set.Level))
	cmd.Stdout, cmd.Stderr = stdout, stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // so that all of it can be ended
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	err = cmd.Run()
	said := tail(stdout)
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return "", fail(ErrLate, "not done by the deadline; it was ended"+printed(stderr, said), "")
	case ctx.Err() != nil:
		return "", fail(ErrInterrupted, "interrupted; it was ended", "")
	case err != nil:
		remedy := ""
		if word == "status" {
			remedy = "a command that cannot tell prints unknown and ends with status 0"
		}
		return "", fail(ErrFailed, err.Error()+printed(stderr, said), remedy)
	}
	return said, nil
}

// printed is what a command said of its failure, for an error.
func printed(stderr *os.File, stdout string) string {
	for _, text := range []string{tail(stderr), stdout} {
		if text = strings.TrimSpace(text); text != "" {
			return ": " + oneLine(text, mostShown)
		}
	}
	return ""
}

// newOutput is a file in memory for what a command prints.
func newOutput(name string) (*os.File, error) {
	fd, err := unix.MemfdCreate("ebb-engine-command-"+name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("make a file in memory: %w", err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// tail is the end of what was printed. From now on nothing more is: what the command left behind may
// go on writing, and the file would grow.
func tail(f *os.File) string {
	const most = 4096
	_, _ = unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_GROW) // at worst it grows
	info, err := f.Stat()
	if err != nil {
		return ""
	}
	text := make([]byte, min(info.Size(), most))
	n, err := f.ReadAt(text, info.Size()-int64(len(text)))
	if err != nil && !errors.Is(err, io.EOF) {
		return ""
	}
	return string(text[:n])
}
