package rankdir

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// mounted mounts something on a directory until the test ends or unmount is called.
func mounted(t *testing.T, source, dir, kind string, flags uintptr, data string) (unmount func()) {
	t.Helper()
	if err := unix.Mount(source, dir, kind, flags, data); err != nil {
		t.Skipf("nothing can be mounted here: %v", err)
	}
	there := true
	unmount = func() {
		if !there {
			return
		}
		there = false
		if err := unix.Unmount(dir, 0); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
		}
	}
	t.Cleanup(unmount)
	return unmount
}

// TestAFileSystemMountedOnADeadRanksDirectory is another directory: what is in it stays, and what it
// hides is removed when it has gone.
func TestAFileSystemMountedOnADeadRanksDirectory(t *testing.T) {
	for what, place := range map[string]string{"job": "", "rank": "/actor_cell0_rank1"} {
		t.Run(what, func(t *testing.T) {
			base := t.TempDir()
			dir := deadRank(t, base, "job")
			hidden := paths(tree(t, dir))
			unmount := mounted(t, "none", filepath.Join(base, "job")+place, "tmpfs", 0, "mode=0700")
			write(t, dir+"/model.safetensors", "theirs")
			write(t, filepath.Join(dir, self(t).DataFile(0)), "of a living process")
			before := tree(t, filepath.Join(base, "job"))
			if r, err := Sweep(base, SweepOptions{}); err != nil || len(r) != 1 || r[0].State != KeptForeign || len(r[0].Files) > 0 {
				t.Errorf("sweep: %+v, %v", r, err)
			}
			if _, err := NewClaim(base, testIdentity("job"), ClaimOptions{}); !errors.Is(err, ErrForeign) {
				t.Errorf("claim: %v, want a refusal of the directory", err)
			}
			if diff := cmp.Diff(before, tree(t, filepath.Join(base, "job"))); diff != "" {
				t.Errorf("changed in the mounted file system (-before +after):\n%s", diff)
			}
			unmount()
			if diff := cmp.Diff(hidden, paths(tree(t, dir))); diff != "" {
				t.Errorf("changed below the mount (-before +after):\n%s", diff)
			}
			if r, err := Sweep(base, SweepOptions{}); err != nil || len(r) != 1 || r[0].State != Reclaimed || len(r[0].Files) != 2 {
				t.Errorf("sweep after it has gone: %+v, %v", r, err)
			}
			if left := paths(tree(t, base)); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
		})
	}
}

// TestAnEmptyFileSystemMountedOnADirectory can be used, and cannot be removed.
func TestAnEmptyFileSystemMountedOnADirectory(t *testing.T) {
	base := t.TempDir()
	dir := deadRank(t, base, "job")
	unmount := mounted(t, "none", dir, "tmpfs", 0, "mode=0700")
	if r, err := Sweep(base, SweepOptions{}); err != nil || len(r) != 1 || r[0].State != KeptForeign || !strings.Contains(r[0].Why, "mounted") {
		t.Errorf("sweep: %+v, %v", r, err)
	}
	c := claim(t, base, "job")
	if err := writeDataFiles(c.Dir(), 1); err != nil {
		t.Fatal(err)
	}
	renameToDead(t, c.Dir())
	if r, err := c.Reclaim(); err != nil || r.State != KeptForeign || len(r.Files) != 1 || !strings.Contains(r.Why, "mounted") {
		t.Errorf("reclaim: %+v, %v", r, err)
	}
	c.Close()
	unmount()
	if r, err := Sweep(base, SweepOptions{}); err != nil || len(r) != 1 || r[0].State != Reclaimed || len(r[0].Files) != 2 {
		t.Errorf("sweep after it has gone: %+v, %v", r, err)
	}
	if left := paths(tree(t, base)); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// TestOneBaseUnderTwoPaths: the second sees who has what under the first.
func TestOneBaseUnderTwoPaths(t *testing.T) {
	top := t.TempDir()
	base, again := filepath.Join(top, "base"), filepath.Join(top, "again")
	if err := errors.Join(os.Mkdir(base, 0o700), os.Mkdir(again, 0o700)); err != nil {
		t.Fatal(err)
	}
	mounted(t, base, again, "", unix.MS_BIND, "")
	other := start(t, "claim-files", base, "job")
	before := tree(t, base)
	if _, err := NewClaim(again, testIdentity("job"), ClaimOptions{}); !errors.Is(err, ErrInUse) {
		t.Errorf("claim under the other path: %v", err)
	}
	if r, err := Sweep(again, SweepOptions{}); err != nil || len(r) != 1 || r[0].State != Live || r[0].HeldBy != other.pid() {
		t.Errorf("sweep under the other path: %+v, %v", r, err)
	}
	if diff := cmp.Diff(before, tree(t, base)); diff != "" {
		t.Errorf("changed (-before +after):\n%s", diff)
	}
	other.kill()
	if r, err := Sweep(again, SweepOptions{}); err != nil || len(r) != 1 || r[0].State != Reclaimed || len(r[0].Files) != 2 {
		t.Errorf("sweep of the dead under the other path: %+v, %v", r, err)
	}
	if left := paths(tree(t, base)); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}
