package engine

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ebb-offload/ebb/internal/alloc"
	"github.com/ebb-offload/ebb/internal/filesys"
	"github.com/ebb-offload/ebb/internal/fingerprint"
	"github.com/ebb-offload/ebb/internal/pipeline"
	"github.com/ebb-offload/ebb/internal/rankdir"
	"github.com/ebb-offload/ebb/internal/sizes"
	"github.com/ebb-offload/ebb/internal/staging"
	"github.com/ebb-offload/ebb/internal/store"
)

// Streamed state: flat arrays, the segments, that live in files and pass through the device part by part.
// Each segment is a backing of a store of their own, with its block map and its fingerprints. Requests
// (state_request.go) are carried out beside the caller, by two pools of workers: one loads, the other stores, so
// that one bucket is read while another is updated and a third written. Each pool has half of the chunk
// (state_lane.go). No lock is held over a transfer but a lane's own.
//
// A pause has nothing to do with it: it moves no byte of a state, and waits for no request but those that read to or
// write from memory that it takes.

// stateFiles is the number of the first file of a streamed state: those of backups in the same directory
// count from 0.
const stateFiles = 1 << 32

// DefaultStateChunk is the staging memory of streamed state where the configuration names none.
const DefaultStateChunk = 256 << 20

// states are the streamed states of the process.
type states struct {
	store *store.Store
	block uint64   // of the store, and the largest transfer
	lanes [2]*lane // by pipeline.Direction

	resting sync.RWMutex // held for reading over what a request does after its end, and for writing over a close's

	mu      sync.Mutex // guards the fields below and those of states and requests named there; held over no I/O
	dirs    []string   // of the states made from now on
	open    map[uint64]*State
	last    uint64 // number that was given to a state or request
	pending []*stateRequest
	zeros   map[uint64]fingerprint.Sum // of blocks of zeros, by length

	unwritten map[*alloc.Allocation][]part // whose write from there failed, in memory without backup
}

// State is one named set of segments.
type State struct {
	id       uint64
	name     string
	device   int // that lends its context to transfers that use no device
	segments []*segment
	bytes    uint64
	dirs     []string // in which it was made

	// Guarded by states.mu.
	closed  bool
	tickets map[uint64]*stateRequest // that nobody waited for
	read    traffic
	written traffic
	errors  uint64
}

// segment is one array of a state.
type segment struct {
	of      *State
	number  int
	size    uint64
	backing store.Backing
}

func (s *segment) String() string {
	return fmt.Sprintf("segment %d of the state %q", s.number, s.of.name)
}

// traffic is what went one way.
type traffic struct {
	bytes uint64  // of files
	last  float64 // 1e9 bytes a second of the latest request, logical ones
}

// StateCorruptError says that a block of a state does not hold the bytes that were written.
type StateCorruptError struct {
	State         string
	Segment       int
	Offset, Bytes uint64
	Where         string // "file /x/ebb-….bak (offset 4096)"
}

func (e *StateCorruptError) Error() string {
	return fmt.Sprintf("%v: the %d bytes at offset %d of segment %d of the state %q came back from %s as others than were written: load the state's last checkpoint, and look at the disk",
		ErrCorrupt, e.Bytes, e.Offset, e.Segment, e.State, e.Where)
}

// Unwrap makes errors.Is(err, ErrCorrupt) true.
func (e *StateCorruptError) Unwrap() error { return ErrCorrupt }

// makeStates makes the store of streamed state, and lanes without workers yet.
func (e *Engine) makeStates(self rankdir.Owner) error {
	chunk := e.config.StateChunk
	if chunk == 0 {
		chunk = DefaultStateChunk
	}
	block, blocks, workers := staging.Layout(chunk/2, maxWorkers, staging.DefaultMaxBlock)
	if blocks == 0 {
		return fmt.Errorf("%w: a chunk of %d bytes for streamed state is too small, at least %d are needed", ErrInvalid, chunk, uint64(2*staging.MinChunk))
	}
	s := &e.states
	s.block, s.open, s.zeros = block, map[uint64]*State{}, map[uint64]fingerprint.Sum{}
	s.unwritten = map[*alloc.Allocation][]part{}
	for d := range s.lanes {
		s.lanes[d] = &lane{engine: e, direction: pipeline.Direction(d), chunk: chunk / 2, workers: workers}
	}
	name := fileNames(self)
	s.store = store.New(store.Options{
		BlockBytes: block, Name: func(seq uint64) string { return name(stateFiles + seq) }, Dirs: e.stateDirs,
		NoFollowDir: e.config.Lease != "" || len(e.config.StateLeases) > 0, Discard: e.config.Discard, System: e.sys,
		Take: e.takeRoom, Taken: e.tookRoom, Give: e.giveRoom, Timeout: e.config.IOTimeout,
		Warn: func(line string) { e.log.Print(line) },
	})
	return nil
}

func (e *Engine) stateDirs() []string {
	e.states.mu.Lock()
	defer e.states.mu.Unlock()
	return e.states.dirs
}

// chooseStateDirs says where the states made from now on lie: in the directories of the configuration, else
// in those of disk backups, of which the process's setting is diskDir.
func (e *Engine) chooseStateDirs(diskDir string) []string {
	switch all := e.config.DiskDirs; {
	case len(e.config.StateDirs) > 0:
		return e.config.StateDirs
	case len(all) > 0 && all[0] == diskDir:
		return all
	}
	return []string{diskDir}
}

const maxStateName = 255 // bytes

// CreateState makes a state of zeros. It takes all its room, or none. device is the one that the caller works
// on, where that is known, else negative; diskDir is the setting of disk backups.
func (e *Engine) CreateState(name string, segments []uint64, device int, diskDir string) (id uint64, err error) {
	if name == "" || len(name) > maxStateName || strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == 0x7f || r == 0xfffd }) {
		return 0, fmt.Errorf("%w: the name of a state has 1 to %d bytes, all printable: %q", ErrInvalid, maxStateName, name)
	}
	if len(segments) == 0 {
		return 0, fmt.Errorf("%w: the state %q has no segment", ErrInvalid, name)
	}
	if device < 0 {
		device = e.anyDevice()
	}
	s := &e.states
	st := &State{name: name, device: device, tickets: map[uint64]*stateRequest{}}
	s.mu.Lock()
	s.dirs = e.chooseStateDirs(diskDir)
	st.dirs = s.dirs
	first := s.last + 1
	s.last += uint64(len(segments)) + 1
	st.id = s.last
	s.mu.Unlock()
	s.store.Retry()
	defer e.restStates()
	defer func() {
		if err != nil {
			err = filesys.Also(err, st.release())
		}
	}()
	if err := s.roomForMany(segments); err != nil {
		return 0, fmt.Errorf("room for the state %q: %w", name, err)
	}
	for i, size := range segments {
		b, err := s.store.Open(first+uint64(i), size)
		if err != nil {
			if !errors.Is(err, store.ErrClosed) {
				err = fmt.Errorf("%w: %w", ErrInvalid, err)
			}
			return 0, fmt.Errorf("segment %d of the state %q: %w", i, name, err)
		}
		st.segments = append(st.segments, &segment{of: st, number: i, size: size, backing: b})
		st.bytes += size
	}
	err = e.onFiles(len(segments), func(i int) error { return e.reserveSegment(st.segments[i]) })
	if errors.Is(err, store.ErrNoSpace) && len(segments) > 1 {
		err = fmt.Errorf("it takes %s in all: %w", sizes.Binary(st.bytes), err)
	}
	if err != nil {
		return 0, fmt.Errorf("room for the state %q: %w", name, err)
	}
	s.mu.Lock()
	s.open[st.id] = st
	s.mu.Unlock()
	e.log.Printf("streamed state %q: %d segments, %s, in %s", name, len(segments), sizes.Binary(st.bytes), strings.Join(s.dirsOf(st), ", "))
	return st.id, nil
}

// manyBlocks are so many that the maps of a state's blocks take noticeable host memory.
const manyBlocks = 1 << 22

// roomForMany is an error where a state has many blocks and the directories have no room for them. The
// maps are made before the files: those of a size that somebody got wrong by some zeros would
// take more host memory than there is, and Go ends the process then.
func (s *states) roomForMany(segments []uint64) error {
	var all uint64
	for _, size := range segments {
		if all += min(size, math.MaxUint64-all); size > math.MaxInt64 {
			return nil // refused by its size
		}
	}
	if all/s.block < manyBlocks {
		return nil
	}
	return s.store.Room(all)
}

// reserveSegment takes the room of a segment that has none, all zero.
func (e *Engine) reserveSegment(s *segment) error {
	if err := s.backing.Reserve(); err != nil {
		return fmt.Errorf("segment %d: %w", s.number, err)
	}
	for off := uint64(0); off < s.size; off += e.states.block {
		s.backing.Mark(off, e.zeroBlock(min(e.states.block, s.size-off)))
	}
	return nil
}

// zeroBlock is the entry of a block of so many zeros.
func (e *Engine) zeroBlock(length uint64) store.Block {
	s := &e.states
	s.mu.Lock()
	sum, known := s.zeros[length]
	s.mu.Unlock()
	if !known {
		sum, _ = e.drv.HostFingerprint(e.hash.key, make([]byte, length))
		s.mu.Lock()
		s.zeros[length] = sum
		s.mu.Unlock()
	}
	return store.Block{State: store.Zero, Sum: sum, Known: true}
}

// release gives up the files of a state.
func (st *State) release() (err error) {
	for _, s := range st.segments {
		err = filesys.Also(err, s.backing.Release())
	}
	return err
}

// dirsOf are the directories in which a state has files, each once.
func (s *states) dirsOf(st *State) (dirs []string) {
	for _, seg := range st.segments {
		seg.backing.Places(func(_ uint64, _ store.Block, dir, _ string, _ int64) {
			if !slices.Contains(dirs, dir) {
				dirs = append(dirs, dir)
			}
		})
	}
	return dirs
}

// state is an open state.
func (s *states) state(id uint64) (*State, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.find(id)
}

// find is state with mu held.
func (s *states) find(id uint64) (*State, error) {
	if st := s.open[id]; st != nil && !st.closed {
		return st, nil
	}
	return nil, fmt.Errorf("%w: there is no state %d: it was closed, or never made", ErrInvalid, id)
}

// StateBlock is the unit of offsets in a state; 0: there is none of that number.
func (e *Engine) StateBlock(id uint64) uint64 {
	if _, err := e.states.state(id); err != nil {
		return 0
	}
	return e.states.block
}

// CloseState waits for the requests of a state and gives up its files. What could not be removed is tried again
// when the process ends.
func (e *Engine) CloseState(id uint64) error {
	s := &e.states
	s.mu.Lock()
	st, err := s.find(id)
	if err != nil {
		s.mu.Unlock()
		return err
	}
	st.closed = true // no request is made any more
	last := s.of(st)
	s.mu.Unlock()
	for _, r := range last {
		<-r.done
	}
	s.store.Retry()
	err = st.release()
	s.mu.Lock()
	delete(s.open, id)
	e.letGoOfParts(func(p part) bool { return p.of == st })
	none := len(s.open) == 0
	s.mu.Unlock()
	if none {
		err = errors.Join(err, e.closeLanes())
	}
	s.resting.Lock()
	defer s.resting.Unlock()
	e.restStates()
	if err != nil {
		return fmt.Errorf("give up the state %q: %w", st.name, err)
	}
	return nil
}

// of lists the requests of a state under way. Called with mu held.
func (s *states) of(st *State) (list []*stateRequest) {
	for _, r := range s.pending {
		if r.state == st {
			list = append(list, r)
		}
	}
	return list
}

// restStates gives up what the store keeps open while requests are under way, and counts what was written.
func (e *Engine) restStates() {
	e.states.store.Rest()
	e.countWritten()
}

// StateStatus is what ebb_status says of one state.
type StateStatus struct {
	Name     string    `json:"name"`
	Segments int       `json:"segments"`
	Bytes    uint64    `json:"bytes"`
	Files    int       `json:"files"`
	Dirs     []string  `json:"dirs"`
	Read     uint64    `json:"read_bytes"`    // from files, so far
	Written  uint64    `json:"written_bytes"` // to files, so far
	InFlight int       `json:"in_flight"`     // requests
	Last     StateRate `json:"last"`
	Errors   uint64    `json:"errors"` // requests that failed
}

// StateRate is how fast the latest requests went, in 1e9 bytes a second of the segments.
type StateRate struct {
	Read  float64 `json:"read_gb_per_s"`
	Write float64 `json:"write_gb_per_s"`
}

// stateStatus lists the states, the oldest first, and the staging memory of their lanes.
func (e *Engine) stateStatus() (list []StateStatus, stagingBytes uint64) {
	s := &e.states
	list = []StateStatus{}
	s.mu.Lock()
	var open []*State
	for _, st := range s.open {
		open = append(open, st)
	}
	slices.SortFunc(open, func(a, b *State) int { return cmp.Compare(a.id, b.id) })
	for _, st := range open {
		list = append(list, StateStatus{
			Name: st.name, Segments: len(st.segments), Bytes: st.bytes, Read: st.read.bytes, Written: st.written.bytes,
			InFlight: len(s.of(st)), Last: StateRate{Read: st.read.last, Write: st.written.last}, Errors: st.errors,
		})
	}
	for _, l := range s.lanes {
		stagingBytes += l.bytes
	}
	s.mu.Unlock()
	for i, st := range open {
		files := map[string]bool{}
		list[i].Dirs = []string{}
		for _, seg := range st.segments {
			seg.backing.Places(func(_ uint64, _ store.Block, dir, file string, _ int64) {
				if !files[dir+"/"+file] {
					files[dir+"/"+file] = true
				}
				if !slices.Contains(list[i].Dirs, dir) {
					list[i].Dirs = append(list[i].Dirs, dir)
				}
			})
		}
		list[i].Files = len(files)
	}
	return list, stagingBytes
}

// rate is 1e9 bytes a second.
func rate(bytes uint64, d time.Duration) float64 {
	return float64(bytes) / 1e9 / max(d.Seconds(), 1e-9)
}
