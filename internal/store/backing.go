package store

import (
	"fmt"
	"sync"
	"unsafe"
)

// Backing holds the bytes of one allocation. WriteBlock and ReadBlock may be called from many
// goroutines at once for different blocks, and Block, Mark, Direct, Memory and Where likewise;
// the other methods from one at a time, with no block call under way. Release may come at any
// time. Different backings have nothing to do with one another.
type Backing interface {
	// Reserve takes the room for all size bytes (file extents, host pages), so that a lack of
	// it shows before anything is copied. Idempotent; room is kept until Release. Room that
	// someone else took away (a file removed by a launcher that empties its directory) is
	// taken again, with all blocks absent: call it for memory that is still on the device.
	Reserve() error
	// WriteBlock stores p as the block that begins at byte off of the allocation; off is a
	// multiple of the store's block size. p is a whole block, or shorter for the last one.
	// p begins at a multiple of 4096 in memory, and p[:cap(p)] reaches to the next one: the
	// store may overwrite p[len(p):] with zeros and write it too. The block's entry is absent
	// until the write has returned, then b: Stored, with the fingerprint of p if that is known.
	WriteBlock(off uint64, p []byte, b Block) error
	// ReadBlock fills p with the block at off, which must not be absent (ErrAbsent): with what
	// was written, or zeros. The same rule for p's capacity holds.
	ReadBlock(off uint64, p []byte) error
	// Block is what is known of the block at off. Entries stay true from one pause to the next.
	Block(off uint64) Block
	// Mark sets the entry of the block at off without a write. Absent: before its Memory is
	// written directly. Stored: after that; ignored for a block without Memory. Zero: the bytes
	// are all zero, and so is the block's host memory afterwards, if it has any (where that
	// cannot be had, the block is left absent). Dead: the bytes are not needed, and are zero
	// when read.
	Mark(off uint64, b Block)
	// Direct reports whether the block at off lies in host memory that devices can copy to and
	// from, so that Memory will give it; others go through WriteBlock and ReadBlock.
	Direct(off uint64) bool
	// Memory is that host memory, nil for a block that is not Direct. It waits until the memory
	// is there; the error, ErrPromised, says why it cannot be. A user that writes to it directly marks the
	// block absent before, and stored after. Valid from Reserve to Release.
	Memory(off uint64) ([]byte, error)
	// Commit is called after the last write: no block may be absent (ErrAbsent names the first
	// that is), and all is on the device when it returns. When that cannot be had, all blocks
	// are absent.
	Commit() error
	// Settle is Commit for who has written a part: blocks may be absent. Reads may be under way.
	Settle() error
	// InFile calls use with the descriptor of the file in which the block at off lies and its offset
	// there, and tells whether it lies in one. What use does there is not recorded.
	InFile(off uint64, use func(fd int, at int64) error) (bool, error)
	// Pointer is the address of byte off in host memory, whether or not devices can copy to
	// it; ErrNoMemory when not all of the backing lies there now, ErrAbsent while a block is
	// absent. What dead blocks show is undefined. Valid until Release.
	Pointer(off uint64) (unsafe.Pointer, error)
	// Where names for people the place of the block at off: "file /x/ebb-….bak (offset 4096)",
	// "host memory", or the allocation when it has none.
	Where(off uint64) string
	// Places calls visit for each block in a file, with the directory, the file's name and the block's
	// offset in it, and returns how many bytes of the allocation lie in host memory instead.
	Places(visit func(off uint64, b Block, dir, file string, at int64)) (host uint64)
	// Release gives back all room; other calls fail from then on. Idempotent. After an error
	// it can be called again.
	Release() error
}

// backing is the one Backing there is: its first blocks lie in one region of host memory, the
// others in one file for each directory.
type backing struct {
	store  *Store
	id     uint64
	blocks blockMap

	// mu guards the fields below and the places of the blocks. Block calls hold it for reading
	// while they use host memory, so that the memory stays until they are done, and while they
	// look up a file, but not over the transfer: fdCache keeps the file for them.
	mu       sync.RWMutex
	reserved bool     // every block has a place
	released bool     // for good
	host     host     // where the first blocks lie
	members  []member // directories where the others lie
	turn     int      // the member of the first of these
	litter   []*diskFile
}

// host is the host memory of a backing; none when extent is nil.
type host struct {
	extent Extent
	bytes  uint64
}

// WriteBlock implements Backing.
func (b *backing) WriteBlock(off uint64, p []byte, as Block) error {
	e, f, err := b.find(off, uint64(len(p)))
	switch {
	case err != nil:
	case f == nil:
		err = b.writeMemory(e, p, as)
	default:
		err = b.writeFile(e, f, p, as)
	}
	if err != nil {
		return fmt.Errorf("write block at offset %d of %s: %w", off, b.Where(off), err)
	}
	return nil
}

func (b *backing) writeMemory(e *blockEntry, p []byte, as Block) error {
	return b.useMemory(e, uint64(len(p)), func(memory []byte) {
		e.set(Block{})
		copy(memory, p)
		e.set(as)
	})
}

func (b *backing) writeFile(e *blockEntry, f *diskFile, p []byte, as Block) error {
	padded, err := pad(p)
	if err != nil {
		return err
	}
	e.set(Block{})
	clear(padded[len(p):])
	if err := b.store.write(f, padded, e.place.at); err != nil {
		if err = b.spill(e, padded, err); err != nil {
			return err
		}
	}
	e.set(as)
	return nil
}

// ReadBlock implements Backing.
func (b *backing) ReadBlock(off uint64, p []byte) error {
	e, f, err := b.find(off, uint64(len(p)))
	if err == nil {
		switch state := e.get().State; {
		case state == Absent:
			err = ErrAbsent
		case state != Stored:
			clear(p)
		case f == nil:
			err = b.readMemory(e, p)
		default:
			err = b.readFile(e, f, p)
		}
	}
	if err != nil {
		return fmt.Errorf("read block at offset %d of %s: %w", off, b.Where(off), err)
	}
	return nil
}

func (b *backing) readMemory(e *blockEntry, p []byte) error {
	return b.useMemory(e, uint64(len(p)), func(memory []byte) { copy(p, memory) })
}

// useMemory waits for a block's host memory and runs use on it; the memory stays until then.
func (b *backing) useMemory(e *blockEntry, n uint64, use func(memory []byte)) error {
	memory, err := b.memory(e, n)
	if err != nil {
		return err
	}
	b.mu.RLock()
	defer b.mu.RUnlock()
	if !b.reserved { // released meanwhile
		return errNoRoom
	}
	use(memory)
	return nil
}

// memory waits for a block's host memory.
func (b *backing) memory(e *blockEntry, n uint64) ([]byte, error) {
	b.mu.RLock()
	extent := b.host.extent
	b.mu.RUnlock()
	if extent == nil {
		return nil, errNoRoom
	}
	memory, err := extent.Bytes(uint64(e.place.at), n)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrPromised, err)
	}
	return memory, nil
}

func (b *backing) readFile(e *blockEntry, f *diskFile, p []byte) error {
	padded, err := pad(p)
	if err != nil {
		return err
	}
	return b.store.read(f, padded, e.place.at)
}

// find checks the arguments of a block call and returns the block's entry, and its file; nil
// when it lies in host memory.
func (b *backing) find(off, n uint64) (*blockEntry, *diskFile, error) {
	if err := b.blocks.check(off, n); err != nil {
		return nil, nil, err
	}
	b.mu.RLock()
	defer b.mu.RUnlock()
	switch e := b.blocks.at(off); {
	case b.released:
		return nil, nil, ErrClosed
	case !b.reserved:
		return nil, nil, errNoRoom
	case e.place.inHost():
		return e, nil, nil
	default:
		return e, b.members[e.place.member].file, nil
	}
}

// pad returns p with the bytes behind it that fill the last unit of direct I/O.
func pad(p []byte) ([]byte, error) {
	n := alignUp(uint64(len(p)))
	if uint64(cap(p)) < n || uintptr(unsafe.Pointer(unsafe.SliceData(p)))%ioAlign != 0 {
		return nil, fmt.Errorf("the memory of the block (%p, %d bytes) is not aligned to and padded to %d", p, cap(p), ioAlign)
	}
	return p[:n], nil
}

// Block implements Backing.
func (b *backing) Block(off uint64) Block {
	e, _ := b.lookUp(off)
	if e == nil {
		return Block{}
	}
	return e.get()
}

// Mark implements Backing.
func (b *backing) Mark(off uint64, as Block) {
	e, hosted := b.lookUp(off)
	switch {
	case e == nil: // Commit says so
	case !hosted:
		if as.State != Stored {
			e.set(as) // old bytes stay in the file
		}
	case as.State == Zero && e.get().State != Zero:
		e.set(Block{})
		if b.useMemory(e, b.blocks.length(off), func(memory []byte) { clear(memory) }) == nil {
			e.set(as)
		}
	default:
		e.set(as)
	}
}

// Direct implements Backing.
func (b *backing) Direct(off uint64) bool {
	_, hosted := b.lookUp(off)
	return hosted && b.store.options.Direct
}

// Memory implements Backing.
func (b *backing) Memory(off uint64) ([]byte, error) {
	e, hosted := b.lookUp(off)
	if !hosted || !b.store.options.Direct {
		return nil, nil
	}
	memory, err := b.memory(e, b.blocks.length(off))
	if err != nil {
		return nil, fmt.Errorf("block at offset %d of %s: %w", off, b.Where(off), err)
	}
	return memory, nil
}

// lookUp returns the entry of the block at off, and whether it lies in host memory; nil when no
// block begins there, or the backing has no room now.
func (b *backing) lookUp(off uint64) (e *blockEntry, hosted bool) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	if !b.reserved || !b.blocks.begins(off) {
		return nil, false
	}
	e = b.blocks.at(off)
	return e, e.place.inHost()
}

// Commit implements Backing.
func (b *backing) Commit() error {
	if err := b.commit(); err != nil {
		return fmt.Errorf("commit the backup of allocation %d: %w", b.id, err)
	}
	return nil
}

func (b *backing) commit() error {
	files, err := b.files()
	if err != nil {
		return err
	}
	if off, found := b.blocks.firstAbsent(); found {
		return fmt.Errorf("block at offset %d: %w", off, ErrAbsent)
	}
	return b.settle(files)
}

func (b *backing) settle(files []*diskFile) error {
	for _, f := range files {
		if err := b.store.settle(f); err != nil {
			// The system reports a failed write-back once, without saying of which bytes.
			b.blocks.forget()
			return fmt.Errorf("%s: %w", f.path(), err)
		}
	}
	return nil
}

// Settle implements Backing.
func (b *backing) Settle() error {
	files, err := b.files()
	if err == nil {
		err = b.settle(files)
	}
	if err != nil {
		return fmt.Errorf("settle the backup of allocation %d: %w", b.id, err)
	}
	return nil
}

// InFile implements Backing.
func (b *backing) InFile(off uint64, use func(fd int, at int64) error) (bool, error) {
	e, f, err := b.find(off, b.blocks.length(min(off, b.blocks.size)))
	if err != nil || f == nil {
		return false, err
	}
	fd, _, err := b.store.fds.acquire(f)
	if err != nil {
		return true, fmt.Errorf("%s: %w", f.path(), err)
	}
	defer b.store.fds.release(f)
	return true, use(fd, e.place.at)
}

// files are those that hold blocks.
func (b *backing) files() (list []*diskFile, err error) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	switch {
	case b.released:
		return nil, ErrClosed
	case !b.reserved:
		return nil, errNoRoom
	}
	for i := range b.members {
		if f := b.members[i].file; f != nil {
			list = append(list, f)
		}
	}
	return list, nil
}

// Pointer implements Backing.
func (b *backing) Pointer(off uint64) (unsafe.Pointer, error) {
	p, err := b.pointer(off)
	if err != nil {
		return nil, fmt.Errorf("backup of allocation %d: %w", b.id, err)
	}
	return p, nil
}

func (b *backing) pointer(off uint64) (unsafe.Pointer, error) {
	b.mu.RLock()
	extent, all := b.host.extent, b.reserved && b.host.bytes >= b.blocks.size
	b.mu.RUnlock()
	if !all {
		return nil, ErrNoMemory
	}
	if off >= b.blocks.size {
		return nil, fmt.Errorf("offset %d is beyond its %d bytes", off, b.blocks.size)
	}
	if at, found := b.blocks.firstAbsent(); found {
		return nil, fmt.Errorf("block at offset %d: %w", at, ErrAbsent)
	}
	memory, err := extent.Bytes(0, b.blocks.size)
	if err != nil {
		return nil, err
	}
	return unsafe.Pointer(&memory[off]), nil
}

// Where implements Backing.
func (b *backing) Where(off uint64) string {
	b.mu.RLock()
	defer b.mu.RUnlock()
	if !b.reserved || !b.blocks.begins(off) {
		return fmt.Sprintf("allocation %d", b.id)
	}
	at := b.blocks.at(off).place
	if at.inHost() {
		return "host memory"
	}
	return fmt.Sprintf("file %s (offset %d)", b.members[at.member].file.path(), at.at)
}

// Places implements Backing.
func (b *backing) Places(visit func(off uint64, b Block, dir, file string, at int64)) (host uint64) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	if !b.reserved {
		return 0
	}
	for i := range b.blocks.entry {
		e, off := &b.blocks.entry[i], uint64(i)*b.blocks.block
		if e.place.inHost() {
			host += b.blocks.length(off)
			continue
		}
		m := &b.members[e.place.member]
		visit(off, e.get(), m.dir, m.file.name, e.place.at)
	}
	return host
}

// Release implements Backing. It waits for no transfer: files are closed by their last user.
func (b *backing) Release() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.released = true
	if err := b.giveUp(); err != nil {
		b.store.litter.Store(true) // to be tried again
		return fmt.Errorf("release the backup of allocation %d: %w", b.id, err)
	}
	b.store.released(b)
	return nil
}
