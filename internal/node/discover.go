package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/ebb-offload/ebb/internal/control"
	"github.com/ebb-offload/ebb/internal/control/client"
	"github.com/ebb-offload/ebb/internal/rankdir"
)

// Discover finds the ranks in the places and asks all at once who they are. Each has Patience to say so. An error
// says which places could not be looked at, or that the context ended early; what was found is returned all the same,
// and those who have not answered by then are among the silent.
func Discover(ctx context.Context, places Places) (ranks []Rank, silent []Silent, err error) {
	paths, err := places.sockets()
	type answer struct {
		rank   Rank
		silent *Silent
	}
	answers := make([]answer, len(paths))
	var all sync.WaitGroup
	for i, path := range paths {
		all.Go(func() {
			rank, why := greet(ctx, path)
			if why != nil {
				answers[i].silent = unanswered(path, why)
				return
			}
			answers[i].rank = rank
		})
	}
	all.Wait()
	for _, a := range answers {
		if a.silent != nil {
			silent = append(silent, *a.silent)
		} else {
			ranks = append(ranks, a.rank)
		}
	}
	slices.SortStableFunc(ranks, func(a, b Rank) int { return compare(a.Who, b.Who) })
	slices.SortStableFunc(silent, func(a, b Silent) int { return compare(a.Who, b.Who) })
	return ranks, silent, errors.Join(err, ctx.Err())
}

// greet asks one rank who it is.
func greet(ctx context.Context, path string) (Rank, error) {
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	c, err := client.Dial(ctx, path)
	if err != nil {
		return Rank{}, err
	}
	defer c.Close()
	hello := c.Hello()
	return Rank{Who: hello.Who, Socket: path, Version: hello.EBB, Started: hello.Started}, nil
}

// compare orders ranks by job, role, cell, rank and process.
func compare(a, b control.Who) int {
	for _, pair := range [][2]string{{a.Job, b.Job}, {a.Role, b.Role}, {a.Cell, b.Cell}, {a.Rank, b.Rank}} {
		switch {
		case before(pair[0], pair[1]):
			return -1
		case before(pair[1], pair[0]):
			return 1
		}
	}
	return a.PID - b.PID
}

// unanswered says who does not answer on a socket and why. The socket of a process that has ended for certain is
// removed: its own removal did not come to pass.
func unanswered(path string, why error) *Silent {
	s := &Silent{Socket: path}
	owner, named := control.ParseSocketName(filepath.Base(path))
	if named {
		s.PID = owner.PID
	}
	if refused(why) && control.Dead(filepath.Base(path)) {
		s.Dead, s.Why = true, "the process has ended"
		_ = unix.Unlink(path) // it stays where it is in the way of nobody
		return s
	}
	if named && rankdir.Alive(owner) {
		s.Who = whoIs(owner.PID)
	}
	s.Why, s.Late = reason(why, s.PID), errors.Is(why, context.DeadlineExceeded)
	return s
}

// refused reports whether nobody listens on a socket.
func refused(err error) bool {
	return errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.ENOENT)
}

// whoIs is who a process is by its environment, as its launcher set it.
func whoIs(pid int) control.Who {
	w := control.Who{PID: pid}
	environ, err := environment(pid)
	if err == nil {
		w.Job, w.Role, w.Cell, w.Rank = environ["EBB_JOB"], environ["EBB_ROLE"], environ["EBB_CELL"], environ["EBB_RANK"]
	}
	return w
}

// reason says why a rank did not answer, and what to do.
func reason(err error, pid int) string {
	var refusal *control.Error
	switch {
	case errors.As(err, &refusal):
		return refusal.Message
	case errors.Is(err, context.DeadlineExceeded):
		return "no answer in time: " + condition(pid)
	case errors.Is(err, context.Canceled):
		return "no answer yet when the look at the ranks was ended"
	case refused(err):
		return "nobody listens: the process is about to end, or has closed its control socket"
	case errors.Is(err, client.ErrEnded):
		return "the connection ended: the process has ended, or has no room for another one"
	case errors.Is(err, unix.EACCES):
		return "permission denied: it is another user's"
	}
	return strings.Join(strings.Fields(err.Error()), " ")
}

// condition is what the kernel knows of a process that does not answer.
func condition(pid int) string {
	switch state(pid) {
	case "T", "t":
		return fmt.Sprintf("the process is stopped (kill -CONT %d lets it go on)", pid)
	case "D":
		return fmt.Sprintf("the process waits in the kernel (/proc/%d/stack, dmesg)", pid)
	case "Z", "X":
		return "the process is ending"
	case "":
		return "the process cannot be looked at from here"
	}
	return fmt.Sprintf("the process is busy, or its engine hangs (kill -QUIT %d ends it and shows where)", pid)
}

// state is the letter of proc(5) for a process; empty where it is not known.
func state(pid int) string {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return ""
	}
	_, after, _ := bytes.Cut(text[max(0, bytes.LastIndexByte(text, ')')):], []byte(" ")) // the program's name may hold anything
	letter, _, _ := strings.Cut(string(after), " ")
	return letter
}
