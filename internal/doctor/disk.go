package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/ebb-offload/ebb/internal/diskspeed"
	"github.com/ebb-offload/ebb/internal/launch"
	"github.com/ebb-offload/ebb/internal/rankdir"
)

// directory is a disk directory that is being looked at.
type directory struct {
	x     examination
	path  string
	given bool

	at       string // path, or where that is missing the directory in which a run would make it
	unusable string // why nothing more can be looked at
	closed   string // why nothing can be written
}

func (x examination) disk(path string, given bool) part {
	d := &directory{x: x, path: path, given: given, at: path}
	hangs, remedy := x.diskHangs(path)
	return part{theme: "disk " + path, hangs: hangs, remedy: remedy, checks: []check{
		one("disk-dir", d.place),
		one("disk-filesystem", d.fileSystem),
		one("disk-device", d.device),
		one("disk-room", d.room),
		one("direct-io", d.direct),
		one("disk-stale", d.stale),
	}}
}

// diskHangs says what hangs when a directory gives no answer, by the table of mounts, which asks no disk.
func (x examination) diskHangs(dir string) (hangs, remedy string) {
	text, _ := x.system.read("/proc/self/mountinfo")
	m := mountOver(text, dir)
	return fmt.Sprintf("the file system at %s (%s, from %s) hangs", m.point, m.fsType, m.source),
		"have its device or server answer again (dmesg; fsfreeze -u; the FUSE or NFS server), or name another directory with --disk-dir"
}

// measurable reports whether a disk whose rows these are can be measured.
func measurable(found []Finding) bool {
	for _, f := range found {
		if f.Status == Fail || f.Check == "direct-io" && f.Status == Skip {
			return false
		}
	}
	return len(found) > 0
}

// place looks at the directory itself and at the one that it is in.
func (d *directory) place(context.Context) Finding {
	info, err := os.Lstat(d.path)
	if errors.Is(err, fs.ErrNotExist) {
		return d.missing()
	}
	none := func(remedy, format string, args ...any) Finding {
		d.unusable = "not looked at: see disk-dir"
		return fail(remedy, format, args...)
	}
	const other = "name another directory with --disk-dir"
	switch {
	case err != nil:
		return none(other, "it cannot be looked at: %v", cause(err))
	case info.Mode()&fs.ModeSymlink != 0:
		to, _ := os.Readlink(d.path)
		return none("name the directory that it leads to", "it is a symbolic link to %s; ebb follows none", to)
	case !info.IsDir():
		return none(other, "it is no directory")
	}
	st, _ := info.Sys().(*syscall.Stat_t)
	mode := fmt.Sprintf("mode %04o", st.Mode&0o7777)
	if err := unix.Faccessat(unix.AT_FDCWD, d.path, unix.W_OK|unix.X_OK, unix.AT_EACCESS); err != nil {
		d.closed = "not looked at: nothing can be written here"
		remedy := other
		if errors.Is(err, unix.EROFS) {
			remedy = "mount it for writing, or " + other
		}
		return fail(remedy, "it cannot be written to (%s, of user %d): %v", mode, st.Uid, err)
	}
	switch {
	case int(st.Uid) != os.Geteuid():
		return fail("name a directory of your own, or have it made over to you: chown "+fmt.Sprint(os.Geteuid())+" "+d.path,
			"it belongs to user %d, and you are user %d (%s)", st.Uid, os.Geteuid(), mode)
	case st.Mode&0o022 != 0 && st.Mode&unix.S_ISVTX != 0:
		return fail("name a new directory in it, such as "+filepath.Join(d.path, "ebb"),
			"it is meant for all users (%s), who could plant files in it", mode)
	case st.Mode&0o022 != 0:
		return fail("chmod go-w "+d.path, "others may write to it (%s) and could plant files in it", mode)
	}
	// What a run would refuse, whatever it is; memory is a matter of the file system.
	if _, err := launch.CheckDirectory(d.path, true); err != nil {
		return fail(other, "%s", errorText(err))
	}
	parent := filepath.Dir(d.path)
	up, err := os.Stat(parent)
	if err != nil {
		return ok("yours alone to write (%s)", mode)
	}
	above, _ := up.Sys().(*syscall.Stat_t)
	switch {
	case above.Mode&0o022 != 0 && above.Mode&unix.S_ISVTX == 0:
		return warn("chmod go-w "+parent+", or chmod +t", "yours alone to write (%s), but others may rename it, since they may write to %s (mode %04o)",
			mode, parent, above.Mode&0o7777)
	case int(above.Uid) != os.Geteuid() && above.Uid != 0:
		return warn("name a directory in one of your own or of root's", "yours alone to write (%s), but user %d owns %s and could rename it", mode, above.Uid, parent)
	}
	return ok("yours alone to write (%s), in %s (mode %04o, of user %d)", mode, parent, above.Mode&0o7777, above.Uid)
}

// missing looks at the directory in which a run would make one that is not there.
func (d *directory) missing() Finding {
	parent := filepath.Dir(d.path)
	if _, err := launch.CheckDirectory(d.path, true); err == nil {
		d.at = parent
		return ok("it is not there yet; a run makes it in %s", parent)
	}
	d.unusable = "not looked at: see disk-dir"
	why, remedy := parent+" cannot be written to", "make it as one who may, or name another directory with --disk-dir"
	switch info, err := os.Stat(parent); {
	case errors.Is(err, fs.ErrNotExist):
		why, remedy = parent+" does not exist", "create that, or mount the disk that belongs there, or name another directory with --disk-dir"
	case err != nil:
		why, remedy = fmt.Sprintf("%s: %v", parent, cause(err)), "name another directory with --disk-dir"
	case !info.IsDir():
		why, remedy = parent+" is no directory", "name another directory with --disk-dir"
	}
	if !d.given {
		return warn("name the disk directory of your runs with --disk-dir", "the default disk directory cannot be made: %s", why)
	}
	return fail(remedy, "it is not there and cannot be made: %s", why)
}

// cause is an error without the path that the row is about.
func cause(err error) error {
	var path *fs.PathError
	if errors.As(err, &path) {
		return path.Err
	}
	return err
}

// fileSystem looks at what the directory lies on.
func (d *directory) fileSystem(context.Context) Finding {
	if d.unusable != "" {
		return skip("%s", d.unusable)
	}
	on, err := launch.FileSystemOf(d.at)
	if err != nil {
		return warn("name a directory whose file system is known", "its file system cannot be found out: %s", errorText(err))
	}
	m := mountAt(d.x.system, on.Mount)
	return judgeMount(on, m).fact("mount of "+d.path, "%s at %s, from %s, %s", on.Type, on.Mount, m.source, strings.Join(m.known(), ","))
}

// judgeMount says whether paused memory is well kept on a file system.
func judgeMount(on launch.FileSystem, m mount) Finding {
	const other = "name a directory on a local disk with --disk-dir"
	where := fmt.Sprintf("%s at %s (%s)", on.Type, on.Mount, m.source)
	switch {
	case on.InMemory:
		return fail(other+"; if memory is meant, allow it with --allow-ram-backed-dir", "%s is memory: parked bytes would stay in memory", where)
	case m.has("ro"):
		return fail("mount it for writing, or "+other, "%s is mounted read-only", where)
	case on.Network:
		return warn(other, "%s is a network file system: slower than a local disk, and it stalls with the network", where)
	case on.Type == "overlay":
		return warn("mount a volume on a local disk into the container", "%s is a container's own layer: it is lost with the container and has what room the image store has", where)
	case m.has("sync"):
		return warn("mount it without -o sync", "%s is mounted with sync: each write waits for the disk", where)
	case m.has("data=journal"):
		return warn("mount it with data=ordered", "%s writes everything twice (data=journal) and refuses direct I/O", where)
	case on.Type == "btrfs" && !m.has("nodatacow"):
		return warn("chattr +C on the directory, while it is empty, or another file system", "%s copies on write: each pause goes to fresh blocks, and checksums are computed by the CPU", where)
	case on.Type == "zfs":
		return warn("use ext4 or xfs for the disk directory", "%s keeps what is written in a cache of its own in host memory", where)
	}
	return ok("%s, a local file system", where)
}

// Options of mounts that may stand in a bug report. Some file systems have users and keys among theirs.
var knownOptions = []string{"rw", "ro", "sync", "noatime", "relatime", "discard", "nodiscard", "barrier", "nobarrier", "data", "dax", "nodatacow",
	"datacow", "compress", "compress-force", "ssd", "stripe", "sunit", "swidth", "logbufs", "logbsize", "prjquota", "usrquota", "grpquota", "errors",
	"delalloc", "nodelalloc", "inode64", "largeio", "size", "nr_inodes", "mode", "nosuid", "nodev", "noexec", "vers", "rsize", "wsize", "hard", "soft"}

func (m mount) known() (list []string) {
	for _, o := range m.options {
		if name, _, _ := strings.Cut(o, "="); slices.Contains(knownOptions, name) && !slices.Contains(list, o) {
			list = append(list, o)
		}
	}
	return list
}

// leastRoom is with how little no run can begin.
const (
	leastRoom   = 64 << 20
	leastInodes = 64
)

func (d *directory) room(context.Context) Finding {
	if d.unusable != "" {
		return skip("%s", d.unusable)
	}
	var st unix.Statfs_t
	var at unix.Stat_t
	err := unix.Statfs(d.at, &st)
	if err == nil {
		err = unix.Stat(d.at, &at)
	}
	if err != nil {
		return warn("", "its room cannot be found out: %v", err)
	}
	return judgeRoom(st).value("disk_id", float64(at.Dev))
}

func judgeRoom(st unix.Statfs_t) Finding {
	unit := uint64(st.Bsize)
	free, total := st.Bavail*unit, st.Blocks*unit
	text := fmt.Sprintf("%s of %s free", size(free), size(total))
	if st.Files > 0 {
		text += fmt.Sprintf(", and %d inodes", st.Ffree)
	}
	switch remedy := "make room, or name another directory with --disk-dir"; {
	case free < leastRoom:
		return fail(remedy, "%s: it is full", text).value("free_bytes", float64(free))
	case st.Files > 0 && st.Ffree < leastInodes:
		return fail(remedy, "%s: it has no room for files", text).value("free_bytes", float64(free))
	}
	return ok("%s", text).value("free_bytes", float64(free))
}

// direct writes and reads a page the way ebb does.
func (d *directory) direct(context.Context) Finding {
	if d.unusable != "" {
		return skip("%s", d.unusable)
	}
	if d.closed != "" {
		return skip("%s", d.closed)
	}
	a, err := diskspeed.Look(d.at, 0)
	switch {
	case errors.Is(err, diskspeed.ErrDifferent):
		return fail("do not use this disk: look at dmesg", "%s", errorText(err))
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return fail("make room, or raise the quota of the file system", "a page cannot be written: %v", cause(err))
	case err != nil:
		return fail("look at the disk (dmesg), or name another directory with --disk-dir", "a page cannot be written and read: %s", errorText(err))
	case !a.Direct:
		return warn("nothing, or another file system", "no direct I/O: %s; ebb goes through the page cache, which it empties as it goes, and is slower", a.Refused)
	}
	aligned := "the file system does not tell its alignment"
	if a.OffsetAlign > 0 {
		aligned = fmt.Sprintf("aligned to %d bytes in memory and %d in files", a.MemoryAlign, a.OffsetAlign)
	}
	return ok("O_DIRECT works (%s); a page that was written is read back the same", aligned)
}

// stale looks for what dead runs left.
func (d *directory) stale(context.Context) Finding {
	if d.unusable != "" {
		return skip("%s", d.unusable)
	}
	if d.at != d.path {
		return ok("nothing is here yet")
	}
	reports, err := launch.NewDisks(d.x.getenv).GC(d.path, rankdir.SweepOptions{Dry: true})
	if err != nil {
		return skip("what is here cannot be looked at: %s", errorText(err))
	}
	return judgeStale("ebb gc --disk-dir "+d.path, reports)
}

// bare looks where processes without a directory of their own leave backup files.
func (x examination) bare(dir string) part {
	hangs, remedy := x.diskHangs(dir)
	return part{theme: "disk " + dir + " (backup files without a launcher)", hangs: hangs, remedy: remedy, checks: []check{
		one("stale-files", func(context.Context) Finding {
			reports, err := launch.NewDisks(x.getenv).GCBare(dir, rankdir.SweepOptions{Dry: true})
			if err != nil {
				return skip("what is here cannot be looked at: %s", errorText(err))
			}
			return judgeStale("ebb gc", reports)
		})}}
}

func judgeStale(remedy string, reports []rankdir.Report) Finding {
	var files, live, dead int
	var bytes uint64
	var kept []rankdir.Report
	for _, r := range reports {
		switch r.State {
		case rankdir.Live:
			live++
		case rankdir.KeptForeign:
			kept = append(kept, r)
		case rankdir.Reclaimable:
			dead, files, bytes = dead+1, files+len(r.Files), bytes+r.Bytes
		}
	}
	here := ""
	switch {
	case live == 1:
		here = "; 1 rank lives here"
	case live > 1:
		here = fmt.Sprintf("; %d ranks live here", live)
	}
	switch {
	case dead > 0:
		return warn(remedy, "dead runs left %s with %s, %s%s",
			launch.Count(dead, "rank directory"), launch.Count(files, "file"), size(bytes), here).value("stale_bytes", float64(bytes))
	case len(kept) > 0:
		return warn("look at it, and remove it by hand if it is not wanted; ebb removes only what it can prove to be its own",
			"ebb gc would keep %s: %s%s", kept[0].Dir, kept[0].Why, here)
	}
	return ok("nothing of dead runs%s", here)
}
