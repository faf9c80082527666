package launch

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ebb-offload/ebb/internal/testutil"
)

// disk is an empty directory of this user on the disk that holds the repository.
func disk(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if m, err := mountOf(dir); err != nil || m.inMemory() {
		return testutil.InBuild(t, "launch-")
	}
	return dir
}

func accepted(t *testing.T, dir string) {
	t.Helper()
	if warning, err := CheckDirectory(dir, false); err != nil || warning != "" {
		t.Errorf("%s: %q, %v; want it accepted", dir, warning, err)
	}
}

func TestDirectoriesThatMayBeUsed(t *testing.T) {
	d := disk(t)
	if err := os.Chmod(d, 0o700); err != nil {
		t.Fatal(err)
	}
	accepted(t, d)
	accepted(t, filepath.Join(d, "new"))
	if _, err := os.Lstat(filepath.Join(d, "new")); err == nil {
		t.Error("checking made the directory")
	}
	if err := os.Symlink(d, filepath.Join(d, "scratch")); err != nil {
		t.Fatal(err)
	}
	accepted(t, filepath.Join(d, "scratch", "below-a-link"))
}

func TestDirectoriesThatMayNot(t *testing.T) {
	d := disk(t)
	file := filepath.Join(d, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(d, "link")
	if err := os.Symlink(d, link); err != nil {
		t.Fatal(err)
	}
	nowhere := filepath.Join(d, "nowhere")
	if err := os.Symlink("missing", nowhere); err != nil {
		t.Fatal(err)
	}
	open := filepath.Join(d, "open")
	if err := os.Mkdir(open, 0o700); err != nil {
		t.Fatal(err)
	}
	shared := filepath.Join(d, "shared")
	if err := os.Mkdir(shared, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(shared, 0o777|os.ModeSticky); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(open, 0o777); err != nil {
		t.Fatal(err)
	}
	for dir, why := range map[string]string{
		file:                         "is not a directory",
		filepath.Join(file, "below"): "file/below cannot be looked at",
		link:                         "symbolic link",
		nowhere:                      "symbolic link",
		filepath.Join(nowhere, "x"):  "symbolic link to nowhere",
		open:                         "chmod go-w",
		shared:                       "name a new directory in it",
		// As when the disk of /scratch is not mounted.
		filepath.Join(d, "missing", "x"):         filepath.Join(d, "missing") + " does not exist: create it, or mount the disk that belongs there, or name another directory with --offload-train-disk-dir",
		filepath.Join(d, "missing", "deep", "x"): filepath.Join(d, "missing", "deep") + " does not exist",
	} {
		warning, err := CheckDirectory(dir, false)
		refusal(t, err, dir, why)
		if warning != "" {
			t.Errorf("%s: warned as well: %s", dir, warning)
		}
	}
}

func TestOnlyTheLastDirectoryIsMade(t *testing.T) {
	d := filepath.Join(disk(t), "new")
	for range 2 { // made, then there
		if err := MakeDirectory(d); err != nil {
			t.Fatal(err)
		}
	}
	if info, err := os.Lstat(d); err != nil || info.Mode() != os.ModeDir|0o700 {
		t.Errorf("made as %v, %v", info, err)
	}
	deep := filepath.Join(d, "missing", "x")
	refusal(t, MakeDirectory(deep), deep)
	if exists(filepath.Dir(deep)) {
		t.Error("the parent was made")
	}
}

func TestADirectoryThatCannotBeMade(t *testing.T) {
	refusal(t, MakeDirectory("/proc/nothing/here"), "/proc/nothing/here", "cannot be made")
}

func TestDirectoriesOfOthers(t *testing.T) {
	if os.Geteuid() != 0 {
		_, err := CheckDirectory("/", false)
		refusal(t, err, "belongs to user 0")
		return
	}
	d := filepath.Join(disk(t), "theirs")
	if err := os.Mkdir(d, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(d, 65534, 65534); err != nil {
		t.Fatal(err)
	}
	_, err := CheckDirectory(d, false)
	refusal(t, err, d, "belongs to user 65534, not to user 0")
}

func TestDirectoriesInMemory(t *testing.T) {
	const dir = "/dev/shm/ebb-test-directory"
	if m, err := mountOf("/dev/shm"); err != nil || m.fsType != "tmpfs" {
		t.Fatalf("/dev/shm is no tmpfs here (%v, %v)", m, err)
	}
	_, err := CheckDirectory(dir, false)
	refusal(t, err, dir, "/dev/shm", "tmpfs", "--offload-train-disk-dir", "--allow-ram-backed-dir")
	warning, err := CheckDirectory(dir, true)
	if err != nil || warning == "" {
		t.Errorf("allowed: %q, %v; want one warning", warning, err)
	}
	if _, err := os.Lstat(dir); err == nil {
		t.Error("checking made the directory")
	}
}

func TestMountTable(t *testing.T) {
	const table = `22 28 0:21 / /proc rw,nosuid shared:12 - proc proc rw
28 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
29 28 0:25 / /mnt/with\040blank\134 rw - tmpfs none rw,size=5k
malformed line
30 28 0:31 / /nfs rw,relatime - nfs4 server:/export rw
x 28 0:31 / /bad rw - ext4 a rw
31 28 0:32 / /fuse rw - fuse.sshfs host:/ rw
`
	want := []mount{
		{22, "/proc", "proc"}, {28, "/", "ext4"}, {29, `/mnt/with blank\`, "tmpfs"}, {30, "/nfs", "nfs4"}, {31, "/fuse", "fuse.sshfs"},
	}
	if diff := cmp.Diff(want, parseMountinfo(table), cmp.AllowUnexported(mount{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestKindsOfFileSystems(t *testing.T) {
	for fsType, kind := range map[string]string{
		"ext4": "disk", "xfs": "disk", "btrfs": "disk", "zfs": "disk", "overlay": "disk", "fuseblk": "disk", "fuse.bindfs": "disk",
		"tmpfs": "memory", "ramfs": "memory", "devtmpfs": "memory",
		"nfs": "network", "nfs4": "network", "cifs": "network", "lustre": "network", "ceph": "network", "9p": "network",
		"gpfs": "network", "beegfs": "network", "virtiofs": "network", "fuse.sshfs": "network", "fuse.juicefs": "network",
	} {
		m := mount{fsType: fsType}
		got := "disk"
		if m.inMemory() {
			got = "memory"
		} else if m.network() {
			got = "network"
		}
		if got != kind {
			t.Errorf("%s is taken for %s, want %s", fsType, got, kind)
		}
	}
}

func TestFileSystemsAreNamedToTheUser(t *testing.T) {
	warning, err := mount{point: "/home", fsType: "nfs4"}.judge("/home/me/x", false)
	if err != nil || !strings.Contains(warning, "/home/me/x") || !strings.Contains(warning, "network file system (nfs4)") {
		t.Errorf("NFS: %q, %v; want a warning with its type", warning, err)
	}
	_, err = mount{point: "/mnt/ram", fsType: "ramfs"}.judge("/mnt/ram/x", false)
	refusal(t, err, "/mnt/ram/x", "/mnt/ram, which is ramfs")
	if warning, err := (mount{point: "/", fsType: "xfs"}).judge("/x", false); warning != "" || err != nil {
		t.Errorf("XFS: %q, %v", warning, err)
	}
}

func TestMountNumbers(t *testing.T) {
	if id, err := parseMountID("pos:\t0\nflags:\t012000000\nmnt_id:\t29\nino:\t2\n"); id != 29 || err != nil {
		t.Error(id, err)
	}
	if _, err := parseMountID("pos:\t0\n"); err == nil {
		t.Error("no mount number, no error")
	}
}

func TestDirectoriesOnOneDiskAreKnown(t *testing.T) {
	dir := t.TempDir()
	here := diskOf(dir)
	if here == "" || diskOf(filepath.Join(dir, "to-be-made")) != here {
		t.Errorf("%s lies on %q, what is made in it on %q", dir, here, diskOf(filepath.Join(dir, "to-be-made")))
	}
	if got := diskOf("/proc/self/fd/no/such"); got != "" {
		t.Errorf("a place that is not there lies on %q", got)
	}
	if proc := diskOf("/proc"); proc == here || proc == "" {
		t.Errorf("/proc lies on %q", proc)
	}

	var said []string
	say := func(line string) { said = append(said, line) }
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	if got := testDisks.distinct([]string{a, "/proc", b, a}, say); !slices.Equal(got, []string{a, "/proc", b}) {
		t.Errorf("%v", got)
	}
	if len(said) != 2 || !strings.Contains(said[0], a+" is named twice") || !strings.Contains(said[1], a+" and "+b+" lie on one disk") {
		t.Errorf("%q", said)
	}
	said = nil
	if testDisks.distinct([]string{a, "/proc"}, say); len(said) != 0 {
		t.Errorf("two disks: %q", said)
	}
}

// A partition is on its disk, as another one of the same is.
func TestAPartitionIsOnItsDisk(t *testing.T) {
	parts, err := filepath.Glob("/sys/class/block/*/partition")
	if err != nil || len(parts) == 0 {
		t.Skip("this machine has no partitions")
	}
	for _, part := range parts {
		resolved, err := filepath.EvalSymlinks(filepath.Dir(part))
		if err != nil {
			t.Fatal(err)
		}
		number, err := os.ReadFile(filepath.Join(resolved, "dev"))
		if err != nil {
			t.Fatal(err)
		}
		if got, want := wholeDisk(strings.TrimSpace(string(number))), filepath.Dir(resolved); got != want {
			t.Errorf("%s is on %s, want %s", resolved, got, want)
		}
	}
}
