// Package engine orders everything else: it makes and frees managed memory, and carries out
// pause and resume. One engine serves one process.
//
// A pause reads: freeze → plan (decide.go) → run → commit → release (pause.go); a resume: claim →
// create → map → run → commit (resume.go).
//
// Locks, in the order in which they are taken:
//
//	Engine.op      one pause or resume at a time; held over device and disk I/O, and over a reset of a
//	               device (reset.go)
//	Engine.background  held for reading by goroutines that use a device beside operations, and over a
//	               reset
//	Table.Owner    one call of an owner on memory that it maps, at a time (vmm.go); held over
//	               driver calls, and by the table when a pause or resume begins
//	parked.mu      what the maps of parked memory say; held while they are written
//	hostMemory.mu  the arena and the budget of host memory
//	Engine.mu      what is learned while running; held while a device is asked the first time
//	lane.mu        one request of streamed state in a direction at a time; held over device and disk I/O
//	states.resting what requests of streamed state do after their end
//	states.mu      which states there are, and which requests
//	decided.mu     which blocks of a pause were decided about; workers wait for it with their queues' lock held
//	backings.mu    which backing holds which allocation
//	usages.mu      which table counts which directory
//	gate.mu        who waits for a safe point
//	remote.mu      what was asked for on the control socket
//	alloc.Table    its own lock
//	events.mu      the order of events; with the control server's own, last
//
// Malloc and Free never take op: a cudaMalloc or cudaFree of the actor arrives with its
// allocator's mutex held, and must not wait for a disk. (A free of memory that is itself being
// paused or resumed does wait, in the table, since its bytes are in use.)
package engine

import (
	"errors"
	"fmt"
	"log"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ebb-offload/ebb/internal/alloc"
	"github.com/ebb-offload/ebb/internal/control"
	"github.com/ebb-offload/ebb/internal/device"
	"github.com/ebb-offload/ebb/internal/device/cuda"
	"github.com/ebb-offload/ebb/internal/filesys"
	"github.com/ebb-offload/ebb/internal/fingerprint"
	"github.com/ebb-offload/ebb/internal/mem"
	"github.com/ebb-offload/ebb/internal/pipeline"
	"github.com/ebb-offload/ebb/internal/rankdir"
	"github.com/ebb-offload/ebb/internal/staging"
	"github.com/ebb-offload/ebb/internal/store"
)

// Limits of the engine's own footprint in the actor's process.
const (
	maxWorkers  = 16         // I/O workers; the staging layout and the probe may give fewer
	goProcs     = maxWorkers // Go threads that run at once, whatever the host's GOMAXPROCS says
	goHeapBytes = 64 << 20
)

// Config is what the engine takes when it starts.
type Config struct {
	LogFD      int    // descriptor >= 3, or -1: no log
	ChunkBytes uint64 // size of the pinned staging buffer
	Driver     string // driver library; "": libcuda.so.1
	Lease      string // lease file to hold; "": none
	Identity   string // "role=actor cell=0 rank=3"; prefix of log lines
	Discard    bool   // give the blocks of backup files back before the files are removed

	HostBytes  uint64        // host memory that disk backups take before files
	HostAuto   bool          // instead, the engine chooses, by what node and cgroup leave
	LocalRanks int           // processes that share the node's memory; 0: not known
	HostArena  bool          // CPU backups lie in host memory that is kept between pauses
	DiskDirs   []string      // all disk directories, of which the first is Settings.DiskDir; nil: only that one
	MoreLeases []string      // further lease files to hold
	DiskQuota  uint64        // bytes that the files of all ranks take in each disk directory; 0: no limit
	IOTimeout  time.Duration // that a disk may give no answer; 0: for ever

	StateDirs   []string // directories of streamed state; nil: those of disk backups
	StateLeases []string // their lease files, as far as they are not among the others
	StateChunk  uint64   // size of the pinned staging buffers of streamed state; 0: DefaultStateChunk

	FileFaults string // file calls that are to fail, in the language of package filesys; "": none

	Job           string // of the rank; "": not known
	Calls         Calls  // what the control socket calls; nil: there is no control socket
	RuntimeDir    string // EBB_RUNTIME_DIR, and
	XDGRuntimeDir string // XDG_RUNTIME_DIR: where the control socket is made, see control.Place
	EventLog      string // file that events are appended to; "": none
	LogJSON       bool   // log lines are JSON

	// NoteDescriptor is told of the descriptors that the control socket keeps (server.Options.Note).
	NoteDescriptor func(slot, fd int, dev, ino uint64)
}

// Engine manages the GPU memory of this process.
type Engine struct {
	drv     device.Driver
	log     *log.Logger // writes logLines
	config  Config
	table   *alloc.Table
	leases  []*rankdir.Lease
	workers int // layout of the staging buffer
	block   uint64

	sys      *filesys.Faults // makes the file calls
	backings backings
	usages   usages
	parked   parkedMaps
	states   states
	self     rankdir.Owner
	host     hostMemory
	untaken  untaken
	former   former
	logLines *logLines
	events   events
	remote   remote
	gate     *gate          // see safepoint.go
	warming  sync.WaitGroup // see warmUp

	background sync.RWMutex

	op      sync.Mutex // one pause or resume at a time; guards the fields below
	pool    *pipeline.Pool
	staging *staging.Staging
	left    string // what the latest pause left on the devices
	hash    hashing
	leaving sync.Once // what an exit leaves behind is told once

	mu          sync.Mutex // guards the fields below
	devices     map[int]*deviceState
	resetting   bool                 // between BeginReset and EndReset
	peers       map[int]map[int]bool // by device: who may use its memory
	diskDir     string               // directory setting of the latest pause
	pauses      uint64               // that had something to do
	lastPause   *outcome
	lastResume  *outcome
	stagingSize uint64 // bytes of staging held, for status
	tunings     []tuning
	said        map[string]bool // lines of the log that are not repeated
}

// Start loads the driver and readies an engine. Streams, threads and pinned memory are made at
// the first pause.
func Start(c Config) (*Engine, error) {
	runtime.GOMAXPROCS(min(goProcs, runtime.NumCPU()))
	debug.SetMemoryLimit(goHeapBytes)
	block, blocks, workers := staging.Layout(c.ChunkBytes, maxWorkers, staging.DefaultMaxBlock)
	if blocks == 0 {
		return nil, fmt.Errorf("%w: a staging chunk of %d bytes is too small, at least %d are needed", ErrInvalid, c.ChunkBytes, uint64(staging.MinChunk))
	}
	self, err := rankdir.Self()
	if err != nil {
		return nil, fmt.Errorf("identify this process: %w", err)
	}
	key, err := fingerprint.NewKey()
	if err != nil {
		return nil, err
	}
	drv, err := cuda.Open(c.Driver)
	if err != nil {
		return nil, err
	}
	e := &Engine{drv: drv, config: c, self: self, table: alloc.New(), devices: map[int]*deviceState{}, peers: map[int]map[int]bool{}, said: map[string]bool{}}
	e.hash = hashing{key: key, refused: map[int]bool{}, streams: map[int]*[2]device.Stream{}}
	e.gate = newGate(e.table.AnyAsked)
	e.logLines = newLogLines(c)
	e.log = log.New(e.logLines, "", 0)
	e.block, e.workers = block, workers
	e.makeFaults()
	if err := e.makeStates(self); err != nil {
		return nil, err
	}
	if err := e.holdLeases(); err != nil {
		return nil, err
	}
	e.makeStores(self)
	e.makeUsages()
	e.makeParked()
	e.makeEvents()
	e.tell(control.Event{Kind: control.EventStart})
	e.startControl()
	return e, nil
}

// makeFaults has file calls fail as the configuration says. Like other settings, one that cannot be
// read is told and ignored.
func (e *Engine) makeFaults() {
	e.sys = filesys.NewFaults(filesys.Kernel{})
	err := e.sys.Set(e.config.FileFaults)
	switch {
	case err != nil:
		e.log.Printf("EBB_FAULT_FILES is ignored: %v", err)
	case e.config.FileFaults != "":
		e.log.Printf("EBB_FAULT_FILES=%s: file calls fail on purpose", e.config.FileFaults)
	}
}

// holdLeases takes the leases of all the rank's directories, or none.
func (e *Engine) holdLeases() error {
	paths := e.leasePaths()
	if len(paths) == 0 {
		return nil
	}
	disk := filesys.NewDeadline(e.sys, e.config.IOTimeout)
	defer disk.Rest()
	for _, path := range paths {
		l, err := filesys.Do(disk, "opening", path, func() (*rankdir.Lease, error) { return rankdir.HoldLease(path) },
			func(late *rankdir.Lease) { _ = late.Release() })
		if err != nil {
			for _, held := range e.leases {
				err = errors.Join(err, held.Release())
			}
			switch {
			case errors.Is(err, rankdir.ErrInUse):
				err = fmt.Errorf("%w: %w", ErrState, err)
			case !ofSystem(err):
				err = fmt.Errorf("%w: %w", ErrInvalid, err)
			}
			return fmt.Errorf("hold the lease %s of this rank: %w", path, err)
		}
		e.leases = append(e.leases, l)
	}
	return nil
}

// leasePaths are the lease files of all the rank's directories, each once.
func (e *Engine) leasePaths() (paths []string) {
	if e.config.Lease != "" {
		paths = append([]string{e.config.Lease}, e.config.MoreLeases...)
	}
	for _, path := range e.config.StateLeases {
		if !slices.Contains(paths, path) {
			paths = append(paths, path)
		}
	}
	return paths
}

// ofSystem says whether an error is a lack of the system's, or a failure, and not about what was named.
func ofSystem(err error) bool {
	for _, is := range []error{unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.ENOLCK, unix.EIO, filesys.ErrHang} {
		if errors.Is(err, is) {
			return true
		}
	}
	return false
}

// Settings of the process that a pause or resume takes anew each time.
type Settings struct {
	DiskDir       string
	RetainCPU     bool  // keep CPU backups after a resume
	CaptureActive bool  // a stream capture is under way
	Unmanaged     int64 // live device allocations of the process that ebb was not asked to manage
	ResumeWait    time.Duration
	Unused        []mem.Range // whose bytes a pause need not keep
	Classes       []Class     // device memory that passed the hooks unmanaged
	Ask           uint64      // the request of the control socket that this is; 0: the program's own call

	requested bool // a pause at a safe point, for whose memory the actor waits
}

// Result is what one pause or resume did. Sizes are bytes.
type Result struct {
	Allocations uint64 // whose state changed
	Bytes       uint64 // their logical bytes
	DeviceBytes uint64 // physical memory released or created
	HostBytes   uint64 // copied to or from host memory
	DiskBytes   uint64 // written to or read from files

	SkippedZero   uint64 // not moved: all zero
	SkippedSame   uint64 // not moved: in the backup already
	SkippedUnused uint64 // not moved: nobody needs them
	Kept          uint64 // left on the device, because others use the memory

	Freed   uint64 // that became free on the devices by a pause, as the driver says; see freed.go
	Missing uint64 // of DeviceBytes: released by a pause, and neither free nor taken by others, as far as that is told

	Workers int    // that moved them; 0: nothing moved
	Phases  Phases // seconds of the parts of Duration

	Duration time.Duration
	Checks   time.Duration // of Duration: waiting for fingerprints
}

// sayOnce logs a line, unless it was logged before.
func (e *Engine) sayOnce(line string) {
	e.mu.Lock()
	said := e.said[line]
	e.said[line] = true
	e.mu.Unlock()
	if !said {
		e.log.Print(line)
	}
}

// ensureStaging makes the pinned buffer, once. Called with op held, once there is a pool. dev is
// the device whose NUMA node it is placed on.
func (e *Engine) ensureStaging(dev int) error {
	if e.staging != nil {
		return nil
	}
	var st *staging.Staging
	err := e.take(dev, func() (err error) {
		st, err = staging.New(staging.Options{
			ChunkBytes: e.config.ChunkBytes, Workers: e.workers,
			NUMANode: e.drv.NUMANode(dev), Register: e.drv.HostRegister, Unregister: e.drv.HostUnregister,
		})
		return err
	}, func() error { return st.Close() })
	if err != nil {
		return fmt.Errorf("make the staging buffer: %w", err)
	}
	e.staging = st
	e.pool.UseStaging(st)
	e.mu.Lock()
	e.stagingSize = st.Bytes()
	e.mu.Unlock()
	return nil
}

// fileNames makes the names of this process's backup files.
func fileNames(self rankdir.Owner) func(seq uint64) string {
	prefix := self.FilePrefix()
	return func(seq uint64) string { return fmt.Sprintf("%s%d.bak", prefix, seq) }
}

// makeStores makes the stores of an engine. Where there is an arena, both kinds of CPU backup lie
// in it.
func (e *Engine) makeStores(self rankdir.Owner) {
	b := &e.backings
	b.byID = map[uint64]store.Backing{}
	b.files = store.New(store.Options{
		BlockBytes: e.block, Name: fileNames(self), Dirs: e.dirs,
		Alloc: e.allocArena, Direct: true, HostBudget: e.hostBudget,
		NoFollowDir: e.config.Lease != "", Discard: e.config.Discard, System: e.sys,
		Take: e.takeRoom, Taken: e.tookRoom, Give: e.giveRoom, Timeout: e.config.IOTimeout,
		Warn: func(line string) { e.log.Print(line) },
	})
	if e.config.HostArena {
		b.pinned = store.New(store.Options{BlockBytes: e.block, Alloc: e.allocArena, Direct: true})
		b.mmap = b.pinned
		return
	}
	b.pinned = store.New(store.Options{BlockBytes: e.block, Alloc: extents(e.allocPinned), Direct: true})
	b.mmap = store.New(store.Options{BlockBytes: e.block, Alloc: extents(e.allocPages)})
}

// dirs are the directories of disk backups: those of the configuration, unless the program chose
// one itself.
func (e *Engine) dirs() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	if all := e.config.DiskDirs; len(all) > 0 && all[0] == e.diskDir {
		return all
	}
	return []string{e.diskDir}
}
