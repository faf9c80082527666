package adopt

import (
	"debug/elf"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// hookPattern matches the names that the package's wheels use: 0.0.9 has one library for each mode,
// later ones have one for each mode and major version of CUDA, and a copy under the old name.
var hookPattern = regexp.MustCompile(`^torch_memory_saver_hook_mode_(preload|torch)(_cu1[23])?\.abi3\.so$`)

// exports are the functions that a library offers by C names.
type exports struct {
	machine   elf.Machine
	functions []string
}

func readExports(path string) (exports, error) {
	f, err := elf.Open(path)
	if err != nil {
		return exports{}, err
	}
	defer f.Close()
	if f.Type != elf.ET_DYN {
		return exports{}, fmt.Errorf("%s is no shared library", path)
	}
	symbols, err := f.DynamicSymbols()
	if err != nil {
		return exports{}, fmt.Errorf("%s: %w", path, err)
	}
	e := exports{machine: f.Machine}
	for _, s := range symbols {
		defined := s.Section != elf.SHN_UNDEF && elf.ST_TYPE(s.Info) == elf.STT_FUNC && elf.ST_BIND(s.Info) == elf.STB_GLOBAL
		// Names with an underscore in front are of C++ and of the linker.
		if defined && !strings.HasPrefix(s.Name, "_") {
			e.functions = append(e.functions, s.Name)
		}
	}
	return e, nil
}

// without lists the functions that the other library has not.
func (e exports) without(other exports) []string {
	var missing []string
	for _, name := range e.functions {
		if !slices.Contains(other.functions, name) {
			missing = append(missing, name)
		}
	}
	slices.Sort(missing)
	return slices.Compact(missing)
}
