package engine

import (
	"bytes"
	"encoding/json"
	"fmt"
	"path/filepath"
	"regexp"

	"golang.org/x/sys/unix"

	"github.com/ebb-offload/ebb/internal/filesys"
	"github.com/ebb-offload/ebb/internal/fingerprint"
	"github.com/ebb-offload/ebb/internal/hostmem"
	"github.com/ebb-offload/ebb/internal/pipeline"
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

func hexSum(s fingerprint.Sum) string { return fmt.Sprintf("%016x%016x", s[0], s[1]) }

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
