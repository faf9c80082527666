package engine

import (
	"testing"

	"github.com/ebb-offload/ebb/internal/alloc"
)

// Whoever enters says with OnWait what must be done before its thread stays: a handler that is held
// back for a call must not be for as long as a device works or a disk answers.
func TestCallsThatWaitSayItBefore(t *testing.T) {
	r := newRig(t)
	o := owner{r, t}
	said := 0
	r.OnWait(func() { said++ })
	says := func(what string, want int) {
		t.Helper()
		if said != want {
			t.Errorf("%s: said %d times that it waits, want %d", what, said, want)
		}
		said = 0
	}
	disk := Region{Tag: "x", Backup: alloc.BackupDisk}
	at := o.reserve(grain)

	a := r.make(grain, 0, disk)
	says("malloc", 0)
	check(t, r.Free(a.addr, false))
	says("free of active memory, whose wait for the device the driver's package tells", 0)

	o.mapped(at, grain, 0, disk)
	check(t, r.Unmap(at, grain))
	says("create, map and unmap", 0)

	b := r.make(grain, 0, disk)
	o.mapped(at, grain, 0, disk)
	r.pause()
	said = 0 // the pause's own waits are its caller's matter
	check(t, r.Unmap(at, grain))
	says("the end of memory with a backup, which waits for the disk", 1)
	check(t, r.Free(b.addr, false))
	says("free of paused memory with a backup", 1)
}
