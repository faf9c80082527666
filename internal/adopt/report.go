package adopt

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// State of a package, and of one of its files.
type State string

// States.
const (
	Adopted    State = "adopted"     // links to one libebb.so, with its engine
	NotAdopted State = "not adopted" // the package's own
	Partly     State = "partly"      // some are adopted, or to different libraries: to be repeated, or undone
	Replaced   State = "replaced"    // was adopted; then the package was upgraded or reinstalled
	Broken     State = "broken"      // links to a libebb.so that is gone, or that has no engine
)

// Report says what is in place.
type Report struct {
	Python         string       `json:"python"`
	PackageVersion string       `json:"package_version"`
	Dir            string       `json:"dir"`
	State          State        `json:"state"`
	Changed        bool         `json:"changed"`
	Library        string       `json:"library"` // resolved; empty when not adopted
	Copied         bool         `json:"copied"`
	EbbVersion     string       `json:"ebb_version"` // of the adoption; empty when there is no manifest
	AdoptedAt      *time.Time   `json:"adopted_at"`
	Files          []FileReport `json:"files"`
	Notes          []string     `json:"notes"`
}

// FileReport says what stands at the name of one hook library.
type FileReport struct {
	Name     string `json:"name"`
	State    State  `json:"state"`
	Link     string `json:"link"`     // what the link says; empty: no link
	Original bool   `json:"original"` // the original is kept
}

// Check says what is in place, and changes nothing.
func (p *Package) Check() (Report, error) {
	if p.gone() {
		return Report{}, p.notFound()
	}
	return p.report(false)
}

func (p *Package) report(changed bool) (Report, error) {
	hooks, m, err := p.inspect()
	if err != nil {
		return Report{}, err
	}
	r := Report{
		Python: p.Python, PackageVersion: p.Version, Dir: p.Dir, Changed: changed,
		Files: []FileReport{}, Notes: []string{},
	}
	if m != nil {
		r.EbbVersion, r.AdoptedAt, r.Copied = m.EbbVersion, &m.AdoptedAt, m.Copied
		if m.PackageVersion != p.Version {
			r.note("the package was adopted as version " + orUnknown(m.PackageVersion))
		}
	}
	var libraries []string
	for _, h := range hooks {
		state, library := h.state(m, &r)
		r.Files = append(r.Files, FileReport{Name: h.name, State: state, Link: h.link, Original: h.kept})
		if library != "" && !slices.Contains(libraries, library) {
			libraries = append(libraries, library)
		}
	}
	r.State = r.summary(m, len(libraries))
	r.Library = strings.Join(libraries, ", ")
	return r, nil
}

func (r *Report) note(text string) {
	if !slices.Contains(r.Notes, text) {
		r.Notes = append(r.Notes, text)
	}
}

// state tells of one file, and the library that it leads to.
func (h *hook) state(m *manifest, r *Report) (State, string) {
	if filepath.Base(h.link) != libraryName {
		if m.file(h.name) != nil {
			return Replaced, ""
		}
		return NotAdopted, ""
	}
	if !h.kept {
		r.note("originals are not kept: --undo cannot restore them")
	}
	library, err := filepath.EvalSymlinks(h.path)
	if err != nil {
		r.note("the libebb.so that the links name is gone: run ebb adopt again, or --undo")
		return Broken, ""
	}
	if _, err := os.Stat(filepath.Join(filepath.Dir(library), engineName)); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			r.note("there is no " + engineName + " beside " + library)
		} else {
			r.note(err.Error())
		}
		return Broken, library
	}
	return Adopted, library
}

// summary is the state of the whole from those of the files.
func (r *Report) summary(m *manifest, libraries int) State {
	seen := map[State]bool{}
	for _, f := range r.Files {
		seen[f.State] = true
	}
	switch {
	case seen[Broken]:
		return Broken
	case seen[Adopted] && (len(seen) > 1 || libraries > 1):
		return Partly
	case seen[Adopted]:
		return Adopted
	case m != nil:
		return Replaced
	}
	return NotAdopted
}

// touched lists the hook libraries that an adoption may have touched.
func (p *Package) touched(m *manifest) ([]string, error) {
	entries, err := os.ReadDir(p.Dir)
	if err != nil {
		return nil, err
	}
	var names []string
	if m != nil {
		for _, f := range m.Files {
			names = append(names, f.Name)
		}
	}
	for _, entry := range entries {
		for _, suffix := range []string{originalSuffix, newSuffix} {
			if name, ours := strings.CutSuffix(entry.Name(), suffix); ours && hookPattern.MatchString(name) {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}
