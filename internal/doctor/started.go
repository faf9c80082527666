package doctor

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ebb-offload/ebb/internal/launch"
	"github.com/ebb-offload/ebb/internal/rankdir"
)

// deviceVariables decide which driver a process loads, and which devices it sees.
var deviceVariables = []string{
	"LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_MPS_PIPE_DIRECTORY",
	"SOFTGPU_DEVICES", "SOFTGPU_MEM_MB", "SOFTGPU_NODE",
}

// startedAs is the examination of what the process of --pid has: its driver and devices, and, unless others are
// named, its disk directories. It is x where the process cannot be looked at, as its own rows say.
func (x examination) startedAs() examination {
	environ, maps, known := x.told()
	if !known {
		return x
	}
	getenv := launch.Lookup(environ)
	var settings []launch.Setting
	for _, name := range deviceVariables {
		settings = append(settings, launch.Setting{Name: name, Value: getenv(name), Unset: getenv(name) == ""})
	}
	x.o.Environ = launch.Apply(x.o.Environ, settings)
	if x.o.Device == launch.DeviceAuto && hasSoftDevice(mappedFiles(maps), getenv) {
		x.o.Device = launch.DeviceSoft
	}
	if dirs := diskDirs(getenv); !x.o.Given && len(dirs) > 0 {
		x.o.DiskDirs, x.o.Given = dirs, true
	}
	x.getenv = launch.Lookup(x.o.Environ)
	return x
}

// told is what the kernel tells of the process in time: one that hangs may keep it from telling.
func (x examination) told() (environ []string, maps string, known bool) {
	type answer struct {
		environ, maps string
		known         bool
	}
	dir, got := fmt.Sprintf("/proc/%d", x.o.PID), make(chan answer, 1)
	go func() {
		environ, err1 := x.system.read(dir + "/environ")
		maps, err2 := x.system.read(dir + "/maps")
		got <- answer{environ, maps, err1 == nil && err2 == nil && environ != ""}
	}()
	select {
	case a := <-got:
		return strings.Split(a.environ, "\x00"), a.maps, a.known
	case <-time.After(childLimit):
		return nil, "", false
	}
}

// hasSoftDevice reports whether a process has loaded the software device, or will.
func hasSoftDevice(files []string, getenv func(string) string) bool {
	soft := func(dir string) bool { return filepath.Base(dir) == "softgpu" }
	if drivers := named(files, func(base string) bool { return strings.HasPrefix(base, "libcuda.so") }); len(drivers) > 0 {
		return soft(filepath.Dir(drivers[0]))
	}
	return slices.ContainsFunc(filepath.SplitList(getenv("LD_LIBRARY_PATH")), soft)
}

// diskDirs are the disk directories of a rank that a launcher started, by the directories that it has in them.
func diskDirs(getenv func(string) string) (bases []string) {
	id := rankdir.Identity{Job: getenv("EBB_JOB"), Role: getenv("EBB_ROLE")}
	var err1, err2 error
	id.Cell, err1 = strconv.Atoi(getenv("EBB_CELL"))
	id.Rank, err2 = strconv.Atoi(getenv("EBB_RANK"))
	if err1 != nil || err2 != nil || id.Validate() != nil {
		return nil
	}
	own := append(filepath.SplitList(getenv("EBB_DISK_DIRS")), getenv("TMS_DISK_BACKUP_DIR"))
	for _, dir := range append(own, filepath.SplitList(getenv("EBB_STATE_DIRS"))...) {
		base, found := strings.CutSuffix(filepath.Clean(dir), id.Path("/"))
		if found && filepath.IsAbs(base) && !slices.Contains(bases, base) {
			bases = append(bases, base)
		}
	}
	return bases
}
