package engine

import (
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ebb-offload/ebb/internal/rankdir"
	"github.com/ebb-offload/ebb/internal/usage"
)

// newRank is an engine of a rank under a launcher, with one disk directory for each base.
func newRank(t *testing.T, rank int, config Config, bases ...string) *rig {
	t.Helper()
	config.ChunkBytes = 4 << 20
	for _, base := range bases {
		claim, err := rankdir.NewClaim(base, rankdir.Identity{Job: "j", Role: "actor", Rank: rank}, rankdir.ClaimOptions{})
		check(t, err)
		t.Cleanup(func() {
			_, err := claim.Reclaim()
			check(t, err)
		})
		config.DiskDirs = append(config.DiskDirs, claim.Dir())
		config.MoreLeases = append(config.MoreLeases, claim.LeasePath())
	}
	config.Lease, config.MoreLeases = config.MoreLeases[0], config.MoreLeases[1:]
	r := newRigWith(t, config)
	r.dir, r.set.DiskDir = config.DiskDirs[0], config.DiskDirs[0]
	return r
}

func TestAPauseBeyondTheQuotaIsRefusedBeforeItWrites(t *testing.T) {
	base := filepath.Join(t.TempDir(), "disk")
	a := newRank(t, 0, Config{DiskQuota: 4 << 20}, base)
	b := newRank(t, 1, Config{DiskQuota: 4 << 20}, base)
	x, y, z := a.make(3<<20, 0, disk("x")), b.make(1<<20-8192, 0, disk("y")), b.make(1<<20, 0, disk("z"))
	a.pause()
	b.pause("y")
	written := b.backings.files.Usage().Dirs[0].WriteBytes
	_, err := b.Pause(nil, b.set)
	if Code(err) != CodeNoSpace {
		t.Fatalf("got %v", err)
	}
	for _, word := range []string{
		"ebb's quota (--offload-train-disk-quota-gb) of " + base + " is 4.19 MB, of which 4.19 MB are taken, and 1.05 MB more are needed: ",
		"3.15 MB by j/actor_cell0_rank0 (pid ", "1.04 MB by j/actor_cell0_rank1 (pid ", "; raise the quota, or let others resume first",
	} {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("%q lacks %q", err, word)
		}
	}
	if now := b.backings.files.Usage().Dirs[0].WriteBytes; now != written {
		t.Errorf("%d bytes were written", now-written)
	}
	if n := len(b.files()); n != 1 {
		t.Errorf("%d files", n)
	}
	b.holds(z)
	// Memory that is freed gives its room back, also that of another rank.
	a.resume()
	a.holds(x)
	check(t, a.Free(x.addr, false))
	b.pause()
	b.resume()
	b.holds(y, z)
}

func TestAQuotaFillsTheOtherDirectory(t *testing.T) {
	root := t.TempDir()
	one, two := filepath.Join(root, "one"), filepath.Join(root, "two")
	other := newRank(t, 1, Config{}, one)
	other.make(3<<20, 0, disk("x"))
	other.pause() // without a quota, and counted
	r := newRank(t, 0, Config{DiskQuota: 4 << 20}, one, two)
	a := r.make(4<<20, 0, disk("x"))
	r.pause()
	dirs := r.backings.files.Usage().Dirs
	if len(dirs) != 2 || dirs[0].WriteBytes > 1<<20 || dirs[0].WriteBytes+dirs[1].WriteBytes < 4<<20 {
		t.Errorf("%+v", dirs)
	}
	r.resume()
	r.holds(a)
}

func TestAQuotaOfAllDirectoriesNamesWhoHoldsEach(t *testing.T) {
	root := t.TempDir()
	one, two := filepath.Join(root, "one"), filepath.Join(root, "two")
	for i, base := range []string{one, two} {
		other := newRank(t, 1+i, Config{}, base)
		other.make(3<<20, 0, disk("x"))
		other.pause()
	}
	r := newRank(t, 0, Config{DiskQuota: 4 << 20}, one, two)
	a := r.make(4<<20, 0, disk("x"))
	_, err := r.Pause(nil, r.set)
	if Code(err) != CodeNoSpace {
		t.Fatalf("got %v", err)
	}
	for _, word := range []string{"of " + one + " is 4.19 MB", "by j/actor_cell0_rank1", "of " + two + " is 4.19 MB", "by j/actor_cell0_rank2"} {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("%q lacks %q", err, word)
		}
	}
	r.holds(a)
}

// Without a launcher the quota counts in the directories that ebb env names.
func TestAQuotaWithoutASupervisor(t *testing.T) {
	base := t.TempDir()
	r := newRigWith(t, Config{ChunkBytes: 4 << 20, DiskQuota: 2 << 20})
	r.dir = filepath.Join(base, "j", "actor_cell0_rank0")
	r.set.DiskDir = r.dir
	a := r.make(3<<20, 0, disk("x"))
	if _, err := r.Pause(nil, r.set); Code(err) != CodeNoSpace || !strings.Contains(err.Error(), "of "+base+" is ") {
		t.Fatalf("got %v", err)
	}
	r.holds(a)
}

// A directory that the user gave is the user's: nothing is left in it, and nothing above it is touched.
func TestAQuotaOfADirectoryThatTheUserGave(t *testing.T) {
	root := t.TempDir()
	r := newRigWith(t, Config{ChunkBytes: 4 << 20, DiskQuota: 2 << 20})
	r.dir = filepath.Join(root, "a", "b", "c")
	r.set.DiskDir = r.dir
	check(t, os.MkdirAll(r.dir, 0o700))
	a := r.make(1<<20, 0, disk("x"))
	r.pause()
	b := r.make(3<<19, 0, disk("y"))
	if _, err := r.Pause(nil, r.set); Code(err) != CodeNoSpace || !strings.Contains(err.Error(), "quota (--offload-train-disk-quota-gb) of "+r.dir+" is 2.10 MB, of which 1.05 MB are taken") {
		t.Fatalf("got %v", err)
	}
	r.resume()
	r.holds(a, b)
	check(t, filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if !e.IsDir() && filepath.Dir(path) != r.dir || e.Name() == ".ebb" {
			t.Errorf("%s was made", path)
		}
		return err
	}))
}

// A count that cannot be kept stops a pause only where there is a quota.
func TestACountThatFails(t *testing.T) {
	for _, quota := range []uint64{0, 1 << 30} {
		r := newRank(t, 0, Config{DiskQuota: quota}, filepath.Join(t.TempDir(), "disk"))
		a := r.make(1<<20, 0, disk("x"))
		check(t, r.sys.Set("lock:*:ENOLCK"))
		_, err := r.Pause(nil, r.set)
		if (err != nil) != (quota > 0) || err != nil && Code(err) != CodeIO {
			t.Errorf("quota %d: %v", quota, err)
		}
		if n := strings.Count(r.logged(), "usage"); quota == 0 && n == 0 {
			t.Errorf("nothing was said: %s", r.logged())
		}
		check(t, r.sys.Set(""))
		r.resume()
		r.holds(a)
	}
}

func TestWhatWasWrittenIsCounted(t *testing.T) {
	base := filepath.Join(t.TempDir(), "disk")
	r := newRank(t, 0, Config{DiskQuota: 1 << 40}, base)
	a := r.make(2<<20, 0, disk("x"))
	for range 3 {
		r.pause()
		r.resume()
		r.fill(a, 2<<20)
	}
	n, err := usage.Written(base, []string{"j/actor_cell0_rank0"})
	check(t, err)
	var s Status
	check(t, json.Unmarshal(r.Status(nil), &s))
	if n != 6<<20 || s.Disk.Written != n || s.Disk.Dirs[0].Written != n || s.Disk.Quota != 1<<40 {
		t.Errorf("%d bytes, status %+v", n, s.Disk)
	}
}
