package launch

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/ebb-offload/ebb/internal/hostmem"
)

// CheckDirectory checks whether ebb may keep rank directories in dir, before anything is made.
// dir need not exist yet, but the directory that it is to be in must: where that is missing, most
// likely a disk is not mounted, and the bytes would fill the one below. The warning, if not empty,
// is one line about a file system that works and is a poor choice.
func CheckDirectory(dir string, allowRAM bool) (warning string, err error) {
	const remedy = "name another directory with --offload-train-disk-dir"

	info, err := os.Lstat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		parent := filepath.Dir(dir)
		if err := checkParent(parent); err != nil {
			return "", Usagef("disk directory %s cannot be made: %w, or %s", dir, err, remedy)
		}
		if err := writable(parent); err != nil {
			return "", Usagef("disk directory %s does not exist and cannot be made: %w; make it, or %s", dir, err, remedy)
		}
		return checkFileSystem(dir, parent, allowRAM)
	case err != nil:
		return "", Usagef("disk directory %s cannot be looked at: %w; %s", dir, err, remedy)
	case info.Mode()&fs.ModeSymlink != 0:
		return "", Usagef("disk directory %s is a symbolic link: name the directory it points to with --offload-train-disk-dir", dir)
	case !info.IsDir():
		return "", Usagef("disk directory %s is not a directory: %s", dir, remedy)
	}
	if uid, ok := ownerOf(info); ok && uid != os.Geteuid() {
		return "", Usagef("disk directory %s belongs to user %d, not to user %d: name a directory of your own with --offload-train-disk-dir", dir, uid, os.Geteuid())
	}
	if mode := info.Mode().Perm(); mode&0o022 != 0 {
		if info.Mode()&fs.ModeSticky != 0 { // such as /tmp: it must stay so
			return "", Usagef("disk directory %s is meant for all users (mode 1%03o), who could plant files in it: name a new directory in it with --offload-train-disk-dir, such as %s", dir, mode, filepath.Join(dir, "ebb"))
		}
		return "", Usagef("disk directory %s is writable by others (mode %04o), who could plant files in it: run chmod go-w on it, or name a directory in it", dir, mode)
	}
	if err := writable(dir); err != nil {
		return "", Usagef("disk directory %s is not writable: %w; %s", dir, err, remedy)
	}
	return checkFileSystem(dir, dir, allowRAM)
}

// MakeDirectory makes a directory that CheckDirectory accepted, where it is not there yet.
func MakeDirectory(dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return Usagef("disk directory %s cannot be made: %w; name another directory with --offload-train-disk-dir", dir, err)
	}
	return nil
}

// Places are the directories on disks that a run uses.
type Places struct {
	Disk, State []string // of backups, of streamed state; of those that are the same directory one name
	All         []string // of both, each once

	own bool // those of streamed state were named for it

	unnamed, variable string // a disk directory that nobody named, and the variable of the scratch that it is in
}

// byFlag gives an error of a directory the flag that named it.
func (p Places) byFlag(base string, err error) error {
	var e *Error
	if !p.own || slices.Contains(p.Disk, base) || !errors.As(err, &e) {
		return err
	}
	return &Error{Status: e.Status, Text: strings.ReplaceAll(e.Text, "--offload-train-disk-dir", "--optimizer-state-nvme-dir"), Err: e.Err}
}

// places finds the directories of a run.
func (d Disks) places(o Options, getenv func(string) string, uid int, say func(string)) (p Places, err error) {
	if len(o.DiskDirs) == 0 {
		p.unnamed, _ = DefaultDiskDir(getenv, uid) // an error comes of its use
		_, p.variable = scratch(getenv)
	}
	if o.Disk() {
		if p.Disk, err = o.DiskBases(getenv, uid); err != nil {
			return p, err
		}
		p.Disk = d.distinct(p.Disk, say)
	}
	p.All = p.Disk
	if !o.Stream() {
		return p, nil
	}
	p.own = len(o.StateDirs) > 0
	bases, err := o.StateBases(getenv, uid)
	if err != nil {
		return p, err
	}
	for _, base := range d.distinct(bases, say) {
		same := slices.IndexFunc(p.Disk, func(other string) bool {
			a, errA := os.Stat(base)
			b, errB := os.Stat(other)
			return base == other || errA == nil && errB == nil && os.SameFile(a, b)
		})
		if same >= 0 {
			p.State = append(p.State, p.Disk[same])
			continue
		}
		p.State = append(p.State, base)
		p.All = append(slices.Clip(p.All), base)
	}
	return p, nil
}

// distinct leaves out disk directories that are named twice, and says so; and that several lie on one
// disk, where more of them make nothing faster.
func (d Disks) distinct(bases []string, say func(string)) []string {
	type found struct {
		info fs.FileInfo // nil: not there
		disk string
	}
	var list, disks []string
	var kept []found
	on := map[string][]string{} // disk to the directories on it
	for _, base := range bases {
		// What cannot be looked at is refused when it is checked.
		this, _ := InDirectory(d, "check", base, func(func()) (f found, _ error) {
			f.info, _ = os.Stat(base)
			f.disk = diskOf(base)
			return f, nil
		}, nil)
		same := func(other string) bool {
			info := kept[slices.Index(list, other)].info
			return other == base || info != nil && this.info != nil && os.SameFile(info, this.info)
		}
		if i := slices.IndexFunc(list, same); i >= 0 {
			say(fmt.Sprintf("disk directory %s is named twice: it is used once", list[i]))
			continue
		}
		list, kept = append(list, base), append(kept, this)
		if this.disk != "" {
			if on[this.disk] == nil {
				disks = append(disks, this.disk)
			}
			on[this.disk] = append(on[this.disk], base)
		}
	}
	for _, disk := range disks {
		if dirs := on[disk]; len(dirs) > 1 {
			say(fmt.Sprintf("disk directories %s lie on one disk: together they are no faster than one", strings.Join(dirs, " and ")))
		}
	}
	return list
}

// diskOf names the disk that a directory, or where it is missing its parent, lies on. Empty when it cannot be found out.
func diskOf(dir string) string {
	var st unix.Stat_t
	if unix.Stat(dir, &st) != nil && unix.Stat(filepath.Dir(dir), &st) != nil {
		return ""
	}
	return wholeDisk(fmt.Sprintf("%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev)))
}

// wholeDisk names the disk of a device "MAJOR:MINOR"; what is no block device (a network file system,
// one in memory, btrfs) keeps its number.
func wholeDisk(number string) string {
	device, err := filepath.EvalSymlinks("/sys/dev/block/" + number)
	if err != nil {
		return number
	}
	if _, err := os.Stat(filepath.Join(device, "partition")); err == nil {
		device = filepath.Dir(device)
	}
	return device
}

// checkParent checks that there is a directory to make the disk directory in. The error ends with
// what to do.
func checkParent(parent string) error {
	info, err := os.Stat(parent)
	switch {
	case err == nil && info.IsDir():
		return nil
	case err == nil:
		return fmt.Errorf("%s is not a directory: remove it", parent)
	case !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w: correct that", err)
	}
	if info, err := os.Lstat(parent); err == nil && info.Mode()&fs.ModeSymlink != 0 {
		return fmt.Errorf("%s is a symbolic link to nowhere: correct it", parent)
	}
	return fmt.Errorf("%s does not exist: create it, or mount the disk that belongs there", parent)
}

// writable checks that this process may make entries in a directory.
func writable(dir string) error {
	if err := unix.Faccessat(unix.AT_FDCWD, dir, unix.W_OK|unix.X_OK, unix.AT_EACCESS); err != nil {
		return &fs.PathError{Op: "write to", Path: dir, Err: err}
	}
	return nil
}

// checkFileSystem judges the file system of existing, where dir is or will be.
func checkFileSystem(dir, existing string, allowRAM bool) (warning string, err error) {
	m, err := mountOf(existing)
	if err != nil {
		return "", Usagef("disk directory %s: its file system cannot be found out: %w; name another directory with --offload-train-disk-dir", dir, err)
	}
	return m.judge(dir, allowRAM)
}

// judge says what is wrong with a mount for the bytes of dir.
func (m mount) judge(dir string, allowRAM bool) (warning string, err error) {
	switch {
	case m.inMemory() && !allowRAM:
		return "", Usagef("disk directory %s lies on %s, which is %s: parked bytes would stay in memory; name a directory on a local disk with --offload-train-disk-dir, or allow it with --allow-ram-backed-dir", dir, m.point, m.fsType)
	case m.inMemory():
		return fmt.Sprintf("disk directory %s lies on %s, which is %s: parked bytes stay in memory", dir, m.point, m.fsType), nil
	case m.network():
		return fmt.Sprintf("disk directory %s lies on %s, a network file system (%s): a local disk is faster and does not stall with the network", dir, m.point, m.fsType), nil
	}
	return "", nil
}

// mount is an entry of /proc/self/mountinfo (proc(5)).
type mount struct {
	id     int
	point  string
	fsType string
}

// Types of file systems as /proc/self/mountinfo names them.
var (
	memoryTypes  = []string{"tmpfs", "ramfs", "devtmpfs", "hugetlbfs"}
	networkTypes = []string{
		"nfs", "nfs4", "cifs", "smb3", "smbfs", "ceph", "lustre", "gpfs", "mmfs", "beegfs", "9p", "virtiofs", "afs", "ocfs2", "gfs2",
		"glusterfs", "pvfs2", "orangefs", "wekafs", "panfs", "coda",
	}
	// FUSE file systems name their program after "fuse."; these are the ones on local disks.
	localFUSE = []string{"fuse.bindfs", "fuse.mergerfs", "fuse.fuse-overlayfs", "fuse.fuse2fs", "fuse.ntfs-3g", "fuse.exfat", "fuse.lxcfs"}
)

func (m mount) inMemory() bool { return slices.Contains(memoryTypes, m.fsType) }

func (m mount) network() bool {
	if strings.HasPrefix(m.fsType, "fuse.") {
		return !slices.Contains(localFUSE, m.fsType)
	}
	return slices.Contains(networkTypes, m.fsType)
}

// mountOf finds the mount that path lies on. The kernel tells a file's mount by number, so that
// neither bind mounts nor symbolic links mislead.
func mountOf(path string) (mount, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return mount{}, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer func() { _ = unix.Close(fd) }()
	info, err := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", fd))
	if err != nil {
		return mount{}, err
	}
	id, err := parseMountID(string(info))
	if err != nil {
		return mount{}, err
	}
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return mount{}, err
	}
	for _, m := range parseMountinfo(string(table)) {
		if m.id == id {
			return m, nil
		}
	}
	return mount{}, fmt.Errorf("mount %d of %s is not in /proc/self/mountinfo", id, path)
}

func parseMountID(fdinfo string) (int, error) {
	for line := range strings.Lines(fdinfo) {
		if v, ok := strings.CutPrefix(line, "mnt_id:"); ok {
			return strconv.Atoi(strings.TrimSpace(v))
		}
	}
	return 0, errors.New("the kernel does not tell mount numbers")
}

// parseMountinfo reads lines such as
//
//	36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw
func parseMountinfo(table string) []mount {
	var mounts []mount
	for line := range strings.Lines(table) {
		before, after, ok := strings.Cut(line, " - ")
		f, g := strings.Fields(before), strings.Fields(after)
		if !ok || len(f) < 6 || len(g) < 1 {
			continue
		}
		id, err := strconv.Atoi(f[0])
		if err != nil {
			continue
		}
		mounts = append(mounts, mount{id: id, point: hostmem.Unescape(f[4]), fsType: g[0]})
	}
	return mounts
}

func ownerOf(info fs.FileInfo) (uid int, ok bool) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false
	}
	return int(st.Uid), true
}
