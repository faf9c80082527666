package launch

import (
	"crypto/sha256"
	"fmt"
	"strings"

	"github.com/ebb-offload/ebb/internal/rankdir"
)

// DefaultJob names a job that was not given a name: after the outer launcher's job when there
// is one, else a name that no other run has. Inside another run of ebb it is always a new name
// below that run's, for the outer ranks hold their directories.
func DefaultJob(outer Outer, getenv func(string) string) (string, error) {
	unique, err := uniqueName()
	if err != nil {
		return "", err
	}
	if Nested(getenv) {
		return jobName(getenv("EBB_JOB"), unique), nil
	}
	if outer.Job != "" {
		return jobName(outer.Job, ""), nil
	}
	return "run-" + unique, nil
}

// UniqueJob is job with an ending that no other run has.
func UniqueJob(job string) (string, error) {
	unique, err := uniqueName()
	if err != nil {
		return "", err
	}
	return jobName(job, unique), nil
}

// maxJob keeps names of directories, leases and markers below the 255 bytes of file systems.
const maxJob = 96

// jobName makes a name of a directory from a launcher's name of a job. A name that had to be
// changed or cut gets a hash of the original, so that two jobs never become one.
func jobName(outer, unique string) string {
	name := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '-', r == '.', r == '_':
			return r
		default:
			return '-'
		}
	}, strings.TrimLeft(outer, "-."))
	limit := maxJob - len(unique)
	if name != outer || len(name) > limit {
		sum := fmt.Sprintf("-%x", sha256.Sum256([]byte(outer)))[:9]
		name = name[:min(len(name), limit-len(sum))] + sum
		name = strings.TrimLeft(name, "-.")
	}
	if unique != "" {
		name += "-" + unique
	}
	return name
}

// uniqueName is this process's id and start time, with a hash of the boot and of the pid
// namespace: no other process, in another container or on another node either, has it.
func uniqueName() (string, error) {
	self, err := rankdir.Self()
	if err != nil {
		return "", failf(StatusInternal, "finding a name for the job: %w; give one with --job", err)
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %d", self.BootID, self.PIDNamespace))
	return fmt.Sprintf("%d-%d-%x", self.PID, self.StartTime, sum[:4]), nil
}

// Nested reports whether this process runs inside a rank that ebb supervises. There, EBB_JOB
// and EBB_RANK say who that rank is; they are no wishes of the user.
func Nested(getenv func(string) string) bool { return getenv(envRun) != "" }

// envRun is set in every supervised rank, to the name of the run.
const envRun = "EBB_RUN"

// runName names this run on this node: the supervisor's pid and start time.
func runName() (string, error) {
	self, err := rankdir.Self()
	if err != nil {
		return "", failf(StatusInternal, "naming the run: %w", err)
	}
	return fmt.Sprintf("%d-%d", self.PID, self.StartTime), nil
}
