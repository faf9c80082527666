package doctor

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/ebb-offload/ebb/internal/launch"
)

// environment looks at the variables that ranks would get from here.
func (x examination) environment() part {
	return part{theme: "environment", checks: []check{{"environment", func(context.Context) []Finding {
		return judgeEnvironment(x.getenv, x.o.Device, exists)
	}}}}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// judgeEnvironment is a row for each variable that is in the way, or one that none is. exists tells
// whether a file is there.
func judgeEnvironment(getenv func(string) string, device string, exists func(string) bool) (rows []Finding) {
	for _, look := range []func(func(string) string) *Finding{
		allocatorBackend, allocatorNames, noCaching, noBackup, bothBackups, directories, hostMemory, blocking, graphRegister, faults, noTimeout,
		func(getenv func(string) string) *Finding { return visibleDevices(getenv, device) },
		func(getenv func(string) string) *Finding { return preloads(getenv, exists) },
	} {
		if f := look(getenv); f != nil {
			rows = append(rows, *f)
		}
	}
	if len(rows) == 0 {
		rows = append(rows, ok("no variable is in the way"))
	}
	return rows
}

func row(f Finding) *Finding { return &f }

func on(value string) bool {
	switch value {
	case "1", "true", "TRUE", "yes", "YES":
		return true
	}
	return false
}

func allocatorBackend(getenv func(string) string) *Finding {
	for _, name := range []string{"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"} {
		if strings.Contains(strings.ReplaceAll(getenv(name), " ", ""), "backend:cudaMallocAsync") {
			return row(fail("take backend:cudaMallocAsync out of "+name, "%s=%s: memory of cudaMallocAsync is the driver's and is not managed; a pause would free next to nothing", name, getenv(name)))
		}
	}
	return nil
}

func allocatorNames(getenv func(string) string) *Finding {
	fresh, old := getenv("PYTORCH_ALLOC_CONF"), getenv("PYTORCH_CUDA_ALLOC_CONF")
	if fresh == "" || old == "" || fresh == old {
		return nil
	}
	return row(warn("set one of them", "PYTORCH_ALLOC_CONF=%s and PYTORCH_CUDA_ALLOC_CONF=%s differ: which one counts depends on the version of PyTorch", fresh, old))
}

func noCaching(getenv func(string) string) *Finding {
	if value := getenv("PYTORCH_NO_CUDA_MEMORY_CACHING"); value != "" {
		return row(warn("unset it", "PYTORCH_NO_CUDA_MEMORY_CACHING=%s: each tensor is an allocation of its own, of 2 MiB at least, and each is made and freed by the driver", value))
	}
	return nil
}

func noBackup(getenv func(string) string) *Finding {
	if !on(getenv("TMS_INIT_ENABLE")) || on(getenv("TMS_INIT_ENABLE_CPU_BACKUP")) || on(getenv("TMS_INIT_ENABLE_DISK_BACKUP")) {
		return nil
	}
	return row(warn("add TMS_INIT_ENABLE_CPU_BACKUP=1 or TMS_INIT_ENABLE_DISK_BACKUP=1, unless the content may be lost; ebb run sets them itself",
		"TMS_INIT_ENABLE=1 without a backup: a pause gives the content of the memory up"))
}

func bothBackups(getenv func(string) string) *Finding {
	if !on(getenv("TMS_INIT_ENABLE_CPU_BACKUP")) || !on(getenv("TMS_INIT_ENABLE_DISK_BACKUP")) {
		return nil
	}
	return row(fail("unset one of them; ebb run sets them itself", "TMS_INIT_ENABLE_CPU_BACKUP and TMS_INIT_ENABLE_DISK_BACKUP are both on, and exclude one another"))
}

func directories(getenv func(string) string) *Finding {
	ours, theirs := getenv("EBB_OFFLOAD_TRAIN_DISK_DIR"), getenv("TMS_DISK_BACKUP_DIR")
	if ours == "" || theirs == "" || launch.Nested(getenv) {
		return nil
	}
	return row(warn("unset TMS_DISK_BACKUP_DIR", "EBB_OFFLOAD_TRAIN_DISK_DIR=%s and TMS_DISK_BACKUP_DIR=%s: under ebb run with a disk target the first one counts, elsewhere the second", ours, theirs))
}

func hostMemory(getenv func(string) string) *Finding {
	if getenv("EBB_HOST_MB") == "" || launch.Nested(getenv) {
		return nil
	}
	return row(warn("use --offload-train-host-mb (EBB_OFFLOAD_TRAIN_HOST_MB)", "EBB_HOST_MB=%s is set by hand: under ebb run the flags decide", getenv("EBB_HOST_MB")))
}

func blocking(getenv func(string) string) *Finding {
	if value := getenv("CUDA_LAUNCH_BLOCKING"); value != "" && value != "0" {
		return row(warn("unset it, unless you look for a fault", "CUDA_LAUNCH_BLOCKING=%s: the program waits for each kernel, and so do pauses and resumes for theirs", value))
	}
	return nil
}

func graphRegister(getenv func(string) string) *Finding {
	for _, name := range []string{"NCCL_GRAPH_REGISTER", "NCCL_LOCAL_REGISTER"} {
		if value := getenv(name); value != "" && value != "0" {
			return row(warn(name+"=0, where buffers of NCCL are parked memory",
				"%s=%s: NCCL registers the buffers of its calls; a registration names the physical memory, which is another one after a resume", name, value))
		}
	}
	return nil
}

func faults(getenv func(string) string) *Finding {
	for _, name := range []string{"EBB_FAULT_FILES", "SOFTGPU_FAULT"} {
		if value := getenv(name); value != "" {
			return row(warn("unset it", "%s=%s: calls are made to fail, for tests", name, value))
		}
	}
	return nil
}

func noTimeout(getenv func(string) string) *Finding {
	if getenv("EBB_IO_TIMEOUT") == "0" {
		return row(warn("unset it", "EBB_IO_TIMEOUT=0: a pause waits for ever for a disk that gives no answer"))
	}
	return nil
}

func visibleDevices(getenv func(string) string, device string) *Finding {
	if value := strings.TrimSpace(getenv("CUDA_VISIBLE_DEVICES")); strings.HasPrefix(value, "-") && device != launch.DeviceSoft {
		return row(fail("unset it, or name devices", "CUDA_VISIBLE_DEVICES=%s hides all devices", value))
	}
	return nil
}

// preloads looks at what is preloaded already.
func preloads(getenv func(string) string, exists func(string) bool) *Finding {
	var missing []string
	for _, entry := range preloadEntries(getenv("LD_PRELOAD")) {
		switch {
		case isOtherSaver(entry):
			return row(fail("start without it; ebb brings its own", "LD_PRELOAD holds another memory saver, %s: each would undo the other's work, and ebb run refuses it", entry))
		case strings.Contains(entry, "/") && !exists(entry):
			missing = append(missing, entry)
		}
	}
	if len(missing) > 0 {
		return row(warn("correct LD_PRELOAD", "LD_PRELOAD names %s, which is not there: the loader passes over it with one line a process", list(missing)))
	}
	return nil
}

func preloadEntries(list string) []string {
	return strings.FieldsFunc(list, func(r rune) bool { return strings.ContainsRune(": \t\n", r) })
}

// isOtherSaver tells torch_memory_saver's own libraries from ebb's, whose folder has that name too.
func isOtherSaver(path string) bool {
	base := filepath.Base(path)
	if !strings.HasPrefix(base, "torch_memory_saver") || !strings.HasSuffix(base, ".so") {
		return false
	}
	file, err := filepath.EvalSymlinks(path)
	return err != nil || filepath.Base(file) != "libebb.so" // adopted: a link to ebb's
}

// shownVariables are those whose values may stand in a bug report: settings, never credentials.
var shownVariables = []string{
	"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_NO_CUDA_MEMORY_CACHING", "CUDA_VISIBLE_DEVICES", "CUDA_LAUNCH_BLOCKING",
	"CUDA_MODULE_LOADING", "CUDA_MPS_PIPE_DIRECTORY", "NVIDIA_VISIBLE_DEVICES", "NCCL_GRAPH_REGISTER", "NCCL_LOCAL_REGISTER", "NCCL_CUMEM_ENABLE",
	"NCCL_NVLS_ENABLE", "LD_PRELOAD", "LD_LIBRARY_PATH", "LOCAL_WORLD_SIZE", "WORLD_SIZE", "SCRATCH", "GODEBUG", "GOTRACEBACK",
	"TMS_INIT_ENABLE", "TMS_INIT_ENABLE_CPU_BACKUP", "TMS_INIT_ENABLE_DISK_BACKUP", "TMS_INIT_CPU_BACKUP_BACKEND", "TMS_RETAIN_CPU_BACKUP",
	"TMS_DISK_BACKUP_DIR", "TMS_DISK_BACKUP_CHUNK_MB",
	"EBB_CONTROL", "EBB_DISCARD", "EBB_DISK_DIRS", "EBB_DISK_QUOTA_BYTES", "EBB_ENGINE", "EBB_EVENT_LOG", "EBB_FAULT_FILES", "EBB_HOST_ARENA",
	"EBB_HOST_MB", "EBB_IO_TIMEOUT", "EBB_LIB_DIR", "EBB_LOG_FORMAT", "EBB_OFFLOAD_TRAIN", "EBB_OFFLOAD_TRAIN_TARGET",
	"EBB_OFFLOAD_TRAIN_DISK_DIR", "EBB_OFFLOAD_TRAIN_DISK_CHUNK_MB", "EBB_OFFLOAD_TRAIN_DISK_QUOTA_GB", "EBB_OFFLOAD_TRAIN_HOST_MB",
	"EBB_ON_PAUSE_ERROR", "EBB_RESUME_WAIT", "EBB_RUNTIME_DIR", "EBB_TRAIN_MEMORY_MARGIN_BYTES", "SOFTGPU_FAULT", "SOFTGPU_MEM_MB",
}

// longestValue is how much of a value is shown, in bytes.
const longestValue = 200

// shown are the settings in an environment.
func shown(getenv func(string) string) (facts []Fact) {
	for _, name := range shownVariables {
		if value := getenv(name); value != "" {
			if len(value) > longestValue {
				value = fmt.Sprintf("%s… (%d bytes)", strings.ToValidUTF8(value[:longestValue], ""), len(value))
			}
			facts = append(facts, Fact{"env " + name, oneLine(value)})
		}
	}
	return facts
}
