package rankdir

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/ebb-offload/ebb/internal/testutil"
)

func TestSweepWhereEbbNeverWas(t *testing.T) {
	base := t.TempDir()
	for _, dir := range []string{base, base + "/none"} {
		if r, err := Sweep(dir, SweepOptions{}); err != nil || r != nil {
			t.Errorf("%s: %+v, %v", dir, r, err)
		}
	}
	if len(tree(t, base)) != 1 {
		t.Error("the sweep made something")
	}
}

func TestSweepTakesTheDeadAndLeavesTheLiving(t *testing.T) {
	base := t.TempDir()
	dead := deadRank(t, base, "dead")
	live := start(t, "claim-files", base, "live")
	before := tree(t, base)

	r, err := Sweep(base, SweepOptions{Dry: true})
	if err != nil || len(r) != 2 || r[0].State != Reclaimable || len(r[0].Files) != 2 || r[0].Bytes == 0 || r[1].State != Live || r[1].HeldBy != live.pid() {
		t.Errorf("dry run: %+v, %v", r, err)
	}
	if diff := cmp.Diff(before, tree(t, base)); diff != "" {
		t.Errorf("changed by the dry run (-before +after):\n%s", diff)
	}

	r, err = Sweep(base, SweepOptions{})
	if err != nil || len(r) != 2 || r[0].State != Reclaimed || r[0].Dir != dead || len(r[0].Files) != 2 || r[1].State != Live {
		t.Errorf("sweep: %+v, %v", r, err)
	}
	want := maps.Clone(before)
	maps.DeleteFunc(want, func(name, _ string) bool { return strings.Contains(name, "dead") })
	if diff := cmp.Diff(want, tree(t, base)); diff != "" {
		t.Errorf("after the sweep (-want +got):\n%s", diff)
	}
	live.kill()
	if r, err := Sweep(base, SweepOptions{}); err != nil || len(r) != 1 || r[0].State != Reclaimed {
		t.Errorf("sweep of the other: %+v, %v", r, err)
	}
	if left := paths(tree(t, base)); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// TestLookAlikes fills a dead rank's directory, and the base around it, with things that are
// nearly ebb's. Only what ebb made goes.
func TestLookAlikes(t *testing.T) {
	top := t.TempDir()
	base := filepath.Join(top, "base")
	dir := deadRank(t, base, "job")
	ours, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	const pattern = "ebb-0123abcd-f0000001-42-1000-%d.bak"
	name := func(n int) string { return fmt.Sprintf(pattern, n) }
	write(t, top+"/elsewhere/precious", "theirs")
	write(t, dir+"/notes.txt", "theirs")
	write(t, dir+"/"+name(1)+"~", "theirs")
	write(t, dir+"/"+strings.ToUpper(name(1)), "theirs")
	write(t, dir+"/"+name(2)+"/inside", "theirs")                       // a directory named like a data file
	write(t, dir+"/sub/"+name(3), "theirs")                             // not the rank directory itself
	write(t, base+"/"+name(4), "theirs")                                // directly under the base
	write(t, base+"/job/"+name(5), "theirs")                            // under the job
	write(t, base+"/job/actor_cell0_rank2/"+name(6), "theirs")          // a rank without a marker
	write(t, base+"/other/actor_cell0_rank1/"+name(7), "theirs")        // a job without a marker
	write(t, base+"/.ebb/notes.marker", "theirs")                       // not a marker
	write(t, base+"/.ebb/x__actor_cell0_rank0.marker", `{"version":1}`) // names no rank
	write(t, base+"/.ebb/y__actor_cell0_rank0.lease", "not empty")
	if err := errors.Join(
		os.Symlink(top+"/elsewhere/precious", dir+"/"+name(8)),
		os.Symlink(top+"/elsewhere", dir+"/"+name(9)),
		os.Link(top+"/elsewhere/precious", dir+"/"+name(10)),
		unix.Mkfifo(dir+"/"+name(11), 0o600),
		os.Mkdir(base+"/empty", 0o700),
	); err != nil {
		t.Fatal(err)
	}
	foreign := 9
	if os.Geteuid() == 0 {
		write(t, dir+"/"+name(12), "of another user")
		if err := os.Chown(dir+"/"+name(12), 65534, 65534); err != nil {
			t.Fatal(err)
		}
		foreign++
	}
	// A marker whose directory has been replaced, one copied from another base, and one of a
	// symlinked job.
	replaced := deadRank(t, base, "replaced")
	if err := os.RemoveAll(replaced); err != nil {
		t.Fatal(err)
	}
	write(t, replaced+"/model.safetensors", "theirs")
	otherBase := filepath.Join(top, "other-base")
	deadRank(t, otherBase, "copied")
	for _, suffix := range []string{leaseSuffix, markerSuffix} {
		text, err := os.ReadFile(otherBase + "/.ebb/copied__actor_cell0_rank1" + suffix)
		if err != nil {
			t.Fatal(err)
		}
		write(t, base+"/.ebb/copied__actor_cell0_rank1"+suffix, string(text))
	}
	write(t, base+"/copied/actor_cell0_rank1/"+name(14), "theirs")
	moved := deadRank(t, base, "moved")
	if err := errors.Join(os.Rename(filepath.Dir(moved), top+"/moved"), os.Symlink(top+"/moved", filepath.Dir(moved))); err != nil {
		t.Fatal(err)
	}

	before := tree(t, top)
	if _, err := Sweep(base, SweepOptions{Dry: true}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, tree(t, top)); diff != "" {
		t.Errorf("changed by the dry run (-before +after):\n%s", diff)
	}
	reports, err := Sweep(base, SweepOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range reports {
		if r.State != KeptForeign || r.Why == "" {
			t.Errorf("report: %+v, want kept with a reason", r)
		}
		if r.Dir == dir && (len(r.Files) != 2 || len(r.Left) != foreign) {
			t.Errorf("rank directory: removed %v, left %v; want 2 and %d", r.Files, r.Left, foreign)
		}
	}
	want := maps.Clone(before)
	for _, f := range ours {
		delete(want, "base/job/actor_cell0_rank1/"+f.Name())
	}
	if diff := cmp.Diff(want, tree(t, top)); diff != "" {
		t.Errorf("after the sweep (-want +got):\n%s", diff)
	}
}

// TestLeaseRemovedByHand: without the lease nothing proves that the rank is dead, except that
// every process that made a file is.
func TestLeaseRemovedByHand(t *testing.T) {
	base := t.TempDir()
	dir := deadRank(t, base, "job")
	engine := start(t, "hold", testIdentity("job").LeasePath(base)) // a survivor
	if err := os.Remove(testIdentity("job").LeasePath(base)); err != nil {
		t.Fatal(err)
	}
	alive := ownerOf(t, engine.pid()).DataFile(9)
	write(t, filepath.Join(dir, alive), "of the survivor")
	unseen := self(t)
	unseen.PIDNamespace++
	write(t, filepath.Join(dir, unseen.DataFile(9)), "of a process that cannot be seen")
	for _, dry := range []bool{true, false} {
		r, err := Sweep(base, SweepOptions{Dry: dry})
		if err != nil || len(r) != 1 || r[0].State != KeptForeign || len(r[0].Files) != 2 || len(r[0].Left) != 2 {
			t.Errorf("sweep (dry: %v): %+v, %v", dry, r, err)
		}
	}
	if got, err := os.ReadFile(filepath.Join(dir, alive)); err != nil || string(got) != "of the survivor" {
		t.Errorf("the survivor's file: %q, %v", got, err)
	}
}

// rewriteMarker changes a marker as if it had been written elsewhere.
func rewriteMarker(t *testing.T, base, job string, change func(*marker)) {
	t.Helper()
	path := testIdentity(job).MarkerPath(base)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var m marker
	if err := json.Unmarshal(text, &m); err != nil {
		t.Fatal(err)
	}
	change(&m)
	if text, err = json.Marshal(&m); err != nil {
		t.Fatal(err)
	}
	write(t, path, string(text))
}

// TestAfterAReboot the boot id differs, and the numbers of devices may.
func TestAfterAReboot(t *testing.T) {
	base := t.TempDir()
	deadRank(t, base, "job")
	rewriteMarker(t, base, "job", func(m *marker) {
		m.Supervisor.BootID = "00000000-0000-0000-0000-000000000000"
		m.Base.Dev += 7
		m.RankDir.Dev += 7
	})
	if r, err := Sweep(base, SweepOptions{}); err != nil || len(r) != 1 || r[0].State != Reclaimed || len(r[0].Files) != 2 {
		t.Errorf("sweep: %+v, %v", r, err)
	}
}

// TestMarkersThatDoNotFit are not believed.
func TestMarkersThatDoNotFit(t *testing.T) {
	for what, change := range map[string]func(*marker){
		"other base":    func(m *marker) { m.Base.Ino++ },
		"other user":    func(m *marker) { m.Supervisor.UID++ },
		"other version": func(m *marker) { m.Version++ },
		"other rank":    func(m *marker) { m.Identity.Rank++ },
		"path as job":   func(m *marker) { m.Identity.Job = "../job" },
	} {
		t.Run(what, func(t *testing.T) {
			base := t.TempDir()
			deadRank(t, base, "job")
			rewriteMarker(t, base, "job", change)
			before := tree(t, base)
			r, err := Sweep(base, SweepOptions{})
			if err != nil || len(r) != 1 || r[0].State != KeptForeign || r[0].Why == "" {
				t.Errorf("sweep: %+v, %v", r, err)
			}
			if _, err := NewClaim(base, testIdentity("job"), ClaimOptions{}); !errors.Is(err, ErrForeign) {
				t.Errorf("claim: %v, want a refusal of the directory", err)
			}
			if diff := cmp.Diff(before, tree(t, base)); diff != "" {
				t.Errorf("changed (-before +after):\n%s", diff)
			}
		})
	}
}

func TestSweepBare(t *testing.T) {
	dir := t.TempDir()
	here := self(t)
	gone := here
	gone.StartTime++
	unseen := here
	unseen.PIDNamespace++
	rebooted := here
	rebooted.BootID = "0123abcd"
	write(t, filepath.Join(dir, here.DataFile(0)), "live")
	write(t, filepath.Join(dir, unseen.DataFile(0)), "cannot be judged")
	write(t, filepath.Join(dir, gone.DataFile(0)), "dead")
	write(t, filepath.Join(dir, rebooted.DataFile(0)), "dead")
	write(t, filepath.Join(dir, "notes.txt"), "theirs")
	write(t, filepath.Join(dir, "sub", gone.DataFile(1)), "theirs")
	write(t, dir+"/precious", "theirs")
	if err := errors.Join(os.Link(dir+"/precious", filepath.Join(dir, gone.DataFile(2))), os.Symlink(dir+"/precious", filepath.Join(dir, gone.DataFile(3)))); err != nil {
		t.Fatal(err)
	}
	dead := []string{gone.DataFile(0), rebooted.DataFile(0)}
	slices.Sort(dead)

	before := tree(t, dir)
	r, err := SweepBare(dir, nil, SweepOptions{Dry: true})
	if err != nil || len(r) != 1 || r[0].State != Reclaimable || !slices.Equal(r[0].Files, dead) || slices.Contains(r[0].Left, "notes.txt") {
		t.Errorf("dry run: %+v, %v", r, err)
	}
	if diff := cmp.Diff(before, tree(t, dir)); diff != "" {
		t.Errorf("changed by the dry run (-before +after):\n%s", diff)
	}
	r, err = SweepBare(dir, nil, SweepOptions{})
	if err != nil || len(r) != 1 || r[0].State != Reclaimed || !slices.Equal(r[0].Files, dead) || len(r[0].Left) != 4 {
		t.Errorf("sweep: %+v, %v", r, err)
	}
	want := maps.Clone(before)
	for _, name := range dead {
		delete(want, name)
	}
	if diff := cmp.Diff(want, tree(t, dir)); diff != "" {
		t.Errorf("after the sweep (-want +got):\n%s", diff)
	}
	if r, err := SweepBare(dir, nil, SweepOptions{}); err != nil || len(r) != 1 || r[0].State != KeptForeign || r[0].Why == "" {
		t.Errorf("again: %+v, %v", r, err)
	}
	if r, err := SweepBare(dir+"/none", nil, SweepOptions{}); err != nil || len(r) > 0 {
		t.Errorf("no directory: %+v, %v", r, err)
	}
}

// gone is the owner of files that a dead process left: this one's pid, started earlier.
func gone(t *testing.T) Owner {
	t.Helper()
	o := self(t)
	o.StartTime--
	return o
}

// TestSweepBareBelow: of what is below, only the directories named as rank directories are.
func TestSweepBareBelow(t *testing.T) {
	top := t.TempDir()
	base, name := filepath.Join(top, "base"), gone(t).DataFile(0)
	for _, dir := range []string{"job/actor_cell0_rank0", "odd\x1b[2Jjob/actor_cell0_rank0", "seen/actor_cell0_rank0", "job/checkpoints", "job/deep/actor_cell0_rank0"} {
		write(t, filepath.Join(base, dir, name), "bytes")
	}
	write(t, top+"/elsewhere/x_cell0_rank0/"+name, "theirs")
	if err := errors.Join(
		os.Symlink(top+"/elsewhere", base+"/linked"),
		os.Symlink(top+"/elsewhere/x_cell0_rank0", base+"/job/y_cell0_rank0"),
		os.Symlink(base, top+"/link"),
	); err != nil {
		t.Fatal(err)
	}
	before := tree(t, top)
	r, err := SweepBare(base, []Report{{Dir: base + "/seen/actor_cell0_rank0"}}, SweepOptions{})
	if err != nil || len(r) != 2 || r[0].Dir != base+"/job/actor_cell0_rank0" || strings.Contains(r[1].Dir, "\x1b") {
		t.Errorf("sweep: %+v, %v", r, err)
	}
	delete(before, "base/job/actor_cell0_rank0/"+name)
	delete(before, "base/odd\x1b[2Jjob/actor_cell0_rank0/"+name)
	if diff := cmp.Diff(before, tree(t, top)); diff != "" {
		t.Errorf("after the sweep (-want +got):\n%s", diff)
	}
	if r, err := SweepBare(top+"/link", nil, SweepOptions{}); err == nil || len(r) > 0 {
		t.Errorf("sweep through a symlink: %+v, %v", r, err)
	}
}

// TestSweepBareWhileASymlinkTakesTheDirectorysPlace, of a job and of a rank, again and again.
func TestSweepBareWhileASymlinkTakesTheDirectorysPlace(t *testing.T) {
	for what, place := range map[string]string{"job": "", "rank": "/z_cell0_rank0"} {
		t.Run(what, func(t *testing.T) {
			top := t.TempDir()
			base, spare := filepath.Join(top, "base"), filepath.Join(top, "spare")
			theirs := filepath.Join(top, "elsewhere", "z_cell0_rank0", gone(t).DataFile(0))
			write(t, theirs, "theirs")
			if err := errors.Join(os.MkdirAll(base+"/job/z_cell0_rank0", 0o700), os.Symlink(top+"/elsewhere"+place, spare)); err != nil {
				t.Fatal(err)
			}
			stop := make(chan struct{})
			var swapping sync.WaitGroup
			swapping.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
					}
					if err := unix.Renameat2(unix.AT_FDCWD, base+"/job"+place, unix.AT_FDCWD, spare, unix.RENAME_EXCHANGE); err != nil {
						t.Error(err)
						return
					}
				}
			})
			for range 3000 {
				if r, err := SweepBare(base, nil, SweepOptions{}); err != nil || len(r) > 0 {
					t.Errorf("sweep: %+v, %v", r, err)
					break
				}
			}
			close(stop)
			swapping.Wait()
			if _, err := os.Stat(theirs); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestDirectoryMadeAnew: a rank removed its directory, or its job's, and paused again, which
// made it anew. Its files are removed by their names, and nothing else.
func TestDirectoryMadeAnew(t *testing.T) {
	for what, remove := range map[string]func(dir string) string{
		"rank directory": func(dir string) string { return dir },
		"job directory":  filepath.Dir,
	} {
		t.Run(what, func(t *testing.T) {
			base := t.TempDir()
			pausedAnew := func() (*Claim, *child) { // without the lease
				c := claim(t, base, "job")
				// The new one is made while the old one is there: it might be given the inode of one that is gone, and in the
				// same tick of the file system's clock.
				old, place := remove(c.Dir()), filepath.Join(base, "anew")
				anew := filepath.Join(place, filepath.Base(old))
				if err := errors.Join(os.MkdirAll(anew+strings.TrimPrefix(c.Dir(), old), 0o700), os.RemoveAll(old), os.Rename(anew, old), os.Remove(place)); err != nil {
					t.Fatal(err)
				}
				return c, start(t, "files", c.Dir())
			}
			c, rank := pausedAnew()
			rank.kill()
			if r, err := c.Reclaim(); err != nil || r.State != Reclaimed || len(r.Files) != 1 {
				t.Errorf("reclaim: %+v, %v", r, err)
			}
			c, rank = pausedAnew()
			if r, err := c.Reclaim(); err != nil || r.State != KeptForeign || len(r.Files) > 0 || len(r.Left) != 1 || !strings.Contains(r.Why, "taken its place") {
				t.Errorf("reclaim while the rank lives: %+v, %v", r, err)
			}
			rank.kill()
			if r, err := Sweep(base, SweepOptions{}); err != nil || len(r) != 1 || r[0].State != Reclaimed || len(r[0].Files) != 1 {
				t.Errorf("sweep: %+v, %v", r, err)
			}
			if left := paths(tree(t, base)); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
		})
	}
}

// TestDirectoryOfAnotherMade in a dead rank's place: files of dead processes go by their names,
// and what ebb did not make stays.
func TestDirectoryOfAnotherMade(t *testing.T) {
	for what, change := range map[string]func(*marker){
		"other directory":     func(m *marker) { m.RankDir.Ino++ },
		"other time of birth": func(m *marker) { m.RankDir.Born++ },
		"other device":        func(m *marker) { m.RankDir.Dev++ },
	} {
		t.Run(what, func(t *testing.T) {
			base := t.TempDir()
			dir := deadRank(t, base, "job")
			rewriteMarker(t, base, "job", change)
			unseen := self(t)
			unseen.PIDNamespace++
			write(t, filepath.Join(dir, unseen.DataFile(0)), "of a process that cannot be judged")
			write(t, dir+"/a\nb\x1b[2J", "theirs")
			r, err := Sweep(base, SweepOptions{})
			if err != nil || len(r) != 1 || r[0].State != KeptForeign || len(r[0].Files) != 2 || !slices.Equal(r[0].Left, []string{`"a\nb\x1b[2J"`, unseen.DataFile(0)}) {
				t.Errorf("sweep: %+v, %v", r, err)
			}
			if _, err := NewClaim(base, testIdentity("job"), ClaimOptions{}); !errors.Is(err, ErrForeign) || strings.ContainsAny(err.Error(), "\n\x1b") {
				t.Errorf("claim: %q, want a refusal of the directory", err)
			}
			if err := errors.Join(os.Remove(dir+"/a\nb\x1b[2J"), os.Remove(filepath.Join(dir, unseen.DataFile(0))), os.Chmod(dir, 0o755)); err != nil {
				t.Fatal(err)
			}
			if r, err := Sweep(base, SweepOptions{}); err != nil || len(r) != 1 || r[0].State != KeptForeign {
				t.Errorf("sweep of an empty directory with another mode: %+v, %v", r, err)
			}
			if err := os.Chmod(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			if r, err := Sweep(base, SweepOptions{}); err != nil || len(r) != 1 || r[0].State != Reclaimed {
				t.Errorf("sweep of an empty directory: %+v, %v", r, err)
			}
			if left := paths(tree(t, base)); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
		})
	}
}

// TestThingsThatAreNoLeases, and no markers, are reported and left.
func TestThingsThatAreNoLeases(t *testing.T) {
	base := testutil.SocketDir(t)
	dir := deadRank(t, base, "fifo")
	deadRank(t, base, "directory")
	key := func(job string) string { return testIdentity(job).LeasePath(base) }
	socket, err := net.Listen("unix", testIdentity("socket").MarkerPath(base))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = socket.Close() }()
	if err := errors.Join(
		os.Remove(key("fifo")), unix.Mkfifo(key("fifo"), 0o600),
		os.Remove(key("directory")), os.Mkdir(key("directory"), 0o700),
		unix.Mkfifo(key("without-marker"), 0o600),
		os.Mkdir(testIdentity("marker").MarkerPath(base), 0o700),
		unix.Mkfifo(filepath.Join(dir, gone(t).DataFile(7)), 0o600),
	); err != nil {
		t.Fatal(err)
	}
	before := paths(tree(t, base))
	for _, dry := range []bool{true, false} {
		r, err := Sweep(base, SweepOptions{Dry: dry})
		if err != nil || len(r) != 5 {
			t.Errorf("sweep (dry: %v): %d reports, %v; want 5", dry, len(r), err)
		}
		for _, r := range r {
			if r.State != KeptForeign || r.Why == "" {
				t.Errorf("report (dry: %v): %+v", dry, r)
			}
		}
	}
	if diff := cmp.Diff(before, paths(tree(t, base))); diff != "" {
		t.Errorf("changed (-before +after):\n%s", diff)
	}
}

// TestSharedFileSystem: on a file system that other nodes may share, what another boot left is
// not touched, unless this host made it.
func TestSharedFileSystem(t *testing.T) {
	base := t.TempDir()
	dir := deadRank(t, base, "job")
	rewriteMarker(t, base, "job", func(m *marker) {
		m.Supervisor.BootID, m.Host = "00000000-0000-0000-0000-000000000000", "node-of-somebody"
	})
	b, err := openBase(base, false)
	if err != nil {
		t.Fatal(err)
	}
	defer b.close()
	b.local = false
	before := tree(t, base)
	if r, err := b.sweep(SweepOptions{}); err != nil || len(r) != 1 || r[0].State != KeptForeign || !strings.Contains(r[0].Why, "node-of-somebody") {
		t.Errorf("sweep: %+v, %v", r, err)
	}
	m := &marker{Version: markerVersion, Identity: testIdentity("job"), Base: b.id, Supervisor: self(t), Host: hostname()}
	if err := b.enterRank(m, false, ClaimOptions{}); !errors.Is(err, ErrForeign) || !strings.Contains(err.Error(), "node-of-somebody") {
		t.Errorf("claim: %v", err)
	}
	rebooted := self(t)
	rebooted.BootID = "0123abcd"
	write(t, filepath.Join(dir, rebooted.DataFile(0)), "of another node, perhaps")
	before["job/actor_cell0_rank1/"+rebooted.DataFile(0)] = tree(t, dir)[rebooted.DataFile(0)]
	fd, _, err := openDir(unix.AT_FDCWD, dir, dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	rep := Report{Dir: dir}
	if err := rep.sweepBare(fd, false, SweepOptions{Dry: true}); err != nil || slices.Contains(rep.Files, rebooted.DataFile(0)) {
		t.Errorf("bare sweep: %+v, %v", rep, err)
	}
	if diff := cmp.Diff(before, tree(t, base)); diff != "" {
		t.Errorf("changed (-before +after):\n%s", diff)
	}
	rewriteMarker(t, base, "job", func(m *marker) { m.Host = hostname() })
	if r, err := b.sweep(SweepOptions{}); err != nil || len(r) != 1 || r[0].State != Reclaimed {
		t.Errorf("sweep by the same host after a reboot: %+v, %v", r, err)
	}
}

// TestLocalFileSystems: this one holds the test's files; /proc stands for any that is unknown.
func TestLocalFileSystems(t *testing.T) {
	for dir, want := range map[string]bool{t.TempDir(): true, "/proc": false} {
		fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		if got := local(fd); got != want {
			t.Errorf("%s is local: %v, want %v", dir, got, want)
		}
		_ = unix.Close(fd)
	}
}

// TestRaces runs claims, leases, reclaims and sweeps of few identities in many goroutines and
// processes at once, some of which are killed. No live file is ever removed, and in the end
// one sweep leaves nothing.
func TestRaces(t *testing.T) {
	base := t.TempDir()
	var racers []*child
	for range 3 {
		racers = append(racers, launch(t, "race", base, "live"))
	}
	var wg sync.WaitGroup
	for g := range 3 {
		wg.Go(func() {
			for i := range uint64(30) {
				if err := raceOnce(base, raceIdentity(int(i)), 1000*uint64(g+1)+i); err != nil {
					t.Errorf("goroutine: %v", err)
					return
				}
			}
		})
	}
	for range 20 {
		dying := launch(t, "race", base, "die")
		line, _ := dying.out.ReadString('\n')
		_ = dying.cmd.Wait()
		if line != "" {
			t.Errorf("killed racer: %s", line)
		}
	}
	wg.Wait()
	for _, r := range racers {
		r.end()
	}
	if _, err := Sweep(base, SweepOptions{}); err != nil {
		t.Error(err)
	}
	if left := paths(tree(t, base)); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}
