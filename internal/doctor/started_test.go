package doctor

import (
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ebb-offload/ebb/internal/launch"
	"github.com/ebb-offload/ebb/internal/testutil"
)

const softDir = "/opt/ebb/lib/softgpu"

// With --pid the driver, the devices and the disks are those of the process, whatever the shell has.
func TestAProcessIsLookedAtWithWhatItWasStartedWith(t *testing.T) {
	rank := []string{
		"EBB_RUN=1-2", "EBB_JOB=j", "EBB_ROLE=actor", "EBB_CELL=0", "EBB_RANK=1",
		"LD_LIBRARY_PATH=" + softDir + ":/own", "SOFTGPU_NODE=n", "TMS_DISK_BACKUP_DIR=/scratch/d/j/actor_cell0_rank1",
	}
	shell := []string{"PATH=/bin", "CUDA_VISIBLE_DEVICES=3", "LD_LIBRARY_PATH=/shell"}
	x := examination{system: processRoot(t, "S (sleeping)", rank, []string{softDir + "/libcuda.so.1"}), getenv: launch.Lookup(shell)}
	x.o = Options{PID: 4711, Device: launch.DeviceAuto, DiskDirs: []string{"/scratch/default"}, Environ: shell}
	x.o.Libraries.Soft = softDir

	own := x.startedAs()
	if own.o.Device != launch.DeviceSoft || !slices.Equal(own.o.DiskDirs, []string{"/scratch/d"}) || !own.o.Given {
		t.Errorf("device %s, disks %v, given %v", own.o.Device, own.o.DiskDirs, own.o.Given)
	}
	environ := launch.Lookup(own.deviceEnviron())
	for name, want := range map[string]string{
		"PATH": "/bin", "CUDA_VISIBLE_DEVICES": "", "SOFTGPU_NODE": "n", "LD_LIBRARY_PATH": softDir + ":" + softDir + ":/own",
	} {
		if got := environ(name); got != want {
			t.Errorf("%s=%s, want %s", name, got, want)
		}
	}

	x.o.Given, x.o.Device = true, launch.DeviceCUDA // asked for on the command line
	own = x.startedAs()
	if own.o.Device != launch.DeviceCUDA || !slices.Equal(own.o.DiskDirs, []string{"/scratch/default"}) {
		t.Errorf("device %s, disks %v", own.o.Device, own.o.DiskDirs)
	}

	x.o.PID = 4712 // none: its row says so
	if own = x.startedAs(); launch.Lookup(own.o.Environ)("LD_LIBRARY_PATH") != "/shell" {
		t.Errorf("of no process: %v", own.o.Environ)
	}
}

func TestTheSoftwareDeviceOfAProcess(t *testing.T) {
	for _, c := range []struct {
		files []string
		path  string
		want  bool
	}{
		{[]string{softDir + "/libcuda.so.1"}, "", true},
		{[]string{"/usr/lib/libcuda.so.580.95.05"}, softDir, false}, // loaded already, another one
		{nil, "/x:" + softDir, true},                                // not loaded yet
		{nil, "/x", false},
	} {
		if got := hasSoftDevice(c.files, launch.Lookup([]string{"LD_LIBRARY_PATH=" + c.path})); got != c.want {
			t.Errorf("%v, LD_LIBRARY_PATH=%s: %v", c.files, c.path, got)
		}
	}
}

func TestDiskDirectoriesOfARank(t *testing.T) {
	who := "EBB_JOB=j EBB_ROLE=actor EBB_CELL=0 EBB_RANK=1 "
	for environ, want := range map[string]string{
		who + "TMS_DISK_BACKUP_DIR=/a/j/actor_cell0_rank1":                                                             "/a",
		who + "TMS_DISK_BACKUP_DIR=/a/j/actor_cell0_rank1 EBB_DISK_DIRS=/b/j/actor_cell0_rank1:/a/j/actor_cell0_rank1": "/b /a",
		who + "EBB_STATE_DIRS=/s/j/actor_cell0_rank1":                                                                  "/s",
		who + "TMS_DISK_BACKUP_DIR=/tmp":                                                                               "", // the library's own, not a launcher's
		who:                                                                                                            "",
		"TMS_DISK_BACKUP_DIR=/a/j/actor_cell0_rank1":                                                                   "",
		"EBB_JOB=../x EBB_ROLE=r EBB_CELL=0 EBB_RANK=0":                                                                "",
	} {
		if got := strings.Join(diskDirs(launch.Lookup(strings.Fields(environ))), " "); got != want {
			t.Errorf("%s: %q, want %q", environ, got, want)
		}
	}
}

// All of it, of a process that runs: a child with the software device's path.
func TestAWholeExaminationOfAProcessOnTheSoftwareDevice(t *testing.T) {
	x, libs := installed(t)
	libs.Soft = filepath.Join(filepath.Dir(built(t)), "softgpu")
	cmd := exec.Command("sleep", "1000")
	cmd.Env = []string{"LD_LIBRARY_PATH=" + libs.Soft}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	testutil.Started(t, cmd.Process.Pid)
	r := Run(t.Context(), Options{DiskDirs: []string{onDisk(t)}, Given: true, PID: cmd.Process.Pid, Device: launch.DeviceAuto, Quick: true,
		Libraries: libs, Environ: x.o.Environ, Self: self, Progress: func(string) {}})
	i := slices.IndexFunc(r.Findings, func(f Finding) bool { return f.Check == "device" })
	if i < 0 {
		t.Fatalf("no row device: %+v", r.Findings)
	}
	expect(t, r.Findings[i], OK, "softgpu")
}
