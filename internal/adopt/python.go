package adopt

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

//go:embed probe.py
var probe string

// Package is an installed torch_memory_saver.
type Package struct {
	Python  string // as given
	Version string // empty: it has no metadata
	Origin  string // its __init__.py; empty: it is gone, and only remains of an adoption are there
	Dir     string // where its hook libraries lie
	Prefix  string // of the interpreter

	executable string   // path of the interpreter
	owned      []string // libraries that its metadata lists
	ebb        string   // version of libebb.so as the interpreter sees it
}

// ErrNoPython is in the error of Find when the interpreter cannot be run.
var ErrNoPython = errors.New("no such interpreter")

// Find asks an interpreter where its torch_memory_saver is. environment is the interpreter's. With
// a library, it must be one that the interpreter can load.
func Find(ctx context.Context, python string, environment []string, library string) (*Package, error) {
	a, err := ask(ctx, python, environment, library)
	if err != nil {
		return nil, err
	}
	p := &Package{Python: python, Version: a.Version, Origin: a.Origin, Prefix: a.Prefix, executable: a.Executable, owned: a.Owned, ebb: a.Load}
	if p.gone() {
		if len(a.Remains) == 0 {
			return nil, p.notFound()
		}
		p.Dir = a.Remains[0]
		return p, nil
	}
	if a.LoadError != "" {
		return nil, refusef("%s cannot load libebb.so: %s", python, a.LoadError)
	}
	return p, p.findFolder()
}

// gone says that the package was removed and only remains of its adoption are there.
func (p *Package) gone() bool { return p.Origin == "" }

func (p *Package) notFound() error {
	return refusef("%s (%s) finds no package torch_memory_saver: install it there (%s -m pip install torch-memory-saver), or name another interpreter with --python",
		p.Python, p.executable, p.Python)
}

// answer is what probe.py prints.
type answer struct {
	Version    string   `json:"version"`
	Origin     string   `json:"origin"`
	Prefix     string   `json:"prefix"`
	Executable string   `json:"executable"`
	Owned      []string `json:"owned"`
	Remains    []string `json:"remains"`
	Load       string   `json:"load"`
	LoadError  string   `json:"load_error"`
}

func ask(ctx context.Context, python string, environment []string, library string) (*answer, error) {
	cmd := exec.CommandContext(ctx, python, "-c", probe, manifestName, library)
	cmd.Env = environment
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		var exit *exec.ExitError
		if !errors.As(err, &exit) {
			return nil, refusef("%w: %s: %w", ErrNoPython, python, err)
		}
		return nil, refusef("%s could not say where its packages are: %w: %s", python, err, lastLine(stderr.String()))
	}
	// A sitecustomize may print lines of its own.
	for _, line := range strings.Split(stdout.String(), "\n") {
		if text, ours := strings.CutPrefix(line, "ebb-adopt "); ours {
			var a answer
			if err := json.Unmarshal([]byte(text), &a); err != nil {
				return nil, fmt.Errorf("reading the answer of %s: %w", python, err)
			}
			return &a, nil
		}
	}
	return nil, refusef("%s is no Python interpreter: it does not answer", python)
}

func lastLine(text string) string {
	text = strings.TrimSpace(text)
	return text[strings.LastIndexByte(text, '\n')+1:]
}

// findFolder finds where the hook libraries lie: in the package's folder or the one above, the
// places where the package looks.
func (p *Package) findFolder() error {
	folder := filepath.Dir(p.Origin)
	var places []string
	for _, place := range []string{folder, filepath.Dir(folder)} {
		libraries, err := packageLibraries(place)
		if err != nil {
			return err
		}
		if len(libraries) > 0 {
			places = append(places, place)
		}
	}
	switch len(places) {
	case 1:
		p.Dir = places[0]
		return nil
	case 0:
		return refusef("torch_memory_saver %s in %s has no libraries of a layout that ebb knows: there is none named torch_memory_saver*.so there or in the folder above",
			orUnknown(p.Version), folder)
	}
	return refusef("torch_memory_saver %s has libraries in %s and in %s: reinstall it", orUnknown(p.Version), places[0], places[1])
}

// packageLibraries lists, in order, the names in a folder that look like the package's libraries.
func packageLibraries(folder string) ([]string, error) {
	entries, err := os.ReadDir(folder)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("looking for the package's libraries: %w", err)
	}
	var names []string
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), "torch_memory_saver") && strings.HasSuffix(entry.Name(), ".so") {
			names = append(names, entry.Name())
		}
	}
	return names, nil
}

// hookNames lists the package's hook libraries, all of which must have names that ebb knows: a
// package of which a part goes on with its own library would have two in one process.
func (p *Package) hookNames() ([]string, error) {
	if p.gone() {
		return nil, nil
	}
	names, err := packageLibraries(p.Dir)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if !hookPattern.MatchString(name) {
			return nil, refusef("torch_memory_saver %s has a layout that ebb does not know; in %s are: %s",
				orUnknown(p.Version), p.Dir, strings.Join(names, ", "))
		}
	}
	return names, nil
}

// ownedNames lists the libraries beside the package that its metadata lists.
func (p *Package) ownedNames() []string {
	var names []string
	for _, path := range p.owned {
		if filepath.Dir(path) == filepath.Clean(p.Dir) {
			names = append(names, filepath.Base(path))
		}
	}
	return names
}

// ownsAll refuses files that the package's metadata does not list. A package that is used from its
// sources, or was copied into place, lists none.
func (p *Package) ownsAll(hooks []hook) error {
	names := p.ownedNames()
	if len(names) == 0 {
		return nil
	}
	for _, h := range hooks {
		if !slices.Contains(names, h.name) {
			return refusef("%s is not a file of torch_memory_saver %s, whose metadata does not list it; remove it, or reinstall the package",
				h.path, p.Version)
		}
	}
	return nil
}
