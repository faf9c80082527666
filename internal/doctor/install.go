package doctor

import (
	"context"
	"debug/elf"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/ebb-offload/ebb/internal/launch"
	"github.com/ebb-offload/ebb/internal/version"
)

// installation looks at ebb's own files and the C library that they need.
func (x examination) installation() part {
	return part{theme: "installation", checks: []check{
		one("libraries", x.libraries),
		one("glibc", func(context.Context) Finding {
			return judgeGlibc(x.system, x.o.Libraries.Preload, x.o.Libraries.Engine)
		}),
	}}
}

const reinstall = "build or install ebb again, or set EBB_LIB_DIR to the folder of its libraries"

// libraries looks whether all files are there and can be named to the dynamic loader.
func (x examination) libraries(context.Context) Finding {
	libs := x.o.Libraries
	o := launch.NewOptions()
	o.Offload, o.Device = true, x.o.Device
	if err := libs.Check(o); err != nil {
		reason, remedy := errorText(err), reinstall
		if end := strings.LastIndex(reason, "; "); end >= 0 { // its own remedy
			reason, remedy = reason[:end], reason[end+len("; "):]
		}
		return fail(remedy, "%s", reason)
	}
	preload, err := filepath.EvalSymlinks(libs.Preload)
	if err != nil {
		return fail(reinstall, "%s", errorText(err))
	}
	for _, file := range []string{preload, libs.Engine} {
		f, err := elf.Open(file)
		if err != nil {
			return fail(reinstall, "%s is no library: %s", file, errorText(err))
		}
		machine := f.Machine
		_ = f.Close()
		if machine != hostMachine {
			return fail("install ebb for this machine", "%s is for %v, this machine is %v", file, machine, hostMachine)
		}
	}
	if beside := filepath.Join(filepath.Dir(preload), "libebb-engine.so"); !sameFile(beside, libs.Engine) {
		if _, err := os.Stat(beside); err != nil {
			return fail(reinstall, "%s has no libebb-engine.so beside it, where it looks for its engine", preload)
		}
	}
	return ok("ebb %s: libebb.so and libebb-engine.so in %s", version.Version, libs.Dir)
}

func sameFile(a, b string) bool {
	infoA, errA := os.Stat(a)
	infoB, errB := os.Stat(b)
	return errA == nil && errB == nil && os.SameFile(infoA, infoB)
}

// hostMachine is what this program was built for.
var hostMachine = func() elf.Machine {
	f, err := elf.Open("/proc/self/exe")
	if err != nil {
		return elf.EM_NONE
	}
	defer func() { _ = f.Close() }()
	return f.Machine
}()

// glibcVersion is a version such as 2.36.
type glibcVersion struct{ major, minor int }

func (v glibcVersion) String() string { return fmt.Sprintf("%d.%d", v.major, v.minor) }

func (v glibcVersion) less(w glibcVersion) bool {
	return v.major < w.major || v.major == w.major && v.minor < w.minor
}

func (v glibcVersion) known() bool { return v != glibcVersion{} }

// parseGlibc reads the name of a symbol version, "GLIBC_2.34".
func parseGlibc(name string) (v glibcVersion, found bool) {
	text, isGlibc := strings.CutPrefix(name, "GLIBC_")
	major, minor, _ := strings.Cut(text, ".")
	minor, _, _ = strings.Cut(minor, ".")
	var err1, err2 error
	v.major, err1 = strconv.Atoi(major)
	v.minor, err2 = strconv.Atoi(minor)
	return v, isGlibc && err1 == nil && err2 == nil
}

func newest(names []string) (most glibcVersion) {
	for _, name := range names {
		if v, found := parseGlibc(name); found && most.less(v) {
			most = v
		}
	}
	return most
}

// neededGlibc is the newest version whose symbols a library asks for.
func neededGlibc(library string) (glibcVersion, error) {
	f, err := elf.Open(library)
	if err != nil {
		return glibcVersion{}, err
	}
	defer func() { _ = f.Close() }()
	needs, err := f.DynamicVersionNeeds()
	if err != nil {
		return glibcVersion{}, err
	}
	var names []string
	for _, need := range needs {
		for _, dep := range need.Needs {
			names = append(names, dep.Dep)
		}
	}
	return newest(names), nil
}

// offeredGlibc is the newest version that a C library defines.
func offeredGlibc(library string) (glibcVersion, error) {
	f, err := elf.Open(library)
	if err != nil {
		return glibcVersion{}, err
	}
	defer func() { _ = f.Close() }()
	versions, err := f.DynamicVersions()
	if err != nil {
		return glibcVersion{}, err
	}
	var names []string
	for _, v := range versions {
		names = append(names, v.Name)
	}
	return newest(names), nil
}

// mappedLibrary is the path of a library that a process has loaded, by the text of its maps; empty: none.
func mappedLibrary(maps string, named func(base string) bool) string {
	for _, path := range mappedFiles(maps) {
		if named(filepath.Base(path)) {
			return path
		}
	}
	return ""
}

// mappedFiles are the files in the text of /proc/PID/maps, each once.
func mappedFiles(maps string) (files []string) {
	for line := range strings.Lines(maps) {
		f := strings.SplitN(strings.TrimRight(line, "\n"), " ", 6)
		if len(f) < 6 {
			continue
		}
		if path := strings.TrimLeft(f[5], " "); strings.HasPrefix(path, "/") && !slices.Contains(files, path) {
			files = append(files, path)
		}
	}
	return files
}

// judgeGlibc compares what ebb's libraries need with what this process has loaded.
func judgeGlibc(s system, libraries ...string) Finding {
	maps, err := s.read("/proc/self/maps")
	if err != nil {
		return skip("%s", errorText(err))
	}
	libc := mappedLibrary(maps, func(base string) bool { return base == "libc.so.6" })
	if libc == "" {
		return skip("this program has no C library loaded by which to tell")
	}
	have, err := offeredGlibc(s.path(libc))
	if err != nil || !have.known() {
		return skip("the version of %s cannot be read", libc)
	}
	var need glibcVersion
	for _, library := range libraries {
		n, err := neededGlibc(library)
		if err != nil {
			return skip("see the row libraries: %s", errorText(err))
		}
		if need.less(n) {
			need = n
		}
	}
	if have.less(need) {
		return fail("build ebb on a system with glibc "+have.String()+" or older, or use an image with glibc "+need.String(),
			"glibc is %v, and ebb's libraries need %v", have, need)
	}
	note := ""
	for _, dir := range []string{"/lib", "/usr/lib"} {
		for _, name := range s.names(dir) {
			if strings.HasPrefix(name, "ld-musl-") {
				note = "; programs of musl (" + dir + "/" + name + ") run beside it, but without ebb"
			}
		}
	}
	return ok("glibc %v; ebb's libraries need %v%s", have, need, note).fact("glibc", "%v", have)
}

// preload looks, in a process with ebb's library preloaded, whether the loader has done it.
func (x examination) preload() part {
	return part{theme: "installation", checks: []check{one("preload", func(context.Context) Finding {
		return judgePreload(x.system, x.o.Libraries.Preload)
	})}}
}

func (x examination) preloadEnviron() []string {
	return launch.Apply(x.o.Environ, []launch.Setting{{Name: "LD_PRELOAD", Value: x.o.Libraries.Preload}})
}

func judgePreload(s system, library string) Finding {
	maps, err := s.read("/proc/self/maps")
	file, err2 := filepath.EvalSymlinks(library)
	switch {
	case err != nil:
		return skip("%s", errorText(err))
	case err2 != nil:
		return skip("see the row libraries")
	case !slices.Contains(mappedFiles(maps), file):
		return fail("check that the file may be read and mapped (noexec mounts, SELinux, AppArmor), and that nothing disables LD_PRELOAD",
			"the dynamic loader does not preload %s", library)
	}
	return ok("the dynamic loader preloads libebb.so")
}
