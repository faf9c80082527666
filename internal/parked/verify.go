package parked

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/ebb-offload/ebb/internal/filesys"
	"github.com/ebb-offload/ebb/internal/fingerprint"
	"github.com/ebb-offload/ebb/internal/rankdir"
)

// Outcome is how the check of one rank ended.
type Outcome string

// Outcomes.
const (
	Good    Outcome = "good"    // every block holds what was parked
	Bad     Outcome = "bad"     // some do not: see Report.BadBlocks
	Ended   Outcome = "dead"    // as good, but the process has ended: nobody will ever resume them
	Resumed Outcome = "resumed" // meanwhile: what was read says nothing
	Unread  Outcome = "unread"  // the map cannot be used: see Report.Why
)

// Report says what was found of one rank in one disk directory. Sizes are bytes.
type Report struct {
	Rank        string  `json:"rank"`
	Outcome     Outcome `json:"outcome"`
	Why         string  `json:"why,omitempty"`
	PID         int     `json:"pid,omitempty"`
	ProcessDead bool    `json:"process_dead"`
	Allocations int     `json:"allocations"`
	Files       int     `json:"files"`
	Bytes       uint64  `json:"bytes"`  // read from them
	Blocks      int     `json:"blocks"` // in this directory
	Zero        int     `json:"zero"`   // of them: all zero, with nothing to check
	Dead        int     `json:"dead"`   // of them: nobody needs their bytes
	Unknown     int     `json:"unknown"`
	Host        uint64  `json:"host_bytes"` // in host memory, which only the rank itself can check
	BadBlocks   []Wrong `json:"bad"`
}

// Bad is how many blocks do not hold what was parked.
func (r *Report) Bad() (n int) {
	for _, b := range r.BadBlocks {
		n += b.Blocks
	}
	return n
}

// Checked says whether anything could be compared.
func (r *Report) Checked() bool {
	return r.Outcome != Resumed && r.Outcome != Unread && (r.Bytes > 0 || r.Zero > 0 || len(r.BadBlocks) > 0)
}

// Wrong is a block that does not hold what was parked, or all of a file that cannot be opened.
type Wrong struct {
	Address string `json:"address"` // of the allocation
	Tag     string `json:"tag"`
	Offset  uint64 `json:"offset"` // in the allocation
	Bytes   uint64 `json:"bytes"`
	Blocks  int    `json:"blocks"`
	File    string `json:"file"`
	At      uint64 `json:"file_offset"`
	Why     string `json:"why"`
}

// Verify checks the files of every rank that has something parked in a disk directory. Ranks that are
// paused or resumed meanwhile are no error. known is false where ebb keeps no maps: in a directory that a
// process was merely given. moved, if not nil, is called for each
// block that was looked at, by several goroutines.
func Verify(base string, moved func()) (reports []Report, known bool, err error) {
	dir, err := openat(unix.AT_FDCWD, base, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return nil, false, fmt.Errorf("open %s: %w", base, err)
	}
	defer func() { _ = unix.Close(dir) }()
	ebb, err := openat(dir, ".ebb", unix.O_PATH|unix.O_DIRECTORY)
	if errors.Is(err, unix.ENOENT) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("open %s: %w", filepath.Join(base, ".ebb"), err)
	}
	defer func() { _ = unix.Close(ebb) }()
	names, err := filesys.Kernel{}.Names(ebb)
	if err != nil {
		return nil, false, fmt.Errorf("list %s: %w", filepath.Join(base, ".ebb"), err)
	}
	for _, name := range names {
		if !strings.HasSuffix(name, suffix) {
			continue
		}
		c := check{base: base, dir: dir, ebb: ebb, name: name, moved: moved}
		if c.run() {
			reports = append(reports, c.report)
		}
	}
	return reports, true, nil
}

// check is the check of one map.
type check struct {
	base     string
	dir, ebb int
	name     string
	moved    func()

	m   *Map
	ino uint64
	key *fingerprint.Key

	mu     sync.Mutex // guards report while files are read
	report Report
}

// run is false when the rank resumed before it began.
func (c *check) run() bool {
	var err error
	c.m, c.ino, err = read(c.ebb, c.name)
	if errors.Is(err, unix.ENOENT) {
		return false
	}
	c.report = Report{Rank: rankOf(c.name), Outcome: Good, BadBlocks: []Wrong{}}
	if err == nil {
		err = c.usable()
	}
	if err == nil {
		c.key, err = fingerprint.ParseKey(c.m.Key)
	}
	if err != nil {
		c.report.Outcome, c.report.Why = Unread, fmt.Sprintf("%s: %v", filepath.Join(c.base, ".ebb", c.name), err)
		return true
	}
	c.report.PID, c.report.ProcessDead = c.m.Owner.PID, rankdir.Dead(c.m.Owner, rankdir.Local(c.ebb))
	c.files()
	slices.SortFunc(c.report.BadBlocks, func(a, b Wrong) int {
		if n := strings.Compare(a.Address, b.Address); n != 0 {
			return n
		}
		return int(int64(a.Offset) - int64(b.Offset))
	})
	if len(c.report.BadBlocks) == 0 {
		c.good()
		return true
	}
	// The map goes before the files are written again: only while it is there it was true. A later one may have been
	// given its inode.
	c.report.Outcome = Bad
	again, ino, err := read(c.ebb, c.name)
	if err != nil || ino != c.ino || !c.m.sameAs(again) {
		c.report.Outcome, c.report.Why, c.report.BadBlocks = Resumed, "the rank resumed or paused again meanwhile", []Wrong{}
		return true
	}
	c.dropFreed(again)
	return true
}

// dropFreed forgets what is wrong with memory that was freed meanwhile.
func (c *check) dropFreed(again *Map) {
	freed := map[string]bool{}
	for _, a := range again.Allocations {
		freed[address(a.Address)] = a.Freed
	}
	c.report.BadBlocks = slices.DeleteFunc(c.report.BadBlocks, func(w Wrong) bool { return freed[w.Address] })
	if len(c.report.BadBlocks) == 0 {
		c.good()
	}
}

// good is the outcome of a rank in whose files nothing is wrong.
func (c *check) good() {
	c.report.Outcome = Good
	if c.report.ProcessDead {
		c.report.Outcome = Ended
	}
}

func address(a uint64) string { return fmt.Sprintf("0x%x", a) }

// rankOf is a rank's directory by the name of a map.
func rankOf(name string) string {
	key := strings.TrimSuffix(name, suffix)
	key = key[:max(strings.LastIndex(key, "."), 0)]
	if i := strings.LastIndex(key, "__"); i > 0 {
		return key[:i] + "/" + key[i+2:]
	}
	return key
}

// usable refuses a map that names files elsewhere.
func (c *check) usable() error {
	if c.m.Rank != c.report.Rank {
		return fmt.Errorf("%w: it is of another rank", ErrMap)
	}
	for _, a := range c.m.Allocations {
		if strings.ContainsAny(a.File, "/\x00") || a.File == ".." || a.File == "." || a.File == "" && len(a.Blocks) > 0 {
			return fmt.Errorf("%w: a file is named %q", ErrMap, a.File)
		}
	}
	return nil
}

// files checks all files, several at a time.
func (c *check) files() {
	job, rank, _ := strings.Cut(c.m.Rank, "/")
	dir := -1
	parent, err := openat(c.dir, job, unix.O_PATH|unix.O_DIRECTORY)
	if err == nil {
		dir, err = openat(parent, rank, unix.O_PATH|unix.O_DIRECTORY)
		_ = unix.Close(parent)
	}
	defer func() { _ = unix.Close(dir) }()
	var next atomic.Int64
	var all sync.WaitGroup
	for range min(runtime.NumCPU(), maxReaders, len(c.m.Allocations)) {
		all.Go(func() {
			r := &reader{hash: fingerprint.NewHash(c.key)}
			defer r.close()
			for i := next.Add(1) - 1; i < int64(len(c.m.Allocations)); i = next.Add(1) - 1 {
				c.allocation(r, dir, err, &c.m.Allocations[i])
			}
		})
	}
	all.Wait()
}

// maxReaders is how many files are read at a time.
const maxReaders = 8

// allocation checks what an allocation has in this directory; err: the directory cannot be used.
func (c *check) allocation(r *reader, dir int, err error, a *Allocation) {
	if a.Freed {
		return
	}
	var found Report
	found.Allocations, found.Blocks, found.Host = 1, len(a.Blocks), a.Host
	fd := -1
	if err == nil && a.File != "" {
		if fd, err = openFile(dir, a.File); err == nil {
			found.Files = 1
		}
	}
	lost := Wrong{Address: address(a.Address), Tag: a.Tag, File: filepath.Join(c.base, c.m.Rank, a.File)}
	for _, b := range a.Blocks {
		if c.moved != nil {
			c.moved()
		}
		switch {
		case b.State == Zero:
			found.Zero++
		case b.State == Dead:
			found.Dead++
		case !b.Known:
			found.Unknown++
		default:
			if err != nil {
				lost.Blocks, lost.Bytes, lost.Why = lost.Blocks+1, lost.Bytes+b.Bytes, err.Error()
				continue
			}
			why := r.check(fd, &b)
			if why == "" || why == other {
				found.Bytes += b.Bytes
			}
			if why != "" {
				found.BadBlocks = append(found.BadBlocks, Wrong{
					Address: lost.Address, Tag: a.Tag, Offset: b.Offset, Bytes: b.Bytes, Blocks: 1, File: lost.File, At: b.At, Why: why,
				})
			}
		}
	}
	if lost.Blocks > 0 {
		found.BadBlocks = append(found.BadBlocks, lost)
	}
	if fd >= 0 {
		_ = unix.Close(fd)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	t := &c.report
	t.Allocations += found.Allocations
	t.Files += found.Files
	t.Bytes += found.Bytes
	t.Blocks += found.Blocks
	t.Zero += found.Zero
	t.Dead += found.Dead
	t.Unknown += found.Unknown
	t.Host += found.Host
	t.BadBlocks = append(t.BadBlocks, found.BadBlocks...)
}

// openFile opens a backup file past the page cache where that can be done.
func openFile(dir int, name string) (int, error) {
	fd, err := openat(dir, name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_DIRECT)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) {
		fd, err = openat(dir, name, unix.O_RDONLY|unix.O_NONBLOCK)
	}
	if err != nil {
		return -1, err
	}
	var st unix.Stat_t
	err = unix.Fstat(fd, &st)
	if err == nil && (st.Mode&unix.S_IFMT != unix.S_IFREG || int(st.Uid) != os.Geteuid()) {
		err = errors.New("not a plain file of this user")
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// reader reads and hashes blocks, for one goroutine.
type reader struct {
	hash   *fingerprint.Hash
	memory []byte // page-aligned
}

func (r *reader) close() {
	if r.memory != nil {
		_ = unix.Munmap(r.memory)
	}
}

// page is the unit of direct I/O.
const page = 4096

// other is what is wrong with a block that could be read.
const other = "other bytes"

// check reads a block and compares it; the result is empty when it is right.
func (r *reader) check(fd int, b *Block) string {
	n := int((b.Bytes + page - 1) / page * page)
	if len(r.memory) < n {
		r.close()
		var err error
		if r.memory, err = unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS); err != nil {
			return err.Error()
		}
	}
	for done := 0; done < int(b.Bytes); {
		got, err := unix.Pread(fd, r.memory[done:n], int64(b.At)+int64(done))
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return err.Error()
		}
		done += got
		if got%page != 0 && done < int(b.Bytes) || got == 0 {
			return "the file ends before it"
		}
	}
	if sum, _ := r.hash.Sum(r.memory[:b.Bytes]); sum != b.Sum {
		return other
	}
	return ""
}
