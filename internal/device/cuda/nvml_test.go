package cuda

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ebb-offload/ebb/internal/device"
	"github.com/ebb-offload/ebb/internal/mem"
	"github.com/ebb-offload/ebb/internal/testutil"
)

// holderEnv makes this binary a process that holds memory: "LIBRARY DEVICE BYTES".
const holderEnv = "EBB_TEST_HOLDER"

// beHolder holds memory in the device's primary context until standard input ends. "ready" on
// standard output says that it has it.
func beHolder(args string) int {
	var library string
	var ordinal int
	var bytes uint64
	_, err := fmt.Sscan(args, &library, &ordinal, &bytes)
	hold := func() error {
		d, err := Open(library)
		if err != nil {
			return err
		}
		_, err = d.PrimaryContext(ordinal)
		if err == nil && bytes > 0 {
			_, err = d.MemCreate(bytes, mem.DeviceProps(ordinal, false))
		}
		return err
	}
	if err = errors.Join(err, hold()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println("ready")
	_, _ = io.Copy(io.Discard, os.Stdin)
	return 0
}

// startHolder returns when another process holds memory. It ends with the test, or when killed.
func startHolder(t *testing.T, ordinal int, bytes uint64) (pid int, kill func()) {
	t.Helper()
	c := exec.Command(os.Args[0])
	c.Env = append(os.Environ(), fmt.Sprintf("%s=%s %d %d", holderEnv, testutil.SoftGPU(t), ordinal, bytes))
	c.Stderr = os.Stderr
	in, err := c.StdinPipe()
	must(t, err)
	out, err := c.StdoutPipe()
	must(t, err)
	must(t, c.Start())
	kill = func() {
		if c.ProcessState == nil {
			_ = c.Process.Kill()
			_ = c.Wait() // it was killed: nothing else to learn
			_ = in.Close()
		}
	}
	t.Cleanup(kill)
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Fatalf("the other process said %q (%v)", line, err)
	}
	return c.Process.Pid, kill
}

// holders is what Holders says, by process.
func holders(t *testing.T, d device.Driver, ordinal int) map[int]device.Holder {
	t.Helper()
	list, err := d.Holders(ordinal)
	must(t, err)
	byPID := map[int]device.Holder{}
	for _, h := range list {
		if _, twice := byPID[h.PID]; twice {
			t.Errorf("process %d is listed twice: %+v", h.PID, list)
		}
		byPID[h.PID] = h
	}
	return byPID
}

func TestHoldersAreThisProcessAndOthersWithTheirBytes(t *testing.T) {
	d := open(t)
	onDevice(t, d, 1)
	handle, err := d.MemCreate(3*granularity, mem.DeviceProps(1, false))
	must(t, err)
	before, _, err := d.MemInfo()
	must(t, err)
	pid, kill := startHolder(t, 1, 5*granularity)

	name := filepath.Base(os.Args[0])
	list := holders(t, d, 1)
	if got, want := list[pid], (device.Holder{PID: pid, Bytes: 5 * granularity, Name: name}); got != want {
		t.Errorf("the other process: %+v, want %+v", got, want)
	}
	if got, want := list[os.Getpid()], (device.Holder{PID: os.Getpid(), Bytes: 3 * granularity, Name: name}); got != want {
		t.Errorf("this process: %+v, want %+v", got, want)
	}
	if h, ok := holders(t, d, 0)[pid]; ok {
		t.Errorf("on a device it does not use: %+v", h)
	}
	if after, _, err := d.MemInfo(); err != nil || after != before-5*granularity {
		t.Errorf("asking changed what is counted: %d bytes free, want %d (%v)", after, before-5*granularity, err)
	}

	kill()
	if h, ok := holders(t, d, 1)[pid]; ok {
		t.Errorf("dead, and listed: %+v", h)
	}
	must(t, d.MemRelease(handle))
	if h := holders(t, d, 1)[os.Getpid()]; h.Bytes != 0 {
		t.Errorf("this process, which holds nothing any more: %+v", h)
	}
}

func TestMoreHoldersThanThereIsRoomForAtFirst(t *testing.T) {
	d := open(t)
	want := map[int]uint64{}
	for i := range firstRoom + 1 {
		bytes := uint64(i) * granularity // one has a context and no memory
		pid, _ := startHolder(t, 0, bytes)
		want[pid] = bytes
	}
	list := holders(t, d, 0)
	for pid, bytes := range want {
		if h, ok := list[pid]; !ok || h.Bytes != bytes {
			t.Errorf("process %d with %d bytes: %+v, listed: %t", pid, bytes, h, ok)
		}
	}
}

func TestHoldersOfAnUnknownDeviceAreATypedError(t *testing.T) {
	if list, err := open(t).Holders(9); !device.IsCode(err, 101) {
		t.Errorf("%v, %v", list, err)
	}
}

func TestWithoutNVMLHoldersIsAnError(t *testing.T) {
	loaded := open(t).(*driver).cuda
	for library, want := range map[string]string{
		"/nowhere/libnvidia-ml.so.1": "/nowhere/libnvidia-ml.so.1",
		"libc.so.6":                  "libc.so.6 lacks a function",
	} {
		d := &driver{cuda: loaded, nvml: &nvml{library: library}}
		for range 2 { // the second question does not load it again
			if list, err := d.Holders(0); err == nil || list != nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, %v", library, list, err)
			}
		}
	}
}

func TestNVMLIsTheOneOfTheDriversInstallation(t *testing.T) {
	for driver, want := range map[string]string{
		DefaultLibrary:             "libnvidia-ml.so.1",
		"/usr/lib64/libcuda.so.1":  "/usr/lib64/libnvidia-ml.so.1",
		"./libcuda.so.1":           "./libnvidia-ml.so.1",
		"dist/soft/libcuda.so.1":   "dist/soft/libnvidia-ml.so.1",
		"/opt/driver/libcuda.so":   "/opt/driver/libnvidia-ml.so.1",
		"libcuda.so.1.of.somebody": "libnvidia-ml.so.1",
	} {
		if got := nvmlBeside(driver).library; got != want {
			t.Errorf("beside %s: %s, want %s", driver, got, want)
		}
	}
}

func TestDevicesHaveNamesOfTheirOwn(t *testing.T) {
	d := open(t)
	first, err := d.UUID(0)
	must(t, err)
	second, err := d.UUID(1)
	must(t, err)
	if len(first) != len("GPU-01234567-0123-0123-0123-0123456789ab") || !strings.HasPrefix(first, "GPU-") || first == second {
		t.Errorf("%q and %q", first, second)
	}
	if name, err := d.UUID(9); !device.IsCode(err, 101) {
		t.Errorf("%q, %v", name, err)
	}
	without := &driver{cuda: d.(*driver).cuda, nvml: &nvml{library: "/nowhere/libnvidia-ml.so.1"}}
	if name, err := without.UUID(0); err == nil {
		t.Errorf("without NVML: %q", name)
	}
}
