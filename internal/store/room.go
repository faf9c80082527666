package store

import (
	"errors"
	"fmt"
	"slices"

	"github.com/ebb-offload/ebb/internal/filesys"
	"github.com/ebb-offload/ebb/internal/sizes"
)

// member is a directory as one backing uses it.
type member struct {
	dir   string    // absolute
	file  *diskFile // nil: no block of the backing lies there
	spare []slot    // room in the file that blocks left behind when they moved
}

// held is the size of the member's file in bytes.
func (m *member) held() int64 {
	if m.file == nil {
		return 0
	}
	return m.file.size
}

// slot is room for one block.
type slot struct{ at, bytes int64 }

// Reserve implements Backing.
func (b *backing) Reserve() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.reserve(); err != nil {
		return fmt.Errorf("room for the backup of allocation %d: %w", b.id, err)
	}
	return nil
}

func (b *backing) reserve() error {
	if b.released {
		return ErrClosed
	}
	if b.reserved {
		lost, err := b.findLost()
		if err != nil || !lost {
			return err
		}
		b.reserved = false
		b.blocks.forget()
		if err := b.clean(); err != nil {
			return err
		}
	} else if err := b.giveUp(); err != nil { // what an earlier failure left
		return err
	}
	if err := b.take(); err != nil {
		return filesys.Also(err, b.giveUp())
	}
	b.reserved = true
	return nil
}

// findLost drops the files that are gone (launchers empty the directory of a live process) or that
// somebody else changed: they hold the only copy of blocks that are not written again. On an error it has
// dropped none, since blocks have their places in them.
func (b *backing) findLost() (lost bool, err error) {
	var gone []*member
	for i := range b.members {
		m := &b.members[i]
		if m.file == nil {
			continue
		}
		intact, _, err := b.store.intact(m.file)
		if err != nil {
			return false, err
		}
		if !intact {
			gone = append(gone, m)
		}
	}
	for _, m := range gone {
		if b.blocks.anyStored() {
			b.store.warn(m.dir, "lost", "%s: the file was removed or changed by someone else; it is made again", m.file.path())
		}
		b.litter = append(b.litter, m.file)
		m.file = nil
	}
	return len(gone) > 0, nil
}

// take gives every block a place: the first ones in host memory, as many as there is memory for,
// the others in files.
func (b *backing) take() error {
	if b.members == nil { // else files that are there keep their share
		if err := b.takeHost(); err != nil {
			return fmt.Errorf("host memory: %w", err)
		}
	}
	first := 0 // block that is not in host memory
	for off := uint64(0); off < b.host.bytes; off += b.blocks.block {
		b.blocks.entry[first].place = place{member: inHost, at: int64(off)}
		first++
	}
	if first == len(b.blocks.entry) {
		return nil
	}
	if err := b.takeDisk(first); err != nil {
		return fmt.Errorf("on disk: %w", err)
	}
	return nil
}

// takeHost takes host memory. What cannot be had goes to disk, if there is one.
func (b *backing) takeHost() error {
	s := b.store
	n := s.claim(b.blocks.size)
	if n == 0 {
		return nil
	}
	extent, err := s.options.Alloc(n)
	if err == nil {
		b.host = host{extent: extent, bytes: n}
		return nil
	}
	s.unclaim(n)
	if s.options.Dirs == nil {
		return err
	}
	s.warn("", "host", "less host memory for backups than their budget: the rest goes to disk (%v)", err)
	return nil
}

// takeDisk takes room in files for the blocks from first on. What does not fit into one
// directory goes to the others.
func (b *backing) takeDisk(first int) error {
	if b.members == nil {
		dirs, err := b.store.directories()
		if err != nil {
			return err
		}
		b.members = make([]member, len(dirs))
		for i, dir := range dirs {
			b.members[i].dir = dir
		}
		blocks := uint64(len(b.blocks.entry) - first)
		b.turn = int((b.store.dealt.Add(blocks) - blocks) % uint64(len(dirs)))
	}
	blocks := len(b.blocks.entry) - first
	room := make([]int, len(b.members)) // blocks that each can take, as far as is known
	for i := range room {
		room[i] = blocks
		b.members[i].spare = nil
	}
	full := make([]*NoSpaceError, len(room))
	for {
		sizes, ok := b.blocks.deal(first, b.turn, room)
		if !ok {
			b.measure(full)
			return allFull(b.blocks.size-uint64(first)*b.blocks.block, full)
		}
		i, err := b.fitAll(sizes)
		if err == nil {
			return nil
		}
		if !errors.As(err, &full[i]) {
			return err
		}
		room[i] = fewer(uint64(sizes[i]), uint64(b.members[i].held()), full[i], b.blocks.block)
		if len(room) > 1 {
			b.warnOfFull(full[i])
		}
	}
}

// measure says what is free in directories that have no room, each for itself, when what this backing has there
// is given back, as it is about to be. Directories of one file system have the same free bytes.
func (b *backing) measure(full []*NoSpaceError) {
	held := map[uint64]uint64{} // by device
	for i := range b.members {
		held[full[i].dev] += uint64(b.members[i].held())
	}
	for i, e := range full {
		if e.limited() {
			e.Free += uint64(b.members[i].held())
		} else if free, err := b.store.freeIn(b.members[i].dir); err == nil {
			e.Free = free + held[e.dev]
		} // else what was free when it was refused, of which the backing may have taken some
	}
}

// fewer is how many blocks to try in a file that holds some bytes, and for which there was no
// room to hold as many as wanted.
func fewer(want, held uint64, full *NoSpaceError, block uint64) int {
	share, fits := (want+block-1)/block, (held+full.Free)/block
	switch {
	case full.InodesFree == 0 && held == 0:
		return 0
	case fits < share:
		return int(fits)
	}
	return int(share / 2) // the file system needs some for itself
}

func (b *backing) warnOfFull(full *NoSpaceError) {
	if full.limited() {
		b.store.warn(full.Dir, "full", "%v; until then blocks go to the other directories", full)
		return
	}
	b.store.warn(full.Dir, "full", "%s is full (%s free): blocks go to the other directories", full.Dir, sizes.Binary(full.Free))
}

// deal gives the blocks from first on a place each: to the members in turn, beginning at turn,
// passing over those without room, and in each file one behind the other. room is in blocks.
// sizes are those of the files; not ok when the blocks are more than there is room for.
func (m *blockMap) deal(first, turn int, room []int) (sizes []int64, ok bool) {
	sizes = make([]int64, len(room))
	dealt := make([]int, len(room))
	for i := first; i < len(m.entry); i++ {
		for passed := 0; dealt[turn] == room[turn]; passed++ {
			if passed == len(room) {
				return nil, false
			}
			turn = (turn + 1) % len(room)
		}
		m.entry[i].place = place{member: int32(turn), at: sizes[turn]}
		sizes[turn] += int64(alignUp(m.length(uint64(i) * m.block)))
		dealt[turn]++
		turn = (turn + 1) % len(room)
	}
	return sizes, true
}

// fitAll makes the members' files, or grows them. On an error it says which one it concerns.
func (b *backing) fitAll(sizes []int64) (member int, err error) {
	for i, size := range sizes {
		if err := b.fit(&b.members[i], size); err != nil {
			return i, err
		}
	}
	return 0, nil
}

// fit sees to it that a member's file has room for size bytes.
func (b *backing) fit(m *member, size int64) error {
	s := b.store
	switch {
	case m.held() >= size:
		return nil
	case m.file != nil:
		return s.grow(m.file, size)
	}
	d, err := s.enter(m.dir)
	if err != nil {
		return err
	}
	f, err := s.create(d, size)
	switch {
	case err == nil:
		m.file = f
	case f != nil:
		b.litter = append(b.litter, f) // keeps its reference to d
	default:
		s.leave(d)
	}
	return err
}

// spill writes a block that could not be written into another directory, if its own is full.
func (b *backing) spill(e *blockEntry, p []byte, cause error) error {
	var space *NoSpaceError
	if !errors.As(cause, &space) {
		return cause
	}
	full := []*NoSpaceError{space}
	b.mu.RLock()
	members := len(b.members)
	b.mu.RUnlock()
	for i := range members {
		if int32(i) == e.place.member {
			continue
		}
		f, at, err := b.slotIn(i, int64(len(p)))
		if err == nil {
			if err = b.store.write(f, p, at.at); err == nil {
				b.moved(e, i, at, int64(len(p)))
				b.warnOfFull(full[0])
				return nil
			}
			b.putBack(i, at)
		}
		if !errors.As(err, &space) {
			return err
		}
		full = append(full, space)
	}
	return allFull(uint64(len(p)), full)
}

// slotIn finds room for a block of n bytes in a member, or takes some more.
func (b *backing) slotIn(i int, n int64) (*diskFile, slot, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.reserved {
		return nil, slot{}, errNoRoom
	}
	m := &b.members[i]
	for k, s := range m.spare {
		if s.bytes >= n {
			m.spare = slices.Delete(m.spare, k, k+1)
			return m.file, s, nil
		}
	}
	end := m.held()
	if err := b.fit(m, end+n); err != nil {
		return nil, slot{}, err
	}
	return m.file, slot{at: end, bytes: n}, nil
}

// moved gives a block of n bytes its new place; the old one is spare.
func (b *backing) moved(e *blockEntry, i int, at slot, n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.reserved {
		return
	}
	old := &b.members[e.place.member]
	old.spare = append(old.spare, slot{at: e.place.at, bytes: n})
	e.place = place{member: int32(i), at: at.at}
}

// putBack makes room spare again.
func (b *backing) putBack(i int, at slot) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.reserved {
		b.members[i].spare = append(b.members[i].spare, at)
	}
}

// giveUp gives back all room, and forgets the directories. What cannot be given back now is
// tried again by the next call. Called with mu held.
func (b *backing) giveUp() error {
	b.reserved = false
	b.blocks.forget()
	for _, m := range b.members {
		if m.file != nil {
			b.litter = append(b.litter, m.file)
		}
	}
	b.members = nil
	return errors.Join(b.clean(), b.freeHost())
}

// clean removes files that the backing does not use. Called with mu held.
func (b *backing) clean() error {
	var errs []error
	kept := b.litter[:0]
	for _, f := range b.litter {
		if err := b.store.discard(f); err != nil {
			b.store.litter.Store(true)
			errs = append(errs, err)
			kept = append(kept, f)
			continue
		}
		b.store.leave(f.dir)
	}
	clear(b.litter[len(kept):])
	b.litter = kept
	return errors.Join(errs...)
}

func (b *backing) freeHost() error {
	if b.host.extent == nil {
		return nil
	}
	if err := b.host.extent.Free(); err != nil {
		return fmt.Errorf("free host memory: %w", err)
	}
	b.store.unclaim(b.host.bytes)
	b.host = host{}
	return nil
}
