package launch

import (
	"os"
	"path/filepath"
	"strings"
)

// EnvLibDir names the directory of ebb's libraries where they do not lie in ../lib beside the
// command.
const EnvLibDir = "EBB_LIB_DIR"

// Libraries are the files of an installation that ranks use.
type Libraries struct {
	Dir     string
	Preload string // libebb.so, by a path with torch_memory_saver in it, which its users look for
	Engine  string
	Soft    string // directory of the software device
}

// FindLibraries finds ebb's libraries from the resolved path of the command.
func FindLibraries(executable string, getenv func(string) string) (Libraries, error) {
	dir := getenv(EnvLibDir)
	if dir == "" {
		resolved, err := filepath.EvalSymlinks(executable)
		if err != nil {
			return Libraries{}, failf(StatusInstall, "finding the path of ebb: %w; set %s to the directory of its libraries", err, EnvLibDir)
		}
		dir = filepath.Join(filepath.Dir(resolved), "..", "lib")
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return Libraries{}, failf(StatusInstall, "the directory of ebb's libraries: %w; set %s to an absolute path", err, EnvLibDir)
	}
	libs := Libraries{
		Dir:     dir,
		Preload: filepath.Join(dir, "torch_memory_saver", "libebb.so"),
		Engine:  filepath.Join(dir, "libebb-engine.so"),
		Soft:    filepath.Join(dir, "softgpu"),
	}
	// A wheel holds no links: there the engine lies beside the library, which looks for it in both places.
	if beside := filepath.Join(dir, "torch_memory_saver", "libebb-engine.so"); isThere(beside) {
		libs.Engine = beside
	}
	return libs, nil
}

func isThere(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

// Check verifies that the files which the options need are there and can be named in the
// dynamic loader's variables, where blanks and colons separate entries.
func (l Libraries) Check(o Options) error {
	var need []string
	if o.Offload || o.Stream() {
		need = append(need, l.Preload, l.Engine)
	}
	if o.Device == DeviceSoft {
		need = append(need, filepath.Join(l.Soft, "libcuda.so.1"))
	}
	for _, file := range need {
		if _, err := os.Stat(file); err != nil {
			return failf(StatusInstall, "ebb's installation is incomplete: %w; build or install it again, or set %s", err, EnvLibDir)
		}
		if strings.ContainsAny(file, ": \t\n;") {
			return failf(StatusInstall, "ebb's libraries lie in %q, a path that the dynamic loader cannot be told; install ebb where the path has no blanks, colons or semicolons", l.Dir)
		}
	}
	return nil
}
