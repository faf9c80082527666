package doctor

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"

	"github.com/ebb-offload/ebb/internal/device"
	"github.com/ebb-offload/ebb/internal/device/cuda"
	"github.com/ebb-offload/ebb/internal/launch"
)

// leastDriver is the oldest CUDA version whose driver has all that ebb calls.
const leastDriver = 12000

// gpuDriver is the driver that is being looked at.
type gpuDriver struct {
	x     examination
	kind  string // auto, cuda, soft
	quick bool

	driver  device.Driver // nil: see the row driver
	devices int
}

func (x examination) driver(kind string, quick bool) part {
	d := &gpuDriver{x: x, kind: kind, quick: quick}
	return part{theme: "device", hangs: "the driver hangs", remedy: "look at nvidia-smi and dmesg: a device that fell off the bus or waits for a reset", checks: []check{
		one("driver", d.load),
		{"device", d.each},
		one("fingerprint-kernel", d.kernel),
	}}
}

// deviceEnviron is the environment in which the driver is looked at.
func (x examination) deviceEnviron() []string {
	if x.o.Device != launch.DeviceSoft {
		return x.o.Environ
	}
	path := x.o.Libraries.Soft
	if rest := x.getenv("LD_LIBRARY_PATH"); rest != "" {
		path += ":" + rest
	}
	return launch.Apply(x.o.Environ, []launch.Setting{{Name: "LD_LIBRARY_PATH", Value: path}})
}

func (d *gpuDriver) load(context.Context) Finding {
	driver, err := cuda.Open("")
	var version int
	if err == nil {
		version, err = driver.Version()
	}
	if err == nil {
		d.devices, err = driver.DeviceCount()
	}
	if err != nil {
		return judgeDriverError(d.x.system, err)
	}
	module := kernelModule(d.x.system)
	text := fmt.Sprintf("the driver serves CUDA %d.%d", version/1000, version%1000/10)
	if module != "" {
		text += ", kernel module " + module
	}
	switch {
	case version < leastDriver:
		return fail("update the NVIDIA driver", "%s; ebb needs CUDA 12.0 or later", text)
	case d.devices == 0:
		return fail("check CUDA_VISIBLE_DEVICES, and in a container that it was started with GPU access", "%s, and sees no device", text)
	}
	d.driver = driver
	return ok("%s", text).fact("driver", "CUDA %d.%d, kernel module %s", version/1000, version%1000/10, orNone(module))
}

// kernelModule is the version of NVIDIA's kernel module; empty where it is not loaded.
func kernelModule(s system) string {
	text, _ := s.read("/proc/driver/nvidia/version")
	for field := range strings.FieldsSeq(text) {
		if field[0] >= '0' && field[0] <= '9' && strings.Contains(field, ".") {
			return field
		}
	}
	return ""
}

func orNone(text string) string {
	if text == "" {
		return "none"
	}
	return text
}

// remedies are for what drivers say when they do not start.
var remedies = map[string]string{
	"CUDA_ERROR_NO_DEVICE":                      "check CUDA_VISIBLE_DEVICES and nvidia-smi; in a container start it with GPU access",
	"CUDA_ERROR_NOT_INITIALIZED":                "check that the kernel module is loaded and /dev/nvidia* are there (nvidia-smi)",
	"CUDA_ERROR_UNKNOWN":                        "load the module nvidia-uvm (modprobe nvidia-uvm), and look at dmesg",
	"CUDA_ERROR_SYSTEM_NOT_READY":               "start the fabric manager (systemctl start nvidia-fabricmanager)",
	"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH":         "kernel module and libraries are of different versions: restart the machine after the driver's update; in a container use the host's libraries",
	"CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE": "take the CUDA compatibility libraries (cuda-compat) out of LD_LIBRARY_PATH: this GPU does not take them",
	"CUDA_ERROR_INSUFFICIENT_DRIVER":            "update the NVIDIA driver",
	"CUDA_ERROR_DEVICE_UNAVAILABLE":             "another process has the device for itself (nvidia-smi -q -d COMPUTE)",
	"CUDA_ERROR_MPS_CONNECTION_FAILED":          "start the MPS control daemon, or unset CUDA_MPS_PIPE_DIRECTORY",
	"CUDA_ERROR_MPS_SERVER_NOT_READY":           "wait for the MPS server, or restart it",
	"CUDA_ERROR_OUT_OF_MEMORY":                  "the device or the host has no memory left for a context: look at nvidia-smi",
	"CUDA_ERROR_OPERATING_SYSTEM":               "look at dmesg; in a container check the devices and the memory limit",
	"CUDA_ERROR_INVALID_DEVICE":                 "correct CUDA_VISIBLE_DEVICES",
	"CUDA_ERROR_STUB_LIBRARY":                   "take the CUDA toolkit's stubs out of LD_LIBRARY_PATH: they are for linking",
}

// judgeDriverError names what the driver says, and what helps by what else is seen.
func judgeDriverError(s system, err error) Finding {
	var load *cuda.LoadError
	if errors.As(err, &load) {
		module, cards := kernelModule(s), gpus(s)
		switch {
		case load.Symbol != "":
			return fail("update the NVIDIA driver", "%s lacks %s: it is older than CUDA 12.0", load.Library, load.Symbol)
		case module != "":
			return fail("start the container with GPU access (docker --gpus all), or install the driver's libraries of version "+module,
				"the kernel has NVIDIA's module %s, but %s cannot be loaded: %s", module, load.Library, load.Reason)
		case len(cards) > 0:
			return fail("install the NVIDIA driver", "the machine has %s, and no driver: %s", launch.Count(len(cards), "GPU"), load.Reason)
		}
		return fail("run this where the GPUs are; without one, --device soft looks at the software device", "no NVIDIA GPU is seen, and no driver: %s", load.Reason)
	}
	var call *device.Error
	if errors.As(err, &call) {
		remedy := remedies[call.Name]
		if remedy == "" {
			remedy = "look at nvidia-smi and dmesg"
		}
		return fail(remedy, "%s fails: %s (%d), %s", call.Call, call.Name, int(call.Code), call.Text)
	}
	return fail("look at nvidia-smi and dmesg", "%s", errorText(err))
}

// each is a row for each device.
func (d *gpuDriver) each(context.Context) (rows []Finding) {
	if d.driver == nil {
		return []Finding{skip("no driver")}
	}
	for i := range d.devices {
		rows = append(rows, d.one(i))
	}
	return rows
}

func (d *gpuDriver) one(ordinal int) Finding {
	name, err := d.driver.DeviceName(ordinal)
	if err != nil {
		return judgeDriverError(d.x.system, err)
	}
	what := fmt.Sprintf("%d: %s", ordinal, name)
	if node := d.driver.NUMANode(ordinal); node >= 0 {
		what += fmt.Sprintf(", NUMA node %d", node)
	}
	soft := strings.HasPrefix(name, "softgpu")
	switch {
	case d.kind == launch.DeviceCUDA && soft:
		return fail("take softgpu out of LD_LIBRARY_PATH, or ask for it with --device soft", "--device cuda found the software device (%s)", what)
	case d.kind == launch.DeviceSoft && !soft:
		return fail("check the installation", "--device soft found %s instead of the software device", what)
	}
	held := d.holders(ordinal)
	if d.quick {
		return ok("%s%s", what, held).fact("device "+fmt.Sprint(ordinal), "%s", name)
	}
	free, total, err := d.memory(ordinal)
	if err != nil {
		f := judgeDriverError(d.x.system, err)
		f.Text = what + ": " + f.Text
		return f
	}
	text := fmt.Sprintf("%s: %s of %s free%s", what, size(free), size(total), held)
	f := ok("%s", text)
	if d.kind == launch.DeviceAuto && soft {
		f = warn("take softgpu out of LD_LIBRARY_PATH, where a GPU is meant", "%s; it is the software device, by LD_LIBRARY_PATH", text)
	}
	return f.value("device_bytes", float64(total)).fact("device "+fmt.Sprint(ordinal), "%s, %s", name, size(total))
}

// holders says who has memory of a device, as far as NVML tells.
func (d *gpuDriver) holders(ordinal int) string {
	holders, err := d.driver.Holders(ordinal)
	if err != nil || len(holders) == 0 {
		return ""
	}
	var names []string
	for _, h := range holders[:min(len(holders), 3)] {
		names = append(names, fmt.Sprintf("pid %d %s %s", h.PID, h.Name, size(h.Bytes)))
	}
	if more := len(holders) - len(names); more > 0 {
		names = append(names, fmt.Sprintf("%d more", more))
	}
	return "; held by " + list(names)
}

// memory needs a context, which takes some of the device until this process ends.
func (d *gpuDriver) memory(ordinal int) (free, total uint64, err error) {
	runtime.LockOSThread() // contexts are a thread's
	defer runtime.UnlockOSThread()
	context, err := d.driver.PrimaryContext(ordinal)
	if err == nil {
		err = d.driver.SetContext(context)
	}
	if err != nil {
		return 0, 0, err
	}
	return d.driver.MemInfo()
}

// kernel has the driver compile ebb's kernel.
func (d *gpuDriver) kernel(context.Context) Finding {
	switch {
	case d.driver == nil:
		return skip("no driver")
	case d.quick:
		return skip("not looked at with --quick")
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	context, err := d.driver.PrimaryContext(0)
	if err == nil {
		err = d.driver.SetContext(context)
	}
	if err == nil {
		err = d.driver.LoadFingerprint()
	}
	if err != nil {
		return warn("update the NVIDIA driver; nothing is lost without it",
			"the driver does not take ebb's kernel: blocks are hashed by the CPU, zero and unchanged ones are moved, writes during a pause are not found: %s", errorText(err))
	}
	return ok("the driver takes ebb's kernel, by which blocks are hashed and compared on the device")
}
