package slurm

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ebb-offload/ebb/internal/control"
	"github.com/ebb-offload/ebb/internal/rankdir"
)

// Membership is whether a rank is of a job.
type Membership int

// The values of Membership.
const (
	NotKnown Membership = iota
	Member
	Other
)

// MemberOf tells whether the rank with a control socket is of a job, whose parts have these numbers. Its process's
// environment says so, as Slurm set it; where that cannot be looked at (another pid namespace), the name of ebb's job,
// if it is Slurm's.
func MemberOf(numbers []string, socket string, who control.Who) Membership {
	if owner, ok := control.ParseSocketName(filepath.Base(socket)); ok && rankdir.Alive(owner) {
		if environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", owner.PID)); err == nil {
			if job, ok := jobOf(environ); ok {
				return member(slices.Contains(numbers, job))
			}
		}
	}
	rest, slurms := strings.CutPrefix(who.Job, "slurm-")
	number, _, _ := strings.Cut(rest, ".")
	number, _, _ = strings.Cut(number, "-")
	if !slurms || !idForm.MatchString(number) {
		return NotKnown
	}
	return member(slices.Contains(numbers, number))
}

func member(yes bool) Membership {
	if yes {
		return Member
	}
	return Other
}

// jobOf is the Slurm job of a process by its environment; ok is false where it has none.
func jobOf(environ []byte) (job string, ok bool) {
	for entry := range bytes.SplitSeq(environ, []byte{0}) {
		if value, found := bytes.CutPrefix(entry, []byte("SLURM_JOB_ID=")); found && idForm.Match(value) {
			return string(value), true
		}
	}
	return "", false
}
