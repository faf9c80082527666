package store

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/ebb-offload/ebb/internal/filesys"
)

// smallDisks is a system in which directories have little room: bytes that files may take there.
type smallDisks struct {
	filesys.System
	room    map[string]int64
	promise bool // preallocation is not done by the file systems: it shows only in writes
}

func (s *smallDisks) left(fd int) (dir string, left int64) {
	path, _ := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	dir = filepath.Dir(path)
	left, limited := s.room[dir]
	if !limited {
		left = 1 << 40
	}
	return dir, left
}

func (s *smallDisks) Fallocate(fd int, size int64) error {
	if s.promise {
		return unix.EOPNOTSUPP
	}
	dir, left := s.left(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if size-st.Size > left {
		return unix.ENOSPC
	}
	if err := s.System.Fallocate(fd, size); err != nil {
		return err
	}
	s.room[dir] = left - (size - st.Size)
	return nil
}

func (s *smallDisks) Unlinkat(fd int, name string) error {
	var st unix.Stat_t
	if err := unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	dir, _ := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	err := s.System.Unlinkat(fd, name)
	if _, limited := s.room[dir]; limited && err == nil {
		s.room[dir] += st.Size
	}
	return err
}

func (s *smallDisks) Pwrite(fd int, p []byte, off int64) (int, error) {
	if _, left := s.left(fd); s.promise && left == 0 {
		return 0, unix.ENOSPC
	}
	return s.System.Pwrite(fd, p, off)
}

func (s *smallDisks) Fstatfs(fd int, st *unix.Statfs_t) error {
	path, _ := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err := s.System.Fstatfs(fd, st); err != nil {
		return err
	}
	if left, limited := s.room[path]; limited {
		st.Bavail = uint64(left) / uint64(st.Bsize)
	}
	return nil
}

// onDisks gives the directories of a world little room each, in blocks; negative: enough.
func onDisks(t *testing.T, blocks ...int64) (*world, *smallDisks) {
	w := newWorld(t, mode{dirs: len(blocks)})
	d := &smallDisks{System: w.sys, room: map[string]int64{}}
	for i, n := range blocks {
		if n >= 0 {
			d.room[w.dirs[i]] = n * testBlock
		}
	}
	w.store.sys, w.store.fds.sys = d, d
	return w, d
}

// dirOf is the index of the directory of a block.
func (w *world) dirOf(b Backing, off uint64) int {
	path, _, _ := strings.Cut(strings.TrimPrefix(b.Where(off), "file "), " (offset ")
	return slices.Index(w.dirs, filepath.Dir(path))
}

// TestBlocksAreDealtInTurn, also those of allocations with one block each.
func TestBlocksAreDealtInTurn(t *testing.T) {
	w, _ := onDisks(t, -1, -1, -1)
	w.size = 6 * testBlock
	large := w.open(t, 7)
	if err := large.Reserve(); err != nil {
		t.Fatal(err)
	}
	for i := range 6 {
		if got, want := w.dirOf(large, uint64(i)*testBlock), i%3; got != want {
			t.Errorf("block %d is in directory %d, want %d", i, got, want)
		}
	}
	w.size = 100
	for i := range 6 {
		b := w.open(t, uint64(10+i))
		if err := b.Reserve(); err != nil {
			t.Fatal(err)
		}
		if got, want := w.dirOf(b, 0), i%3; got != want {
			t.Errorf("small allocation %d is in directory %d, want %d", i, got, want)
		}
	}
	if u := w.store.Usage(); u.Files != 3+6 {
		t.Errorf("%d files: one for each allocation and directory is 9", u.Files)
	}
}

// TestDealing: every block has a place of its own, directories get no more than they have room
// for, and as much as the others.
func TestDealing(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		const block = 8192
		n := rapid.IntRange(1, 40).Draw(rt, "blocks")
		room := rapid.SliceOfN(rapid.IntRange(0, 45), 1, 5).Draw(rt, "room")
		turn := rapid.IntRange(0, len(room)-1).Draw(rt, "turn")
		first := rapid.IntRange(0, n-1).Draw(rt, "first")
		m := newBlockMap(uint64(n*block-rapid.IntRange(0, block-1).Draw(rt, "short")), block)
		total := 0
		for _, r := range room {
			total += r
		}
		sizes, ok := m.deal(first, turn, room)
		if ok != (n-first <= total) {
			rt.Fatalf("room for %d blocks, wanted for %d: %v", total, n-first, ok)
		}
		if !ok {
			return
		}
		taken := make([]int64, len(room))
		count := make([]int, len(room))
		for i := first; i < n; i++ {
			p := m.entry[i].place
			if p.at != taken[p.member] {
				rt.Fatalf("block %d is at %d of member %d, whose blocks so far end at %d", i, p.at, p.member, taken[p.member])
			}
			taken[p.member] += int64(alignUp(m.length(uint64(i) * block)))
			count[p.member]++
		}
		if !slices.Equal(taken, sizes) {
			rt.Fatalf("sizes %v, want %v", sizes, taken)
		}
		for i := range room {
			if count[i] > room[i] {
				rt.Fatalf("%d blocks in member %d, which has room for %d", count[i], i, room[i])
			}
			for k := range room {
				if count[k] > count[i]+1 && count[i] < room[i] {
					rt.Fatalf("%d blocks in member %d, %d in member %d, which has room for %d", count[k], k, count[i], i, room[i])
				}
			}
		}
	})
}

// TestAFullDirectorySpillsToTheOthers when room is taken: what fits stays there.
func TestAFullDirectorySpillsToTheOthers(t *testing.T) {
	for _, c := range []struct {
		room []int64
		want string // directories of the blocks of both backings
	}{
		{[]int64{0, -1}, "111111"},
		{[]int64{-1, 0, 0}, "000000"},
		{[]int64{1, -1}, "011" + "111"},
		{[]int64{3, 3}, "010" + "101"},
		{[]int64{1, 5}, "011" + "111"},
		{[]int64{-1, 1, 0}, "010" + "000"},
	} {
		t.Run(fmt.Sprint(c.room), func(t *testing.T) {
			w, _ := onDisks(t, c.room...)
			w.size = 3 * testBlock
			w.backings, w.good = nil, nil
			for id := range uint64(2) {
				w.open(t, 20+id)
			}
			for _, fill := range []byte{1, 100} {
				if err := w.cycle(t, fill); err != nil {
					t.Fatal(err)
				}
			}
			var got string
			for _, b := range w.backings {
				for off := uint64(0); off < w.size; off += testBlock {
					got += fmt.Sprint(w.dirOf(b, off))
				}
			}
			if got != c.want {
				t.Errorf("blocks are in directories %s, want %s", got, c.want)
			}
			if u := w.store.Usage(); u.DiskBytes != 2*w.size {
				t.Errorf("usage %+v, want %d bytes", u, 2*w.size)
			}
			for i, room := range c.room {
				told := slices.ContainsFunc(w.warned, func(line string) bool {
					return strings.HasPrefix(line, w.dirs[i]+" is full")
				})
				if full := strings.Count(c.want, fmt.Sprint(i)) < 3 && room >= 0; told != full {
					t.Errorf("directory %d full: %v, said: %q", i, full, w.warned)
				}
			}
			w.closed(t)
		})
	}
}

// TestAllDirectoriesFull names each, and gives back what was taken.
func TestAllDirectoriesFull(t *testing.T) {
	w, _ := onDisks(t, 1, 0, 1)
	b := w.backings[0]
	for range 2 {
		err := b.Reserve()
		var space *NoSpaceError
		if !errors.Is(err, ErrNoSpace) || !errors.Is(err, unix.ENOSPC) || !errors.As(err, &space) {
			t.Fatalf("reserve: %v, want a NoSpaceError", err)
		}
		// All are on one device, whose room counts once.
		if space.Dir != strings.Join(w.dirs, ", ") || space.Need != w.size || space.Free != testBlock {
			t.Errorf("reported: %+v, want need %d and free %d in %q", space, w.size, testBlock, w.dirs)
		}
		if u := w.store.Usage(); u.DiskBytes != 0 || u.Files != 0 {
			t.Errorf("it still takes %+v", u)
		}
	}
	w.closed(t)
}

// TestADirectoryThatFillsUpWhileWriting: its blocks move to one with room, and stay there.
func TestADirectoryThatFillsUpWhileWriting(t *testing.T) {
	w, d := onDisks(t, -1, -1)
	d.promise = true
	if err := w.cycle(t, 1); err != nil {
		t.Fatal(err)
	}
	before := w.store.Usage()
	d.room[w.dirs[0]] = 0
	if err := w.cycle(t, 50); err != nil {
		t.Fatal(err)
	}
	for i, b := range w.backings {
		for off := uint64(0); off < w.size; off += testBlock {
			if w.dirOf(b, off) != 1 {
				t.Errorf("block %d of backing %d is in %s", off, i, b.Where(off))
			}
		}
	}
	grown := w.store.Usage()
	if !slices.ContainsFunc(w.warned, func(line string) bool { return strings.HasPrefix(line, w.dirs[0]+" is full") }) {
		t.Errorf("said: %q", w.warned)
	}
	// Blocks go back to the room that they left, when the other directory fills up.
	d.room[w.dirs[0]], d.room[w.dirs[1]] = 1<<40, 0
	for _, fill := range []byte{100, 150} {
		if err := w.cycle(t, fill); err != nil {
			t.Fatal(err)
		}
	}
	if after := w.store.Usage(); grown.DiskBytes <= before.DiskBytes || after.DiskBytes > 2*before.DiskBytes {
		t.Errorf("first %d bytes, then %d, then %d", before.DiskBytes, grown.DiskBytes, after.DiskBytes)
	}
	w.closed(t)
}

// TestAllDirectoriesFillUpWhileWriting: the error names all, what was written stays, and pauses
// that fail take no more room each time.
func TestAllDirectoriesFillUpWhileWriting(t *testing.T) {
	w, d := onDisks(t, -1, -1)
	d.promise = true
	if err := w.cycle(t, 1); err != nil {
		t.Fatal(err)
	}
	d.room[w.dirs[0]], d.room[w.dirs[1]] = 0, 0
	var taken uint64
	for range 3 {
		err := w.cycle(t, 50)
		var space *NoSpaceError
		if !errors.As(err, &space) || !strings.Contains(space.Dir, w.dirs[0]) || !strings.Contains(space.Dir, w.dirs[1]) {
			t.Fatalf("cycle: %v, want a NoSpaceError of both directories", err)
		}
		if b := w.backings[0]; b.Block(0) != (Block{}) || b.Block(testBlock) != filled(2) {
			t.Errorf("the block not written is %+v, the one after it %+v", b.Block(0), b.Block(testBlock))
		}
		w.checkReadable(t)
		if u := w.store.Usage(); taken != 0 && u.DiskBytes != taken {
			t.Errorf("%d bytes are taken, %d after one more failure", taken, u.DiskBytes)
		} else {
			taken = u.DiskBytes
		}
	}
	clear(d.room)
	w.finish(t)
}

// TestAFailingDirectoryIsNamed, and nothing goes elsewhere silently.
func TestAFailingDirectoryIsNamed(t *testing.T) {
	w, _ := onDisks(t, -1, -1)
	if err := w.cycle(t, 1); err != nil {
		t.Fatal(err)
	}
	bad := w.backings[0]
	for off := uint64(0); off < w.size; off += testBlock {
		if w.dirOf(bad, off) != 1 {
			continue
		}
		w.fault("pwrite:*:EIO")
		err := bad.WriteBlock(off, pages(t, testBlock)[:min(testBlock, w.size-off)], filled(9))
		if !errors.Is(err, ErrIO) || !strings.Contains(err.Error(), w.dirs[1]+"/") || strings.Contains(err.Error(), w.dirs[0]+"/") {
			t.Errorf("write at %d: %v, want an error that names %s", off, err, w.dirs[1])
		}
		if got := bad.Block(off); got != (Block{}) {
			t.Errorf("the block not written is %+v", got)
		}
	}
	w.fault("")
	w.finish(t)
}

// TestADirectoryNamedTwiceIsUsedOnce, and that is said once.
func TestADirectoryNamedTwiceIsUsedOnce(t *testing.T) {
	root := t.TempDir()
	one, two, link := filepath.Join(root, "one"), filepath.Join(root, "two"), filepath.Join(root, "link")
	if err := errors.Join(os.Mkdir(one, 0o700), os.Symlink(one, link)); err != nil {
		t.Fatal(err)
	}
	var said []string
	s := New(Options{
		BlockBytes: testBlock,
		Name:       func(seq uint64) string { return fmt.Sprint("backup-", seq) },
		Dirs:       func() []string { return []string{one, "", two, link} },
		Warn:       func(line string) { said = append(said, line) },
	})
	for id := range uint64(2) {
		b, err := s.Open(id, 6*testBlock)
		if err != nil {
			t.Fatal(err)
		}
		if err := b.Reserve(); err != nil {
			t.Fatal(err)
		}
	}
	if u := s.Usage(); u.Files != 2*2 {
		t.Errorf("%d files, want one for each backing and directory", u.Files)
	}
	want := []string{fmt.Sprintf("%s and %s are the same directory: it is used once", one, link)}
	if !slices.Equal(said, want) {
		t.Errorf("said: %q, want %q", said, want)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// TestBlocksThatAreNotWritten leave the disk alone, and their room to later pauses.
func TestBlocksThatAreNotWritten(t *testing.T) {
	for _, state := range []BlockState{Zero, Dead} {
		w := newWorld(t, mode{})
		b := w.backings[0]
		if err := b.Reserve(); err != nil {
			t.Fatal(err)
		}
		taken := w.store.Usage()
		if taken.DiskBytes != alignUp(w.size) {
			t.Errorf("%v blocks: %d bytes are taken for %d", state, taken.DiskBytes, w.size)
		}
		w.fault("pwrite:*:EIO") // there is none
		for off := uint64(0); off < w.size; off += testBlock {
			b.Mark(off, Block{State: state})
		}
		if err := b.Commit(); err != nil {
			t.Errorf("commit of %v blocks: %v", state, err)
		}
		w.fault("")
		w.finish(t)
	}
}

// One file is gone and another disk cannot be asked about its own: the backing is as it was, until it can.
func TestALostFileBesideADiskThatFails(t *testing.T) {
	sys, dirs := filesys.NewFaults(filesys.Kernel{}), []string{t.TempDir(), t.TempDir()}
	s := New(Options{BlockBytes: testBlock, System: sys, Dirs: func() []string { return dirs }, Name: func(seq uint64) string { return fmt.Sprintf("%d.bak", seq) }})
	b, err := s.Open(1, 2*testBlock)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Reserve(); err != nil {
		t.Fatal(err)
	}
	lost := fileOf(b)
	if err := os.Remove(lost); err != nil {
		t.Fatal(err)
	}
	if err := sys.Set("fstatat:2:EIO"); err != nil {
		t.Fatal(err)
	}
	if err := b.Reserve(); !errors.Is(err, ErrIO) {
		t.Errorf("reserve: %v", err)
	}
	if got := b.Where(0); !strings.Contains(got, lost) {
		t.Errorf("the first block is at %s", got)
	}
	if err := b.Reserve(); err != nil || fileOf(b) == lost {
		t.Errorf("reserve, when nothing fails: %v; the first block is at %s", err, b.Where(0))
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
