package engine

import (
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ebb-offload/ebb/internal/alloc"
	"github.com/ebb-offload/ebb/internal/testutil"
)

// newHangRig is an engine that waits for a disk no longer than a second.
func newHangRig(t *testing.T) *rig {
	t.Helper()
	return newHangRigWith(t, Config{ChunkBytes: 4 << 20})
}

func newHangRigWith(t *testing.T, c Config) *rig {
	t.Helper()
	c.IOTimeout = time.Second
	return newRigIn(t, c, testutil.InMemory(t))
}

// hang sets which file calls hang; "": none, and those that hang go on.
func (r *rig) hang(spec string) {
	r.t.Helper()
	check(r.t, r.sys.Set(spec))
}

// quarantined is what the status says of calls that hang.
func (r *rig) quarantined() Quarantine {
	r.t.Helper()
	var s Status
	check(r.t, json.Unmarshal(r.Status(nil), &s))
	return s.Quarantined
}

// thaw lets all calls go on and waits until they have returned.
func (r *rig) thaw() {
	r.t.Helper()
	r.hang("")
	r.eventually(func() bool { return r.quarantined().Threads == 0 })
}

// eventually waits until something is so.
func (r *rig) eventually(so func() bool) {
	r.t.Helper()
	for deadline := time.Now().Add(time.Minute); !so(); runtime.Gosched() {
		if time.Now().After(deadline) {
			r.t.Fatalf("it does not come about; files %v, in quarantine %+v", r.files(), r.quarantined())
		}
	}
}

// hung fails unless err is that of a disk that gave no answer, and names a path of the rig.
func (r *rig) hung(err error) {
	r.t.Helper()
	if Code(err) != CodeTimeout || !strings.Contains(err.Error(), r.dir) {
		r.t.Fatalf("not the error of a disk that hangs: %v", err)
	}
	var d details
	check(r.t, json.Unmarshal(Details(err), &d))
	if d.Code != CodeTimeout || !strings.HasPrefix(d.Where, "file "+r.dir) {
		r.t.Errorf("as JSON: %+v", d)
	}
}

// Whichever call has no answer: the pause fails, the memory is what it was and active, and a pause
// that comes later works, while the call still hangs and afterwards.
func TestAPauseWhoseDiskHangsLeavesTheMemoryActive(t *testing.T) {
	for _, call := range []string{"opendir", "open", "fstat", "fallocate", "statx", "pwrite", "fstatat"} {
		t.Run(call, func(t *testing.T) {
			r := newHangRig(t)
			a, b := r.make(3<<20+5, 0, disk("x")), r.make(1<<20, 1, disk("y"))
			r.hang(call + ":1:hang")
			_, err := r.Pause(nil, r.set)
			r.hung(err)
			if r.state(a) != alloc.Active || r.state(b) != alloc.Active {
				t.Error("something was paused")
			}
			r.holds(a, b)
			q := r.quarantined()
			if q.Threads != 1 || len(q.Paths) != 1 || !strings.HasPrefix(q.Paths[0], r.dir) {
				t.Errorf("in quarantine: %+v", q)
			}
			if call == "pwrite" && q.Bytes == 0 {
				t.Errorf("no memory is in quarantine: %+v", q)
			}
			r.pause()
			r.resume()
			r.holds(a, b)
			r.thaw()
			r.pause()
			r.resume()
			r.holds(a, b)
		})
	}
}

// A late write goes to a file that is given up: here it comes while the memory is paused again.
func TestALateWriteDoesNotReachTheNextPause(t *testing.T) {
	r := newHangRig(t)
	a := r.make(2<<20, 0, disk("x"))
	r.hang("pwrite:2:hang")
	_, err := r.Pause(nil, r.set)
	r.hung(err)
	old := r.quarantined().Paths[0]
	r.fill(a, 2<<20)
	r.pause()
	if slices.Contains(r.files(), old) {
		t.Errorf("%s is still in use", old)
	}
	r.thaw()
	r.resume()
	r.holds(a)
}

// The file of a resume is the only copy: it is kept, and a retry reads it while the first read hangs.
func TestAResumeWhoseDiskHangsLeavesTheMemoryPaused(t *testing.T) {
	for _, call := range []string{"open", "fstatat", "pread"} {
		t.Run(call, func(t *testing.T) {
			r := newHangRig(t)
			a, b := r.make(3<<20+5, 0, disk("x")), r.make(1<<20, 0, disk("y"))
			r.pause()
			free, files := r.free(0), r.files()
			r.hang(call + ":1:hang")
			_, err := r.Resume(nil, r.set)
			r.hung(err)
			if r.state(a) != alloc.Paused || r.state(b) != alloc.Paused {
				t.Error("something was resumed")
			}
			if got := r.free(0); got != free {
				t.Errorf("%d bytes of the device are free, before %d", got, free)
			}
			if !slices.Equal(r.files(), files) {
				t.Errorf("files %v, before %v", r.files(), files)
			}
			r.resume()
			r.holds(a, b)
			r.fill(a, len(a.want)) // a late read must not show here
			r.thaw()
			r.holds(a, b)
			r.pause()
			r.resume()
			r.holds(a, b)
		})
	}
}

func TestARead(t *testing.T) {
	r := newHangRig(t)
	a := r.make(1<<20, 0, disk("x"))
	r.pause()
	r.hang("pread:1:hang")
	got := make([]byte, len(a.want))
	r.hung(r.Read(a.addr, got, false))
	check(t, r.Read(a.addr, got, false))
	if !slices.Equal(got, a.want) {
		t.Error("other bytes")
	}
	r.thaw()
}

// While a pause waits for a disk, the actor allocates and frees and its status is told.
func TestOtherCallsGoOnWhileADiskHangs(t *testing.T) {
	r := newHangRig(t)
	r.make(1<<20, 0, disk("x"))
	other := r.make(1<<20, 0, none("y"))
	r.hang("any:*:hang")
	done := make(chan error)
	go func() {
		_, err := r.Pause([]string{"x"}, r.set)
		done <- err
	}()
	r.sys.AwaitHang()
	select {
	case err := <-done:
		t.Fatalf("the pause has ended: %v", err)
	default:
	}
	check(t, r.Free(other.addr, false))
	r.make(1<<20, 0, none("y"))
	r.quarantined()
	r.hung(<-done)
	r.thaw()
}

// A disk that answers nothing at all is waited for once by each operation.
func TestADiskThatIsFrozenIsWaitedForOnce(t *testing.T) {
	r := newHangRig(t)
	var all []*array
	for range 20 {
		all = append(all, r.make(64<<10, 0, disk("x")))
	}
	r.pause()
	r.resume()
	for _, a := range all {
		r.fill(a, len(a.want))
	}
	r.hang("any:*:hang")
	for range 2 {
		_, err := r.Pause(nil, r.set)
		r.hung(err)
	}
	// Several are begun side by side, and files are closed all the same; each file takes more calls.
	if n := r.sys.Hits(); n > 2*len(all) {
		t.Errorf("%d calls were begun on a disk that hangs", n)
	}
	r.holds(all...)
	r.thaw()
	r.pause()
	r.eventually(func() bool { return len(r.files()) == len(all) })
	r.resume()
	r.holds(all...)
}

// Memory that was made in place of what is in quarantine goes when that comes back.
func TestTheStagingBufferIsWhatItWas(t *testing.T) {
	r := newHangRig(t)
	a := r.make(8<<20, 0, disk("x"))
	r.pause()
	r.resume()
	mapped := r.mapped()
	r.fill(a, len(a.want))
	r.hang("pwrite:*:hang")
	_, err := r.Pause(nil, r.set)
	r.hung(err)
	if q := r.quarantined(); q.Bytes == 0 {
		t.Fatalf("%+v", q)
	}
	r.hang("")
	r.thaw()
	for range 2 {
		r.fill(a, len(a.want))
		r.pause()
		r.resume()
		r.holds(a)
	}
	if now := r.mapped(); now != mapped {
		t.Errorf("%d mappings are kept from a core dump, before %d", now, mapped)
	}
}

// mapped counts this process's mappings that a core dump leaves out, staging memory among them.
func (r *rig) mapped() int {
	r.t.Helper()
	smaps, err := os.ReadFile("/proc/self/smaps")
	check(r.t, err)
	n := 0
	for line := range strings.Lines(string(smaps)) {
		if strings.HasPrefix(line, "VmFlags:") && strings.Contains(line, " dd") {
			n++
		}
	}
	return n
}

// The process does not hang at its exit: what it leaves is told, and removed when the disk answers.
func TestAnExitDoesNotWaitForAFrozenDisk(t *testing.T) {
	r := newHangRig(t)
	r.make(1<<20, 0, disk("x"))
	r.make(1<<20, 0, disk("x"))
	r.pause()
	r.hang("any:*:hang")
	r.Shutdown()
	if log := r.logged(); !strings.Contains(log, "exit: 2 backup files (2.0 MiB) left behind in "+r.dir+", ") {
		t.Errorf("log:\n%s", log)
	}
	if n := len(r.files()); n != 2 {
		t.Errorf("%d files", n)
	}
	r.hang("")
	r.eventually(func() bool { return len(r.files()) == 0 })
}

// However many things it has on a disk that is frozen, what an exit leaves behind is told in one line: the backups, the
// map of them and the files of streamed state.
func TestAnExitTellsOnceWhatAFrozenDiskKeeps(t *testing.T) {
	base := filepath.Join(testutil.InMemory(t), "disk")
	r := newRank(t, 3, Config{StateChunk: stateChunk, IOTimeout: time.Second}, base)
	s := r.newState("adam", 300<<10)
	s.mustUpdate(r.slot(1<<20, 0), r.stream(0), 0)
	r.make(1<<20, 0, disk("x"))
	r.pause()
	before := len(r.logged())
	r.hang("any:*:hang")
	r.Shutdown()
	r.Shutdown() // meanwhile the calls of the first one end at their own deadline
	said := r.logged()[before:]
	r.hang("")
	r.eventually(func() bool { return len(r.files()) == 0 && r.quarantined().Threads == 0 })
	if want := "exit: 1 backup file (1.0 MiB) and 1 file of streamed state "; strings.Count(said, "exit: ") != 1 || !strings.Contains(said, want) || strings.Count(said, "\n") != 1 {
		t.Errorf("want one line with %q:\n%s", want, said)
	}
}
