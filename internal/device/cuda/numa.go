package cuda

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// numaNode is the node that the kernel gives for a PCI device, or -1. busID is the driver's form
// of it ("0000:1B:00.0"); sysfs writes it in lower case.
func numaNode(sysfs, busID string) int {
	text, err := os.ReadFile(filepath.Join(sysfs, "bus/pci/devices", strings.ToLower(busID), "numa_node"))
	if err != nil {
		return -1
	}
	node, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || node < 0 {
		return -1
	}
	return node
}
