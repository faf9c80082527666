package bench

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/dustin/go-humanize"
	"golang.org/x/sys/unix"

	"github.com/ebb-offload/ebb/internal/launch"
)

// need is what an experiment takes at its peak.
type need struct {
	device    uint64 // device memory
	host      uint64 // host memory that grows with the actor
	disk      uint64 // on all disks together
	processes int    // that use the device, the raw one included
}

// contextBytes is what a process takes of a GPU by itself (0.5 GB on an H200), and rankHost what it
// takes of host memory beside its actor: staging and buffers.
const (
	contextBytes = 768 * mib
	rankHost     = 512 * mib
)

// plus is what two take at the same time.
func (n need) plus(m need) need {
	return need{n.device + m.device, n.host + m.host, n.disk + m.disk, n.processes + m.processes}
}

// most is what two take one after the other.
func (n need) most(m need) need {
	return need{max(n.device, m.device), max(n.host, m.host), max(n.disk, m.disk), max(n.processes, m.processes)}
}

// need is the peak over all experiments asked for.
func (s *session) need() need {
	var n need
	for _, e := range s.experiments() {
		n = n.most(e.need(s))
	}
	return n
}

// fits is an error where there is too little memory or disk for that.
func (s *session) fits(n need) error {
	const remedy = "choose less with --gib, or fewer rows with --rows"
	device := n.device + min(n.device, gib) // raw copies
	if !s.o.soft() {
		device += uint64(n.processes) * contextBytes
	}
	if device > s.freeDevice {
		return launch.Usagef("this run takes %s of device memory at a time and %s are free: %s",
			humanize.IBytes(device), humanize.IBytes(s.freeDevice), remedy)
	}
	host := n.host + uint64(n.processes)*rankHost
	if s.o.soft() {
		host = n.host + n.device + uint64(n.processes)*uint64(s.o.ChunkMB)*mib // its device memory is host memory
	}
	if s.freeHost > 0 && host > s.freeHost {
		return launch.Usagef("this run takes %s of host memory at a time and %s are available: %s",
			humanize.IBytes(host), humanize.IBytes(s.freeHost), remedy)
	}
	disk := n.disk + n.disk/16 // what a file system takes for itself
	for _, f := range s.folders {
		var st unix.Statfs_t
		if err := unix.Fstatfs(int(f.dir.Fd()), &st); err != nil {
			return fmt.Errorf("look for room in %s: %w", f.base, err)
		}
		share, free := disk/uint64(len(s.folders)), st.Bavail*uint64(st.Bsize)
		if share > free {
			return launch.Usagef("this run takes %s in %s at a time and %s are free: %s, or name another directory with --disk-dir",
				humanize.IBytes(share), f.base, humanize.IBytes(free), remedy)
		}
	}
	return nil
}

// memory is a line of /proc/meminfo in bytes, 0 where the kernel does not tell.
func memory(name string) uint64 {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0
	}
	return memoryIn(text, name)
}

func memoryIn(meminfo []byte, name string) uint64 {
	lines := bufio.NewScanner(bytes.NewReader(meminfo))
	for lines.Scan() {
		key, rest, _ := strings.Cut(lines.Text(), ":")
		if fields := strings.Fields(rest); key == name && len(fields) > 0 {
			kib, err := strconv.ParseUint(fields[0], 10, 64)
			if err == nil {
				return kib << 10
			}
		}
	}
	return 0
}
