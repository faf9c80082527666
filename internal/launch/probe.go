package launch

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/ebb-offload/ebb/internal/device/cuda"
)

// The dynamic loader ignores a library that it cannot preload, and a driver that does not work
// shows only when a rank has long begun. So before any rank starts, ebb runs itself in a rank's
// environment and looks.

// ProbeVerb is the hidden verb under which ebb looks at its own environment.
const ProbeVerb = "probe"

// ProbeResult is what a probe found; the probe prints it as JSON.
type ProbeResult struct {
	Preloaded bool   `json:"preloaded"`
	Driver    string `json:"driver_error,omitempty"` // why the driver does not work
	Devices   int    `json:"devices"`
	Device    string `json:"device"` // name of the first
}

// ProbeSelf looks at this process: whether the library is loaded in it, and which device it
// sees.
func ProbeSelf(preload string) ProbeResult {
	var r ProbeResult
	r.Preloaded = loaded(preload)
	driver, err := cuda.Open("")
	if err == nil {
		r.Devices, err = driver.DeviceCount()
	}
	if err == nil && r.Devices > 0 {
		r.Device, err = driver.DeviceName(0)
	}
	if err != nil {
		r.Driver = oneLine(err)
	}
	return r
}

// loaded reports whether a library is mapped into this process.
func loaded(library string) bool {
	file, err := filepath.EvalSymlinks(library)
	if err != nil {
		return false
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(maps)) {
		if strings.HasSuffix(strings.TrimSpace(line), " "+file) {
			return true
		}
	}
	return false
}

// probe checks that preload and device work in a rank's environment.
func probe(o Options, libs Libraries, env []string, signals *Signals) error {
	if !o.Offload && o.Device == DeviceAuto {
		return nil // nothing of ebb runs in the ranks
	}
	result, stderr, err := runProbe(libs, env, signals)
	if err != nil {
		return err
	}
	if o.Offload && !result.Preloaded {
		return failf(StatusDevice, "the dynamic loader does not preload %s: %s", libs.Preload, reason(stderr, "is LD_PRELOAD disabled here?"))
	}
	switch {
	case result.Driver != "":
		return failf(StatusDevice, "the GPU driver does not work: %s", result.Driver)
	case result.Devices == 0:
		return failf(StatusDevice, "the GPU driver sees no device: check CUDA_VISIBLE_DEVICES, and in a container that it was started with GPU access")
	case o.Device == DeviceCUDA && isSoft(result.Device):
		return failf(StatusDevice, "--device cuda found the software device (%s): take softgpu out of LD_LIBRARY_PATH, or ask for it with --device soft", result.Device)
	case o.Device == DeviceSoft && !isSoft(result.Device):
		return failf(StatusDevice, "--device soft found %s instead of the software device in %s: check the installation", result.Device, libs.Soft)
	}
	return nil
}

func isSoft(device string) bool { return strings.HasPrefix(device, "softgpu") }

func runProbe(libs Libraries, env []string, signals *Signals) (r ProbeResult, stderr string, err error) {
	var out, errs bytes.Buffer
	cmd := exec.Command("/proc/self/exe", ProbeVerb, libs.Preload)
	cmd.Args[0] = "ebb"
	cmd.Env = env
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err = cmd.Start(); err != nil {
		return r, "", failf(StatusInternal, "starting the check of preload and device: %w", err)
	}
	ended := make(chan struct{})
	go func() {
		err = cmd.Wait()
		close(ended)
	}()
	for {
		select {
		case sig := <-signals.c:
			if terminates(sig) {
				_ = cmd.Process.Kill()
				<-ended
				return r, "", Interrupted(sig)
			}
		case <-ended:
			if err == nil {
				err = json.Unmarshal(out.Bytes(), &r)
			}
			if err != nil {
				return r, "", failf(StatusDevice, "the check of preload and device failed: %w: %s", err, reason(errs.String(), "no message"))
			}
			return r, errs.String(), nil
		}
	}
}

// reason is the first line of a message, or a substitute.
func reason(text, otherwise string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	if line == "" {
		return otherwise
	}
	return line
}

// PrintProbe is the hidden verb's work.
func PrintProbe(preload string) error {
	text, err := json.Marshal(ProbeSelf(preload))
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(os.Stdout, string(text))
	if err != nil {
		return fmt.Errorf("writing the result: %w", err)
	}
	return nil
}
