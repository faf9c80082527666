package doctor

import (
	"context"
	"encoding/binary"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/ebb-offload/ebb/internal/launch"
)

// drive is a whole disk.
type drive struct {
	name     string // "nvme0n1"
	model    string // as it says; else the kernel's driver
	firmware string
	spins    bool
	virtual  bool
	node     int // NUMA node; -1: not told
}

func (d drive) String() string {
	if d.model == "" {
		return d.name
	}
	return d.name + " (" + d.model + ")"
}

// device looks at the disk below the directory.
func (d *directory) device(context.Context) Finding {
	if d.unusable != "" {
		return skip("%s", d.unusable)
	}
	var st unix.Stat_t
	if err := unix.Stat(d.at, &st); err != nil {
		return skip("the device cannot be found out: %v", err)
	}
	source := ""
	if on, err := launch.FileSystemOf(d.at); err == nil {
		source = mountAt(d.x.system, on.Mount).source
	}
	drives := drivesOf(d.x.system, fmt.Sprintf("%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev)), source)
	f := judgeDrives(drives)
	for _, drive := range drives {
		health, err := readHealth(d.x.system, drive)
		if err == nil {
			f = f.worse(health.judge(drive))
		}
		f = f.fact("disk "+drive.name, "%s %s", drive.model, drive.firmware)
	}
	return f
}

func judgeDrives(drives []drive) Finding {
	if len(drives) == 0 {
		return skip("the file system does not tell which disk it is on")
	}
	var names, spinning []string
	virtual := false
	for _, d := range drives {
		names = append(names, d.String())
		switch {
		case d.virtual: // says that it spins, as a rule
			virtual = true
		case d.spins:
			spinning = append(spinning, d.String())
		}
	}
	switch {
	case len(spinning) > 0:
		return warn("name a directory on an SSD with --disk-dir", "%s is a rotating disk, which moves some 0.2 GB/s", list(spinning))
	case virtual:
		return ok("%s, a virtual disk: only disk-rate tells how fast it is", list(names))
	}
	return ok("%s, no rotating parts", list(names))
}

// worse joins another verdict about the same device: the worse one leads.
func (f Finding) worse(g Finding) Finding {
	rank := func(s Status) int { return slices.Index([]Status{OK, Skip, Warn, Fail}, s) }
	values, facts := f.Values, f.Facts
	if rank(g.Status) > rank(f.Status) {
		f, g = g, f
	}
	f.Text = f.Text + "; " + g.Text
	if f.Remedy == "" {
		f.Remedy = g.Remedy
	}
	f.Values, f.Facts = values, facts
	return f
}

// drivesOf are the whole disks below a device "MAJOR:MINOR", or where that is none (btrfs, overlay) below
// the source of a mount.
func drivesOf(s system, number, source string) []drive {
	dir := s.resolve("/sys/dev/block/" + number)
	if dir == "" && strings.HasPrefix(source, "/dev/") {
		dir = s.resolve("/sys/class/block/" + filepath.Base(source))
	}
	if dir == "" {
		return nil
	}
	return wholeDrives(s, dir, 0)
}

// wholeDrives follows partitions to their disks, and what is made of several (RAID, device mapper) to those.
func wholeDrives(s system, dir string, depth int) (drives []drive) {
	if s.exists(dir + "/partition") {
		dir = filepath.Dir(dir)
	}
	if below := s.names(dir + "/slaves"); len(below) > 0 && depth < 8 {
		for _, name := range below {
			if next := s.resolve(dir + "/slaves/" + name); next != "" {
				for _, d := range wholeDrives(s, next, depth+1) {
					if !slices.Contains(drives, d) {
						drives = append(drives, d)
					}
				}
			}
		}
		return drives
	}
	spins, _ := s.number(dir + "/queue/rotational")
	d := drive{name: filepath.Base(dir), model: oneLine(s.line(dir + "/device/model")), spins: spins == 1, node: nodeAbove(s, dir)}
	d.firmware = s.line(dir + "/device/firmware_rev")
	driver := ""
	if at := s.resolve(dir + "/device/driver"); at != "" {
		driver = filepath.Base(at)
	}
	if file := s.line(dir + "/loop/backing_file"); file != "" {
		d.model, d.virtual = "a loop device on "+file, true
	} else if d.model == "" {
		d.model = driver
	}
	d.virtual = d.virtual || slices.Contains([]string{"virtio_blk", "vbd", "nbd"}, driver) ||
		strings.Contains(d.model, "QEMU") || strings.Contains(d.model, "Virtual")
	return []drive{d}
}

// nodeAbove is the NUMA node of the first device above a place in sysfs that tells one.
func nodeAbove(s system, dir string) int {
	dir = s.resolve(dir)
	for dir != "" && dir != "/" && dir != "/sys" {
		for _, file := range []string{"/numa_node", "/device/numa_node"} {
			if n, known := s.number(dir + file); known {
				return n
			}
		}
		dir = filepath.Dir(dir)
	}
	return -1
}

// health is what an NVMe drive says of itself (SMART log of the NVMe base specification).
type health struct {
	critical byte // bits: 0 spare, 1 temperature, 2 reliability, 3 read only, 4 volatile memory
	spare    int  // percent of spare blocks left
	used     int  // percent of the rated writes; may be more than 100
	written  float64
}

// healthBytes is the length of the log.
const healthBytes = 512

func parseHealth(log []byte) (health, error) {
	if len(log) < healthBytes {
		return health{}, fmt.Errorf("a log of %d bytes", len(log))
	}
	// Units of a thousand blocks of 512 bytes; the upper half of the 128 bits is beyond any drive.
	units := binary.LittleEndian.Uint64(log[48:])
	return health{critical: log[0], spare: int(log[3]), used: int(log[5]), written: float64(units) * 512_000}, nil
}

func (h health) judge(d drive) Finding {
	text := fmt.Sprintf("%s has used %d %% of its rated writes (%.1f TB written, %d %% of spare blocks left)", d.name, h.used, h.written/1e12, h.spare)
	switch replace := "plan to replace the drive, or name another one with --disk-dir"; {
	case h.critical&(1<<3) != 0:
		return fail("name a directory on another drive with --disk-dir, and replace this one", "%s and takes no writes any more", text)
	case h.critical&(1<<0|1<<2) != 0:
		return warn(replace, "%s and says that it is failing", text)
	case h.critical&(1<<1) != 0:
		return warn("look at its cooling", "%s and is too hot or too cold: it may throttle", text)
	case h.used >= 90:
		return warn(replace, "%s", text)
	}
	return ok("%s", text)
}

var controller = regexp.MustCompile(`^nvme[0-9]+$`)

// readHealth asks a drive, which only root may. An error: it is not NVMe, or does not tell.
func readHealth(s system, d drive) (health, error) {
	name := filepath.Base(s.resolve("/sys/class/block/" + d.name + "/device"))
	if !controller.MatchString(name) {
		return health{}, unix.ENOTTY
	}
	fd, err := unix.Open(s.path("/dev/"+name), unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return health{}, err
	}
	defer func() { _ = unix.Close(fd) }()
	log, err := healthLog(fd)
	if err != nil {
		return health{}, err
	}
	return parseHealth(log)
}
