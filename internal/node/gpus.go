package node

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/ebb-offload/ebb/internal/control"
)

// driverGPUs is where NVIDIA's driver tells of its devices, one directory for each.
const driverGPUs = "/proc/driver/nvidia/gpus"

// GPUs are the numbers of devices on this node by their UUIDs, as the driver tells them; empty where it does not.
func GPUs() map[string]string { return gpusIn(driverGPUs) }

func gpusIn(dir string) map[string]string {
	numbers := map[string]string{}
	files, _ := filepath.Glob(filepath.Join(dir, "*", "information"))
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		var uuid, minor string
		for line := range strings.Lines(string(text)) {
			switch key, value, _ := strings.Cut(line, ":"); strings.TrimSpace(key) {
			case "GPU UUID":
				uuid = strings.TrimSpace(value)
			case "Device Minor":
				minor = strings.TrimSpace(value)
			}
		}
		if uuid != "" && minor != "" {
			numbers[uuid] = minor
		}
	}
	return numbers
}

// GPUNames are what the devices of ranks are called in a table, by UUID: their numbers on the node where those are
// known, their ordinals where those mean the same device in every rank, else the beginning of the UUID.
func GPUNames(all [][]control.Device, numbers map[string]string) func(control.Device) string {
	uuids := map[int]string{} // by ordinal
	same := true
	for _, devices := range all {
		for _, d := range devices {
			if known, ok := uuids[d.Ordinal]; ok && known != d.UUID {
				same = false
			}
			uuids[d.Ordinal] = d.UUID
		}
	}
	return func(d control.Device) string {
		if n, ok := numbers[d.UUID]; ok {
			return n
		}
		if same || d.UUID == "" {
			return strconv.Itoa(d.Ordinal)
		}
		bare := strings.TrimPrefix(d.UUID, "GPU-")
		return bare[:min(8, len(bare))]
	}
}
