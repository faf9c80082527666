package hostmem

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
)

// Limits is what limits the host memory of this process, in bytes.
type Limits struct {
	Total     uint64  // of the node
	Available uint64  // of the node, without pushing anything out
	Groups    []Group // memory cgroups with a limit, the innermost first

	unused bool // what is in use was left out
}

// Group is a memory cgroup with a limit.
type Group struct {
	Path  string // as the kernel names it in this process's cgroup namespace
	Limit uint64
	Used  uint64 // without file cache that can be reclaimed
}

// Look asks the kernel.
func Look() (Limits, error) { return look("/") }

// look reads the files below root.
func look(root string) (Limits, error) {
	text, err := os.ReadFile(filepath.Join(root, "proc/meminfo"))
	if err != nil {
		return Limits{}, fmt.Errorf("find out the memory of the node: %w", err)
	}
	var l Limits
	if l.Total, l.Available, err = parseMeminfo(string(text)); err != nil {
		return Limits{}, fmt.Errorf("find out the memory of the node from /proc/meminfo: %w", err)
	}
	// Without cgroups, or where they cannot be read, the node is the limit.
	membership, _ := os.ReadFile(filepath.Join(root, "proc/self/cgroup"))
	mounts, _ := os.ReadFile(filepath.Join(root, "proc/self/mountinfo"))
	for _, dir := range memoryGroups(string(membership), string(mounts)) {
		if g, limited := dir.read(root); limited {
			l.Groups = append(l.Groups, g)
		}
	}
	return l, nil
}

// groupDir is the directory of a memory cgroup.
type groupDir struct {
	dir  string // absolute
	path string // of the group, for people
	v2   bool

	ancestor bool // of the process's own group
}

// memoryGroups are the cgroup that limits this process's memory and its ancestors as far as they
// can be seen, the innermost first. The memory controller is in the one hierarchy of version 2
// unless a hierarchy of version 1 has it.
func memoryGroups(membership, mountinfo string) []groupDir {
	v1, v2 := parseMembership(membership)
	mounts := parseCgroupMounts(mountinfo)
	member, isV2 := v1, false
	if member == "" {
		member, isV2 = v2, true
	}
	if member == "" {
		return nil
	}
	var best *cgroupMount
	var below string // of the group, relative to the mount
	for i, m := range mounts {
		if m.v2 != isV2 {
			continue
		}
		rel, inside := m.relative(member)
		if best == nil || inside && len(rel) > len(below) {
			best, below = &mounts[i], rel
		}
	}
	if best == nil {
		return nil
	}
	var list []groupDir
	for rel := path.Join("/", below); ; rel = path.Dir(rel) {
		name := path.Join(best.root, rel)
		list = append(list, groupDir{dir: path.Join(best.point, rel), path: name, v2: isV2, ancestor: len(list) > 0})
		if rel == "/" {
			return list
		}
	}
}

// relative is the group's path below the mount's directory. A group that the mount does not show (it
// lies outside the cgroup namespace, or only a part of the tree was mounted) is taken for the
// mount's own: that is how containers see theirs.
func (m cgroupMount) relative(group string) (rel string, inside bool) {
	group, root := path.Clean(group), path.Clean(m.root)
	switch {
	case root == "/" && group != "/.." && !hasPrefix(group, "/../"):
		return group, true
	case group == root:
		return "/", true
	case root != "/" && hasPrefix(group, root+"/"):
		return group[len(root):], true
	default:
		return "/", false
	}
}

func hasPrefix(s, prefix string) bool { return len(s) >= len(prefix) && s[:len(prefix)] == prefix }

// read reads a group's numbers; limited is false when it has no limit, or does not tell. Most groups
// have none: the limit is read first, and the rest only where there is one.
func (d groupDir) read(root string) (g Group, limited bool) {
	file := func(name string) string {
		text, _ := os.ReadFile(filepath.Join(root, d.dir, name))
		return string(text)
	}
	number := func(name string) uint64 {
		n, _ := parseLimit(file(name))
		return n
	}
	usage, cache := "memory.current", []string{"inactive_file", "active_file"}
	g = Group{Path: d.path}
	if d.v2 {
		// Beyond memory.high the kernel throttles until nothing moves.
		g.Limit = min(number("memory.max"), number("memory.high"))
	} else {
		usage, cache = "memory.usage_in_bytes", []string{"total_inactive_file", "total_active_file"}
		g.Limit = number("memory.limit_in_bytes")
		if !d.ancestor {
			// In a container the ancestors are out of sight, yet their limits are told here.
			if h, told := parseStat(file("memory.stat"))["hierarchical_memory_limit"]; told && h < unlimited {
				g.Limit = min(g.Limit, h)
			}
		} else if g.Limit < unlimited && number("memory.use_hierarchy") == 0 {
			return g, false // kernels before 5.11 can have groups that do not count what is below them
		}
	}
	if g.Limit >= unlimited {
		return g, false
	}
	g.Used = number(usage)
	if g.Used >= unlimited {
		return g, false
	}
	stat := parseStat(file("memory.stat"))
	g.Used = less(g.Used, stat[cache[0]]+stat[cache[1]])
	return g, true
}

func less(a, b uint64) uint64 { return a - min(a, b) }
