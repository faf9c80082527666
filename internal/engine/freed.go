package engine

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/ebb-offload/ebb/internal/alloc"
	"github.com/ebb-offload/ebb/internal/control"
	"github.com/ebb-offload/ebb/internal/sizes"
)

// This file compares what a pause released with what became free: physical memory that somebody still
// refers to stays, although the driver took it back without an error. A registration (RDMA, cuFile,
// NCCL user buffers) is such a reference; the memory that a resume creates is another one, so the
// registration is of no use afterwards either. A shortfall is told, and is no error. It counts as missing only
// where NVML tells of other processes: else one of them may have taken the memory that became free.

// look is what is known of the memory of devices at one moment, in bytes.
type look struct {
	free   uint64         // as the driver says
	own    uint64         // of this process, as NVML says
	others map[int]uint64 // of each other process, likewise
	told   bool           // NVML told of this process, and so of the others, at the same moment as the driver
}

func devicesOf(set []*alloc.Allocation) []int {
	devices := map[int]bool{}
	for _, a := range set {
		devices[a.Device] = true
	}
	return slices.Sorted(maps.Keys(devices))
}

// freeOf is the free memory of the devices of the set together; false: the driver does not tell.
func (e *Engine) freeOf(set []*alloc.Allocation) (free uint64, ok bool) {
	for _, dev := range devicesOf(set) {
		n, err := e.freeMemory(dev)
		if err != nil {
			return 0, false
		}
		free += n
	}
	return free, true
}

// looks is how often it is tried to ask driver and NVML at the same moment.
const looks = 4

// look looks at the devices of the set; false: the driver does not tell.
func (e *Engine) look(set []*alloc.Allocation) (look, bool) {
	return lookAtOnce(func() (uint64, bool) { return e.freeOf(set) }, func() look { return e.nvmlLook(set) })
}

// lookAtOnce asks the driver before and after it asks NVML, which takes milliseconds: what others take or give back
// meanwhile is in one of the answers and not in the other. Where that goes on, NVML counts as telling nothing.
func lookAtOnce(free func() (uint64, bool), holders func() look) (l look, ok bool) {
	before, ok := free()
	for range looks {
		if !ok {
			return l, false
		}
		l = holders()
		if l.free, ok = free(); !l.told || ok && l.free == before {
			return l, ok
		}
		before = l.free
	}
	l.told = false
	return l, ok
}

// nvmlLook is what NVML tells of the devices of the set.
func (e *Engine) nvmlLook(set []*alloc.Allocation) look {
	l := look{others: map[int]uint64{}, told: true}
	for _, dev := range devicesOf(set) {
		found := false
		list, _ := e.drv.Holders(dev) // an error: nothing is told
		for _, h := range list {
			if h.PID == os.Getpid() {
				l.own += h.Bytes
				found = true
			} else {
				l.others[h.PID] += h.Bytes
			}
		}
		l.told = l.told && found
	}
	return l
}

// freed enters in the result what became free since a look, and tells in the log what did not. Only
// where something seems to be missing is NVML asked again, which takes milliseconds.
func (e *Engine) freed(res *Result, set []*alloc.Allocation, before look) {
	free, ok := e.freeOf(set)
	if ok && free >= before.free && free-before.free+control.Tolerance(res.DeviceBytes) >= res.DeviceBytes {
		res.Freed = free - before.free
		return
	}
	after, ok := e.look(set)
	if !ok {
		return
	}
	if why := res.compare(before, after); why != "" {
		e.log.Printf("a pause released %s of device memory, of which %s did not become free: %s",
			sizes.Binary(res.DeviceBytes), sizes.Binary(res.DeviceBytes-min(res.DeviceBytes, res.Freed)), why)
	}
}

// compare sets Freed and Missing by two looks, and says why less became free than was released, if it did. Nothing
// counts as missing where others may have taken it.
func (res *Result) compare(before, after look) (why string) {
	grown, by := growth(before, after)
	// What others took meanwhile was free in between, what they gave back was not released here.
	became := int64(after.free) - int64(before.free) + grown
	res.Freed = uint64(max(became, 0))
	missing := res.DeviceBytes - min(res.DeviceBytes, res.Freed)
	if missing <= control.Tolerance(res.DeviceBytes) {
		return ""
	}
	if before.told && after.told {
		res.Missing = missing
	}
	return holding(before, after, res.DeviceBytes, by)
}

// growth is by how much other processes together hold more than before, and which do, as far as that is told.
func growth(before, after look) (bytes int64, by []string) {
	if !before.told || !after.told {
		return 0, nil
	}
	pids := maps.Clone(before.others)
	maps.Copy(pids, after.others)
	for _, pid := range slices.Sorted(maps.Keys(pids)) {
		more := int64(after.others[pid]) - int64(before.others[pid])
		bytes += more
		if more > 0 {
			by = append(by, fmt.Sprintf("pid %d took %s", pid, sizes.Binary(uint64(more))))
		}
	}
	return bytes, by
}

// holding says who may hold what did not become free.
func holding(before, after look, released uint64, by []string) string {
	const registered = "what was registered with others (RDMA, cuFile, NCCL user buffers) or mapped a second time keeps it"
	switch {
	case !before.told || !after.told:
		return registered + ", or another process has taken it, which the system does not tell here"
	case after.own+released-min(released, control.Tolerance(released)) > before.own:
		return "this process still holds it: " + registered
	case len(by) > 0:
		return "this process gave it back; meanwhile " + strings.Join(by, ", ")
	}
	return "this process gave it back, and the driver keeps it"
}

// halfway is the result of a pause or resume that failed: what it had moved by then. t is nil when nothing
// was begun.
func (t *transfer) halfway() (res Result) {
	if t == nil {
		return res
	}
	res.HostBytes, res.DiskBytes, res.Workers, res.Checks = t.moved.Host(), t.moved.Disk(), t.workers, t.checked
	return res
}

// tellWritten tells in the log what a pause that failed had written; its caller sees the error alone.
func (e *Engine) tellWritten(res Result) {
	if res.HostBytes+res.DiskBytes > 0 {
		e.log.Printf("a pause failed when %s of host memory and %s of files had been written",
			sizes.Binary(res.HostBytes), sizes.Binary(res.DiskBytes))
	}
}
