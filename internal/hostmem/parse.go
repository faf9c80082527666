package hostmem

import (
	"errors"
	"math"
	"slices"
	"strconv"
	"strings"
)

// The functions of this file read the kernel's texts (proc_meminfo(5), cgroups(7),
// proc_pid_mountinfo(5), and the kernel's cgroup-v1/memory and cgroup-v2 pages).

// parseMeminfo reads /proc/meminfo; the results are bytes.
func parseMeminfo(text string) (total, available uint64, err error) {
	value := func(key string) (uint64, error) {
		for line := range strings.Lines(text) {
			rest, found := strings.CutPrefix(line, key+":")
			if !found {
				continue
			}
			f := strings.Fields(rest)
			if len(f) != 2 || f[1] != "kB" {
				return 0, errors.New("a line " + key + " that is not in kB")
			}
			n, err := strconv.ParseUint(f[0], 10, 53)
			return n << 10, err
		}
		return 0, errors.New("no line " + key)
	}
	if total, err = value("MemTotal"); err != nil {
		return 0, 0, err
	}
	available, err = value("MemAvailable")
	if err != nil {
		return 0, 0, err
	}
	return total, available, nil
}

// parseMembership reads /proc/self/cgroup: the process's group in the hierarchy of version 1 that
// has the memory controller, and in that of version 2. Empty: none.
func parseMembership(text string) (v1memory, v2 string) {
	for line := range strings.Lines(text) {
		id, rest, ok := strings.Cut(strings.TrimSuffix(line, "\n"), ":")
		controllers, group, ok2 := strings.Cut(rest, ":")
		if !ok || !ok2 || !strings.HasPrefix(group, "/") {
			continue
		}
		// A group that was removed under its last processes.
		group = strings.TrimSuffix(group, " (deleted)")
		switch {
		case id == "0" && controllers == "":
			v2 = group
		case slices.Contains(strings.Split(controllers, ","), "memory"):
			v1memory = group
		}
	}
	return v1memory, v2
}

// cgroupMount is a mounted hierarchy: of version 2, or that of version 1 with the memory controller.
type cgroupMount struct {
	root  string // the group whose directory is at point
	point string
	v2    bool
}

// parseCgroupMounts reads /proc/self/mountinfo, with lines such as
//
//	35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
func parseCgroupMounts(text string) []cgroupMount {
	var mounts []cgroupMount
	for line := range strings.Lines(text) {
		before, after, ok := strings.Cut(line, " - ")
		f, g := strings.Fields(before), strings.Fields(after)
		if !ok || len(f) < 6 || len(g) < 3 {
			continue
		}
		v2 := g[0] == "cgroup2"
		v1memory := g[0] == "cgroup" && slices.Contains(strings.Split(g[2], ","), "memory")
		m := cgroupMount{root: Unescape(f[3]), point: Unescape(f[4]), v2: v2}
		if (v2 || v1memory) && strings.HasPrefix(m.root, "/") && strings.HasPrefix(m.point, "/") {
			mounts = append(mounts, m)
		}
	}
	return mounts
}

// Unescape undoes the kernel's \040 for blanks and the like in a field of mountinfo (proc_pid_mountinfo(5)).
func Unescape(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// unlimited is what version 1 writes for no limit, or more: the largest number of pages.
const unlimited = math.MaxInt64 &^ 0xfffff

// parseLimit reads a file of one number of bytes. known is false, and the value the largest, for
// "max", for the large number by which version 1 says the same, and for anything else.
func parseLimit(text string) (bytes uint64, known bool) {
	n, err := strconv.ParseUint(strings.TrimSpace(text), 10, 64)
	if err != nil || n >= unlimited {
		return math.MaxUint64, false
	}
	return n, true
}

// parseStat reads memory.stat: lines of a name and a number.
func parseStat(text string) map[string]uint64 {
	stat := map[string]uint64{}
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if n, err := strconv.ParseUint(value, 10, 62); err == nil {
			stat[name] = n
		}
	}
	return stat
}
