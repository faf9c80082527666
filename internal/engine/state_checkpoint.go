package engine

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ebb-offload/ebb/internal/filesys"
	"github.com/ebb-offload/ebb/internal/fingerprint"
	"github.com/ebb-offload/ebb/internal/hostmem"
	"github.com/ebb-offload/ebb/internal/pipeline"
	"github.com/ebb-offload/ebb/internal/rankdir"
	"github.com/ebb-offload/ebb/internal/store"
)

// A checkpoint is a directory: manifest.json, a plain file for each segment, and the fingerprints of their blocks.
// It is made beside its place, under a name that tells who makes it, and exchanged for what is there when
// all of it is on the device. docs/streaming.md has the format.

const (
	checkpointFormat  = "ebb-state-checkpoint"
	checkpointVersion = 1
	manifestFile      = "manifest.json"
	sumsFile          = "fingerprints.bin"
	maxManifest       = 64 << 20 // bytes
	sumBytes          = 16       // of a fingerprint in sumsFile: two numbers, little-endian
)

// ofCheckpoint are the names in a checkpoint. No other file is ever removed.
var ofCheckpoint = regexp.MustCompile(`^(manifest\.json|fingerprints\.bin|segment-[0-9]{6,}\.bin)$`)

// manifest is manifest.json.
type manifest struct {
	Format       string            `json:"format"`
	Version      int               `json:"version"`
	Name         string            `json:"name"` // of the state, for people
	BlockBytes   uint64            `json:"block_bytes"`
	Segments     []manifestSegment `json:"segments"`
	Fingerprints manifestSums      `json:"fingerprints"`
	Extra        json.RawMessage   `json:"extra,omitempty"` // the caller's
}

type manifestSegment struct {
	File  string `json:"file"`
	Bytes uint64 `json:"bytes"`
}

// manifestSums say where the fingerprints of the blocks are, segment after segment, and with which key they
// were made. Sum is that of the file itself.
type manifestSums struct {
	File string `json:"file"`
	Key  string `json:"key"`
	Sum  string `json:"sum"`
}

// SaveState writes a checkpoint of a state to dir. extra is one JSON value, or empty.
func (e *Engine) SaveState(id uint64, dir string, extra []byte) error {
	if len(extra) > 0 && !json.Valid(extra) {
		return fmt.Errorf("%w: what is to be kept with the checkpoint %s is not JSON", ErrInvalid, dir)
	}
	return e.checkpointRequest(id, pipeline.Load, dir, func(r *stateRequest, dir string) {
		r.instead = func(l *lane) error { return e.saveState(l, r.state, dir, extra) }
	})
}

// checkpointRequest carries out a request for all segments of a state.
func (e *Engine) checkpointRequest(id uint64, d pipeline.Direction, dir string, complete func(r *stateRequest, dir string)) error {
	st, err := e.states.state(id)
	if err != nil {
		return err
	}
	if dir == "" {
		return fmt.Errorf("%w: the checkpoint's directory has no name", ErrInvalid)
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	r := &stateRequest{state: st, direction: d, device: st.device, outside: true}
	for _, s := range st.segments {
		if err := r.add(e.states.block, StateIO{Segment: uint32(s.number), Bytes: s.size}); err != nil {
			return err
		}
	}
	complete(r, dir)
	if err := e.await(r); err != nil {
		return fmt.Errorf("checkpoint %s of the state %q: %w", dir, st.name, err)
	}
	return nil
}

// checkpoint is a directory in which a checkpoint is made, or is.
type checkpoint struct {
	sys    filesys.System
	path   string
	parent int // descriptors
	dir    int
	name   string // in the parent
}

func (c *checkpoint) failed(doing, path string, err error) error {
	return fmt.Errorf("%w: %s %s: %w", store.ErrIO, doing, path, err)
}

// openDir opens a directory so that it can be brought to the device.
func openDir(sys filesys.System, parent int, name string) (fd int, err error) {
	err = filesys.Retry(func() error {
		fd, err = sys.Openat(parent, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
		return err
	})
	return fd, err
}

func (c *checkpoint) close() {
	for _, fd := range []int{c.dir, c.parent} {
		if fd >= 0 {
			_ = c.sys.Close(fd)
		}
	}
	c.dir, c.parent = -1, -1
}

// saveState writes a checkpoint. The lane is the caller's; nothing writes to the state meanwhile.
func (e *Engine) saveState(l *lane, st *State, dir string, extra []byte) error {
	for _, s := range st.segments {
		for off := uint64(0); off < s.size; off += e.states.block {
			if s.backing.Block(off).State == store.Absent {
				return fmt.Errorf("%v has no content at offset %d, since a write failed: repeat it first: %w", s, off, store.ErrAbsent)
			}
		}
	}
	if err := e.noRenameHangs(); err != nil {
		return err
	}
	sys := e.states.store.System()
	c := &checkpoint{sys: sys, parent: -1, dir: -1}
	defer c.close()
	parent, base := filepath.Split(dir)
	if base == "" || base == "." || base == ".." {
		return fmt.Errorf("%w: %s cannot be a checkpoint", ErrInvalid, dir)
	}
	var err error
	if c.parent, err = openDir(sys, unix.AT_FDCWD, parent); err != nil {
		return c.failed("open", parent, err)
	}
	older, err := c.look(base, dir)
	if err != nil {
		return err
	}
	c.removeLeft(base, "", e.log.Printf)
	l.unfinished = c.removeOf(l.unfinished, parent, base, e.log.Printf)
	e.states.mu.Lock()
	e.states.last++
	c.name = fmt.Sprintf("%s.tmp-%s%d", base, e.self.FilePrefix(), e.states.last)
	e.states.mu.Unlock()
	c.path = filepath.Join(parent, c.name)
	if err := filesys.Retry(func() error { return sys.Mkdir(c.path, 0, 0o700) }); err != nil {
		if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
			return fmt.Errorf("%w: make %s: %w", store.ErrNoSpace, c.path, err)
		}
		if errors.Is(err, filesys.ErrHang) { // it may come to be
			l.unfinished = append(l.unfinished, c.path)
		}
		return c.failed("make", c.path, err)
	}
	undo := func(err error) error {
		left := c.remove(c.name)
		if left != nil { // the next save tries again
			l.unfinished = append(l.unfinished, c.path)
		}
		return filesys.Also(err, left)
	}
	if err := e.fill(l, c, st, extra); err != nil {
		return undo(err)
	}
	if beside, err := c.put(base, older); err != nil {
		if len(beside) == 0 {
			return undo(err)
		}
		l.left = append(l.left, beside...)
		return fmt.Errorf("%w: nothing was removed: of %s and %s each that is there is a whole checkpoint", err, dir, strings.Join(beside, " and "))
	}
	c.removeLeft(base, asideSuffix, e.log.Printf)
	if older {
		l.left = append(l.left, c.path)
	}
	l.left = c.removeOf(l.left, parent, base, e.log.Printf)
	return nil
}

// removeOf removes what this process left beside a checkpoint's place, of a list of paths, and returns the others, with
// what cannot be removed: the next save tries again.
func (c *checkpoint) removeOf(paths []string, parent, base string, say func(string, ...any)) []string {
	return slices.DeleteFunc(paths, func(path string) bool {
		name := filepath.Base(path)
		if filepath.Dir(path) != filepath.Clean(parent) || !strings.HasPrefix(name, base+".tmp-") {
			return false // of another checkpoint
		}
		err := c.remove(name)
		if err != nil {
			say("a checkpoint that an earlier save left beside %s is still there: %v", filepath.Join(parent, base), err)
		}
		return err == nil
	})
}

// noRenameHangs refuses a save while an earlier one's checkpoint may still be given its place.
func (e *Engine) noRenameHangs() error {
	for _, h := range e.states.store.Deadline().Hung() {
		if h.Call == "exchange" || h.Call == "renaming" {
			return fmt.Errorf("%w: the %s of %s hangs since %v, and no checkpoint is written until it returns: try again when the disk answers",
				filesys.ErrHang, h.Call, h.Path, time.Since(h.Since).Round(time.Second))
		}
	}
	return nil
}

// look says whether a checkpoint is there, or something that must not be replaced. An empty directory may be.
func (c *checkpoint) look(base, path string) (older bool, err error) {
	fd, err := openDir(c.sys, c.parent, base)
	switch {
	case errors.Is(err, unix.ENOENT):
		return false, nil
	case errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP):
		return false, fmt.Errorf("%w: %s is there and is not a directory: choose another one", ErrInvalid, path)
	case err != nil:
		return false, c.failed("open", path, err)
	}
	defer func() { _ = c.sys.Close(fd) }()
	names, err := c.sys.Names(fd)
	if err != nil {
		return false, c.failed("list", path, err)
	}
	foreign := slices.IndexFunc(names, func(name string) bool { return !ofCheckpoint.MatchString(name) })
	switch {
	case foreign >= 0:
		return false, fmt.Errorf("%w: %s is there and holds %s, which is of no checkpoint: choose another directory", ErrInvalid, path, names[foreign])
	case len(names) > 0 && !slices.Contains(names, manifestFile):
		return false, fmt.Errorf("%w: %s is there and has no %s: choose another directory", ErrInvalid, path, manifestFile)
	case len(names) > 0:
		return true, (&checkpoint{sys: c.sys, path: path, parent: -1, dir: fd}).isOurs()
	}
	return true, nil
}

// isOurs refuses a directory whose manifest is somebody else's.
func (c *checkpoint) isOurs() error {
	text, err := c.read(manifestFile, maxManifest)
	if err != nil {
		return err
	}
	var m struct {
		Format string `json:"format"`
	}
	if err := json.Unmarshal(text, &m); err != nil { // of somebody else, or of a disk that spoiled it
		return fmt.Errorf("%w: %s is there, and its %s is no JSON (%w): choose another directory, or look at the disk", ErrInvalid, c.path, manifestFile, err)
	}
	if m.Format != checkpointFormat {
		return fmt.Errorf("%w: %s is there, and its %s is of no checkpoint (format %q, not %q): choose another directory, or remove it", ErrInvalid, c.path, manifestFile, m.Format, checkpointFormat)
	}
	return nil
}

// removeLeft removes what processes that are gone left of checkpoints, of which the names end with suffix. What one set
// aside may be the last whole checkpoint: it goes when there is another one. What cannot be removed is told.
func (c *checkpoint) removeLeft(base, suffix string, say func(string, ...any)) {
	names, err := c.sys.Names(c.parent)
	if err != nil {
		return // the checkpoint can be made all the same
	}
	for _, name := range names {
		who, found := strings.CutPrefix(name, base+".tmp-")
		who, ends := strings.CutSuffix(who, suffix)
		if owner, _, ok := rankdir.ParseDataFile(who + ".bak"); found && ends && ok && rankdir.Dead(owner, false) {
			if err := c.remove(name); err != nil {
				say("an unfinished checkpoint of process %d, which is gone, is still there: %v", owner.PID, err)
			}
		}
	}
}

// remove removes a checkpoint by its name in the parent: the files of a checkpoint, then the directory.
func (c *checkpoint) remove(name string) error {
	fd, err := openDir(c.sys, c.parent, name)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return c.failed("open", name, err)
	}
	defer func() { _ = c.sys.Close(fd) }()
	names, err := c.sys.Names(fd)
	if err != nil {
		return c.failed("list", name, err)
	}
	for _, file := range names {
		if !ofCheckpoint.MatchString(file) {
			continue // the directory stays
		}
		if err := filesys.Retry(func() error { return c.sys.Unlinkat(fd, file) }); err != nil && !errors.Is(err, unix.ENOENT) {
			return c.failed("remove", filepath.Join(name, file), err)
		}
	}
	if err := filesys.Retry(func() error { return c.sys.Rmdirat(c.parent, name) }); err != nil {
		return c.failed("remove", name, err)
	}
	return nil
}

// put gives a finished checkpoint its place. Afterwards c.path is the older one, if there is one. After an error
// beside are the paths of checkpoints that must stay, since it is not certain which one is at the place; none: the
// older one is, and c.name may be removed.
func (c *checkpoint) put(base string, older bool) (beside []string, err error) {
	if !older {
		if err := c.sys.Renameat(c.parent, c.name, base); err != nil {
			return c.unless(c.isAt(c.name, err), c.path), c.failed("rename to "+base, c.path, err)
		}
		return nil, c.settle(base)
	}
	err = c.sys.Exchange(c.parent, c.name, base)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EOPNOTSUPP) {
		return c.putAside(base)
	}
	if err != nil {
		return c.unless(c.isAt(c.name, err), c.path), c.failed("exchange with "+base, c.path, err)
	}
	err = c.settle(base)
	return c.unless(err == nil, c.path), err
}

// putAside is put for a file system that does not exchange names: for a moment there is none.
func (c *checkpoint) putAside(base string) (beside []string, err error) {
	mine, aside := c.path, c.name+asideSuffix
	all := []string{mine, mine + asideSuffix}
	if err := c.sys.Renameat(c.parent, base, aside); err != nil {
		return c.unless(c.missing(aside, err), all...), c.failed("rename to "+aside, base, err)
	}
	if err := c.sys.Renameat(c.parent, c.name, base); err != nil {
		undone := c.isAt(c.name, err)
		if undone {
			back := c.sys.Renameat(c.parent, aside, base)
			undone, err = back == nil, filesys.Also(err, back)
		}
		return c.unless(undone, all...), c.failed("rename to "+base, mine, err)
	}
	c.name, c.path = aside, mine+asideSuffix
	err = c.settle(base)
	return c.unless(err == nil, c.path), err
}

// unless is the paths, or none where all is well.
func (c *checkpoint) unless(well bool, paths ...string) []string {
	if well {
		return nil
	}
	return paths
}

// settle brings the names in the parent to the device. An error says that the checkpoint may not be in its place
// after a failure of power.
func (c *checkpoint) settle(base string) error {
	if err := filesys.Retry(func() error { return c.sys.Fsync(c.parent) }); err != nil {
		return c.failed("bring to the device the directory of", base, err)
	}
	return nil
}

// isAt reports whether, after a renaming that ended with err, the checkpoint certainly has the name. A call
// without an answer may still take place.
func (c *checkpoint) isAt(name string, err error) bool {
	var mine, there unix.Stat_t
	if errors.Is(err, filesys.ErrHang) {
		return false
	}
	err = filesys.Retry(func() error { return c.sys.Fstat(c.dir, &mine) })
	if err == nil {
		err = filesys.Retry(func() error { return c.sys.Fstatat(c.parent, name, &there) })
	}
	return err == nil && mine.Dev == there.Dev && mine.Ino == there.Ino
}

// missing reports whether, after a renaming that ended with err, there is certainly nothing of the name.
func (c *checkpoint) missing(name string, err error) bool {
	var there unix.Stat_t
	return !errors.Is(err, filesys.ErrHang) &&
		errors.Is(filesys.Retry(func() error { return c.sys.Fstatat(c.parent, name, &there) }), unix.ENOENT)
}

// asideSuffix is that of the older checkpoint's name where names cannot be exchanged.
const asideSuffix = "-old"

// fill writes all files of a checkpoint.
func (e *Engine) fill(l *lane, c *checkpoint, st *State, extra []byte) (err error) {
	if c.dir, err = openDir(c.sys, c.parent, c.name); err != nil {
		return c.failed("open", c.path, err)
	}
	m := manifest{Format: checkpointFormat, Version: checkpointVersion, Name: st.name, BlockBytes: e.states.block, Extra: extra}
	var sums []byte
	for _, s := range st.segments {
		file := fmt.Sprintf("segment-%06d.bin", s.number)
		if err := e.saveSegment(l, c, s, file); err != nil {
			return err
		}
		for off := uint64(0); off < s.size; off += e.states.block {
			sum := s.backing.Block(off).Sum
			sums = binary.LittleEndian.AppendUint64(sums, sum[0])
			sums = binary.LittleEndian.AppendUint64(sums, sum[1])
		}
		m.Segments = append(m.Segments, manifestSegment{File: file, Bytes: s.size})
	}
	if err := c.small(sumsFile, sums); err != nil {
		return err
	}
	all, _ := e.hash.key.Of(sums)
	m.Fingerprints = manifestSums{File: sumsFile, Key: hex.EncodeToString(e.hash.key.Bytes()), Sum: hexSum(all)}
	text, err := json.MarshalIndent(m, "", " ")
	if err != nil {
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if len(text) > maxManifest {
		return fmt.Errorf("%w: the manifest would have %d bytes, the limit is %d", ErrInvalid, len(text), maxManifest)
	}
	if err := c.small(manifestFile, append(text, '\n')); err != nil {
		return err
	}
	if err := filesys.Retry(func() error { return c.sys.Fsync(c.dir) }); err != nil {
		return c.failed("bring to the device", c.path, err)
	}
	return nil
}

func hexSum(s fingerprint.Sum) string { return fmt.Sprintf("%016x%016x", s[0], s[1]) }

// saveSegment writes the file of a segment: where the file system can, as one that shares its blocks with the
// segment's.
func (e *Engine) saveSegment(l *lane, c *checkpoint, s *segment, name string) error {
	f, err := store.CreateOutside(c.sys, c.dir, c.path, name)
	if err != nil {
		return err
	}
	defer f.Close()
	var stored []uint64 // offsets of blocks to be copied; others are zero
	share := true
	for off := uint64(0); off < s.size; off += e.states.block {
		if s.backing.Block(off).State != store.Stored {
			continue
		}
		if share {
			if share, err = f.Clone(off, s.backing, min(e.states.block, s.size-off)); err != nil {
				return err
			}
		}
		if !share {
			stored = append(stored, off)
		}
	}
	if len(stored) > 0 {
		if err := f.Take(s.size); err != nil {
			return err
		}
		moves := pipeline.Moves{Len: len(stored), At: func(i int) pipeline.Move {
			off := stored[i]
			return pipeline.Move{
				Of: s, Device: l.device, Offset: off, Length: min(e.states.block, s.size-off), Backing: s.backing,
				Bytes: func(p []byte) error { return f.Write(off, p) },
			}
		}}
		if _, err := l.pool.Run(pipeline.Load, pipeline.Work{Disk: moves}, l.pool.Default(e.states.block)); err != nil {
			return err
		}
	}
	return f.Finish(s.size)
}

// small writes a small file.
func (c *checkpoint) small(name string, text []byte) error {
	f, err := store.CreateOutside(c.sys, c.dir, c.path, name)
	if err != nil {
		return err
	}
	defer f.Close()
	p, free, err := hostmem.Pages(max(uint64(len(text)+4095)&^4095, 4096), -1)
	if err != nil {
		return err
	}
	copy(p, text)
	err = f.Write(0, p[:len(text)])
	filesys.Free(err, func() { _ = free() })
	if err != nil {
		return err
	}
	return f.Finish(uint64(len(text)))
}

// read reads a small file of a checkpoint.
func (c *checkpoint) read(name string, most uint64) ([]byte, error) {
	f, err := store.OpenOutside(c.sys, c.dir, c.path, name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	size, err := f.Size()
	if err != nil {
		return nil, err
	}
	if size > most {
		return nil, fmt.Errorf("%w: %s has %d bytes, more than %d", ErrCorrupt, f.Path(), size, most)
	}
	p, free, err := hostmem.Pages(max((size+4095)&^4095, 4096), -1)
	if err != nil {
		return nil, err
	}
	err = f.Read(0, p[:size])
	text := bytes.Clone(p[:size])
	filesys.Free(err, func() { _ = free() })
	return text, err
}

// LoadState fills a state from a checkpoint. Where that is of other segments nothing is changed.
func (e *Engine) LoadState(id uint64, dir string) error {
	return e.checkpointRequest(id, pipeline.Store, dir, func(r *stateRequest, dir string) {
		c := &loading{checkpoint: checkpoint{sys: e.states.store.System(), path: dir, parent: -1, dir: -1}, state: r.state, engine: e}
		r.before = c.open
		r.bytes = c.bytes
		r.afterwards = c.close
	})
}

// loading is a checkpoint that is being read.
type loading struct {
	checkpoint
	engine   *Engine
	state    *State
	manifest manifest
	key      *fingerprint.Key
	sums     [][]fingerprint.Sum // by segment and block
	files    []*store.Outside    // by segment, the first ones; of the others each is opened when it is read
}

// openFiles are so many files of a checkpoint that are open all the time, at most. A process may often have no more than
// a thousand, and a checkpoint of many segments is to be loaded all the same.
const openFiles = 32

func (c *loading) close() {
	for _, f := range c.files {
		f.Close()
	}
	c.checkpoint.close()
}

// open reads and checks all but the segments' bytes.
func (c *loading) open() error {
	var err error
	if c.dir, err = openDir(c.sys, unix.AT_FDCWD, c.path); err != nil {
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
			return fmt.Errorf("%w: there is no checkpoint: %w", ErrInvalid, err)
		}
		return c.failed("open", c.path, err)
	}
	text, err := c.read(manifestFile, maxManifest)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, &c.manifest); err != nil {
		return fmt.Errorf("%w: %s: %w", ErrCorrupt, filepath.Join(c.path, manifestFile), err)
	}
	if err := c.fits(); err != nil {
		return err
	}
	if err := c.readSums(); err != nil {
		return err
	}
	for i, s := range c.manifest.Segments {
		f, err := c.openSegment(i)
		if err != nil {
			return err
		}
		size, err := f.Size()
		if len(c.files) < openFiles {
			c.files = append(c.files, f)
		} else {
			f.Close()
		}
		if err != nil {
			return err
		}
		if size != s.Bytes {
			return fmt.Errorf("%w: %s has %d bytes, its manifest says %d", ErrCorrupt, f.Path(), size, s.Bytes)
		}
	}
	if c.manifest.BlockBytes > c.engine.states.block {
		if err := c.verify(); err != nil {
			return err
		}
	}
	return c.again()
}

// fits compares the manifest with the state.
func (c *loading) fits() error {
	m, st := &c.manifest, c.state
	switch {
	case m.Format != checkpointFormat:
		return fmt.Errorf("%w: %s is no manifest of a state: its format is %q, not %q", ErrInvalid, filepath.Join(c.path, manifestFile), m.Format, checkpointFormat)
	case m.Version != checkpointVersion:
		return fmt.Errorf("%w: it has version %d of the format, and this ebb reads version %d", ErrInvalid, m.Version, checkpointVersion)
	case m.BlockBytes < 4096 || m.BlockBytes&(m.BlockBytes-1) != 0 || m.BlockBytes > 1<<30:
		return fmt.Errorf("%w: its manifest has blocks of %d bytes", ErrCorrupt, m.BlockBytes)
	case len(m.Segments) != len(st.segments):
		return fmt.Errorf("%w: it is of a state %q with %d segments, and the state %q has %d", ErrInvalid, m.Name, len(m.Segments), st.name, len(st.segments))
	}
	for i, s := range m.Segments {
		if want := st.segments[i].size; s.Bytes != want {
			return fmt.Errorf("%w: its segment %d has %d bytes (state %q), and that of the state %q has %d", ErrInvalid, i, s.Bytes, m.Name, st.name, want)
		}
		if !ofCheckpoint.MatchString(s.File) {
			return fmt.Errorf("%w: its manifest names %q as the file of segment %d", ErrCorrupt, s.File, i)
		}
	}
	return nil
}

// readSums reads the fingerprints.
func (c *loading) readSums() error {
	m := &c.manifest
	wrong := func(what string) error {
		return fmt.Errorf("%w: %s in %s", ErrCorrupt, what, filepath.Join(c.path, sumsFile))
	}
	raw, err := hex.DecodeString(m.Fingerprints.Key)
	if err == nil {
		c.key, err = fingerprint.ParseKey(raw)
	}
	if err != nil {
		return fmt.Errorf("%w: the key in %s: %w", ErrCorrupt, filepath.Join(c.path, manifestFile), err)
	}
	var blocks uint64
	for _, s := range m.Segments {
		blocks += (s.Bytes + m.BlockBytes - 1) / m.BlockBytes
	}
	text, err := c.read(sumsFile, blocks*sumBytes)
	switch {
	case err != nil:
		return err
	case uint64(len(text)) != blocks*sumBytes:
		return wrong(fmt.Sprintf("%d fingerprints of %d", len(text)/sumBytes, blocks))
	}
	if sum, _ := c.key.Of(text); hexSum(sum) != m.Fingerprints.Sum {
		return wrong("other fingerprints than were saved")
	}
	for _, s := range m.Segments {
		var list []fingerprint.Sum
		for off := uint64(0); off < s.Bytes; off += m.BlockBytes {
			list = append(list, fingerprint.Sum{binary.LittleEndian.Uint64(text), binary.LittleEndian.Uint64(text[8:])})
			text = text[sumBytes:]
		}
		c.sums = append(c.sums, list)
	}
	return nil
}

// again takes the room of segments again whose files somebody has taken away.
func (c *loading) again() error {
	for _, s := range c.state.segments {
		if err := s.backing.Reserve(); err != nil {
			return fmt.Errorf("%v: %w", s, err)
		}
	}
	return nil
}

// openSegment opens the file of a segment.
func (c *loading) openSegment(i int) (*store.Outside, error) {
	return store.OpenOutside(c.sys, c.dir, c.path, c.manifest.Segments[i].File)
}

// readSegment fills p from a segment's file.
func (c *loading) readSegment(i int, off uint64, p []byte) error {
	if i < len(c.files) {
		return c.files[i].Read(off, p)
	}
	f, err := c.openSegment(i)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Read(off, p)
}

// bytes reads a block of a segment, of blocks of the checkpoint's that are no larger, and checks them. Larger
// ones were checked by verify.
func (c *loading) bytes(s *segment, off uint64, p []byte) error {
	if err := c.readSegment(s.number, off, p); err != nil {
		return err
	}
	if c.manifest.BlockBytes > c.engine.states.block {
		return nil
	}
	return c.compare(s.number, off, p)
}

// compare compares whole blocks of the checkpoint's with their fingerprints.
func (c *loading) compare(segment int, off uint64, p []byte) error {
	for len(p) > 0 {
		one := p[:min(uint64(len(p)), c.manifest.BlockBytes)]
		if sum, _ := c.engine.drv.HostFingerprint(c.key, one); sum != c.sums[segment][off/c.manifest.BlockBytes] {
			return fmt.Errorf("%w: the %d bytes at offset %d of %s are others than were saved: load another checkpoint", ErrCorrupt, len(one), off, filepath.Join(c.path, c.manifest.Segments[segment].File))
		}
		p, off = p[len(one):], off+uint64(len(one))
	}
	return nil
}

// verify reads and checks all of a checkpoint whose blocks are larger than the state's.
func (c *loading) verify() (err error) {
	block := c.manifest.BlockBytes
	p, free, err := hostmem.Pages(block, -1)
	if err != nil {
		return err
	}
	defer func() { filesys.Free(err, func() { _ = free() }) }()
	for i, s := range c.manifest.Segments {
		for off := uint64(0); off < s.Bytes; off += block {
			one := p[:min(block, s.Bytes-off)]
			if err := c.readSegment(i, off, one); err != nil {
				return err
			}
			if err := c.compare(i, off, one); err != nil {
				return err
			}
		}
	}
	return nil
}
