package engine

import (
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/ebb-offload/ebb/internal/filesys"
	"github.com/ebb-offload/ebb/internal/fingerprint"
	"github.com/ebb-offload/ebb/internal/hostmem"
	"github.com/ebb-offload/ebb/internal/pipeline"
	"github.com/ebb-offload/ebb/internal/store"
)

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
