package engine

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/ebb-offload/ebb/internal/alloc"
	"github.com/ebb-offload/ebb/internal/device"
	"github.com/ebb-offload/ebb/internal/sizes"
)

// Class is device memory of the process that ebb does not manage, of one kind: what the hooks saw
// pass, or what the driver tells.
type Class struct {
	Name  string `json:"name"`
	Bytes uint64 `json:"bytes"`
	Count uint64 `json:"count"` // of allocations, pools, devices; 0 where it is not known
}

// Names of the classes that the engine adds.
const (
	classPool    = "pool"    // memory pools: what is in use, and idle memory that they keep
	classGraph   = "graph"   // allocations in CUDA graphs
	classContext = "context" // contexts and their modules: what nobody else accounts for, up to contextBytes a device
	classOther   = "other"   // what is beyond that
)

// contextBytes is what a device's contexts and modules may take by themselves (0.5 GB on an H200).
// More than that was held through allocators that no hook saw.
const contextBytes = 1 << 30

// unmanaged is all device memory of the process that ebb does not manage. Where the system does
// not tell what the process holds, Measured is false and Total the sum of the classes.
type unmanaged struct {
	Total    uint64  `json:"total"`
	Measured bool    `json:"measured"`
	Classes  []Class `json:"classes"` // the largest first
}

// unmanaged sums up what is not managed. told is what the hooks saw pass.
func (e *Engine) unmanaged(told []Class) unmanaged {
	classes := e.known(told)
	var sum uint64
	for _, c := range classes {
		sum += c.Bytes
	}
	u := unmanaged{Total: sum}
	if held, devices := e.ownBytes(); devices > 0 {
		var managed uint64
		for _, n := range e.table.Usage().Device {
			managed += n
		}
		u.Measured = true
		u.Total = held - min(held, managed)
		rest := u.Total - min(u.Total, sum)
		context := min(rest, devices*contextBytes)
		classes = append(classes, Class{classContext, context, devices}, Class{Name: classOther, Bytes: rest - context})
	}
	classes = slices.DeleteFunc(classes, func(c Class) bool { return c.Bytes == 0 })
	slices.SortFunc(classes, func(a, b Class) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.Name, b.Name))
	})
	u.Classes = append([]Class{}, classes...)
	return u
}

// known is what the hooks told, and what the driver tells of pools and graphs on the devices that
// memory is managed on. The driver also knows of idle memory in pools, the hooks also of pools
// that it does not tell of: the larger number counts.
func (e *Engine) known(told []Class) []Class {
	byName := map[string]*Class{}
	of := func(name string) *Class {
		if byName[name] == nil {
			byName[name] = &Class{Name: name}
		}
		return byName[name]
	}
	for _, c := range told {
		of(c.Name).Bytes += c.Bytes
		of(c.Name).Count += c.Count
	}
	var pools, graphs uint64
	for _, dev := range e.usedDevices() {
		for _, p := range e.pools(dev) {
			u, _ := e.drv.PoolUsage(p) // one that is just destroyed holds nothing
			pools += u.Reserved
		}
		u, _ := e.drv.GraphUsage(dev) // an error: the driver has none
		graphs += u.Reserved
	}
	of(classPool).Bytes = max(of(classPool).Bytes, pools)
	of(classGraph).Bytes = max(of(classGraph).Bytes, graphs)
	list := make([]Class, 0, len(byName)+2)
	for _, c := range byName {
		list = append(list, *c)
	}
	return list
}

// pools are the pools that the driver tells of a device: none where it has no pools.
func (e *Engine) pools(dev int) []device.Pool {
	list, err := e.drv.Pools(dev)
	if err != nil {
		return nil
	}
	return list
}

// usedDevices are those that memory is managed on.
func (e *Engine) usedDevices() []int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Sorted(maps.Keys(e.devices))
}

// trimPools gives back the idle memory of pools and graphs, on the devices that memory is managed
// on. Their work is done: a pause has waited for it.
func (e *Engine) trimPools() {
	e.calmly(func() {
		for _, dev := range e.usedDevices() {
			for _, p := range e.pools(dev) {
				if err := e.drv.PoolTrim(p, 0); err != nil {
					e.log.Printf("give back the idle memory of a pool of device %d: %v", dev, err)
				}
			}
			if err := e.drv.GraphTrim(dev); err != nil && !device.IsCode(err, device.CodeNotSupported) {
				e.log.Printf("give back the idle memory of graphs of device %d: %v", dev, err)
			}
		}
	})
}

// ownBytes is the device memory that this process holds in all, and on how many devices; 0 devices
// when the system does not tell, as in a container with process numbers of its own.
func (e *Engine) ownBytes() (held, devices uint64) {
	count, err := e.drv.DeviceCount()
	if err != nil {
		return 0, 0
	}
	for dev := range count {
		list, err := e.drv.Holders(dev)
		if err != nil {
			continue
		}
		for _, h := range list {
			if h.PID == os.Getpid() {
				held += h.Bytes
				devices++
			}
		}
	}
	return held, devices
}

// leave ends a pause of the tags: idle memory of pools goes too, what stays on the devices is
// counted, and named in the log when it is not what it was at the pause before. Called with op
// held.
func (e *Engine) leave(res *Result, tags []string, s Settings) {
	if !s.CaptureActive {
		e.trimPools()
	}
	kept := e.table.KeptOf(tags)
	for _, k := range kept {
		res.Kept += k.Bytes
	}
	left := e.leftBehind(kept, s.Classes)
	if left != "" && left != e.left {
		e.log.Printf("a pause leaves on the device: %s", left)
	}
	e.left = left
}

// leftBehind says what a pause leaves on the devices: memory that is kept, and what is not managed
// as far as that is known without asking the system. Empty when there is nothing.
func (e *Engine) leftBehind(kept []alloc.Kept, told []Class) string {
	var parts []string
	for _, k := range kept {
		parts = append(parts, fmt.Sprintf("%s in %d allocations kept (%s)", sizes.Binary(k.Bytes), k.Count, k.Reason))
	}
	classes := e.known(told)
	slices.SortFunc(classes, func(a, b Class) int { return cmp.Compare(a.Name, b.Name) })
	for _, c := range classes {
		if c.Bytes > 0 {
			parts = append(parts, fmt.Sprintf("%s not managed (%s)", sizes.Binary(c.Bytes), c.Name))
		}
	}
	return strings.Join(parts, ", ")
}
