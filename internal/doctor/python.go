package doctor

import (
	"bytes"
	"context"
	"debug/elf"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/ebb-offload/ebb/internal/adopt"
	"github.com/ebb-offload/ebb/internal/launch"
	"github.com/ebb-offload/ebb/internal/version"
)

//go:embed python.py
var pythonProgram string

// interpreter is what python.py tells.
type interpreter struct {
	Python     string `json:"python"`
	Executable string `json:"executable"`
	Torch      string `json:"torch"`
	Saver      string `json:"torch_memory_saver"`
	Ebb        string `json:"ebb"`
	Library    answer `json:"library"`
	Engine     answer `json:"engine"`

	loader string // the dynamic loader that it asks for; empty: not known
	failed error  // no answer
}

// answer is a version, or why there is none.
type answer struct {
	Version string `json:"version"`
	Error   string `json:"error"`
}

// python looks at the first python3 of PATH.
func (x examination) python() part {
	var p interpreter
	return part{theme: "python", checks: []check{
		one("python", func(ctx context.Context) Finding {
			p = x.askPython(ctx)
			return judgePython(p)
		}),
		one("library-version", func(context.Context) Finding { return judgeVersions(p, version.Version) }),
		one("torch", func(context.Context) Finding { return judgeTorch(p, x.getenv) }),
		one("torch-memory-saver", func(ctx context.Context) Finding {
			if p.failed != nil || p.Saver == "" {
				return judgeSaver(p, adopt.Report{}, nil)
			}
			r, err := x.adoption(ctx, p)
			return judgeSaver(p, r, err)
		}),
	}}
}

func (x examination) askPython(ctx context.Context) (p interpreter) {
	python := inPath("python3", x.getenv("PATH"))
	if python == "" {
		p.failed = exec.ErrNotFound
		return p
	}
	cmd := exec.CommandContext(ctx, python, "-c", pythonProgram, x.o.Libraries.Preload, x.o.Libraries.Engine)
	// Loaded once by the program itself; a preloaded one would be in its way.
	cmd.Env = launch.Apply(x.o.Environ, []launch.Setting{{Name: "LD_PRELOAD", Unset: true}})
	cmd.WaitDelay = time.Second
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil {
		p.failed = fmt.Errorf("%s: %w: %s", python, err, lastLine(said.String()))
		return p
	}
	p.failed = errors.New(python + " does not answer as a Python interpreter does")
	for line := range strings.Lines(out.String()) {
		if text, ours := strings.CutPrefix(line, "ebb-doctor "); ours {
			p.failed = json.Unmarshal([]byte(text), &p)
		}
	}
	if f, err := elf.Open(p.Executable); err == nil {
		defer func() { _ = f.Close() }()
		p.loader = loaderOf(f)
	}
	return p
}

// inPath finds a program by the PATH of an environment that is not this process's.
func inPath(program, path string) string {
	for _, dir := range filepath.SplitList(path) {
		file := filepath.Join(dir, program)
		if filepath.IsAbs(dir) && executable(file) {
			return file
		}
	}
	return ""
}

func executable(file string) bool {
	_, err := exec.LookPath(file)
	return err == nil
}

func lastLine(text string) string {
	text = strings.TrimSpace(text)
	return text[strings.LastIndexByte(text, '\n')+1:]
}

func loaderOf(f *elf.File) string {
	for _, p := range f.Progs {
		if p.Type != elf.PT_INTERP {
			continue
		}
		name := make([]byte, p.Filesz)
		if _, err := p.ReadAt(name, 0); err == nil {
			return strings.TrimRight(string(name), "\x00")
		}
	}
	return ""
}

func judgePython(p interpreter) Finding {
	switch {
	case errors.Is(p.failed, exec.ErrNotFound):
		return skip("there is no python3 in PATH")
	case p.failed != nil:
		return warn("check PATH, or the virtual environment", "python3 cannot be asked: %s", errorText(p.failed))
	case strings.Contains(p.loader, "ld-musl-"):
		return fail("use a Python that is linked with glibc", "python3 (%s) is linked with musl, and ebb's library needs glibc", p.Executable)
	}
	return ok("Python %s (%s)", p.Python, p.Executable).fact("python", "%s %s", p.Python, p.Executable)
}

// judgeVersions compares the versions that the libraries say themselves.
func judgeVersions(p interpreter, want string) Finding {
	if p.failed != nil {
		return skip("no Python to load them with")
	}
	abi, engine, _ := strings.Cut(p.Engine.Version, " ")
	switch {
	case p.Library.Error != "":
		return fail(reinstall, "libebb.so cannot be loaded: %s", p.Library.Error)
	case p.Engine.Error != "":
		return fail(reinstall, "libebb-engine.so cannot be loaded: %s", p.Engine.Error)
	case engine != p.Library.Version:
		return fail(reinstall, "libebb.so is of version %s and libebb-engine.so of version %s (ABI %s): they refuse one another", p.Library.Version, engine, abi)
	case p.Library.Version != want:
		return warn(reinstall, "ebb is of version %s and its libraries of version %s", want, p.Library.Version)
	case p.Ebb != "" && p.Ebb != want:
		return warn("pip install the wheel of this version", "ebb is of version %s and its Python package of version %s", want, p.Ebb)
	}
	return ok("ebb, libebb.so and libebb-engine.so are of version %s (ABI %s)", want, abi).fact("libraries", "%s, ABI %s", p.Library.Version, abi)
}

func judgeTorch(p interpreter, getenv func(string) string) Finding {
	if p.failed != nil {
		return skip("no Python to ask")
	}
	if p.Torch == "" {
		return skip("this Python has no PyTorch")
	}
	setting := "no allocator settings"
	if conf := allocatorConf(getenv); conf != "" {
		setting = "allocator settings " + conf
	}
	if strings.Contains(allocatorConf(getenv), "expandable_segments:True") {
		setting += "; expandable segments are managed too"
	}
	return ok("PyTorch %s, %s", p.Torch, setting).fact("torch", "%s", p.Torch)
}

// allocatorConf is what PyTorch's allocator is told; the new name comes first.
func allocatorConf(getenv func(string) string) string {
	if conf := getenv("PYTORCH_ALLOC_CONF"); conf != "" {
		return conf
	}
	return getenv("PYTORCH_CUDA_ALLOC_CONF")
}

// adoption asks whether the torch_memory_saver of the interpreter uses ebb.
func (x examination) adoption(ctx context.Context, p interpreter) (adopt.Report, error) {
	found, err := adopt.Find(ctx, p.Executable, x.o.Environ, "")
	if err != nil {
		return adopt.Report{}, err
	}
	return found.Check()
}

func judgeSaver(p interpreter, r adopt.Report, err error) Finding {
	switch {
	case p.failed != nil:
		return skip("no Python to ask")
	case p.Saver == "":
		return skip("this Python has no torch_memory_saver to adopt")
	case err != nil:
		return warn("ebb adopt --check says more", "torch_memory_saver %s: %s", p.Saver, errorText(err))
	}
	again := "ebb adopt --python " + p.Executable
	what := "torch_memory_saver " + p.Saver
	switch r.State {
	case adopt.Adopted:
		return ok("%s uses %s", what, r.Library)
	case adopt.Replaced:
		return warn(again, "%s was upgraded or installed again and no longer uses ebb", what)
	case adopt.Partly:
		return fail(again, "%s is adopted in part: %s", what, strings.Join(r.Notes, "; "))
	case adopt.Broken:
		return fail(again+", or with --undo", "%s leads to an ebb that is gone: %s", what, strings.Join(r.Notes, "; "))
	}
	return ok("%s has its own library; under ebb run the preloaded one counts (elsewhere: %s)", what, again)
}
