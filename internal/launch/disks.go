package launch

import (
	"errors"
	"math"
	"strconv"
	"time"

	"github.com/ebb-offload/ebb/internal/filesys"
	"github.com/ebb-offload/ebb/internal/rankdir"
	"github.com/ebb-offload/ebb/internal/usage"
)

// Disks is the work in disk directories that ebb itself does. Each piece is waited for no longer than
// EBB_IO_TIMEOUT without progress: a disk that gives no answer fails it with filesys.ErrHang and its path,
// and in that directory nothing further is begun, so that it is waited for once.
type Disks struct{ deadline *filesys.Deadline }

// defaultIOTimeout is that of the ranks.
const defaultIOTimeout = 120 * time.Second

// NewDisks takes the deadline from the environment. What is no number of seconds is ignored: the ranks say so.
func NewDisks(getenv func(string) string) Disks {
	limit := defaultIOTimeout
	s, err := strconv.ParseFloat(getenv("EBB_IO_TIMEOUT"), 64)
	if err == nil && s >= 0 && s < math.MaxInt64/float64(time.Second) {
		limit = time.Duration(s * float64(time.Second))
	}
	return Disks{deadline: filesys.NewDeadline(filesys.Kernel{}, limit)}
}

// InDirectory does work in a disk directory; what names it. do calls moved whenever it gets on. late undoes a
// result that comes after the deadline; nil: there is nothing to undo.
func InDirectory[T any](d Disks, what, dir string, do func(moved func()) (T, error), late func(T)) (T, error) {
	return filesys.Do(d.deadline, what, dir, func() (T, error) {
		return do(func() { d.deadline.Moved(dir) })
	}, late)
}

func (d Disks) only(what, dir string, do func() error) error {
	_, err := InDirectory(d, what, dir, func(func()) (struct{}, error) { return struct{}{}, do() }, nil)
	return err
}

// Check is CheckDirectory.
func (d Disks) Check(dir string, allowRAM bool) (warning string, err error) {
	warning, err = InDirectory(d, "check", dir, func(func()) (string, error) { return CheckDirectory(dir, allowRAM) }, nil)
	return warning, withStatus(err)
}

// Make is MakeDirectory.
func (d Disks) Make(dir string) error {
	return withStatus(d.only("creation", dir, func() error { return MakeDirectory(dir) }))
}

// withStatus gives the error of a disk that hangs the status of a directory that cannot be used.
func withStatus(err error) error {
	if errors.Is(err, filesys.ErrHang) {
		return failf(StatusDirectory, "%w", err)
	}
	return err
}

// sweep is rankdir.Sweep.
func (d Disks) sweep(dir string, how rankdir.SweepOptions) ([]rankdir.Report, error) {
	return InDirectory(d, "sweep", dir, func(moved func()) ([]rankdir.Report, error) {
		how.Progress = moved
		return rankdir.Sweep(dir, how)
	}, nil)
}

// claim is rankdir.NewClaim. A claim that comes late is given up: a sweep will find what it made.
func (d Disks) claim(dir string, id rankdir.Identity, o rankdir.ClaimOptions) (*rankdir.Claim, error) {
	return InDirectory(d, "claim", dir, func(moved func()) (*rankdir.Claim, error) {
		o.Progress = moved
		return rankdir.NewClaim(dir, id, o)
	}, (*rankdir.Claim).Close)
}

// reclaim is a claim's, made in a disk directory.
func (d Disks) reclaim(dir string, c *rankdir.Claim) (rankdir.Report, error) {
	return InDirectory(d, "removal of the files", dir, func(func()) (rankdir.Report, error) { return c.Reclaim() }, nil)
}

// written is usage.Written, and forget usage.Collect.
func (d Disks) written(dir string, ranks []string) (uint64, error) {
	return InDirectory(d, "count", dir, func(func()) (uint64, error) { return usage.Written(dir, ranks) }, nil)
}

func (d Disks) forget(dir string, ranks []string) error {
	return d.only("count", dir, func() error { return usage.Collect(dir, ranks) })
}

// saidBefore says that an error only repeats that a disk gives no answer.
func saidBefore(err error) bool {
	var hang *filesys.HangError
	return errors.As(err, &hang) && hang.Because != ""
}
