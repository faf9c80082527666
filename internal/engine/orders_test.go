package engine

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/ebb-offload/ebb/internal/alloc"
	"github.com/ebb-offload/ebb/internal/device/cuda"
	"github.com/ebb-offload/ebb/internal/mem"
	"github.com/ebb-offload/ebb/internal/testutil"
	"pgregory.net/rapid"
)

// Here several operations may fail at a time, once or from some moment on, and what fails goes on failing over
// any number of calls: allocations, frees, reads, pauses and resumes. Files are taken away and cut, bytes are
// spoiled on the way to the disk, and the program writes to host memory that it was shown. The model is the list
// of arrays with what each must hold.
//
//   - Memory that is active holds its bytes, whatever failed before.
//   - A pause that fails, but for one that was partial, has paused nothing; a resume that fails has resumed nothing.
//   - When nothing fails any more, the next pause and the next resume succeed: the resume but for backups that were
//     spoiled, of which it says so. Never are other bytes handed out.
//   - In the end no file, host memory or device memory is left.

// layout is where an engine keeps what it pauses.
type layout struct {
	name     string
	dirs     int // disk directories
	config   Config
	files    string // file faults that are always there
	cpu      bool   // the driver refuses ebb's kernel
	snapshot bool   // pauses to host memory go by way of snapshots
	hang     bool   // file calls may hang
}

var layouts = []layout{
	{name: "one directory", dirs: 1},
	{name: "three directories", dirs: 3},
	{name: "host memory first", dirs: 1, config: Config{HostBytes: 640 << 10, HostArena: true}},
	{name: "host memory first, two directories", dirs: 2, config: Config{HostBytes: 512 << 10, HostArena: true, DiskQuota: 1 << 40}},
	{name: "arena, snapshots", dirs: 1, config: Config{HostArena: true}, snapshot: true},
	{name: "page cache", dirs: 2, files: "open:*:nodirect"},
	{name: "CPU hash", dirs: 2, config: Config{HostBytes: 700 << 10, HostArena: true}, cpu: true},
	{name: "disks that hang", dirs: 2, config: Config{IOTimeout: 50 * time.Millisecond}, hang: true},
}

// orderFaults are what may fail, and with what.
var (
	driverFaults = []string{
		"cuLaunchKernel", "cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync", "cuMemsetD8Async", "cuMemHostAlloc", "cuMemFreeHost",
		"cuMemHostRegister", "cuMemHostRegister", "cuMemHostUnregister", "cuMemHostGetDevicePointer", "cuStreamCreate", "cuCtxSetCurrent", "cuCtxGetCurrent",
		"cuMemAddressReserve", "cuMemAddressFree", "cuMemCreate", "cuMemMap", "cuMemUnmap", "cuMemSetAccess", "cuMemGetInfo",
		"cuThreadExchangeStreamCaptureMode", "cuModuleLoadData",
	}
	waitFaults = []string{"cuStreamSynchronize", "cuCtxSynchronize"}
	fileFaults = []string{
		"mkdir:EIO", "opendir:EIO", "opendir:EMFILE", "open:EIO", "open:ENOSPC", "open:EMFILE", "fstat:EIO", "fstatat:EIO", "fstatfs:EIO",
		"unlink:EIO", "fallocate:ENOSPC", "fallocate:EIO", "fallocate:EOPNOTSUPP", "pread:EIO", "pread:EINTR", "pread:short", "pread:short=0", "pread:flip", "pread:torn",
		"pwrite:EIO", "pwrite:ENOSPC", "pwrite:EINTR", "pwrite:short", "pwrite:half", "pwrite:half", "pwrite:flip", "pwrite:torn", "syncrange:EIO", "fsync:EIO", "fadvise:EIO", "setfl:EIO",
	}
	hangFaults = []string{"open:hang", "fstatat:hang", "unlink:hang", "fallocate:hang", "pread:hang", "pwrite:hang"}
)

func TestNoOrderOfFaultsLosesAByte(t *testing.T) {
	steps := flag.Lookup("rapid.steps").Value.String()
	check(t, flag.Set("rapid.steps", "60")) // of a sequence, on average
	t.Cleanup(func() { check(t, flag.Set("rapid.steps", steps)) })
	counts, tried := map[string]int{}, 0
	for _, l := range layouts {
		t.Run(l.name, func(t *testing.T) {
			tried++
			setChecks(t, 40, 300)
			o := newOrders(t, l, counts)
			rapid.Check(t, o.sequence)
		})
	}
	for _, what := range []string{"pause", "pause failed", "resume", "resume failed", "resume: corrupt", "read", "copy"} {
		if counts[what] == 0 && !t.Failed() && tried == len(layouts) {
			t.Errorf("never tried: %s; %v", what, counts)
		}
	}
}

// orders is an engine, and what befell it.
type orders struct {
	*rig
	layout
	t      testing.TB
	bases  []string
	before [2]uint64      // free on the devices
	leaky  bool           // the driver has kept memory for good
	counts map[string]int // of what was tried
}

func newOrders(t *testing.T, l layout, counts map[string]int) *orders {
	t.Helper()
	o := &orders{layout: l, t: t, counts: counts}
	for range l.dirs {
		if l.hang {
			o.bases = append(o.bases, testutil.InMemory(t))
		} else {
			o.bases = append(o.bases, t.TempDir())
		}
	}
	c := l.config
	c.ChunkBytes, c.DiskDirs = 1<<20, o.bases // blocks of 128 KiB
	o.rig = newRigIn(t, c, o.bases[0])
	if l.snapshot {
		o.bySnapshot()
	}
	o.clear("")
	o.before = [2]uint64{o.free(0), o.free(1)}
	return o
}

// clear takes all faults away but those of the layout, and one of the driver's.
func (o *orders) clear(driver string) {
	o.t.Helper()
	if o.cpu {
		driver = strings.Trim(driver+",cuModuleLoadData:*:209", ",")
	}
	check(o.t, cuda.SetSoftwareFault(o.drv, driver))
	check(o.t, o.sys.Set(o.layout.files))
}

// orderEntry is an array of the model.
type orderEntry struct {
	addr   mem.Addr
	reg    Region
	want   []byte
	old    []byte // what it held earlier
	paused bool
	dead   [][2]int // while paused: whole blocks that were unused, from and to
	tested bool     // its backup may have been spoiled
}

// memory is the array's memory, which the CPU can reach while it is active.
func (e *orderEntry) memory() []byte { return unsafe.Slice(byteAt(e.addr), len(e.want)) }

func (e *orderEntry) write(off int, p []byte) {
	copy(e.want[off:], p)
	copy(e.memory()[off:], p)
}

func (o *orders) sequence(t *rapid.T) {
	var live []*orderEntry
	faulty, spoils, spoilsReads := false, false, false
	block := int(o.block)

	setFaults := func(t *rapid.T) {
		var driver, files []string
		o.clear("")
		faulty, spoils, spoilsReads = false, false, false
		waits, contexts := false, false
		for range rapid.IntRange(1, 3).Draw(t, "faults") {
			faulty = true
			number := 1 + even(t, "number", 1<<even(t, "late", 5))
			at := fmt.Sprint(number)
			lasts := rapid.IntRange(0, 2).Draw(t, "lasts") == 0
			if lasts {
				at += "+"
			}
			switch kind := rapid.IntRange(0, 9).Draw(t, "kind"); {
			case kind < 4:
				call := rapid.SampledFrom(driverFaults).Draw(t, "call")
				if strings.HasPrefix(call, "cuCtx") {
					if waits {
						continue
					}
					contexts = true
				}
				driver = append(driver, fmt.Sprintf("%s:%s:%d", call, at, rapid.SampledFrom([]int{2, 999}).Draw(t, "error")))
				o.leaky = o.leaky || strings.HasPrefix(driver[len(driver)-1], "cuMemUnmap") && o.snapshot
			case kind == 4 && !waits && !contexts:
				// Together with others of its kind, or where no context can be made current to wait again: what was submitted
				// runs when its memory is gone, which no driver does after an error.
				waits = true
				driver = append(driver, fmt.Sprintf("%s:%s:999", rapid.SampledFrom(waitFaults).Draw(t, "call"), strings.TrimSuffix(at, "+")))
			default:
				list := fileFaults
				if o.layout.hang && rapid.Bool().Draw(t, "hangs") {
					list = hangFaults
				}
				name, what, _ := strings.Cut(rapid.SampledFrom(list).Draw(t, "call"), ":")
				if what == "EINTR" || what == "short" {
					at = strings.TrimSuffix(at, "+") // or it is asked for ever
				}
				if what == "half" { // half of a block is written, and then the disk is full
					files = append(files, fmt.Sprintf("%s:%d:short", name, number), fmt.Sprintf("%s:%d+:ENOSPC", name, number+1))
					continue
				}
				files = append(files, name+":"+at+":"+what)
				if what == "flip" || what == "torn" {
					spoils = spoils || name == "pwrite"
					spoilsReads = spoilsReads || name == "pread"
				}
			}
		}
		if o.cpu {
			driver = append(driver, "cuModuleLoadData:*:209")
		}
		check(o.t, cuda.SetSoftwareFault(o.drv, strings.Join(driver, ",")))
		check(o.t, o.sys.Set(strings.Trim(strings.Join(files, ",")+","+o.layout.files, ",")))
	}
	// may says whether an error may be one of a fault.
	may := func(err error) bool { return faulty || o.layout.hang && Code(err) == CodeTimeout }
	pick := func(t *rapid.T) *orderEntry {
		if len(live) == 0 {
			t.Skip("nothing allocated")
		}
		return live[rapid.IntRange(0, len(live)-1).Draw(t, "which")]
	}
	tags := func(t *rapid.T) []string {
		if tag := rapid.SampledFrom([]string{"", "", "a", "b"}).Draw(t, "tag"); tag != "" {
			return []string{tag}
		}
		return nil
	}
	matches := func(e *orderEntry, tags []string) bool { return tags == nil || e.reg.Tag == tags[0] }
	state := func(t *rapid.T, e *orderEntry) alloc.State {
		_, s, err := o.table.Find(e.addr, 1)
		if err != nil {
			t.Fatalf("memory at %v: %v", e.addr, err)
		}
		return s
	}
	free := func(t *rapid.T, e *orderEntry) {
		err := o.Free(e.addr, false)
		if err != nil && !may(err) {
			t.Fatal(err)
		}
		if o.table.Has(e.addr) {
			if err == nil {
				t.Fatalf("memory at %v is there after it was freed", e.addr)
			}
			return
		}
		live = slices.DeleteFunc(live, func(x *orderEntry) bool { return x == e })
	}
	regions := []Region{disk("a"), disk("b"), disk("a"), pinned("a"), mmap("b"), none("a")}

	defer func() {
		o.clear("")
		faulty = false
		for len(live) > 0 {
			n := len(live)
			if free(t, live[0]); len(live) == n {
				t.Fatalf("memory at %v cannot be freed", live[0].addr)
			}
		}
		o.atEnd(t)
	}()
	actions := map[string]func(*rapid.T){
		"faults": setFaults,
		"nothing fails": func(*rapid.T) {
			o.clear("")
			faulty, spoils, spoilsReads = false, false, false
		},
		"malloc": func(t *rapid.T) {
			if len(live) == 10 {
				t.Skip("enough")
			}
			size := 1 + even(t, "size", []int{5000, 700 << 10, 700 << 10}[even(t, "large", 3)])
			reg := rapid.SampledFrom(regions).Draw(t, "region")
			addr, err := o.Malloc(uint64(size), even(t, "device", 2), reg, 0)
			o.warming.Wait()
			if err != nil {
				if !may(err) {
					t.Fatal(err)
				}
				return
			}
			e := &orderEntry{addr: addr, reg: reg, want: make([]byte, size), old: randomBytes(size)}
			e.write(0, e.old)
			live = append(live, e)
		},
		"free": func(t *rapid.T) { free(t, pick(t)) },
		"write": func(t *rapid.T) {
			e := pick(t)
			off, n := stretchOf(t, len(e.want))
			how := rapid.SampledFrom([]string{"random", "zero", "whole zero", "as earlier", "one byte"}).Draw(t, "how")
			if e.paused {
				return
			}
			switch how {
			case "random":
				e.write(off, randomBytes(n))
			case "zero":
				e.write(off, make([]byte, n))
			case "whole zero":
				e.write(0, make([]byte, len(e.want)))
			case "as earlier":
				off = off / block * block
				e.write(off, e.old[off:min(off+block, len(e.old))])
			case "one byte":
				e.write(off, []byte{e.want[off] ^ 1})
			}
		},
		"write as earlier": func(t *rapid.T) {
			if e := pick(t); !e.paused {
				e.write(0, e.old)
			}
		},
		"read": func(t *rapid.T) {
			e := pick(t)
			off, n := stretchOf(t, len(e.want))
			p := make([]byte, n)
			for _, d := range e.dead {
				if off < d[1] && d[0] < off+n {
					return
				}
			}
			err := o.Read(e.addr+mem.Addr(off), p, false)
			switch {
			case e.paused && e.reg.Backup == alloc.BackupNone:
				if err == nil || Code(err) != CodeState && !may(err) {
					t.Fatalf("read of bytes given up: %v", err)
				}
			case err == nil:
				o.counts["read"]++
				if !bytes.Equal(p, e.want[off:off+n]) {
					t.Fatalf("read of %d bytes at %d of %v: other bytes", n, off, e.addr)
				}
			case !may(err) && !(e.paused && e.tested && Code(err) == CodeCorrupt):
				t.Fatal(err)
			}
		},
		"look at a copy": func(t *rapid.T) {
			e := pick(t)
			if e.reg.Backup != alloc.BackupCPU {
				return
			}
			p, err := o.BackupPointer(e.addr, uint64(len(e.want)))
			spoil := rapid.Bool().Draw(t, "write to it")
			if err != nil {
				if e.paused && !may(err) && len(e.dead) == 0 {
					t.Fatalf("the copy of paused memory at %v: %v", e.addr, err)
				}
				return
			}
			copied := unsafe.Slice((*byte)(p), len(e.want))
			if !e.paused {
				if spoil {
					copy(copied, randomBytes(len(copied)))
				}
				return
			}
			for i := range copied {
				if copied[i] != e.want[i] && !slices.ContainsFunc(e.dead, func(d [2]int) bool { return d[0] <= i && i < d[1] }) {
					t.Fatalf("byte %d of the copy of paused memory at %v is another one", i, e.addr)
				}
			}
			o.counts["copy"]++
		},
		"meddle": func(t *rapid.T) {
			list := o.backups()
			if len(list) == 0 {
				t.Skip("no files")
			}
			path := rapid.SampledFrom(list).Draw(t, "file")
			what := rapid.SampledFrom([]string{"removed", "cut", "flipped"}).Draw(t, "what")
			o.meddle(t, path, what, rapid.Uint64().Draw(t, "where"))
			o.counts[what]++
			for _, e := range live { // whose file that is is not the model's to know
				e.tested = e.tested || e.reg.Backup == alloc.BackupDisk && (e.paused || what == "flipped")
			}
		},
		"pause": func(t *rapid.T) {
			tags := tags(t)
			set := o.set
			var dead *orderEntry
			var from, to int
			if len(live) > 0 && rapid.Bool().Draw(t, "with unused") {
				e := pick(t)
				off, n := stretchOf(t, len(e.want))
				if rapid.Bool().Draw(t, "all of it") {
					off, n = 0, len(e.want)
				}
				set.Unused = []mem.Range{{Addr: e.addr + mem.Addr(off), Bytes: uint64(n)}}
				from, to = (off+block-1)/block*block, (off+n)/block*block
				if off+n == len(e.want) {
					to = off + n
				}
				if from < to && !e.paused && matches(e, tags) {
					dead = e
				}
			}
			// Half of a block arrives, or all of it and nobody knows.
			alone, n := !faulty && even(t, "something fails now", 2) == 0, 1+even(t, "number", 3)
			if faulty = faulty || alone; alone && even(t, "on the device", 3) == 0 {
				o.clear("cuStreamSynchronize:" + strconv.Itoa(n) + ":999")
			} else if alone {
				o.clear("")
				check(o.t, o.sys.Set(strings.Trim(fmt.Sprintf("pwrite:%d:short,pwrite:%d+:ENOSPC,%s", n, n+1, o.layout.files), ",")))
			}
			_, err := o.Pause(tags, set)
			o.counts["pause"]++
			if err != nil {
				o.counts["pause failed"]++
				if !may(err) && Code(err) != CodeUnknownTag {
					t.Fatal(err)
				}
			}
			if alone {
				o.clear("")
				faulty = false
			}
			partial := Code(err) == CodePartial
			back := err != nil && even(t, "back to what it was", 2) == 0
			for _, e := range live {
				if e.paused || !matches(e, tags) {
					continue
				}
				if e.reg.Backup == alloc.BackupDisk {
					e.tested = e.tested || spoils
				}
				if e.paused = err == nil; partial {
					e.paused = state(t, e) == alloc.Paused
				}
				if e.paused {
					e.old = bytes.Clone(e.want)
				} else if back { // of which backups may have a part
					e.write(0, e.old)
				}
			}
			if dead != nil && dead.paused {
				dead.dead = append(dead.dead, [2]int{from, to})
			}
		},
		"resume": func(t *rapid.T) {
			tags := tags(t)
			set := o.set
			set.RetainCPU = rapid.Bool().Draw(t, "retain")
			_, err := o.Resume(tags, set)
			o.counts["resume"]++
			if err != nil {
				o.counts["resume failed"]++
				if Code(err) == CodeUnknownTag || may(err) {
					return
				}
				var spoiled []*orderEntry
				for _, e := range live {
					if e.paused && e.tested && matches(e, tags) {
						spoiled = append(spoiled, e)
					}
				}
				var corrupt *CorruptError
				named := errors.As(err, &corrupt)
				if Code(err) != CodeCorrupt || !slices.ContainsFunc(spoiled, func(e *orderEntry) bool { return !named || e.addr == corrupt.Allocation.Base }) {
					t.Fatal(err)
				}
				o.counts["resume: corrupt"]++
				for _, e := range spoiled {
					free(t, e)
				}
				return
			}
			for _, e := range live {
				if !e.paused || !matches(e, tags) {
					continue
				}
				e.paused = false
				e.tested = e.tested && spoilsReads
				for _, d := range e.dead {
					copy(e.want[d[0]:d[1]], e.memory()[d[0]:d[1]])
				}
				e.dead = nil
				if e.reg.Backup == alloc.BackupNone {
					e.write(0, randomBytes(len(e.want))) // its content was given up
				}
			}
		},
		"": func(t *rapid.T) {
			for _, e := range live {
				if s := state(t, e); (s == alloc.Paused) != e.paused {
					t.Fatalf("memory at %v is %v, the model says paused=%v", e.addr, s, e.paused)
				}
				if !e.paused && !bytes.Equal(e.memory(), e.want) {
					t.Fatalf("the %d bytes at %v are others", len(e.want), e.addr)
				}
			}
		},
	}
	for _, often := range []string{"malloc", "pause", "resume", "faults"} {
		actions[often+" too"] = actions[often]
	}
	t.Repeat(actions)
}

// even draws a number below n, all of them as often: rapid itself prefers small ones.
func even(t *rapid.T, label string, n int) int {
	return int(rand.New(rand.NewPCG(rapid.Uint64().Draw(t, label), 0)).Uint64N(uint64(n)))
}

// stretchOf is a part of size bytes, at least one.
func stretchOf(t *rapid.T, size int) (off, n int) {
	off = even(t, "offset", size)
	return off, 1 + even(t, "length", size-off)
}

// backups are the files in all directories.
func (o *orders) backups() (list []string) {
	o.t.Helper()
	for _, dir := range o.bases {
		names, err := filepath.Glob(filepath.Join(dir, "*.bak"))
		check(o.t, err)
		list = append(list, names...)
	}
	return list
}

// meddle does something to a backup file that only somebody else would do.
func (o *orders) meddle(t *rapid.T, path, what string, where uint64) {
	done := func(err error) {
		o.t.Helper()
		if o.layout.hang && errors.Is(err, os.ErrNotExist) {
			t.Skip("it was left by a call that hung, and removed when that returned")
		}
		check(o.t, err)
	}
	info, err := os.Stat(path)
	done(err)
	if info.Size() == 0 {
		t.Skip("its making failed: one that is not empty would not be known to be ours")
	}
	switch what {
	case "removed":
		done(os.Remove(path))
		return
	case "cut":
		done(os.Truncate(path, 4096))
		return
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	done(err)
	defer func() { check(o.t, f.Close()) }()
	at, one := int64(where%uint64(info.Size())), make([]byte, 1)
	_, err = f.ReadAt(one, at)
	check(o.t, err)
	one[0] ^= 4
	_, err = f.WriteAt(one, at)
	check(o.t, err)
}

// atEnd looks for what is left when everything was freed and nothing fails.
func (o *orders) atEnd(t *rapid.T) {
	addr, err := o.Malloc(1, 0, none("end"), 0) // what the driver did not take is tried again
	if err == nil {
		err = o.Free(addr, false)
	}
	if err != nil {
		t.Fatal(err)
	}
	left := func() (list []string) {
		o.backings.begin()()
		for _, s := range o.backings.stores() {
			if u := s.Usage(); u.HostBytes+u.DiskBytes != 0 || u.Files != 0 {
				list = append(list, fmt.Sprintf("%+v", u))
			}
		}
		return append(list, o.backups()...)
	}
	list := left()
	for deadline := time.Now().Add(time.Minute); o.layout.hang && len(list) > 0 && time.Now().Before(deadline); list = left() {
		runtime.Gosched() // a call that hung removes what it made when it returns
	}
	if len(list) > 0 {
		t.Fatalf("left: %q", list)
	}
	for dev, want := range o.before {
		if got := o.free(dev); got != want && !o.leaky {
			t.Fatalf("device %d has %d bytes less free than before", dev, int64(want-got))
		}
	}
}
