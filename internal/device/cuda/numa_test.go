package cuda

import (
	"os"
	"path/filepath"
	"testing"
)

func TestNUMANodeOfAPCIDevice(t *testing.T) {
	sysfs := t.TempDir()
	for id, text := range map[string]string{
		"0000:1b:00.0": "1\n",
		"0000:2c:00.0": "-1\n", // a machine with one node
		"0000:3d:00.0": "what\n",
	} {
		dir := filepath.Join(sysfs, "bus/pci/devices", id)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "numa_node"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for id, want := range map[string]int{
		"0000:1B:00.0": 1, // the driver writes it in upper case
		"0000:2C:00.0": -1,
		"0000:3D:00.0": -1,
		"0000:4E:00.0": -1, // unknown to the kernel
		"":             -1,
	} {
		if got := numaNode(sysfs, id); got != want {
			t.Errorf("device %q: node %d, want %d", id, got, want)
		}
	}
}
