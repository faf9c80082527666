package rankdir

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// TestWhileSymlinksTakePlaces: claims, leases, reclaims and sweeps run while a symlink takes the place
// of each directory on the way to a data file, again and again. It leads to what would be ebb's to
// remove, were it where the symlink is. Nothing there is touched, and once the swapping has stopped
// one sweep leaves nothing.
func TestWhileSymlinksTakePlaces(t *testing.T) {
	rounds := 100
	if os.Getenv("EBB_TEST_LONG") != "" {
		rounds = 500
	}
	id := testIdentity("job")
	for what, place := range map[string]string{"base": "", "ebb's own": "/.ebb", "job": "/job", "rank": "/job/actor_cell0_rank1"} {
		t.Run(what, func(t *testing.T) {
			top := t.TempDir()
			base, outside := filepath.Join(top, "base"), filepath.Join(top, "outside")
			// Ranks with marker, lease and files, and files of dead processes.
			deadRank(t, outside, "job")
			deadRank(t, outside, "other")
			write(t, filepath.Join(outside, "job/actor_cell0_rank1", gone(t).DataFile(0)), "theirs")
			write(t, filepath.Join(outside, gone(t).DataFile(1)), "theirs")
			before := tree(t, outside)
			deadRank(t, base, "other")
			if err := os.MkdirAll(id.Path(base), 0o700); err != nil {
				t.Fatal(err)
			}
			swaps := swap(t, base+place, filepath.Join(top, "spare"), outside+place)
			inPlace := 0
			for i := range rounds {
				if useOnce(t, base, id, uint64(i)) {
					inPlace++
				}
			}
			t.Logf("%d of %d claims were made between %d swaps", inPlace, rounds, swaps.stop())
			if diff := cmp.Diff(before, tree(t, outside)); diff != "" {
				t.Errorf("changed where the symlink leads to (-before +after):\n%s", diff)
			}
			if r, err := Sweep(base, SweepOptions{}); err != nil {
				t.Errorf("sweep: %+v, %v", r, err)
			}
			if err := removeEmpty(id.Path(base), filepath.Join(base, "job")); err != nil {
				t.Error(err)
			}
			if left := paths(tree(t, base)); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
		})
	}
}

// useOnce does all that is done with a rank directory. Every call may be refused, and none may touch
// what the test looks at afterwards. It reports whether there was a claim.
func useOnce(t *testing.T, base string, id Identity, seq uint64) bool {
	t.Helper()
	for _, how := range []SweepOptions{{Dry: true}, {Discard: true}} {
		reports, _ := Sweep(base, how)
		_, _ = SweepBare(base, reports, how)
	}
	c, err := NewClaim(base, id, ClaimOptions{Discard: seq%2 == 0})
	if err != nil {
		if errors.Is(err, ErrInUse) {
			t.Errorf("claim: %v", err)
		}
		return false
	}
	defer c.Close()
	if l, err := HoldLease(c.LeasePath()); err == nil {
		if r, err := c.Reclaim(); err == nil && r.State == Reclaimed {
			t.Errorf("reclaimed under a lease: %+v", r)
		}
		if err := l.Release(); err != nil {
			t.Error(err)
		}
	}
	_, _ = c.Reclaim()
	return true
}

// swapping exchanges two names in a loop.
type swapping struct {
	t       *testing.T
	end     chan struct{}
	done    sync.WaitGroup
	place   string
	spare   string
	swapped int
}

// swap makes spare a symlink to target and exchanges it with place until stop is called.
func swap(t *testing.T, place, spare, target string) *swapping {
	t.Helper()
	if err := os.Symlink(target, spare); err != nil {
		t.Fatal(err)
	}
	s := &swapping{t: t, end: make(chan struct{}), place: place, spare: spare}
	s.done.Go(func() {
		for {
			select {
			case <-s.end:
				return
			default:
				s.exchange()
			}
		}
	})
	return s
}

// exchange may find that the place was removed, empty as it was: it comes again.
func (s *swapping) exchange() {
	err := unix.Renameat2(unix.AT_FDCWD, s.place, unix.AT_FDCWD, s.spare, unix.RENAME_EXCHANGE)
	switch {
	case err == nil:
		s.swapped++
	case !errors.Is(err, unix.ENOENT):
		s.t.Error(err)
	}
}

// stop ends the swapping with the directory in its place, and returns how often it was swapped.
func (s *swapping) stop() int {
	close(s.end)
	s.done.Wait()
	if info, err := os.Lstat(s.place); err == nil && info.Mode()&os.ModeSymlink != 0 {
		if info, err := os.Lstat(s.spare); err == nil && info.IsDir() {
			s.exchange()
		}
	}
	return s.swapped
}

// removeEmpty removes directories that are there and empty.
func removeEmpty(dirs ...string) error {
	for _, dir := range dirs {
		if err := os.Remove(dir); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}
