package engine

import "os"

// Class is device memory of the process that ebb does not manage, of one kind: what the hooks saw
// pass, or what the driver tells.
type Class struct {
	Name  string `json:"name"`
	Bytes uint64 `json:"bytes"`
	Count uint64 `json:"count"`
}

// unmanaged is all device memory of the process that ebb does not manage. Where the system does
// not tell what the process holds, Measured is false and Total the sum of the classes.
type unmanaged struct {
	Total    uint64  `json:"total"`
	Measured bool    `json:"measured"`
	Classes  []Class `json:"classes"`
}

// unmanaged sums up what is not managed. told is what the hooks saw pass.
func (e *Engine) unmanaged(told []Class) unmanaged {
	u := unmanaged{Classes: append([]Class{}, told...)}
	var known uint64
	for _, c := range u.Classes {
		known += c.Bytes
	}
	held, measured := e.ownBytes()
	if !measured {
		u.Total = known
		return u
	}
	u.Measured = true
	u.Total = held - min(held, e.deviceBytes())
	return u
}

// deviceBytes is the physical memory that managed allocations have now.
func (e *Engine) deviceBytes() (n uint64) {
	for _, bytes := range e.table.Usage().Device {
		n += bytes
	}
	return n
}

// ownBytes is the device memory that this process holds in all; false when the system does not
// tell, as in a container of its own process numbers.
func (e *Engine) ownBytes() (held uint64, measured bool) {
	devices, err := e.drv.DeviceCount()
	if err != nil {
		return 0, false
	}
	for dev := range devices {
		list, err := e.drv.Holders(dev)
		if err != nil {
			continue
		}
		for _, h := range list {
			if h.PID == os.Getpid() {
				held, measured = held+h.Bytes, true
			}
		}
	}
	return held, measured
}
