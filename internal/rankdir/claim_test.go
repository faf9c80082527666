package rankdir

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// A parent that is missing may be a disk that is not mounted.
func TestAClaimDoesNotMakeWhatTheBaseIsIn(t *testing.T) {
	parent := filepath.Join(t.TempDir(), "missing")
	_, err := NewClaim(filepath.Join(parent, "base"), testIdentity("job"), ClaimOptions{})
	if !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), parent) {
		t.Errorf("error is %v", err)
	}
	if _, err := os.Lstat(parent); err == nil {
		t.Error("the parent was made")
	}
}

func TestClaimMakesAndReclaimRemoves(t *testing.T) {
	base := filepath.Join(t.TempDir(), "base")
	c := claim(t, base, "job")
	want := []string{".ebb/job__actor_cell0_rank1.lease", ".ebb/job__actor_cell0_rank1.marker", "job", "job/actor_cell0_rank1"}
	if diff := cmp.Diff(want, paths(tree(t, base))); diff != "" {
		t.Errorf("after the claim (-want +got):\n%s", diff)
	}
	for _, dir := range []string{base, base + "/.ebb", base + "/job", c.Dir()} {
		info, err := os.Stat(dir)
		if err != nil || info.Mode() != os.ModeDir|0o700 {
			t.Errorf("%s: %v (error: %v), want mode 0700", dir, info.Mode(), err)
		}
	}
	env := map[string]string{"TMS_DISK_BACKUP_DIR": base + "/job/actor_cell0_rank1", "EBB_LEASE": base + "/.ebb/job__actor_cell0_rank1.lease"}
	if diff := cmp.Diff(env, c.Env()); diff != "" {
		t.Errorf("environment (-want +got):\n%s", diff)
	}
	if err := writeDataFiles(c.Dir(), 3); err != nil {
		t.Fatal(err)
	}
	// This process lives, and so its files would be kept: it has ended as far as names go.
	renameToDead(t, c.Dir())
	r, err := c.Reclaim()
	if err != nil || r.State != Reclaimed || len(r.Files) != 3 || r.Bytes == 0 || len(r.Left) > 0 {
		t.Errorf("reclaim: %+v, %v", r, err)
	}
	if left := paths(tree(t, base)); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	if r, err := c.Reclaim(); err != nil || r.State != NothingThere {
		t.Errorf("a second reclaim: %+v, %v", r, err)
	}
}

// The maps of what its processes had parked go with a rank, and nobody else's.
func TestReclaimRemovesTheRanksMaps(t *testing.T) {
	base := filepath.Join(t.TempDir(), "base")
	c := claim(t, base, "job")
	ours := []string{"job__actor_cell0_rank1.12-345.map", "job__actor_cell0_rank1.7-8.map.tmp"}
	others := []string{".ebb/job__actor_cell0_rank1.12-345.map2", ".ebb/job__actor_cell0_rank1.map", ".ebb/job__actor_cell0_rank1.x__actor_cell0_rank0.12-345.map", ".ebb/job__actor_cell0_rank12.12-345.map", ".ebb/usage"}
	for _, name := range ours {
		writeFile(t, filepath.Join(base, ebbDir, name))
	}
	for _, name := range others {
		writeFile(t, filepath.Join(base, name))
	}
	if r, err := c.Reclaim(); err != nil || r.State != Reclaimed {
		t.Fatalf("%+v, %v", r, err)
	}
	if diff := cmp.Diff(others, paths(tree(t, base))); diff != "" {
		t.Errorf("left (-want +got):\n%s", diff)
	}
}

func writeFile(t *testing.T, path string) {
	t.Helper()
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
}

// renameToDead renames the data files of a directory to those of a process that is no more.
func renameToDead(t *testing.T, dir string) {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		o, seq, ok := ParseDataFile(e.Name())
		if !ok {
			continue
		}
		o.StartTime++
		if err := os.Rename(filepath.Join(dir, e.Name()), filepath.Join(dir, o.DataFile(seq))); err != nil {
			t.Fatal(err)
		}
	}
}

func TestBadIdentityMakesNothing(t *testing.T) {
	base := filepath.Join(t.TempDir(), "base")
	_, err := NewClaim(base, Identity{Job: "a/b", Role: "actor"}, ClaimOptions{})
	var bad *IdentityError
	if !errors.As(err, &bad) {
		t.Errorf("error: %v", err)
	}
	if _, err := os.Stat(base); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the base directory was made (%v)", err)
	}
}

// TestOneSupervisorPerIdentity, and any number of identities side by side.
func TestOneSupervisorPerIdentity(t *testing.T) {
	base := t.TempDir()
	other := start(t, "claim", base, "job")
	_, err := NewClaim(base, testIdentity("job"), ClaimOptions{})
	var busy *InUseError
	if !errors.As(err, &busy) || busy.PID != other.pid() || busy.Who != "supervisor" || !strings.Contains(err.Error(), "another job") {
		t.Errorf("a second claim: %v, want ErrInUse by pid %d with a remedy", err, other.pid())
	}
	dirs := map[string]bool{}
	for _, id := range []Identity{
		{"job", "actor", 0, 0}, {"job", "actor", 1, 1}, {"job", "critic", 0, 1}, {"job2", "actor", 0, 1},
	} {
		c, err := NewClaim(base, id, ClaimOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		dirs[c.Dir()] = true
	}
	if len(dirs) != 4 {
		t.Errorf("directories: %v", dirs)
	}
	other.end()
	claim(t, base, "job")
}

// TestClaimWaitsForASweep: another process has all locks of the entry, but only for a moment.
func TestClaimWaitsForASweep(t *testing.T) {
	base := t.TempDir()
	start(t, "change", base, "job", strconv.Itoa(os.Getpid()))
	claim(t, base, "job")
}

// TestOrphanedRankKeepsItsDirectory: the supervisor was killed, the rank was not.
func TestOrphanedRankKeepsItsDirectory(t *testing.T) {
	base := t.TempDir()
	supervisor := start(t, "claim-files", base, "job")
	engine := start(t, "hold", testIdentity("job").LeasePath(base))
	supervisor.kill()
	before := tree(t, base)
	if _, err := NewClaim(base, testIdentity("job"), ClaimOptions{}); !errors.Is(err, ErrInUse) {
		t.Errorf("a claim under an orphan: %v", err)
	}
	if r, err := Sweep(base, SweepOptions{}); err != nil || len(r) != 1 || r[0].State != Live || r[0].HeldBy != engine.pid() {
		t.Errorf("a sweep under an orphan: %+v, %v", r, err)
	}
	if diff := cmp.Diff(before, tree(t, base)); diff != "" {
		t.Errorf("changed (-before +after):\n%s", diff)
	}
	engine.kill()
	if r, err := Sweep(base, SweepOptions{}); err != nil || len(r) != 1 || r[0].State != Reclaimed || len(r[0].Files) != 2 {
		t.Errorf("a sweep after the orphan: %+v, %v", r, err)
	}
}

func TestClaimReclaimsItsDeadPredecessor(t *testing.T) {
	base := t.TempDir()
	dir := deadRank(t, base, "job")
	var told []Report
	c, err := NewClaim(base, testIdentity("job"), ClaimOptions{Reclaimed: func(r Report) { told = append(told, r) }})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if len(told) != 1 || told[0].State != Reclaimed || len(told[0].Files) != 2 || told[0].Dir != dir {
		t.Errorf("told: %+v", told)
	}
	if list, err := os.ReadDir(c.Dir()); err != nil || len(list) > 0 {
		t.Errorf("the new directory holds %v (error: %v)", list, err)
	}
}

// TestClosedClaimIsReclaimedLater: Close gives up the locks and leaves the rest.
func TestClosedClaimIsReclaimedLater(t *testing.T) {
	base := t.TempDir()
	c := claim(t, base, "job")
	if err := writeDataFiles(c.Dir(), 1); err != nil {
		t.Fatal(err)
	}
	renameToDead(t, c.Dir())
	before := tree(t, base)
	c.Close()
	c.Close()
	if diff := cmp.Diff(before, tree(t, base)); diff != "" {
		t.Errorf("changed by Close (-before +after):\n%s", diff)
	}
	if r, err := Sweep(base, SweepOptions{}); err != nil || len(r) != 1 || r[0].State != Reclaimed {
		t.Errorf("sweep: %+v, %v", r, err)
	}
}

// TestUnusableDirectories are refused with their reason before anything is made.
func TestUnusableDirectories(t *testing.T) {
	id := testIdentity("job")
	for _, c := range []struct {
		what string
		kind error
		make func(base string) error
	}{
		{"base is a symlink", ErrSymlink, func(base string) error {
			return errors.Join(os.Mkdir(base+"-target", 0o700), os.Symlink(base+"-target", base))
		}},
		{"base is a file", ErrNotDir, func(base string) error { return os.WriteFile(base, nil, 0o600) }},
		{"base is writable by the group", ErrWritable, func(base string) error { return mkdir(base, 0o770) }},
		{"base is writable by all", ErrWritable, func(base string) error { return mkdir(base, 0o1777) }},
		{"base is of another user", ErrOwner, func(base string) error { return errors.Join(mkdir(base, 0o700), os.Chown(base, 65534, 65534)) }},
		{".ebb is a symlink", ErrSymlink, func(base string) error {
			return errors.Join(mkdir(base, 0o700), mkdir(base+"-target", 0o700), os.Symlink(base+"-target", base+"/.ebb"))
		}},
		{".ebb is writable by all", ErrWritable, func(base string) error { return errors.Join(mkdir(base, 0o700), mkdir(base+"/.ebb", 0o777)) }},
		{"job is a symlink", ErrSymlink, func(base string) error {
			return errors.Join(mkdir(base, 0o700), mkdir(base+"-target", 0o700), os.Symlink(base+"-target", base+"/job"))
		}},
		{"job is a file", ErrNotDir, func(base string) error {
			return errors.Join(mkdir(base, 0o700), os.WriteFile(base+"/job", []byte("theirs"), 0o600))
		}},
		{"job is of another user", ErrOwner, func(base string) error {
			return errors.Join(mkdir(base, 0o700), mkdir(base+"/job", 0o700), os.Chown(base+"/job", 65534, 65534))
		}},
		{"rank is a symlink", ErrSymlink, func(base string) error {
			return errors.Join(mkdir(base, 0o700), mkdir(base+"/job", 0o700), mkdir(base+"-target", 0o700), os.Symlink(base+"-target", id.Path(base)))
		}},
		{"rank is writable by all", ErrWritable, func(base string) error {
			return errors.Join(mkdir(base, 0o700), mkdir(base+"/job", 0o700), mkdir(id.Path(base), 0o777))
		}},
		{"rank holds other files", ErrForeign, func(base string) error {
			return errors.Join(mkdir(base, 0o700), mkdir(base+"/job", 0o700), mkdir(id.Path(base), 0o700), os.WriteFile(id.Path(base)+"/thesis.txt", []byte("theirs"), 0o600))
		}},
		{"rank holds data files without a marker", ErrForeign, func(base string) error {
			return errors.Join(mkdir(base, 0o700), mkdir(base+"/job", 0o700), mkdir(id.Path(base), 0o700),
				os.WriteFile(id.Path(base)+"/ebb-0123abcd-f0000001-42-1000-7.bak", []byte("theirs"), 0o600))
		}},
	} {
		t.Run(c.what, func(t *testing.T) {
			if errors.Is(c.kind, ErrOwner) && os.Geteuid() != 0 {
				t.Skip("needs root: it gives a directory to another user")
			}
			top := t.TempDir()
			base := filepath.Join(top, "base")
			if err := c.make(base); err != nil {
				t.Fatal(err)
			}
			before := tree(t, top)
			_, err := NewClaim(base, id, ClaimOptions{})
			var d *DirError
			if !errors.As(err, &d) || !errors.Is(err, c.kind) || !strings.HasPrefix(d.Path, base) || strings.Contains(err.Error(), "\n") {
				t.Errorf("claim: %v, want one line that says %q", err, c.kind)
			}
			after := tree(t, top)
			delete(after, "base/.ebb") // may be made before the fault is seen
			delete(before, "base/.ebb")
			if diff := cmp.Diff(before, after); diff != "" {
				t.Errorf("changed (-before +after):\n%s", diff)
			}
		})
	}
}

// mkdir makes a directory with exactly this mode.
func mkdir(path string, mode uint32) error {
	return errors.Join(unix.Mkdir(path, mode), unix.Chmod(path, mode))
}

func TestEmptyDirectoryIsAdopted(t *testing.T) {
	base := t.TempDir()
	if err := os.MkdirAll(testIdentity("job").Path(base), 0o700); err != nil {
		t.Fatal(err)
	}
	if r, err := claim(t, base, "job").Reclaim(); err != nil || r.State != Reclaimed {
		t.Errorf("reclaim: %+v, %v", r, err)
	}
}

// TestForeignFilesStayAndDoNotBlock: a rank left a core file in its directory. It stays, with
// the marker, and the next run of the same identity works there.
func TestForeignFilesStayAndDoNotBlock(t *testing.T) {
	base := t.TempDir()
	for range 3 {
		c := claim(t, base, "job")
		core := filepath.Join(c.Dir(), "core.123")
		write(t, core, "theirs")
		if err := writeDataFiles(c.Dir(), 1); err != nil {
			t.Fatal(err)
		}
		renameToDead(t, c.Dir())
		r, err := c.Reclaim()
		if err != nil || r.State != KeptForeign || !slices.Equal(r.Left, []string{"core.123"}) || len(r.Files) != 1 || r.Why == "" {
			t.Errorf("reclaim: %+v, %v", r, err)
		}
		if got, err := os.ReadFile(core); err != nil || string(got) != "theirs" {
			t.Errorf("the core file: %q, %v", got, err)
		}
	}
	if err := os.Remove(filepath.Join(testIdentity("job").Path(base), "core.123")); err != nil {
		t.Fatal(err)
	}
	if r, err := Sweep(base, SweepOptions{}); err != nil || len(r) != 1 || r[0].State != Reclaimed {
		t.Errorf("sweep once it is gone: %+v, %v", r, err)
	}
	if left := paths(tree(t, base)); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// TestFilesOfALivingProcessStay although the lease is free: it never got the lease.
func TestFilesOfALivingProcessStay(t *testing.T) {
	c := claim(t, t.TempDir(), "job")
	if err := writeDataFiles(c.Dir(), 1); err != nil {
		t.Fatal(err)
	}
	if r, err := c.Reclaim(); err != nil || r.State != KeptForeign || len(r.Left) != 1 || len(r.Files) != 0 {
		t.Errorf("reclaim: %+v, %v", r, err)
	}
}

// TestJobDirectoryGoesWithItsLastRank.
func TestJobDirectoryGoesWithItsLastRank(t *testing.T) {
	base := t.TempDir()
	var claims []*Claim
	for rank := range 3 {
		c, err := NewClaim(base, Identity{Job: "job", Role: "actor", Rank: rank}, ClaimOptions{})
		if err != nil {
			t.Fatal(err)
		}
		claims = append(claims, c)
	}
	for i, c := range claims {
		if _, err := c.Reclaim(); err != nil {
			t.Fatal(err)
		}
		_, err := os.Stat(base + "/job")
		if last := i == len(claims)-1; last != errors.Is(err, os.ErrNotExist) {
			t.Errorf("after rank %d: job directory: %v", i, err)
		}
	}
}

// TestJobDirectoryRemovedMeanwhile by ranks of the job that leave, while others come.
func TestJobDirectoryRemovedMeanwhile(t *testing.T) {
	base := t.TempDir()
	stop := make(chan struct{})
	var leaving sync.WaitGroup
	leaving.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				_ = unix.Rmdir(base + "/job")
			}
		}
	})
	for range 300 {
		c, err := NewClaim(base, testIdentity("job"), ClaimOptions{})
		if err != nil {
			t.Error(err)
			break
		}
		if r, err := c.Reclaim(); err != nil || r.State != Reclaimed {
			t.Errorf("reclaim: %+v, %v", r, err)
		}
	}
	close(stop)
	leaving.Wait()
}

// TestClaimKilledHalfway: whatever point a claim was killed at, the next one works, and a sweep
// leaves nothing.
func TestClaimKilledHalfway(t *testing.T) {
	id := testIdentity("job")
	lease := func(t *testing.T, base string) {
		write(t, id.LeasePath(base), "")
	}
	marked := func(t *testing.T, base string) {
		b, err := openBase(base, true)
		if err != nil {
			t.Fatal(err)
		}
		defer b.close()
		if err := b.writeMarker(&marker{Version: markerVersion, Identity: id, Base: b.id, Supervisor: self(t), Host: hostname()}); err != nil {
			t.Fatal(err)
		}
	}
	for what, steps := range map[string][]func(*testing.T, string){
		"lease made":           {lease},
		"marker half-written":  {lease, func(t *testing.T, base string) { write(t, id.MarkerPath(base)+tempSuffix, "{") }},
		"marker announced":     {lease, marked},
		"directory just made":  {lease, marked, func(_ *testing.T, base string) { _ = os.MkdirAll(id.Path(base), 0o700) }},
		"only the job is made": {lease, marked, func(_ *testing.T, base string) { _ = os.MkdirAll(base+"/job", 0o700) }},
	} {
		t.Run(what, func(t *testing.T) {
			for _, sweepFirst := range []bool{false, true} {
				base := t.TempDir()
				for _, step := range steps {
					step(t, base)
				}
				if !sweepFirst {
					if r, err := claim(t, base, "job").Reclaim(); err != nil || r.State != Reclaimed {
						t.Errorf("claim and reclaim: %+v, %v", r, err)
					}
				}
				if _, err := Sweep(base, SweepOptions{}); err != nil {
					t.Error(err)
				}
				if left := paths(tree(t, base)); len(left) > 0 {
					t.Errorf("left (sweep first: %v): %v", sweepFirst, left)
				}
			}
		})
	}
}

// TestAnnouncedDirectoryProvesNothingAboutFiles: the marker was written, then somebody made
// the directory and filled it.
func TestAnnouncedDirectoryProvesNothingAboutFiles(t *testing.T) {
	base := t.TempDir()
	id := testIdentity("job")
	b, err := openBase(base, true)
	if err != nil {
		t.Fatal(err)
	}
	defer b.close()
	if err := b.writeMarker(&marker{Version: markerVersion, Identity: id, Base: b.id, Supervisor: self(t), Host: hostname()}); err != nil {
		t.Fatal(err)
	}
	write(t, id.LeasePath(base), "")
	write(t, id.Path(base)+"/ebb-0123abcd-f0000001-42-1000-7.bak", "theirs")
	before := tree(t, base)
	if r, err := Sweep(base, SweepOptions{}); err != nil || len(r) != 1 || r[0].State != KeptForeign {
		t.Errorf("sweep: %+v, %v", r, err)
	}
	if _, err := NewClaim(base, id, ClaimOptions{}); !errors.Is(err, ErrForeign) {
		t.Errorf("claim: %v", err)
	}
	if diff := cmp.Diff(before, tree(t, base)); diff != "" {
		t.Errorf("changed (-before +after):\n%s", diff)
	}
}
