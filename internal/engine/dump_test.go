package engine

import (
	"testing"
	"unsafe"

	"github.com/ebb-offload/ebb/internal/testutil"
)

// The bytes of the actor lie in the staging buffer, in host memory of backups, and in what is made in
// place of quarantined memory: a core dump has none of it ("dd"), and neither has a forked child
// ("dc"), as far as the memory is ebb's and not the driver's.
func TestParkedBytesAreInNoCoreDump(t *testing.T) {
	for _, c := range []struct {
		name   string
		region Region
		arena  bool
		ours   bool
	}{
		{"pinned", pinned("x"), false, false},
		{"mmap", mmap("x"), false, true},
		{"arena", pinned("x"), true, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRigWith(t, Config{ChunkBytes: 4 << 20, HostArena: c.arena})
			a := r.make(3<<20, 0, c.region)
			r.make(1<<20, 0, disk("x"))
			r.pause()
			p, err := r.BackupPointer(a.addr, 1)
			check(t, err)
			flags := testutil.VMFlags(t, p)
			if !flags["dd"] || c.ours && !flags["dc"] {
				t.Errorf("the backup: %v", flags)
			}
			if flags := testutil.VMFlags(t, unsafe.Pointer(&r.staging.Block(0)[0])); !flags["dd"] || !flags["dc"] {
				t.Errorf("the staging buffer: %v", flags)
			}
			r.resume()
			r.holds(a)
		})
	}
	r := newRig(t)
	r.make(1<<20, 0, disk("x"))
	r.pause()
	memory, free, err := r.spareBlock()
	check(t, err)
	if flags := testutil.VMFlags(t, unsafe.Pointer(&memory[0])); !flags["dd"] || !flags["dc"] {
		t.Errorf("memory in place of what is in quarantine: %v", flags)
	}
	check(t, free())
}
