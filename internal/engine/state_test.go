package engine

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/ebb-offload/ebb/internal/alloc"
	"github.com/ebb-offload/ebb/internal/device"
	"github.com/ebb-offload/ebb/internal/device/cuda"
	"github.com/ebb-offload/ebb/internal/filesys"
	"github.com/ebb-offload/ebb/internal/mem"
	"github.com/ebb-offload/ebb/internal/store"
	"github.com/ebb-offload/ebb/internal/testutil"
)

// Streamed state over softgpu, whose submitted work does not begin until somebody waits for it: a write that
// did not wait for its stream would find the slot's old bytes.

// streamed is a state with what its segments must hold.
type streamed struct {
	*rig
	id   uint64
	want [][]byte

	stepSlot   mem.Addr // of the sweep
	stepStream device.Stream
}

// stateChunk makes blocks of 64 KiB, with which two workers are at work in each direction.
const stateChunk = 512 << 10

func newStateRig(t testing.TB) *rig {
	t.Helper()
	return newRigWith(t, Config{ChunkBytes: 4 << 20, StateChunk: stateChunk})
}

func (r *rig) newState(name string, sizes ...uint64) *streamed {
	r.t.Helper()
	id, err := r.CreateState(name, sizes, -1, r.dir)
	if err != nil {
		r.t.Fatal(err)
	}
	s := &streamed{rig: r, id: id}
	for _, n := range sizes {
		s.want = append(s.want, make([]byte, n))
	}
	r.t.Cleanup(func() {
		check(r.t, r.sys.Set("")) // what hangs goes on
		_ = r.CloseState(id)      // a test may have closed it
	})
	return s
}

// slot is device memory that ebb does not manage, until the test ends.
func (r *rig) slot(size uint64, dev int) mem.Addr {
	r.t.Helper()
	props := mem.DeviceProps(dev, false)
	size = (size + 64<<10 - 1) &^ (64<<10 - 1)
	var addr mem.Addr
	var h mem.Handle
	check(r.t, r.withDevice(dev, func() (err error) {
		if h, err = r.drv.MemCreate(size, props); err != nil {
			return err
		}
		if addr, err = r.drv.AddressReserve(size, 0); err != nil {
			return err
		}
		return errors.Join(r.drv.MemMap(addr, size, 0, h), r.drv.MemSetAccess(addr, size, []mem.Access{mem.ReadWrite(dev)}))
	}))
	r.t.Cleanup(func() {
		check(r.t, errors.Join(r.drv.MemUnmap(addr, size), r.drv.MemRelease(h), r.drv.AddressFree(addr, size)))
	})
	return addr
}

// stream is a stream of the test's.
func (r *rig) stream(dev int) device.Stream {
	r.t.Helper()
	var s device.Stream
	check(r.t, r.withDevice(dev, func() (err error) { s, err = r.drv.StreamCreate(); return err }))
	r.t.Cleanup(func() {
		check(r.t, r.withDevice(dev, func() error { return errors.Join(r.drv.StreamSynchronize(s), r.drv.StreamDestroy(s)) }))
	})
	return s
}

// begins writes bytes to a slot on a stream, without waiting.
func (r *rig) begins(addr mem.Addr, p []byte, s device.Stream, dev int) {
	r.t.Helper()
	check(r.t, r.withDevice(dev, func() error { return r.drv.CopyToDevice(addr, unsafe.Pointer(&p[0]), uint64(len(p)), s) }))
}

// whole is the parts of a request that moves whole segments, one behind the other in a slot.
func (s *streamed) whole(slot mem.Addr, segments ...int) (ios []StateIO) {
	for _, n := range segments {
		ios = append(ios, StateIO{Segment: uint32(n), Bytes: uint64(len(s.want[n])), Addr: slot})
		slot += mem.Addr(len(s.want[n])+63) &^ 63
	}
	return ios
}

// update gives segments new bytes, which are written to a slot on a stream, and then from there.
func (s *streamed) update(slot mem.Addr, stream device.Stream, segments ...int) (ticket uint64, err error) {
	s.t.Helper()
	ios := s.whole(slot, segments...)
	for i, n := range segments {
		s.want[n] = randomBytes(len(s.want[n]))
		s.begins(ios[i].Addr, s.want[n], stream, 0)
	}
	return s.WriteState(s.id, ios, stream)
}

func (s *streamed) mustUpdate(slot mem.Addr, stream device.Stream, segments ...int) StateDone {
	s.t.Helper()
	ticket, err := s.update(slot, stream, segments...)
	check(s.t, err)
	return s.wait(ticket)
}

func (s *streamed) wait(ticket uint64) StateDone {
	s.t.Helper()
	done, err := s.WaitState(s.id, ticket)
	if err != nil {
		s.t.Fatal(err)
	}
	return done
}

// read reads segments to a slot.
func (s *streamed) read(slot mem.Addr, segments ...int) (StateDone, error) {
	ticket, err := s.ReadState(s.id, s.whole(slot, segments...))
	if err != nil {
		return StateDone{}, err
	}
	return s.WaitState(s.id, ticket)
}

// onDevice is what is there.
func (r *rig) onDevice(addr mem.Addr, n, dev int) []byte {
	r.t.Helper()
	got := make([]byte, n)
	r.copy(dev, func(s device.Stream) error { return r.drv.CopyToHost(unsafe.Pointer(&got[0]), addr, uint64(n), s) })
	return got
}

// intact reads all segments in both ways and compares them.
func (s *streamed) intact(slot mem.Addr) {
	s.t.Helper()
	for n, want := range s.want {
		if _, err := s.read(slot, n); err != nil {
			s.t.Fatal(err)
		}
		if !bytes.Equal(s.onDevice(slot, len(want), 0), want) {
			s.t.Errorf("segment %d holds other bytes on the device", n)
		}
		got := make([]byte, len(want))
		check(s.t, s.ReadStateHost(s.id, uint32(n), 0, got))
		if !bytes.Equal(got, want) {
			s.t.Errorf("segment %d holds other bytes on the host", n)
		}
	}
}

func (s *streamed) status() StateStatus {
	s.t.Helper()
	var all Status
	check(s.t, json.Unmarshal(s.Status(nil), &all))
	for _, st := range all.States {
		return st
	}
	s.t.Fatal("no state in the status")
	return StateStatus{}
}

func TestAStateIsZeroAndTakesAllItsRoomAtFirst(t *testing.T) {
	r := newStateRig(t)
	s := r.newState("adam", 1, 64<<10, 300<<10+17)
	slot := r.slot(1<<20, 0)
	r.begins(slot, randomBytes(1<<20), r.stream(0), 0)
	s.intact(slot)
	done, err := s.read(slot, 0, 1, 2)
	check(t, err)
	if done.DiskBytes != 0 || done.SkippedZero != done.Bytes || done.Bytes != 1+64<<10+300<<10+17 {
		t.Errorf("of %d bytes %d were read and %d skipped", done.Bytes, done.DiskBytes, done.SkippedZero)
	}
	if st := s.status(); st.Segments != 3 || st.Files != 3 || st.Read != 0 || st.Written != 0 || st.Dirs[0] != r.dir {
		t.Errorf("status %+v", st)
	}
	for _, f := range r.files() {
		info, err := os.Stat(f)
		check(t, err)
		if info.Size() == 0 {
			t.Errorf("%s has no room", f)
		}
	}
}

// All room is taken at first, so that no step finds the disk full, and steps take no other.
func TestFilesOfAStateHaveTheirRoomAndAreOverwrittenInPlace(t *testing.T) {
	r := newStateRig(t)
	s := r.newState("adam", 300<<10, 64<<10)
	slot, stream := r.slot(1<<20, 0), r.stream(0)
	type file struct{ inode, room uint64 }
	look := func() map[string]file {
		seen := map[string]file{}
		for _, f := range r.files() {
			var st unix.Stat_t
			check(t, unix.Stat(f, &st))
			seen[f] = file{st.Ino, uint64(st.Blocks) * 512}
		}
		return seen
	}
	before := look()
	var room uint64
	for _, f := range before {
		room += f.room
	}
	if len(before) != 2 || room < 364<<10 {
		t.Errorf("%d files with room for %d bytes", len(before), room)
	}
	for range 2 {
		s.mustUpdate(slot, stream, 0, 1)
	}
	if after := look(); !maps.Equal(before, after) {
		t.Errorf("files before %v, and after %v", before, after)
	}
}

func TestWhatIsWrittenFromADeviceComesBack(t *testing.T) {
	for _, kernel := range []bool{true, false} {
		t.Run(fmt.Sprintf("kernel %v", kernel), func(t *testing.T) {
			r := newStateRig(t)
			if !kernel {
				r.fault("cuModuleLoadData:*:218")
			}
			s := r.newState("adam", 1<<20, 1, 4095, 4097, 64<<10, 64<<10+1, 700<<10+16)
			slot, stream := r.slot(2<<20, 0), r.stream(0)
			for range 3 {
				for n := range s.want {
					done := s.mustUpdate(slot, stream, n)
					if done.DiskBytes != uint64(len(s.want[n])) {
						t.Errorf("segment %d: %d bytes written", n, done.DiskBytes)
					}
				}
				s.intact(slot)
			}
			done := s.mustUpdate(slot, stream, 0, 4, 6)
			if want := uint64(1<<20 + 64<<10 + 700<<10 + 16); done.Bytes != want || done.DiskBytes != want {
				t.Errorf("%+v", done)
			}
			s.intact(slot)
		})
	}
}

func TestPartsOfSegmentsAreWholeBlocks(t *testing.T) {
	r := newStateRig(t)
	s := r.newState("adam", 300<<10)
	block := r.StateBlock(s.id)
	slot := r.slot(1<<20, 0)
	part := randomBytes(int(2 * block))
	stream := r.stream(0)
	r.begins(slot, part, stream, 0)
	ticket, err := r.WriteState(s.id, []StateIO{{Offset: block, Bytes: 2 * block, Addr: slot}}, stream)
	check(t, err)
	s.wait(ticket)
	copy(s.want[0][block:], part)
	s.intact(slot)
	for what, io := range map[string]StateIO{
		"another offset":    {Offset: 1, Bytes: block, Addr: slot},
		"half a block":      {Bytes: block / 2, Addr: slot},
		"beyond the end":    {Offset: 4 * block, Bytes: 2 * block, Addr: slot},
		"far beyond":        {Offset: 1 << 63, Bytes: 1 << 63, Addr: slot},
		"nothing":           {Addr: slot},
		"no such segment":   {Segment: 1, Bytes: block, Addr: slot},
		"no device memory":  {Bytes: block, Addr: 16 << 40},
		"null":              {Bytes: block},
		"unaligned address": {Bytes: block, Addr: slot + 8},
	} {
		if _, err := r.ReadState(s.id, []StateIO{io}); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", what, err)
		}
		if _, err := r.WriteState(s.id, []StateIO{io}, stream); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := r.ReadState(s.id, nil); !errors.Is(err, ErrInvalid) {
		t.Errorf("no part: %v", err)
	}
	if _, err := r.ReadState(s.id, append(s.whole(slot, 0), s.whole(r.slot(1<<20, 1), 0)...)); !errors.Is(err, ErrInvalid) {
		t.Errorf("two devices: %v", err)
	}
	s.intact(slot)
}

func TestHostBytesOfAnyNumber(t *testing.T) {
	r := newStateRig(t)
	s := r.newState("adam", 300<<10+5)
	block := int(r.StateBlock(s.id))
	slot := r.slot(1<<20, 0)
	for _, c := range []struct{ off, n int }{{0, 300<<10 + 5}, {0, 1}, {block, block + 3}, {2 * block, 7}, {4 * block, 44<<10 + 5}, {4 * block, 1}} {
		p := randomBytes(c.n)
		check(t, r.WriteStateHost(s.id, 0, uint64(c.off), p))
		copy(s.want[0][c.off:], p)
		got := make([]byte, c.n)
		check(t, r.ReadStateHost(s.id, 0, uint64(c.off), got))
		if !bytes.Equal(got, p) {
			t.Errorf("%d bytes at %d came back as others", c.n, c.off)
		}
		s.intact(slot)
	}
	for _, err := range []error{
		r.WriteStateHost(s.id, 0, 3, make([]byte, 1)), r.ReadStateHost(s.id, 0, uint64(4*block), make([]byte, 45<<10)), r.ReadStateHost(s.id, 1, 0, make([]byte, 1)),
		r.ReadStateHost(s.id+1, 0, 0, make([]byte, 1)),
	} {
		if !errors.Is(err, ErrInvalid) {
			t.Error(err)
		}
	}
	check(t, r.ReadStateHost(s.id, 0, 0, nil))
}

// A write of part of a block reads the rest first: where that cannot be read, all bytes are as they were.
func TestBytesThatCannotBeReadAreNotWrittenOver(t *testing.T) {
	r := newStateRig(t)
	s := r.newState("adam", 300<<10)
	slot := r.slot(1<<20, 0)
	s.mustUpdate(slot, r.stream(0), 0)
	for _, fault := range []string{"pread:1:EIO", "pread:1:flip"} {
		check(t, r.sys.Set(fault))
		err := r.WriteStateHost(s.id, 0, 0, randomBytes(100<<10))
		if code := Code(err); code != CodeIO && code != CodeCorrupt || !strings.Contains(err.Error(), `segment 0 of the state "adam"`) {
			t.Errorf("%s: %v", fault, err)
		}
		check(t, r.sys.Set(""))
		s.intact(slot)
	}
}

func TestZerosAreNotWritten(t *testing.T) {
	r := newStateRig(t)
	s := r.newState("adam", 256<<10)
	slot, stream := r.slot(1<<20, 0), r.stream(0)
	s.mustUpdate(slot, stream, 0)
	clear(s.want[0][64<<10 : 192<<10])
	r.begins(slot, s.want[0], stream, 0)
	ticket, err := r.WriteState(s.id, s.whole(slot, 0), stream)
	check(t, err)
	if done := s.wait(ticket); done.SkippedZero != 128<<10 || done.DiskBytes != 128<<10 {
		t.Errorf("%+v", done)
	}
	s.intact(slot)
}

// Reads wait for writes of the same segment that came before, and writes for reads.
func TestRequestsOfOneSegmentKeepTheirOrder(t *testing.T) {
	r := newStateRig(t)
	s := r.newState("adam", 300<<10, 300<<10)
	slot, stream := r.slot(1<<20, 0), r.stream(0)
	back := []mem.Addr{r.slot(1<<20, 0), r.slot(1<<20, 0)}
	var want [][]byte
	var tickets []uint64
	for i := range 2 {
		w, err := s.update(slot, stream, 0)
		check(t, err)
		rd, err := r.ReadState(s.id, s.whole(back[i], 0))
		check(t, err)
		s.wait(w) // the slot is free again
		tickets = append(tickets, rd)
		want = append(want, s.want[0])
	}
	for i, ticket := range tickets {
		s.wait(ticket)
		if !bytes.Equal(r.onDevice(back[i], 300<<10, 0), want[i]) {
			t.Errorf("read %d came out of its order", i)
		}
	}
}

// A read, a write and the caller's work are under way at the same time: a read ends although a write hangs in
// the disk, and a write although a read does.
func TestReadsAndWritesOverlap(t *testing.T) {
	for _, call := range []string{"pread", "pwrite"} {
		t.Run(call, func(t *testing.T) {
			r := newStateRig(t)
			s := r.newState("adam", 300<<10, 300<<10)
			slot, other, stream := r.slot(1<<20, 0), r.slot(1<<20, 0), r.stream(0)
			s.mustUpdate(slot, stream, 0)
			s.mustUpdate(slot, stream, 1)
			check(t, r.sys.Set(call+":1:hang"))
			read := func() uint64 {
				ticket, err := r.ReadState(s.id, s.whole(other, 1))
				check(t, err)
				return ticket
			}
			write := func() uint64 {
				ticket, err := s.update(slot, stream, 0)
				check(t, err)
				return ticket
			}
			first, second := read, write
			if call == "pwrite" {
				first, second = write, read
			}
			held := first()
			r.sys.AwaitHang()
			s.wait(second())
			if n := s.status().InFlight; n != 1 {
				t.Errorf("%d requests in flight", n)
			}
			check(t, r.sys.Set(""))
			s.wait(held)
			s.intact(slot)
		})
	}
}

func TestAWriteThatFailsIsRepeated(t *testing.T) {
	for _, fault := range []string{"pwrite:2:EIO", "pwrite:3:ENOSPC", "fstatat:1:EIO"} {
		t.Run(fault, func(t *testing.T) {
			r := newStateRig(t)
			s := r.newState("adam", 300<<10, 64<<10)
			slot, stream := r.slot(1<<20, 0), r.stream(0)
			s.mustUpdate(slot, stream, 0, 1)
			check(t, r.sys.Set(fault))
			ticket, err := s.update(slot, stream, 0)
			check(t, err)
			_, err = r.WaitState(s.id, ticket)
			if err == nil || Code(err) != CodeIO && Code(err) != CodeNoSpace {
				t.Fatalf("%v (code %d)", err, Code(err))
			}
			check(t, r.sys.Set(""))
			if _, err := s.read(r.slot(1<<20, 0), 0); Code(err) != CodeCorrupt || !errors.Is(err, store.ErrAbsent) || !strings.Contains(err.Error(), `segment 0 of the state "adam"`) {
				t.Errorf("read after a write that failed: %v", err)
			}
			ticket, err = r.WriteState(s.id, s.whole(slot, 0), stream) // the slot still has the new bytes
			check(t, err)
			s.wait(ticket)
			s.intact(slot)
			if n := s.status().Errors; n != 2 {
				t.Errorf("%d errors counted", n)
			}
		})
	}
}

func TestAReadThatFailsIsRepeated(t *testing.T) {
	r := newStateRig(t)
	s := r.newState("adam", 300<<10)
	slot, stream := r.slot(1<<20, 0), r.stream(0)
	s.mustUpdate(slot, stream, 0)
	check(t, r.sys.Set("pread:2:EIO"))
	if _, err := s.read(slot, 0); Code(err) != CodeIO || !strings.Contains(err.Error(), r.dir) {
		t.Errorf("%v (code %d)", err, Code(err))
	}
	s.intact(slot)
}

func TestBytesThatChangedAreNotHandedOut(t *testing.T) {
	for _, kernel := range []bool{true, false} {
		for _, fault := range []string{"pwrite:2:flip", "pwrite:2:torn", "pread:2:flip"} {
			t.Run(fmt.Sprint(fault, kernel), func(t *testing.T) {
				r := newStateRig(t)
				if !kernel {
					r.fault("cuModuleLoadData:*:218")
				}
				s := r.newState("adam", 64<<10, 300<<10)
				slot, stream := r.slot(1<<20, 0), r.stream(0)
				check(t, r.sys.Set(fault))
				s.mustUpdate(slot, stream, 1)
				_, err := s.read(slot, 1)
				var corrupt *StateCorruptError
				if !errors.As(err, &corrupt) || Code(err) != CodeCorrupt || corrupt.State != "adam" || corrupt.Segment != 1 || corrupt.Bytes == 0 || !strings.Contains(corrupt.Where, r.dir) {
					t.Errorf("%v", err)
				}
				check(t, r.sys.Set(""))
				if strings.HasPrefix(fault, "pwrite") {
					if err := r.ReadStateHost(s.id, 1, 0, make([]byte, 300<<10)); !errors.As(err, &corrupt) {
						t.Errorf("on the host: %v", err)
					}
				}
				s.mustUpdate(slot, stream, 1)
				s.intact(slot)
			})
		}
	}
}

// settled waits until requests that have ended have also closed their files: one that is open is read, whatever
// becomes of its name.
func (r *rig) settled() {
	r.states.resting.Lock()
	defer r.states.resting.Unlock()
}

func TestFilesThatAreGoneShortOrChangedAreTold(t *testing.T) {
	for what, spoil := range map[string]func(path string) error{
		"gone":  os.Remove,
		"short": func(path string) error { return os.Truncate(path, 4096) },
		"replaced": func(path string) error {
			return errors.Join(os.WriteFile(path+".new", make([]byte, 512<<10), 0o600), os.Rename(path+".new", path))
		},
		"changed": func(path string) error {
			f, err := os.OpenFile(path, os.O_RDWR, 0)
			if err != nil {
				return err
			}
			_, err = f.WriteAt([]byte("other bytes"), 100<<10)
			return errors.Join(err, f.Close())
		},
	} {
		t.Run(what, func(t *testing.T) {
			r := newStateRig(t)
			s := r.newState("adam", 300<<10)
			slot, stream := r.slot(1<<20, 0), r.stream(0)
			s.mustUpdate(slot, stream, 0)
			files, saved := r.files(), filepath.Join(t.TempDir(), "saved")
			if len(files) != 1 {
				t.Fatal(files)
			}
			check(t, r.SaveState(s.id, saved, nil))
			r.settled()
			check(t, spoil(files[0]))
			_, err := s.read(slot, 0)
			if Code(err) != CodeCorrupt || !strings.Contains(err.Error(), files[0]) || !strings.Contains(err.Error(), `state "adam"`) {
				t.Errorf("%v (code %d)", err, Code(err))
			}
			if what == "gone" { // a block of zeros is not written, and shows that the file is not there for others
				err = r.WriteStateHost(s.id, 0, 0, make([]byte, r.StateBlock(s.id)))
				if Code(err) != CodeCorrupt || !strings.Contains(err.Error(), "load the state's last checkpoint") {
					t.Errorf("%v (code %d)", err, Code(err))
				}
			}
			check(t, r.LoadState(s.id, saved))
			s.intact(slot)
			if what == "replaced" {
				check(t, os.Remove(files[0])) // it is not ebb's, and stays
			}
		})
	}
}

func TestAFullDiskAtCreationTakesNothing(t *testing.T) {
	for _, fault := range []string{"fallocate:3:ENOSPC", "open:2:ENOSPC", "fallocate:2:EDQUOT"} {
		r := newStateRig(t)
		check(t, r.sys.Set(fault))
		_, err := r.CreateState("adam", []uint64{1 << 20, 1 << 20, 1 << 20}, -1, r.dir)
		if Code(err) != CodeNoSpace || !strings.Contains(err.Error(), "3.0 MiB in all") || !strings.Contains(err.Error(), "1.0 MiB needed") || !strings.Contains(err.Error(), r.dir) {
			t.Errorf("%s: %v", fault, err)
		}
		if left := r.files(); len(left) > 0 {
			t.Errorf("%s: files left: %v", fault, left)
		}
	}
}

func TestAStateFarBeyondTheDiskIsRefusedBeforeItTakesHostMemory(t *testing.T) {
	for _, segments := range [][]uint64{{1 << 60}, {1 << 62, 1 << 62, 1 << 62, 1 << 62}} {
		r := newStateRig(t)
		_, err := r.CreateState("adam", segments, -1, r.dir)
		if Code(err) != CodeNoSpace || !strings.Contains(err.Error(), "needed") || !strings.Contains(err.Error(), r.dir) {
			t.Errorf("%v: %v", segments, err)
		}
		if left := r.files(); len(left) > 0 {
			t.Errorf("%v: files left: %v", segments, left)
		}
		r.newState("adam", 1<<20)
	}
}

func TestANameOrASizeThatMakesNoSenseIsRefused(t *testing.T) {
	r := newStateRig(t)
	for _, c := range []struct {
		name  string
		sizes []uint64
	}{{"", []uint64{1}}, {"a\nb", []uint64{1}}, {strings.Repeat("x", 256), []uint64{1}}, {"adam", nil}, {"adam", []uint64{1, 0}}, {"adam", []uint64{1 << 63}}} {
		if _, err := r.CreateState(c.name, c.sizes, -1, r.dir); !errors.Is(err, ErrInvalid) {
			t.Errorf("%q of %v: %v", c.name, c.sizes, err)
		}
	}
	if r.StateBlock(1) != 0 {
		t.Error("a state that was never made has a block")
	}
}

func TestAPauseMovesNoByteOfAState(t *testing.T) {
	r := newStateRig(t)
	s := r.newState("adam", 300<<10)
	slot, stream := r.slot(1<<20, 0), r.stream(0)
	s.mustUpdate(slot, stream, 0)
	a := r.make(1<<20, 0, disk("actor"))
	before := s.status()
	res := r.pause()
	if res.Bytes != 1<<20 || res.DiskBytes != 1<<20 {
		t.Errorf("the pause moved %+v", res)
	}
	if after := s.status(); after.Read != before.Read || after.Written != before.Written {
		t.Errorf("the pause touched the state: %+v, then %+v", before, after)
	}
	for _, err := range []error{
		func() error { _, err := r.ReadState(s.id, s.whole(slot, 0)); return err }(),
		func() error { _, err := r.WriteState(s.id, s.whole(slot, 0), stream); return err }(),
	} {
		if Code(err) != CodeState || !strings.Contains(err.Error(), "resume it first") {
			t.Errorf("while paused: %v", err)
		}
	}
	got := make([]byte, 300<<10)
	check(t, r.ReadStateHost(s.id, 0, 0, got)) // needs no device memory
	r.resume()
	r.holds(a)
	s.intact(slot)
}

// While other tags than the step's are paused, steps go on; device memory that is paused itself is refused.
func TestAPauseOfOtherTagsDoesNotStopAStep(t *testing.T) {
	r := newStateRig(t)
	s := r.newState("adam", 64<<10)
	ref, slot := r.make(1<<20, 0, disk("ref")), r.make(1<<20, 0, none("actor"))
	r.pause("ref")
	s.mustUpdate(slot.addr, r.stream(0), 0)
	s.intact(slot.addr)
	if _, err := s.read(ref.addr, 0); Code(err) != CodeState {
		t.Errorf("to paused memory: %v", err)
	}
	r.resume("ref")
	r.holds(ref)
}

// A pause ends while a request is held up by a disk.
func TestAPauseWaitsForNoRequest(t *testing.T) {
	r := newStateRig(t)
	s := r.newState("adam", 300<<10)
	slot, stream := r.slot(1<<20, 0), r.stream(0)
	a := r.make(1<<20, 0, pinned("actor"))
	check(t, r.sys.Set("pwrite:1:hang"))
	ticket, err := s.update(slot, stream, 0)
	check(t, err)
	r.sys.AwaitHang()
	r.pause()
	r.resume()
	r.holds(a)
	check(t, r.sys.Set(""))
	s.wait(ticket)
	s.intact(slot)
}

// But for requests that use the memory which it takes. No further one begins meanwhile.
func TestAPauseWaitsForRequestsThatUseItsMemory(t *testing.T) {
	for _, call := range []string{"pread", "pwrite"} {
		t.Run(call, func(t *testing.T) {
			r := newStateRig(t)
			s := r.newState("adam", 300<<10)
			slot, stream := r.make(1<<20, 0, disk("actor")), r.stream(0)
			s.mustUpdate(slot.addr, stream, 0)
			r.fill(slot, 1<<20)
			check(t, r.sys.Set(call+":1:hang"))
			request := func() (uint64, error) { return r.ReadState(s.id, s.whole(slot.addr, 0)) }
			if call == "pwrite" {
				s.want[0] = slot.want[:300<<10]
				request = func() (uint64, error) { return r.WriteState(s.id, s.whole(slot.addr, 0), stream) }
			}
			ticket, err := request()
			check(t, err)
			r.sys.AwaitHang()
			a, _, err := r.table.Find(slot.addr, 1)
			check(t, err)
			ended := make(chan error, 1)
			go func() {
				_, err := r.Pause(nil, r.set)
				ended <- err
			}()
			for r.table.State(a) == alloc.Active {
				runtime.Gosched()
			}
			if _, err := request(); Code(err) != CodeState || !strings.Contains(err.Error(), "resume it first") {
				t.Errorf("a request of memory that is being paused: %v", err)
			}
			if state := r.table.State(a); state != alloc.Pausing {
				t.Errorf("the memory of a request under way is %v", state)
			}
			check(t, r.sys.Set(""))
			check(t, <-ended)
			s.wait(ticket)
			r.resume()
			copy(slot.want, s.want[0])
			r.holds(slot)
			s.intact(r.slot(1<<20, 0))
		})
	}
}

func TestAPauseOfMemoryThatADiskHoldsUpFails(t *testing.T) {
	r := newHangRigWith(t, Config{ChunkBytes: 4 << 20, StateChunk: stateChunk})
	s := r.newState("adam", 300<<10, 5)
	slot, stream := r.make(1<<20, 0, disk("actor")), r.stream(0)
	s.mustUpdate(slot.addr, stream, 0, 1)
	check(t, r.sys.Set("pread:*:hang"))
	for range 2 {
		_, err := r.ReadState(s.id, s.whole(slot.addr, 0, 1))
		check(t, err)
	}
	if _, err := r.Pause(nil, r.set); Code(err) != CodeTimeout || !strings.Contains(err.Error(), `the state "adam"`) || !strings.Contains(err.Error(), `tag "actor"`) {
		t.Errorf("%v", err)
	}
	check(t, r.sys.Set(""))
	for len(r.states.store.Deadline().Hung()) > 0 || s.status().InFlight > 0 {
		runtime.Gosched()
	}
	s.intact(slot.addr)
	r.pause()
	r.resume()
	s.intact(slot.addr)
}

func TestAWriteOnAStreamThatIsCapturedIsRefusedAndSpoilsNothing(t *testing.T) {
	r := newStateRig(t)
	s := r.newState("adam", 300<<10)
	slot, stream := r.slot(1<<20, 0), r.stream(0)
	s.mustUpdate(slot, stream, 0)
	check(t, r.withDevice(0, func() error {
		end, err := cuda.CaptureSoftwareStream(r.drv, stream)
		if err != nil {
			return err
		}
		if _, err := r.WriteState(s.id, s.whole(slot, 0), stream); Code(err) != CodeCapture {
			t.Errorf("%v (code %d)", err, Code(err))
		}
		return end()
	}))
	s.intact(slot)
	s.mustUpdate(slot, stream, 0)
	s.intact(slot)
}

// How many workers serve a direction is found by trial, once, on blocks that are moved anyway. Zeros tell nothing.
func TestTheNumberOfWorkersOfALaneIsFoundByTrial(t *testing.T) {
	r := newRigWith(t, Config{ChunkBytes: 4 << 20, StateChunk: 128 << 20}) // 8 workers each way
	const block, blocks = 64 << 10, 160
	sizes, all := make([]uint64, blocks), make([]int, blocks)
	for i := range blocks {
		sizes[i], all[i] = block, i
	}
	s := r.newState("adam", sizes...)
	slot, stream := r.slot(blocks*block, 0), r.stream(0)
	probes := func() (list []tuning) {
		var status Status
		check(t, json.Unmarshal(r.Status(nil), &status))
		return status.Probes
	}
	if _, err := s.read(slot, all...); err != nil {
		t.Fatal(err)
	}
	if found := probes(); len(found) != 0 {
		t.Errorf("found out by reading zeros: %+v", found)
	}
	for range 2 {
		s.mustUpdate(slot, stream, all...)
		if _, err := s.read(slot, all...); err != nil {
			t.Fatal(err)
		}
	}
	s.intact(slot)
	found := probes()
	if len(found) != 2 || found[0].Direction != "write" || found[1].Direction != "read" {
		t.Fatalf("%+v", found)
	}
	for _, p := range found {
		if len(p.Trials) != 2 || p.Workers != 4 && p.Workers != 8 || p.Dirs != r.dir || p.BlockBytes != block {
			t.Errorf("%+v", p)
		}
	}
}

// What is done after the last request is not the step's to wait for.
func TestAWaitDoesNotWaitForHousekeeping(t *testing.T) {
	r := newStateRig(t)
	s := r.newState("adam", 300<<10)
	slot, stream := r.slot(1<<20, 0), r.stream(0)
	s.mustUpdate(slot, stream, 0)
	r.settled() // or it is the close after this one that hangs, for which the next request would wait
	check(t, r.sys.Set("close:1:hang"))
	s.mustUpdate(slot, stream, 0)
	r.sys.AwaitHang()
	check(t, r.sys.Set(""))
	s.intact(slot)
}

func TestTwoStatesHaveNothingToDoWithOneAnother(t *testing.T) {
	r := newStateRig(t)
	a, b := r.newState("a", 300<<10), r.newState("b", 300<<10, 1)
	slots, stream := []mem.Addr{r.slot(1<<20, 0), r.slot(1<<20, 0)}, r.stream(0)
	var wg sync.WaitGroup
	for i, s := range []*streamed{a, b} {
		for range 5 {
			ticket, err := s.update(slots[i], stream, 0)
			check(t, err)
			wg.Go(func() {
				if _, err := r.WaitState(s.id, ticket); err != nil {
					t.Error(err)
				}
			})
			wg.Wait()
		}
	}
	if _, err := r.WaitState(a.id, 1<<40); !errors.Is(err, ErrInvalid) {
		t.Errorf("a ticket of nobody: %v", err)
	}
	a.intact(slots[0])
	check(t, r.CloseState(a.id))
	if _, err := r.ReadState(a.id, a.whole(slots[0], 0)); !errors.Is(err, ErrInvalid) {
		t.Errorf("a closed state: %v", err)
	}
	b.intact(slots[1])
	if n := len(r.files()); n != 2 {
		t.Errorf("%d files of the other state", n)
	}
}

func TestEachTicketIsWaitedForOnce(t *testing.T) {
	r := newStateRig(t)
	s := r.newState("adam", 64<<10)
	slot := r.slot(1<<20, 0)
	ticket, err := r.ReadState(s.id, s.whole(slot, 0))
	check(t, err)
	s.wait(ticket)
	if _, err := r.WaitState(s.id, ticket); !errors.Is(err, ErrInvalid) {
		t.Errorf("the second time: %v", err)
	}
}

// CloseState waits for requests, whether somebody waits for them or not, and gives back files, descriptors and
// staging memory.
func TestClosingLeavesNothing(t *testing.T) {
	r := newStateRig(t)
	slot, stream := r.slot(1<<20, 0), r.stream(0)
	for range 2 {
		s := r.newState("adam", 300<<10)
		_, err := s.update(slot, stream, 0)
		check(t, err)
		check(t, r.CloseState(s.id))
		if left := r.files(); len(left) > 0 {
			t.Errorf("files left: %v", left)
		}
		if _, n := r.stateStatus(); n != 0 {
			t.Errorf("%d bytes of staging memory left", n)
		}
		if err := r.CloseState(s.id); !errors.Is(err, ErrInvalid) {
			t.Errorf("closed again: %v", err)
		}
	}
	links, err := filepath.Glob("/proc/self/fd/*")
	check(t, err)
	for _, link := range links {
		if name, err := os.Readlink(link); err == nil && strings.HasPrefix(name, r.dir) {
			t.Errorf("open: %s", name)
		}
	}
}

func TestShutdownRemovesTheFilesOfStates(t *testing.T) {
	r := newStateRig(t)
	s := r.newState("adam", 300<<10)
	s.mustUpdate(r.slot(1<<20, 0), r.stream(0), 0)
	r.Shutdown()
	if left := r.files(); len(left) > 0 {
		t.Errorf("files left: %v", left)
	}
	if _, err := r.CreateState("more", []uint64{1}, -1, r.dir); Code(err) != CodeState {
		t.Errorf("a state after the shutdown: %v", err)
	}
}

// The memory that a state takes of the host is the chunk, however large it is.
func TestHostMemoryDoesNotGrowWithTheState(t *testing.T) {
	var held []uint64
	for _, size := range []uint64{1 << 20, 8 << 20} {
		r := newStateRig(t)
		s := r.newState("adam", size, size)
		slot, stream := r.slot(16<<20, 0), r.stream(0)
		s.mustUpdate(slot, stream, 0, 1)
		s.intact(slot)
		_, n := r.stateStatus()
		if n == 0 || n > stateChunk {
			t.Errorf("a state of %d bytes: %d bytes of staging memory, the chunk is %d", 2*size, n, stateChunk)
		}
		u := r.states.store.Usage()
		held = append(held, n+u.HostBytes)
	}
	if held[0] != held[1] {
		t.Errorf("host memory of a state, and of one eight times as large: %v", held)
	}
}

// While a write has no answer no other one is begun, since the late one might land over newer bytes.
func TestADiskThatGivesNoAnswer(t *testing.T) {
	r := newHangRigWith(t, Config{ChunkBytes: 4 << 20, StateChunk: stateChunk})
	s := r.newState("adam", 300<<10, 5)
	slot, other, stream := r.slot(1<<20, 0), r.slot(1<<20, 0), r.stream(0)
	s.mustUpdate(slot, stream, 0)
	s.mustUpdate(other, stream, 1)
	check(t, r.sys.Set("pwrite:2:hang"))
	ticket, err := s.update(slot, stream, 0)
	check(t, err)
	if _, err = r.WaitState(s.id, ticket); Code(err) != CodeTimeout {
		t.Fatalf("%v", err)
	}
	again := func() error {
		ticket, err := r.WriteState(s.id, s.whole(slot, 0), stream)
		check(t, err)
		_, err = r.WaitState(s.id, ticket)
		return err
	}
	if err := again(); !errors.Is(err, filesys.ErrHang) {
		t.Errorf("while it hangs: %v", err)
	}
	_, err = s.update(other, stream, 1) // which fails before it has begun
	check(t, err)
	if _, err := s.read(r.slot(1<<20, 0), 1); !errors.Is(err, store.ErrAbsent) {
		t.Errorf("old bytes after a write that failed: %v", err)
	}
	check(t, r.sys.Set(""))
	for err = again(); errors.Is(err, filesys.ErrHang); err = again() { // until the call has returned
	}
	check(t, err)
	s.mustUpdate(other, stream, 1)
	s.intact(slot)
}

// A checkpoint lies elsewhere: while a write to it hangs, a step goes on.
func TestADiskOfCheckpointsThatGivesNoAnswer(t *testing.T) {
	r := newHangRigWith(t, Config{ChunkBytes: 4 << 20, StateChunk: stateChunk})
	s := r.newState("adam", 300<<10)
	slot, stream := r.slot(1<<20, 0), r.stream(0)
	s.mustUpdate(slot, stream, 0)
	check(t, r.sys.Set("clone:*:EOPNOTSUPP,pwrite:1:hang"))
	if err := r.SaveState(s.id, filepath.Join(testutil.InMemory(t), "saved"), nil); Code(err) != CodeTimeout {
		t.Fatalf("%v", err)
	}
	s.mustUpdate(slot, stream, 0)
	s.intact(slot)
	check(t, r.sys.Set(""))
	for len(r.states.store.Deadline().Hung()) > 0 {
		runtime.Gosched()
	}
}

// A reset ends streams, kernels and pins of the lanes; the state stays.
func TestAStateOutlivesAResetOfTheDevice(t *testing.T) {
	r := newStateRig(t)
	s := r.newState("adam", 300<<10)
	slot := r.slot(1<<20, 0)
	r.reset(0) // before anything was made
	for range 2 {
		s.mustUpdate(slot, 0, 0)
		r.reset(0)
		s.intact(slot)
	}
}

// A write whose turn has not come when the device is reset fails: the work that was to come before it is gone.
// What it was to write over is of the step before, and is not handed out.
func TestAWriteThatWaitsWhileTheDeviceIsReset(t *testing.T) {
	r := newStateRig(t)
	s := r.newState("adam", 300<<10, 300<<10)
	slot, other := r.slot(1<<20, 0), r.slot(1<<20, 0)
	check(t, r.sys.Set("pwrite:1:hang"))
	first, err := s.update(slot, 0, 0)
	check(t, err)
	r.sys.AwaitHang()
	second, err := s.update(other, 0, 1)
	check(t, err)
	ended := make(chan error, 1)
	go func() {
		err := r.BeginReset()
		if err == nil {
			err = cuda.ResetSoftwareDevice(r.drv, 0)
			err = errors.Join(err, r.EndReset(0, err == nil))
		}
		ended <- err
	}()
	for r.background.TryRLock() { // until the reset waits for the first write
		r.background.RUnlock()
		runtime.Gosched()
	}
	check(t, r.sys.Set(""))
	s.wait(first)
	check(t, <-ended)
	if _, err := r.WaitState(s.id, second); Code(err) != CodeState || !strings.Contains(err.Error(), "was reset") {
		t.Errorf("%v", err)
	}
	if _, err := s.read(other, 1); !errors.Is(err, store.ErrAbsent) {
		t.Errorf("a read after it: %v", err)
	}
	s.mustUpdate(other, 0, 1)
	s.intact(slot)
}
