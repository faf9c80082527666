package engine

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ebb-offload/ebb/internal/device"
	"github.com/ebb-offload/ebb/internal/testutil"
	"github.com/google/go-cmp/cmp"
)

// holderEnv makes this binary a process that holds memory of device 0: "LIBRARY BYTES".
const holderEnv = "EBB_TEST_HOLDER"

// beHolder holds memory until standard input ends. "ready" on standard output says that it has it.
func beHolder(args string) int {
	var library string
	var size uint64
	_, err := fmt.Sscan(args, &library, &size)
	if err == nil {
		var e *Engine
		if e, err = Start(Config{LogFD: -1, ChunkBytes: 4 << 20, Driver: library}); err == nil {
			_, err = e.Malloc(size, 0, none("held"), 0)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println("ready")
	_, _ = io.Copy(io.Discard, os.Stdin)
	return 0
}

// startHolder returns when another process holds memory of device 0.
func startHolder(t *testing.T, size uint64) (pid int, end func()) {
	t.Helper()
	c := exec.Command(os.Args[0])
	c.Env = append(os.Environ(), fmt.Sprintf("%s=%s %d", holderEnv, testutil.SoftGPU(t), size))
	c.Stderr = os.Stderr
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	end = func() {
		if c.ProcessState == nil {
			_ = in.Close()
			_ = c.Process.Kill()
			_ = c.Wait() // it was killed: nothing else to learn
		}
	}
	t.Cleanup(end)
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Fatalf("the other process said %q (%v)", line, err)
	}
	return c.Process.Pid, end
}

func TestResumeWithTooLittleMemoryNamesWhoHoldsIt(t *testing.T) {
	r := newRig(t)
	a := r.make(60<<20, 0, disk("x"))
	r.make(1<<20, 0, none("kept")) // this process holds memory too, and is not named
	r.pause("x")
	pid, end := startHolder(t, 1500<<20)

	_, err := r.Resume([]string{"x"}, r.set)
	var short *DeviceMemoryError
	if !errors.As(err, &short) || Code(err) != CodeDeviceMemory {
		t.Fatalf("got %v", err)
	}
	name := filepath.Base(os.Args[0])
	want := []device.Holder{{PID: pid, Bytes: 1500 << 20, Name: name}}
	if diff := cmp.Diff(want, short.Holders); diff != "" {
		t.Errorf("holders (- want, + got):\n%s", diff)
	}
	if text := fmt.Sprintf("held by pid %d (%s): 1.5 GiB", pid, name); !strings.Contains(err.Error(), text) {
		t.Errorf("%q does not say %q", err, text)
	}
	json := fmt.Sprintf(`"holders":[{"pid":%d,"bytes":%d,"name":%q}]`, pid, 1500<<20, name)
	if got := Details(err); !bytes.Contains(got, []byte(json)) {
		t.Errorf("%s\nlacks %s", got, json)
	}

	end()
	r.resume("x")
	r.holds(a)
}

// What did not pass the hooks (the driver's own allocation calls, another runtime) is seen by
// NVML: a pause of all that would free nothing of it is an error.
func TestAPauseOfNothingSeesMemoryThatPassedNoHook(t *testing.T) {
	r := newRig(t)
	if _, err := r.Pause(nil, r.set); err != nil {
		t.Fatalf("without other memory: %v", err)
	}
	d, err := r.deviceState(0)
	check(t, err)
	h, err := r.drv.MemCreate(contextBytes+d.granularity, d.props)
	check(t, err)
	defer func() { check(t, r.drv.MemRelease(h)) }()
	if _, err := r.Pause(nil, r.set); !errors.Is(err, ErrUnmanaged) {
		t.Fatalf("with %d bytes of other memory: %v", uint64(contextBytes), err)
	}
	if _, err := r.Pause([]string{}, r.set); !errors.Is(err, ErrUnmanaged) {
		t.Fatalf("got %v", err)
	}
}
