package engine

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ebb-offload/ebb/internal/filesys"
	"github.com/ebb-offload/ebb/internal/rankdir"
	"github.com/ebb-offload/ebb/internal/testutil"
)

// filled is a state with bytes, some of them zero.
func (r *rig) filled(sizes ...uint64) *streamed {
	r.t.Helper()
	s := r.newState("adam", sizes...)
	for n := range s.want {
		s.want[n] = randomBytes(len(s.want[n]))
		if len(s.want[n]) > 200<<10 {
			clear(s.want[n][64<<10 : 192<<10])
		}
		check(r.t, r.WriteStateHost(s.id, uint32(n), 0, s.want[n]))
	}
	return s
}

func (s *streamed) holdsOnHost() error {
	for n, want := range s.want {
		got := make([]byte, len(want))
		if err := s.ReadStateHost(s.id, uint32(n), 0, got); err != nil {
			return err
		}
		if !bytes.Equal(got, want) {
			return fmt.Errorf("segment %d holds other bytes", n)
		}
	}
	return nil
}

// names are what is in a directory.
func names(t testing.TB, dir string) (list []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	check(t, err)
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return list
}

func TestACheckpointComesBackInAnotherProcess(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "checkpoint")
	sizes := []uint64{300<<10 + 5, 1, 64 << 10, 4096}
	var want [][]byte
	t.Run("save", func(t *testing.T) {
		s := newStateRig(t).filled(sizes...)
		check(t, s.SaveState(s.id, dir, []byte(`{"step": 7}`)))
		want = s.want
	})
	var m manifest
	text, err := os.ReadFile(filepath.Join(dir, manifestFile))
	check(t, err)
	check(t, json.Unmarshal(text, &m))
	var extra struct{ Step int }
	check(t, json.Unmarshal(m.Extra, &extra))
	if extra.Step != 7 || m.Name != "adam" || len(m.Segments) != 4 {
		t.Errorf("manifest %s", text)
	}
	for i, s := range m.Segments { // plain files, for whoever reads them without ebb
		got, err := os.ReadFile(filepath.Join(dir, s.File))
		check(t, err)
		if !bytes.Equal(got, want[i]) {
			t.Errorf("the file of segment %d holds other bytes", i)
		}
	}
	for _, chunk := range []uint64{256 << 10, stateChunk, 2 << 20, 8 << 20} { // and other sizes of blocks
		t.Run(fmt.Sprintf("chunk %d", chunk), func(t *testing.T) {
			r := newRigWith(t, Config{ChunkBytes: 4 << 20, StateChunk: chunk})
			s := r.newState("again", sizes...)
			check(t, r.LoadState(s.id, dir))
			s.want = want
			s.intact(r.slot(1<<20, 0))
		})
	}
}

func TestASavedCheckpointReplacesAnOlderOne(t *testing.T) {
	for _, fault := range []string{"", "rename:1:EINVAL"} { // the second: a file system that does not exchange names
		r := newStateRig(t)
		s := r.filled(300<<10, 5)
		parent := t.TempDir()
		dir := filepath.Join(parent, "checkpoint")
		check(t, os.Mkdir(dir, 0o755)) // an empty directory is replaced too
		check(t, s.SaveState(s.id, dir, nil))
		old := slices.Clone(s.want)
		for n := range s.want {
			s.want[n] = randomBytes(len(s.want[n]))
			check(t, r.WriteStateHost(s.id, uint32(n), 0, s.want[n]))
		}
		check(t, r.sys.Set(fault))
		check(t, s.SaveState(s.id, dir, nil))
		if got := names(t, parent); !slices.Equal(got, []string{"checkpoint"}) {
			t.Errorf("left beside the checkpoint: %v", got)
		}
		fresh := r.newState("other", 300<<10, 5)
		check(t, r.LoadState(fresh.id, dir))
		fresh.want = s.want
		check(t, fresh.holdsOnHost())
		if bytes.Equal(old[0], s.want[0]) {
			t.Error("nothing changed")
		}
	}
}

// Files of a state are written in place: a checkpoint that were another name of one would change with it.
func TestNoFileOfACheckpointIsOneOfTheState(t *testing.T) {
	r := newStateRig(t)
	s := r.filled(300<<10, 5)
	dir := filepath.Join(r.dir, "checkpoint") // on the same file system
	check(t, s.SaveState(s.id, dir, nil))
	for _, name := range names(t, dir) {
		var saved, own unix.Stat_t
		check(t, unix.Stat(filepath.Join(dir, name), &saved))
		if saved.Nlink != 1 {
			t.Errorf("%s has %d names", name, saved.Nlink)
		}
		for _, f := range r.files() {
			check(t, unix.Stat(f, &own))
			if own.Ino == saved.Ino {
				t.Errorf("%s is %s", name, f)
			}
		}
	}
	check(t, os.RemoveAll(dir))
}

func TestWhatIsNoCheckpointIsNotReplaced(t *testing.T) {
	r := newStateRig(t)
	s := r.filled(5)
	dir := t.TempDir()
	check(t, os.WriteFile(filepath.Join(dir, "thesis.tex"), []byte("x"), 0o600))
	link := filepath.Join(t.TempDir(), "link")
	check(t, os.Symlink(dir, link))
	web, broken := t.TempDir(), t.TempDir()
	check(t, os.WriteFile(filepath.Join(web, manifestFile), []byte(`{"name": "somebody's"}`), 0o600))
	check(t, os.WriteFile(filepath.Join(broken, manifestFile), []byte("x"), 0o600))
	for _, path := range []string{dir, filepath.Join(dir, "thesis.tex"), link, "/", web, broken} {
		if err := s.SaveState(s.id, path, nil); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", path, err)
		}
	}
	if err := s.SaveState(s.id, filepath.Join(dir, "none", "x"), nil); Code(err) != CodeIO {
		t.Errorf("%v", err)
	}
	if err := s.SaveState(s.id, filepath.Join(dir, "x"), []byte("{")); !errors.Is(err, ErrInvalid) {
		t.Errorf("%v", err)
	}
	if got := names(t, dir); !slices.Equal(got, []string{"thesis.tex"}) {
		t.Errorf("%v", got)
	}
}

func TestACheckpointOfAnotherLayoutIsRefusedAndNothingChanges(t *testing.T) {
	r := newStateRig(t)
	s := r.filled(300<<10, 5)
	dir := filepath.Join(t.TempDir(), "checkpoint")
	check(t, s.SaveState(s.id, dir, nil))
	for _, c := range []struct {
		sizes []uint64
		words []string
	}{
		{[]uint64{300 << 10}, []string{"2 segments", "has 1"}},
		{[]uint64{300 << 10, 6}, []string{"segment 1 has 5 bytes", "has 6"}},
		{[]uint64{5, 300 << 10}, []string{"segment 0 has 307200 bytes", "has 5"}},
	} {
		other := r.filled(c.sizes...)
		err := r.LoadState(other.id, dir)
		if !errors.Is(err, ErrInvalid) {
			t.Errorf("%v: %v", c.sizes, err)
		}
		for _, w := range append(c.words, dir, `"adam"`) {
			if !strings.Contains(fmt.Sprint(err), w) {
				t.Errorf("%v: %v does not say %q", c.sizes, err, w)
			}
		}
		check(t, other.holdsOnHost())
	}
	if err := r.LoadState(s.id, dir+"x"); !errors.Is(err, ErrInvalid) {
		t.Errorf("no checkpoint: %v", err)
	}
	check(t, s.holdsOnHost())
}

func TestACheckpointThatWasSpoiledIsTold(t *testing.T) {
	flip := func(path string, at int64) error {
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			return err
		}
		var b [1]byte
		_, err = f.ReadAt(b[:], at)
		b[0] ^= 4
		_, err2 := f.WriteAt(b[:], at)
		return errors.Join(err, err2, f.Close())
	}
	for what, spoil := range map[string]func(dir string) (file string, err error){
		"a bit":          func(d string) (string, error) { f := "segment-000000.bin"; return f, flip(d+"/"+f, 200<<10) },
		"a bit of zeros": func(d string) (string, error) { f := "segment-000000.bin"; return f, flip(d+"/"+f, 100<<10) },
		"fingerprints":   func(d string) (string, error) { return sumsFile, flip(d+"/"+sumsFile, 3) },
		"cut":            func(d string) (string, error) { f := "segment-000000.bin"; return f, os.Truncate(d+"/"+f, 100<<10) },
		"gone":           func(d string) (string, error) { f := "segment-000001.bin"; return f, os.Remove(d + "/" + f) },
		"no manifest":    func(d string) (string, error) { return manifestFile, os.Remove(d + "/" + manifestFile) },
		"manifest":       func(d string) (string, error) { return manifestFile, os.Truncate(d+"/"+manifestFile, 100) },
		"fewer sums":     func(d string) (string, error) { return sumsFile, os.Truncate(d+"/"+sumsFile, 16) },
	} {
		t.Run(what, func(t *testing.T) {
			r := newStateRig(t)
			s := r.filled(300<<10, 5)
			dir := filepath.Join(t.TempDir(), "checkpoint")
			check(t, s.SaveState(s.id, dir, nil))
			file, err := spoil(dir)
			check(t, err)
			err = r.LoadState(s.id, dir)
			if Code(err) != CodeCorrupt || !strings.Contains(err.Error(), file) {
				t.Errorf("%v (code %d)", err, Code(err))
			}
		})
	}
}

// Every file call of a step, a save and a load fails once (in the short form of many equal ones some). What failed succeeds when it is repeated, an older
// checkpoint is whole in between, and nothing is left beside it.
func TestEveryFileCallOfStreamedStateFailsOnce(t *testing.T) {
	operations := map[string]func(s *streamed, slot, dir string) error{
		"step": func(s *streamed, _, _ string) error {
			slot, stream := s.stepSlot, s.stepStream
			w, err := s.WriteState(s.id, s.whole(slot, 0, 1), stream)
			if err == nil {
				_, err = s.WaitState(s.id, w)
			}
			if err == nil {
				_, err = s.read(slot, 0, 1)
			}
			return err
		},
		"save": func(s *streamed, _, dir string) error { return s.SaveState(s.id, dir, nil) },
		"load": func(s *streamed, saved, _ string) error { return s.LoadState(s.id, saved) },
	}
	for name, operation := range operations {
		t.Run(name, func(t *testing.T) {
			r := newStateRig(t)
			s := r.filled(300<<10, 5)
			s.stepSlot, s.stepStream = r.slot(1<<20, 0), r.stream(0)
			ios := s.whole(s.stepSlot, 0, 1)
			put := func() {
				for i, io := range ios {
					r.begins(io.Addr, s.want[i], s.stepStream, 0)
				}
			}
			parent := t.TempDir()
			dir, saved := filepath.Join(parent, "checkpoint"), filepath.Join(t.TempDir(), "saved")
			check(t, s.SaveState(s.id, dir, nil))
			check(t, s.SaveState(s.id, saved, nil))
			put()
			check(t, r.sys.Set(""))
			check(t, operation(s, saved, dir))
			calls := r.sys.Calls()
			if len(calls) < 4 {
				t.Fatalf("calls %v", calls)
			}
			for _, call := range slices.Sorted(maps.Keys(calls)) {
				for n := 1; n <= calls[call]; n++ {
					if !long && n > 2 && n < calls[call] && n%5 != 0 {
						continue
					}
					put()
					fault := fmt.Sprintf("%s:%d:EIO", call, n)
					check(t, r.sys.Set(fault))
					first := operation(s, saved, dir)
					hits := r.sys.Hits()
					check(t, r.sys.Set(""))
					if first == nil && hits > 0 && !slices.Contains([]string{"clone", "close", "fadvise", "fallocate", "unlink", "rmdir", "readdir", "opendir", "rename", "statx"}, call) {
						t.Errorf("%s: no error", fault)
					}
					if first != nil && Code(first) != CodeIO && Code(first) != CodeCorrupt {
						t.Errorf("%s: code %d: %v", fault, Code(first), first)
					}
					if _, err := os.Stat(filepath.Join(dir, manifestFile)); err != nil {
						t.Fatalf("%s: the older checkpoint: %v", fault, err)
					}
					put()
					if err := operation(s, saved, dir); err != nil {
						t.Fatalf("%s, then again: %v", fault, err)
					}
					if err := s.holdsOnHost(); err != nil {
						t.Fatalf("%s, then again: %v", fault, err)
					}
				}
			}
			other := r.newState("other", 300<<10, 5)
			check(t, r.LoadState(other.id, dir))
			other.want = s.want
			check(t, other.holdsOnHost())
		})
	}
}

// A save that fails after it has begun to change names removes nothing: the older checkpoint and the new one are both
// whole, one of them at the place. The next save removes the other.
func TestASaveThatFailsAtTheEndRemovesNoCheckpoint(t *testing.T) {
	for what, c := range map[string]struct {
		names string // faults of renamings
		last  bool   // the last fsync fails
		code  int
		want  int // checkpoints
	}{
		"the last fsync":                    {last: true, code: CodeIO, want: 2},
		"the last fsync, without exchange":  {names: "rename:1:EINVAL,", last: true, code: CodeIO, want: 2},
		"the exchange":                      {names: "rename:1:EIO", code: CodeIO, want: 1},
		"the first renaming":                {names: "rename:1:EINVAL,rename:2:EIO", code: CodeIO, want: 1},
		"the second renaming":               {names: "rename:1:EINVAL,rename:3:EIO", code: CodeIO, want: 1},
		"the second renaming, and its undo": {names: "rename:1:EINVAL,rename:3:EIO,rename:4:EIO", code: CodeIO, want: 2},
		"the exchange hangs":                {names: "rename:1:hang", code: CodeTimeout, want: 2},
		"the second renaming hangs":         {names: "rename:1:EINVAL,rename:3:hang", code: CodeTimeout, want: 2},
	} {
		t.Run(what, func(t *testing.T) {
			r := newHangRigWith(t, Config{ChunkBytes: 4 << 20, StateChunk: stateChunk})
			s := r.filled(300<<10, 5)
			parent := testutil.InMemory(t)
			dir := filepath.Join(parent, "checkpoint")
			check(t, s.SaveState(s.id, dir, nil))
			check(t, r.sys.Set(""))
			check(t, s.SaveState(s.id, dir, nil))
			syncs := r.sys.Calls()["fsync"]
			before := slices.Clone(s.want)
			s.want[0] = randomBytes(300 << 10)
			check(t, r.WriteStateHost(s.id, 0, 0, s.want[0]))
			faults := c.names
			if c.last {
				faults += fmt.Sprintf("fsync:%d:EIO", syncs)
			}
			check(t, r.sys.Set(faults))
			err := s.SaveState(s.id, dir, nil)
			if Code(err) != c.code {
				t.Errorf("%v (code %d)", err, Code(err))
			}
			if c.code == CodeTimeout {
				if err := s.SaveState(s.id, dir, nil); !errors.Is(err, filesys.ErrHang) {
					t.Errorf("while it hangs: %v", err)
				}
				check(t, r.sys.Set(""))
				for len(r.states.store.Deadline().Hung()) > 0 {
					runtime.Gosched()
				}
			}
			check(t, r.sys.Set(""))
			list := names(t, parent)
			if len(list) != c.want {
				t.Fatalf("there are %v after %v", list, err)
			}
			other := r.newState("other", 300<<10, 5)
			for _, name := range list {
				if path := filepath.Join(parent, name); c.want > 1 && !strings.Contains(err.Error(), path) {
					t.Errorf("%v does not name %s", err, path)
				}
				check(t, r.LoadState(other.id, filepath.Join(parent, name)))
				if other.want = s.want; other.holdsOnHost() != nil {
					other.want = before
					check(t, other.holdsOnHost())
				}
			}
			check(t, s.SaveState(s.id, dir, nil))
			if got := names(t, parent); !slices.Equal(got, []string{"checkpoint"}) {
				t.Errorf("left beside the checkpoint: %v", got)
			}
			check(t, r.LoadState(other.id, dir))
			other.want = s.want
			check(t, other.holdsOnHost())
		})
	}
}

// python/tests has a process that may have no more files open.
func TestACheckpointOfMoreSegmentsThanFilesAreOpenIsLoaded(t *testing.T) {
	r := newStateRig(t)
	sizes := make([]uint64, openFiles+20)
	for i := range sizes {
		sizes[i] = 3 + uint64(i)
	}
	s := r.filled(sizes...)
	dir := filepath.Join(t.TempDir(), "checkpoint")
	check(t, s.SaveState(s.id, dir, nil))
	other := r.newState("other", sizes...)
	check(t, r.LoadState(other.id, dir))
	other.want = s.want
	check(t, other.holdsOnHost())
	path := filepath.Join(dir, fmt.Sprintf("segment-%06d.bin", len(sizes)-1))
	text, err := os.ReadFile(path)
	check(t, err)
	text[1] ^= 1
	check(t, os.WriteFile(path, text, 0o600))
	if err := r.LoadState(other.id, dir); Code(err) != CodeCorrupt || !strings.Contains(err.Error(), path) {
		t.Errorf("spoiled: %v", err)
	}
}

// What a save could not remove of its unfinished checkpoint, the next one of the process does.
func TestWhatAFailedSaveLeftIsRemovedByTheNext(t *testing.T) {
	for what, faults := range map[string]string{
		"the directory stays":                    "pwrite:1:EIO,rmdir:1:EIO",
		"so does a file":                         "pwrite:1:EIO,unlink:1:EIO",
		"the directory comes to be later":        "mkdir:1:hang",
		"a file comes to be after its removal":   "open:1:hang",
		"the removal gets no answer in its turn": "pwrite:1:EIO,rmdir:1:hang",
	} {
		t.Run(what, func(t *testing.T) {
			r := newHangRigWith(t, Config{ChunkBytes: 4 << 20, StateChunk: stateChunk})
			s := r.filled(300<<10, 5)
			parent := testutil.InMemory(t)
			dir := filepath.Join(parent, "checkpoint")
			check(t, r.sys.Set("clone:*:EOPNOTSUPP,"+faults))
			if err := s.SaveState(s.id, dir, nil); err == nil {
				t.Fatal("no error")
			}
			check(t, r.sys.Set(""))
			for len(r.states.store.Deadline().Hung()) > 0 {
				runtime.Gosched()
			}
			check(t, s.SaveState(s.id, dir, nil))
			if got := names(t, parent); !slices.Equal(got, []string{"checkpoint"}) {
				t.Errorf("left beside the checkpoint: %v", got)
			}
			check(t, s.holdsOnHost())
		})
	}
}

func TestAFullDiskInASaveLeavesTheOlderCheckpoint(t *testing.T) {
	r := newStateRig(t)
	s := r.filled(300<<10, 5)
	parent := t.TempDir()
	dir := filepath.Join(parent, "checkpoint")
	check(t, s.SaveState(s.id, dir, nil))
	before := slices.Clone(s.want)
	s.want = [][]byte{randomBytes(300 << 10), before[1]}
	check(t, r.WriteStateHost(s.id, 0, 0, s.want[0]))
	for _, fault := range []string{"fallocate:1:ENOSPC", "pwrite:3:ENOSPC", "mkdir:1:ENOSPC"} {
		check(t, r.sys.Set("clone:*:EOPNOTSUPP,"+fault))
		if err := s.SaveState(s.id, dir, nil); Code(err) != CodeNoSpace || !strings.Contains(err.Error(), parent) {
			t.Errorf("%s: %v", fault, err)
		}
	}
	check(t, r.sys.Set(""))
	if got := names(t, parent); !slices.Equal(got, []string{"checkpoint"}) {
		t.Errorf("left beside the checkpoint: %v", got)
	}
	check(t, s.holdsOnHost()) // the state is as it was
	check(t, r.LoadState(s.id, dir))
	s.want = before
	check(t, s.holdsOnHost())
}

// saverEnv has the test binary save a checkpoint again and again to the directory that it names.
const saverEnv = "EBB_TEST_SAVER"

// beSaver is that process: it is killed.
func TestBeingASaver(t *testing.T) {
	dir := os.Getenv(saverEnv)
	if dir == "" {
		t.Skip("only in a process of its own")
	}
	s := newStateRig(t).filled(2<<20, 5)
	for i := 0; ; i++ {
		check(t, s.SaveState(s.id, dir, fmt.Appendf(nil, `{"save": %d}`, i)))
		if i == 0 {
			fmt.Println("saved")
		}
	}
}

func TestASaveThatIsKilledLeavesTheOlderCheckpoint(t *testing.T) {
	parent := t.TempDir()
	dir := filepath.Join(parent, "checkpoint")
	rounds := 2
	if long {
		rounds = 50
	}
	for range rounds {
		cmd := exec.Command(os.Args[0], "-test.run=^TestBeingASaver$", "-test.v")
		cmd.Env = append(os.Environ(), saverEnv+"="+dir, "TMPDIR="+t.TempDir()) // it is killed and removes nothing
		out, err := cmd.StdoutPipe()
		check(t, err)
		check(t, cmd.Start())
		p := make([]byte, 4096)
		for text := ""; !strings.Contains(text, "saved"); { // and now somewhere in the midst of the next ones
			n, err := out.Read(p)
			check(t, err)
			text += string(p[:n])
		}
		check(t, cmd.Process.Kill())
		_ = cmd.Wait()
		r := newStateRig(t)
		s := r.newState("again", 2<<20, 5)
		check(t, r.LoadState(s.id, dir))
		check(t, r.SaveState(s.id, dir, nil)) // which removes what the killed one left
		for _, name := range names(t, parent) {
			if name != "checkpoint" {
				t.Errorf("left: %s", name)
			}
		}
	}
}

// What is left by a process that may still live, or under any other name, stays.
func TestOnlyTheRestOfDeadSavesIsRemoved(t *testing.T) {
	r := newStateRig(t)
	s := r.filled(5)
	parent := t.TempDir()
	alive := r.self
	gone := r.self
	gone.PID, gone.StartTime = 1<<22-1, 1
	if !rankdir.Dead(gone, false) {
		t.Skip("a process of the largest number is alive")
	}
	killed := "c.tmp-" + gone.FilePrefix() + "3-old" // in the midst of a save, with nothing at the place
	for _, name := range []string{"c.tmp-" + alive.FilePrefix() + "1", "c.tmp-x", "d.tmp-" + gone.FilePrefix() + "1", "c.tmp-" + gone.FilePrefix() + "2", killed} {
		check(t, os.Mkdir(filepath.Join(parent, name), 0o700))
		check(t, os.WriteFile(filepath.Join(parent, name, sumsFile), nil, 0o600))
	}
	check(t, r.sys.Set("pwrite:1:EIO"))
	if err := s.SaveState(s.id, filepath.Join(parent, "c"), nil); Code(err) != CodeIO || !slices.Contains(names(t, parent), killed) {
		t.Errorf("the last whole checkpoint, after a save that failed (%v): %v", err, names(t, parent))
	}
	check(t, r.sys.Set(""))
	check(t, s.SaveState(s.id, filepath.Join(parent, "c"), nil))
	want := []string{"c", "c.tmp-" + alive.FilePrefix() + "1", "c.tmp-x", "d.tmp-" + gone.FilePrefix() + "1"}
	slices.Sort(want)
	if got := names(t, parent); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// Where the file system can, a checkpoint shares blocks with the state's files, and what the state is given
// later does not show in it.
func TestACheckpointThatSharesBlocksKeepsItsBytes(t *testing.T) {
	for _, kind := range []string{"btrfs", "xfs"} {
		t.Run(kind, func(t *testing.T) {
			dir := loopMount(t, kind)
			r := newStateRig(t)
			r.dir = filepath.Join(dir, "rank")
			s := r.filled(1<<20, 4097, 5)
			check(t, r.sys.Set(""))
			saved := filepath.Join(dir, "saved")
			check(t, s.SaveState(s.id, saved, nil))
			if calls := r.sys.Calls(); calls["clone"] == 0 || calls["pread"] != 0 {
				t.Errorf("calls %v: nothing was shared", calls)
			}
			before := s.want
			s.want = nil
			for n := range before {
				s.want = append(s.want, randomBytes(len(before[n])))
				check(t, r.WriteStateHost(s.id, uint32(n), 0, s.want[n]))
			}
			other := r.newState("other", 1<<20, 4097, 5)
			check(t, r.LoadState(other.id, saved))
			other.want = before
			check(t, other.holdsOnHost())
			check(t, s.holdsOnHost())
			check(t, errors.Join(r.CloseState(s.id), r.CloseState(other.id)))
			r.Shutdown()
			check(t, os.RemoveAll(saved))
		})
	}
}

// loopMount is a file system of a kind of its own, until the test ends.
func loopMount(t *testing.T, kind string) string {
	t.Helper()
	if _, err := exec.LookPath("mkfs." + kind); err != nil || os.Geteuid() != 0 {
		t.Skipf("no mkfs.%s, or not root", kind)
	}
	image, dir := filepath.Join(t.TempDir(), "image"), t.TempDir()
	f, err := os.Create(image)
	check(t, err)
	check(t, errors.Join(f.Truncate(512<<20), f.Close()))
	for _, cmd := range [][]string{{"mkfs." + kind, "-q", image}, {"mount", "-o", "loop", image, dir}} {
		if out, err := exec.Command(cmd[0], cmd[1:]...).CombinedOutput(); err != nil {
			t.Skipf("%v: %v\n%s", cmd, err, out)
		}
	}
	t.Cleanup(func() { check(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	return dir
}
