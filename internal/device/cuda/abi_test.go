package cuda

import (
	"archive/zip"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ebb-offload/ebb/internal/device"
	"github.com/ebb-offload/ebb/internal/mem"
)

// What cuda_abi.h declares is what NVIDIA's headers declare: sizes, offsets, numbers, prototypes,
// and which version of each function is called. So are the numbers of the Go packages.
func TestDeclarationsEqualNVIDIAs(t *testing.T) {
	ours := facts(t, "")
	for _, pkg := range []string{
		"nvidia-cuda-runtime-cu12==12.8.90",
		"nvidia-cuda-runtime==13.5.37",
	} {
		t.Run(pkg, func(t *testing.T) {
			theirs := facts(t, nvidiaHeaders(t, pkg))
			for name, n := range map[string]int64{
				"CUDA_ERROR_INVALID_VALUE":           int64(device.CodeInvalidValue),
				"CUDA_ERROR_OUT_OF_MEMORY":           int64(device.CodeOutOfMemory),
				"CUDA_ERROR_NOT_INITIALIZED":         int64(device.CodeNotInitialized),
				"CUDA_ERROR_DEINITIALIZED":           int64(device.CodeDeinitialized),
				"CU_MEM_ALLOCATION_TYPE_PINNED":      mem.TypePinned,
				"CU_MEM_LOCATION_TYPE_DEVICE":        mem.LocationDevice,
				"CU_MEM_ACCESS_FLAGS_PROT_READWRITE": mem.AccessRW,
				"CU_MEM_ACCESS_FLAGS_PROT_READ":      mem.AccessR,
				"CUDA_ERROR_INVALID_DEVICE":          int64(device.CodeInvalidDevice),
				"CUDA_ERROR_ILLEGAL_STATE":           int64(device.CodeIllegalState),
				"CUDA_ERROR_NOT_SUPPORTED":           int64(device.CodeNotSupported),
				"CUDA_ERROR_UNKNOWN":                 int64(device.CodeUnknown),
				"CU_STREAM_CAPTURE_MODE_RELAXED":     device.CaptureRelaxed,
			} {
				if got := fmt.Sprint(n); theirs[name] != got {
					t.Errorf("%s is %q in NVIDIA's header, %s in Go", name, theirs[name], got)
				}
			}
			for name := range theirs {
				if strings.HasPrefix(name, "CUDA_ERROR_") {
					delete(theirs, name)
				}
			}
			if diff := cmp.Diff(theirs, ours); diff != "" {
				t.Errorf("cuda_abi.h differs from NVIDIA's header (- theirs, + ours):\n%s", diff)
			}
		})
	}
}

// facts compiles testdata/abi_facts.c, with NVIDIA's headers when their folder is given, and
// returns what it prints: name and value.
func facts(t *testing.T, nvidia string) map[string]string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "facts")
	args := []string{"-std=gnu11", "-Wall", "-Wextra", "-Werror", "-I.", "-o", program, "testdata/abi_facts.c"}
	if nvidia != "" {
		args = append(args, "-DNVIDIA", "-isystem", nvidia)
	}
	if out, err := exec.Command("cc", args...).CombinedOutput(); err != nil {
		t.Fatalf("the declarations differ: cc %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	out, err := exec.Command(program).Output()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for line := range strings.Lines(string(out)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		found[name] = value
	}
	if len(found) == 0 {
		t.Fatal("no facts")
	}
	return found
}

// nvidiaHeaders fetches a package of NVIDIA's from the Python registry and returns the folder of
// its headers.
func nvidiaHeaders(t *testing.T, pkg string) string {
	t.Helper()
	dir := t.TempDir()
	var out bytes.Buffer
	pip := exec.Command("python3", "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
		"--only-binary=:all:", "--platform", "manylinux2014_x86_64", "--retries", "1", "--timeout", "20", "--dest", dir, pkg)
	pip.Stdout, pip.Stderr = &out, &out
	if err := pip.Run(); err != nil {
		for _, sign := range []string{
			"No module named pip", "connection broken by", "Max retries exceeded", "Network is unreachable", "Temporary failure in name resolution",
			"Connection broken", "timed out", "IncompleteRead", "incomplete-download", "Connection reset by peer", "Server Error", "HTTP error 5",
		} {
			if strings.Contains(out.String(), sign) {
				t.Skipf("NVIDIA's headers cannot be fetched, the registry is out of reach: pip download %s: %v\n%s", pkg, err, out.Bytes())
			}
		}
		t.Fatalf("pip download %s: %v\n%s", pkg, err, out.Bytes())
	}
	wheels, err := filepath.Glob(filepath.Join(dir, "*.whl"))
	if err != nil || len(wheels) != 1 {
		t.Fatalf("pip download %s left %v (%v)", pkg, wheels, err)
	}
	wheel, err := zip.OpenReader(wheels[0])
	if err != nil {
		t.Fatal(err)
	}
	defer wheel.Close()
	headers := filepath.Join(dir, "include")
	if err := os.Mkdir(headers, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, f := range wheel.File {
		if path.Base(f.Name) != "cuda.h" {
			continue // it includes only the C library's
		}
		in, err := f.Open()
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(in)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(headers, "cuda.h"), text, 0o644); err != nil {
			t.Fatal(err)
		}
		return headers
	}
	t.Fatalf("%s has no cuda.h", pkg)
	return ""
}
