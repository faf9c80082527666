package doctor

import (
	"context"
	"math"
	"strconv"
	"strings"

	"github.com/ebb-offload/ebb/internal/hostmem"
)

// memory looks at what the node has.
func (x examination) memory(context.Context) Finding {
	l, err := hostmem.Look()
	if err != nil {
		return skip("%s", errorText(err))
	}
	return judgeMemory(l)
}

// leastMemory is less than the staging buffer of one rank beside the reserve that ebb leaves free.
const leastMemory = 3 << 30

func judgeMemory(l hostmem.Limits) Finding {
	f := ok("%s available of %s", size(l.Available), size(l.Total))
	switch {
	case l.Available < leastMemory/4:
		f = fail("end what is not needed", "%s available of %s: a rank's staging buffer (256 MiB) does not fit beside what ebb leaves free", size(l.Available), size(l.Total))
	case l.Available < leastMemory:
		f = warn("end what is not needed, or a smaller --offload-train-disk-chunk-mb", "%s available of %s: room for a staging buffer or two and for no backups in host memory",
			size(l.Available), size(l.Total))
	}
	return f.value("memory_bytes", float64(l.Total)).value("available_bytes", float64(l.Available)).
		fact("memory", "%s available of %s", size(l.Available), size(l.Total))
}

// cgroup looks at what limits this process's memory.
func (x examination) cgroup(context.Context) Finding {
	l, err := hostmem.Look()
	if err != nil {
		return skip("%s", errorText(err))
	}
	return judgeCgroup(l.Groups, cgroupVersion(x.system))
}

// cgroupVersion tells which hierarchy has the memory controller.
func cgroupVersion(s system) string {
	text, err := s.read("/proc/self/cgroup")
	if err != nil || strings.TrimSpace(text) == "" {
		return ""
	}
	for line := range strings.Lines(text) {
		part := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(part) == 3 {
			for controller := range strings.SplitSeq(part[1], ",") {
				if controller == "memory" {
					return "v1"
				}
			}
		}
	}
	if strings.HasPrefix(text, "0::") || strings.Contains(text, "\n0::") {
		return "v2"
	}
	return ""
}

func judgeCgroup(groups []hostmem.Group, version string) Finding {
	if version == "" {
		return ok("no memory cgroup: the node's memory is the limit")
	}
	var tight *hostmem.Group
	left := uint64(math.MaxUint64)
	for i, g := range groups {
		if l := g.Limit - min(g.Used, g.Limit); l < left {
			tight, left = &groups[i], l
		}
	}
	if tight == nil {
		return ok("cgroup %s without a limit: the node's memory is the limit", version)
	}
	text := func(f func(string, string, ...any) Finding, remedy, what string) Finding {
		return f(remedy, "cgroup %s %s allows %s, %s in use (file cache not counted)%s", version, tight.Path, size(tight.Limit), size(tight.Used), what)
	}
	const raise = "raise the limit (docker --memory, Kubernetes resources.limits.memory, Slurm --mem)"
	f := text(func(_, format string, args ...any) Finding { return ok(format, args...) }, "", "")
	switch {
	case left < 384<<20:
		f = text(fail, raise, ": no room for a rank's staging buffer (256 MiB)")
	case left < leastMemory:
		f = text(warn, raise+", or use the disk target with a small --offload-train-disk-chunk-mb", ": room for a staging buffer or two and for no backups in host memory")
	}
	return f.value("limit_bytes", float64(tight.Limit)).value("left_bytes", float64(left)).
		fact("cgroup", "%s %s: %s, %s in use", version, tight.Path, size(tight.Limit), size(tight.Used))
}

// judgeHugePages: backups in host memory are filled and pinned in huge pages, if there are any.
func judgeHugePages(s system) Finding {
	mode := s.chosen("/sys/kernel/mm/transparent_hugepage/enabled")
	aside := uint64(0)
	for _, dir := range s.names("/sys/kernel/mm/hugepages") {
		kib, _ := strconv.ParseUint(strings.TrimSuffix(strings.TrimPrefix(dir, "hugepages-"), "kB"), 10, 64)
		if free, known := s.number("/sys/kernel/mm/hugepages/" + dir + "/free_hugepages"); known {
			aside += kib << 10 * uint64(free)
		}
	}
	total := uint64(0)
	if kib, err := strconv.ParseUint(strings.TrimSuffix(s.field("/proc/meminfo", "MemTotal"), " kB"), 10, 64); err == nil {
		total = kib << 10
	}
	if total > 0 && aside > total/4 {
		return warn("sysctl vm.nr_hugepages=0, if nobody needs them",
			"%s, %s of the memory, are set aside as huge pages that nobody uses (vm.nr_hugepages): ebb's backups cannot have them", size(aside), percent(aside, total))
	}
	set := ""
	if aside > 0 {
		set = "; " + size(aside) + " are set aside (vm.nr_hugepages)"
	}
	switch mode {
	case "":
		return warn("a kernel with transparent huge pages, for backups in host memory", "the kernel has no transparent huge pages: host memory is filled and pinned in pages of 4 KiB, which is slower%s", set)
	case "never":
		return warn("echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
			"transparent huge pages are off (never): host memory for backups is filled and pinned in pages of 4 KiB, which is slower%s", set)
	}
	return ok("transparent huge pages: %s; ebb asks for them%s", mode, set)
}
