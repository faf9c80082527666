package bench

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/ebb-offload/ebb/internal/launch"
)

// cudaRuntimes are the CUDA runtimes that a rank tries, the best first: paths, and names that the
// dynamic loader looks up.
func cudaRuntimes(ctx context.Context, o Options, linked string) []string {
	if o.soft() {
		name := "libcudart.so.13"
		if linked != "" {
			name = linked
		}
		return []string{filepath.Join(o.Libraries.Soft, name)}
	}
	names := []string{"libcudart.so.13", "libcudart.so.12"}
	if linked != "" {
		names = []string{linked} // the library under test and the rank must use the same
	}
	return candidates(names, runtimeFolders(ctx, launch.Lookup(o.Environ)), exists)
}

// candidates are names as they are, then in folders.
func candidates(names, folders []string, exists func(string) bool) []string {
	var out []string
	for _, name := range names {
		out = append(out, name)
		for _, folder := range folders {
			if path := filepath.Join(folder, name); exists(path) && !slices.Contains(out, path) {
				out = append(out, path)
			}
		}
	}
	return out[:min(len(out), maxRuntimes)]
}

// maxRuntimes is how many ebb-bench-rank takes.
const maxRuntimes = 16

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// runtimeFolders are where CUDA toolkits and the Python packages of PyTorch put the runtime.
func runtimeFolders(ctx context.Context, getenv func(string) string) []string {
	var folders []string
	for _, home := range []string{getenv("CUDA_HOME"), getenv("CUDA_PATH"), "/usr/local/cuda"} {
		if home != "" {
			folders = append(folders, filepath.Join(home, "lib64"))
		}
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	paths, err := exec.CommandContext(ctx, "python3", "-c", `import sys; print("\n".join(sys.path))`).Output()
	if err != nil { // without Python there are no packages of it
		return folders
	}
	for path := range strings.Lines(string(paths)) {
		found, err := filepath.Glob(filepath.Join(strings.TrimSpace(path), "nvidia", "*", "lib"))
		if err == nil {
			folders = append(folders, found...)
		}
	}
	return folders
}

func isRuntimeName(name string) bool { return strings.HasPrefix(name, "libcudart.so.") }

// environment is that of a rank: the caller's without what settings for libraries of memory it has,
// with the CUDA runtime's folder in the loader's path and the library preloaded.
func environment(o Options, runtimes []string, lib library, more ...string) []string {
	var env []string
	for _, entry := range o.Environ {
		name, _, _ := strings.Cut(entry, "=")
		if strings.HasPrefix(name, "TMS_") || strings.HasPrefix(name, "EBB_") || name == "LD_PRELOAD" || name == "LD_LIBRARY_PATH" {
			continue
		}
		env = append(env, entry)
	}
	var folders []string
	if o.soft() {
		folders = append(folders, o.Libraries.Soft)
	}
	for _, runtime := range runtimes {
		if folder := filepath.Dir(runtime); folder != "." && !slices.Contains(folders, folder) {
			folders = append(folders, folder)
		}
	}
	if given := launch.Lookup(o.Environ)("LD_LIBRARY_PATH"); given != "" {
		folders = append(folders, given)
	}
	if len(folders) > 0 {
		env = append(env, "LD_LIBRARY_PATH="+strings.Join(folders, ":"))
	}
	if lib.path != "" {
		env = append(env, "LD_PRELOAD="+lib.path)
	}
	return append(env, more...)
}
