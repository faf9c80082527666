// Package adopt makes the torch_memory_saver package of a Python interpreter use libebb.so, and
// undoes that.
//
// The package loads one of several hook libraries that lie beside it, by file name. Adoption puts
// a symbolic link to the one libebb.so in the place of each. All names lead to one file, so that a
// process which loads two of them (preloaded, and as PyTorch's allocator) has one libebb.so, and
// the engine is found beside the file that the links lead to.
//
// In the folder of the hook libraries ebb makes nothing but:
//
//	NAME.ebb-original                    what stood at NAME, another link to the same file where possible
//	NAME.ebb-new                         the new link, until it is renamed to NAME
//	torch_memory_saver.ebb-adopted.json  the manifest: when, by which ebb, and hashes of the originals
//	torch_memory_saver.ebb/              with Copy: libebb.so and its engine
//
// None of these names ends in .so, so the package's own search does not see them, and none can be
// imported.
//
// Order, on which recovery rests: the manifest is written before the first file is touched and
// removed after the last was restored; an original has its second name before its first one is
// replaced, and a replacement is one rename. So at any moment each NAME is there and is either the
// original or the link, and Undo puts back what was there, however far an adoption came. What the
// package's installer does meanwhile (an upgrade writes new files, an uninstall removes the links)
// is recognised by what stands at NAME, never overwritten with older originals.
//
// Adopt and Undo lock the package's __init__.py against one another where the file system has locks.
package adopt

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Names of what is made beside the hook libraries.
const (
	originalSuffix = ".ebb-original"
	newSuffix      = ".ebb-new"
	manifestName   = "torch_memory_saver.ebb-adopted.json"
	copyFolder     = "torch_memory_saver.ebb"
)

// Names of the files of ebb that the package is to use.
const (
	libraryName = "libebb.so"
	engineName  = "libebb-engine.so"
)

// Refusal says why a package is not adopted or not restored. Nothing was changed unless the text
// says so.
type Refusal struct{ cause error }

func (r *Refusal) Error() string { return r.cause.Error() }
func (r *Refusal) Unwrap() error { return r.cause }

func refusef(format string, args ...any) error { return &Refusal{fmt.Errorf(format, args...)} }

// Library is an installed libebb.so.
type Library struct {
	Path   string // absolute
	Engine string // the engine beside it
}

// InFolder is the library of an installation that keeps it in this folder.
func InFolder(dir string) Library {
	return Library{Path: filepath.Join(dir, libraryName), Engine: filepath.Join(dir, engineName)}
}

// Options of an adoption.
type Options struct {
	// Copy puts copies of the libraries beside the package, and links to those: for a tree that is
	// moved, or that becomes a layer of a container image which has no ebb.
	Copy bool
	Now  time.Time
}

// Adopt makes the package use the library. Nothing happens when it does already.
func (p *Package) Adopt(lib Library, o Options) (Report, error) {
	if p.gone() {
		return Report{}, p.notFound()
	}
	unlock, err := p.lock()
	if err != nil {
		return Report{}, err
	}
	defer unlock()

	hooks, before, err := p.inspect()
	if err != nil {
		return Report{}, err
	}
	if err := p.adoptable(hooks, lib); err != nil {
		return Report{}, err
	}
	link, err := p.linkTo(lib, o)
	if err != nil {
		return Report{}, err
	}
	m := &manifest{
		Format: manifestFormat, EbbVersion: p.ebb, AdoptedAt: o.Now.UTC().Truncate(time.Second),
		PackageVersion: p.Version, Link: link, Copied: o.Copy,
	}
	for i := range hooks {
		f, err := hooks[i].record(before)
		if err != nil {
			return Report{}, err
		}
		m.Files = append(m.Files, f)
	}
	if before.says(m) && allLead(hooks, link) && (!o.Copy || p.copied(lib)) {
		return p.report(false)
	}

	if err := m.write(p.Dir); err != nil {
		return Report{}, err
	}
	if o.Copy {
		if err := p.copyLibraries(lib); err != nil {
			return Report{}, err
		}
	}
	for i := range hooks {
		if err := hooks[i].replace(link); err != nil {
			return Report{}, fmt.Errorf("%w; what was done can be undone with --undo", err)
		}
	}
	if !o.Copy {
		if err := p.removeCopies(); err != nil {
			return Report{}, err
		}
	}
	if err := syncFolder(p.Dir); err != nil {
		return Report{}, err
	}
	return p.report(true)
}

// Undo puts back what Adopt replaced, and removes what it made. Nothing happens when there is
// nothing to undo.
func (p *Package) Undo() (Report, error) {
	unlock, err := p.lock()
	if err != nil {
		return Report{}, err
	}
	defer unlock()

	m, err := readManifest(p.Dir)
	if err != nil {
		return Report{}, err
	}
	names, err := p.touched(m)
	if err != nil {
		return Report{}, err
	}
	if m == nil && len(names) == 0 {
		return p.report(false)
	}
	if err := p.writable(); err != nil {
		return Report{}, err
	}
	var lost []string
	for _, name := range names {
		h, err := p.hook(name, m)
		if err != nil {
			return Report{}, err
		}
		why, err := h.restore(m)
		if err != nil {
			return Report{}, err
		}
		if why != "" {
			lost = append(lost, name+": "+why)
		}
	}
	if len(lost) > 0 {
		return Report{}, refusef("%s could not be put back (%s); reinstall the package: %s -m pip install --force-reinstall --no-deps torch-memory-saver%s",
			plural(len(lost), "file"), strings.Join(lost, "; "), p.Python, pinned(m, p.Version))
	}
	if err := p.removeCopies(); err != nil {
		return Report{}, err
	}
	for _, name := range []string{manifestName + newSuffix, manifestName} {
		if err := removeIfThere(filepath.Join(p.Dir, name)); err != nil {
			return Report{}, err
		}
	}
	if err := syncFolder(p.Dir); err != nil {
		return Report{}, err
	}
	r, err := p.report(true)
	if r.PackageVersion == "" && m != nil {
		r.PackageVersion = m.PackageVersion // the package is gone: what was undone was this version's
	}
	return r, err
}

func pinned(m *manifest, version string) string {
	if m != nil && m.PackageVersion != "" {
		version = m.PackageVersion
	}
	if version == "" {
		return ""
	}
	return "==" + version
}

// inspect finds the hook libraries and the manifest.
func (p *Package) inspect() ([]hook, *manifest, error) {
	names, err := p.hookNames()
	if err != nil {
		return nil, nil, err
	}
	m, err := readManifest(p.Dir)
	if err != nil {
		return nil, nil, err
	}
	var hooks []hook
	for _, name := range names {
		h, err := p.hook(name, m)
		if err != nil {
			return nil, nil, err
		}
		hooks = append(hooks, h)
	}
	return hooks, m, nil
}

// adoptable refuses what cannot be adopted, before anything is changed.
func (p *Package) adoptable(hooks []hook, lib Library) error {
	if err := p.ownsAll(hooks); err != nil {
		return err
	}
	if err := p.writable(); err != nil {
		return err
	}
	have, err := readExports(lib.Path)
	if err != nil {
		return fmt.Errorf("reading %s: %w", lib.Path, err)
	}
	for _, h := range hooks {
		original := h.path
		if h.ours {
			original += originalSuffix
		}
		need, err := readExports(original)
		if h.ours && errors.Is(err, fs.ErrNotExist) {
			continue // nothing to compare with; Undo says so when it is asked
		}
		if err != nil {
			return refusef("%s is not a library that can be read: %w; reinstall the package", original, err)
		}
		if need.machine != have.machine {
			return refusef("%s is for %v, libebb.so for %v", original, need.machine, have.machine)
		}
		if missing := need.without(have); len(missing) > 0 {
			return refusef("torch_memory_saver %s is not one that ebb can stand in for: its %s offers %s, which libebb.so has not",
				orUnknown(p.Version), h.name, strings.Join(missing, ", "))
		}
	}
	return nil
}

// writable refuses a folder in which files cannot be replaced.
func (p *Package) writable() error {
	if err := unix.Access(p.Dir, unix.W_OK|unix.X_OK); err != nil {
		return refusef("%s cannot be written: %w; run ebb adopt as the owner of that folder, or use a virtual environment of your own", p.Dir, err)
	}
	return nil
}

// linkTo is what the links say. Within one tree (a virtual environment with ebb in it) they are
// relative, so that they hold when it is moved; to a library elsewhere they are absolute, so that
// they hold when the package's tree is moved.
func (p *Package) linkTo(lib Library, o Options) (string, error) {
	if o.Copy {
		return filepath.Join(copyFolder, libraryName), nil
	}
	folder, err := filepath.EvalSymlinks(p.Dir)
	if err != nil {
		return "", fmt.Errorf("resolving %s: %w", p.Dir, err)
	}
	if prefix, err := filepath.EvalSymlinks(p.Prefix); err == nil && p.Prefix != "" {
		place, err := filepath.EvalSymlinks(filepath.Dir(lib.Path))
		if err == nil && within(prefix, folder) && within(prefix, place) {
			return filepath.Rel(folder, filepath.Join(place, libraryName))
		}
	}
	return lib.Path, nil
}

func within(tree, path string) bool {
	rel, err := filepath.Rel(tree, path)
	return err == nil && rel != ".." && !strings.HasPrefix(rel, "../") && tree != "/"
}

func allLead(hooks []hook, link string) bool {
	for _, h := range hooks {
		if !h.ours || h.link != link || !h.kept {
			return false
		}
	}
	return true
}

// lock keeps two adoptions of one package apart. A file system without locks is no reason to
// refuse: files are replaced one by one in any case.
func (p *Package) lock() (func(), error) {
	if p.gone() {
		return func() {}, nil // nothing to lock; its remains are to be removed
	}
	// Some network file systems lock only what is open for writing.
	f, err := os.OpenFile(p.Origin, os.O_RDWR, 0)
	if err != nil {
		f, err = os.Open(p.Origin)
	}
	if err != nil {
		return nil, fmt.Errorf("locking the package: %w", err)
	}
	for {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
		if err != unix.EINTR {
			break
		}
	}
	return func() { _ = f.Close() }, nil // closing unlocks; nothing was written
}

// copyLibraries puts libebb.so and its engine into the folder beside the package. Each file is
// replaced by a rename, so that processes which use the old one go on.
func (p *Package) copyLibraries(lib Library) error {
	folder := filepath.Join(p.Dir, copyFolder)
	if err := os.Mkdir(folder, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("making the folder for ebb's libraries: %w", err)
	}
	for name, from := range map[string]string{engineName: lib.Engine, libraryName: lib.Path} {
		if err := copyFile(from, filepath.Join(folder, name), 0o755); err != nil {
			return err
		}
	}
	return syncFolder(folder)
}

// copied reports whether the folder beside the package holds these libraries.
func (p *Package) copied(lib Library) bool {
	for name, from := range map[string]string{engineName: lib.Engine, libraryName: lib.Path} {
		a, errA := hashOf(from)
		b, errB := hashOf(filepath.Join(p.Dir, copyFolder, name))
		if errA != nil || errB != nil || a != b {
			return false
		}
	}
	return true
}

// removeCopies removes the files that copyLibraries makes and their folder, if there is one.
func (p *Package) removeCopies() error {
	folder := filepath.Join(p.Dir, copyFolder)
	for _, name := range []string{libraryName, engineName, libraryName + newSuffix, engineName + newSuffix} {
		if err := removeIfThere(filepath.Join(folder, name)); err != nil {
			return err
		}
	}
	if err := removeIfThere(folder); err != nil {
		return fmt.Errorf("%w (it holds files that ebb did not make)", err)
	}
	return nil
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func orUnknown(version string) string {
	if version == "" {
		return "of unknown version"
	}
	return version
}

// says reports whether the manifest tells the same as another, but for the time.
func (m *manifest) says(other *manifest) bool {
	if m == nil {
		return false
	}
	then := *m
	then.AdoptedAt = other.AdoptedAt
	a, errA := then.encode()
	b, errB := other.encode()
	return errA == nil && errB == nil && bytes.Equal(a, b)
}
