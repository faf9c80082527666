package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// host is what the kernel has and allows.
func (x examination) host() part {
	return part{theme: "host", checks: []check{
		one("memlock", func(context.Context) Finding {
			return judgeMemlock(limitOf(unix.RLIMIT_MEMLOCK), x.system.names("/sys/class/infiniband"))
		}),
		{"limits", func(context.Context) []Finding { return x.limits() }},
		one("host-memory", x.memory),
		one("cgroup", x.cgroup),
		one("huge-pages", func(context.Context) Finding { return judgeHugePages(x.system) }),
		one("numa", func(context.Context) Finding { return judgeNUMA(x.system, x.disksOf()) }),
		one("namespaces", func(context.Context) Finding { return judgeNamespaces(x.system) }),
		one("container", func(context.Context) Finding { return judgeContainer(x.system) }),
		one("stale-sockets", x.staleSockets),
	}}
}

// unlimited is RLIM_INFINITY.
const unlimited = ^uint64(0)

// limitOf is a soft limit of this process, which ranks inherit.
func limitOf(resource int) uint64 {
	var l unix.Rlimit
	if unix.Getrlimit(resource, &l) != nil {
		return unlimited
	}
	return l.Cur
}

// rdmaMemlock is what a rank's communication buffers need at least, in bytes; less is surely a default.
const rdmaMemlock = 1 << 30

// judgeMemlock: the driver pins ebb's staging memory without regard to the limit, but RDMA does not.
func judgeMemlock(limit uint64, rdma []string) Finding {
	switch {
	case limit == unlimited:
		return ok("no limit (RLIMIT_MEMLOCK)")
	case limit < rdmaMemlock && len(rdma) > 0:
		return warn("ulimit -l unlimited, in a container --ulimit memlock=-1",
			"RLIMIT_MEMLOCK is %s, and there are RDMA devices (%s): NCCL registers its buffers under that limit. ebb's own pinned memory is the driver's and does not count",
			size(limit), list(rdma))
	case len(rdma) > 0:
		return ok("RLIMIT_MEMLOCK is %s, for what NCCL registers with the RDMA devices (%s); ebb's pinned memory is the driver's and does not count", size(limit), list(rdma))
	}
	return ok("RLIMIT_MEMLOCK is %s; ebb's pinned memory is the driver's and does not count, and there are no RDMA devices here that would", size(limit))
}

// limits are those limits that are too low, or one row that none is.
func (x examination) limits() []Finding {
	var low []Finding
	if n := limitOf(unix.RLIMIT_NOFILE); n < 1024 {
		low = append(low, warn("ulimit -n 4096", "at most %d open files: a program with PyTorch needs hundreds, ebb a few dozen", n))
	}
	if n := limitOf(unix.RLIMIT_FSIZE); n != unlimited {
		low = append(low, fail("ulimit -f unlimited", "files may have at most %s (RLIMIT_FSIZE): a pause writes a file as large as each allocation", size(n)))
	}
	if n := limitOf(unix.RLIMIT_AS); n != unlimited {
		low = append(low, fail("ulimit -v unlimited", "a process may use at most %s of addresses (RLIMIT_AS): a GPU driver alone reserves more", size(n)))
	}
	if n := limitOf(unix.RLIMIT_DATA); n != unlimited {
		low = append(low, warn("ulimit -d unlimited", "a process may have at most %s of data (RLIMIT_DATA): backups in host memory count", size(n)))
	}
	if n := limitOf(unix.RLIMIT_NPROC); n < 4096 && unix.Geteuid() != 0 {
		low = append(low, warn("ulimit -u 65536", "at most %d threads of this user: each rank has dozens, and ebb adds up to some forty", n))
	}
	if n, known := x.system.number(x.pidsMax()); known && n < 1024 {
		low = append(low, warn("raise pids.max of the cgroup (docker --pids-limit, Kubernetes podPidsLimit)",
			"this cgroup allows %d threads: each rank has dozens", n))
	}
	if len(low) == 0 {
		low = append(low, ok("open files, file size, addresses and threads are not limited too low"))
	}
	return low
}

// pidsMax is the file with the limit on threads of this process's cgroup.
func (x examination) pidsMax() string {
	text, err := x.system.read("/proc/self/cgroup")
	if err != nil {
		return ""
	}
	for line := range strings.Lines(text) {
		part := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(part) < 3 {
			continue
		}
		switch part[1] {
		case "":
			if x.system.exists("/sys/fs/cgroup" + part[2] + "/pids.max") {
				return "/sys/fs/cgroup" + part[2] + "/pids.max"
			}
		case "pids":
			return "/sys/fs/cgroup/pids" + part[2] + "/pids.max"
		}
	}
	return ""
}

// disksOf are the drives of the disk directories, as far as they can be told without asking a disk: by
// the table of mounts.
func (x examination) disksOf() (drives []drive) {
	text, err := x.system.read("/proc/self/mountinfo")
	if err != nil {
		return nil
	}
	for _, dir := range x.o.DiskDirs {
		m := mountOver(text, dir)
		for _, d := range drivesOf(x.system, m.number, m.source) {
			if !slices.Contains(drives, d) {
				drives = append(drives, d)
			}
		}
	}
	return drives
}

func percent(part, whole uint64) string {
	if whole == 0 {
		return "0 %"
	}
	return fmt.Sprintf("%.0f %%", 100*float64(part)/float64(whole))
}
