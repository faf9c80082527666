package doctor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ebb-offload/ebb/internal/diskspeed"
	"github.com/ebb-offload/ebb/internal/filesys"
	"github.com/ebb-offload/ebb/internal/launch"
	"github.com/ebb-offload/ebb/internal/rankdir"
	"github.com/ebb-offload/ebb/internal/testutil"
)

// onDisk is an empty directory of this user on the file system of the repository.
func onDisk(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp(testutil.Root(t), "build-doctor-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func here() examination {
	return examination{system: system{root: "/"}, getenv: func(string) string { return "" }}
}

// lookAt is the rows of a disk directory, by name.
func lookAt(t *testing.T, dir string, given bool) map[string]Finding {
	t.Helper()
	rows := map[string]Finding{}
	for _, f := range here().disk(dir, given).run(t.Context(), hangs) {
		rows[f.Check] = f
	}
	return rows
}

func TestADirectoryThatIsFit(t *testing.T) {
	dir := filepath.Join(onDisk(t), "ebb")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	rows := lookAt(t, dir, true)
	expect(t, rows["disk-dir"], OK, "yours alone to write (mode 0700)", filepath.Dir(dir))
	for _, name := range []string{"disk-filesystem", "disk-room", "direct-io", "disk-stale"} {
		if f := rows[name]; f.Status != OK && f.Status != Warn {
			t.Errorf("%s: %s %s", name, f.Status, f.Text)
		}
	}
	if rows["disk-room"].Values["free_bytes"] <= 0 {
		t.Errorf("no number of free bytes: %+v", rows["disk-room"])
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

func TestADirectoryThatARunWouldMake(t *testing.T) {
	parent := onDisk(t)
	rows := lookAt(t, filepath.Join(parent, "new"), true)
	expect(t, rows["disk-dir"], OK, "a run makes it in "+parent)
	expect(t, rows["disk-stale"], OK, "nothing is here yet")
	if rows["disk-room"].Status != OK {
		t.Errorf("room: %+v", rows["disk-room"])
	}
	if left, err := os.ReadDir(parent); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// Each is refused by ebb run too.
func TestDirectoriesThatAreNot(t *testing.T) {
	base := onDisk(t)
	at := func(name string) string { return filepath.Join(base, name) }
	made := func(name string, mode os.FileMode) string {
		if err := errors.Join(os.Mkdir(at(name), 0o700), os.Chmod(at(name), mode)); err != nil {
			t.Fatal(err)
		}
		return at(name)
	}
	if err := errors.Join(os.WriteFile(at("file"), nil, 0o600), os.Symlink(base, at("link"))); err != nil {
		t.Fatal(err)
	}
	for dir, words := range map[string][]string{
		at("missing/deeper"):                     {"missing does not exist", "mount the disk"},
		at("file"):                               {"no directory"},
		at("file/below"):                         {"cannot be looked at"},
		at("link"):                               {"symbolic link to " + base},
		made("open", 0o777):                      {"others may write to it (mode 0777)", "chmod go-w " + at("open")},
		made("everybody's", 0o777|os.ModeSticky): {"meant for all users", at("everybody's/ebb")},
	} {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			rows := lookAt(t, dir, true)
			expect(t, rows["disk-dir"], Fail, words...)
			if _, err := launch.CheckDirectory(dir, false); err == nil {
				t.Error("a run would take it")
			}
			if len(rows) != 6 {
				t.Errorf("%d rows, want 6: what cannot be looked at is said", len(rows))
			}
		})
	}
	// The default one is nobody's wish.
	expect(t, lookAt(t, at("missing/deeper"), false)["disk-dir"], Warn, "default", "--disk-dir")
}

func TestADirectoryOfAnotherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		expect(t, lookAt(t, "/", true)["disk-dir"], Fail, "cannot be written to")
		return
	}
	dir := onDisk(t)
	if err := os.Chown(dir, 65534, 65534); err != nil {
		t.Fatal(err)
	}
	expect(t, lookAt(t, dir, true)["disk-dir"], Fail, "belongs to user 65534", "chown 0 "+dir)
}

func TestAParentThatOthersMayWriteTo(t *testing.T) {
	parent := onDisk(t)
	dir := filepath.Join(parent, "ebb")
	if err := errors.Join(os.Mkdir(dir, 0o700), os.Chmod(parent, 0o777)); err != nil {
		t.Fatal(err)
	}
	expect(t, lookAt(t, dir, true)["disk-dir"], Warn, "rename it", "chmod go-w "+parent)
}

func TestFileSystems(t *testing.T) {
	at := func(options ...string) mount { return mount{source: "/dev/x", options: options} }
	for _, c := range []struct {
		name   string
		on     launch.FileSystem
		m      mount
		status Status
		words  string
	}{
		{"local", launch.FileSystem{Type: "xfs", Mount: "/scratch"}, at("rw", "noatime"), OK, "xfs at /scratch (/dev/x)"},
		{"memory", launch.FileSystem{Type: "tmpfs", InMemory: true}, at("rw"), Fail, "--allow-ram-backed-dir"},
		{"network", launch.FileSystem{Type: "nfs4", Network: true}, at("rw"), Warn, "network file system"},
		{"read-only", launch.FileSystem{Type: "ext4"}, at("ro"), Fail, "read-only"},
		{"container", launch.FileSystem{Type: "overlay"}, at("rw"), Warn, "mount a volume"},
		{"sync", launch.FileSystem{Type: "ext4"}, at("rw", "sync"), Warn, "without -o sync"},
		{"journal", launch.FileSystem{Type: "ext4"}, at("rw", "data=journal"), Warn, "data=ordered"},
		{"copies on write", launch.FileSystem{Type: "btrfs"}, at("rw"), Warn, "chattr +C"},
		{"does not", launch.FileSystem{Type: "btrfs"}, at("rw", "nodatacow"), OK, "btrfs"},
	} {
		t.Run(c.name, func(t *testing.T) { expect(t, judgeMount(c.on, c.m), c.status, c.words) })
	}
}

// Options of mounts that are not known to be harmless never leave the machine.
func TestNoSecretsOfMountsAreShown(t *testing.T) {
	m := mountAt(node("two-sockets"), "/mnt/with blank")
	if m.fsType != "cifs" || m.source != "//server/share" {
		t.Fatalf("found %+v", m)
	}
	shown := strings.Join(m.known(), ",")
	if shown != "rw,relatime,vers=3.1.1" {
		t.Errorf("shown: %s", shown)
	}
}

func TestTheMountOfAPathByItsName(t *testing.T) {
	text, err := node("two-sockets").read("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for path, point := range map[string]string{
		"/scratch/me/ebb": "/scratch", "/scratch": "/scratch", "/scratches": "/", "/home/me": "/", "/mnt/with blank/x": "/mnt/with blank",
	} {
		if got := mountOver(text, path).point; got != point {
			t.Errorf("%s lies on %s, want %s", path, got, point)
		}
	}
}

func TestRoom(t *testing.T) {
	expect(t, judgeRoom(unix.Statfs_t{Bsize: 4096, Blocks: 1 << 28, Bavail: 1 << 27, Files: 1 << 20, Ffree: 1 << 19}), OK, "512 GiB (549.8 GB) of 1 TiB", "524288 inodes")
	expect(t, judgeRoom(unix.Statfs_t{Bsize: 4096, Blocks: 1 << 28, Bavail: 100, Files: 1 << 20, Ffree: 1 << 19}), Fail, "full")
	expect(t, judgeRoom(unix.Statfs_t{Bsize: 4096, Blocks: 1 << 28, Bavail: 1 << 27, Files: 1 << 20, Ffree: 0}), Fail, "no room for files")
	// btrfs has no fixed number of inodes.
	expect(t, judgeRoom(unix.Statfs_t{Bsize: 4096, Blocks: 1 << 28, Bavail: 1 << 27}), OK)
}

func TestWhatDeadRunsLeft(t *testing.T) {
	live := rankdir.Report{State: rankdir.Live}
	expect(t, judgeStale("ebb gc", nil), OK, "nothing of dead runs")
	expect(t, judgeStale("ebb gc", []rankdir.Report{live, live}), OK, "2 ranks live here")
	expect(t, judgeStale("ebb gc --disk-dir /d", []rankdir.Report{live, {State: rankdir.Reclaimable, Files: []string{"a", "b"}, Bytes: 3 << 30}}),
		Warn, "1 rank directory with 2 files, 3 GiB (3.2 GB); 1 rank lives here", "ebb gc --disk-dir /d")
	expect(t, judgeStale("ebb gc", []rankdir.Report{{State: rankdir.KeptForeign, Dir: "/d/x", Why: "not ebb's"}}), Warn, "/d/x: not ebb's")
}

func TestRates(t *testing.T) {
	fast := diskspeed.Rates{WriteBytesPerS: 2.4e9, FreshBytesPerS: 1.6e9, ReadBytesPerS: 1.8e9, Bytes: 512 << 20, Workers: 4, BlockBytes: 4 << 20, Access: diskspeed.Access{Direct: true}}
	f := judgeRate(fast, nil)
	expect(t, f, OK, "writes 2.40 GB/s (fresh blocks 1.60), reads 1.80 GB/s", "36 s out and 48 s in", "O_DIRECT")
	if f.Values["write_bytes_per_s"] != 2.4e9 {
		t.Errorf("numbers: %v", f.Values)
	}
	slow := fast
	slow.ReadBytesPerS = 0.2e9
	expect(t, judgeRate(slow, nil), Warn, "reads 0.20 GB/s", "faster disk")
	expect(t, judgeRate(fast, fmt.Errorf("x: %w", diskspeed.ErrRoom)), Skip, "too little room")
	expect(t, judgeRate(fast, fmt.Errorf("x: %w", filesys.ErrHang)), Fail, "no answer")
	expect(t, judgeRate(fast, unix.EIO), Fail, "cannot be measured")
}

func TestDrivesBelowADirectory(t *testing.T) {
	for _, c := range []struct {
		name, root, number, source string
		want                       []string
		status                     Status
		words                      string
	}{
		{"partition", "two-sockets", "259:1", "/dev/nvme0n1p1", []string{"nvme0n1"}, OK, "nvme0n1 (SAMSUNG MZWLO3T8HCLS-00A07), no rotating parts"},
		{"RAID below a device mapper", "two-sockets", "253:0", "", []string{"nvme0n1", "nvme1n1"}, OK, "and nvme1n1"},
		{"without a device number of its own", "two-sockets", "0:45", "/dev/nvme1n1", []string{"nvme1n1"}, OK, "nvme1n1"},
		{"rotating", "workstation", "8:2", "", []string{"sda"}, Warn, "sda (ST4000DM004-2CV1) is a rotating disk"},
		{"virtual", "workstation", "254:0", "", []string{"vda"}, OK, "vda (virtio_blk), a virtual disk"},
		{"loop", "workstation", "7:3", "", []string{"loop3"}, OK, "a loop device on /home/u/image"},
		{"not told", "container", "0:90", "overlay", nil, Skip, "does not tell"},
	} {
		t.Run(c.name, func(t *testing.T) {
			drives := drivesOf(node(c.root), c.number, c.source)
			var names []string
			for _, d := range drives {
				names = append(names, d.name)
			}
			if !slices.Equal(names, c.want) {
				t.Errorf("drives %v, want %v", names, c.want)
			}
			expect(t, judgeDrives(drives), c.status, c.words)
		})
	}
	if got := drivesOf(node("two-sockets"), "9:127", ""); len(got) != 2 || got[0].node != 0 || got[1].node != 1 {
		t.Errorf("NUMA nodes of %+v, want 0 and 1", got)
	}
}

func TestHealthOfADrive(t *testing.T) {
	log := make([]byte, healthBytes)
	log[3], log[5] = 100, 3
	log[48], log[49], log[50] = 0x00, 0x24, 0xf4 // 16,000,000 units of 512,000 bytes
	d := drive{name: "nvme0n1"}
	judged := func() Finding {
		h, err := parseHealth(log)
		if err != nil {
			t.Fatal(err)
		}
		return h.judge(d)
	}
	expect(t, judged(), OK, "used 3 % of its rated writes (8.2 TB written, 100 % of spare blocks left)")
	log[5] = 104
	expect(t, judged(), Warn, "104 %", "replace")
	log[0] = 1 << 3
	expect(t, judged(), Fail, "no writes any more")
	log[0] = 1 << 2
	expect(t, judged(), Warn, "failing")
	log[0] = 1 << 1
	expect(t, judged(), Warn, "cooling")
	if _, err := parseHealth(log[:100]); err == nil {
		t.Error("a short log was read")
	}
	// The worse verdict leads, and both are said.
	both := ok("a disk").worse(fail("replace", "worn out"))
	expect(t, both, Fail, "worn out; a disk", "replace")
}
