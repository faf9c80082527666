package engine

import (
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ebb-offload/ebb/internal/filesys"
	"github.com/ebb-offload/ebb/internal/hostmem"
	"github.com/ebb-offload/ebb/internal/pipeline"
	"github.com/ebb-offload/ebb/internal/rankdir"
	"github.com/ebb-offload/ebb/internal/store"
)

// SaveState writes a checkpoint of a state to dir. extra is one JSON value, or empty.
func (e *Engine) SaveState(id uint64, dir string, extra []byte) error {
	if len(extra) > 0 && !json.Valid(extra) {
		return fmt.Errorf("%w: what is to be kept with the checkpoint %s is not JSON", ErrInvalid, dir)
	}
	return e.checkpointRequest(id, pipeline.Load, dir, func(r *stateRequest, dir string) {
		r.instead = func(l *lane) error { return e.saveState(l, r.state, dir, extra) }
	})
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
