package engine

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sort"
	"time"

	"github.com/ebb-offload/ebb/internal/alloc"
	"github.com/ebb-offload/ebb/internal/device"
	"github.com/ebb-offload/ebb/internal/filesys"
	"github.com/ebb-offload/ebb/internal/hostmem"
	"github.com/ebb-offload/ebb/internal/mem"
	"github.com/ebb-offload/ebb/internal/pipeline"
	"github.com/ebb-offload/ebb/internal/rankdir"
	"github.com/ebb-offload/ebb/internal/store"
)

// StateIO is a part of a segment, and where it is on a device.
type StateIO struct {
	Segment       uint32
	Offset, Bytes uint64
	Addr          mem.Addr
}

// StateDone is what a request did.
type StateDone struct {
	Bytes       uint64        // that were asked for
	DiskBytes   uint64        // of these, that files were read or written for
	SkippedZero uint64        // of these, all zero
	Duration    time.Duration // from when its turn came
	Wait        time.Duration // that WaitState waited
}

// stateRequest is one read or write. A request waits for those before it in its direction, and for all before it
// that concern a segment of its own: as each waits for earlier ones only, some request can always go on.
type stateRequest struct {
	state     *State
	direction pipeline.Direction
	device    int
	parts     []part
	blocks    []int               // of the parts before each
	after     []*stateRequest     // that it waits for
	held      []*alloc.Allocation // managed memory that it is read to or written from
	done      chan struct{}       // closed at the end; then result and err are there

	// bytes, if not nil, gives or takes those of a block, in place of device memory.
	bytes func(s *segment, off uint64, p []byte) error
	// before runs first: an error of it means that nothing was changed. afterwards runs last in any case.
	before     func() error
	afterwards func()
	// instead is all that is done, in place of transfers.
	instead func(l *lane) error
	outside bool // it uses files of a checkpoint, too

	event device.Event // that a write waits for; guarded by states.mu until it is its turn
	reset bool         // its device was; guarded by states.mu

	moved   pipeline.Moved
	touched bool // a write has begun
	result  StateDone
	err     error
}

// part is a run of blocks of a segment.
type part struct {
	*segment
	offset, bytes uint64
	addr          mem.Addr
	memory        []*alloc.Allocation // managed, that it lies in; held by its request
}

// ReadState begins to read parts to device memory, and WriteState to write them from there when the work that is
// in the stream now is done. The ticket is for WaitState.
func (e *Engine) ReadState(id uint64, ios []StateIO) (ticket uint64, err error) {
	r, err := e.deviceRequest(id, pipeline.Load, ios)
	if err != nil {
		return 0, err
	}
	return e.begin(r)
}

// WriteState is described at ReadState.
func (e *Engine) WriteState(id uint64, ios []StateIO, stream device.Stream) (ticket uint64, err error) {
	r, err := e.deviceRequest(id, pipeline.Store, ios)
	if err != nil {
		return 0, err
	}
	e.background.RLock() // a reset sees the event either before it is made or among the requests
	defer e.background.RUnlock()
	err = e.take(r.device, func() (err error) {
		if captures, err := e.drv.StreamCaptures(stream); err != nil {
			return err
		} else if captures { // an event that is recorded in it cannot be waited for: to try would spoil the capture
			return ErrCapture
		}
		if r.event, err = e.drv.EventCreate(); err != nil {
			return err
		}
		if err = e.drv.EventRecord(r.event, stream); err != nil {
			err = errors.Join(err, e.drv.EventDestroy(r.event))
		}
		return err
	}, func() error { return e.drv.EventDestroy(r.event) })
	if err != nil {
		e.letGoOf(r)
		if device.IsCapture(err) {
			err = fmt.Errorf("%w: %w", ErrCapture, err)
		}
		return 0, fmt.Errorf("note how far the stream is: %w", err)
	}
	ticket, err = e.begin(r)
	if err != nil {
		err = errors.Join(err, e.withDevice(r.device, func() error { return e.drv.EventDestroy(r.event) }))
	}
	return ticket, err
}

// deviceRequest checks the parts of a request, and holds their device memory where it is managed: a free of
// it waits, and a pause.
func (e *Engine) deviceRequest(id uint64, d pipeline.Direction, ios []StateIO) (r *stateRequest, err error) {
	st, err := e.states.state(id)
	if err != nil {
		return nil, err
	}
	if len(ios) == 0 {
		return nil, fmt.Errorf("%w: the request names no part of the state %q", ErrInvalid, st.name)
	}
	if e.allPaused() {
		return nil, fmt.Errorf("%w: the rank's memory is paused, and with it the memory that the state %q passes through: resume it first", ErrState, st.name)
	}
	r = &stateRequest{state: st, direction: d, device: -1}
	defer func() {
		if err != nil {
			e.letGoOf(r)
		}
	}()
	for _, io := range ios {
		if err := r.add(e.states.block, io); err != nil {
			return r, err
		}
		if err := e.holdPart(r, io); err != nil {
			return r, err
		}
	}
	return r, nil
}

// add adds a part, which must be of whole blocks.
func (r *stateRequest) add(block uint64, io StateIO) error {
	st := r.state
	if uint64(io.Segment) >= uint64(len(st.segments)) {
		return fmt.Errorf("%w: the state %q has %d segments, and none of number %d", ErrInvalid, st.name, len(st.segments), io.Segment)
	}
	s := st.segments[io.Segment]
	end := io.Offset + io.Bytes
	switch {
	case io.Bytes == 0 || io.Offset >= s.size || io.Bytes > s.size-io.Offset:
		return fmt.Errorf("%w: %v has %d bytes: %d at offset %d are not part of it", ErrInvalid, s, s.size, io.Bytes, io.Offset)
	case io.Offset%block != 0, end%block != 0 && end != s.size:
		return fmt.Errorf("%w: %d bytes at offset %d of %v are not whole blocks of %d bytes", ErrInvalid, io.Bytes, io.Offset, s, block)
	}
	r.blocks = append(r.blocks, r.len(block))
	r.parts = append(r.parts, part{segment: s, offset: io.Offset, bytes: io.Bytes, addr: io.Addr})
	r.result.Bytes += io.Bytes
	return nil
}

// len is the number of blocks.
func (r *stateRequest) len(block uint64) int {
	if len(r.parts) == 0 {
		return 0
	}
	last := &r.parts[len(r.parts)-1]
	return r.blocks[len(r.parts)-1] + int((last.bytes+block-1)/block)
}

// at is block number i: its part, and the offset in its segment.
func (r *stateRequest) at(block uint64, i int) (p *part, off, length uint64) {
	k := sort.SearchInts(r.blocks, i+1) - 1
	p = &r.parts[k]
	off = p.offset + uint64(i-r.blocks[k])*block
	return p, off, min(block, p.offset+p.bytes-off)
}

// holdMemory holds the managed memory that a part lies in. That may be several allocations: an allocator of the
// program's own can map one after the other.
func (e *Engine) holdMemory(r *stateRequest, p *part) {
	for at, end := p.addr, p.addr+mem.Addr(p.bytes); at < end; {
		a, _, err := e.table.Hold(at, 1)
		if err != nil {
			return // not managed
		}
		r.held, p.memory = append(r.held, a), append(p.memory, a)
		_, room := e.table.Place(at)
		at += mem.Addr(room)
	}
}

// kernelAlign is what the kernel wants of addresses.
const kernelAlign = 16

// holdPart finds the device of a part, which is that of all, and holds it.
func (e *Engine) holdPart(r *stateRequest, io StateIO) error {
	if io.Addr == 0 || io.Addr%kernelAlign != 0 {
		return fmt.Errorf("%w: device memory at %v for segment %d of the state %q: it must begin at a multiple of %d", ErrInvalid, io.Addr, io.Segment, r.state.name, kernelAlign)
	}
	e.holdMemory(r, &r.parts[len(r.parts)-1])
	if err := e.heldActive(r); err != nil {
		return err
	}
	dev, err := e.drv.PointerDevice(io.Addr)
	switch {
	case err != nil:
		return fmt.Errorf("%w: %v is not device memory: %w", ErrInvalid, io.Addr, err)
	case r.device >= 0 && dev != r.device:
		return fmt.Errorf("%w: a request is of one device, and this one of %d and %d", ErrInvalid, r.device, dev)
	}
	r.device = dev
	return nil
}

// heldActive refuses a request whose device memory is paused.
func (e *Engine) heldActive(r *stateRequest) error {
	for _, a := range r.held {
		if e.table.State(a) != alloc.Active {
			return fmt.Errorf("%w: %v, which the state %q is to pass through, is paused: resume it first", ErrState, a, r.state.name)
		}
	}
	return nil
}

// letGoOf ends the holds of a request.
func (e *Engine) letGoOf(r *stateRequest) {
	for _, a := range r.held {
		e.table.Unhold(a)
	}
}

// awaitRequests waits for the requests that use memory of a set in Pausing: no further one begins (see begin). A disk
// that gives no answer ends them by the deadline of file calls; after the first that ends so it does not wait for more.
// It returns the set without the memory that a write failed from (see leaveUnwritten); after an error all of it.
func (e *Engine) awaitRequests(set []*alloc.Allocation) ([]*alloc.Allocation, error) {
	s := &e.states
	s.mu.Lock()
	using := map[*stateRequest]*alloc.Allocation{}
	var list []*stateRequest
	for _, r := range s.pending {
		for _, a := range r.held {
			if using[r] == nil && slices.Contains(set, a) {
				using[r] = a
				list = append(list, r)
			}
		}
	}
	s.mu.Unlock()
	for i, r := range list {
		<-r.done
		if i < len(list)-1 && errors.Is(r.err, filesys.ErrHang) {
			next := list[i+1]
			return set, fmt.Errorf("%v cannot be paused now, since a request of the state %q uses it until the disk answers: pause again then: %w",
				using[next], next.state.name, r.err)
		}
	}
	return e.leaveUnwritten(set), nil
}

// allPaused reports whether managed memory is paused and none is active: a step cannot be under way. Where only
// some tags are paused, others work.
func (e *Engine) allPaused() bool {
	if !e.table.AnyPaused() {
		return false
	}
	for _, t := range e.table.Summary() {
		if t.Active > 0 {
			return false
		}
	}
	return true
}

// begin enters a request and has it carried out.
func (e *Engine) begin(r *stateRequest) (ticket uint64, err error) {
	s := &e.states
	r.done = make(chan struct{})
	s.mu.Lock()
	defer s.mu.Unlock()
	_, err = s.find(r.state.id)
	if err == nil { // a pause that began meanwhile does not see it yet
		err = e.heldActive(r)
	}
	if err != nil {
		e.letGoOf(r)
		return 0, err
	}
	for _, p := range s.pending {
		if p.direction == r.direction || p.meets(r) {
			r.after = append(r.after, p)
		}
	}
	e.noteOverwritten(r)
	s.last++
	r.state.tickets[s.last] = r
	s.pending = append(s.pending, r)
	go e.carryOut(r)
	return s.last, nil
}

// meets reports whether two requests concern the same segment.
func (r *stateRequest) meets(o *stateRequest) bool {
	return r.state == o.state && slices.ContainsFunc(r.parts, func(p part) bool {
		return slices.ContainsFunc(o.parts, func(q part) bool { return p.segment == q.segment })
	})
}

// carryOut is the goroutine of a request.
func (e *Engine) carryOut(r *stateRequest) {
	for _, before := range r.after {
		<-before.done
	}
	r.after = nil // and those that they waited for
	err := guarded(0, func(int) error { return e.perform(r) })
	if errors.Is(err, store.ErrLost) && !r.outside {
		err = fmt.Errorf("%w: load the state's last checkpoint, for which its files are made anew", err)
	}
	if err != nil && (r.touched || r.direction == pipeline.Store && r.bytes == nil) {
		r.forget(e.states.block)
	}
	e.letGoOf(r)
	s := &e.states
	s.mu.Lock()
	e.noteEnd(r, err)
	s.pending = slices.DeleteFunc(s.pending, func(p *stateRequest) bool { return p == r })
	none := len(s.pending) == 0
	r.err = err
	r.result.DiskBytes = r.moved.Disk()
	if err == nil {
		r.result.SkippedZero = r.result.Bytes - r.result.DiskBytes
	} else {
		r.state.errors++
	}
	t := &r.state.read
	if r.direction == pipeline.Store {
		t = &r.state.written
	}
	t.bytes += r.result.DiskBytes
	if err == nil {
		t.last = rate(r.result.Bytes, r.result.Duration)
	}
	s.mu.Unlock()
	s.resting.RLock()
	defer s.resting.RUnlock()
	close(r.done)
	if none { // which nobody waits for but CloseState
		e.restStates()
	}
}

// perform carries out a request when its turn has come.
func (e *Engine) perform(r *stateRequest) error {
	e.background.RLock() // no device is reset meanwhile
	defer e.background.RUnlock()
	l := e.states.lanes[r.direction]
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := e.awaitStream(r); err != nil {
		return err
	}
	begun := time.Now()
	defer func() { r.result.Duration = time.Since(begun) }()
	e.states.store.Retry()
	if err := l.ready(r.device); err != nil {
		return err
	}
	if r.afterwards != nil {
		defer r.afterwards()
	}
	if r.before != nil {
		if err := r.before(); err != nil {
			return err
		}
	}
	if r.instead != nil {
		return r.instead(l)
	}
	if r.direction == pipeline.Load {
		return e.transferState(l, r)
	}
	if err := e.noWriteHangs(); err != nil {
		return err
	}
	r.touched = true
	if err := e.transferState(l, r); err != nil {
		return err
	}
	return settle(r)
}

// forget makes the blocks of a write that failed absent. Where it was under way some are new and some old: none may
// be taken for either. Of one from device memory also the old ones are of no use: the step that it
// belongs to would be lost.
func (r *stateRequest) forget(block uint64) {
	for i := range r.len(block) {
		p, off, _ := r.at(block, i)
		p.backing.Mark(off, store.Block{State: store.Absent})
	}
}

// awaitStream waits until the stream of a write has come as far as it was when the write was made.
func (e *Engine) awaitStream(r *stateRequest) error {
	s := &e.states
	s.mu.Lock()
	event, reset := r.event, r.reset
	r.event = 0
	s.mu.Unlock()
	if reset {
		return fmt.Errorf("%w: device %d was reset, with the work that was to come before the write", ErrState, r.device)
	}
	if event == 0 {
		return nil
	}
	err := e.withDevice(r.device, func() error {
		return errors.Join(e.drv.EventSynchronize(event), e.drv.EventDestroy(event))
	})
	switch {
	case err == nil:
		return nil
	case device.IsCapture(err):
		return fmt.Errorf("%w: the stream of the write was being captured: %w", ErrCapture, err)
	}
	return fmt.Errorf("%w: wait for the work before the write: %w", ErrDeviceFault, err)
}

// noWriteHangs refuses a write while an earlier one of a state's file has no answer: when it comes, it may land
// over the newer bytes.
func (e *Engine) noWriteHangs() error {
	for _, h := range e.states.store.Deadline().Hung() {
		if h.Call == "write" && rankdir.IsDataFile(filepath.Base(h.Path)) {
			return fmt.Errorf("%w: the write of %s hangs since %v, and no other is begun until it returns: try again when the disk answers",
				filesys.ErrHang, h.Path, time.Since(h.Since).Round(time.Second))
		}
	}
	return nil
}

// transferState has the workers move the blocks of a request.
func (e *Engine) transferState(l *lane, r *stateRequest) error {
	kernel := r.bytes == nil && e.kernelOn(r.device)
	block := e.states.block
	work := pipeline.Work{Moved: &r.moved, Disk: pipeline.Moves{Len: r.len(block), At: func(i int) pipeline.Move {
		p, off, length := r.at(block, i)
		m := pipeline.Move{
			Of: p.segment, Device: r.device, Addr: p.addr + mem.Addr(off-p.offset), Offset: off, Length: length, Backing: p.backing,
			Kernel: kernel, Check: true, Sparse: true,
		}
		switch {
		case r.bytes != nil:
			m.Bytes = func(b []byte) error { return r.bytes(p.segment, off, b) }
		case r.direction == pipeline.Load:
			m.Zero = p.backing.Block(off).State == store.Zero
		}
		return m
	}}}
	if r.bytes != nil { // the other side is not a device: what is best there tells nothing of a step
		_, err := l.pool.Run(r.direction, work, l.pool.Default(block))
		return err
	}
	return e.runLane(l, r.state, work, r.result.Bytes)
}

// kernelOn reports whether the device has ebb's kernel. Otherwise the CPU hashes.
func (e *Engine) kernelOn(dev int) bool {
	err := e.withDevice(dev, e.drv.LoadFingerprint)
	if err != nil {
		e.sayOnce(fmt.Sprintf("device %d works without ebb's kernel: the blocks of streamed state are hashed by the CPU: %v", dev, err))
	}
	return err == nil
}

// settle makes sure that what a request wrote stays.
func settle(r *stateRequest) error {
	var before *segment
	for _, p := range r.parts {
		if p.segment == before {
			continue
		}
		before = p.segment
		if err := p.backing.Settle(); err != nil {
			return fmt.Errorf("%v: %w", p.segment, err)
		}
	}
	return nil
}

// WaitState waits for a request, once for each ticket.
func (e *Engine) WaitState(id, ticket uint64) (StateDone, error) {
	s := &e.states
	s.mu.Lock()
	st, err := s.find(id)
	if err != nil {
		s.mu.Unlock()
		return StateDone{}, err
	}
	r := st.tickets[ticket]
	delete(st.tickets, ticket)
	s.mu.Unlock()
	if r == nil {
		return StateDone{}, fmt.Errorf("%w: the state %q has no request %d, or somebody has waited for it", ErrInvalid, st.name, ticket)
	}
	begun := time.Now()
	<-r.done
	done := r.result
	done.Wait = time.Since(begun)
	return done, r.err
}

// ReadStateHost copies bytes of a segment to p, and WriteStateHost from there. They need not be whole blocks.
func (e *Engine) ReadStateHost(id uint64, seg uint32, off uint64, p []byte) error {
	return e.hostRequest(id, pipeline.Load, seg, off, p, func(r *stateRequest) {
		r.bytes = func(_ *segment, at uint64, b []byte) error {
			copy(p[at-off:], b)
			return nil
		}
	})
}

// WriteStateHost is described at ReadStateHost.
func (e *Engine) WriteStateHost(id uint64, seg uint32, off uint64, p []byte) error {
	return e.hostRequest(id, pipeline.Store, seg, off, p, func(r *stateRequest) {
		last := &tail{engine: e, free: func() {}}
		r.before = func() error { return last.read(r, uint64(len(p))) }
		r.afterwards = func() { last.free() }
		r.bytes = func(_ *segment, at uint64, b []byte) error {
			if given := p[at-off:]; len(given) < len(b) { // the rest of the block stays
				copy(b, last.bytes)
			}
			copy(b, p[at-off:])
			return nil
		}
	})
}

// tail is the last block of a write, where that gives only its beginning. It is read before any block is written: if
// it cannot be read, all are as they were.
type tail struct {
	engine *Engine
	bytes  []byte
	free   func()
}

// read reads what of n bytes' last block is to stay.
func (t *tail) read(r *stateRequest, n uint64) error {
	if n == r.result.Bytes {
		return nil
	}
	block := t.engine.states.block
	p, off, length := r.at(block, r.len(block)-1)
	memory, free, err := hostmem.Pages(block, -1)
	if err != nil {
		return err
	}
	t.bytes = memory[:length]
	err = t.engine.readBlock(p.segment, off, t.bytes)
	t.free = func() { filesys.Free(err, func() { _ = free() }) }
	return err
}

// readBlock fills p with a block of a segment, checked.
func (e *Engine) readBlock(s *segment, off uint64, p []byte) error {
	if err := s.backing.ReadBlock(off, p); err != nil {
		return fmt.Errorf("%v: %w", s, err)
	}
	if sum, _ := e.drv.HostFingerprint(e.hash.key, p); sum != s.backing.Block(off).Sum {
		return stateCorrupt(pipeline.Move{Of: s, Offset: off, Length: uint64(len(p)), Backing: s.backing})
	}
	return nil
}

// hostRequest carries out a request of bytes in host memory, which complete says how to move.
func (e *Engine) hostRequest(id uint64, d pipeline.Direction, seg uint32, off uint64, p []byte, complete func(*stateRequest)) error {
	st, err := e.states.state(id)
	if err != nil || len(p) == 0 {
		return err
	}
	r := &stateRequest{state: st, direction: d, device: st.device}
	whole := StateIO{Segment: seg, Offset: off, Bytes: uint64(len(p))}
	if uint64(seg) < uint64(len(st.segments)) { // up to the end of the last block
		size, block := st.segments[seg].size, e.states.block
		if end := off + whole.Bytes; end < size && off%block == 0 {
			whole.Bytes = min((end+block-1)/block*block, size) - off
		}
	}
	if err := r.add(e.states.block, whole); err != nil {
		return err
	}
	complete(r)
	return e.await(r)
}

// await begins a request and waits for it.
func (e *Engine) await(r *stateRequest) error {
	ticket, err := e.begin(r)
	if err != nil {
		return err
	}
	<-r.done // also where the state is being closed: the caller's memory is in use until then
	e.states.mu.Lock()
	delete(r.state.tickets, ticket)
	e.states.mu.Unlock()
	return r.err
}

// resetStates says that a device's primary context was reset. Nothing of it is used now.
func (e *Engine) resetStates(dev int) {
	s := &e.states
	for _, l := range s.lanes {
		if l.pool != nil { // whoever has the lane waits for the end of the reset
			l.pool.ContextReset(dev)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.pending {
		if r.device == dev && r.event != 0 {
			r.event, r.reset = 0, true
		}
	}
}
