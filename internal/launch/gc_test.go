package launch

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/ebb-offload/ebb/internal/rankdir"
	"github.com/ebb-offload/ebb/internal/usage"
)

// testDisks waits as long as ebb does when nothing is set.
var testDisks = NewDisks(func(string) string { return "" })

// plant makes a file and its directories.
func plant(t *testing.T, file string) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte("bytes"), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func exists(file string) bool {
	_, err := os.Lstat(file)
	return err == nil
}

// deadOwner is a process of this boot that is gone: this one's number, started earlier.
func deadOwner(t *testing.T) rankdir.Owner {
	t.Helper()
	owner, err := rankdir.Self()
	if err != nil {
		t.Fatal(err)
	}
	owner.StartTime--
	return owner
}

// Ranks that an outside launcher started with the settings of ebb env have no supervisor.
func TestGCRemovesFilesOfDeadUnsupervisedRanks(t *testing.T) {
	d := disk(t)
	dead := deadOwner(t)
	alive, err := rankdir.Self()
	if err != nil {
		t.Fatal(err)
	}
	gone := []string{
		plant(t, filepath.Join(d, dead.DataFile(1))),
		plant(t, filepath.Join(d, "job", "actor_cell0_rank0", dead.DataFile(2))),
	}
	stay := []string{
		plant(t, filepath.Join(d, alive.DataFile(1))),
		plant(t, filepath.Join(d, "job", "actor_cell0_rank0", alive.DataFile(2))),
		plant(t, filepath.Join(d, "job", "actor_cell0_rank0", "model.bak")),
		plant(t, filepath.Join(d, "job", "checkpoints", dead.DataFile(3))),
		plant(t, filepath.Join(d, "model.safetensors")),
	}
	elsewhere := plant(t, filepath.Join(t.TempDir(), "x_cell0_rank0", dead.DataFile(4)))
	stay = append(stay, elsewhere)
	if err := os.Symlink(filepath.Dir(elsewhere), filepath.Join(d, "job", "y_cell0_rank1")); err != nil {
		t.Fatal(err)
	}

	reports, err := testDisks.GC(d, rankdir.SweepOptions{Dry: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range append(gone, stay...) {
		if !exists(file) {
			t.Fatalf("a dry run removed %s", file)
		}
	}
	if n := countFiles(reports); n != len(gone) {
		t.Errorf("a dry run names %d files, want %d", n, len(gone))
	}
	if reports, err = testDisks.GC(d, rankdir.SweepOptions{}); err != nil {
		t.Fatal(err)
	}
	if n := countFiles(reports); n != len(gone) {
		t.Errorf("%d files removed, want %d", n, len(gone))
	}
	for _, file := range gone {
		if exists(file) {
			t.Errorf("%s is left", file)
		}
	}
	for _, file := range stay {
		if !exists(file) {
			t.Errorf("%s was removed", file)
		}
	}
}

func countFiles(reports []rankdir.Report) (n int) {
	for _, r := range reports {
		n += len(r.Files)
	}
	return n
}

func TestGCRemovesTheEmptyDirectoriesOfUnsupervisedRanks(t *testing.T) {
	d := disk(t)
	dead, gone := deadOwner(t), filepath.Join(d, "job")
	plant(t, filepath.Join(gone, "actor_cell0_rank0", dead.DataFile(1)))
	stay := []string{
		plant(t, filepath.Join(d, "other", "actor_cell0_rank0", "model.bak")),
		filepath.Join(d, "empty", "checkpoints"), filepath.Join(d, "open", "actor_cell0_rank0"),
	}
	for _, dir := range append(stay[1:], filepath.Join(gone, "actor_cell0_rank1"), filepath.Join(d, "run-1-2-0123abcd")) {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(stay[2], 0o755); err != nil { // not as ebb makes them
		t.Fatal(err)
	}
	claim, err := rankdir.NewClaim(d, rankdir.Identity{Job: "live", Role: "actor"}, rankdir.ClaimOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer claim.Close()
	stay = append(stay, claim.Dir())
	if _, err := testDisks.GC(d, rankdir.SweepOptions{Dry: true}); err != nil || !exists(filepath.Join(gone, "actor_cell0_rank1")) {
		t.Fatalf("a dry run removed a directory, or %v", err)
	}
	if _, err := testDisks.GC(d, rankdir.SweepOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{gone, filepath.Join(d, "run-1-2-0123abcd")} {
		if exists(dir) {
			t.Errorf("%s is left", dir)
		}
	}
	// A claim that was made after gc had looked for ranks is not in the list of those.
	if _, err := rankdir.SweepBare(d, nil, rankdir.SweepOptions{Empty: true}); err != nil {
		t.Fatal(err)
	}
	for _, path := range stay {
		if !exists(path) {
			t.Errorf("%s was removed", path)
		}
	}
}

func TestGCOfNothing(t *testing.T) {
	if reports, err := testDisks.GC(disk(t), rankdir.SweepOptions{}); len(reports) > 0 || err != nil {
		t.Error(reports, err)
	}
}

// A process that is stopped while it counts keeps nobody from removing files: its count is kept, as is what
// other live processes have, and the next ebb gc tidies it.
func TestGCLeavesACountThatAStoppedProcessHasLocked(t *testing.T) {
	d := disk(t)
	gone := plant(t, filepath.Join(d, "job", "actor_cell0_rank0", deadOwner(t).DataFile(1)))
	count := plant(t, usage.Path(d))
	if err := os.Truncate(count, 0); err != nil { // of nobody
		t.Fatal(err)
	}
	f, err := os.OpenFile(count, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lock := unix.Flock_t{Type: unix.F_WRLCK}
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &lock); err != nil {
		t.Fatal(err)
	}
	kept := rankdir.Report{Dir: count, State: rankdir.KeptForeign, Why: usage.ErrLocked.Error()}
	reports, err := testDisks.GC(d, rankdir.SweepOptions{})
	if err != nil || exists(gone) || len(reports) == 0 || !cmp.Equal(reports[len(reports)-1], kept) {
		t.Errorf("%+v, %v", reports, err)
	}
	lock.Type = unix.F_UNLCK
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &lock); err != nil {
		t.Fatal(err)
	}
	if reports, err := testDisks.GC(d, rankdir.SweepOptions{}); len(reports) > 0 || err != nil || exists(count) {
		t.Errorf("unlocked: %+v, %v", reports, err)
	}
}

func TestGCRefusesWhatCannotBeADiskDirectory(t *testing.T) {
	d := disk(t)
	link := filepath.Join(d, "link")
	if err := os.Symlink(d, link); err != nil {
		t.Fatal(err)
	}
	for dir, why := range map[string]string{
		link:                            "is a symbolic link",
		plant(t, filepath.Join(d, "f")): "is not a directory",
		filepath.Join(d, "missing"):     "does not exist",
		filepath.Join(d, "f", "below"):  "cannot be looked at",
	} {
		_, err := testDisks.GC(dir, rankdir.SweepOptions{})
		refusal(t, err, dir, why, "--disk-dir")
	}
}
