package doctor

import (
	"slices"
	"strings"

	"github.com/ebb-offload/ebb/internal/hostmem"
)

// mount is a line of mountinfo (proc_pid_mountinfo(5)).
type mount struct {
	number  string // of the device, "MAJOR:MINOR"
	point   string
	fsType  string
	source  string
	options []string // of the mount, then of the file system
}

func (m mount) has(option string) bool { return slices.Contains(m.options, option) }

func parseMounts(mountinfo string) (mounts []mount) {
	for line := range strings.Lines(mountinfo) {
		before, after, split := strings.Cut(line, " - ")
		f, g := strings.Fields(before), strings.Fields(after)
		if split && len(f) >= 6 && len(g) >= 3 {
			mounts = append(mounts, mount{number: f[2], point: hostmem.Unescape(f[4]), fsType: g[0], source: hostmem.Unescape(g[1]),
				options: slices.Concat(strings.Split(f[5], ","), strings.Split(g[2], ","))})
		}
	}
	return mounts
}

// mountAt is what is mounted at a place: the last one counts.
func mountAt(s system, point string) mount {
	text, _ := s.read("/proc/self/mountinfo")
	found := mount{source: "unknown"}
	for _, m := range parseMounts(text) {
		if m.point == point {
			found = m
		}
	}
	return found
}

// mountOver is the mount that a path lies on by its name alone, which asks no disk.
func mountOver(mountinfo, path string) (found mount) {
	for _, m := range parseMounts(mountinfo) {
		inside := m.point == "/" || path == m.point || strings.HasPrefix(path, m.point+"/")
		if inside && len(m.point) >= len(found.point) {
			found = m
		}
	}
	return found
}
