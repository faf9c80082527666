package doctor

import (
	"errors"
	"fmt"
	"testing"

	"github.com/ebb-offload/ebb/internal/device"
	"github.com/ebb-offload/ebb/internal/device/cuda"
)

func TestADriverThatIsMissing(t *testing.T) {
	err := fmt.Errorf("open: %w", &cuda.LoadError{Library: "libcuda.so.1", Reason: "no such file"})
	// Without a GPU, with one and no driver, and in a container to which the driver was not given.
	expect(t, judgeDriverError(node("workstation"), err), Fail, "no NVIDIA GPU", "--device soft")
	bare := changed(t, "two-sockets", map[string]string{"proc/driver/nvidia/version": ""})
	expect(t, judgeDriverError(bare, err), Fail, "the machine has 2 GPUs, and no driver", "install")
	expect(t, judgeDriverError(node("container"), err), Fail, "module 550.54.15", "--gpus all")
	old := &cuda.LoadError{Library: "libcuda.so.1", Symbol: "cuMemCreate", Reason: "undefined symbol"}
	expect(t, judgeDriverError(node("container"), old), Fail, "lacks cuMemCreate", "update")
}

func TestWhatADriverSaysIsNamed(t *testing.T) {
	for name, remedy := range map[string]string{
		"CUDA_ERROR_NO_DEVICE":              "CUDA_VISIBLE_DEVICES",
		"CUDA_ERROR_SYSTEM_NOT_READY":       "fabric manager",
		"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH": "restart the machine",
		"CUDA_ERROR_UNKNOWN":                "nvidia-uvm",
		"CUDA_ERROR_STUB_LIBRARY":           "stubs",
		"CUDA_ERROR_NEVER_HEARD_OF":         "dmesg",
	} {
		err := fmt.Errorf("init: %w", &device.Error{Call: "cuInit", Code: 7, Name: name, Text: "a text"})
		expect(t, judgeDriverError(node("two-sockets"), err), Fail, "cuInit fails: "+name+" (7), a text", remedy)
	}
	expect(t, judgeDriverError(node("two-sockets"), errors.New("something else")), Fail, "something else")
}

func TestVersionOfTheKernelModule(t *testing.T) {
	for root, want := range map[string]string{"two-sockets": "580.159.04", "container": "550.54.15", "workstation": ""} {
		if got := kernelModule(node(root)); got != want {
			t.Errorf("%s: %q, want %q", root, got, want)
		}
	}
}
