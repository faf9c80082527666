package launch

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"golang.org/x/sys/unix"

	"github.com/ebb-offload/ebb/internal/filesys"
	"github.com/ebb-offload/ebb/internal/rankdir"
)

// claims are the rank directories of a run, held from before its ranks start until they have
// ended and their files are gone.
type claims struct {
	places Places
	list   []*rankdir.Claim // of every rank in every disk directory
	disks  Disks
	grace  time.Duration
	// discard: the blocks of what is removed are given back first, where that can be done.
	discard bool
	say     func(string)
}

// claimAll sweeps the disk directories and claims the directories of all ranks, or none. A job
// name that was only a default gets a new ending when another run has the same ranks.
func claimAll(disks Disks, places Places, ranks []Rank, o Options, say func(string)) (*claims, error) {
	c := &claims{places: places, disks: disks, grace: o.Grace, discard: o.Discard, say: say}
	c.sweep()
	err := c.claim(ranks)
	if errors.Is(err, rankdir.ErrInUse) && o.Job == "" {
		job, uniqueErr := UniqueJob(ranks[0].Job)
		if uniqueErr != nil {
			return nil, uniqueErr
		}
		for i := range ranks {
			ranks[i].Job = job
		}
		err = c.claim(ranks)
	}
	if err == nil {
		return c, nil
	}
	var d *rankdir.DirError
	if errors.As(err, &d) {
		return nil, &Error{Status: StatusUsage, Text: d.Error(), Err: err}
	}
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return nil, failf(StatusDirectory, "%w: make room there, or name another disk directory", err)
	}
	return nil, failf(StatusDirectory, "%w", err)
}

// claim claims all ranks, each in every disk directory, and notes their directories in them. After an
// error it holds none.
func (c *claims) claim(ranks []Rank) error {
	for i := range ranks {
		r := &ranks[i]
		made := map[string]*rankdir.Claim{} // by disk directory
		for _, base := range c.places.All {
			claim, err := c.disks.claim(base, r.identity(), rankdir.ClaimOptions{Reclaimed: c.tell, Discard: c.discard})
			if err != nil {
				c.reclaim()
				c.list = nil
				return err
			}
			c.list = append(c.list, claim)
			made[base] = claim
		}
		in := func(bases []string) (dirs, leases []string) {
			for _, base := range BasesOf(bases, *r) {
				dirs, leases = append(dirs, made[base].Dir()), append(leases, made[base].LeasePath())
			}
			return dirs, leases
		}
		r.Dirs, r.Leases = in(c.places.Disk)
		r.StateDirs, r.StateLeases = in(c.places.State)
	}
	return nil
}

// sweep removes what dead runs left in the disk directories. Its problems are no reason not to
// run.
func (c *claims) sweep() {
	for _, base := range c.places.All {
		c.sweepOne(base)
	}
}

func (c *claims) sweepOne(base string) {
	reports, err := c.disks.sweep(base, rankdir.SweepOptions{Discard: c.discard})
	for _, r := range reports {
		if r.State == rankdir.Reclaimed {
			c.tell(r)
		}
	}
	if err != nil {
		c.problem(base, err, "cannot remove all that ended runs left: ")
	}
}

// tell says what a dead run had left, if that was worth a line.
func (c *claims) tell(r rankdir.Report) {
	switch {
	case r.State == rankdir.Reclaimed && len(r.Files) > 0:
		c.say(fmt.Sprintf("removed %s, %s, that an ended run left in %s", Count(len(r.Files), "file"), humanize.IBytes(r.Bytes), r.Dir))
	case r.State == rankdir.KeptForeign:
		c.say(fmt.Sprintf("left alone what an ended run left in %s: %s", r.Dir, r.Why))
	}
}

// reclaim removes the files and directories of all ranks, which have ended.
func (c *claims) reclaim() {
	c.tellWritten()
	for _, claim := range c.list {
		c.reclaimOne(claim)
	}
	for _, base := range c.places.All {
		if err := c.disks.forget(base, c.ranksIn(base)); err != nil {
			c.problem(base, err, "")
		}
	}
}

// problem says what failed in a disk directory; that it gives no answer once, with what to do.
func (c *claims) problem(base string, err error, what string) {
	switch {
	case saidBefore(err):
	case errors.Is(err, filesys.ErrHang):
		c.say(fmt.Sprintf("%s; what ranks left there is then for: ebb gc --disk-dir %s", oneLine(err), base))
	default:
		c.say(what + oneLine(err))
	}
}

// ranksIn are the directories of this run's ranks in a disk directory, from there.
func (c *claims) ranksIn(base string) (ranks []string) {
	for _, claim := range c.list {
		if filepath.Dir(filepath.Dir(claim.LeasePath())) == base {
			ranks = append(ranks, claim.Identity().Path(""))
		}
	}
	return ranks
}

// tellWritten says what the ranks wrote to the drives during the run, if that was anything. The processes of a
// rank that was started again count together.
func (c *claims) tellWritten() {
	var total uint64
	var each []string
	for _, base := range c.places.All {
		n, err := c.disks.written(base, c.ranksIn(base))
		if err != nil {
			c.problem(base, err, "")
		}
		if n > 0 {
			each = append(each, fmt.Sprintf("%s to %s", humanize.Bytes(n), base))
		}
		total += n
	}
	switch len(each) {
	case 0:
	case 1:
		c.say("the ranks wrote " + each[0])
	default:
		c.say(fmt.Sprintf("the ranks wrote %s: %s", humanize.Bytes(total), strings.Join(each, ", ")))
	}
}

// reclaimOne removes one rank's. A process that the rank left behind and that still uses the
// directory is ended first: the rank is over, and its files go with it.
func (c *claims) reclaimOne(claim *rankdir.Claim) {
	deadline := time.Now().Add(c.grace)
	base := filepath.Dir(filepath.Dir(claim.LeasePath()))
	for {
		report, err := c.disks.reclaim(base, claim)
		switch {
		case errors.Is(err, filesys.ErrHang): // the claim may be at work: it goes with this process
			c.problem(base, err, "")
		case errors.Is(err, rankdir.ErrInUse):
			if c.endHolder(report.HeldBy, base, claim, time.Until(deadline)) {
				continue
			}
			c.say(fmt.Sprintf("%s is still in use (%s); once that has ended, run: ebb gc --disk-dir %s", report.Dir, holderName(report.HeldBy), base))
			claim.Close()
		case err != nil:
			c.say(fmt.Sprintf("%s; when the cause is mended, run: ebb gc --disk-dir %s", oneLine(err), base))
			claim.Close()
		case report.State == rankdir.KeptForeign:
			c.say(fmt.Sprintf("%s stays: %s (%s)", report.Dir, report.Why, strings.Join(report.Left, " ")))
			claim.Close()
		}
		return
	}
}

// endHolder kills the process that holds a rank's lease and waits for its end. The descriptor
// keeps the number from naming another process between the two looks.
func (c *claims) endHolder(pid int, base string, claim *rankdir.Claim, limit time.Duration) bool {
	if pid <= 0 || limit <= 0 {
		return false
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return true
	}
	if err != nil {
		return false
	}
	defer func() { _ = unix.Close(fd) }()
	again, err := c.disks.reclaim(base, claim)
	if !errors.Is(err, rankdir.ErrInUse) {
		return true
	}
	if again.HeldBy != pid {
		return true
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil {
		return errors.Is(err, unix.ESRCH)
	}
	timeout := unix.NsecToTimespec(limit.Nanoseconds())
	n, err := unix.Ppoll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, &timeout, nil)
	return n > 0 || errors.Is(err, unix.EINTR)
}

func holderName(pid int) string {
	if pid <= 0 {
		return "by a process in another pid namespace or on another node"
	}
	return fmt.Sprintf("by process %d", pid)
}

// identity is the rank's for its directory.
func (r Rank) identity() rankdir.Identity {
	return rankdir.Identity{Job: r.Job, Role: r.Role, Cell: r.Cell, Rank: max(r.Rank, 0)}
}

// checkIdentity refuses names that make no directories, in the words of the flags.
func (r Rank) checkIdentity() error {
	var bad *rankdir.IdentityError
	if err := r.identity().Validate(); errors.As(err, &bad) {
		return Usagef("--%s %q: %s", bad.Field, bad.Value, bad.Rule)
	} else if err != nil {
		return Usagef("%w", err)
	}
	return nil
}

func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }
