package main

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ebb-offload/ebb/internal/rankdir"
)

// actAsRank is a rank that behaves on disk like a trainer with the engine in it: it holds the
// rank's lease and has data files in the rank's directory. Its arguments are things to do, in
// order; in them, variables are replaced.
//
//	hold N        take the lease, as the engine does, and write N files that bear its content
//	check         the files still have that content
//	keep TEXT     have another file of that name in the directory
//	pid FILE      write its process number to a file
//	touch FILE    make a file
//	await FILE    wait until a file is there
//	say TEXT      write to standard output, without a line end
//	wait          wait to be ended
//	on SIGNAL=FILE      from here on, make the file when the signal comes, instead of ending
//	quit SIGNAL=STATUS  from here on, end with that status when the signal comes
//	exit STATUS   end
//	die SIGNAL    end by a signal
//	run CMD...    run a command, which must succeed, and go on with nothing
func actAsRank(args []string) int {
	r := &fakeRank{}
	for len(args) > 0 {
		rest, status, err := r.act(args)
		if err != nil {
			fmt.Fprintf(os.Stderr, "rank: %s: %v\n", args[0], err)
			return 99
		}
		if status >= 0 {
			return status
		}
		args = rest
	}
	return 0
}

// outlasts is longer than any test waits for the end of a rank, so that one which nobody ends is
// not taken for one which was.
const outlasts = 2 * hang

type fakeRank struct {
	lease *rankdir.Lease
	files []string
}

// act does the first thing of a list. The status is -1, or what the rank ends with now.
func (r *fakeRank) act(args []string) (rest []string, status int, err error) {
	verb, arg := args[0], ""
	if len(args) > 1 {
		arg = os.ExpandEnv(args[1])
		rest = args[2:]
	}
	switch verb {
	case "hold":
		return rest, -1, r.hold(arg)
	case "check":
		return args[1:], -1, r.check()
	case "keep":
		return rest, -1, os.WriteFile(filepath.Join(os.Getenv("TMS_DISK_BACKUP_DIR"), arg), []byte("mine"), 0o600)
	case "pid":
		return rest, -1, replaceFile(arg, fmt.Sprintln(os.Getpid()))
	case "touch":
		return rest, -1, replaceFile(arg, "")
	case "await":
		return rest, -1, within(outlasts, arg, func() bool { _, err := os.Stat(arg); return err == nil })
	case "say":
		_, err = os.Stdout.WriteString(arg)
		return rest, -1, err
	case "wait":
		time.Sleep(outlasts) // a signal ends it
		return args[1:], -1, fmt.Errorf("nobody ended it in %v", outlasts)
	case "on":
		return rest, -1, onSignal(arg, func(file string) error { return replaceFile(file, "") })
	case "quit":
		return rest, -1, onSignal(arg, func(status string) error {
			n, err := strconv.Atoi(status)
			if err == nil {
				os.Exit(n)
			}
			return err
		})
	case "exit":
		status, err = strconv.Atoi(arg)
		return rest, status, err
	case "die":
		sig, err := signalNamed(arg)
		if err == nil {
			err = syscall.Kill(os.Getpid(), sig)
		}
		time.Sleep(outlasts)
		return rest, -1, err
	case "run":
		cmd := exec.Command(args[1], args[2:]...)
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		return nil, -1, cmd.Run()
	}
	return nil, -1, fmt.Errorf("unknown")
}

func replaceFile(name, text string) error {
	temp := fmt.Sprintf("%s.%d", name, os.Getpid())
	if err := os.WriteFile(temp, []byte(text), 0o600); err != nil {
		return err
	}
	return os.Rename(temp, name)
}

// hold does on disk what the engine does at the first pause.
func (r *fakeRank) hold(number string) error {
	n, err := strconv.Atoi(number)
	if err != nil {
		return err
	}
	if lease := os.Getenv("EBB_LEASE"); lease != "" {
		if r.lease, err = rankdir.HoldLease(lease); err != nil {
			return err
		}
	}
	self, err := rankdir.Self()
	if err != nil {
		return err
	}
	for i := range n {
		name := filepath.Join(os.Getenv("TMS_DISK_BACKUP_DIR"), self.DataFile(uint64(i)))
		f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL|syscall.O_NOFOLLOW, 0o600)
		if err != nil {
			return err
		}
		if _, err = f.Write(content(i)); err != nil {
			return err
		}
		if err := f.Close(); err != nil {
			return err
		}
		r.files = append(r.files, name)
	}
	return nil
}

// check compares the files with what hold wrote.
func (r *fakeRank) check() error {
	for i, name := range r.files {
		got, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		if !bytes.Equal(got, content(i)) {
			return fmt.Errorf("%s has the content of somebody else", name)
		}
	}
	return nil
}

// content is what no other process's file number i holds.
func content(i int) []byte {
	sum := sha256.Sum256(fmt.Appendf(nil, "%d %s %s %s %s %d", os.Getpid(), os.Getenv("EBB_JOB"), os.Getenv("EBB_ROLE"), os.Getenv("EBB_CELL"), os.Getenv("EBB_RANK"), i))
	return bytes.Repeat(sum[:], 256)
}

func signalNamed(name string) (syscall.Signal, error) {
	if sig := unix.SignalNum("SIG" + name); sig != 0 {
		return sig, nil
	}
	return 0, fmt.Errorf("no signal %s", name)
}

// onSignal calls do, with what stands after the = of SIGNAL=WORD, whenever the signal comes.
func onSignal(arg string, do func(word string) error) error {
	name, word, _ := strings.Cut(arg, "=")
	sig, err := signalNamed(name)
	if err != nil {
		return err
	}
	c := make(chan os.Signal, 16)
	signal.Notify(c, sig)
	go func() {
		for range c {
			if err := do(word); err != nil {
				fmt.Fprintf(os.Stderr, "rank: on %s: %v\n", arg, err)
			}
		}
	}()
	return nil
}
