package bench

import (
	"debug/elf"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ebb-offload/ebb/internal/launch"
)

// library is one that manages memory, to be measured.
type library struct {
	name string
	path string
	ebb  bool
}

// What a library must have to run the script.
var neededNames = []string{
	"tms_pause", "tms_resume", "tms_set_interesting_region", "tms_set_current_tag", "tms_set_enable_cpu_backup", "cudaMalloc", "cudaFree",
}

// openAgainst looks at the library of --against. runtime is the name of the CUDA runtime that it is
// linked with, if it is.
func openAgainst(path string) (lib library, runtime string, err error) {
	const remedy = "name a shared library with torch_memory_saver's functions that can be preloaded"
	full, err := filepath.Abs(path)
	if err != nil {
		return lib, "", launch.Usagef("--against %s: %w", path, err)
	}
	if _, err := os.Stat(full); err != nil {
		return lib, "", launch.Usagef("--against: %w; %s", err, remedy)
	}
	if strings.ContainsAny(full, ": \t\n;") {
		return lib, "", launch.Usagef("--against %q: the dynamic loader cannot be told a path with blanks, colons or semicolons; link to it from elsewhere", full)
	}
	file, err := elf.Open(full)
	if err != nil {
		return lib, "", launch.Usagef("--against %s is no shared library (%w): %s", full, err, remedy)
	}
	defer func() { _ = file.Close() }()
	symbols, err := file.DynamicSymbols()
	if err != nil || file.Type != elf.ET_DYN {
		return lib, "", launch.Usagef("--against %s is no shared library: %s", full, remedy)
	}
	have := map[string]bool{}
	for _, s := range symbols {
		have[s.Name] = have[s.Name] || s.Section != elf.SHN_UNDEF
	}
	var lacks []string
	for _, name := range neededNames {
		if !have[name] {
			lacks = append(lacks, name)
		}
	}
	if len(lacks) > 0 {
		return lib, "", launch.Usagef("--against %s lacks %s: %s", full, strings.Join(lacks, ", "), remedy)
	}
	imported, err := file.ImportedLibraries()
	if err != nil {
		return lib, "", launch.Usagef("--against %s: %w", full, err)
	}
	if i := slices.IndexFunc(imported, isRuntimeName); i >= 0 {
		runtime = imported[i]
	}
	return library{name: againstName(full), path: full}, runtime, nil
}

// againstName is short enough for a table.
func againstName(path string) string {
	name, _, _ := strings.Cut(filepath.Base(path), ".")
	if strings.HasPrefix(name, "torch_memory_saver") {
		return "tms"
	}
	name = strings.TrimPrefix(name, "lib")
	if len(name) > 12 {
		name = name[:12]
	}
	if name == "ebb" || name == "raw" || name == "" {
		return "other"
	}
	return name
}
